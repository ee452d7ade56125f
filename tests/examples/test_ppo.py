"""The PPO example: it learns, and on every vector it learns the same, to the byte; its arithmetic is right."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from functools import partial
from pathlib import Path
from types import ModuleType

import example_kit
import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv

from conftest import require
from treadle import VectorEnv

pytestmark = pytest.mark.heavy

torch = require("torch")

VECTORS = {
    "gymnasium": ["--vector", "gymnasium"],
    "treadle": ["--vector", "treadle"],
    "treadle, legacy infos": ["--vector", "treadle", "--infos", "legacy"],
}
SHORT = ["--seeds", "4", "5", "--total-steps", "10000"]


@pytest.fixture(scope="module")
def ppo() -> ModuleType:
    return example_kit.load("ppo_cartpole")


run_script = partial(example_kit.run_script, "ppo_cartpole", timeout=400)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_three_seeds_solve_cartpole_and_are_drawn(tmp_path: Path) -> None:
    picture = tmp_path / "curve.svg"
    runs = run_script("--vector", "treadle", "--seeds", "1", "2", "3", "--plot", str(picture), save=tmp_path / "runs")
    assert [run["seed"] for run in runs] == [1, 2, 3]
    for run in runs:
        assert np.mean(run["returns"][:20]) < 100  # it was not solved to begin with
        # at some time: how a run goes on from there differs from processor to processor, by the last bits of floats
        assert np.convolve(run["returns"], np.ones(20) / 20, "valid").max() >= 475
    root = ET.parse(picture).getroot()
    curves = root.findall("{http://www.w3.org/2000/svg}polyline")
    assert [len(curve.get("points", "").split()) for curve in curves] == [len(run["returns"]) for run in runs]
    assert picture.stat().st_size < 200_000


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_same_seed_gives_the_same_curve_on_every_vector(tmp_path: Path) -> None:
    # Long enough for many updates, so that one bit of difference in one observation would grow into other returns.
    curves = {
        name: [(run["returns"], run["at_step"]) for run in run_script(*flags, *SHORT, save=tmp_path / "runs")]
        for name, flags in VECTORS.items()
    }
    expected = curves.pop("gymnasium")
    assert len(expected[0][0]) > 100
    assert expected[0] != expected[1]  # the seed matters
    assert curves == dict.fromkeys(curves, expected)


@pytest.mark.parametrize("infos", ["gymnasium", "legacy"])
def test_an_ended_episode_shows_where_it_ended(ppo: ModuleType, infos: str) -> None:
    args = ppo.parse_args(["--vector", "treadle", "--infos", infos, "--num-envs", "3"])
    envs: VectorEnv = ppo.make_vector(args)
    fallen, returns, lengths = 0, [], []
    begun = np.zeros(3, int)
    try:
        envs.reset(seed=1)
        for _ in range(150):
            obs, _, terminated, truncated, step_infos = envs.step(np.ones(3, int))
            begun += 1
            reached = ppo.true_next_obs(obs, step_infos)
            out_of_bounds = (abs(reached[:, 0]) > 2.4) | (abs(reached[:, 2]) > 12 * np.pi / 180)
            assert (out_of_bounds == terminated).all()
            assert not truncated.any()
            assert (abs(obs[terminated]) <= 0.05).all()  # the batch itself shows the next episode
            returns += ppo.finished_returns(step_infos)
            lengths += begun[terminated].tolist()
            begun[terminated] = 0
            fallen += int(terminated.sum())
    finally:
        envs.close()
    assert fallen > 20
    assert returns == lengths  # CartPole pays 1 a step


def test_the_value_of_a_truncated_state_counts_and_that_of_a_terminated_one_does_not(ppo: ModuleType) -> None:
    generator = torch.Generator().manual_seed(0)
    rewards, values, next_values = torch.rand((3, 12, 4), generator=generator)
    ends = torch.randint(0, 4, (12, 4), generator=generator)  # 0: terminated, 1: truncated, else it goes on
    terminated, ended = ends == 0, ends <= 1
    assert {0, 1, 2} <= set(ends[:-1].flatten().tolist())
    gamma, lam = 0.9, 0.7
    found = ppo.advantages(rewards, values, next_values, terminated, ended, gamma, lam)
    for slot in range(4):
        for t in range(12):
            # The definition: the sum of discounted errors until the episode, or the rollout, is over.
            expected, weight = 0.0, 1.0
            for k in range(t, 12):
                follows = 0.0 if ends[k, slot] == 0 else gamma * next_values[k, slot].item()
                expected += weight * (rewards[k, slot].item() + follows - values[k, slot].item())
                weight *= gamma * lam
                if ends[k, slot] <= 1:
                    break
            assert found[t, slot].item() == pytest.approx(expected, abs=1e-5)


def test_an_episode_cut_by_the_clock_shows_where_it_was_cut(ppo: ModuleType) -> None:
    gym.register("ppo-test/ShortCartPole-v0", CartPoleEnv, max_episode_steps=8)
    try:
        args = ppo.parse_args(["--vector", "treadle", "--env", "ppo-test/ShortCartPole-v0", "--num-envs", "2"])
        envs: VectorEnv = ppo.make_vector(args)
        try:
            envs.reset(seed=0)
            for _ in range(7):
                _, _, terminated, truncated, infos = envs.step(np.array([0, 1]))
                assert not (terminated | truncated).any()
            obs, _, terminated, truncated, infos = envs.step(np.array([0, 1]))
        finally:
            envs.close()
        assert truncated.all()
        assert not terminated.any()
        reached = ppo.true_next_obs(obs, infos)
        assert (abs(reached[:, 1]) > 1).all()  # eight pushes to one side; `obs` starts anew
        assert (abs(obs) <= 0.05).all()
        assert ppo.finished_returns(infos) == [8.0, 8.0]
    finally:
        del gym.registry["ppo-test/ShortCartPole-v0"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--vector", "gymnasium", "--infos", "legacy"], "--infos legacy needs --vector treadle"),
        (["--minibatches", "7"], "--minibatches must divide"),
        (["--total-steps", "10"], "less than one rollout"),
    ],
)
def test_arguments_that_cannot_work_are_refused(
    ppo: ModuleType, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    with pytest.raises(SystemExit):
        ppo.parse_args(arguments)
    assert message in capsys.readouterr().err
