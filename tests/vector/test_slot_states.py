"""States of slots: the same hundred steps follow in a new process, byte for byte."""

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import RecordEpisodeStatistics

from conftest import require
from treadle.errors import StateError, UsageError
from treadle.plan.checking import difference
from treadle.vector.gymnasium import VectorEnv
from treadle.worker.options import WorkerOptions

HERE = Path(__file__).parent


def statistics() -> gym.Env:
    return gym.wrappers.TransformReward(RecordEpisodeStatistics(gym.make("CartPole-v1", max_episode_steps=23)), float)


def pong() -> gym.Env:
    import ale_py

    gym.register_envs(ale_py)
    return gym.make("ALE/Pong-v5", obs_type="ram")


def vector(name: str, mode: str, backend: str = "serial", n: int = 3, **more: Any) -> VectorEnv:
    made: Any = {"cartpole": statistics, "pong": pong}[name]
    workers = {} if backend == "serial" else {"workers": 2, "inline": 1}
    return VectorEnv([made] * n, autoreset_mode=mode, worker_options=WorkerOptions(backend=backend), **workers, **more)


def steps(env: VectorEnv, count: int) -> list[Any]:
    """What `count` steps of sampled actions return; slots that hold are reset."""
    rows = []
    for _ in range(count):
        row = env.step(env.action_space.sample())
        rows.append(pickle.loads(pickle.dumps([*row, env.valid])))
        ended = row[2] | row[3]
        if env.autoreset_mode.value == "Disabled" and ended.any():
            rows.append(env.reset(options={"reset_mask": ended}))
    for row in rows:  # times differ
        infos = row[4] if len(row) == 6 else {}
        for each in (infos, infos.get("final_info", {})):
            each.get("episode", {}).pop("t", None)
    return rows


CASES = [
    ("cartpole", "NextStep", "process"),
    ("cartpole", "SameStep", "serial"),
    ("cartpole", "Disabled", "serial"),
    ("pong", "NextStep", "serial"),
]

if __name__ == "__main__":  # the new process
    name, mode, backend, path, out = sys.argv[1:]
    env = vector(name, mode, backend)
    env.set_states(pickle.loads(Path(path).read_bytes()))
    env.action_space.seed(5)
    Path(out).write_bytes(pickle.dumps(steps(env, 100)))
    env.close()


@pytest.mark.parametrize(("name", "mode", "backend"), CASES)
def test_a_hundred_steps_follow_in_a_new_process(name: str, mode: str, backend: str, tmp_path: Path) -> None:
    if name == "pong":
        require("ale_py")
    env = vector(name, mode, backend)
    try:
        env.action_space.seed(4)
        env.reset(seed=11)
        steps(env, 31)
        (tmp_path / "states").write_bytes(pickle.dumps(env.get_states()))
        env.action_space.seed(5)
        expected = steps(env, 100)
    finally:
        env.close()
    arguments = [sys.executable, __file__, name, mode, backend, str(tmp_path / "states"), str(tmp_path / "out")]
    import os

    import conftest

    paths = os.pathsep.join([str(HERE), str(Path(conftest.__file__).parent), *sys.path])
    subprocess.run(arguments, check=True, timeout=90, env={**os.environ, "PYTHONPATH": paths})
    found = pickle.loads((tmp_path / "out").read_bytes())
    where = difference(expected, found, "")
    assert where is None, where


def test_states_of_slots_are_interchangeable() -> None:
    env = vector("cartpole", "NextStep")
    try:
        env.reset(seed=0)
        steps(env, 9)
        states = env.get_states()
        env.set_states([states[0]] * 3)
        rows = env.step(np.array([1, 1, 1]))[0]
        assert (rows == rows[0]).all()
        env.set_states([states[2]], slots=[1])
        again = env.step(np.array([0, 0, 0]))[0]
        assert not (again[1] == again[0]).all()
        with pytest.raises(UsageError, match="2 states for 3 slots"):
            env.set_states(states[:2])
        with pytest.raises(StateError, match="slot 1: give what"):
            env.set_states([states[0], 3, states[2]])  # type: ignore[list-item]
        stranger = VectorEnv(["Pendulum-v1"], worker_options=WorkerOptions(backend="serial"))
        with pytest.raises(StateError, match="Pendulum"):
            stranger.set_states(states[:1])
        stranger.close()
        env.set_states(states)
        env.step(np.array([0, 0, 0]))
    finally:
        env.close()


def test_ended_episodes_are_refused_where_there_are_none_between_two_steps() -> None:
    before, after = vector("cartpole", "NextStep"), vector("cartpole", "SameStep")
    try:
        before.reset(seed=0)
        after.reset(seed=1)
        while not any((states := before.get_states())[slot].over for slot in range(3)):
            before.step(np.array([1, 1, 1]))
        ended = [slot for slot, state in enumerate(states) if state.over]
        with pytest.raises(UsageError, match="have ended, and a vector in SAME_STEP"):
            after.set_states(states)
        assert not any(state.over for state in after.get_states())
        before.step(np.array([1, 1, 1]))
        after.set_states([before.get_states()[ended[0]]] * 3)
        rows = after.step(np.array([1, 1, 1]))[0]
        assert (rows == before.step(np.array([1, 1, 1]))[0][ended[0]]).all()
    finally:
        before.close()
        after.close()
