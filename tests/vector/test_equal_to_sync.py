"""Same seed, same bytes: step for step what Gymnasium's SyncVectorEnv returns, infos included."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from small_envs import Counter, assert_same, copied, of

from treadle.vector.gymnasium import VectorEnv
from treadle.worker.options import WorkerOptions

N = 5
FEWER = {"pong": 3, "atari": 3}  # slots: to build one, with a seed, takes longer than all of its steps


def atari() -> gym.Env:
    """Pong as agents see it: preprocessed, four frames at once."""
    env = gym.make("ALE/Pong-v5", frameskip=1, max_episode_steps=40)
    return gym.wrappers.FrameStackObservation(gym.wrappers.AtariPreprocessing(env), 4)


class Images(gym.Env[np.ndarray, int]):
    """Pictures that take no time, with an info about each."""

    observation_space = gym.spaces.Box(0, 255, (84, 84, 4), np.uint8)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return np.zeros((84, 84, 4), np.uint8), {}

    def step(self, action: int) -> Any:
        self.t += 1
        mean = self.np_random.random(dtype=np.float32)
        return np.full((84, 84, 4), self.t, np.uint8), 0.0, self.t == 7, False, {"mean": mean, "t": self.t}


ENVS: dict[str, tuple[Any, dict[str, Any], int]] = {  # what to build, with what, for how many steps
    "atari": (atari, {}, 25),
    "images": (Images, {}, 20),
    "cheetah": ("HalfCheetah-v5", {"max_episode_steps": 13}, 60),
    "humanoid": ("Humanoid-v5", {"max_episode_steps": 9}, 40),
    "cartpole": ("CartPole-v1", {}, 60),
    "pong": ("ALE/Pong-v5", {"max_episode_steps": 9}, 30),
    "minigrid": ("MiniGrid-DoorKey-5x5-v0", {"max_steps": 11}, 40),
    "hopper": ("Hopper-v5", {}, 60),
}
SETUPS: list[dict[str, Any]] = [
    {"workers": 1, "inline": 0},
    {"workers": 2, "inline": 0},
    {"workers": 5, "inline": 0},
    {"workers": 1, "inline": 2},
    {"workers": 1, "inline": 5},
    {"worker_options": WorkerOptions(backend="thread"), "workers": 2, "inline": 0},
    {"worker_options": WorkerOptions(backend="serial")},
]


def show(setup: dict[str, Any]) -> str:
    return "-".join(f"{key}={value}" for key, value in setup.items())


def makers(name: str) -> list[Callable[[], gym.Env]]:
    env, kwargs, _ = ENVS[name]
    make = partial(gym.make, env, **kwargs) if isinstance(env, str) else env
    return [make] * FEWER.get(name, N)


def play(vector: gym.vector.VectorEnv, actions: list[Any]) -> list[Any]:
    """Everything that a vector returns; in DISABLED mode ended slots are reset with a mask."""
    results: list[Any] = [vector.reset(seed=7)]
    for batch in actions:
        results.append(copied(vector.step(batch)))
        over = results[-1][2] | results[-1][3]
        if vector.metadata["autoreset_mode"] is AutoresetMode.DISABLED and over.any():
            results.append(copied(vector.reset(options={"reset_mask": over})))
    return results


@cache
def reference(name: str, mode: AutoresetMode) -> tuple[list[Any], list[Any]]:
    vector = SyncVectorEnv(makers(name), autoreset_mode=mode)
    vector.action_space.seed(99)
    actions = [vector.action_space.sample() for _ in range(ENVS[name][2])]
    results = play(vector, actions)
    vector.close()
    return actions, results


def check(name: str, mode: AutoresetMode, setup: dict[str, Any]) -> None:
    actions, expected = reference(name, mode)
    vector = VectorEnv(makers(name), autoreset_mode=mode, **setup)
    try:
        found = play(vector, actions)
    finally:
        vector.close()
    assert len(found) == len(expected)
    for t, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        assert_same(ours, theirs, f"result {t}: ")


@pytest.mark.parametrize("setup", SETUPS, ids=show)
@pytest.mark.parametrize("mode", AutoresetMode, ids=lambda mode: mode.value)
def test_cartpole(mode: AutoresetMode, setup: dict[str, Any]) -> None:
    check("cartpole", mode, setup)


@pytest.mark.parametrize("setup", [SETUPS[1], SETUPS[3]], ids=show)
@pytest.mark.parametrize("mode", AutoresetMode, ids=lambda mode: mode.value)
@pytest.mark.parametrize(
    ("name", "package"),
    [("pong", "ale_py"), ("atari", "ale_py"), ("minigrid", "minigrid"), ("images", "numpy")]
    + [(name, "mujoco") for name in ("hopper", "cheetah", "humanoid")],
)
def test_real_environments(name: str, package: str, mode: AutoresetMode, setup: dict[str, Any], require: Any) -> None:
    gym.register_envs(require(package))
    check(name, mode, setup)


@pytest.mark.parametrize("mode", AutoresetMode, ids=lambda mode: mode.value)
def test_spaces_and_metadata(mode: AutoresetMode) -> None:
    theirs = SyncVectorEnv(makers("cartpole"), autoreset_mode=mode)
    ours = VectorEnv(makers("cartpole"), autoreset_mode=mode.value, worker_options=WorkerOptions(backend="serial"))
    for name in ("observation_space", "action_space", "single_observation_space", "single_action_space"):
        assert getattr(ours, name) == getattr(theirs, name)
    assert ours.metadata == theirs.metadata
    assert ours.autoreset_mode is mode
    assert (ours.num_envs, ours.render_mode, ours.closed) == (N, None, False)
    assert "autoreset_mode" not in gym.spec("CartPole-v1").make().metadata
    ours.close()
    theirs.close()


def test_the_runs_do_contain_ends() -> None:
    """Otherwise the comparisons above would compare little."""
    _, results = reference("cartpole", AutoresetMode.SAME_STEP)
    assert any("final_obs" in infos for *_, infos in results)
    assert sum(int((r[2] | r[3]).sum()) for r in results[1:]) >= N


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP], ids=lambda mode: mode.value)
def test_lengths_that_differ(mode: AutoresetMode) -> None:
    """Slots end at different steps, so infos have holes: masks, zeros and nested columns are Gymnasium's."""
    envs = [of(Counter, length) for length in (2, 3, 5, 2)]
    actions = [np.array([t % 5, 1, 2, 3]) for t in range(12)]
    theirs, ours = SyncVectorEnv(envs, autoreset_mode=mode), VectorEnv(envs, autoreset_mode=mode, workers=2, inline=1)
    try:
        assert_same(play(ours, actions), play(theirs, actions))
    finally:
        ours.close()
