"""Who is measured, behind one small interface: the limit, Gymnasium's and Stable-Baselines3's vectors, and Treadle.

Treadle's own entries live in `benchmarks/ours.py`, so that this file and the peers in it run without Treadle.
"""

import importlib
import importlib.util
from collections.abc import Callable, Iterable, Mapping
from time import perf_counter
from types import MappingProxyType
from typing import Any, Protocol

import gymnasium as gym
import numpy as np

from benchmarks.limit import Limit
from benchmarks.measure import Measure, measure
from benchmarks.workloads import SEED, Workload


class Session(Protocol):
    """A contestant's envs, built, seeded and reset, for one row."""

    def run(self, seconds: float) -> Measure:
        """Steps all envs for about `seconds`; may be called again and then goes on where it stopped."""
        ...

    def close(self) -> None:
        """Ends everything that setup started."""
        ...


class Contestant(Protocol):
    """One way to step a workload. name: its rows' name in the table, also what `--contestants` selects."""

    name: str

    def refusal(self, workload: Workload) -> str | None:
        """Why it does not take part in the workload's rows, as a phrase for the reader; None when it does."""
        return None

    def setup(self, workload: Workload, n_envs: int, workers: int) -> Session:
        """Builds n_envs envs with `workload.make`, env i reset with seed SEED + i.

        workers: the number of cores to use; a contestant whose design fixes its number of processes ignores it.
        """
        ...


class VectorSession:
    """Drives anything that steps like a `gymnasium.vector.VectorEnv`; `benchmarks/ours.py` may use it too.

    envs: already reset; needs `step(actions) -> (obs, rewards, terminated, truncated, infos)` with bool[n_envs] flags.
    reset_rows: whether the step after an episode's end is a reset that ignores its action (NEXT_STEP); such rows are
    then not counted. close: called by `close`. pids: workers that do not descend from this process, if any.
    """

    def __init__(
        self,
        step: Callable[[Any], tuple[Any, Any, Any, Any, Any]],
        workload: Workload,
        n_envs: int,
        *,
        close: Callable[[], Any],
        reset_rows: bool,
        pids: Iterable[int] = (),
    ) -> None:
        self._step = step
        self._batches = list(workload.actions(n_envs))
        self._n_envs = n_envs
        self._close = close
        self._reset_rows = reset_rows
        self._pids = tuple(pids)
        self._next = 0
        self._ended = 0  # episodes that ended in the latest step

    def run(self, seconds: float) -> Measure:
        return measure(lambda: self._stretch(seconds), self._pids)

    def _stretch(self, seconds: float) -> tuple[int, float]:
        step, batches, k, n_batches = self._step, self._batches, self._next, len(self._batches)
        clock, count = perf_counter, np.count_nonzero
        ended, reset_rows = self._ended, self._reset_rows
        calls = resets = 0
        start = clock()
        end = start + seconds
        while True:
            _, _, terminated, truncated, _ = step(batches[k])
            calls += 1
            if reset_rows:
                resets += ended
                ended = int(count(terminated | truncated))
            k += 1
            if k == n_batches:
                k = 0
            now = clock()
            if now >= end:
                break
        self._next, self._ended = k, ended
        return calls * self._n_envs - resets, now - start

    def close(self) -> None:
        self._close()


class GymnasiumSync:
    """`gymnasium.vector.SyncVectorEnv` as it comes: one process, NEXT_STEP, observations copied."""

    name = "Gymnasium Sync"

    def refusal(self, workload: Workload) -> str | None:
        return None

    def setup(self, workload: Workload, n_envs: int, workers: int) -> VectorSession:
        """workers is ignored: all envs run in the caller."""
        envs = gym.vector.SyncVectorEnv([workload.make] * n_envs)
        envs.reset(seed=SEED)
        return VectorSession(envs.step, workload, n_envs, close=envs.close, reset_rows=True)


class GymnasiumAsync:
    """`gymnasium.vector.AsyncVectorEnv` as it comes: one process per env, NEXT_STEP, shared memory, copies."""

    name = "Gymnasium Async"

    def refusal(self, workload: Workload) -> str | None:
        return None

    def setup(self, workload: Workload, n_envs: int, workers: int) -> VectorSession:
        """workers is ignored: there is one process per env."""
        envs = gym.vector.AsyncVectorEnv([workload.make] * n_envs)
        envs.reset(seed=SEED)
        return VectorSession(envs.step, workload, n_envs, close=envs.close, reset_rows=True)


class _StableBaselines:
    """What Stable-Baselines3's two vectors share: both reset within the step, so every row is an env step."""

    name = ""
    vector = ""
    options: Mapping[str, Any] = MappingProxyType({})

    def refusal(self, workload: Workload) -> str | None:
        if importlib.util.find_spec("stable_baselines3") is None:
            return "stable_baselines3 is not installed"
        return None

    def setup(self, workload: Workload, n_envs: int, workers: int) -> VectorSession:
        """workers is ignored: SubprocVecEnv has one process per env, DummyVecEnv none."""
        module = importlib.import_module("stable_baselines3.common.vec_env")
        envs = getattr(module, self.vector)([workload.make] * n_envs, **self.options)
        envs.seed(SEED)
        envs.reset()
        never = np.zeros(n_envs, np.bool_)

        def step(actions: Any) -> tuple[Any, Any, Any, Any, Any]:
            observations, rewards, dones, infos = envs.step(actions)
            return observations, rewards, dones, never, infos

        return VectorSession(step, workload, n_envs, close=envs.close, reset_rows=False)


class StableBaselinesDummy(_StableBaselines):
    """`stable_baselines3.common.vec_env.DummyVecEnv` as it comes: one process."""

    name = "SB3 Dummy"
    vector = "DummyVecEnv"


class StableBaselinesSubproc(_StableBaselines):
    """`stable_baselines3.common.vec_env.SubprocVecEnv`: one process per env, everything through pipes.

    Its processes are forked. Its own default, forkserver, took 0.5 to 0.7 s per env to start (20 s and more for 32),
    and then stepped 6 to 8 % slower (medians at 8 and 32 CartPoles, ranges overlapping): the choice favours the peer.
    """

    name = "SB3 Subproc"
    vector = "SubprocVecEnv"
    options = MappingProxyType({"start_method": "fork"})


def peers() -> list[Contestant]:
    """The limit, then the libraries that Treadle is compared with, installed or not."""
    return [Limit(), GymnasiumSync(), GymnasiumAsync(), StableBaselinesDummy(), StableBaselinesSubproc()]


def ours() -> list[Contestant]:
    """Treadle's contestants; empty when `benchmarks/ours.py` is not there. An import that fails inside it is raised."""
    try:
        module = importlib.import_module("benchmarks.ours")
    except ModuleNotFoundError as error:
        if error.name != "benchmarks.ours":
            raise
        return []
    found: list[Contestant] = module.contestants()
    return found
