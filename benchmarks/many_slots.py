"""`python -m benchmarks.many_slots`: hundreds of environments that wait, in one process.

Texts both ways, steps that wait 5 to 495 ms (250 on average, evenly distributed), as an environment behind a server
does. In threads and as coroutines: a vector's `send` and `recv`, a policy in the caller, and `async def` policies
beside their environments. The most that there can be is slots / mean step time; what is counted are steps that end
within the measured stretch, after a second in which they fall out of step.
"""

import argparse
import asyncio
import datetime
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import gymnasium as gym

import treadle
from benchmarks.report import figure, machine, progress, write_between_markers

PAGE = Path(__file__).parents[1] / "docs" / "inference-reference.md"
BEGIN, END = "<!-- many-slots:begin -->", "<!-- many-slots:end -->"
LOWEST, HIGHEST = 0.005, 0.495  # seconds a step
MEAN = (LOWEST + HIGHEST) / 2
LENGTH = 20  # steps of an episode
BUILD = 2.0  # seconds in which all are built
SETTLE = 1.0  # seconds before counting


class Waits(gym.Env[str, str]):
    """Texts both ways; the moment of each step's end goes to `ends`."""

    observation_space = gym.spaces.Text(64)
    action_space = gym.spaces.Text(64)

    def __init__(self, ends: list[float]) -> None:
        self._ends = ends

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self._t = 0
        return "hello", {}

    def _seconds(self) -> float:
        return float(self.np_random.uniform(LOWEST, HIGHEST))

    def _told(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._t += 1
        self._ends.append(time.perf_counter())
        return f"step {self._t} after {action[:20]}", 1.0, self._t >= LENGTH, False, {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        time.sleep(self._seconds())
        return self._told(action)


class Coroutines(Waits):
    async def step(self, action: str) -> Any:  # type: ignore[override]
        await asyncio.sleep(self._seconds())
        return self._told(action)


def policy(observations: Sequence[str]) -> list[str]:
    return [f"said {text[:30]}" for text in observations]


async def thinking(observations: Sequence[str]) -> list[str]:
    await asyncio.sleep(0)
    return policy(observations)


def vector(env: type[Waits], slots: int, until: float, ends: list[float]) -> None:
    """`send` and `recv`: whoever is ready gets its next action."""
    envs: Any = treadle.make_vec(
        partial(env, ends), slots, workers=slots, worker_options=treadle.WorkerOptions(backend="thread")
    )
    try:
        envs.async_reset(seed=1)
        while time.perf_counter() < until:
            observations, _, _, _, infos = envs.recv(min=1, max=slots)
            envs.send(policy(observations), infos["env_id"])
        envs.recv(min=slots, max=slots)
    finally:
        envs.close()


def collected(env: type[Waits], slots: int, until: float, ends: list[float], asked: Any, **options: Any) -> None:
    """Episodes without end, left when the time is over."""
    make = partial(env, ends)
    for _ in treadle.collect(
        make,
        asked,
        seed=1,
        worker_options=treadle.WorkerOptions(backend="thread"),
        num_envs=slots,
        ordered=False,
        **options,
    ):
        if time.perf_counter() > until:
            break


CONTESTANTS: dict[str, Callable[[int, float, list[float]], None]] = {
    "threads, send and recv": partial(vector, Waits),
    "coroutines, send and recv": partial(vector, Coroutines),
    "threads, a policy in the caller": partial(collected, Waits, asked=policy, inference="caller"),
    "coroutines, an `async def` policy in the caller": partial(
        collected, Coroutines, asked=thinking, inference="caller"
    ),
    "coroutines, an `async def` policy beside each": partial(collected, Coroutines, asked=thinking, inference="worker"),
    "threads with a time limit, a policy in the caller": partial(
        collected, Waits, asked=policy, inference="caller", step_timeout=30.0
    ),
}


def measured(run: Callable[[int, float, list[float]], None], slots: int, seconds: float) -> tuple[float, float]:
    """(steps a second, cores busy), from a second after the first step's end on."""
    ends: list[float] = []
    cpu, began = time.process_time(), time.perf_counter()
    run(slots, began + BUILD + SETTLE + seconds, ends)
    cores = (time.process_time() - cpu) / (time.perf_counter() - began)
    first = min(ends) + SETTLE
    return sum(first <= end < first + seconds for end in ends) / seconds, cores


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (None: the process's own)."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.many_slots", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--slots", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help=f"put the table into docs/{PAGE.name}")
    options = parser.parse_args(argv)
    facts = machine()
    rates: dict[str, list[tuple[float, float]]] = {name: [] for name in CONTESTANTS}
    for turn in range(options.rounds):
        for name, run in CONTESTANTS.items():
            rates[name].append(measured(run, options.slots, options.seconds))
            progress(f"{turn + 1}/{options.rounds} {name}: {rates[name][-1][0]:,.0f} steps/s")
    most = options.slots / MEAN
    versions = facts["versions"]
    text = [
        f"{datetime.date.today()}. {facts['cpu']}, {facts['cores']} cores, {facts['system']}; python "
        f"{versions['python']}, treadle {versions['treadle']}. {options.slots} environments, steps of "
        f"{LOWEST * 1e3:g} to {HIGHEST * 1e3:g} ms, texts both ways; median of {options.rounds} rounds of "
        f"{options.seconds:g} s, contestants interleaved. The most: {options.slots} / {MEAN:g} s = {most:,.0f}.",
        "",
        "| | steps a second | of the most | cores busy |",
        "|---|---:|---:|---:|",
    ]
    for name, found in rates.items():
        rate, cores = (median(each) for each in zip(*found, strict=True))
        text.append(f"| {name} | {figure(rate)} | {rate / most:.2f} | {cores:.1f} |")
    print("\n".join(text))
    if options.write:
        write_between_markers(PAGE, "\n".join(text), BEGIN, END)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
