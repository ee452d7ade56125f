"""Descriptors go when something is closed, not when its memory goes: that lives as long as anybody holds an array.

The tests collect no garbage, and hold what was closed and what came of it.
"""

import gc
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import treadle
from conftest import open_fds
from treadle.plan import GymPlanEnv, ParallelEnv

SHAPE = (200, 200)  # 40 kB: handed out without a copy


class Shades(gym.Env[Any, Any]):
    """Every observation of the t-th step is t everywhere. Episodes of 20 steps."""

    observation_space = gym.spaces.Box(0, 255, SHAPE, np.uint8)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(SHAPE, np.uint8), {}

    def step(self, action: int) -> Any:
        self.t += 1
        return np.full(SHAPE, self.t, np.uint8), 1.0, self.t == 20, False, {}


class Agent:
    """Large enough to go to the workers in a file of its own."""

    def __init__(self) -> None:
        self.weights = np.zeros(100_000)

    def get_action(self, observation: Any) -> Any:
        return 0, {}

    def reset(self, do_resets: Any = None) -> None:
        """It remembers nothing."""


def vector(**how: Any) -> Any:
    env = treadle.VectorEnv([Shades] * 4, **how)
    env.reset(seed=0)
    batches = [env.step(np.zeros(4, int))[0] for _ in range(3)]
    env.close()
    assert [np.unique(batch).tolist() for batch in batches] == [[1], [2], [3]]
    return env, batches


def sampler() -> Any:
    factory = treadle.WorkerFactory(seed=1, max_episode_length=5, n_workers=2)
    sampler = treadle.MultiprocessingSampler(Agent(), Shades(), worker_factory=factory)
    batch = sampler.obtain_samples(0, 30, Agent())
    sampler.shutdown_worker()
    assert set(np.unique(batch.observations)) == set(range(5))
    return sampler, batch


def collection() -> Any:
    episodes = list(treadle.collect(Shades, episodes=10, workers=2))
    assert all((episode.observations[:, 7, 7] == np.arange(21)).all() for episode in episodes)
    return episodes


def planning() -> Any:
    env = ParallelEnv(GymPlanEnv, "CartPole-v1", n_workers=2)
    state, *_ = env.reset()
    found = env.step_batch([0, 1, 0, 1], [state] * 4)
    env.close()
    return env, found


CASES: dict[str, Callable[[], Any]] = {
    "processes": lambda: vector(workers=2),
    "processes and the caller": lambda: vector(workers=2, inline=1),
    "threads": lambda: vector(worker_options=treadle.WorkerOptions(backend="thread")),
    "serial": lambda: vector(worker_options=treadle.WorkerOptions(backend="serial")),
    "sampler": sampler,
    "collect": collection,
    "planning": planning,
}


@pytest.fixture
def no_garbage_collection() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def kinds() -> Counter[str]:
    return Counter(target.partition(":")[0] for target in open_fds().values())


@pytest.mark.parametrize("case", CASES)
@pytest.mark.usefixtures("no_garbage_collection")
def test_close_closes_descriptors_and_leaves_arrays(case: str) -> None:
    held = [CASES[case]()]  # what is opened once and for all is open now
    before = kinds()
    held.append(CASES[case]())
    assert kinds() - before == Counter()


class OneIsLong(gym.Env[Any, Any]):
    """Episodes of two steps, of which `tally` gets one byte each; the first lasts until there are `enough`, and tells
    how many descriptors the caller ever had."""

    observation_space = gym.spaces.Box(0, 255, (150, 150, 3), np.uint8)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, caller: int, tally: str, first: int, enough: int) -> None:
        self.caller, self.tally, self.first, self.enough = caller, tally, first, enough

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        assert seed is not None
        self.long, self.shade, self.t, self.most = seed == self.first, seed % 251, 0, 0
        return np.full((150, 150, 3), self.shade, np.uint8), {}

    def step(self, action: int) -> Any:
        self.t += 1
        if self.long:
            time.sleep(0.005)
            self.most = max(self.most, len(os.listdir(f"/proc/{self.caller}/fd")))
            over = os.path.getsize(self.tally) >= self.enough
        elif over := self.t == 2:
            with open(self.tally, "ab") as file:
                file.write(b".")
        return np.full((150, 150, 3), self.shade, np.uint8), 0.0, over, False, {"most": self.most}


WAITING = """
    import os, resource, sys
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    import treadle
    from test_descriptors import OneIsLong
    from treadle.seeding import derive

    open(sys.argv[1], "wb").close()
    kwargs = dict(caller=os.getpid(), tally=sys.argv[1], first=derive(0, 0, 0), enough=300)
    episodes = treadle.collect(OneIsLong, episodes=400, workers=3, env_kwargs=kwargs)
    held = list(episodes)
    wrong = sum(int(episode.observations[-1, 0, 0, 0]) != episode.seed % 251 for episode in held)
    print(held[0].infos[-1]["most"], wrong)
"""


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="descriptors are counted in /proc")
def test_descriptors_do_not_grow_with_the_episodes_that_wait_for_a_long_one(tmp_path: Path) -> None:
    command = [sys.executable, "-c", dedent(WAITING), str(tmp_path / "tally")]
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    most, wrong = map(int, done.stdout.split())
    assert 0 < most <= 64 + 4 * 3
    assert wrong == 0
