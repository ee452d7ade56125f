"""Policies of all kinds, which `treadle.program.actors` makes into actors.

A policy is one of these:

- None or "random";
- a callable `policy(observations) -> actions`;
- an object with `predict(observations, deterministic=)` (Stable-Baselines3), `get_actions(observations)` or
  `get_action(observation) -> (action, info)`, and optionally `reset`;
- a class or factory, which each worker calls once, with the spaces when it takes them;
- "module:attr" or "file.py:attr" naming any of these;
- "model.zip", which Stable-Baselines3 has saved.

`reset` is called when an episode begins, with those of these arguments that it takes. `seed` is an int that (root seed,
episode) decides. `row` is the number of the worker's environment, 0..rows-1. A policy whose `reset` takes no `row`
cannot serve several environments. With more than one row each row then gets a policy of its own. A class or factory
makes it, and it is asked with batches of one row. A ready-made object is refused.

Any of these may be coroutines (`async def`): then they run on an event loop, with those of the process's other workers.

Batches have a leading axis (rows): arrays [rows, ...], dicts and tuples of arrays where the space nests, text as a
list of str.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from treadle import trees
from treadle.checks import parameters_of
from treadle.errors import UsageError
from treadle.program import saved
from treadle.spaces import Layout, Mismatch

_NO_OBJECTS = f"random, model{saved.ENDING}, "  # what the name of a policy may be, too


def load_object(reference: str, *, besides: str = "") -> Any:
    """Return the object that "module:attr" or "path/to/file.py:attr" names.

    Raises UsageError if the text has another form, or the file, module or attribute is missing. `besides`: other forms
    for its text, such as "model.zip, ".
    """
    name, colon, attribute = reference.rpartition(":")
    if not colon or not name or not attribute:
        raise UsageError(
            f"expected {besides}module:attribute or file.py:attribute, got {reference!r}{_choice(reference)}"
        )
    if name.endswith(".py"):
        module = _load_file(name)
    else:
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not (name == error.name or name.startswith(error.name + ".")):
                raise
            raise UsageError(f"{reference!r}: module {error.name!r} is not on the import path") from error
    try:
        found: Any = module
        for part in attribute.split("."):
            found = getattr(found, part)
    except AttributeError as error:
        names = ", ".join(n for n, v in vars(module).items() if not n.startswith("_") and not inspect.ismodule(v))[:200]
        raise UsageError(f"{reference!r}: {name} has no {attribute!r} (it has: {names})") from error
    return found


def names_in(path: str) -> list[str]:
    """Return the names that a Python file defines at its top level, without private ones and constants.

    The file is not run; [] if it cannot be read.
    """
    try:
        tree = ast.parse(Path(path).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return []
    found: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.append(node.name)
        elif isinstance(node, ast.Assign):
            found += [target.id for target in node.targets if isinstance(target, ast.Name) and not target.id.isupper()]
    return [name for name in dict.fromkeys(found) if not name.startswith("_")]


def _choice(reference: str) -> str:
    """Return the end of an error's text: the attributes of the file or module `reference`; "": it has none."""
    path = reference.rstrip(":")
    if path.endswith(".py") and not os.path.exists(path):
        return f": file {path} does not exist"
    path_of = path
    if not path.endswith(".py"):
        try:
            spec = importlib.util.find_spec(path)
        except (ImportError, ValueError):  # of a package that is not there, or no name at all
            spec = None
        if spec is None or spec.origin is None:
            return ""
        path_of = spec.origin
    names = names_in(path_of)
    return f"; it has: {', '.join(names)}; as in {path}:{names[0]}" if names else ""


def _load_file(path: str) -> Any:
    full = os.path.abspath(path)
    if not os.path.exists(full):
        raise UsageError(f"file {path} does not exist")
    name = "treadle_user_" + os.path.basename(full)[:-3].replace("-", "_") + f"_{_digest(full)}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, full)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.append(os.path.dirname(full))  # so that it can import its neighbours
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _digest(path: str) -> str:
    """Return a digest of a path that is the same in every process, as pickles name modules after it."""
    return hashlib.blake2b(os.fsencode(path), digest_size=6).hexdigest()


def policy_name(policy: Any) -> str:
    """Return a short name of a policy for datasets and tables."""
    if policy is None or policy == "random":
        return "random"
    if isinstance(policy, str):
        return Path(policy).stem.lower() if policy.endswith(saved.ENDING) else policy.rpartition(":")[2].lower()
    name = getattr(policy, "__name__", None) or type(policy).__name__
    return "policy" if name == "<lambda>" else str(name).lower()


def built_policy(policy: Any, observation_space: gym.Space, action_space: gym.Space) -> Any:
    """Return the policy itself, made from its name, class or factory if `policy` is one.

    Raises UsageError as `load_object`, and the errors of `saved.load_model`.
    """
    return _built(_loaded(policy), observation_space, action_space)


def _loaded(policy: Any) -> Any:
    if not isinstance(policy, str):
        return policy
    return saved.load_model(policy) if policy.endswith(saved.ENDING) else load_object(policy, besides=_NO_OBJECTS)


def _built(policy: Any, observation_space: gym.Space, action_space: gym.Space) -> Any:
    """Call a class or a factory with the spaces it takes; anything else is the policy itself."""
    known = {"observation_space": observation_space, "action_space": action_space}
    if isinstance(policy, type):
        names = _parameters(policy)
        return policy(**{name: space for name, space in known.items() if names is None or name in names})
    if inspect.isroutine(policy):
        names = _parameters(policy)
        if names is not None and set(names) <= set(known):  # takes no observations: a factory
            return policy(**{name: known[name] for name in names})
    return policy


def _parameters(function: Any) -> list[str] | None:
    parameters = parameters_of(function) or []
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return [p.name for p in parameters if p.kind is not p.VAR_POSITIONAL]


OF_BATCHES = "; a policy gets a batch of observations, [rows, ...], and returns an action a row (get_action: one)"


class Asker(NamedTuple):
    """How a policy is asked with a batch.

    Attributes:
        ask: called with the batch and the generator that the policy may draw from, or a list of one a row; returns the
            policy's answer.
        draws: True if the policy takes the generators.
        pairs: True if the answer may be (actions, infos).
    """

    ask: Callable[[Any, Any], Any]
    draws: bool = False
    pairs: bool = False


def asker_of(policy: Any, deterministic: bool = False) -> Asker | None:
    """Return the way to ask a policy with batches; None: it takes none.

    `deterministic`: the argument of `predict`. Raises UsageError for a `predict` that does not take it.
    """
    if callable(getattr(policy, "predict", None)):
        if (names := _parameters(policy.predict)) and "deterministic" not in names:
            raise UsageError(
                "predict is asked as Stable-Baselines3's is: predict(observations, deterministic=False), which returns "
                f"(actions, states); {type(policy).__name__}'s takes no `deterministic`"
            )
        return Asker(lambda batch, rng: predicted(policy, batch, deterministic))
    if callable(getattr(policy, "get_actions", None)):
        return Asker(lambda batch, rng: policy.get_actions(batch), pairs=True)
    if not callable(policy):
        return None
    if "rng" in (_parameters(policy if inspect.isroutine(policy) else policy.__call__) or []):
        return Asker(lambda batch, rng: policy(batch, rng=rng), draws=True)
    return Asker(lambda batch, rng: policy(batch))


def predicted(policy: Any, batch: Any, deterministic: bool) -> Any:
    """Return the actions of a policy's `predict`.

    Raises UsageError if `predict` also returns a state, which would be lost. A policy with `reset` may return one, as
    it keeps its own.
    """
    answer = policy.predict(batch, deterministic=deterministic)
    given = isinstance(answer, tuple) and any(each is not None for each in answer[1:])
    if given and not callable(getattr(policy, "reset", None)):
        raise UsageError(
            f"{type(policy).__name__}.predict returns a state, as recurrent models do, which would be lost: give an "
            "object with initial_state(k) and policy(observations, state) -> (actions, state)"
        )
    return answer[0]


def casts(actions: Any, layout: Layout) -> str:
    """Return a sentence about dtypes of a policy's actions that are cast with a loss; "": there are none."""
    given = dict(zip(trees.paths(actions), trees.leaves(actions), strict=True))
    leaves = [(own.dtype, given.get(own.path)) for own in layout.leaves if own.fixed]
    arrays = [(dtype, leaf.dtype) for dtype, leaf in leaves if isinstance(leaf, np.ndarray) and dtype is not None]
    found = [f"{given} to {dtype}" for dtype, given in arrays if not np.can_cast(given, dtype)]
    return f"the policy's actions are cast by the run, from {', '.join(dict.fromkeys(found))}" if found else ""


def _mends(error: Mismatch) -> str:
    """Return the remedy for one action in the place of a batch, or for a wrong dtype alone, such as
    "; actions.astype(np.int64) casts"; else ""."""
    if error.got.startswith(("int ", "bool ", "float ")) and "or a list of" in error.expected:
        return OF_BATCHES
    expected, _, shape = error.expected.partition("[")
    got, _, got_shape = error.got.partition("[")
    if shape != got_shape or expected == got or not hasattr(np, expected):
        return ""
    return f"; actions.astype(np.{expected}) casts"
