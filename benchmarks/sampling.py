"""`python -m benchmarks.sampling`: what sampling episodes with a policy costs, as a share of the bare limit.

The limit is W processes that never talk to anyone, each with one env and the same small NumPy policy: the tightest loop
that acts, steps, keeps the latest row, and resets. Contestants, interleaved with it: the same loops where each keeps
what it sees in an array of its own, which is the least that whoever wants the data has to pay; the same loops with a
seed for every reset, which is the least that episodes by index cost (ALE loads its ROM anew for it); and
`MultiprocessingSampler.obtain_samples` with W workers, in both schedules. A rate is env steps in the returned batch
over the seconds of the call, so that stopping, joining the episodes, those that were begun for nothing and everything
else the caller does is in it. Starting workers is not, nor are first touches of memory: a call of the same size goes
before it, as in a training loop, and the array of the loops that keep is touched beforehand.

A second table tells what the caller spends: its CPU while it waits for an env of 100 ms a step, and episodes and
megabytes a second through the stream.
"""

import argparse
import datetime
import itertools
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from time import perf_counter, process_time, sleep
from typing import Any

import gymnasium as gym
import numpy as np

from benchmarks.measure import Measure, measure
from benchmarks.report import figure, machine, markdown, summarise, take_turns
from benchmarks.workloads import SEED, WORKLOADS

_TIMEOUT_S = 120.0
KEPT = 2048  # rows of the array of loops that keep: written over and over, and too large for any cache where it matters


class SmallPolicy:
    """Two layers of 32 on up to 256 numbers of the observation, and a draw: what a small learner asks of NumPy.

    n_inputs: how many numbers; larger observations are thinned to that many. n_actions: of a Discrete space.
    """

    def __init__(self, n_inputs: int, n_actions: int) -> None:
        rng = np.random.default_rng(SEED)
        self.first = rng.normal(0, 0.3, (n_inputs, 32)).astype(np.float32)
        self.second = rng.normal(0, 0.3, (32, n_actions)).astype(np.float32)
        self.n_inputs = n_inputs
        self.rng = np.random.default_rng(SEED)

    def reset(self, do_resets: Any = None) -> None:
        """It remembers nothing."""

    def get_action(self, observation: Any) -> tuple[int, dict[str, Any]]:
        if observation.size != self.n_inputs:
            observation = observation[::14, ::10, 0].ravel()[: self.n_inputs]
        logits = np.tanh(observation @ self.first) @ self.second
        weights = np.exp(logits - logits.max())
        return int((weights.cumsum() < self.rng.random() * weights.sum()).sum()), {}


def policy_for(name: str) -> SmallPolicy:
    """The policy of a row."""
    return SmallPolicy(4, 2) if name == "cartpole" else SmallPolicy(240, 6)


# -- the limit ---------------------------------------------------------------------------------------------------------


Run = Callable[[float], tuple[int, float]]  # plays for so many seconds: (env steps, wall seconds)


def play(env: gym.Env[Any, Any], policy: SmallPolicy, rows: np.ndarray, seeds: Iterator[int] | None) -> Run:
    """Act, step, keep the row, reset.

    rows: [n, *shape], where row after row is kept, from the first again after the last. seeds: of the resets, None:
    without.
    """
    places: list[Any] = [memoryview(row) if row.ndim == 1 else row for row in rows]  # type: ignore[arg-type]
    kept, last = np.zeros((len(rows), 4)), len(rows) - 1
    act, step, reset, clock = policy.get_action, env.step, env.reset, perf_counter

    def run(seconds: float) -> tuple[int, float]:
        at, row, numbers = 0, places[0], kept[0]
        observation, _ = reset(seed=None if seeds is None else next(seeds))
        steps, start = 0, clock()
        end = start + seconds
        while True:
            action, _ = act(observation)
            observation, reward, terminated, truncated, _ = step(action)
            numbers[0], numbers[1], numbers[2], numbers[3] = action, reward, terminated, truncated
            row[:] = observation
            if last:
                at = at + 1 if at < last else 0
                row, numbers = places[at], kept[at]
            steps += 1
            if terminated or truncated:
                now = clock()
                if now >= end:
                    return steps, now - start
                observation, _ = reset(seed=None if seeds is None else next(seeds))

    return run


def playing(name: str, rows: int, reseed: bool, seed: int) -> Run:
    """What a process of the limit does: one env, the row's policy, and so many rows of memory."""
    env = WORKLOADS[name].make()
    env.reset(seed=seed)
    space = env.observation_space
    assert isinstance(space, gym.spaces.Box)
    memory = np.full((rows, *space.shape), 1, space.dtype)
    return play(env, policy_for(name), memory, itertools.count(10**6 * seed) if reseed else None)


def _serve(setup: Callable[[int], Run], seed: int, requests: Connection, barrier: Barrier) -> None:
    run = setup(seed)
    if any(module.partition(".")[0] == "treadle" for module in sys.modules):
        raise RuntimeError("the limit's process has Treadle loaded: it would not measure a process without it")
    requests.send(None)
    while (seconds := requests.recv()) is not None:
        barrier.wait(_TIMEOUT_S)
        requests.send(run(seconds))


def limit(name: str, workers: int, seconds: float, *, rows: int = 1, reseed: bool = False) -> Measure:
    """Loops with so many rows each. reseed: every reset has a seed, as it must be where any episode is to be played
    again by itself."""
    return independent(partial(playing, name, rows, reseed), workers, seconds)


def independent(setup: Callable[[int], Run], workers: int, seconds: float) -> Measure:
    """W processes that never talk to anyone, started together; the wall time is that of the slowest.

    setup: called in each with its seed, returns what it runs; picklable by module path.
    """
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(workers)
    lines = []
    for i in range(workers):
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(setup, SEED + i, theirs, barrier), daemon=True)
        process.start()
        theirs.close()
        lines.append((ours, process))

    def ask(value: float | None) -> list[Any]:
        for line, _ in lines:
            line.send(value)
        return [] if value is None else [_received(line) for line, _ in lines]

    try:
        for line, _ in lines:
            _received(line)
        ask(0.3)

        def stretch() -> tuple[int, float]:
            found = ask(seconds)
            return sum(steps for steps, _ in found), max(wall for _, wall in found)

        return measure(stretch)
    finally:
        ask(None)
        for line, process in lines:
            process.join(10.0)
            if process.is_alive():
                process.kill()
            line.close()


def _received(line: Connection) -> Any:
    if not line.poll(_TIMEOUT_S):
        raise TimeoutError(f"a process of the limit did not answer within {_TIMEOUT_S:.0f} s")
    return line.recv()


# -- Treadle -----------------------------------------------------------------------------------------------------------


def treadle(name: str, workers: int, seconds: float, *, ordered: bool, rates: dict[str, float]) -> Measure:
    """One `obtain_samples` of about so many seconds, at the rate that an earlier turn had, after another one."""
    from treadle import MultiprocessingSampler, NewEnvUpdate

    with MultiprocessingSampler(
        policy_for(name),
        NewEnvUpdate(WORKLOADS[name].make),
        max_episode_length=np.inf,
        seed=SEED,
        n_workers=workers,
        ordered=ordered,
        progress=False,
    ) as sampler:
        start = perf_counter()
        warm = sampler.obtain_samples(0, 2000, None)
        wanted = int(seconds * rates.get(name, len(warm) / (perf_counter() - start)))
        sampler.obtain_samples(0, wanted, None)

        def stretch() -> tuple[int, float]:
            start = perf_counter()
            steps = len(sampler.obtain_samples(0, wanted, None))
            return steps, perf_counter() - start

        return measure(stretch, [worker.pid for worker in sampler._sampling.pool.workers])


class SlowEnv(gym.Env[Any, Any]):
    """Takes 100 ms a step, ten steps an episode."""

    observation_space = gym.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.left = 10
        return np.zeros(4, np.float32), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        sleep(0.1)
        self.left -= 1
        return np.zeros(4, np.float32), 0.0, self.left == 0, False, {}


class StillEnv(gym.Env[Any, Any]):
    """Costs nothing to step and shows the same frame: what is left is the stream. `shape`: of the uint8 frame."""

    action_space = gym.spaces.Discrete(2)

    def __init__(self, shape: tuple[int, ...], steps: int) -> None:
        self.observation_space = gym.spaces.Box(0, 255, shape, np.uint8)
        self.frame, self.steps = np.full(shape, 7, np.uint8), steps

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.left = self.steps
        return self.frame, {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        return self.frame, 0.0, self.left == 0, False, {}


def nothing(observations: Any) -> Any:
    """A policy that costs next to nothing."""
    return np.zeros(len(observations), np.int64)


def waiting(workers: int) -> str:
    """The share of a core that the caller uses while workers take 100 ms a step."""
    from treadle import MultiprocessingSampler

    options: dict[str, Any] = {"max_episode_length": 100, "n_workers": workers, "progress": False}
    with MultiprocessingSampler(nothing, SlowEnv(), **options) as sampler:
        sampler.obtain_exact_episodes(1, None)
        cpu, start = process_time(), perf_counter()
        sampler.obtain_exact_episodes(3, None)
        share = (process_time() - cpu) / (perf_counter() - start)
    return f"{share:.2%} of a core in the caller while it waits for envs of 100 ms a step"


def streaming(shape: tuple[int, ...], steps: int, wanted: int, workers: int) -> str:
    """How fast episodes come through the stream when stepping costs nothing."""
    from treadle import MultiprocessingSampler

    env = StillEnv(shape, steps)
    options: dict[str, Any] = {"max_episode_length": 10**6, "n_workers": workers, "progress": False}
    with MultiprocessingSampler(nothing, env, **options) as sampler:
        sampler.obtain_samples(0, wanted // 4, None)
        cpu, start = process_time(), perf_counter()
        batch = sampler.obtain_samples(0, wanted, None)
        wall, cpu = perf_counter() - start, process_time() - cpu
    rate, bytes_a_second = len(batch.lengths) / wall, batch.observations.nbytes / wall
    what = f"uint8{list(shape)}, {steps} steps an episode"
    return (
        f"{what}: {figure(rate)} episodes/s, {figure(bytes_a_second / 1e6)} MB/s, caller {cpu / wall:.0%} of a core "
        "(joining the result included)"
    )


def noting(rates: dict[str, float], run: Callable[..., Measure], name: str, workers: int, seconds: float) -> Measure:
    """A turn; how fast it was tells the next one how much to ask for."""
    found = run(name, workers, seconds)
    rates[name] = found.steps_per_s
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sampling", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="turns of each contestant on each row (5)")
    parser.add_argument("--seconds", type=float, default=3.0, help="timed seconds of a turn, about (3)")
    parser.add_argument("--only", default="cartpole,pong", help="rows (cartpole,pong)")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="cores to use (all)")
    options = parser.parse_args(argv)
    facts: dict[str, Any] = machine()
    lines = []
    for name in options.only.split(","):
        rates: dict[str, float] = {}
        contestants: dict[str, Callable[..., Measure]] = {
            "limit": limit,
            "limit, seeded resets": partial(limit, reseed=True),
            "limit, rows kept": partial(limit, rows=KEPT),
            "treadle": partial(treadle, ordered=False, rates=rates),
            "treadle, deterministic": partial(treadle, ordered=True, rates=rates),
        }
        turns = {
            who: partial(noting, rates, run, name, options.workers, options.seconds) for who, run in contestants.items()
        }
        lines += summarise(f"sample {name}", take_turns(name, turns, options.rounds))
    notes = [
        waiting(options.workers),
        streaming((4,), 20, 200_000, options.workers),
        streaming((84, 84, 4), 200, 20_000, options.workers),
    ]
    facts |= {"date": datetime.date.today().isoformat(), "rounds": options.rounds, "seconds": options.seconds}
    facts |= {"warmup": 0.3, "workers": options.workers}
    print(markdown(lines, notes, facts))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
