"""Tasks, samplers and sensors by themselves."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from treadle.errors import UsageError
from treadle.tasks.core import RLStepResult, Sensor, SensorSuite, Task, ends_of


class Position(Sensor[list[int]]):
    """Where the agent stands, times `scale`."""

    def __init__(self, uuid: str = "position") -> None:
        super().__init__(uuid, gym.spaces.Box(0, 100, (1,), np.int64), note="taken and not used")

    def get_observation(self, env: list[int], task: Any, *args: Any, **kwargs: Any) -> Any:
        return np.array([env[0] * kwargs.get("scale", 1)])


class Walk(Task[list[int]]):
    """Walk to 3; actions are steps."""

    @property
    def action_space(self) -> gym.Space[Any]:
        return gym.spaces.Discrete(2)

    @classmethod
    def class_action_names(cls, **kwargs: Any) -> tuple[str, ...]:
        return ("stay", "go")

    def _step(self, action: Any) -> RLStepResult:
        moves = action if isinstance(action, list) else [action]
        self.env[0] += sum(moves)
        reward: Any = [float(move) for move in moves] if isinstance(action, list) else float(action)
        return RLStepResult(self.get_observations(), reward, False, None)

    def reached_terminal_state(self) -> bool:
        return self.env[0] >= 3


def walk(max_steps: int = 5) -> Walk:
    return Walk([0], [Position()], {"goal": 3}, max_steps)


def test_a_task_is_stepped_until_it_is_done() -> None:
    task = walk()
    assert task.observation_space == gym.spaces.Dict({"position": Position().observation_space})
    assert task.get_observations(scale=7)["position"].tolist() == [0]
    assert [task.step(1).done for _ in range(3)] == [False, False, True]
    assert (task.num_steps_taken(), task.reached_max_steps(), task.is_done()) == (3, False, True)
    assert task.metrics() == {"ep_length": 3, "reward": 3.0, "task_info": {"goal": 3}}
    assert task.query_expert() == (None, False)
    with pytest.raises(UsageError, match="done"):
        task.step(1)


def test_the_limit_of_steps() -> None:
    task = walk(max_steps=2)
    assert [task.step(0).done for _ in range(2)] == [False, True]
    assert task.reached_max_steps()
    assert not task.reached_terminal_state()
    assert task.is_truncated()
    assert ends_of(task, True) == (False, True)
    assert ends_of(task, False) == (False, False)
    task.is_truncated = lambda: False  # type: ignore[method-assign]  # over in a way of its own
    assert ends_of(task, True) == (False, False)


def test_spaces_of_another_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts of AllenAct's have the older gym, whose spaces are no Gymnasium spaces: so is their Dict."""
    (tmp_path / "oldgym").mkdir()
    (tmp_path / "oldgym" / "__init__.py").touch()
    (tmp_path / "oldgym" / "spaces.py").write_text(
        "class Space: pass\nclass Box(Space): pass\n"
        "class Dict(Space):\n    def __init__(self, spaces): self.spaces = spaces\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    spaces = importlib.import_module("oldgym.spaces")

    class Own(spaces.Box):  # type: ignore[misc, name-defined]
        """Of a class of one's own."""

    ours, theirs = Sensor("ours", gym.spaces.Discrete(2)), Sensor("theirs", Own())
    suite: SensorSuite[Any] = SensorSuite([theirs])
    assert type(suite.observation_spaces) is spaces.Dict
    assert suite.observation_spaces.spaces == {"theirs": theirs.observation_space}
    with pytest.raises(UsageError, match="'theirs' has a space of oldgym"):
        SensorSuite([ours, theirs])
    with pytest.raises(UsageError, match="'nothing' has no observation space"):
        SensorSuite([Sensor("nothing", None)])  # type: ignore[arg-type]


def test_many_agents() -> None:
    task = walk()
    assert task.step([1, 0]).reward == [1.0, 0.0]
    assert task.cumulative_reward == 0.5
    task.step([1, 1])
    assert task.cumulative_reward == 1.5


def test_names_of_actions() -> None:
    task = walk()
    assert task.action_names() == Walk.class_action_names() == ("stay", "go")
    assert task.total_actions == 2
    assert task.index_to_action(1) == "go"
    for wrong in (2, -1):
        with pytest.raises(AssertionError, match=r"not in 0\.\.1"):
            task.index_to_action(wrong)


def test_what_a_task_class_must_bring() -> None:
    task: Task[Any] = Task(None, [], {}, 1)
    for use in (
        lambda: task.action_space,
        lambda: task.step(0),
        task.reached_terminal_state,
        task.render,
        task.close,
        task.action_names,
    ):
        with pytest.raises(NotImplementedError, match="Task"):
            use()


def test_results_cloned_and_merged() -> None:
    result = RLStepResult("o", 1.0, False, None)
    assert result.clone({"done": True, "other": 1}) == RLStepResult("o", 1.0, True, None)
    assert result.merge(RLStepResult(None, None, None, None)) == RLStepResult("o", 1.0, False, {})
    merged = RLStepResult("o", 1.0, False, {"a": 1, "b": 1}).merge(RLStepResult("p", 0.0, True, {"b": 2}))
    assert merged == RLStepResult("p", 0.0, True, {"a": 1, "b": 2})


def test_a_suite_of_sensors() -> None:
    suite = SensorSuite([Position("z"), Position("a")])
    assert list(suite.observation_spaces.spaces) == ["z", "a"]
    assert suite.get("a").uuid == "a"
    assert [sensor.uuid for sensor in suite] == ["z", "a"]
    assert len(suite) == 2
    seen = suite.get_observations(env=[4], task=None, scale=2)
    assert {key: value.tolist() for key, value in seen.items()} == {"z": [8], "a": [8]}
    with pytest.raises(UsageError, match="two sensors have the uuid 'a'"):
        SensorSuite([Position("a"), Position("a")])
    with pytest.raises(NotImplementedError, match="get_observation"):
        Sensor("bare", gym.spaces.Discrete(2)).get_observation(None, None)
