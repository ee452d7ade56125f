"""`ParallelEnv`: batches from any state, on worker processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from treadle.errors import UsageError
from treadle.plan.batch_env import BatchEnv
from treadle.plan.exchange import Exchange
from treadle.plan.external import ExternalProcess
from treadle.plan.orders import Orders, as_items, dts_of, state_wanted, states_of, whole
from treadle.plan.plan_slot import PlanSlot
from treadle.plan.rollouts import RolloutBatch
from treadle.plan.store import STORE_BYTES, StateHandle, fetched
from treadle.plan.vectorized import VectorizedEnv
from treadle.program.registered import own_registrations
from treadle.states import snapshot_file

FORMAT = "treadle planning snapshot 1"


class ParallelEnv(VectorizedEnv):
    """A `VectorizedEnv` whose copies are worker processes. Use it from one thread.

    Args:
        env_class, name, frameskip, autoreset, delay_setup, n_workers: see `VectorizedEnv`.
        blocking: have one worker work at a time.
        backend: "process", "thread" or "serial" (all in the caller).
        start_method, preload, start_timeout, close_timeout, max_restarts, worker_output: see `Pool`.
        step_timeout: seconds for one chunk of a batch (WorkerTimeout); None: no limit.
        on_failure: what a worker's death leads to. "raise": the error, and nothing more can be had. "restart": another
            one is started; a batch with states goes on, one without raises. "drop": as "restart", with one worker less.
        store_bytes: memory for the states that handles name; of one there is always enough.
        state_bytes: of it for each state; None: half as much again as the first one takes.
        **kwargs: for the environment.
    """

    def __init__(
        self,
        env_class: Callable[..., Any],
        name: str,
        frameskip: int = 1,
        autoreset: bool = True,
        delay_setup: bool = False,
        n_workers: int = 8,
        blocking: bool = False,
        *,
        backend: str = "process",
        start_method: str | None = None,
        preload: Sequence[str] | None = None,
        start_timeout: float = 120.0,
        step_timeout: float | None = None,
        close_timeout: float = 5.0,
        on_failure: str = "raise",
        max_restarts: int = 3,
        worker_output: str = "prefix",
        store_bytes: int = STORE_BYTES,
        state_bytes: int | None = None,
        **kwargs: Any,
    ) -> None:
        self._blocking = blocking
        self._batch_env: BatchEnv | None = None
        self._exchange: Exchange | None = None
        self._store = {
            "store_bytes": whole(store_bytes, "store_bytes"),
            "state_bytes": None if state_bytes is None else whole(state_bytes, "state_bytes"),
        }
        self._pool_options = {
            "backend": backend,
            "start_method": start_method,
            "preload": preload,
            "start_timeout": start_timeout,
            "step_timeout": step_timeout,
            "close_timeout": close_timeout,
            "on_failure": on_failure,
            "max_restarts": max_restarts,
            "worker_output": worker_output,
        }
        super().__init__(env_class, name, frameskip, autoreset, delay_setup, n_workers, **kwargs)

    def _arguments(self) -> dict[str, Any]:
        return super()._arguments() | {"blocking": self._blocking} | self._pool_options | self._store

    @property
    def blocking(self) -> bool:
        """Does one worker work at a time?"""
        return self._blocking

    def setup(self) -> None:
        """Start the workers, then make the local environment. Workers from before are ended.

        Raises StartupFailed when a worker cannot build its environment; nothing is left running.
        """
        self.close()
        constructor, registrations = self.create_env_callable(), own_registrations()
        factories = [lambda: PlanSlot(constructor, registrations)] * self.n_workers
        self._exchange = exchange = Exchange(factories, **self._pool_options)
        try:
            envs = [ExternalProcess.of(exchange, slot) for slot in range(self.n_workers)]
            self._batch_env = BatchEnv(envs, blocking=self._blocking, **self._store)
            super().setup()
            self._closed = False
        except BaseException:
            self.close()
            raise

    def make_transitions(
        self, actions: Any, states: Any = None, dt: Any = 1, return_state: bool | str | None = None, repeat: int = 1
    ) -> tuple[Any, ...]:
        """A batch of steps; see `step_batch`."""
        return self._batch().make_transitions(actions, states, dt, return_state, repeat)

    def rollout_batch(
        self,
        states: Any,
        action_sequences: Any,
        dt: Any = 1,
        return_state: bool | str = False,
        observations: str | None = None,
        repeat: int = 1,
    ) -> RolloutBatch:
        """Play a sequence of actions from each state, in one round trip.

        Args:
            states: one for each of n items (or, with `repeat`, for each `repeat` of them), or handles.
            action_sequences: one for each item: an array [n, T, ...], or n sequences of any lengths.
            dt: as in `step_batch`.
            return_state: return the states at the end? "handle": as handles.
            observations: None, "last" or "all": which to bring back.
            repeat: how many consecutive items begin in the same state.

        Raises: as `step_batch`.
        """
        sequences = as_items(action_sequences, "action_sequences")
        if len(sequences) == 0:
            raise UsageError("an empty batch: give at least one sequence of actions")
        for item, sequence in enumerate(sequences):
            if len(as_items(sequence, f"the actions of item {item}", "step")) == 0:
                raise UsageError(f"item {item} has no actions")
        n, repeat = len(sequences), whole(repeat, "repeat")
        checked, wanted = states_of(states, n, repeat), state_wanted(return_state, False)
        orders = Orders(sequences, checked, dts_of(dt, n), wanted, repeat)
        self._ready()
        return self._batch().batcher.rollouts(orders, observations)

    def put_state(self, state: Any) -> StateHandle:
        """Put a state into the store that all workers see; returns its handle. Raises StoreFull; UsageError (None)."""
        self._ready()
        return self._batch().batcher.put(state)

    @property
    def free_handles(self) -> int | None:
        """How many more states the store takes; None before the first handle."""
        return None if self._batch_env is None else self._batch_env.batcher.free_handles

    def sync_states(self, state: Any = None) -> None:
        """Put all workers' environments into a state, or that of a handle; None: the local environment's."""
        self._batch().sync_states(self.get_state() if state is None else fetched(state), blocking=self._blocking)

    def snapshot(self, path: str | os.PathLike[str]) -> None:
        """Write the states of the local environment and of every worker's to a file, and the action space's generator.

        The file is there whole, or not at all. Handles are not in it: keep what they `fetch()`.
        """
        local = self._local()
        states = [process.call("get_state") for process in self._batch()._envs]
        kept = {
            "format": FORMAT,
            "name": self.name,
            "local": local.get_state(),
            "workers": [promise() for promise in states],
            "action_space": self.action_space,
        }
        snapshot_file.write(path, kept)

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Go on where a snapshot was taken, here or in another process. The file is a pickle: read only what you trust.

        Raises UsageError for a file that is no snapshot, or of another number of workers; StateError.
        """
        self._ready()
        kept = snapshot_file.read(path, FORMAT, "a ParallelEnv")
        if len(kept["workers"]) != self.n_workers:
            raise UsageError(f"{os.fspath(path)} has {len(kept['workers'])} workers, this has {self.n_workers}")
        self._local().set_state(kept["local"])
        promises = [
            process.set_state(state, blocking=False)
            for process, state in zip(self._batch()._envs, kept["workers"], strict=True)
        ]
        for promise in promises:
            promise()
        self.action_space.__dict__.update(kept["action_space"].__dict__)

    def _batch(self) -> BatchEnv:
        self._refuse_closed()
        if self._batch_env is None:
            raise UsageError(f"{self.name} is not set up yet (delay_setup=True): call setup() or reset() first")
        return self._batch_env

    def close(self) -> None:
        """End the workers and close the local environment. Idempotent. Anything but `setup`, which begins anew, raises
        ClosedPool from now on."""
        self._closed = True
        batch, self._batch_env = self.__dict__.get("_batch_env"), None
        exchange, self._exchange = self.__dict__.get("_exchange"), None
        local, self._plan_env = self.__dict__.get("_plan_env"), None
        try:
            if batch is not None:
                batch.close()
        finally:
            if exchange is not None:
                exchange.close()
            if local is not None:
                local.close()

    def __getstate__(self) -> dict[str, Any]:
        if self._exchange is not None:
            raise TypeError("a ParallelEnv with workers cannot be copied or pickled: use clone(), or delay_setup=True")
        return dict(self.__dict__)


__all__ = ["ParallelEnv"]
