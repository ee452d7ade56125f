"""The MiniGrid example: its curriculum, its test set, and that a short run learns something that can be measured."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import example_kit
import pytest

from conftest import require
from treadle import SingleProcessVectorSampledTasks

pytestmark = pytest.mark.heavy

torch = require("torch")
require("minigrid")


@pytest.fixture(scope="module")
def ppo() -> ModuleType:
    return example_kit.load("ppo_minigrid")


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_short_run_learns(tmp_path: Path) -> None:
    require("matplotlib")
    picture, saved = tmp_path / "curves.png", tmp_path / "runs.json"
    arguments = ["--total-steps", "24000", "--seeds", "3", "--plot", str(picture)]
    (run,) = example_kit.run_script("ppo_minigrid", *arguments, save=saved, timeout=390)
    assert run["tests"][-1][1] >= 0.9
    early = [length for steps, _, length in run["tests"] if steps < 5000]
    assert run["tests"][-1][2] < early[0]  # it does not only arrive, it arrives sooner
    assert {level for _, _, level in run["trained"]} == {0, 1, 2}
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_curriculum_moves_on_when_it_goes_well(ppo: ModuleType) -> None:
    sampler = ppo.Curriculum(ppo.GOALS["empty"], seed=5)
    levels = []
    for _ in range(24):
        task = sampler.next_task()
        levels.append(sampler.level)
        task._terminated, task.reward = True, 0.9
    sampler.close()
    assert levels[0] == 0
    assert max(levels) == 2
    assert levels.index(1) == 8  # after eight successes
    assert 0 < levels[16:].count(1) < 8  # an easier one now and then


def test_every_task_of_the_test_set_is_played_once(ppo: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    class Walker(torch.nn.Module):
        def forward(self, views: Any) -> Any:
            logits = torch.zeros(len(views), 7)
            logits[:, 2] = 50.0  # forward, into the wall: every task takes all its steps
            return torch.distributions.Categorical(logits=logits), torch.zeros(len(views))

    monkeypatch.setattr(ppo, "GOALS", {"tiny": ("MiniGrid-Empty-5x5-v0",)})
    sets = [{"envs": ppo.GOALS["tiny"], "seed": 0, "tasks": count} for count in (1, 3, 2)]
    with SingleProcessVectorSampledTasks(ppo.TestSet, sets, should_log=False) as tests:
        for _ in range(2):
            assert ppo.evaluate(tests, Walker(), 1) == (0.0, 100.0)
            assert tests.num_unpaused_tasks == 0
        assert tests.stats().steps.tolist() == [200, 600, 400]


def test_advantages_by_hand(ppo: ModuleType) -> None:
    args = ppo.parse_args(["--gamma", "0.5", "--gae-lambda", "0.5"])
    rollout = {
        "rewards": torch.tensor([[1.0], [2.0], [3.0]]),
        "values": torch.tensor([[0.5], [1.0], [2.0]]),
        "ends": torch.tensor([[False], [True], [False]]),
    }
    gains = ppo.advantages(rollout, torch.tensor([4.0]), args)
    third = 3.0 + 0.5 * 4.0 - 2.0
    second = 2.0 - 1.0
    first = 1.0 + 0.5 * 1.0 - 0.5 + 0.25 * second
    assert gains.flatten().tolist() == pytest.approx([first, second, third])
