"""`python -m benchmarks.recorder`: what recording costs a vector, in processor time a step.

Two vectors of the same environments, one with `recorder=False`, step the same actions in turns; each pair of turns
gives a ratio of the processor time of the caller and its workers. Shown: the median of the pairs, and the interval in
which the middle half of them lies.
"""

import argparse
import datetime
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

import treadle
from benchmarks.report import machine, progress, publish

PAGE = Path(__file__).parents[1] / "docs" / "replay.md"
BEGIN, END = "<!-- recorder:begin -->", "<!-- recorder:end -->"
CASES = (("CartPole-v1", 8), ("CartPole-v1", 64), ("HalfCheetah-v5", 8), ("ALE/Pong-v5", 8))


def processor_seconds(pids: list[int]) -> float:
    """Of these processes, as the scheduler counts."""
    return sum(int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) for pid in pids) / 1e9


def measured(env: str, count: int, pairs: int, seconds: float) -> list[tuple[float, float]]:
    """Microseconds of processor time a batch, (without, with) for each pair of turns of about `seconds`."""
    before = multiprocessing_children()
    vectors = [
        treadle.VectorEnv(env, count, workers=1, inline=count // 2, worker_options=treadle.WorkerOptions(recorder=on))
        for on in (False, True)
    ]
    pids = [os.getpid(), *(multiprocessing_children() - before)]
    try:
        actions = [vectors[0].action_space.sample() for _ in range(64)]
        for vector in vectors:
            vector.reset(seed=0)
        steps, begun = 0, perf_counter()
        while perf_counter() - begun < seconds:
            vectors[0].step(actions[steps % 64])
            vectors[1].step(actions[steps % 64])
            steps += 1
        return in_pairs(vectors, actions, pairs, steps, partial(processor_seconds, pids))
    finally:
        for vector in vectors:
            vector.close()


def in_pairs(
    vectors: Sequence[Any], actions: Sequence[Any], pairs: int, steps: int, clock: Callable[[], float]
) -> list[tuple[float, float]]:
    """Two vectors step the same actions in turns, of which each pair begins with the other one than the pair before:
    microseconds a batch of each, by a clock of seconds."""
    found = []
    for turn in range(pairs):
        spent = [0.0, 0.0]
        for which in (0, 1) if turn % 2 else (1, 0):
            start = clock()
            for step in range(steps):
                vectors[which].step(actions[step % len(actions)])
            spent[which] = (clock() - start) / steps * 1e6
        found.append((spent[0], spent[1]))
    return found


def multiprocessing_children() -> set[int]:
    """Processes below this one."""
    parents = {}
    for each in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid, rest = each.read_text().split(" ", 1)
            parents[int(pid)] = int(rest.rpartition(")")[2].split()[1])
        except (OSError, ValueError):  # it has ended meanwhile
            continue
    found = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in found and pid not in found}:
        found |= more
    return found - {os.getpid()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=0.5, help="of a turn")
    parser.add_argument("--write", action="store_true", help=f"put the table into docs/{PAGE.name}")
    options = parser.parse_args()
    lines = [
        "| environments | us a batch without | with | median of the pairs | middle half |",
        "|---|---|---|---|---|",
    ]
    for env, count in CASES:
        progress(f"{env} x {count}")
        found = np.array(measured(env, count, options.pairs, options.seconds))
        ratios = 100 * (found[:, 1] / found[:, 0] - 1)
        low, middle, high = np.percentile(ratios, [25, 50, 75])
        without, with_it = np.median(found, axis=0)
        lines.append(
            f"| {env} x {count} | {without:,.1f} | {with_it:,.1f} | {middle:+.1f} % | {low:+.1f} to {high:+.1f} % |"
        )
    about = machine()
    place = f"{about['cores']} cores, Python {about['versions']['python']}, {datetime.date.today()}"
    lines += ["", f"({options.pairs} interleaved pairs, {place}.)"]
    text = "\n".join(lines)
    publish(text, PAGE if options.write else None, BEGIN, END)


if __name__ == "__main__":
    main()
