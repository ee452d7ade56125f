"""MuJoCo renders in workers that have an environment of their own, and the frames are those of one alone."""

from __future__ import annotations

import contextlib
import ctypes.util
import json
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import treadle
from conftest import require

try:  # a wheel that brings the library along, and what it needs; loaded from there, as no linker looks into wheels
    BUNDLED = sorted(Path(str(distribution("lavavu-osmesa").locate_file("lavavu_osmesa.libs"))).glob("*.so*"))
except PackageNotFoundError:
    BUNDLED = []
GL = "osmesa" if BUNDLED or ctypes.util.find_library("OSMesa") else "egl"
OWN = {"CUDA_VISIBLE_DEVICES": "", "MUJOCO_GL": GL}
SEED, EPISODES, STEPS = 3, 4, 5


def load_bundled() -> None:
    """What PyOpenGL asks for is what is in the wheel. Libraries that want others are tried again after those."""
    left = list(BUNDLED)
    while left:
        for path in left:
            with contextlib.suppress(OSError):
                ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
                left.remove(path)
                break
        else:
            raise OSError(f"cannot be loaded: {left}")
    (own,), plain = [str(path) for path in BUNDLED if "OSMesa" in path.name], ctypes.cdll._dlltype
    ctypes.cdll._dlltype = lambda name, *args: plain(own if name == "libOSMesa.so" else name, *args)


def rendered() -> Any:
    """Hopper, which shows what it renders."""
    if BUNDLED:
        load_bundled()
    import gymnasium as gym

    env = gym.make("Hopper-v5", render_mode="rgb_array", width=64, height=48)
    return gym.wrappers.AddRenderObservation(env, render_only=True)


def policy(observations: np.ndarray) -> np.ndarray:
    return np.repeat(observations.mean(axis=(1, 2, 3), dtype=np.float64)[:, None] / 255, 3, axis=1).astype(np.float32)


ALONE = """
import json, hashlib
from test_off_screen import EPISODES, SEED, STEPS, policy, rendered
from treadle import seeding
told = []
for index in range(EPISODES):
    env = rendered()
    observation, _ = env.reset(seed=seeding.episode_env_seed(SEED, index))
    frames = [observation]
    for _ in range(STEPS):
        observation, _, over, _, _ = env.step(policy(observation[None])[0])
        frames.append(observation)
        if over:
            break
    env.close()
    told.append([len(frames), hashlib.sha256(b"".join(frame.tobytes() for frame in frames)).hexdigest()])
print(json.dumps(told))
"""


@pytest.mark.heavy
@pytest.mark.parametrize("inference", ["worker", "caller"])
def test_frames_of_workers_are_those_of_one_environment_alone(inference: str) -> None:
    import hashlib

    require("mujoco")
    path = os.pathsep.join([os.path.dirname(__file__), os.path.dirname(os.path.dirname(__file__)), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", ALONE],
        env={**os.environ, **OWN, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    played = treadle.collect(
        rendered, policy, episodes=EPISODES, seed=SEED, max_episode_steps=STEPS, inference=inference, workers=2,
        num_envs=2, worker_options=treadle.WorkerOptions(worker_environ=OWN),
    )  # fmt: skip
    found = [
        [len(each.observations), hashlib.sha256(b"".join(frame.tobytes() for frame in each.observations)).hexdigest()]
        for each in played
    ]
    assert found == json.loads(done.stdout)
    assert len({digest for _, digest in found}) == EPISODES, "all of it is one picture"
