"""Policies: whatever a user calls one, made into an `Actor` that a rollout can ask for actions.

Accepted: None or "random"; a callable `policy(observations) -> actions`; an object with `predict(observations,
deterministic=)` (Stable-Baselines3), `get_actions(observations)` or `get_action(observation) -> (action, info)`, and
optionally `reset`; a class or factory, built once per worker and given the spaces when it takes them;
"module:attr" or "file.py:attr" naming any of these; and "model.zip", which Stable-Baselines3 has saved.

`reset` is called when an episode begins, with those of these that it takes: `seed`, an int that (root seed, episode)
decides, and `row`, which of the worker's environments it is about, 0..rows-1. A policy whose `reset` takes no `row`
cannot tell several environments apart: with more than one row each gets a policy of its own, which a class or factory
is called for, and which is asked with batches of one row. A ready-made object is refused then.

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
from typing import Any, NamedTuple, Protocol

import gymnasium as gym
import numpy as np
from gymnasium import spaces as gs

from treadle import trees
from treadle.checks import parameters_of
from treadle.coroutines import Settled
from treadle.errors import BadAction, UsageError, Where, attributes_of
from treadle.program import saved
from treadle.spaces import Layout, Mismatch

DRAWN = 256  # actions drawn at once by the random policy


class Actor(Protocol):
    """The actor that a rollout asks for actions. Rows are a worker's environments, 0..rows-1.

    `start(row, seed)` tells that a row begins an episode whose randomness is `seed`'s. `act(observations)` takes one
    observation a row (None for a row without an episode) and returns one action a row as environments take them, and
    one info dict a row, or None for no infos at all. `act_alone` is the same where there is one row.
    """

    def start(self, row: int, seed: int) -> None: ...
    def act(self, observations: list[Any]) -> tuple[list[Any], list[dict[str, Any]] | None]: ...
    def close(self) -> None: ...

    def act_alone(self, observation: Any) -> tuple[Any, dict[str, Any] | None]:
        (action,), infos = self.act([observation])
        return action, None if infos is None else infos[0]


_NO_OBJECTS = f"random, model{saved.ENDING}, "  # what the name of a policy may be, too


def load_object(reference: str, *, besides: str = "") -> Any:
    """The object that "module:attr" or "path/to/file.py:attr" names. Raises UsageError that says what is missing;
    `besides` names what else there might have been, such as "model.zip, "."""
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
            raise UsageError(f"{reference!r}: there is no module {error.name!r} on the import path") from error
    try:
        found: Any = module
        for part in attribute.split("."):
            found = getattr(found, part)
    except AttributeError as error:
        names = ", ".join(n for n, v in vars(module).items() if not n.startswith("_") and not inspect.ismodule(v))[:200]
        raise UsageError(f"{reference!r}: {name} has no {attribute!r} (it has: {names})") from error
    return found


def names_in(path: str) -> list[str]:
    """The names that a file of Python defines at its top level, but private ones and constants; it is not run."""
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
    """Names that a file or a module alone could have meant."""
    path = reference.rstrip(":")
    if path.endswith(".py") and not os.path.exists(path):
        return f": there is no file {path}"
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
        raise UsageError(f"there is no file {path}")
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
    """The same in every process, other than `hash`: what a worker pickles names its module."""
    return hashlib.blake2b(os.fsencode(path), digest_size=6).hexdigest()


def policy_name(policy: Any) -> str:
    """A short name for datasets and tables."""
    if policy is None or policy == "random":
        return "random"
    if isinstance(policy, str):
        return Path(policy).stem.lower() if policy.endswith(saved.ENDING) else policy.rpartition(":")[2].lower()
    name = getattr(policy, "__name__", None) or type(policy).__name__
    return "policy" if name == "<lambda>" else str(name).lower()


def build_actor(
    policy: Any, observation_space: gym.Space, action_space: gym.Space, rows: int = 1, deterministic: bool = False
) -> Actor:
    """Make an actor, in the worker. Raises UsageError for anything else, or if it cannot act for so many rows.

    deterministic: of `predict`.
    """
    if policy is None or (isinstance(policy, str) and policy == "random"):
        return RandomActor(action_space, rows)
    policy = _loaded(policy)
    layouts = Layout.of(observation_space), Layout.of(action_space)
    name = policy_name(policy)
    made = [_built(policy, observation_space, action_space)]
    if rows == 1 or _tells_rows_apart(made[0]):
        return PolicyActor(made[0], *layouts, rows, name, deterministic)
    if made[0] is not policy:
        made += [_built(policy, observation_space, action_space) for _ in range(rows - 1)]
    if len(set(map(id, made))) < rows:
        raise UsageError(
            f"the policy {name} has a reset that takes no `row`, so one object cannot act for {rows} environments at "
            "once: give a class or factory (one policy is made for each), or a reset(row=...), or one environment "
            "a worker"
        )
    return SeparateActors([PolicyActor(each, *layouts, 1, name, deterministic) for each in made])


def built_policy(policy: Any, observation_space: gym.Space, action_space: gym.Space) -> Any:
    """The policy itself, of what may be its name, class or factory. Raises UsageError as `load_object`."""
    return _built(_loaded(policy), observation_space, action_space)


def _loaded(policy: Any) -> Any:
    if not isinstance(policy, str):
        return policy
    return saved.load_model(policy) if policy.endswith(saved.ENDING) else load_object(policy, besides=_NO_OBJECTS)


def _tells_rows_apart(policy: Any) -> bool:
    """Return True if one object can act for several environments: it has no `reset`, or one that takes the row."""
    reset = getattr(policy, "reset", None)
    names = _parameters(reset) if callable(reset) else None
    return names is None or "row" in names


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
        ask: called with the batch and what the policy may draw from (a generator, or one a row); returns its answer.
        draws: does it draw from that?
        pairs: may the answer be (actions, infos)?
    """

    ask: Callable[[Any, Any], Any]
    draws: bool = False
    pairs: bool = False


def asker_of(policy: Any, deterministic: bool = False) -> Asker | None:
    """The way to ask a policy with batches; None: there is none.

    deterministic: of `predict`.
    """
    if callable(getattr(policy, "predict", None)):
        if (names := _parameters(policy.predict)) and "deterministic" not in names:
            raise UsageError(
                "predict is asked as Stable-Baselines3's is: predict(observations, deterministic=False), which returns "
                f"(actions, states); {type(policy).__name__}'s takes no `deterministic`"
            )
        return Asker(lambda batch, rng: policy.predict(batch, deterministic=deterministic)[0])
    if callable(getattr(policy, "get_actions", None)):
        return Asker(lambda batch, rng: policy.get_actions(batch), pairs=True)
    if not callable(policy):
        return None
    if "rng" in (_parameters(policy if inspect.isroutine(policy) else policy.__call__) or []):
        return Asker(lambda batch, rng: policy(batch, rng=rng), draws=True)
    return Asker(lambda batch, rng: policy(batch))


def casts(actions: Any, layout: Layout) -> str:
    """A sentence on what becomes of the dtypes of a policy's batch of actions; "": nothing that loses digits."""
    given = dict(zip(trees.paths(actions), trees.leaves(actions), strict=True))
    leaves = [(own.dtype, given.get(own.path)) for own in layout.leaves if own.fixed]
    arrays = [(dtype, leaf.dtype) for dtype, leaf in leaves if isinstance(leaf, np.ndarray) and dtype is not None]
    found = [f"{given} to {dtype}" for dtype, given in arrays if not np.can_cast(given, dtype)]
    return f"the policy's actions are cast by the run, from {', '.join(dict.fromkeys(found))}" if found else ""


class RandomActor(Actor):
    """Uniform over the action space (as the space's own `sample` defines it), drawn in blocks from the row's stream."""

    def __init__(self, space: gym.Space, rows: int) -> None:
        self._space = space
        self._draw = _drawer(space)
        self._rngs: list[np.random.Generator | None] = [None] * rows
        self._seeds = [0] * rows
        self._stock: list[list[Any]] = [[] for _ in range(rows)]

    def start(self, row: int, seed: int) -> None:
        self._rngs[row], self._seeds[row] = None, seed
        self._stock[row] = []

    def act(self, observations: list[Any]) -> tuple[list[Any], None]:
        actions: list[Any] = []
        for row, observation in enumerate(observations):
            if observation is None:
                actions.append(None)
                continue
            stock = self._stock[row]
            if not stock:
                stock = self._stock[row] = self._more(row)
            actions.append(stock.pop())
        return actions, None

    def act_alone(self, observation: Any) -> tuple[Any, None]:
        stock = self._stock[0] = self._stock[0] or self._more(0)
        return stock.pop(), None

    def _more(self, row: int) -> list[Any]:
        """A block of actions in reverse order of use; the first of an episode is a short one."""
        rng = self._rngs[row]
        count = DRAWN
        if rng is None:
            rng = self._rngs[row] = np.random.Generator(np.random.PCG64(self._seeds[row]))
            count = 32
        drawn = self._draw(rng, count)
        drawn.reverse()
        return drawn

    def close(self) -> None:
        """Nothing is held."""


def _drawer(space: gym.Space) -> Callable[[np.random.Generator, int], list[Any]]:
    """How to draw `count` actions of a space from a generator."""
    if type(space) is gs.Discrete:
        low, high = int(space.start), int(space.start + space.n)
        return lambda rng, count: rng.integers(low, high, count).tolist()
    if type(space) is gs.MultiDiscrete:
        nvec, start, dtype = space.nvec, space.start, space.dtype

        def draw_many(rng: np.random.Generator, count: int) -> list[Any]:
            return list((rng.integers(0, nvec, (count, *nvec.shape)) + start).astype(dtype))

        return draw_many
    if type(space) is gs.Box and space.dtype is not None and space.dtype.kind == "f" and space.is_bounded():
        low_array, high_array, shape, kind = space.low, space.high, space.shape, space.dtype
        return lambda rng, count: list(rng.uniform(low_array, high_array, (count, *shape)).astype(kind))
    private = Layout.of(space).space

    def draw(rng: np.random.Generator, count: int) -> list[Any]:
        private.seed(int(rng.integers(2**31)))
        return [private.sample() for _ in range(count)]

    return draw


class PolicyActor(Actor):
    """A user's policy, asked with batches of exactly `rows` rows (rows without an episode repeat one that has)."""

    def __init__(
        self, policy: Any, observations: Layout, actions: Layout, rows: int, name: str, deterministic: bool
    ) -> None:
        self._policy, self._rows, self._name = policy, rows, name
        self._observations, self._actions = observations, actions
        self._stack = _stacker(observations)
        self._arrays = [
            np.zeros((rows, *(leaf.shape or ())), leaf.dtype) if leaf.fixed else None for leaf in actions.leaves
        ]
        self._write = actions.batch_writer(self._arrays, rows, cast=True)
        self._read = actions.batch_reader(self._arrays, 0, rows)
        has = {name for name in ("predict", "get_actions", "get_action") if callable(getattr(policy, name, None))}
        self._asker = None if has == {"get_action"} else asker_of(policy, deterministic)
        if self._asker is None and not has:
            raise UsageError(
                f"a policy is callable or has predict, get_actions or get_action; got {type(policy).__name__}"
            )
        # a row that has no episode yet has one as well: a policy may draw from all of its rows
        self._rngs = [np.random.Generator(np.random.PCG64(0)) for _ in range(rows)]
        self._reset = getattr(policy, "reset", None)
        self._takes = _parameters(self._reset) if callable(self._reset) else []
        self._last: list[Any] = [None] * rows
        self._settled = Settled()
        self.told: str | None = None  # what a person should know of its actions; None: there are none yet

    def _ask(self, batch: Any) -> tuple[Any, Any]:
        if self._asker is None:
            return self._ask_each()
        answer = self._settled(self._asker.ask(batch, self._rngs[0] if self._rows == 1 else self._rngs))
        return _pair(answer) if self._asker.pairs else (answer, None)

    def _ask_each(self) -> tuple[Any, Any]:
        answers = [self._settled(self._policy.get_action(observation)) for observation in self._last]
        pairs = [answer if isinstance(answer, tuple) and len(answer) == 2 else (answer, {}) for answer in answers]
        return [action for action, _ in pairs], [info for _, info in pairs]

    def start(self, row: int, seed: int) -> None:
        self._rngs[row] = np.random.Generator(np.random.PCG64(seed))
        if callable(self._reset):
            given = {"seed": seed, "row": row}
            self._reset(**{k: v for k, v in given.items() if self._takes is None or k in self._takes})

    def act(self, observations: list[Any]) -> tuple[list[Any], list[dict[str, Any]] | None]:
        some = next(o for o in observations if o is not None)
        self._last = [some if o is None else o for o in observations]
        batch = self._stack(self._last)
        actions, infos = self._ask(batch)
        try:
            mailed = self._write(actions)
            if self.told is None:
                self.told = casts(actions, self._actions)
        except Mismatch as error:
            raise BadAction(
                f"the policy's actions do not fit the action space: {error} (policy {self._name}{_mends(error)})",
                where=Where(phase="policy"),
                path=error.path,
                expected=error.expected,
                got=error.got,
            ) from None
        rows = self._read(mailed)
        if infos is None:
            return rows, None
        return rows, _per_row(infos, self._rows)

    def close(self) -> None:
        close = getattr(self._policy, "close", None)
        if callable(close):
            self._settled(close())
        self._settled.close()


class SeparateActors(Actor):
    """A policy of its own for each row, for policies that cannot distinguish rows."""

    def __init__(self, actors: list[PolicyActor]) -> None:
        self._actors = actors

    def start(self, row: int, seed: int) -> None:
        self._actors[row].start(0, seed)

    def act(self, observations: list[Any]) -> tuple[list[Any], list[dict[str, Any]] | None]:
        actions: list[Any] = [None] * len(observations)
        infos: list[dict[str, Any]] = [{} for _ in observations]
        said = False
        for row, observation in enumerate(observations):
            if observation is None:
                continue
            try:
                (actions[row],), about = self._actors[row].act([observation])
            except BaseException as error:
                attributes_of(error)["treadle_row"] = row  # the caller could not know it
                raise
            if about is not None:
                infos[row], said = about[0], True
        return actions, infos if said else None

    def close(self) -> None:
        for actor in self._actors:
            actor.close()


def _mends(error: Mismatch) -> str:
    """What would mend one action for a batch, and actions whose dtype alone is wrong, such as
    "; actions.astype(np.int64) casts"; else ""."""
    if error.got.startswith(("int ", "bool ", "float ")) and "or a list of" in error.expected:
        return OF_BATCHES
    expected, _, shape = error.expected.partition("[")
    got, _, got_shape = error.got.partition("[")
    if shape != got_shape or expected == got or not hasattr(np, expected):
        return ""
    return f"; actions.astype(np.{expected}) casts"


def _pair(answer: Any) -> tuple[Any, Any]:
    """get_actions may return actions, or (actions, infos)."""
    if isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], dict | list):
        return answer
    return answer, None


def _per_row(infos: Any, rows: int) -> list[dict[str, Any]]:
    """A dict of batched arrays, or a list of dicts, as one dict a row."""
    if isinstance(infos, dict):
        return [{key: np.asarray(value)[row] for key, value in infos.items()} for row in range(rows)]
    return [dict(info) for info in infos]


def _stacker(layout: Layout) -> Callable[[list[Any]], Any]:
    """One observation a row -> the batch a policy sees. The arrays are fresh: a policy may keep them."""
    leaves = layout.leaves
    if len(leaves) == 1 and leaves[0].fixed and not leaves[0].path:
        dtype = leaves[0].dtype
        return lambda rows: np.asarray(rows, dtype) if len(rows) > 1 else np.array(rows[0], dtype)[None]

    def stack(rows: list[Any]) -> Any:
        columns = zip(*(layout.flatten(row) for row in rows), strict=True)
        return layout.unflatten(
            [np.array(c, leaf.dtype) if leaf.fixed else list(c) for leaf, c in zip(leaves, columns, strict=True)]
        )

    return stack
