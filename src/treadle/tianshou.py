"""Tianshou's interface: `VectorEnv` in place of its `SubprocVectorEnv`, `ShmemVectorEnv` and `DummyVectorEnv`.

Tianshou resets ended environments itself and steps some environments at a time. So this is a `treadle.VectorEnv` in
DISABLED mode with partial batches: requests are sent to some slots, and their results are received slot by slot.

Importing this module imports Tianshou, and so torch. Workers import neither, unless an environment does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from treadle import trees
from treadle.checks import check_names
from treadle.errors import BadObservation, BrokenPool, TaskRaised, UsageError, WorkerError, needed
from treadle.play.columns import array_of
from treadle.vector.core import NothingPending, WaitTimeout
from treadle.vector.env_slot import EnvLike, Once
from treadle.vector.gymnasium import VectorEnv as Vector
from treadle.vector.infos import rows_of_infos
from treadle.vector.make_vec import OPTIONS
from treadle.worker.options import started_by

with needed("treadle.tianshou needs Tianshou", "tianshou"):
    from tianshou.env import BaseVectorEnv

Ids = int | Sequence[int] | np.ndarray | None
Row = tuple[Any, float, bool, bool, dict[str, Any]]

FIXED = ("autoreset_mode", "infos", "copy", "batch_size")


class VectorEnv(BaseVectorEnv):
    """Steps n environments for Tianshou's collectors and algorithms. Use it from one thread at a time.

    Args:
        env_fns: callables that return an environment, or ids; environments are built only in their workers. The bounds
            of their spaces may differ.
        wait_num: number of environments (1 to n) that must have finished a step before `step` returns; None: all.
        timeout: seconds after which `step` returns with the finished environments, if there are any; None: no limit.
        share_memory: ignored: numbers always travel through shared memory.
        context: a start method: "forkserver", "spawn" or "fork"; None: the default.
        **options: options of `treadle.VectorEnv` by name: workers="auto", inline="auto", on_failure=None, ... With
            on_failure="restart", a worker's death truncates its rows, with "aborted" in their infos.

    Raises:
        UsageError (a ValueError): options that Tianshou's interface does not allow, a wrong `wait_num` or `timeout`.
        TreadleError: the errors of `treadle.VectorEnv`. All workers are ended.

    Attributes:
        vector: the `treadle.VectorEnv` that does the work.
        env_num: the number of environments.
        is_async: True if `step` may return before all environments have finished.
        waiting_id: environments that are stepping; ready_id: the others.
    """

    def __init__(
        self,
        env_fns: Sequence[EnvLike],
        wait_num: int | None = None,
        timeout: float | None = None,
        share_memory: bool = False,
        context: str | None = None,
        **options: Any,
    ) -> None:
        n = len(env_fns)
        for name in options.keys() & set(FIXED):
            raise UsageError(
                f"{name}= cannot be given here: Tianshou's interface fixes it (wait_num= and timeout= say "
                "when a step returns)"
            )
        check_names(type(self), options, OPTIONS)
        if wait_num is not None and not 1 <= wait_num <= n:
            raise UsageError(f"wait_num must be from 1 to {n}, the number of environments, got {wait_num}")
        if timeout is not None and not timeout > 0:
            raise UsageError(f"timeout must be more than 0 seconds, or None, got {timeout}")
        mode = gym.vector.AutoresetMode.DISABLED
        options.setdefault("observation_mode", "different")
        self.is_async = wait_num not in (None, n) or timeout is not None
        if self.is_async:  # else the caller would step its own slots instead of returning the first results
            options.setdefault("inline", 0)
        options["worker_options"] = started_by(options.get("worker_options"), context, "context")
        self.vector = Vector(list(env_fns), autoreset_mode=mode, **options)
        self.vector._pool.calls.again = "reset(env_id={slots})"
        self.env_num, self.wait_num, self.timeout = n, wait_num or n, timeout
        self.is_closed = False
        self.waiting_id: list[int] = []
        self._arrived: dict[int, Row] = {}
        try:
            spaces = self.vector.call(lambda env: (env.observation_space, env.action_space))
        except BaseException:
            self.vector.close()
            raise
        self._spaces = {"observation_space": [each[0] for each in spaces], "action_space": [each[1] for each in spaces]}

    @property
    def ready_id(self) -> list[int]:
        return [slot for slot in range(self.env_num) if slot not in self.waiting_id]

    # -- resets and steps --------------------------------------------------------------------------------------------

    def reset(self, env_id: Ids = None, **kwargs: Any) -> tuple[np.ndarray, np.ndarray]:
        """Reset all environments, or some that are ready; `kwargs` (seed, options) are passed to each of them.

        Returns (observations, infos) in the order of `env_id`. Observations are stacked; they are an object array if
        they are dicts or differ in shape.
        """
        found = self._reset(self._ready(env_id), kwargs.pop("seed", None), **kwargs)
        return array_of([row[0] for row in found]), np.fromiter((row[4] for row in found), object, len(found))

    def step(self, action: Any, id: Ids = None) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Step all environments, or some that are ready.

        Args:
            action: one action for each environment of `id`. None: only wait for steps under way.
            id: the environments to step, which must be ready; None: all.

        Returns:
            observations, rewards float64[m], terminated and truncated bool[m], infos object[m] (dicts with "env_id").
            They are those of `id`, in this order, or (`is_async`) those of the environments that finished first.

        Raises:
            UsageError: an environment of `id` is stepping or does not exist, or the number of actions is wrong. Or
                `action` is None and no step is under way.
            BadAction, WorkerError: see `treadle.VectorEnv.recv`. With `is_async`, if an environment raises, later calls
                return the others' results of that step; else they are dropped.
        """
        if action is None and not (self.is_async and self.waiting_id):
            raise UsageError("step(None) waits for steps that are under way, and there are none")
        asked: list[int] = []
        if action is not None:
            asked = self._ready(id)
            if len(action) != len(asked):
                raise UsageError(f"{len(action)} actions for {len(asked)} environments")
            self.vector.send(np.asarray(action), asked)
            self.waiting_id += asked
        if self.is_async:
            self._receive(lambda: len(self._arrived) >= min(self.wait_num, len(self.waiting_id)), self.timeout)
            asked = list(self._arrived)
        else:
            self._receive(lambda: self._arrived.keys() >= set(asked))
        found = self._taken(asked)
        for slot, row in zip(asked, found, strict=True):
            row[4]["env_id"] = slot
        observations, rewards, terminated, truncated, infos = zip(*found, strict=True)
        ends = np.array(terminated, np.bool_), np.array(truncated, np.bool_)
        return array_of(observations), np.array(rewards, np.float64), *ends, np.fromiter(infos, object, len(infos))

    def seed(self, seed: int | Sequence[int | None] | None = None) -> list[list[int | None]]:
        """Reset every environment i with `seed` + i, or with entry i of a list, and seed its entry of `action_space`.

        As in Tianshou, the seeded episode is the one before the next `reset`. Returns a list [seed] for each
        environment.
        """
        each = [seed + i for i in range(self.env_num)] if isinstance(seed, int) else seed or [None] * self.env_num
        self._reset(self._ready(None), list(each))
        for space, one in zip(self._spaces["action_space"], each, strict=True):
            space.seed(None if one is None else int(one))  # `Collector.collect(random=True)` draws from it
        return [[one] for one in each]

    def _reset(self, slots: list[int], seed: Any = None, options: dict[str, Any] | None = None) -> list[Row]:
        seeds = seed if isinstance(seed, list) else [seed] * len(slots)
        self.vector.async_reset(seed=seeds, options=[options and Once(options)] * len(slots), env_id=slots)
        self.waiting_id += slots
        self._receive(lambda: self._arrived.keys() >= set(slots))
        return self._taken(slots)

    def _receive(self, enough: Callable[[], bool], timeout: float | None = None) -> None:
        """Wait until there is enough, or, after a timeout, until there is at least one result."""
        while not enough():
            least = max(1, min(self.wait_num, len(self.waiting_id)) - len(self._arrived)) if timeout else 1
            try:
                batch = self.vector.recv(min=least, max=self.env_num, timeout=timeout)
            except WaitTimeout:
                if self._arrived:
                    return
                batch, enough = self.vector.recv(min=1, max=self.env_num), lambda: True
            except WorkerError as error:
                slot = error.where.slot
                if self.is_async and slot is not None and isinstance(error, TaskRaised | BadObservation):
                    self.waiting_id.remove(slot)  # the others go on
                else:
                    self._drop()
                raise
            except Exception:
                self.waiting_id, self._arrived = [], {}
                raise
            observations, rewards, terminated, truncated, infos = batch
            slots = infos.pop("env_id").tolist()
            del infos["valid"]
            told = rows_of_infos(infos, len(slots))
            for row, slot in enumerate(slots):
                seen = trees.row(observations, row)
                ends = bool(terminated[row]), bool(truncated[row])
                self._arrived[slot] = seen, float(rewards[row]), *ends, told.get(row, {})

    def _drop(self) -> None:
        """Wait for the steps under way and drop their results."""
        self.waiting_id, self._arrived = [], {}
        while True:
            try:
                self.vector.recv(min=1, max=self.env_num)
            except (NothingPending, BrokenPool):
                return
            except WorkerError:
                continue  # another worker's error: the first was raised

    def _taken(self, slots: list[int]) -> list[Row]:
        self.waiting_id = [slot for slot in self.waiting_id if slot not in slots]
        return [self._arrived.pop(slot) for slot in slots]

    def _ready(self, ids: Ids) -> list[int]:
        """Return the ids as a list. Raises UsageError for environments that do not exist or are stepping."""
        self._assert_is_not_closed()
        chosen = np.atleast_1d(self._wrap_id(ids)).tolist()
        bad = [slot for slot in chosen if slot in self.waiting_id or not 0 <= slot < self.env_num]
        if bad:
            raise UsageError(f"environment {bad[0]} is stepping, or does not exist; ready are {self.ready_id}")
        return chosen

    # -- calls of the environments -----------------------------------------------------------------------------------

    def get_env_attr(self, key: str, id: Ids = None) -> list[Any]:
        """Return an attribute of all (unwrapped) environments, or of some.

        Raises UsageError while any environment is stepping, except for the two spaces.
        """
        if key in self._spaces:
            return [self._spaces[key][slot] for slot in self._wrap_id(id)]
        return list(self.vector.call_at(self._ready(id), lambda env: getattr(env.unwrapped, key)))

    def set_env_attr(self, key: str, value: Any, id: Ids = None) -> None:
        """Set an attribute of all (unwrapped) environments, or of some. Raises UsageError while any is stepping."""
        self.vector.call_at(self._ready(id), lambda env: setattr(env.unwrapped, key, value))

    def render(self, **kwargs: Any) -> list[Any]:
        """Return each environment's picture. Raises UsageError while any environment is stepping."""
        return list(self.vector.call_at(self._ready(None), "render", **kwargs))

    def close(self) -> None:
        """End all workers. As in Tianshou, a second call raises."""
        self._assert_is_not_closed()
        self.is_closed = True
        self.vector.close()


__all__ = ["VectorEnv"]
