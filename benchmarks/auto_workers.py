"""`python -m benchmarks.auto_workers`: what `workers="auto"` comes to, against fixed numbers of workers.

Sixteen environments (in the caller's policy's case; else as many as workers) whose episodes take 20 to 144 steps: steps
that compute 1 ms, that wait 4 ms, that do both (1 ms and 3), and that wait 4 ms in all episodes but one of sixteen,
whose steps take twenty times as long. `collect` plays them without end, with random actions drawn in the workers and
with a policy in the caller that takes 0.5 ms a call and 0.02 a row; counted are the steps of all episodes that are
there when the time is over, from the call on: the start of the workers, and the time until more are added, included.

A second table is a run of 8 episodes an environment to its end, for a policy of 6 ms a call and 0.2 a row, beside
static batches on Gymnasium's AsyncVectorEnv (see `benchmarks.inference`), both from the call on.

Contestants take turns; what is shown are medians.
"""

import argparse
import datetime
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import treadle
from benchmarks.inference import SEED, Setting, Sleeping, Timed, static
from benchmarks.report import figure, machine, progress, publish
from benchmarks.workloads import compute

PAGE = Path(__file__).parents[1] / "docs" / "inference-reference.md"
BEGIN, END = "<!-- auto-workers:begin -->", "<!-- auto-workers:end -->"
ENVS, EPISODES = 16, 8
FIXED = (1, 2, 4, 8, 16)
SLOW, ONE_IN = 20, 16


class Both(Timed):
    """`wait` mean seconds of waiting and `work` seconds of computing a step; `slow`: in one of sixteen episodes steps
    wait so many times as long."""

    def __init__(self, wait: float, work: float, slow: float = 1.0) -> None:
        super().__init__(wait, work)
        self._longer, self._slow = 1.0, slow

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        found = super().reset(seed=seed)
        self._longer = self._slow if self.np_random.integers(ONE_IN) == 0 else 1.0
        return found

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if self._wait:
            time.sleep(self._longer * float(self.np_random.exponential(self._wait)))
        if self._turns:
            compute(self._turns, 1)
        self._left -= 1
        return self._observation, 1.0, self._left <= 0, False, {}


ROWS: dict[str, Callable[[], Both]] = {
    "computes 1 ms": partial(Both, 0.0, 0.001),
    "waits 4 ms": partial(Both, 0.004, 0.0),
    "computes 1 ms, waits 3 ms": partial(Both, 0.003, 0.001),
    "waits 4 ms, one episode in 16 is 20 times slower": partial(Both, 0.004, 0.0, SLOW),
}
CALLER = Sleeping(0.0005, 0.00002)
PLACES: dict[str, dict[str, Any]] = {
    "in the workers": {},
    "in the caller": {"policy": CALLER, "inference": "caller", "num_envs": ENVS},
}


def rate(make: Callable[[], Both], place: dict[str, Any], workers: int | str, seconds: float) -> float:
    """Steps a second."""
    until, steps = time.perf_counter() + seconds, 0
    for episode in treadle.collect(make, seed=SEED, workers=workers, ordered=False, **place):
        if time.perf_counter() > until:
            break
        steps += len(episode)
    return steps / seconds


def to_the_end(workers: int | str) -> float:
    """Seconds from the call on."""
    setting, began = Setting(ENVS, 0.004, 0.0, 0.006, 0.0002), time.perf_counter()
    if workers == "static":
        static(setting, EPISODES)
    else:
        played = treadle.collect(
            setting.make, setting.policy(), episodes=EPISODES * ENVS, seed=SEED, inference="caller", num_envs=ENVS,
            workers=workers, ordered=False,
        )  # fmt: skip
        assert sum(1 for _ in played) == EPISODES * ENVS
    return time.perf_counter() - began


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (None: the process's own)."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.auto_workers", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0, help="of a turn")
    parser.add_argument("--rows", default="", help="those whose names have this in them")
    parser.add_argument("--write", action="store_true", help=f"put the tables into docs/{PAGE.name}")
    options = parser.parse_args(argv)
    facts, numbers = machine(), [*FIXED, "auto"]
    found: dict[tuple[str, str], dict[int | str, list[float]]] = {}
    ends: dict[str | int, list[float]] = {"static": [], 2: [], 16: [], "auto": []}
    for turn in range(options.rounds):
        for row, make in ROWS.items():
            for where, place in PLACES.items():
                for workers in numbers if options.rows in f"{row}, {where}" else ():
                    rates = found.setdefault((row, where), {each: [] for each in numbers})[workers]
                    rates.append(rate(make, place, workers, options.seconds))
                    progress(f"{turn + 1}/{options.rounds} {row}, {where}, {workers}: {rates[-1]:,.0f} steps/s")
        for name, times in ends.items() if options.rows in "to the end" else ():
            times.append(to_the_end(name))
            progress(f"{turn + 1}/{options.rounds} to the end, {name}: {times[-1]:.1f} s")
    versions = facts["versions"]
    text = [
        f"{datetime.date.today()}. {facts['cpu']}, {facts['cores']} cores, {facts['system']}; python "
        f"{versions['python']}, treadle {versions['treadle']}. Steps a second of {options.seconds:g} s, the start "
        f"included; medians of {options.rounds} rounds, contestants interleaved, load average at start "
        f"{facts['load_at_start']:g}.",
        "",
        f"| a step | policy | {' | '.join(f'workers={each}' for each in FIXED)} | auto | auto of the best |",
        "|---|---|" + "---:|" * (len(FIXED) + 2),
    ]
    for (row, where), by_number in found.items():
        rates = {number: median(each) for number, each in by_number.items()}
        cells = " | ".join(figure(rates[number]) for number in numbers)
        text.append(f"| {row} | {where} | {cells} | {rates['auto'] / max(rates[each] for each in FIXED):.2f} |")
    if ends["auto"]:
        times = {name: median(each) for name, each in ends.items()}
        text += ["", "| 16 environments, waits 4 ms, policy 6 + 0.2 ms a row | s | of static |", "|---|---:|---:|"]
        for name, label in {"static": "static batches", 2: "workers=2", 16: "workers=16", "auto": "auto"}.items():
            text.append(f"| {label} | {times[name]:.1f} | {times[name] / times['static']:.2f} |")
    publish("\n".join(text), PAGE if options.write else None, BEGIN, END)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
