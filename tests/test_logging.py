"""`log=`: numbers under Stable-Baselines3's names, for a file of CSV, TensorBoard and whatever else."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import treadle
from conftest import require

SERIAL = treadle.WorkerOptions(backend="serial")

ROLLOUT = {"rollout/ep_rew_mean", "rollout/ep_len_mean", "time/fps"}


class Short(gym.Env):
    """Episodes of 2 to 5 steps with a reward of 1 each; those of an even length succeed."""

    observation_space = gym.spaces.Box(0, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t, self.most = 0, int(self.np_random.integers(2, 6))
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        info = {"is_success": self.most % 2 == 0} if self.t == self.most else {}
        return np.zeros(1, np.float32), 1.0, self.t == self.most, False, info


class Told:
    def __init__(self) -> None:
        self.calls: list[tuple[dict[str, float], int]] = []

    def __call__(self, values: dict[str, float], steps: int) -> None:
        self.calls.append((dict(values), steps))


def test_an_evaluation_is_told_once() -> None:
    told = Told()
    found = treadle.evaluate(Short, None, 20, worker_options=SERIAL, log=told)
    steps = sum(score.length for score in found.scores)
    mean = {"eval/mean_reward": found.mean, "eval/mean_ep_length": steps / 20, "eval/success_rate": found.success}
    assert told.calls == [(mean, steps)]
    treadle.evaluate("CartPole-v1", None, 2, worker_options=SERIAL, log=told)
    assert told.calls[-1][0].keys() == {"eval/mean_reward", "eval/mean_ep_length"}


def collected(tmp_path: Path, log: Any) -> list[int]:
    return [len(each) for each in treadle.collect(Short, None, episodes=30, worker_options=SERIAL, log=log)]


def stored(tmp_path: Path, log: Any) -> list[int]:
    found = treadle.collect_dataset(Short, None, out=tmp_path / "out", episodes=30, worker_options=SERIAL, log=log)
    assert found.summary is not None
    return found.summary.lengths


@pytest.mark.parametrize("face", [collected, stored])
def test_what_is_collected_is_told_while_it_goes_on(face: Callable[..., list[int]], tmp_path: Path) -> None:
    told = Told()
    lengths = face(tmp_path, told)
    values, steps = told.calls[-1]
    assert steps == sum(lengths)
    assert values.keys() == {*ROLLOUT, "rollout/success_rate"}
    assert values["rollout/ep_len_mean"] == values["rollout/ep_rew_mean"] == pytest.approx(np.mean(lengths))
    assert values["rollout/success_rate"] == pytest.approx(np.mean([each % 2 == 0 for each in lengths]))
    assert told.calls[0][1] < steps


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_a_vectors_episodes_are_counted_in_every_mode(mode: AutoresetMode) -> None:
    told, ended = Told(), []
    plain = treadle.make_vec(Short, 3, autoreset_mode=mode, workers=1, inline=3)
    vector = treadle.vector.LogEpisodes(plain, told)
    vector.reset(seed=0)
    lengths, skip = np.zeros(3, int), np.zeros(3, bool)
    for _ in range(40):
        _, _, terminated, truncated, _ = vector.step(vector.action_space.sample())
        lengths += ~skip
        done = (terminated | truncated) & ~skip
        ended += [int(each) for each in lengths[done]]
        lengths[done] = 0
        skip = done if mode is AutoresetMode.NEXT_STEP else skip
        if mode is AutoresetMode.DISABLED and done.any():
            vector.reset(options={"reset_mask": done})
    vector.close()
    values, steps = told.calls[-1]
    assert steps == sum(ended)
    assert values["rollout/ep_len_mean"] == pytest.approx(np.mean(ended[-100:]))
    assert values["rollout/success_rate"] == pytest.approx(np.mean([each % 2 == 0 for each in ended[-100:]]))


def test_a_file_of_csv(tmp_path: Path) -> None:
    with (tmp_path / "log.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        treadle.evaluate(
            Short, None, 5, worker_options=SERIAL, log=lambda values, step: writer.writerow([step, *values])
        )
    (row,) = csv.reader((tmp_path / "log.csv").open())
    assert row[1:] == ["eval/mean_reward", "eval/mean_ep_length", "eval/success_rate"]


@pytest.mark.heavy
def test_tensorboard(tmp_path: Path) -> None:
    require("torch")
    require("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:

        def log(values: dict[str, float], steps: int) -> None:
            for name, value in values.items():
                writer.add_scalar(name, value, steps)

        found = treadle.evaluate(Short, None, 5, worker_options=SERIAL, log=log)
        collected(tmp_path, log)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert {*ROLLOUT, "eval/mean_reward"} <= set(events.Tags()["scalars"])
    (said,) = events.Scalars("eval/mean_reward")
    assert said.value == pytest.approx(found.mean)
