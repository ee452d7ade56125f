"""Workers that own a vectorised environment: its n rows are n slots that live and die together.

A `gymnasium.vector.VectorEnv` that steps its rows by one NumPy expression, or in C++, is faster than any loop over
environments. Here each worker has one for its share of the slots (and the caller one for its own), and a batch is
theirs side by side. What the rows are, and when they begin anew, is the environment's business: its autoreset mode is
the vector's.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode

from treadle import trees
from treadle.errors import UsageError
from treadle.pool import bell
from treadle.pool.batched import BatchedStep, Orders
from treadle.pool.group import partition
from treadle.program.base import Description, Program
from treadle.program.ids import import_package, registered
from treadle.program.registered import own_registrations, register_missing
from treadle.spaces import Layout
from treadle.vector.entry_points import with_theirs
from treadle.vector.env_slot import REFUSED, Ask, Kept, OwnValue

UNKEPT = "what the rows of an environment that is vectorised itself (OwnedVectors) were made to do is not recorded"
NO_ROWS = np.zeros(0, np.int64)
MakeVector = Callable[..., Any]  # returns a gymnasium.vector.VectorEnv


class OwnedVectors:
    """How to build the vectorised environments of a vector, one a worker.

    Args:
        make: called in each worker as `make(num_envs=k, **kwargs)` with the worker's number of slots; returns a
            `gymnasium.vector.VectorEnv`. Or the id of an environment that has a vectorised form.
        kwargs, wrappers, imports: keyword arguments for `make`, vector wrappers to apply in order, modules to import
            first.
    """

    def __init__(
        self,
        make: str | MakeVector,
        *,
        kwargs: dict[str, Any] | None = None,
        wrappers: Sequence[Callable[[Any], Any]] = (),
        imports: Sequence[str] = (),
    ) -> None:
        self.make, self.kwargs = make, dict(kwargs or {})
        self.wrappers, self.imports = tuple(wrappers), tuple(imports)
        self.registrations = own_registrations()

    def build(self, rows: int) -> gym.vector.VectorEnv:
        """An environment of `rows` rows. Raises UsageError when it is none that can be owned."""
        register_missing(self.registrations)
        for name in self.imports:
            importlib.import_module(name)
        if isinstance(self.make, str):
            import_package(self.make)
            mode = "vector_entry_point"
            with registered(self.make):
                spec = with_theirs(self.make)
                env: Any = gym.make_vec(spec, num_envs=rows, vectorization_mode=mode, **self.kwargs)
        else:
            env = self.make(num_envs=rows, **self.kwargs)
        for wrapper in self.wrappers:
            env = wrapper(env)
        if not isinstance(env, gym.vector.VectorEnv):
            raise UsageError(f"{self.make!r} made a {type(env).__name__}, which is not a gymnasium.vector.VectorEnv")
        if env.num_envs != rows:
            raise UsageError(f"{self.make!r} made a vector of {env.num_envs} environments, {rows} were asked for")
        return env

    def check(self, more_to_build_with: Any, on_failure: str | None) -> None:
        """Refuse options of a vector that do not go with this: raises UsageError."""
        if more_to_build_with:
            raise UsageError("kwargs, wrappers and imports of a vectorised environment are given to OwnedVectors")
        if on_failure == "restart":
            raise UsageError(
                "on_failure='restart' begins the episodes of a dead worker's slots one by one, and a vectorised "
                "environment begins all of its rows at once: use 'drop' or 'raise'"
            )

    def slots(
        self, n: int | None, shares: Callable[[int], tuple[int | None, int]], backend: str
    ) -> list[Callable[[], Program]]:
        """One factory of a program a slot; those of one worker share an environment.

        `shares`: n slots -> (workers, slots of the caller's own), as the pool is going to deal them. Raises UsageError
        without n.
        """
        if n is None or n < 1:
            raise UsageError("vectorised environments are made to a size: give num_envs, at least 1")
        workers, inline = shares(n)
        inline = n if backend == "serial" else inline
        factories: list[Callable[[], Program]] = []
        for share in ([range(inline)] if inline else []) + partition(n - inline, workers or bell.cores(), inline):
            in_common = _Share(self, len(share))
            factories += [_Row(in_common, row) for row in range(len(share))]
        return factories


def mode_of_all(slots: Sequence[Description], asked: AutoresetMode | str | None) -> AutoresetMode:
    """The autoreset mode that all slots have. Raises UsageError when they differ, or another was asked for."""
    modes = {slot.metadata["metadata"]["autoreset_mode"] for slot in slots}
    if asked is not None:
        modes.add(AutoresetMode(asked))
    if len(modes) > 1:
        raise UsageError(
            f"autoreset modes differ: {', '.join(sorted(mode.value for mode in modes))}. A vectorised environment has "
            "its own: leave autoreset_mode=None, and make it with the one you want"
        )
    return modes.pop()


class _Share:
    """What the factories of one worker's slots have in common, on either side of a pickle."""

    def __init__(self, recipe: OwnedVectors, rows: int) -> None:
        self.recipe, self.rows = recipe, rows
        self.owned: Owned | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _Share, (self.recipe, self.rows)


class _Row:
    def __init__(self, share: _Share, row: int) -> None:
        self._share, self._row = share, row

    def __call__(self) -> OwnedRow:
        share = self._share
        if self._row == 0 or share.owned is None:
            share.owned = Owned(share.recipe.build(share.rows))
        return OwnedRow(share.owned, self._row)


class OwnedRow(Program):
    """A slot whose environment is a row of `batched`."""

    def __init__(self, owned: Owned, row: int) -> None:
        self.batched, self._row = owned, row

    def describe(self) -> Description:
        return self.batched.description

    def close(self) -> None:
        if self._row == 0:
            self.batched.env.close()


class Owned:
    """One vectorised environment; see `treadle.pool.batched.BatchedProgram`."""

    def __init__(self, env: gym.vector.VectorEnv) -> None:
        self.env, self._k = env, env.num_envs
        self.mode = _mode_of(env)
        for what in (env.single_observation_space, env.single_action_space):
            loose = [leaf.space for leaf in Layout.of(what).leaves if not leaf.fixed]
            if loose:
                raise UsageError(f"a vectorised environment with values of {loose[0]} cannot be owned by a worker")
        metadata = {**env.metadata, "autoreset_mode": self.mode}
        self.description = Description(
            env.single_observation_space,
            env.single_action_space,
            finals=self.mode is AutoresetMode.SAME_STEP,
            begins_next=self.mode is not AutoresetMode.DISABLED,
            metadata={"metadata": metadata, "render_mode": env.render_mode, "spec": None, "together": True},
        )
        self._over = NO_ROWS  # rows whose episode has ended and that have not moved on

    def step(self, actions: Any) -> BatchedStep:
        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        ended = (terminated | truncated).nonzero()[0]
        begun = NO_ROWS
        finals: dict[int, tuple[Any, dict[str, Any]]] = {}
        if self.mode is AutoresetMode.NEXT_STEP:
            begun, self._over = self._over, ended
        elif self.mode is AutoresetMode.DISABLED:
            self._over = ended
        elif len(ended):
            begun = ended
            infos = dict(infos)
            last, told = infos.pop("final_obs", None), infos.pop("final_info", None)
            for key in ("_final_obs", "_final_info"):
                infos.pop(key, None)
            if last is None:
                raise UsageError("its autoreset mode is SAME_STEP, and its infos have no final_obs")
            told = rows_of_infos(told, self._k) if told else {}
            finals = {row: (trees.row(last, row), told.get(row, {})) for row in ended.tolist()}
        by_row = rows_of_infos(infos, self._k) if infos else {}
        return BatchedStep(observations, rewards, terminated, truncated, len(ended) > 0, begun, by_row, finals)

    def reset(self, orders: Orders) -> tuple[Any, dict[int, dict[str, Any]]]:
        seeds = [seed for seed, _ in orders.values()]
        options = next(iter(orders.values()))[1]
        if any(given is not options and given != options for _, given in orders.values()) or isinstance(options, Kept):
            raise UsageError("options go to a vectorised environment as a whole: give one dict for all slots")
        rows = np.array(sorted(orders))
        if len(rows) < self._k:
            if any(seed is not None for seed in seeds):
                raise UsageError("rows of a vectorised environment are reset without seeds, unless all of them are")
            mask = np.zeros(self._k, np.bool_)
            mask[rows] = True
            options = {**(options or {}), "reset_mask": mask}
        observations, infos = self.env.reset(seed=_seed_of(seeds), options=options)
        self._over = np.setdiff1d(self._over, rows)
        return observations, rows_of_infos(infos, self._k)

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], rows: list[int]) -> dict[int, Any]:
        if name == Ask.OVER:
            over = set(self._over.tolist())
            return {row: row in over for row in rows}
        if name == Ask.SET_ATTR:
            attribute, value = args
            if len(rows) < self._k or isinstance(value, OwnValue):
                raise UsageError(f"{attribute!r} is an attribute of all rows of a worker: set one value for all slots")
            setattr(self.env, attribute, value)
            return dict.fromkeys(rows)
        if name != Ask.CALL or args[0] in REFUSED:
            raise UsageError(f"{name!r} is nothing that a vector asks of its slots")
        attribute, args, kwargs = args
        found = getattr(self.env, attribute)
        result = found(*args, **kwargs) if callable(found) else found
        dealt = isinstance(result, tuple | list | np.ndarray) and len(result) == self._k
        return {row: result[row] if dealt else result for row in rows}


def _mode_of(env: gym.vector.VectorEnv) -> AutoresetMode:
    mode = env.metadata.get("autoreset_mode", getattr(env, "autoreset_mode", None))
    if mode is None:
        raise UsageError(f"{env} does not say in metadata['autoreset_mode'] what it does when an episode ends")
    return AutoresetMode(mode)


def _seed_of(seeds: list[int | None]) -> Any:
    """Seeds as vectors take them: s for s, s + 1, s + 2, ...; None for none; else the list."""
    first = seeds[0]
    if first is None and all(seed is None for seed in seeds):
        return None
    return first if first is not None and seeds == list(range(first, first + len(seeds))) else seeds


def rows_of_infos(infos: dict[str, Any], k: int) -> dict[int, dict[str, Any]]:
    """One dict for each row that has anything, from columns and masks; the inverse of `infos.columns`.

    A column without a mask has a value for every row, and what is no column of k values is told of every row.
    """
    rows: dict[int, dict[str, Any]] = {}
    for key, column in infos.items():
        if key.startswith("_") and key[1:] in infos:
            continue
        mask = infos.get(f"_{key}")
        told = range(k) if mask is None else np.flatnonzero(mask).tolist()
        values: Any
        if isinstance(column, dict):
            nested = rows_of_infos(column, k)
            values = {row: nested.get(row, {}) for row in told}
        elif isinstance(column, np.ndarray | list | tuple) and len(column) == k:
            values = column
        else:
            values = dict.fromkeys(told, column)
        for row in told:
            rows.setdefault(row, {})[key] = values[row]
    return rows
