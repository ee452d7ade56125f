"""The limit: what W processes reach that step their envs in the tightest Python loop and never talk to anyone.

Nothing that steps the same Python envs on W cores can be faster in the long run, so every other figure is reported as a
share of this one. The loop does what a user needs and no more: it steps the env, keeps observation, reward, terminated
and truncated in arrays made beforehand, and resets when an episode ends (the row then holds the next episode's first
observation). This file imports nothing of Treadle, and its workers start clean (spawn) and check that.

With a policy each process has one of its own, about its own envs, torch with one thread: nobody waits for anybody, and
one process's policy thinks while the other's envs step. What is still in turns is a process's own thinking and
stepping. That is all there is to gain where a policy computes. One that waits leaves the core idle meanwhile, so for it
there is a second limit: each process has its envs in two groups, and steps one while it waits for the other's actions.
"""

import itertools
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Barrier
from time import perf_counter
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from benchmarks.measure import Measure, measure
from benchmarks.policies import Policy
from benchmarks.rows import Row
from benchmarks.workloads import SEED, Workload

_START_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 10.0


class _Nested:
    """A row for observations of nested dicts; written like a memoryview, `row[:] = observation`."""

    def __init__(self, leaves: Sequence[tuple[tuple[str, ...], Any]]) -> None:
        self.leaves = leaves

    def __setitem__(self, _: slice, observation: Any) -> None:
        for path, row in self.leaves:
            value = observation
            for key in path:
                value = value[key]
            row[...] = value


def _leaves(space: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(space, gym.spaces.Dict):
        for key, part in space.spaces.items():
            yield from _leaves(part, (*path, key))
    else:
        yield path, space


def _rows(space: Any, n: int) -> tuple[Any, list[Any]]:
    """Arrays for n observations (by path where they nest), and what is written to, one for each."""
    # A memoryview is written in about half the time that an array takes, but in one dimension only.
    if isinstance(space, gym.spaces.Tuple):  # of numbers
        array = np.zeros((n, len(space)), np.int64)
        return array, list(array)
    if space.shape == ():
        array = np.zeros(n, space.dtype)
        return array, [array[i : i + 1] for i in range(n)]
    if not isinstance(space, gym.spaces.Dict):
        array = np.zeros((n, *(space.shape or ())), space.dtype)
        return array, [memoryview(row) if row.ndim == 1 else row for row in array]
    arrays = {
        path: np.zeros((n, *(part.shape or ())), object if isinstance(part, gym.spaces.Text) else part.dtype)
        for path, part in _leaves(space, ())
    }
    return arrays, [_Nested([(path, array[i, ...]) for path, array in arrays.items()]) for i in range(n)]


def _views(*arrays: Any) -> list[Any]:
    """Memoryviews of one-dimensional arrays: written in about half the time that the arrays take."""
    return [memoryview(array) for array in arrays]


class Loop:
    """Envs of one process, seeded, reset and ready to be stepped.

    actions: [batches, len(envs), ...], cycled. The results of the latest step are in `observations` (one row per env,
    the env's own shape and dtype; where they nest, such an array by path), `rewards` (float64[n]), `terminated` and
    `truncated` (bool[n]).
    act: takes the place of the actions: called with `observations`, returns the next ones.
    reseed: give every reset a new seed, as those must who want to repeat single episodes.
    kept: store the observations of the latest `kept` steps, as those must who learn from them. `observations` then has
    that many rows for each env, those of a step one after the other.
    """

    def __init__(
        self,
        envs: Sequence[gym.Env[Any, Any]],
        seeds: Sequence[int],
        actions: NDArray[Any],
        reseed: bool = False,
        kept: int = 1,
        act: Callable[[Any], NDArray[Any]] | None = None,
    ) -> None:
        self.observations, self._rows = _rows(envs[0].observation_space, len(envs) * kept)
        self.rewards = np.zeros(len(envs))
        self.terminated = np.zeros(len(envs), np.bool_)
        self.truncated = np.zeros(len(envs), np.bool_)
        self._envs = envs
        self._seeds = itertools.count(10**6) if reseed else None
        self._act = act
        # Plain ints: an env that indexes or compares with a NumPy scalar is slower. Vectors are handed over as arrays.
        self._batches = actions.tolist() if actions.ndim == 2 else [list(batch) for batch in actions]
        self._next = 0
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
        act, observations = self._act, self.observations
        clock = perf_counter
        start = clock()
        end = start + seconds
        while True:
            if act is not None:
                actions = act(observations)
                batches[k] = actions.tolist() if actions.ndim == 1 else list(actions)
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


class TwoGroups:
    """Two loops whose actions one device answers after `seconds` each, one after the other; the other loop steps
    meanwhile."""

    def __init__(self, loops: Sequence[Loop], seconds: float) -> None:
        self._loops, self._seconds = loops, seconds

    def run(self, seconds: float) -> tuple[int, float]:
        """As `Loop.run`."""
        clock, wait = perf_counter, self._seconds
        start = now = clock()
        ready = [start + wait * (i + 1) for i in range(len(self._loops))]
        steps = 0
        while now - start < seconds or not steps:
            for i, loop in enumerate(self._loops):
                if (left := ready[i] - clock()) > 0:
                    time.sleep(left)
                steps += loop.run(0.0)[0]
                ready[i] = max(clock(), *ready) + wait
            now = clock()
        return steps, now - start


def _looping(
    workload: Workload, seeds: Sequence[int], actions: NDArray[Any], policy: Policy | None, groups: int, **options: Any
) -> tuple[list[Any], Any]:
    """(envs, what runs them)."""
    envs = [workload.make() for _ in seeds]
    if groups > 1 and policy is not None and len(envs) >= groups:
        parts = np.array_split(np.arange(len(envs)), groups)
        loops = [Loop([envs[i] for i in part], [seeds[i] for i in part], actions[:, part], **options) for part in parts]
        return envs, TwoGroups(loops, policy.ms / 1e3)
    if policy is None:
        return envs, Loop(envs, seeds, actions, **options)
    alone = replace(policy, threads=1)
    alone.set_threads()
    choose, seen = alone.make(workload, len(envs)), workload.seen
    act = (lambda rows: choose({seen: rows[(seen,)]}, None)) if seen else (lambda rows: choose(rows, None))
    return envs, Loop(envs, seeds, actions, act=act, **options)


def _serve(
    workload: Workload,
    seeds: Sequence[int],
    actions: NDArray[Any],
    requests: Connection,
    barrier: Barrier,
    policy: Policy | None,
    groups: int,
    options: dict[str, Any],
) -> None:
    """A worker's life: build the envs, then one run per number of seconds that arrives, until None does."""
    envs, loop = _looping(workload, seeds, actions, policy, groups, **options)
    if any(name.partition(".")[0] == "treadle" for name in sys.modules):
        raise RuntimeError("the limit's process has Treadle loaded: it would not measure a process without it")
    requests.send(None)  # ready
    while (seconds := requests.recv()) is not None:
        barrier.wait(_START_TIMEOUT_S)
        requests.send(loop.run(seconds))
    for env in envs:
        env.close()


class LimitSession:
    """W processes with an even share of the envs each, built and waiting. reseed, kept: see `Loop`.
    groups: two, for a policy that waits."""

    def __init__(
        self,
        workload: Workload,
        n_envs: int,
        workers: int,
        reseed: bool = False,
        *,
        kept: int = 1,
        policy: Policy | None = None,
        groups: int = 1,
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
                how = {"reseed": reseed, "kept": kept}
                args = (workload, seeds, actions[:, share], theirs, barrier, policy, groups, how)
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
    library: str | None = None

    def refusal(self, row: Row) -> str | None:
        """None: it takes part in every row."""
        return None

    def setup(self, row: Row, workers: int) -> LimitSession:
        """Starts as many processes as workers, or envs. Raises EOFError or TimeoutError when one fails to start."""
        return LimitSession(row.workload, row.n_envs, workers, policy=row.policy)


class LimitOfGroups(Limit):
    """The limit for a policy that waits, when envs step meanwhile."""

    name = "limit, two groups"

    def refusal(self, row: Row) -> str | None:
        waits = row.policy is not None and row.policy.kind == "wait"
        return None if waits else "it is the limit of policies that wait"

    def setup(self, row: Row, workers: int) -> LimitSession:
        return LimitSession(row.workload, row.n_envs, workers, policy=row.policy, groups=2)
