"""Find the episode or failure that is meant: a file, an object in memory, or an index in a run's directory.

If another user may have written a file, only an installed environment with plain arguments is replayed. A list of
forbidden things would never be complete. So `kept_out` has a list of allowed things and refuses all others. It applies
to files that neither their signature nor the reader (`trust`) vouches for.
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
import numpy as np

from treadle.checks import path_of
from treadle.errors import TreadleError, UsageError
from treadle.program.ids import spec_of
from treadle.progress import printable
from treadle.record.hdf5 import arrays_of
from treadle.record.merge import data_file
from treadle.record.run_directory import FAILURES, RunFiles, below
from treadle.record.summary import Summary
from treadle.repro import SUFFIX, Repro
from treadle.sample.failed import about_episode
from treadle.sample.run import LISTED
from treadle.spaces import Layout

ID = re.compile(r"[A-Za-z0-9_./-]{1,200}")
ADAPTERS = "GymV2"  # begins ids that build another environment, which an argument names
TEXTS = frozenset({"render_mode", "obs_type", "difficulty", "map_name", "camera_name"})  # arguments that may be text
WORD = re.compile(r"[A-Za-z0-9_]{1,40}")  # and which: no file, no module
CODE = ("reset_options", "mailed", "make", "args", "start", "callbacks")
_shown = json.dumps  # on one line, and with nothing that speaks to the terminal


def open_repro(source: Any, episode: int | None) -> Repro:
    """Return the `Repro` to replay.

    Args:
        source: a `Repro`, an error that has one, its file, or the directory of a run.
        episode: an index in a directory; None: the failure whose file was written last.

    Raises:
        UsageError: the source holds nothing to replay.
    """
    source = getattr(source, "repro", source)
    if source is None:
        why = "nothing has failed, recorder=False was given, or an item of planning's failed, which is not recorded"
        raise UsageError(f"no failure to replay: {why}")
    found = source if isinstance(source, Repro) else _from_disk(path_of("source", source), episode)
    if found.about.get("face") == "item":
        raise UsageError("it is of an item of a planning batch, which this version does not replay")
    if "unkept" in found.about:
        raise UsageError(f"it cannot be replayed: {found.about['unkept']}")
    return found


def _from_disk(path: Path, episode: int | None) -> Repro:
    if not path.exists():
        raise UsageError(f"{path} does not exist")
    if not path.is_dir():
        return Repro.load(path)
    failures = path / FAILURES
    if episode is None:
        found = sorted(failures.glob(f"*{SUFFIX}"), key=lambda each: each.stat().st_mtime_ns)
        if not found:
            raise UsageError(f"no episode has failed in {path}: say which one to replay (treadle replay {path} 0)")
        return Repro.load(found[-1])
    file = failures / f"episode-{episode}{SUFFIX}"
    return Repro.load(file) if file.exists() else _of_run(path, episode)


def _of_run(path: Path, index: int) -> Repro:
    """Return an episode that did not fail, made from the arguments of its run. Raises UsageError."""
    try:
        content, doubt = RunFiles(path).written()
        repro = _of_arguments(path, index, content["arguments"])
    except UsageError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UsageError(f"{path} is not a run's directory ({error})") from error
    repro.doubt, repro.made_here, repro.stored = doubt, False, path
    return repro


def _of_arguments(path: Path, index: int, run: dict[str, Any]) -> Repro:
    if run["episodes"] is not None and not 0 <= index < run["episodes"]:
        raise UsageError(f"{path} has the episodes 0 to {run['episodes'] - 1}, not {index}")
    repro = Repro(about_episode(run["seed"], index, run["env"], run["max_episode_steps"]))
    repro.about |= {"deterministic": run.get("deterministic", False), "wrappers": len(run["wrappers"])}
    named = {"env": run["env"], "policy": run["policy"]}
    named |= {f"wrapper {i}": wrapper for i, wrapper in enumerate(run["wrappers"])}
    for name, value in named.items():
        repro.put(name, value)
    repro.put("kwargs", run["env_kwargs"])
    starts = run.get("reset_options")
    if starts == LISTED:
        raise UsageError(f"{path} was made with a list of reset options, which it does not keep")
    repro.put("reset_options", starts)
    return repro


def stored_episode(repro: Repro) -> tuple[Path, Summary, int] | None:
    """Return the run's directory, its summary, and the episode's place in its dataset; None: it is not there."""
    path, seed = repro.stored, repro.about.get("seed")
    summary = None if path is None else RunFiles(path).summary()
    return (path, summary, summary.seeds.index(seed)) if path and summary and seed in summary.seeds else None


def add_stored(repro: Repro, observation_space: Any, action_space: Any) -> None:
    """Add the stored observations, actions, rewards and ends of a run's episode to `repro.arrays`, to be compared.

    Nothing is added if the dataset does not have the episode: the run is not complete, or left it out.

    Raises:
        UsageError: the file of the dataset is missing.
    """
    found = stored_episode(repro)
    if found is None or "rewards" in repro.arrays:
        return
    path, summary, at = found
    steps, evaluated = summary.lengths[at], summary.dataset.endswith(".hdf5")  # of an evaluation, without observations
    file = below(path, summary.dataset if evaluated else str(data_file(Path(summary.dataset))))
    if not file.exists():
        raise UsageError(f"no dataset in {path}: {file} is missing")
    episode = arrays_of(file, at)
    for name, space, more in (("observation", observation_space, 1), ("action", action_space, 0)):
        for i, leaf in enumerate(Layout.of(space).leaves):
            parts = (f"_index_{each}" if isinstance(each, int) else str(each) for each in leaf.path)
            values = episode.get("/".join([f"{name}s", *parts]))
            if leaf.fixed and values is not None:
                repro.arrays[f"{name}.{i}"] = values[: steps + more]
    if evaluated:
        repro.arrays["digest"] = np.frombuffer(bytes.fromhex(summary.digests[at]), np.uint8)
    repro.arrays["rewards"] = episode["rewards"][:steps]
    repro.arrays["ends"] = episode["terminations"][:steps] + 2 * episode["truncations"][:steps].astype(np.uint8)


@contextmanager
def kept_out(repro: Repro, *, env: Any, policy: Any, trust: bool) -> Iterator[None]:
    """Run a block that replays a file.

    If the file may be another user's, the block imports nothing from the folders around the file. It imports nothing
    from the current folder either, unless the user names an environment or a policy.

    Raises:
        UsageError: the file asks for more than is allowed: all of it is named, with the command that trusts it. Or the
            block raises, other than this package's errors and OSError, for a file that may be another user's.
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
            text = f"{path} may be another user's ({repro.doubt}), and what it names is not run: {'; '.join(refused)}."
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
    """Yield the things that the file asks for and may not have, each with its name and its value."""
    face, told = repro.about["face"], repro.shown
    if env is None and not told("make") and (why := _why_not(told("env"))):
        yield f"env {_shown(told('env'))} ({why})"
    if (policy is True or (policy is None and _asks(repro))) and told("policy") not in (None, "random"):
        yield f"policy {_shown(told('policy'))}"
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
    """Yield those arguments that are neither numbers nor None, nor a word for a name of `TEXTS`."""
    if not isinstance(given, dict | None):
        yield f"{what}s {_shown(given)}"
        return
    for name, value in (given or {}).items():
        word = isinstance(value, str) and name in TEXTS and WORD.fullmatch(value)
        if not (word or isinstance(value, bool | int | float | None)):
            yield f"{what} {_shown(name)} = {_shown(value)}"


def _asks(repro: Repro) -> bool:
    """Return True if the replay asks the file's policy: no actions were recorded, or the policy failed."""
    recorded = any(name.startswith("action.") for name in repro.arrays) or stored_episode(repro) is not None
    raised = (repro.about.get("failed") or {}).get("phase") == "policy"
    return repro.about["face"] == "episode" and (raised or not recorded)


def _why_not(name: Any) -> str:
    """Return the reason why a name is not the id of an installed environment; "": it is."""
    if not isinstance(name, str) or not ID.fullmatch(name):
        return "it is not an id: it names code to be imported"
    if name.startswith(ADAPTERS):
        return "it builds another environment, which an argument names"
    try:
        spec = spec_of(name)
    except (TreadleError, gym.error.Error) as error:
        return " ".join(str(error).split())
    for code in (spec.entry_point, *(each.entry_point for each in spec.additional_wrappers)):
        if not _installed(code.partition(":")[0] if isinstance(code, str) else getattr(code, "__module__", "")):
            return f"its code, {code}, is in no installed package"
    return ""


def _installed(module: str) -> bool:
    """Return True if a module's file lies in a site-packages folder. The search imports no other module."""
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
