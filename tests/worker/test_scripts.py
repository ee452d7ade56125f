"""What a script defines reaches the workers, whoever started the script: a person, or multiprocessing."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import contextlib
import multiprocessing
import sys
from dataclasses import dataclass

import gymnasium as gym
import numpy as np

import treadle
from treadle.tasks.gym import GymTaskSampler


@dataclass
class Word:
    number: int


class Mine(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)
    spec = None
    word = Word(0)

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {"word": Word(seed or 0)}

    def step(self, action):
        return np.full(2, action, np.float32), 1.0, True, False, {"word": Word(int(action))}

    def swap(self, word):
        self.word, word = word, self.word
        return word


def make():
    return Mine()


def policy(observations):
    return [1] * len(observations)


class Agent:
    number = 1

    def reset(self, do_resets=None):
        pass

    def get_action(self, observation):
        return self.number, {}

    def get_param_values(self):
        return {"is": Word(self.number)}

    def set_param_values(self, word):
        assert type(word["is"]) is Word
        self.number = word["is"].number


def vector(envs):
    with contextlib.closing(envs):
        _, infos = envs.reset(seed=5)
        assert [word.number for word in infos["word"]] == [5, 6]
        assert type(infos["word"][0]) is Word
        assert envs.call("swap", Word(7)) == (Word(0), Word(0))
        assert envs.call("swap", Word(8)) == (Word(7), Word(7))


def vector_env():
    vector(treadle.VectorEnv([make] * 2, workers=2))


def async_vector_env():
    vector(treadle.AsyncVectorEnv([make] * 2))


def make_vec():
    gym.register("Mine-v0", Mine)
    vector(treadle.make_vec("Mine-v0", 2))


def tasks():
    with treadle.VectorSampledTasks(GymTaskSampler, [{"env": make, "seed": 1}] * 2, should_log=False) as vec:
        assert vec.step([1, 1])[1].done


def sampler():
    with treadle.MultiprocessingSampler(Agent(), Mine(), max_episode_length=3, n_workers=2, seed=1) as workers:
        batch = workers.obtain_samples(0, 4, agent_update={"is": Word(0)})
        assert set(batch.actions.tolist()) == {0}


def collect():
    found = list(treadle.collect(make, policy, episodes=3, workers=2))
    assert [episode.actions.tolist() for episode in found] == [[1]] * 3


class Walk(treadle.GymPlanEnv):
    pass


def plan():
    with treadle.ParallelEnv(Walk, make, n_workers=2) as env:
        state, *_ = env.reset()
        assert env.step_batch([1, 1], states=[state] * 2) is not None


def run(face):
    globals()[face]()
    print(__name__, face)


if __name__ == "__main__":
    face, method = sys.argv[1:]
    if method == "a person":
        run(face)
    else:
        child = multiprocessing.get_context(method).Process(target=run, args=(face,))
        child.start()
        child.join()
        sys.exit(child.exitcode)
"""
FACES = ("vector_env", "async_vector_env", "make_vec", "tasks", "sampler", "collect", "plan")


@pytest.mark.parametrize(
    ("face", "method"),
    [*((face, "spawn") for face in FACES), ("vector_env", "forkserver"), ("vector_env", "a person")],
)
def test_a_script_and_whoever_started_it(face: str, method: str, tmp_path: Path) -> None:
    """Functions, classes and instances that a script defines itself go there and back, on every face."""
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    done = subprocess.run([sys.executable, str(path), face, method], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ("__main__" if method == "a person" else "__mp_main__") + f" {face}\n"
