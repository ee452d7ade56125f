"""The limit: what W processes reach that step their envs in the tightest Python loop and never talk to anyone.

Nothing that steps the same Python envs on W cores can be faster in the long run, so every other figure is reported as a
share of this one. The loop does what a user needs and no more: it steps the env, keeps observation, reward, terminated
and truncated in arrays made beforehand, and resets when an episode ends (the row then holds the next episode's first
observation). This file imports nothing of Treadle, and its workers start clean (spawn) and check that.
"""

import itertools
import multiprocessing
import sys
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Barrier
from time import perf_counter
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from benchmarks.measure import Measure, measure
from benchmarks.workloads import SEED, Workload

_START_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 10.0


class _Nested:
    """A row for observations of nested dicts; written like a memoryview, `row[:] = observation`."""

    def __init__(self, space: gym.spaces.Dict) -> None:
        self.leaves = list(self._of(space, ()))

    def _of(self, space: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
        if isinstance(space, gym.spaces.Dict):
            for key, part in space.spaces.items():
                yield from self._of(part, (*path, key))
        else:
            row = np.zeros(space.shape, space.dtype)
            yield path, memoryview(row) if row.ndim == 1 else row

    def __setitem__(self, _: slice, observation: Any) -> None:
        for path, row in self.leaves:
            value = observation
            for key in path:
                value = value[key]
            row[:] = value


def _views(*arrays: Any) -> list[Any]:
    """Memoryviews of one-dimensional arrays: written in about half the time that the arrays take."""
    return [memoryview(array) for array in arrays]


class Loop:
    """Envs of one process, seeded, reset and ready to be stepped.

    actions: int64[batches, len(envs)], cycled. The results of the latest step are in `observations` (one row per env,
    the env's own shape and dtype; nothing where they nest), `rewards` (float64[n]), `terminated` and `truncated`
    (bool[n]).
    reseed: give every reset a new seed, as those must who want to repeat single episodes.
    kept: store the observations of the latest `kept` steps, as those must who learn from them. `observations` then has
    that many rows for each env, those of a step one after the other.
    """

    def __init__(
        self,
        envs: Sequence[gym.Env[Any, Any]],
        seeds: Sequence[int],
        actions: NDArray[np.int64],
        reseed: bool = False,
        kept: int = 1,
    ) -> None:
        space = envs[0].observation_space
        n = len(envs) * kept
        shape = (n, *(space.shape or ())) if isinstance(space, gym.spaces.Box) else (0,)
        self.observations = np.zeros(shape, space.dtype)
        self.rewards = np.zeros(len(envs))
        self.terminated = np.zeros(len(envs), np.bool_)
        self.truncated = np.zeros(len(envs), np.bool_)
        self._envs = envs
        self._seeds = itertools.count(10**6) if reseed else None
        # Plain ints: an env that indexes or compares with a NumPy scalar is slower.
        self._batches = actions.tolist()
        self._next = 0
        # A memoryview is written in about half the time that an array takes, but in one dimension only.
        self._rows: list[Any] = [memoryview(row) if row.ndim == 1 else row for row in self.observations]
        if isinstance(space, gym.spaces.Dict):
            self._rows = [_Nested(space) for _ in range(n)]
        for env, row, seed in zip(envs, self._rows[-len(envs) :], seeds, strict=True):
            row[:] = env.reset(seed=seed)[0]

    def run(self, seconds: float) -> tuple[int, float]:
        """Steps all envs, one pass after another, until `seconds` have passed; returns (env steps, wall seconds)."""
        n = len(self._envs)
        steps_of = [
            [(env.step, env.reset, row, i) for i, (env, row) in enumerate(zip(self._envs, self._rows[at : at + n]))]
            for at in range(0, len(self._rows), n)
        ]
        kept = len(steps_of)
        rewards, terminated, truncated = _views(self.rewards, self.terminated, self.truncated)
        batches, k = self._batches, self._next
        n_batches = len(batches)
        passes, seeds = 0, self._seeds
        clock = perf_counter
        start = clock()
        end = start + seconds
        while True:
            for (step, reset, row, i), action in zip(steps_of[k % kept], batches[k]):
                observation, reward, over, cut, _ = step(action)
                rewards[i] = reward
                terminated[i] = over
                truncated[i] = cut
                if over or cut:
                    observation = reset()[0] if seeds is None else reset(seed=next(seeds))[0]
                row[:] = observation
            passes += 1
            k += 1
            if k == n_batches:
                k = 0
            now = clock()
            if now >= end:
                break
        self._next = k
        return passes * n, now - start


class RowsLoop:
    """The same for one vectorised env: it is stepped and its batches are kept as it returns them.

    Rows that are resets (NEXT_STEP) are not counted.
    """

    def __init__(self, env: gym.vector.VectorEnv[Any, Any, Any], seed: int, actions: NDArray[np.int64]) -> None:
        self._env, self._batches, self._next = env, list(actions), 0
        self._resets = env.metadata["autoreset_mode"] is gym.vector.AutoresetMode.NEXT_STEP
        self._ended = 0
        env.reset(seed=seed)

    def run(self, seconds: float) -> tuple[int, float]:
        """As `Loop.run`."""
        step, batches, k = self._env.step, self._batches, self._next
        rows, count, clock = self._env.num_envs, np.count_nonzero, perf_counter
        steps = 0
        start = now = clock()
        while now - start < seconds:
            _, _, terminated, truncated, _ = step(batches[k])
            steps += rows - self._ended
            if self._resets:
                self._ended = int(count(terminated | truncated))
            k = (k + 1) % len(batches)
            now = clock()
        self._next = k
        return steps, now - start


def _serve(
    make: Callable[[], gym.Env[Any, Any]],
    seeds: Sequence[int],
    actions: NDArray[np.int64],
    requests: Connection,
    barrier: Barrier,
    reseed: bool,
    make_rows: Callable[[int], gym.vector.VectorEnv[Any, Any, Any]] | None,
    kept: int,
) -> None:
    """A worker's life: build the envs, then one run per number of seconds that arrives, until None does.

    make_rows: build one vectorised env in the place of many.
    """
    envs: list[Any] = [make() for _ in seeds] if make_rows is None else [make_rows(len(seeds))]
    loop: Any = Loop(envs, seeds, actions, reseed, kept) if make_rows is None else RowsLoop(envs[0], seeds[0], actions)
    if any(name.partition(".")[0] == "treadle" for name in sys.modules):
        raise RuntimeError("the limit's process has Treadle loaded: it would not measure a process without it")
    requests.send(None)  # ready
    while (seconds := requests.recv()) is not None:
        barrier.wait(_START_TIMEOUT_S)
        requests.send(loop.run(seconds))
    for env in envs:
        env.close()


class LimitSession:
    """W processes with an even share of the envs each, built and waiting. rows: each has one vectorised env. kept: see
    `Loop`."""

    def __init__(
        self, workload: Workload, n_envs: int, workers: int, reseed: bool = False, *, rows: bool = False, kept: int = 1
    ) -> None:
        context = multiprocessing.get_context("spawn")
        shares = np.array_split(np.arange(n_envs), min(workers, n_envs))
        barrier = context.Barrier(len(shares))
        actions = workload.actions(n_envs)
        self._connections: list[Connection] = []
        self._processes: list[BaseProcess] = []
        try:
            for share in shares:
                ours, theirs = context.Pipe()
                seeds = [SEED + int(i) for i in share]
                made = workload.make_rows if rows else None
                args = (workload.make, seeds, actions[:, share], theirs, barrier, reseed, made, kept)
                process = context.Process(target=_serve, args=args, daemon=True)
                process.start()
                theirs.close()
                self._processes.append(process)
                self._connections.append(ours)
            for connection in self._connections:
                self._receive(connection, _START_TIMEOUT_S)
        except BaseException:
            self.close()
            raise

    @staticmethod
    def _receive(connection: Connection, timeout: float) -> Any:
        if not connection.poll(timeout):
            raise TimeoutError(f"a process of the limit did not answer within {timeout:.0f} s")
        return connection.recv()

    def run(self, seconds: float) -> Measure:
        """Runs all processes for `seconds`, started together; the wall time is that of the slowest."""

        def stretch() -> tuple[int, float]:
            for connection in self._connections:
                connection.send(seconds)
            results = [self._receive(connection, seconds + _START_TIMEOUT_S) for connection in self._connections]
            return sum(steps for steps, _ in results), max(wall for _, wall in results)

        return measure(stretch)

    def close(self) -> None:
        """Ends the processes: asks, then kills those that have not ended after 10 s."""
        for connection in self._connections:
            try:
                connection.send(None)
            except OSError:  # already dead; reaped below
                continue
        for process in self._processes:
            process.join(_STOP_TIMEOUT_S)
            if process.is_alive():
                process.kill()
                process.join()
        for connection in self._connections:
            connection.close()


class Limit:
    """The contestant that all others are compared with."""

    name = "limit"

    def refusal(self, workload: Workload) -> str | None:
        """None: it takes part in every row."""
        return None

    def setup(self, workload: Workload, n_envs: int, workers: int) -> LimitSession:
        """Starts min(workers, n_envs) processes. Raises EOFError or TimeoutError when one fails to start."""
        return LimitSession(workload, n_envs, workers)
