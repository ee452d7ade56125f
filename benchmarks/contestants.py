"""Who is measured, behind one small interface: Gymnasium's and Stable-Baselines3's vectors.

Treadle's own entries live in `benchmarks/ours.py`, the other libraries' in `benchmarks/peers.py`, the limit in
`benchmarks/limit.py`. A contestant is set up and run in a process of its own (`benchmarks/seat.py`).
"""

import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from benchmarks.measure import Measure, measure
from benchmarks.policies import Act, ready_made
from benchmarks.rows import Row
from benchmarks.workloads import SEED


class Session(Protocol):
    """A contestant's envs, built, seeded and reset, for one row."""

    def run(self, seconds: float) -> Measure:
        """Steps all envs for about `seconds`, once at least; may be called again and then goes on where it stopped."""
        ...

    def close(self) -> None:
        """Ends everything that setup started."""
        ...


class Contestant(Protocol):
    """One way to step a row. name: its lines' name in the table, also what `--contestants` selects. library: the module
    that its users import; None: none but Gymnasium itself."""

    name: str
    library: str | None

    def refusal(self, row: Row) -> str | None:
        """Why it does not take part in the row, as a phrase for the reader; None when it does."""
        ...

    def setup(self, row: Row, workers: int) -> Session:
        """Builds the row's envs, env i reset with seed SEED + i, and the policy in the caller.

        workers: the number of cores to use; a contestant whose design fixes its number of processes ignores it.
        """
        ...


def quantiles(at: Sequence[float], scale: float = 1e3) -> dict[str, float]:
    """p50_ms and p99_ms of the times between moments in seconds. scale: milliseconds in one of them."""
    p50, p99 = np.quantile(np.diff(np.asarray(at)) * scale, (0.5, 0.99)).tolist()
    return {"p50_ms": p50, "p99_ms": p99}


class VectorSession:
    """Drives anything that steps like a `gymnasium.vector.VectorEnv`, from its first observations on.

    step: actions -> (obs, rewards, terminated, truncated, infos) with bool[n_envs] flags. reset_rows: whether the step
    after an episode's end is a reset that ignores its action (NEXT_STEP); such rows are then not counted. close: called
    by `close`. With the row's policy between the steps, or its ready-made actions. A batch's time goes from one result
    to the next: the policy's is in it.
    """

    def __init__(
        self,
        step: Callable[[Any], tuple[Any, Any, Any, Any, Any]],
        row: Row,
        observations: Any,
        *,
        close: Callable[[], Any],
        reset_rows: bool,
    ) -> None:
        self._step = step
        self._act: Act = actions_of(row)
        self._n_envs = row.n_envs
        self._close = close
        self._reset_rows = reset_rows
        self._observations = observations
        self._ended = 0  # episodes that ended in the latest step
        self._at: list[float] = []

    def run(self, seconds: float) -> Measure:
        found = measure(lambda: self._stretch(seconds))
        return replace(found, **quantiles(self._at))

    def _stretch(self, seconds: float) -> tuple[int, float]:
        step, act = self._step, self._act
        clock, count = perf_counter, np.count_nonzero
        ended, reset_rows, observations = self._ended, self._reset_rows, self._observations
        calls = resets = 0
        start = clock()
        end = start + seconds
        at = [start]
        while True:
            observations, _, terminated, truncated, _ = step(act(observations, None))
            calls += 1
            if reset_rows:
                resets += ended
                ended = int(count(terminated | truncated))
            now = clock()
            at.append(now)
            if now >= end:
                break
        self._ended, self._observations, self._at = ended, observations, at
        return calls * self._n_envs - resets, now - start

    def close(self) -> None:
        self._close()


def actions_of(row: Row) -> Act:
    """The row's policy, or its ready-made actions."""
    if row.policy is None:
        return ready_made(list(row.workload.actions(row.n_envs)))
    return row.policy.make(row.workload, row.n_envs)


class Library:
    """A contestant of a library that may not be installed."""

    name = ""
    library: str | None = None

    def refusal(self, row: Row) -> str | None:
        found = self.library is None or importlib.util.find_spec(self.library.partition(".")[0]) is not None
        return None if found else f"{str(self.library).partition('.')[0]} is not installed"


class GymnasiumSync(Library):
    """`gymnasium.vector.SyncVectorEnv` as it comes: one process, NEXT_STEP, observations copied."""

    name = "Gymnasium Sync"
    library = "gymnasium"
    vector = "SyncVectorEnv"

    def setup(self, row: Row, workers: int) -> VectorSession:
        """workers is ignored: all envs run in the caller."""
        import gymnasium as gym

        vector, makes = getattr(gym.vector, self.vector), [row.workload.make] * row.n_envs
        try:
            envs = vector(makes)
        except ValueError:  # texts have no place in its shared memory; then one does what its message says
            envs = vector(makes, shared_memory=False)
        observations = envs.reset(seed=SEED)[0]
        return VectorSession(envs.step, row, observations, close=envs.close, reset_rows=True)


class GymnasiumAsync(GymnasiumSync):
    """`gymnasium.vector.AsyncVectorEnv` as it comes: one process per env, NEXT_STEP, shared memory, copies."""

    name = "Gymnasium Async"
    vector = "AsyncVectorEnv"


class StableBaselinesDummy(Library):
    """`stable_baselines3.common.vec_env.DummyVecEnv` as it comes: one process. It and the next one reset within the
    step, so every row is an env step."""

    name = "SB3 Dummy"
    library = "stable_baselines3.common.vec_env"
    vector = "DummyVecEnv"
    options: Mapping[str, Any] = MappingProxyType({})

    def setup(self, row: Row, workers: int) -> VectorSession:
        """workers is ignored: SubprocVecEnv has one process per env, DummyVecEnv none."""
        assert self.library is not None
        envs = getattr(importlib.import_module(self.library), self.vector)(
            [row.workload.make] * row.n_envs, **self.options
        )
        envs.seed(SEED)
        observations = envs.reset()
        never = np.zeros(row.n_envs, np.bool_)

        def step(actions: Any) -> tuple[Any, Any, Any, Any, Any]:
            observations, rewards, dones, infos = envs.step(actions)
            return observations, rewards, dones, never, infos

        return VectorSession(step, row, observations, close=envs.close, reset_rows=False)


class StableBaselinesSubproc(StableBaselinesDummy):
    """`stable_baselines3.common.vec_env.SubprocVecEnv`: one process per env, everything through pipes.

    Its processes are forked. Its own default, forkserver, took 0.5 to 0.7 s per env to start (20 s and more for 32),
    and then stepped 6 to 8 % slower (medians at 8 and 32 CartPoles, ranges overlapping): the choice favours the peer.
    """

    name = "SB3 Subproc"
    vector = "SubprocVecEnv"
    options = MappingProxyType({"start_method": "fork"})
