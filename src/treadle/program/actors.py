"""Actors, which slots ask for actions. Each is made from a user's policy (`treadle.program.policies`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
from gymnasium import spaces as gs

from treadle.coroutines import Settled
from treadle.errors import BadAction, UsageError, Where, attributes_of
from treadle.program.asking import CallerPolicy
from treadle.program.policies import _built, _loaded, _mends, _parameters, asker_of, casts, policy_name
from treadle.spaces import Layout, Mismatch

DRAWN = 256  # actions drawn at once by the random policy


class Actor(Protocol):
    """The actor that a rollout asks for actions. Rows are a worker's environments, 0..rows-1.

    `start(row, seed)` begins an episode of a row, whose randomness comes from `seed`. `act(observations)` takes one
    observation a row (None for a row without an episode). It returns one action a row as environments take them, and
    one info dict a row, or None without infos. `act_alone` is the same for a single row. The rollout takes remarks for
    the user out of `told`.
    """

    told: list[str]

    def start(self, row: int, seed: int) -> None: ...
    def act(self, observations: list[Any]) -> tuple[list[Any], list[dict[str, Any]] | None]: ...
    def close(self) -> None: ...

    def act_alone(self, observation: Any) -> tuple[Any, dict[str, Any] | None]:
        (action,), infos = self.act([observation])
        return action, None if infos is None else infos[0]


def build_actor(
    policy: Any, observation_space: gym.Space, action_space: gym.Space, rows: int = 1, deterministic: bool = False
) -> Actor:
    """Make an actor of a policy, in the worker.

    `rows`: number of the worker's environments. `deterministic`: the argument of `predict`.

    Raises UsageError for a value that is not a policy, and for a policy that cannot act for so many rows.
    """
    if policy is None or (isinstance(policy, str) and policy == "random"):
        return RandomActor(action_space, rows)
    policy = _loaded(policy)
    layouts = Layout.of(observation_space), Layout.of(action_space)
    name = policy_name(policy)
    made = [_built(policy, observation_space, action_space)]
    if rows == 1 or _tells_rows_apart(made[0]):
        many = rows > 1 and not callable(getattr(made[0], "reset", None)) and _askable(made[0])
        return (ManyActor if many else PolicyActor)(made[0], *layouts, rows, name, deterministic)
    if made[0] is not policy:
        made += [_built(policy, observation_space, action_space) for _ in range(rows - 1)]
    if len(set(map(id, made))) < rows:
        raise UsageError(
            f"the policy {name} has a reset that takes no `row`, so one object cannot act for {rows} environments at "
            "once. Give a class or factory (one policy is made for each), or a reset(row=...), or one environment "
            "a worker"
        )
    return SeparateActors([PolicyActor(each, *layouts, 1, name, deterministic) for each in made])


def _askable(policy: Any) -> bool:
    """Return True if the policy can be asked with a batch."""
    return callable(policy) or any(callable(getattr(policy, name, None)) for name in ("predict", "get_actions"))


def _tells_rows_apart(policy: Any) -> bool:
    """Return True if one object can act for several environments: it has no `reset`, or one that takes the row."""
    reset = getattr(policy, "reset", None)
    names = _parameters(reset) if callable(reset) else None
    return names is None or "row" in names


class RandomActor(Actor):
    """Draws actions uniformly, in blocks, from the row's own generator.

    Spaces other than Discrete, MultiDiscrete and bounded Boxes of floats draw by their own `sample`.
    """

    def __init__(self, space: gym.Space, rows: int) -> None:
        self._space = space
        self._draw, self.told = _drawer(space), []
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
        """Return a block of actions in reverse order of use; the first block of an episode is a short one."""
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
    """Return a function (generator, count) -> list of `count` actions of a space."""
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
    """A user's policy, asked with batches of exactly `rows` rows. A row without an episode repeats another row.

    Raises UsageError for a value that is not a policy. `act` raises BadAction for actions that do not fit the space.
    """

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
        self.told: list[str] = []
        self._acted = False

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
            if not self._acted and (cast := casts(actions, self._actions)):
                self.told.append(cast)
            self._acted = True
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


class ManyActor(PolicyActor):
    """Asks a policy about all rows as `CallerPolicy` does.

    Each row's episode has its own generator and state. The first batch shows whether rows depend on one another.
    """

    def __init__(self, policy: Any, *about: Any) -> None:
        super().__init__(policy, *about)
        self._many = CallerPolicy(policy, self._name, pad_to=self._rows, deterministic=about[-1])
        self.told = self._many.told
        for row in range(self._rows):
            self._many.start(row, 0)

    def start(self, row: int, seed: int) -> None:
        self._many.start(row, seed)

    def _ask(self, batch: Any) -> tuple[Any, Any]:
        return self._many.ask(batch, range(self._rows))

    def close(self) -> None:
        super().close()
        self._many.close()


class SeparateActors(Actor):
    """A policy of its own for each row, for policies that cannot distinguish rows."""

    def __init__(self, actors: list[PolicyActor]) -> None:
        self._actors, self.told = actors, list[str]()
        for actor in actors:
            actor.told = self.told

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


def _pair(answer: Any) -> tuple[Any, Any]:
    """Return (actions, infos) of an answer of `get_actions`; infos are None if it returns actions alone."""
    if isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], dict | list):
        return answer
    return answer, None


def _per_row(infos: Any, rows: int) -> list[dict[str, Any]]:
    """Return one dict a row from infos that are a dict of batched arrays, or a list of dicts."""
    if isinstance(infos, dict):
        return [{key: np.asarray(value)[row] for key, value in infos.items()} for row in range(rows)]
    return [dict(info) for info in infos]


def _stacker(layout: Layout) -> Callable[[list[Any]], Any]:
    """Return a function from a list of observations to a policy's batch. Its arrays are new: a policy may keep them."""
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
