"""`python -m benchmarks.growth`: what it costs as it grows: episodes, a run to resume, slots, workers to close.

Memory is the caller's own, of episodes that are handed out and let go. A run is resumed for one episode more. Slots are
CartPoles in the caller's process, and in two workers; the time of a step is per slot, the best of some stretches.
"""

import argparse
import contextlib
import datetime
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

import treadle
from benchmarks.report import machine, progress, write_between_markers
from treadle.progress import Standing

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
BEGIN, END = "<!-- growth:begin -->", "<!-- growth:end -->"
SLOTS = (8, 64, 256, 1024)


class Short(gym.Env[np.ndarray, int]):
    """Episodes of two steps that compute nothing."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._t += 1
        return np.zeros(2, np.float32), 1.0, self._t == 2, False, {}


def resident_mib() -> float:
    """Of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def memory(episodes: int) -> tuple[float, float, float]:
    """MiB after a tenth of the episodes and after all, and episodes a second."""
    early, began = 0.0, time.perf_counter()
    for episode in treadle.collect(Short, episodes=episodes, seed=0, workers=1):
        if episode.index == episodes // 10:
            early = resident_mib()
    return early, resident_mib(), episodes / (time.perf_counter() - began)


def resumed(episodes: int, whole: int) -> tuple[float, float, float]:
    """Of a run of `whole` episodes that is stopped after `episodes`, seconds to merge these, seconds until a resume has
    made another, and seconds to store one more once the run is complete."""
    at = dict[str, float]()

    def stop(now: Standing) -> None:
        at["stopped"] = time.perf_counter()
        if now.episodes >= episodes:
            raise KeyboardInterrupt

    def look(now: Standing) -> None:
        if now.made_steps:
            at.setdefault("goes on", time.perf_counter())

    with tempfile.TemporaryDirectory() as folder:
        run: dict[str, Any] = {"seed": 0, "workers": 1, "out": Path(folder) / "run"}
        with contextlib.suppress(KeyboardInterrupt):
            treadle.collect_dataset(Short, episodes=whole, progress=stop, **run)
        merged = time.perf_counter() - at["stopped"]
        began = time.perf_counter()
        treadle.collect_dataset(Short, episodes=whole, progress=look, resume=True, **run)
        goes_on = at["goes on"] - began
        began = time.perf_counter()
        treadle.collect_dataset(Short, episodes=whole + 1, resume=True, **run)
        return merged, goes_on, time.perf_counter() - began


def stepped(slots: int, **options: Any) -> tuple[float, float]:
    """Microseconds a slot of a step, the best of ten stretches; seconds to close."""
    envs = treadle.make_vec("CartPole-v1", slots, **options)
    envs.reset(seed=0)
    actions, times = np.zeros(slots, np.int64), []
    for _ in range(10):
        began = time.perf_counter()
        for _ in range(steps := max(5, 2000 // slots)):
            envs.step(actions)
        times.append((time.perf_counter() - began) / steps / slots * 1e6)
    began = time.perf_counter()
    envs.close()
    return min(times), time.perf_counter() - began


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (None: the process's own)."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--episodes", type=int, default=1_000_000, help="collected in memory (1,000,000)")
    parser.add_argument("--stored", type=int, default=100_000, help="of the run that is resumed (100,000)")
    parser.add_argument("--write", action="store_true", help=f"put the table into docs/{PAGE.name}")
    options = parser.parse_args(argv)
    facts, rows = machine(), []
    early, late, rate = memory(options.episodes)
    rows.append((f"memory of the caller after {options.episodes // 10:,} episodes, MiB", f"{early:.0f}"))
    rows.append((f"and after {options.episodes:,} ({rate:,.0f} a second)", f"{late:.0f}"))
    progress(str(rows[-2:]))
    serial = treadle.WorkerOptions(backend="serial")
    for slots in SLOTS:
        (alone, _), (beside, close) = stepped(slots, worker_options=serial), stepped(slots, workers=2, inline=0)
        rows.append((f"{slots:,} slots, us a slot: in the caller, in two workers", f"{alone:.1f}, {beside:.1f}"))
        progress(str(rows[-1]))
    rows.append((f"seconds to close {SLOTS[-1]:,} slots in two workers", f"{close:.2f}"))
    stored, whole = f"{options.stored:,} episodes", options.stored + options.stored // 10
    merged, goes_on, more = resumed(options.stored, whole)
    rows.append((f"seconds until a run that was stopped after {stored} makes the next", f"{goes_on:.1f}"))
    rows.append((f"seconds to merge {stored} at a run's end", f"{merged:.0f}"))
    rows.append((f"seconds to store one more episode in a complete run of {whole:,} episodes", f"{more:.0f}"))
    text = [
        f"{datetime.date.today()}. {facts['cpu']}, {facts['cores']} cores, {facts['system']}; load average at start "
        f"{facts['load_at_start']:g}. CartPole; episodes of two empty steps.",
        "",
        "| | |",
        "|---|---:|",
        *(f"| {what} | {figure} |" for what, figure in rows),
    ]
    print("\n".join(text))
    if options.write:
        write_between_markers(PAGE, "\n".join(text), BEGIN, END)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
