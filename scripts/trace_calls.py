"""Count the Python calls of Treadle's own functions, and the files they stand in, on three paths of the caller's side,
and on a worker's way to one collected episode.

What a reader has to walk through to understand one step, one batch of planning and one sampled episode; and, call by
call, what the interpreter has to. Else the workers' side is not counted. Each path is run 200 times after a warm-up and
the least counts: how often a wait looks depends on the machine.

usage: python scripts/trace_calls.py [--verbose]
"""

import argparse
import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import treadle

ROOT = str(Path(treadle.__file__).parent) + "/"
RUNS = 200
Counts = Counter[tuple[str, str]]  # (file, function) -> calls


def traced(run: Callable[[], Any]) -> Counts:
    """Calls while `run` runs in this thread, of functions under the package; the fewest of `RUNS` runs."""
    found = [_once(run) for _ in range(RUNS)]
    return min(found, key=lambda counts: counts.total())


def _once(run: Callable[[], Any]) -> Counts:
    counts: Counts = Counter()

    def note(frame: Any, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(ROOT):
            counts[code.co_filename[len(ROOT) :], code.co_qualname] += 1

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return counts


@contextlib.contextmanager
def stepping() -> Iterator[Callable[[], Any]]:
    """`VectorEnv.step` of 8 CartPoles in two workers; infos are empty."""
    envs = treadle.make_vec("CartPole-v1", 8, workers=2, inline=0)
    with contextlib.closing(envs):
        envs.reset(seed=0)
        actions = np.zeros(8, np.int64)
        yield lambda: envs.step(actions)


@contextlib.contextmanager
def planning() -> Iterator[Callable[[], Any]]:
    """`ParallelEnv.step_batch` of 8 CartPoles with their states, in two workers."""
    env = treadle.ParallelEnv(treadle.GymPlanEnv, "CartPole-v1", n_workers=2)
    with contextlib.closing(env):
        state, _, _ = env.reset()
        states, actions = [state] * 8, [0] * 8
        yield lambda: env.step_batch(actions, states=states)


class Still:
    """An agent that does one thing."""

    def reset(self, do_resets: Any = None) -> None:
        pass

    def get_action(self, observation: Any) -> tuple[int, dict[str, Any]]:
        return 0, {}


@contextlib.contextmanager
def sampling() -> Iterator[Callable[[], Any]]:
    """`obtain_samples` of one episode of CartPole, with two workers."""
    import gymnasium

    sampler = treadle.MultiprocessingSampler(
        Still(), gymnasium.make("CartPole-v1"), max_episode_length=500, n_workers=2, seed=0
    )
    with sampler:
        yield lambda: sampler.obtain_samples(0, 1, None)


class Control:
    """Nobody stops what is collected, and no death has to be placed."""

    def stopped(self) -> bool:
        return False

    def resets(self, episode: int | None = None) -> None:
        pass

    begins = ends = resets


@contextlib.contextmanager
def collecting() -> Iterator[Callable[[], Any]]:
    """One episode of CartPole, of 9 steps, as a worker makes it."""
    from treadle.play.recipe import RolloutOrder, RolloutRecipe
    from treadle.play.rounds import Globals, RolloutSlot
    from treadle.program.gym_env import EnvRecipe

    slot = RolloutSlot(RolloutRecipe(EnvRecipe("CartPole-v1"), Still), 0, Globals.LEAVE)
    yield lambda: list(slot.stream(RolloutOrder(0, (7,)), Control()))
    slot.close()


PATHS = {
    "VectorEnv.step": stepping,
    "ParallelEnv.step_batch": planning,
    "obtain_samples": sampling,
    "an episode": collecting,
}


def measured(path: str) -> Counts:
    """What one of `PATHS` calls, warm."""
    with PATHS[path]() as run:
        for _ in range(3):
            run()
        return traced(run)


def files(counts: Counts) -> list[str]:
    return sorted({file for file, _ in counts})


def main() -> None:
    parser = argparse.ArgumentParser(description="Treadle's own Python calls on four paths")
    parser.add_argument("--verbose", action="store_true", help="every function and how often it is called")
    options = parser.parse_args()
    for path in PATHS:
        counts = measured(path)
        print(f"{path}: {counts.total()} calls in {len(files(counts))} files")
        for (file, function), calls in sorted(counts.items()) if options.verbose else ():
            print(f"  {calls:4d}  {file}  {function}")


if __name__ == "__main__":
    main()
