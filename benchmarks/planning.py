"""`python -m benchmarks.planning`: batches from given states, Treadle's `ParallelEnv` against plangym's.

Every contestant steps batches of 64 items from 64 states, and is asked for the states that they lead to; the next batch
begins in those, so that no state is met twice. An item is one call of `step`, whatever it takes inside. plangym takes
part where it is installed. "Limit" is what nobody can be faster than with these environments: a loop in each of as many
processes, that puts back the simulator's own state (for CartPole four numbers, which is not all there is), steps, and
takes it, and tells nobody. "Limit, complete" does so with the states that Treadle takes, in which generators and
wrappers are too.

Then Treadle's `rollout_batch`: 64 sequences of T actions in one round trip, counted in steps of the environment.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import pickle
from collections.abc import Callable
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import gymnasium
import numpy as np

from benchmarks.measure import Measure, measure
from treadle.plan import GymPlanEnv, ParallelEnv
from treadle.states.keeper import Keeper

ITEMS = 64
ROWS = ("cartpole", "pong-ram", "pacman-rgb")
# plangym gives its frameskip to the emulator and repeats the action as often besides: four frames are two times two
ATARI = {"frameskip": 2, "repeat_action_probability": 0.0}


def treadle_env(row: str, workers: int) -> Any:
    """Treadle's environment for a row."""
    if row == "cartpole":
        return ParallelEnv(GymPlanEnv, "CartPole-v1", n_workers=workers)
    name, obs = ("ALE/Pong-v5", "ram") if row == "pong-ram" else ("ALE/MsPacman-v5", "rgb")
    return ParallelEnv(GymPlanEnv, name, n_workers=workers, frameskip=2, obs_type=obs, env_kwargs=ATARI)


def plangym_env(row: str, workers: int) -> Any:
    """plangym's environment for a row."""
    from plangym.control.classic_control import ClassicControl
    from plangym.vectorization.parallel import ParallelEnv as Theirs
    from plangym.videogames.atari import AtariEnv

    if row == "cartpole":
        return Theirs(env_class=ClassicControl, name="CartPole-v1", n_workers=workers)
    name, obs = ("ALE/Pong-v5", "ram") if row == "pong-ram" else ("ALE/MsPacman-v5", "rgb")
    return Theirs(env_class=AtariEnv, name=name, n_workers=workers, frameskip=2, obs_type=obs)


def batches(env: Any) -> Callable[[float], tuple[int, float]]:
    """A stretch of batches: (items, seconds)."""
    state, *_ = env.reset()
    rng = np.random.default_rng(0)
    n = int(env.action_space.n)
    first = [state] * ITEMS

    def stretch(seconds: float) -> tuple[int, float]:
        states, items = first, 0
        began = perf_counter()
        while (took := perf_counter() - began) < seconds:
            states, _, _, ends, cuts, _ = env.step_batch(rng.integers(n, size=ITEMS).tolist(), states)
            states = [a if end or cut else s for s, a, end, cut in zip(states, first, ends, cuts, strict=True)]
            items += ITEMS
        return items, took

    return stretch


def rollouts(env: Any, length: int) -> Callable[[float], tuple[int, float]]:
    """A stretch of rollouts: (steps of the environment, seconds)."""
    state, *_ = env.reset()
    rng = np.random.default_rng(0)
    n = int(env.action_space.n)

    def stretch(seconds: float) -> tuple[int, float]:
        steps, began = 0, perf_counter()
        while (took := perf_counter() - began) < seconds:
            found = env.rollout_batch([state], rng.integers(n, size=(ITEMS, length)), repeat=ITEMS)
            steps += int(found.lengths.sum())
        return steps, took

    return stretch


class Limit:
    """Processes that each step their own 64 items round and round, without a message in between."""

    def __init__(self, row: str, workers: int, complete: bool) -> None:
        context = multiprocessing.get_context("forkserver")
        self._ends, self._processes = [], []
        for _ in range(workers):
            ours, its = context.Pipe()
            process = context.Process(target=limit_loop, args=(row, its, complete), daemon=True)
            process.start()
            its.close()
            self._ends.append(ours)
            self._processes.append(process)
        for end in self._ends:
            end.recv()

    def stretch(self, seconds: float) -> tuple[int, float]:
        """(items, seconds)."""
        began = perf_counter()
        for end in self._ends:
            end.send(seconds)
        items = sum(end.recv() for end in self._ends)
        return items, perf_counter() - began

    def close(self) -> None:
        """End them."""
        for end in self._ends:
            end.close()
        for process in self._processes:
            process.join()


def limit_loop(row: str, line: Any, complete: bool) -> None:
    """What a process of `Limit` does: told for how long, it says how many items it has done."""
    env, times = limit_env(row)
    inner = env.unwrapped
    env.reset(seed=0)
    if complete:
        keeper = Keeper(env)
        take: Any = keeper.take
        put: Any = keeper.put
    elif row == "cartpole":
        take = lambda: inner.state.tolist()  # noqa: E731 - next to its counterpart
        put = lambda state: setattr(inner, "state", state)  # noqa: E731
    else:
        take, put = inner.ale.cloneState, inner.ale.restoreState
    first = take()
    states, at = [first] * ITEMS, 0
    actions = np.random.default_rng(0).integers(env.action_space.n, size=9973).tolist()
    line.send("ready")
    while True:
        try:
            seconds = line.recv()
        except EOFError:
            return
        items, began = 0, perf_counter()
        while perf_counter() - began < seconds:
            for index, state in enumerate(states):
                put(state)
                action = actions[at := (at + 1) % len(actions)]
                for _ in range(times):
                    _, _, end, cut, _ = env.step(action)
                    if end or cut:
                        break
                states[index] = first if end or cut else take()
            items += ITEMS
        line.send(items)


def limit_env(row: str) -> tuple[Any, int]:
    """The environment alone, and how often an item steps it."""
    if row == "cartpole":
        return gymnasium.make("CartPole-v1"), 1
    import ale_py

    gymnasium.register_envs(ale_py)
    name, obs = ("ALE/Pong-v5", "ram") if row == "pong-ram" else ("ALE/MsPacman-v5", "rgb")
    return gymnasium.make(name, obs_type=obs, **ATARI), 2


def workers_of(env: Any) -> list[int]:
    """Process ids that do not descend from this process."""
    exchange = getattr(env, "_workers", None)
    return [] if exchange is None else [m.pid for m in exchange.pool.workers if m.pid]


def bytes_moved(env: Any, stretch: Callable[[float], tuple[int, float]]) -> float:
    """Bytes pickled between caller and workers, or laid in buffers, an item, both ways (in a stretch of its own)."""
    total = 0
    if isinstance(env, Limit):
        return 0.0
    if hasattr(env, "_workers"):
        from treadle.plan import batch
        from treadle.plan.items import LaidRows, LaidStates
        from treadle.wire import channel

        plain_encode, plain_decode = channel.encode, channel.decode

        def encode(message: Any, *lent: Any) -> Any:
            nonlocal total
            body, fds = plain_encode(message, *lent)
            total += len(body) + sum(os.fstat(fd).st_size for fd in fds)
            return body, fds

        def decode(body: bytes, fds: list[int], *lent: Any) -> Any:
            nonlocal total
            total += len(body) + sum(os.fstat(fd).st_size for fd in fds)
            return plain_decode(body, fds, *lent)

        plain_lay, plain_take_out = batch.lay, batch._take_out

        def lay(memory: Any, at: int, states: Any) -> Any:
            nonlocal total
            total += sum(map(len, states.data))
            return plain_lay(memory, at, states)

        def take_out(buffer: Any, done: Any) -> None:
            nonlocal total
            laid = done.states, done.observations
            plain_take_out(buffer, done)
            total += sum(laid[0].sizes) if isinstance(laid[0], LaidStates) else 0
            total += done.observations.nbytes if isinstance(laid[1], LaidRows) else 0

        channel.encode, channel.decode = encode, decode
        batch.lay, batch._take_out = lay, take_out
        try:
            items, _ = stretch(0.2)
        finally:
            channel.encode, channel.decode = plain_encode, plain_decode
            batch.lay, batch._take_out = plain_lay, plain_take_out
        return total / items

    class Counting:
        def __init__(self, conn: Any) -> None:
            self._conn = conn

        def send(self, message: Any) -> None:
            nonlocal total
            total += len(pickle.dumps(message))
            self._conn.send(message)

        def recv(self) -> Any:
            nonlocal total
            message = self._conn.recv()
            total += len(pickle.dumps(message))
            return message

        def __getattr__(self, name: str) -> Any:
            return getattr(self._conn, name)

    for process in env._batch_env._envs:
        process._conn = Counting(process._conn)
    items, _ = stretch(0.2)
    for process in env._batch_env._envs:
        process._conn = process._conn._conn
    return total / items


def contestants() -> dict[str, Callable[[str, int], tuple[Any, Callable[[float], tuple[int, float]]]]]:
    """Name -> (row, workers) -> (environment, stretch)."""

    def with_states(row: str, workers: int) -> Any:
        env = treadle_env(row, workers)
        return env, batches(env)

    def theirs(row: str, workers: int) -> Any:
        env = plangym_env(row, workers)
        return env, batches(env)

    def limit(row: str, workers: int, complete: bool = False) -> Any:
        env = Limit(row, workers, complete)
        return env, env.stretch

    complete = partial(limit, complete=True)
    found: dict[str, Any] = {
        "limit": limit,
        "limit, complete": complete,
        "Treadle, states": with_states,
    }
    try:
        import plangym  # noqa: F401
    except ImportError:
        return found
    return {"plangym": theirs, **found}


def turn(made: tuple[Any, Any], seconds: float, *, moved: bool) -> tuple[Measure, float]:
    """Warm up, measure, close. Returns the measure and, when asked, the bytes an item moves."""
    env, stretch = made
    try:
        stretch(min(0.5, seconds))
        counted = bytes_moved(env, stretch) if moved else 0.0
        return measure(lambda: stretch(seconds), workers_of(env)), counted
    finally:
        env.close()


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planning", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rows", default=",".join(ROWS))
    options = parser.parse_args()
    everybody = contestants()
    print(
        "| row | contestant | items/s | rate, of plangym's | us of CPU an item | rate per core, of plangym's "
        "| rate per core, of the limit's | bytes an item |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for row in options.rows.split(","):
        measures: dict[str, list[Measure]] = {name: [] for name in everybody}
        moved: dict[str, float] = {}
        for number in range(options.rounds):
            for name, make in everybody.items():
                found, counted = turn(make(row, options.workers), options.seconds, moved=number == 0)
                measures[name].append(found)
                moved[name] = counted or moved.get(name, 0.0)
        rate = {name: median(m.steps_per_s for m in each) for name, each in measures.items()}
        cpu = {name: median(m.cpu_us_per_step for m in each) for name, each in measures.items()}
        for name in everybody:
            times, core = "-", "-"
            if "plangym" in rate:
                times, core = f"{rate[name] / rate['plangym']:.2f}", f"{cpu['plangym'] / cpu[name]:.2f}"
            share = f"{cpu['limit'] / cpu[name]:.2f}"
            print(
                f"| {row} | {name} | {rate[name]:,.0f} | {times} | {cpu[name]:.1f} | {core} | {share} "
                f"| {moved[name]:,.0f} |"
            )
    print("\n| row | T | steps/s | us of CPU a step |\n|---|---|---|---|")
    for row in options.rows.split(","):
        for length in (1, 10, 100):
            found_all = []
            for _ in range(options.rounds):
                env = treadle_env(row, options.workers)
                found_all.append(turn((env, rollouts(env, length)), options.seconds, moved=False)[0])
            steps, cost = (median(getattr(m, a) for m in found_all) for a in ("steps_per_s", "cpu_us_per_step"))
            print(f"| {row} | {length} | {steps:,.0f} | {cost:.1f} |")


if __name__ == "__main__":
    main()
