"""AllenAct's own sensors on ours: their sources as they were published, with nothing changed but imports."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from conftest import require
from treadle.task import EnvType, RLStepResult, Sensor, SensorSuite, SubTaskType, Task, TaskSampler
from treadle.vector import SingleProcessVectorSampledTasks

ROOT = Path(__file__).parents[2]
if str(ROOT) not in sys.path:  # `benchmarks` is not part of the installed package
    sys.path.insert(0, str(ROOT))

from benchmarks.allenact import Hollow, allenact_vectors  # noqa: E402

OURS = {"Sensor", "SensorSuite", "EnvType", "SubTaskType"}


def with_imports_changed(name: str) -> ModuleType:
    """A module of AllenAct's, executed as a migrant has it: what Treadle has comes from `treadle.task`."""
    for needed in ("torch", "allenact"):
        require(needed)
    allenact_vectors()
    try:
        importlib.import_module("torchvision")
    except ImportError:  # for resizing pictures, which is not done here
        sys.modules["torchvision"], transforms = Hollow("torchvision"), Hollow("torchvision.transforms")
        sys.modules["torchvision.transforms"] = sys.modules["torchvision"].transforms = transforms  # type: ignore[attr-defined]
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and {alias.name for alias in node.names} <= OURS:
            node.module = "treadle.task"
    # in the module that defines them, importing them takes the definitions' place
    kept = [node for node in tree.body if not (isinstance(node, ast.ClassDef) and node.name in OURS)]
    gone = sorted({node.name for node in tree.body if isinstance(node, ast.ClassDef)} & OURS)
    if gone:
        first = next(i for i, node in enumerate(kept) if isinstance(node, ast.ClassDef))
        kept.insert(first, ast.parse(f"from treadle.task import {', '.join(gone)}").body[0])
    tree.body = kept
    module = ModuleType(f"migrated_{name.rpartition('.')[2]}")
    exec(compile(ast.fix_missing_locations(tree), spec.origin, "exec"), module.__dict__)
    return module


class World:
    def __init__(self) -> None:
        self.at = 0


class Walk(Task[World]):
    @property
    def action_space(self) -> Any:
        return gym.spaces.Discrete(3)

    def _step(self, action: Any) -> RLStepResult:
        self.env.at += action
        return RLStepResult(self.get_observations(), float(action), False, {})

    def reached_terminal_state(self) -> bool:
        return self.env.at > 5

    def query_expert(self, **kwargs: Any) -> tuple[Any, bool]:
        return 2, True


class Walks(TaskSampler):
    length = float("inf")
    all_observation_spaces_equal = True
    last_sampled_task = None

    def __init__(self, sensors: Any) -> None:
        self.sensors = sensors

    def next_task(self, force_advance_scene: bool = False) -> Walk:
        return Walk(World(), self.sensors, {}, 100)

    def reset(self) -> None:
        """Nothing to go back to."""

    def set_seed(self, seed: int) -> None:
        """Nothing is drawn."""

    def close(self) -> None:
        """Nothing is open."""


def test_sensors_say_what_they_look_at() -> None:
    class Both(Sensor[World, Walk]):
        """Of one environment and one task, as AllenAct's are written."""

    class One(Sensor[World]):
        """Of any task."""

    class Open(Sensor[EnvType, SubTaskType]):
        """Still to be said."""

    class Half(Open[World, SubTaskType]):
        """One of both."""

    class Said(Half[Walk]):
        """All of it."""

    for kind in (Both, One, Open, Open[World, Walk], Open[World], Half, Said):
        suite: SensorSuite[World] = SensorSuite([kind("a", gym.spaces.Discrete(2))])
        assert suite.get("a").uuid == "a"
    with pytest.raises(TypeError, match="Too many"):
        Sensor[World, Walk, int]  # type: ignore[misc]


@pytest.mark.heavy
def test_allenacts_vision_sensors() -> None:
    vision = with_imports_changed("allenact.embodiedai.sensors.vision_sensors")
    assert issubclass(vision.RGBSensor, Sensor)

    class Picture(vision.RGBSensor[World, Walk]):  # type: ignore[name-defined, misc]
        def frame_from_env(self, env: World, task: Walk | None) -> np.ndarray:
            return np.full((4, 5, 3), env.at, np.uint8)

    class Distance(vision.DepthSensor[World, Walk]):  # type: ignore[name-defined, misc]
        def frame_from_env(self, env: World, task: Walk | None) -> np.ndarray:
            return np.full((4, 5, 1), env.at, np.float32)

    sensors = [Picture(height=4, width=5), Distance(height=4, width=5, uuid="depth", use_normalization=True)]
    with SingleProcessVectorSampledTasks(Walks, [{"sensors": sensors}] * 2, should_log=False) as tasks:
        assert tasks.observation_space["rgb"].shape == (4, 5, 3)
        seen = tasks.step([1, 2])
        assert seen[1].observation["rgb"].dtype == np.float32
        np.testing.assert_allclose(seen[1].observation["rgb"], 2 / 255)
        np.testing.assert_allclose(seen[0].observation["depth"], (1 - 0.5) / 0.25)


@pytest.mark.heavy
def test_allenacts_expert_sensors() -> None:
    module = with_imports_changed("allenact.base_abstractions.sensor")
    assert module.Sensor is Sensor
    expert = module.ExpertActionSensor(gym.spaces.Discrete(3))
    with SingleProcessVectorSampledTasks(Walks, [{"sensors": [expert]}] * 2, should_log=False) as tasks:
        first = tasks.get_observations()
        assert [each["expert_action"].tolist() for each in first] == [[2, 1]] * 2
        while not (results := tasks.step([2, 1]))[0].done:
            pass
        assert results[0].info["final_observation"]["expert_action"].tolist() == [0, 0], "of a task that is done: zeros"
