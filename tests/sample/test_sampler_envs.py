"""What may be given for an environment: one that is there, or what makes one; and `GymEnv` for who asks it himself."""

from __future__ import annotations

import importlib
import pickle
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv
from sampler_kit import Coin, Fixed, OwnInterface, Walk

import treadle
from treadle import (
    DefaultWorker,
    EnvUpdate,
    EpisodeBatch,
    FragmentWorker,
    GymEnv,
    LocalSampler,
    MultiprocessingSampler,
    UsageError,
    VecWorker,
    rollout,
)
from treadle.samplers import EnvSpec, StepType

GUIDE = (Path(__file__).parents[2] / "docs" / "compat-garage.md").read_text(encoding="utf-8")
CARTPOLES = {
    "id": "CartPole-v1",
    "spec": gym.spec("CartPole-v1"),
    "class": CartPoleEnv,
    "name": "gymnasium.envs.classic_control:CartPoleEnv",
    "partial": partial(gym.make, "CartPole-v1"),
    "GymEnv": GymEnv("CartPole-v1"),
}


def sampler(kind: Any, env: Any, **more: Any) -> Any:
    return kind(Coin(2), env, **{"max_episode_length": 30, "n_workers": 2, "seed": 1, **more})


@pytest.mark.parametrize("env", CARTPOLES)
@pytest.mark.parametrize(
    ("kind", "worker_class"),
    [(LocalSampler, DefaultWorker), (LocalSampler, VecWorker), (MultiprocessingSampler, DefaultWorker)],
)
def test_what_makes_an_environment_is_as_good_as_one(kind: Any, env: str, worker_class: Any) -> None:
    with sampler(kind, gym.make("CartPole-v1"), worker_class=worker_class) as expected:
        wanted = expected.obtain_exact_episodes(2, None)
    with sampler(kind, CARTPOLES[env], worker_class=worker_class) as found:
        batch = found.obtain_exact_episodes(2, None)
        again = found.obtain_exact_episodes(1, None, env_update=CARTPOLES[env])
    assert batch.observations.tobytes() == wanted.observations.tobytes()
    assert again.observations.shape[1:] == (4,)


def test_an_environment_of_a_functions_own_interface() -> None:
    with sampler(LocalSampler, lambda: OwnInterface(Walk())) as local:
        assert len(local.obtain_exact_episodes(2, None).lengths) == 4


class Anything(DefaultWorker):
    """Knows agents and environments of its own."""

    def update_agent(self, agent_update: Any) -> None:
        super().update_agent(Coin(agent_update) if isinstance(agent_update, int) else agent_update)

    def update_env(self, env_update: Any) -> None:
        super().update_env(Walk() if env_update == 7 else env_update)


def test_workers_with_updates_of_their_own_are_given_what_they_know() -> None:
    with LocalSampler(3, 7, max_episode_length=9, n_workers=1, seed=1, worker_class=Anything) as local:
        assert len(local.obtain_samples(0, 20, 2)) >= 20


# -- names that are not here ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", ["treadle", "treadle.plan"])
@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("RayEnv", "ParallelEnv"),
        ("PlangymEnv", "GymPlanEnv"),
        ("AtariEnv", "GymPlanEnv"),
        ("log_performance", "compat-garage"),
    ],
)
def test_names_of_the_older_systems_say_what_is_there_instead(module: str, name: str, instead: str) -> None:
    with pytest.raises(ImportError, match=f"{module} has no {name}: .*{instead}"):
        exec(f"from {module} import {name}")
    found = importlib.import_module(module)
    assert not hasattr(found, name)
    with pytest.raises(AttributeError, match=f"{module} has no {name}: .*{instead}"):
        getattr(found, name)


def test_every_name_that_the_guide_says_is_not_here_says_what_is() -> None:
    table = GUIDE.partition("## A script")[2].partition("```")[0]
    names = [name for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)", row)]
    assert {"Trainer", "Environment", "set_seed", "normalize"} <= set(names)
    for name in names:
        with pytest.raises(ImportError, match=f"treadle has no {name}: "):
            exec(f"from treadle import {name}")
        assert not hasattr(treadle, name)


def test_other_names_are_just_not_there() -> None:
    assert not hasattr(treadle, "Nonsense")
    assert not hasattr(treadle.plan, "Nonsense")


# -- GymEnv -----------------------------------------------------------------------------------------------------------


def test_a_gym_env_has_garages_interface() -> None:
    env = GymEnv("CartPole-v1")
    assert isinstance(env.spec, EnvSpec)
    assert env.spec.max_episode_length == 500
    assert env.spec.observation_space == env.observation_space
    assert env.spec.action_space == env.action_space == gym.spaces.Discrete(2)
    assert env.render_modes == ["human", "rgb_array"]
    with pytest.raises(RuntimeError, match=r"reset\(\) must be called before step"):
        env.step(0)
    observation, info = env.reset()
    assert observation.shape == (4,)
    assert info == {}
    steps = [env.step(1)]
    while not steps[-1].last:
        steps.append(env.step(1))
    assert [step.step_type for step in steps[:2]] == [StepType.FIRST, StepType.MID]
    assert steps[-1].terminal
    assert type(steps[0].reward) is float
    assert steps[0].env_spec is env.spec
    with pytest.raises(RuntimeError, match="must be called before step"):
        env.step(1)
    assert env.gravity == 9.8
    env.close()


def test_a_limit_of_its_own_ends_an_episode_as_a_timeout() -> None:
    for worker_class in (DefaultWorker, VecWorker, FragmentWorker):
        env = GymEnv(gym.make("Pendulum-v1"), max_episode_length=7)
        agent = Fixed([np.zeros(1, np.float32)])
        arguments: dict[str, Any] = {"max_episode_length": 50, "n_workers": 1, "worker_class": worker_class}
        if worker_class is not DefaultWorker:
            arguments["worker_args"] = {"n_envs": 2}
        if worker_class is FragmentWorker:
            arguments["worker_args"] |= {"timesteps_per_call": 7}
        with LocalSampler(agent, env, **arguments) as local:
            batch = local.obtain_samples(0, 21, None)
        assert set(batch.lengths) == {7}
        assert all(part.step_types[-1] is StepType.TIMEOUT for part in batch.split())
        assert batch.env_spec.max_episode_length == 7
    assert GymEnv(gym.make("Pendulum-v1")).spec.max_episode_length == 200


def test_a_gym_env_may_be_any_environments_own() -> None:
    class Bare(Walk):
        """Has no registered limit."""

    env = GymEnv(Bare())
    assert env.spec.max_episode_length is None
    assert GymEnv(Bare).spec.observation_space == Walk.observation_space
    assert pickle.loads(pickle.dumps(GymEnv("CartPole-v1"))).spec.max_episode_length == 500
    path = rollout(GymEnv("CartPole-v1"), Coin(2), max_episode_length=4)
    assert len(path["rewards"]) <= 4


def test_updates_see_the_gym_env_that_was_given() -> None:
    seen = []

    class Look(EnvUpdate):
        def __call__(self, old_env: Any = None) -> Any:
            seen.append(type(old_env))
            return old_env

    for env in (GymEnv("CartPole-v1"), gym.make("CartPole-v1")):
        with LocalSampler(Coin(2), env, max_episode_length=9, n_workers=1) as local:
            local.obtain_samples(0, 5, None, env_update=Look())
    assert seen == [GymEnv, type(gym.make("CartPole-v1"))]


def test_a_gym_env_shows_what_it_was_made_to_show() -> None:
    env = GymEnv(gym.make("CartPole-v1", render_mode="rgb_array"))
    env.reset()
    picture = env.render("rgb_array")
    assert picture.shape == (400, 600, 3)
    with pytest.raises(UsageError, match="made with render_mode='rgb_array', not 'human'"):
        env.render("human")
    drawn = []
    env.env.render = lambda: drawn.append(1)  # type: ignore[method-assign]
    env.visualize()
    env.step(0)
    env.step(0)
    assert len(drawn) == 3


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ((7,), TypeError, "this is a int"),
        ((OwnInterface(Walk()),), TypeError, "this is a OwnInterface"),
        (("CartPole-v1", True), UsageError, "is_image is not supported"),
        (("CartPole-v1", False, 0), UsageError, "max_episode_length must be at least 1"),
        (("Nope-v1",), UsageError, "environment 'Nope-v1' is unknown"),
    ],
)
def test_what_is_no_gym_env(arguments: Any, kind: Any, message: str) -> None:
    with pytest.raises(kind, match=message):
        GymEnv(*arguments)


# -- the guide --------------------------------------------------------------------------------------------------------


def test_the_script_of_the_guide_runs(tmp_path: Path) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "compat-garage.md").read_text()
    (script,) = re.findall("```python\n(.*?)```", guide, re.DOTALL)
    (tmp_path / "script.py").write_text(script)
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"^\d AverageReturn \d+\.\d+$", done.stdout, re.MULTILINE)) == 5


def test_what_the_guide_gives_for_what_is_not_here() -> None:
    env, policy = GymEnv("CartPole-v1", max_episode_length=20), Coin(2)
    episodes = [rollout(env, policy, deterministic=True) for _ in range(3)]
    batch = EpisodeBatch.from_list(env.spec, episodes)
    assert batch.padded_rewards.sum(1).tolist() == batch.lengths.tolist()
    assert batch.terminals.sum() / len(batch.lengths) == np.mean([path["dones"].any() for path in episodes])
    with sampler(LocalSampler, env) as local:
        assert len(local.evaluate(4, policy).returns) == 4
