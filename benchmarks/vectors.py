"""`python -m benchmarks.vectors`: the Gymnasium vectors themselves, through `treadle.make_vec`, against their targets.

Six tables, each with the limit and its peers in the same run, contestants interleaved:

- sync: stepping all envs at once, with a share of them in the caller ("auto") and without (`inline=0`);
- partial: whichever envs are ready first, under exponential step times, envs that compute and envs that wait;
- rollouts: images stored in blocks of 64 steps;
- safe: batches that are the caller's to keep, as leases, against views and against copies;
- owned: workers that own Gymnasium's NumPy CartPole, against that env alone in each of as many processes.

Treadle's vectors are made with their defaults but for what a contestant's name says; like their peers they reset in the
step after an end (NEXT_STEP), and rows that are such resets are not counted.
"""

import argparse
import datetime
import json
import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import gymnasium as gym
import numpy as np

from benchmarks.contestants import Contestant, GymnasiumAsync, GymnasiumSync, VectorSession
from benchmarks.limit import Limit, LimitSession
from benchmarks.measure import Measure, measure
from benchmarks.report import machine, markdown, summarise, write_between_markers
from benchmarks.run import PAGE, run_row, select
from benchmarks.workloads import SEED, WORKLOADS, Row, Workload

BEGIN, END = "<!-- vectors:begin -->", "<!-- vectors:end -->"
T = 64  # steps of a rollout


class Vector:
    """`treadle.make_vec` with some options, stepped like any vector.

    options: of make_vec. keep: what the caller does with each batch that `step` returns, besides letting it go; makes
    the function for a workload's vector.
    """

    def __init__(self, name: str, *, keep: Callable[[Any], Callable[[Any], Any]] | None = None, **options: Any) -> None:
        self.name, self._keep, self._options = name, keep, options

    def refusal(self, workload: Workload) -> str | None:
        return None

    def vector(self, workload: Workload, n_envs: int, workers: int) -> Any:
        """The vector. "auto" is left to it as long as all cores are to be used."""
        import treadle

        options = {"workers": workers, **self._options}
        if workers == len(os.sched_getaffinity(0)) and "workers" not in self._options:
            options["workers"] = "auto"
        made: Any = workload.make_rows if options.get("owned") else workload.make
        return treadle.make_vec(made, n_envs, **options)

    def setup(self, workload: Workload, n_envs: int, workers: int) -> Any:
        envs = self.vector(workload, n_envs, workers)
        envs.reset(seed=SEED)
        step = _keeping(envs.step, self._keep(envs)) if self._keep else envs.step
        return VectorSession(step, workload, n_envs, close=envs.close, reset_rows=True)


class Partial(Vector):
    """The same by `send` and `recv`: the first batch of envs that are ready, again and again.

    batch: how many `recv` waits for.
    """

    def __init__(self, name: str, *, batch: int, **options: Any) -> None:
        super().__init__(name, **options)
        self._batch = batch

    def setup(self, workload: Workload, n_envs: int, workers: int) -> Any:
        return PartialSession(self.vector(workload, n_envs, workers), workload, self._batch)


class PartialSession:
    """Requests stay out from one run to the next: every env is busy when the clock starts, and when it stops."""

    def __init__(self, envs: Any, workload: Workload, batch: int) -> None:
        self._envs, self._batch, self._k = envs, batch, 0
        self._actions = workload.actions(envs.num_envs)
        envs.async_reset(seed=SEED)

    def run(self, seconds: float) -> Measure:
        return measure(lambda: self._stretch(seconds))

    def _stretch(self, seconds: float) -> tuple[int, float]:
        envs, actions, k, batch = self._envs, self._actions, self._k, self._batch
        most, count, clock = envs.num_envs, np.count_nonzero, perf_counter
        steps = 0
        start = now = clock()
        while now - start < seconds:
            infos = envs.recv(min=batch, max=most)[4]
            steps += int(count(infos["valid"]))
            ids = infos["env_id"]
            envs.send(actions[k][ids], ids)
            k = (k + 1) % len(actions)
            now = clock()
        self._k = k
        return steps, now - start

    def close(self) -> None:
        self._envs.recv(min=self._envs.num_envs)  # what is still out
        self._envs.close()


class Rollouts(Vector):
    """Rollouts of T steps, which workers write; each is let go before the next is asked for."""

    def setup(self, workload: Workload, n_envs: int, workers: int) -> Any:
        envs = self.vector(workload, n_envs, workers)
        envs.reset(seed=SEED)
        return RolloutSession(envs, workload)


class RolloutSession:
    def __init__(self, envs: Any, workload: Workload) -> None:
        self._envs, self._k = envs, 0
        self._batches = list(workload.actions(envs.num_envs))

    def run(self, seconds: float) -> Measure:
        return measure(lambda: self._stretch(seconds))

    def _policy(self, observations: Any) -> Any:
        self._k = (self._k + 1) % len(self._batches)
        return self._batches[self._k]

    def _stretch(self, seconds: float) -> tuple[int, float]:
        steps = 0
        start = now = perf_counter()
        while now - start < seconds:
            steps += int(np.count_nonzero(self._envs.rollout(self._policy, steps=T).valid))
            now = perf_counter()
        return steps, now - start

    def close(self) -> None:
        self._envs.close()


class Stored:
    """One of Gymnasium's vectors, each of its batches copied into the next of T rows."""

    def __init__(self, name: str, make: Callable[[list[Any]], Any]) -> None:
        self.name, self._make = name, make

    def refusal(self, workload: Workload) -> str | None:
        return None

    def setup(self, workload: Workload, n_envs: int, workers: int) -> VectorSession:
        """workers is ignored: one process, or one for each env."""
        envs = self._make([workload.make] * n_envs)
        envs.reset(seed=SEED)
        return VectorSession(_keeping(envs.step, stored(envs)), workload, n_envs, close=envs.close, reset_rows=True)


class OneEach(Limit):
    """The limit of envs that wait: a process for each."""

    def setup(self, workload: Workload, n_envs: int, workers: int) -> LimitSession:
        return LimitSession(workload, n_envs, n_envs)


class Alone(Limit):
    """The limit of vectorised envs: one in each process, nobody to talk to."""

    def setup(self, workload: Workload, n_envs: int, workers: int) -> LimitSession:
        return LimitSession(workload, n_envs, workers, rows=True)


class LimitStored(Limit):
    """The limit of those who store T steps: memory that is in no cache."""

    name = "the limit's loop, stored"

    def setup(self, workload: Workload, n_envs: int, workers: int) -> LimitSession:
        return LimitSession(workload, n_envs, workers, kept=T)


class AloneInOne(Alone):
    """A single one of them, as most people would run it."""

    name = "the NumPy env in one process"

    def setup(self, workload: Workload, n_envs: int, workers: int) -> LimitSession:
        return LimitSession(workload, n_envs, 1, rows=True)


def _keeping(step: Callable[[Any], Any], keep: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def stepped(actions: Any) -> Any:
        batch = step(actions)
        keep(batch)
        return batch

    return stepped


def stored(envs: Any) -> Callable[[Any], None]:
    """Copies each batch into the next of T rows, over and over."""
    n, space = envs.num_envs, envs.single_observation_space
    rows = np.zeros((T, n, *space.shape), space.dtype)
    rest = np.zeros((T, n)), np.zeros((T, n), np.bool_), np.zeros((T, n), np.bool_)
    t = 0

    def keep(batch: Any) -> None:
        nonlocal t
        rows[t] = batch[0]
        for kept, part in zip(rest, batch[1:4], strict=True):
            kept[t] = part
        t = (t + 1) % T

    return keep


def copied(_: Any) -> Callable[[Any], Any]:
    """Copies each batch's observations to fresh memory, as safe batches are made elsewhere."""
    return lambda batch: batch[0].copy()


def held(_: Any) -> Callable[[Any], None]:
    """Holds on to the last four batches."""
    return deque[Any](maxlen=4).append


@dataclass(frozen=True)
class Table:
    """Contestants that are compared on one row. name: what `--only` selects by its beginning."""

    name: str
    row: Row
    contestants: tuple[Contestant, ...]


def tables() -> list[Table]:
    """All of them, in the order in which they are measured."""
    stepping = (
        Limit(),
        GymnasiumSync(),
        GymnasiumAsync(),
        Vector("make_vec"),
        Vector("make_vec, inline=0", inline=0),
    )
    sync = [("cartpole", 8), ("cartpole", 128), ("pong", 8), ("python100us", 8), ("python1ms", 8)]
    sync += [("dict10us", 8), ("images", 32)]
    found = [Table(f"sync {name}-{n}", Row(WORKLOADS[name], n), stepping) for name, n in sync]
    computing = (
        Limit(),
        GymnasiumAsync(),
        Vector("make_vec, step"),
        Partial("make_vec, recv(min=1)", batch=1, inline=0),
        Partial("make_vec, recv(min=4)", batch=4, inline=0),
        Partial("make_vec, recv(min=4), inline", batch=4),
    )
    waiting = (
        OneEach(),
        GymnasiumAsync(),
        Vector("make_vec, step"),
        Partial("make_vec, recv(min=1)", batch=1),
        Partial("make_vec, recv(min=4)", batch=4),
    )
    found.append(Table("partial exp1ms-8", Row(WORKLOADS["exp1ms"], 8), computing))
    found.append(Table("partial sleep1ms-8", Row(WORKLOADS["sleep1ms"], 8), waiting))
    images = Row(WORKLOADS["images"], 32)
    storing = (
        Limit(),
        LimitStored(),
        Stored("Gymnasium Sync, stored", gym.vector.SyncVectorEnv),
        Stored("Gymnasium Async, stored", gym.vector.AsyncVectorEnv),
        Vector("make_vec, stored", keep=stored),
        Rollouts("make_vec, rollout"),
        Rollouts("make_vec, rollout, inline=0", inline=0),
    )
    found.append(Table("rollouts images-32", images, storing))
    safe = (
        Limit(),
        Vector("views (copy=False)", copy=False),
        Vector("leases (copy=True)"),
        Vector("leases, four held", keep=held),
        Vector("fresh copies", copy=False, keep=copied),
    )
    found.append(Table("safe images-32", images, safe))
    for n in (128, 4096):
        rows = (
            Alone(),
            AloneInOne(),
            Vector("make_vec, owned=True", owned=True),
            Vector("make_vec, owned=True, inline=0", owned=True, inline=0),
        )
        found.append(Table(f"owned cartpole-{n}", Row(WORKLOADS["cartpole"], n), rows))
    return found


def chosen_tables(only: str) -> list[Table]:
    """Those whose names have one of the comma-separated parts. Raises ValueError for a part that fits none."""
    parts = [part.strip() for part in only.split(",") if part.strip()]
    everything = tables()
    for part in parts:
        if not any(part in table.name for table in everything):
            raise ValueError(f"no table {part!r} among {', '.join(table.name for table in everything)}")
    return [table for table in everything if not parts or any(part in table.name for part in parts)]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (None: the process's own). Returns 1 when a contestant failed, else 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.vectors", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="turns of each contestant on each row (5)")
    parser.add_argument("--seconds", type=float, default=2.0, help="timed seconds of a turn (2)")
    parser.add_argument("--warmup", type=float, default=0.5, help="seconds stepped before the clock starts (0.5)")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="cores to use (all)")
    parser.add_argument("--only", default="", metavar="PART,...", help="tables, by parts of their names (all)")
    parser.add_argument("--contestants", default="", metavar="PART,...", help="contestants, likewise (all)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write every single measure to this JSON file")
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE.parent.name}/{PAGE.name}")
    options = parser.parse_args(argv)
    try:
        wanted = chosen_tables(options.only)
    except ValueError as error:
        parser.error(str(error))
    parts = [part.strip() for part in options.contestants.split(",") if part.strip()]
    facts: dict[str, Any] = machine() | {"date": datetime.date.today().isoformat()}
    facts |= {name: getattr(options, name) for name in ("rounds", "seconds", "warmup", "workers")}
    lines, failures, raw = [], [], {}
    for table in wanted:
        taking_part = table.contestants if not parts else select(table.contestants, parts)
        measures, failed = run_row(
            table.row,
            taking_part,
            rounds=options.rounds,
            workers=options.workers,
            seconds=options.seconds,
            warmup=options.warmup,
        )
        lines += summarise(table.name, measures)
        failures += failed
        raw[table.name] = {name: [asdict(m) for m in ms] for name, ms in measures.items()}
    text = markdown(lines, failures, facts)
    print(text)
    if options.out is not None:
        options.out.write_text(json.dumps({"facts": facts, "measures": raw}, indent=1) + "\n", encoding="utf-8")
    if options.write:
        write_between_markers(PAGE, text, BEGIN, END)
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
