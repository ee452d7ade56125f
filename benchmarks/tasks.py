"""`python -m benchmarks.tasks`: task vectors, ours and AllenAct's, as shares of what plain loops over the tasks reach.

Rows: 8 and 64 tasks at a time, with a sensor that shows uint8[84, 84, 3] and with a small dict of two arrays and a
number. A task computes nothing, so what is left is moving observations, rewards and flags, and what moving on to the
next task costs (every 100 steps). Contestants take turns; each builds its samplers anew.

- *limit*: as many processes as cores, each stepping its share of the tasks in a plain loop and keeping every
  observation in an array of its own; nobody is told anything.
- *Treadle*: `VectorSampledTasks` with as many workers as cores.
- *AllenAct*: its `VectorSampledTasks` with as many processes; and, for 8 tasks, with one process a task, its default.
  It is given `fork`, because its modules need stand-ins here, which a clean process would not have.

`--costs 5,20,80` asks something else: from which cost of a step (microseconds that a task computes) workers pay,
against stepping the same tasks in the caller (`SingleProcessVectorSampledTasks`). With `--wait` tasks wait instead.
"""

from __future__ import annotations

import argparse
import datetime
import multiprocessing
import os
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from time import perf_counter, sleep
from typing import Any

import gymnasium as gym
import numpy as np

from benchmarks.measure import Measure, measure
from benchmarks.report import machine, markdown, progress, summarise
from treadle.tasks.core import RLStepResult, Sensor, Task, TaskSampler

LENGTH = 100  # steps of a task
ROWS = ("picture-8", "picture-64", "dict-8", "dict-64")


class Picture(Sensor[Any]):
    """One of four ready pictures."""

    def __init__(self) -> None:
        super().__init__("rgb", gym.spaces.Box(0, 255, (84, 84, 3), np.uint8))
        self._pictures = [np.full((84, 84, 3), shade, np.uint8) for shade in (0, 85, 170, 255)]

    def get_observation(self, env: Any, task: Any, *args: Any, **kwargs: Any) -> np.ndarray:
        return self._pictures[task.num_steps_taken() & 3]


class Place(Sensor[Any]):
    """float32[4], one of four ready ones."""

    def __init__(self) -> None:
        super().__init__("place", gym.spaces.Box(-9, 9, (4,), np.float32))
        self._places = [np.full(4, i, np.float32) for i in range(4)]

    def get_observation(self, env: Any, task: Any, *args: Any, **kwargs: Any) -> np.ndarray:
        return self._places[task.num_steps_taken() & 3]


class Goal(Place):
    """float32[4] of another name."""

    def __init__(self) -> None:
        super().__init__()
        self.uuid = "goal"


class Clock(Sensor[Any]):
    """How many steps were taken, a number."""

    def __init__(self) -> None:
        super().__init__("clock", gym.spaces.Discrete(LENGTH + 1))

    def get_observation(self, env: Any, task: Any, *args: Any, **kwargs: Any) -> int:
        return task.num_steps_taken()


class IdleTask(Task[Any]):
    """Shows its sensors and is over after its steps. Its environment is what a step costs: (seconds, waiting?)."""

    action_space = gym.spaces.Discrete(4)  # type: ignore[assignment]  # the same for all

    def _step(self, action: Any) -> RLStepResult:
        seconds, waits = self.env
        if waits:
            sleep(seconds)
        elif seconds:
            until = perf_counter() + seconds
            while perf_counter() < until:
                pass
        return RLStepResult(self.get_observations(), 1.0, False, {})

    def reached_terminal_state(self) -> bool:
        return False

    def close(self) -> None:
        """There is nothing to close."""


class IdleSampler(TaskSampler):
    """Tasks without end. kind: "picture" or "dict"; cost: see `IdleTask`."""

    length = float("inf")
    last_sampled_task = None
    all_observation_spaces_equal = True

    def __init__(self, kind: str, cost: tuple[float, bool] = (0.0, False), mp_ctx: Any = None) -> None:
        self._cost = cost
        self._sensors = [Picture()] if kind == "picture" else [Place(), Goal(), Clock()]

    def next_task(self, force_advance_scene: bool = False) -> Task[Any] | None:
        return IdleTask(self._cost, self._sensors, {}, LENGTH)

    def close(self) -> None:
        """There is nothing to close."""

    def reset(self) -> None:
        """There is nothing to reset."""

    def set_seed(self, seed: int) -> None:
        """Nothing is drawn."""


# --- contestants ------------------------------------------------------------------------------------------------------


def plain_loop(kind: str, tasks: int, requests: Connection) -> None:
    """A process of the limit: one run for each number of seconds that arrives, until None does."""
    samplers = [IdleSampler(kind) for _ in range(tasks)]
    running: list[Any] = [sampler.next_task() for sampler in samplers]
    spaces = running[0].observation_space.spaces
    kept = {key: np.zeros((tasks, *(space.shape or ())), space.dtype) for key, space in spaces.items()}
    rewards, dones = np.zeros(tasks), np.zeros(tasks, np.bool_)
    requests.send(None)
    while (seconds := requests.recv()) is not None:
        begin, passes = perf_counter(), 0
        while perf_counter() - begin < seconds:
            for i, task in enumerate(running):
                observation, reward, done, _ = task.step(1)
                if done:
                    task.metrics()
                    running[i] = task = samplers[i].next_task()
                    observation = task.get_observations()
                for key, value in observation.items():
                    kept[key][i] = value
                rewards[i], dones[i] = reward, done
            passes += 1
        requests.send((passes * tasks, perf_counter() - begin))


def limit(kind: str, tasks: int, workers: int) -> tuple[Callable[[float], tuple[int, float]], Callable[[], None], Any]:
    """(run for so many seconds, close, pids)."""
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for share in np.array_split(np.arange(tasks), min(workers, tasks)):
        ours, theirs = context.Pipe()
        process = context.Process(target=plain_loop, args=(kind, len(share), theirs), daemon=True)
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    for pipe in pipes:
        pipe.recv()

    def run(seconds: float) -> tuple[int, float]:
        for pipe in pipes:
            pipe.send(seconds)
        found = [pipe.recv() for pipe in pipes]
        return sum(steps for steps, _ in found), max(wall for _, wall in found)

    def close() -> None:
        for pipe, process in zip(pipes, processes):
            pipe.send(None)
            process.join()
            pipe.close()

    return run, close, [process.pid for process in processes]


def stepping(vec: Any, tasks: int) -> Callable[[float], tuple[int, float]]:
    """Steps a vector of tasks for so many seconds; results are let go at once."""
    actions = [1] * tasks

    def run(seconds: float) -> tuple[int, float]:
        begin, passes = perf_counter(), 0
        while perf_counter() - begin < seconds:
            vec.step(actions)
            passes += 1
        return passes * tasks, perf_counter() - begin

    return run


def treadle(kind: str, tasks: int, workers: int) -> tuple[Any, Any, Any]:
    from treadle.tasks.vectors import VectorSampledTasks

    vec = VectorSampledTasks(IdleSampler, [{"kind": kind}] * tasks, max_processes=workers, should_log=False)
    return stepping(vec, tasks), vec.close, [m.pid for m in vec._pool.workers]


def allenact(kind: str, tasks: int, workers: int | None) -> tuple[Any, Any, Any]:
    """Raises ImportError where it is not installed."""
    from benchmarks.allenact import allenact_vectors

    vec = allenact_vectors().VectorSampledTasks(
        IdleSampler,
        [{"kind": kind} for _ in range(tasks)],
        multiprocessing_start_method="fork",
        max_processes=workers,
        should_log=False,
    )
    return stepping(vec, tasks), vec.close, ()


def contestants(tasks: int, workers: int) -> dict[str, Callable[[str], Any]]:
    """Name -> what sets one up for a kind of sensor."""
    found = {
        "limit": lambda kind: limit(kind, tasks, workers),
        "Treadle": lambda kind: treadle(kind, tasks, workers),
        "AllenAct": lambda kind: allenact(kind, tasks, workers),
    }
    if tasks <= 8:
        found["AllenAct, a process a task"] = lambda kind: allenact(kind, tasks, None)
    return found


def turn(setup: Callable[[str], Any], kind: str, seconds: float, warmup: float) -> Measure:
    """One contestant's turn: set up, warm up, measure, close."""
    run, close, pids = setup(kind)
    try:
        run(warmup)
        return measure(lambda: run(seconds), pids)
    finally:
        close()


def where_processes_pay(costs: Sequence[float], waits: bool, workers: int, rounds: int, seconds: float) -> str:
    """A table: steps of 8 and 64 small dicts a second, in the caller and with workers, for each cost of a step. The
    two take turns, and the best turn counts: other work on the machine only ever makes one slower."""
    from treadle.tasks.vectors import SingleProcessVectorSampledTasks, VectorSampledTasks

    lines = ["| a step | tasks | in the caller | workers | workers / caller |", "|---|---:|---:|---:|---:|"]
    for cost in costs:
        for tasks in (8, 64):
            args = [{"kind": "dict", "cost": (cost / 1e6, waits)}] * tasks
            best = [0.0, 0.0]
            with (
                SingleProcessVectorSampledTasks(IdleSampler, args, should_log=False) as alone,
                VectorSampledTasks(IdleSampler, args, max_processes=workers, should_log=False) as together,
            ):
                runs = [stepping(alone, tasks), stepping(together, tasks)]
                for _ in range(rounds):
                    for which, run in enumerate(runs):
                        steps, wall = run(seconds)
                        best[which] = max(best[which], steps / wall)
            what = f"{'waits' if waits else 'computes'} {cost:g} us"
            progress(f"{what}, {tasks} tasks: {best[0]:,.0f}, {best[1]:,.0f}")
            lines.append(f"| {what} | {tasks} | {best[0]:,.0f} | {best[1]:,.0f} | {best[1] / best[0]:.2f} |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line `argv` (None: the process's own); prints the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tasks", description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--rounds", type=int, default=5, help="turns of each contestant on each row (5)")
    parser.add_argument("--seconds", type=float, default=2.0, help="timed seconds of a turn (2)")
    parser.add_argument("--warmup", type=float, default=0.5, help="seconds stepped before the clock starts (0.5)")
    parser.add_argument("--only", default=",".join(ROWS), help="rows: picture-N or dict-N, with any N (%(default)s)")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="cores to use (all)")
    parser.add_argument("--costs", default="", help="where workers pay: microseconds that a step takes, A,B,...")
    parser.add_argument("--wait", action="store_true", help="with --costs: steps wait instead of computing")
    options = parser.parse_args(argv)
    facts: dict[str, Any] = machine() | {
        "date": datetime.date.today().isoformat(),
        "rounds": options.rounds,
        "seconds": options.seconds,
        "warmup": options.warmup,
        "workers": options.workers,
    }
    if options.costs:
        costs = [float(cost) for cost in options.costs.split(",")]
        print(where_processes_pay(costs, options.wait, options.workers, options.rounds, options.seconds))
        print(facts)
        return 0
    lines, notes = [], []
    for row in options.only.split(","):
        kind, _, number = row.rpartition("-")
        if kind not in ("picture", "dict") or not number.isdecimal() or int(number) < 1:
            parser.error(f"no row {row!r}: write picture-N or dict-N")
        running = contestants(int(number), options.workers)
        rounds: dict[str, list[Measure]] = {name: [] for name in running}
        for count in range(options.rounds):
            for name in list(running):
                try:
                    found = turn(running[name], kind, options.seconds, options.warmup)
                except ImportError as error:
                    notes.append(f"{name} not measured on {row}: {error}.")
                    del running[name], rounds[name]
                    continue
                rounds[name].append(found)
                progress(f"{row} {count + 1}/{options.rounds} {name}: {found.steps_per_s:,.0f} steps/s")
        lines += summarise(f"tasks {row}", rounds)
    print(markdown(lines, notes, facts))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
