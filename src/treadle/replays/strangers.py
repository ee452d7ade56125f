"""What is replayed of a file that somebody else may have written: an installed environment, with plain arguments.

A list of what is forbidden would never be complete. This is the list of what is allowed where neither the signature of
the file nor the reader (`trust`) vouches for it; all else is refused.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import site
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium as gym

from treadle.errors import TreadleError, UsageError
from treadle.program.ids import import_package, registered
from treadle.progress import printable
from treadle.replays.opening import stored_episode
from treadle.repro import Repro

ID = re.compile(r"[A-Za-z0-9_./-]{1,200}")
ADAPTERS = "GymV2"  # begins ids that build another environment, which an argument names
TEXTS = frozenset({"render_mode", "obs_type", "difficulty", "map_name", "camera_name"})  # arguments that may be text
WORD = re.compile(r"[A-Za-z0-9_]{1,40}")  # and which: no file, no module
CODE = ("reset_options", "mailed", "make", "args", "start", "callbacks")
_shown = json.dumps  # on one line, and with nothing that speaks to the terminal


@contextmanager
def kept_out(repro: Repro, *, env: Any, policy: Any, trust: bool) -> Iterator[None]:
    """In the block a file is replayed. Of one that may be somebody else's nothing is imported from its folder, and
    nothing from the current folder, unless the user names an environment or a policy.

    Raises:
        UsageError: the file asks for more than is allowed: all of it is named, with the command that trusts it. Or it
            cannot be replayed, whatever that raises.
    """
    path = repro.path or repro.stored or Path()
    if trust or not repro.doubt:
        yield
        return
    here, before = os.path.realpath("."), sys.path[:]
    folders = {here, *map(os.path.realpath, (path, path.parent, path.parent.parent))}
    if env is not None or not isinstance(policy, bool | None):
        folders.remove(here)
    sys.path[:] = [each for each in before if os.path.realpath(each) not in folders]
    try:
        if refused := list(_refused(repro, env, policy)):
            words = ["treadle", "replay", str(path), *([] if repro.path else [str(repro.about["index"])]), "--trust"]
            text = f"{path} may be somebody else's ({repro.doubt}), and what it names is not run: {'; '.join(refused)}."
            text += f" {shlex.join(words)} (trust=True) runs all of it as you"
            text += "; --env ENV (env=) names an environment by hand" if refused[0].startswith("env ") else ""
            raise UsageError(printable(text))
        yield
    except (TreadleError, OSError):
        raise
    except Exception as error:
        text = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise UsageError(f"{path} cannot be replayed ({text})") from error
    finally:
        sys.path[:] = before


def _refused(repro: Repro, env: Any, policy: Any) -> Iterator[str]:
    """What the file asks for and is not allowed, each with its name and its value."""
    face, told = repro.about["face"], repro.told
    if env is None and not told("make") and (why := _why_not(told("env"))):
        yield f"env {_shown(told('env'))} ({why})"
    if (policy is True or (policy is None and _asks(repro))) and told("policy") not in (None, "random"):
        yield f"policy {_shown(told('policy'))}"
    if repro.imports:
        yield f"imports {_shown(repro.imports)}"
    if wrappers := repro.about.get("wrappers"):
        yield f"wrappers {_shown(wrappers)}"
    for name in repro.about:
        if (name in CODE or name.startswith("wrapper ")) and (told(name) or told(name) == ""):
            yield f"{name} {_shown(told(name))}"
    yield from _not_plain("argument", told("kwargs"))
    options: Any = told("options")
    several = face == "slot" and isinstance(options, list)
    for each in [pair[0] for pair in options] if several else [options]:
        yield from _not_plain("reset option", each)
    for name, array in repro.arrays.items():
        if array.dtype.kind not in "biufc":
            yield f"{name} of {_shown(str(array.dtype))}"


def _not_plain(what: str, given: Any) -> Iterator[str]:
    """Those arguments that are neither numbers nor None, nor a word for a name of `TEXTS`."""
    if not isinstance(given, dict | None):
        yield f"{what}s {_shown(given)}"
        return
    for name, value in (given or {}).items():
        word = isinstance(value, str) and name in TEXTS and WORD.fullmatch(value)
        if not (word or isinstance(value, bool | int | float | None)):
            yield f"{what} {_shown(name)} = {_shown(value)}"


def _asks(repro: Repro) -> bool:
    """Is the policy of the file asked, since there are no actions, or since it is what failed?"""
    recorded = any(name.startswith("action.") for name in repro.arrays) or stored_episode(repro) is not None
    raised = (repro.about.get("failed") or {}).get("phase") == "policy"
    return repro.about["face"] == "episode" and (raised or not recorded)


def _why_not(name: Any) -> str:
    """Why a name is none of an installed environment; "" where it is one."""
    if not isinstance(name, str) or not ID.fullmatch(name):
        return "it is no id, but names code to be imported"
    if name.startswith(ADAPTERS):
        return "it builds another environment, which an argument names"
    try:
        import_package(name)
        with registered(name):
            spec = gym.spec(name)
    except (TreadleError, gym.error.Error) as error:
        return " ".join(str(error).split())
    for code in (spec.entry_point, *(each.entry_point for each in spec.additional_wrappers)):
        if not _installed(code.partition(":")[0] if isinstance(code, str) else getattr(code, "__module__", "")):
            return f"its code, {code}, is in no installed package"
    return ""


def _installed(module: str) -> bool:
    """Does a module lie in a site-packages folder, by its file? What does not is not imported for that."""
    sites = {*map(sysconfig.get_path, ("purelib", "platlib")), *site.getsitepackages(), site.getusersitepackages()}
    try:
        for name in (module.partition(".")[0], module):  # looking for a submodule imports what is above it
            found = importlib.util.find_spec(name)
            file = Path(os.path.abspath((found and found.has_location and found.origin) or os.devnull))
            if not any(file.is_relative_to(each) for each in sites):
                return False
    except (ImportError, ValueError, AttributeError):
        return False
    return True
