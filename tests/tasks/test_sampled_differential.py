"""One script of operations drives AllenAct's own vectors and ours, and every result is compared.

The differences that are allowed are the documented ones: more keys in `info` (and never None), a list of one from
`step_at` and None from `reset_all` and `set_seeds` in the single-process class too.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from small_tasks import CountSampler, CountTask, Lengths, samplers, vector

from conftest import require
from treadle.tasks.core import METRICS_KEY, RLStepResult

ROOT = Path(__file__).parents[2]
if str(ROOT) not in sys.path:  # `benchmarks` is not part of the installed package
    sys.path.insert(0, str(ROOT))

from benchmarks.allenact import allenact_vectors as stood_in  # noqa: E402
from benchmarks.allenact import closed  # noqa: E402

pytestmark = pytest.mark.heavy

OURS_ONLY = {"terminated", "truncated", "final_observation"}
OPERATIONS = (
    ["step"] * 12
    + ["step_at", "next_task", "next_task_at", "pause_at", "resume_all", "call", "call_at", "attr", "attr_at"]
    + ["get_observations", "async", "render", "sampler_attr", "call_sampler", "mixed", "set_seeds", "reset_all"]
)
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {"steps": [2, 3, 4, 1]},
    "finite": {"steps": [1, 2, 3, 2], "tasks": [2, 5, 9, 3]},
    "nested": {"steps": 3, "sensors": ("where", "nested", "mission")},
    "sloppy": {"steps": 5, "sensors": ("sloppy", "where")},
    "agents": {"steps": 3, "agents": 2},
}


def allenact_vectors() -> ModuleType:
    """AllenAct's module; skips the test, or fails it under test-all, where it is not installed."""
    for name in ("torch", "allenact"):
        require(name)
    return stood_in()


class Theirs:
    """AllenAct's vector, its documented faults mended at the door."""

    def __init__(self, vec: Any, single: bool) -> None:
        self.vec, self.single = vec, single

    def __getattr__(self, name: str) -> Any:
        return getattr(self.vec, name)

    def step_at(self, index: int, action: Any) -> Any:
        result = self.vec.step_at(index, action)
        return [result] if self.single else result

    def reset_all(self) -> None:
        self.vec.reset_all()

    def set_seeds(self, seeds: Any) -> None:
        self.vec.set_seeds(seeds)


def pairs(setting: str, resample: bool) -> Iterator[tuple[Any, Any]]:
    """Theirs and ours, of both kinds."""
    theirs = allenact_vectors()
    args = samplers(4, **SETTINGS[setting])
    options = {"auto_resample_when_done": resample, "should_log": False}
    sensors = [Lengths()]
    for processes in (2, 4):
        original = theirs.VectorSampledTasks(
            CountSampler,
            [dict(each) for each in args],
            callback_sensors=sensors,
            multiprocessing_start_method="fork",
            max_processes=processes,
            **options,
        )
        yield Theirs(original, False), vector(f"forkserver-{processes}", args, callback_sensors=sensors, **options)
    from allenact.base_abstractions.sensor import SensorSuite

    original = theirs.SingleProcessVectorSampledTasks(
        CountSampler, [dict(each) for each in args], callback_sensor_suite=SensorSuite(sensors), **options
    )
    yield Theirs(original, True), vector("single", args, callback_sensors=sensors, **options)


def same(a: Any, b: Any) -> None:
    """Raises AssertionError unless theirs (a) and ours (b) are equal but for what is documented."""
    if isinstance(b, RLStepResult):
        same(a[0], b[0])
        same(a[1], b[1])
        assert a[2] == b[2]
        assert b[3] is not None
        same(a[3] or {}, {key: value for key, value in b[3].items() if key not in OURS_ONLY or key in (a[3] or {})})
    elif isinstance(a, list | tuple):
        assert len(a) == len(b)
        for x, y in zip(a, b):
            same(x, y)
    elif isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            same(a[key], b[key])
    elif isinstance(a, np.ndarray):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
    else:
        assert type(a) is type(b)
        assert a == b


def operate(vec: Any, name: str, rng: random.Random, single: bool) -> Any:
    """One operation, drawn from `rng`: twins of it give the same for both vectors."""
    n = vec.num_unpaused_tasks
    at = rng.randrange(n)
    actions = [rng.choice([0, 1, 2, 3, 7]) for _ in range(n)]
    if name == "step":
        return vec.step(actions)
    if name == "async":
        if single:
            return vec.step(actions)
        vec.async_step(actions)
        return vec.wait_step()
    if name == "step_at":
        return vec.step_at(at, actions[at])
    if name == "next_task":
        return vec.next_task(force_advance_scene=bool(at % 2))
    if name in ("next_task_at", "pause_at"):
        return getattr(vec, name)(at)
    if name == "call":
        return vec.call(["add", "num_steps_taken"][at % 2], [[1, 2]] * n if at % 2 == 0 else None)
    if name == "call_at":
        return vec.call_at(at, "add", [at])
    if name == "attr":
        return vec.attr(["task_info", "max_steps"][at % 2])
    if name == "attr_at":
        return vec.attr_at(at, "cumulative_reward")
    if name == "render":
        return vec.render("rgb_array")
    if name == "sampler_attr":
        return vec.command("sampler_attr", ["length"] * n)
    if name == "call_sampler":
        return vec.command_at(at, "call_sampler", ("twice", [at]))
    if name == "mixed":
        return vec.command(["attr"] * (n - 1) + ["sampler_attr"], ["max_steps"] * (n - 1) + ["seed"])
    if name == "set_seeds":
        return vec.set_seeds(list(range(at, at + n)))
    return getattr(vec, name)()


@pytest.mark.parametrize("setting", SETTINGS)
def test_same_operations_same_results(setting: str) -> None:
    for theirs, ours in pairs(setting, True):
        try:
            same(theirs.action_spaces, ours.action_spaces)
            assert theirs.observation_space == ours.observation_space
            draw = random.Random(setting)
            for turn in range(150):
                name = draw.choice(OPERATIONS)
                if name in ("next_task", "next_task_at") and "tasks" in SETTINGS[setting]:
                    continue  # theirs die when there is none
                if name == "pause_at" and ours.num_unpaused_tasks == 1:
                    continue
                if name == "render" and theirs.single and ours.num_unpaused_tasks < 4:
                    continue  # theirs shows black pictures for paused slots, but only in this class
                seed = draw.random()
                a = operate(theirs, name, random.Random(seed), theirs.single)
                b = operate(ours, name, random.Random(seed), theirs.single)
                try:
                    same(a, b)
                except AssertionError as error:
                    raise AssertionError(f"turn {turn}, {name}: theirs {a}, ours {b}") from error
                assert theirs.num_unpaused_tasks == ours.num_unpaused_tasks
                over = [
                    i
                    for i, each in enumerate(b if isinstance(b, list) else [])
                    if getattr(each, "observation", 0) is None
                ]
                if name == "step_at" and over:
                    over = [random.Random(seed).randrange(ours.num_unpaused_tasks)]
                for index in reversed(over):
                    theirs.pause_at(index)
                    ours.pause_at(index)
                if ours.num_unpaused_tasks == 0:
                    for vec in (theirs, ours):
                        vec.resume_all()
                        vec.set_seeds([1, 2, 3, 4])
                        vec.reset_all()
                elif name == "resume_all" and "tasks" in SETTINGS[setting]:
                    for vec in (theirs, ours):
                        vec.reset_all()  # exhausted ones came back too
        finally:
            closed(theirs)
            ours.close()


def test_without_moving_on_as_far_as_theirs_goes() -> None:
    """Theirs dies of the step after a task's end, so both are moved on by hand before it."""
    for theirs, ours in pairs("plain", False):
        try:
            for _ in range(4):
                same(theirs.step([1, 2, 3, 0]), ours.step([1, 2, 3, 0]))
                over = [i for i, done in enumerate(ours.call("is_done")) if done]
                for index in over:
                    same(theirs.next_task_at(index), ours.next_task_at(index))
        finally:
            closed(theirs)
            ours.close()


def test_theirs_writes_into_the_tasks_own_info() -> None:
    """The documented fix: ours copies it. Action 5 has an info that all tasks share."""
    module = allenact_vectors()
    args = samplers(1, steps=1)
    theirs = module.SingleProcessVectorSampledTasks(CountSampler, [dict(args[0])], should_log=False)
    ours = vector("single", args)
    before = dict(CountTask.own_info)
    try:
        assert METRICS_KEY in ours.step([5])[0].info
        assert CountTask.own_info == before
        theirs.step([5])
        assert METRICS_KEY in CountTask.own_info
    finally:
        CountTask.own_info.clear()
        CountTask.own_info.update(before)
        theirs.close()
        ours.close()


@pytest.mark.parametrize("single", [False, True])
def test_their_own_tasks_run_on_ours(single: bool) -> None:
    """A sampler and tasks that derive from AllenAct's classes, with AllenAct's sensors."""
    allenact_vectors()
    from allenact.base_abstractions.misc import RLStepResult as TheirResult
    from allenact.base_abstractions.sensor import Sensor as TheirSensor
    from allenact.base_abstractions.task import Task as TheirTask
    from allenact.base_abstractions.task import TaskSampler as TheirSampler
    from gymnasium import spaces as gs

    class Steps(TheirSensor):
        def __init__(self) -> None:
            super().__init__("steps", gs.Box(0, 100, (2,), np.float32))

        def get_observation(self, env: Any, task: Any, *args: Any, **kwargs: Any) -> Any:
            return np.array([env, task.num_steps_taken()], np.float32)

    class Walk(TheirTask):
        action_space = gs.Discrete(3)

        def _step(self, action: Any) -> Any:
            return TheirResult(self.get_observations(), float(action), False, None)

        def reached_terminal_state(self) -> bool:
            return False

        def render(self, mode: str = "rgb", *args: Any, **kwargs: Any) -> Any:
            return np.zeros((2, 2, 3), np.uint8)

        def close(self) -> None:
            """There is nothing to close."""

    class Walks(TheirSampler):
        length = float("inf")
        last_sampled_task = None
        all_observation_spaces_equal = True

        def __init__(self, slot: int, mp_ctx: Any) -> None:
            self.slot = slot

        def next_task(self, force_advance_scene: bool = False) -> Any:
            return Walk(self.slot, [Steps()], {}, 2)

        def close(self) -> None:
            """There is nothing to close."""

        def reset(self) -> None:
            """There is nothing to reset."""

        def set_seed(self, seed: int) -> None:
            """Nothing is drawn."""

    with vector("single" if single else "thread-2", samplers(2), Walks) as vec:
        assert [r.observation["steps"].tolist() for r in vec.step([1, 2])] == [[0.0, 0.0], [1.0, 0.0]]
        results = vec.step([1, 2])
        assert [r.done for r in results] == [True, True]
        assert results[1].info["__AFTER_TASK_METRICS__"]["reward"] == 4.0
