"""Networks are asked about eight environments at a time by themselves, for their best action."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import treadle
from conftest import require
from treadle.evaluation.evaluate import evaluate
from treadle.sample.inference import ROWS

SERIAL = treadle.WorkerOptions(backend="serial")


class Model:
    """Predicts as Stable-Baselines3 does: the best action, or one of another sign in every second step."""

    def __init__(self) -> None:
        self.asked: set[tuple[int, bool]] = set()

    def predict(self, observation: np.ndarray, deterministic: bool = False) -> tuple[np.ndarray, None]:
        self.asked.add((len(observation), deterministic))
        best = observation[:, 2] > 0
        return (best if deterministic else best ^ (observation[:, 0] > 0)).astype(np.int64), None


class Remembers(Model):
    """It has a state of its own, which a reset clears."""

    def reset(self) -> None:
        self.asked.clear()


class Recurrent:
    """Returns a state beside its actions, as recurrent models of sb3-contrib do."""

    def predict(
        self, observation: np.ndarray, state: Any = None, episode_start: Any = None, deterministic: bool = False
    ) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        return np.zeros(len(observation), np.int64), (observation,)


class KeepsItself(Recurrent):
    """Keeps its state by itself."""

    def reset(self) -> None:
        """Nothing of it is left."""


@pytest.mark.parametrize("inference", ["worker", "caller"])
def test_a_state_that_predict_returns_is_not_lost_silently(inference: Any) -> None:
    how: Any = {"worker_options": SERIAL, "inference": inference}
    with pytest.raises(treadle.CollectionFailed, match=r"Recurrent\.predict returns a state, .*initial_state"):
        evaluate("CartPole-v1", Recurrent(), 2, **how)
    if inference == "worker":
        assert len(evaluate("CartPole-v1", KeepsItself(), 2, workers=1, num_envs=1).scores) == 2


def test_a_model_is_asked_for_the_best_action_in_batches_of_eight() -> None:
    model = Model()
    found = evaluate("CartPole-v1", model, 20, worker_options=SERIAL)
    assert model.asked == {(ROWS, True)}
    assert found.inference == {}  # that of the caller
    assert evaluate("CartPole-v1", model, 20, worker_options=SERIAL, num_envs=9).inference["rows_per_batch"] > 1
    assert found.remarks == ()
    other = Model()
    assert evaluate("CartPole-v1", other, 20, workers=1, num_envs=3, inference="caller").scores == found.scores
    assert {deterministic for _, deterministic in other.asked} == {True}


def test_no_more_environments_are_built_than_there_are_episodes() -> None:
    built: list[gym.Env] = []

    def make() -> gym.Env:
        built.append(gym.make("CartPole-v1"))
        return built[-1]

    model = Model()
    few = evaluate(make, model, 3, worker_options=SERIAL)
    assert len(built) == 3
    assert model.asked == {(ROWS, True)}
    many = evaluate(make, model, 20, worker_options=SERIAL)
    assert len(built) == 3 + ROWS
    assert many.scores[:3] == few.scores


def test_actions_that_are_drawn_are_remarked_on() -> None:
    model = Model()
    found = evaluate("CartPole-v1", model, 5, worker_options=SERIAL, deterministic=False)
    assert model.asked == {(ROWS, False)}
    (remark,) = found.remarks
    assert "drawn" in remark.text
    assert evaluate("CartPole-v1", None, 5, worker_options=SERIAL, deterministic=False).remarks == ()


def test_what_keeps_a_state_is_asked_where_it_is() -> None:
    assert evaluate("CartPole-v1", Remembers(), 3, worker_options=SERIAL).inference == {}


def test_in_the_workers_and_in_a_replay_it_is_the_best_action_too(tmp_path: Path) -> None:
    found = evaluate("CartPole-v1", Model(), 3, worker_options=SERIAL, inference="worker", out=tmp_path / "out")
    assert found.scores == evaluate("CartPole-v1", Model(), 3, worker_options=SERIAL).scores
    again = treadle.replay(tmp_path / "out", 1, policy=Model())
    assert again.difference is None


def precise(observations: np.ndarray) -> np.ndarray:
    return observations[:, :1].astype(np.float64)


@pytest.mark.parametrize("inference", ["worker", "caller"])
def test_actions_that_the_run_casts_are_remarked_on(inference: str) -> None:
    for policy, said in ((precise, ["float64 to float32"]), (lambda seen: seen[:, :1], [])):
        found = evaluate("Pendulum-v1", policy, 3, workers=1, inference=inference, max_episode_steps=20)
        texts = [each.text.rpartition("from ")[2] for each in found.remarks if "cast" in each.text]
        assert texts == said


def test_collecting_draws() -> None:
    model = Model()
    list(treadle.collect("CartPole-v1", model, episodes=2, worker_options=SERIAL))
    assert {deterministic for _, deterministic in model.asked} == {False}


@pytest.mark.heavy
def test_a_saved_model_needs_no_option(tmp_path: Path) -> None:
    sb3: Any = require("stable_baselines3")
    path = tmp_path / "ppo.zip"
    model = sb3.PPO("MlpPolicy", "CartPole-v1", device="cpu", seed=0)
    model.save(path)
    assert zipfile.is_zipfile(path)
    one, two = (evaluate("CartPole-v1", given, 20, workers=n) for given, n in ((str(path), 1), (model, 2)))
    assert one.scores == two.scores
    torch: Any = require("torch")
    swings = sb3.PPO("MlpPolicy", "Pendulum-v1", device="cpu", seed=0)
    drawn = evaluate("Pendulum-v1", swings, 8, workers=1, deterministic=False, max_episode_steps=200).remarks
    assert any("are clipped" in each.text for each in drawn)
    policy = treadle.torch_policy(torch.nn.Linear(3, 1))
    assert evaluate("Pendulum-v1", policy, 9, workers=1).scores == evaluate("Pendulum-v1", policy, 9, workers=2).scores
