"""Several tasks in one run: a table for each, environments built when they are needed, and not too many at a time."""

from __future__ import annotations

import threading
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import treadle
from treadle.errors import StartupFailed, UsageError


class Task(gym.Env):
    """Pays `pay` a step, for as many steps as the initial state says; the observation shows both."""

    observation_space = gym.spaces.Box(-1e9, 1e9, (2,), np.float64)
    action_space = gym.spaces.Discrete(3)

    def __init__(self, pay: float, more: int = 0) -> None:
        self.pay, self.more = pay, more

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.left = (options or {}).get("steps", 1 + int(self.np_random.integers(5))) + self.more
        return np.array([self.pay, self.left], np.float64), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        over = self.left == 0
        info = {"is_success": self.pay > 1} if over else {}
        return np.array([self.pay, self.left], np.float64), self.pay * (1 + action), over, False, info


TASKS = {"cheap": (Task, {"pay": 1.0}), "dear": (Task, {"pay": 2.0}), "long": (Task, {"pay": 1.0, "more": 3})}


def policy(observations: np.ndarray) -> np.ndarray:
    return (observations[:, 1] % 3).astype(np.int64)


def initial(index: int) -> dict[str, Any]:
    return {"steps": 1 + index % 4}


def test_each_task_has_its_table_of_the_same_initial_states() -> None:
    result = treadle.evaluate(TASKS, policy, 8, reset_options=initial, workers=2)
    assert list(result.tasks) == ["cheap", "dear", "long"]
    assert [score.index for score in result.tasks["dear"].scores] == list(range(8, 16))
    steps = [1 + index % 4 for index in range(8)]
    assert [score.length for score in result.tasks["cheap"].scores] == steps
    assert [score.length for score in result.tasks["long"].scores] == [each + 3 for each in steps]
    assert (result.tasks["dear"].returns == 2 * result.tasks["cheap"].returns).all()
    assert [each.success for each in result.tasks.values()] == [0.0, 1.0, 0.0]
    assert sum(each.returns.sum() for each in result.tasks.values()) == result.returns.sum()
    assert "cheap" in result._repr_html_()


@pytest.mark.parametrize("inference", ["worker", "caller"])
def test_the_table_is_the_same_for_any_number_of_environments(inference: str) -> None:
    alone = treadle.evaluate(TASKS, policy, 12, seed=4, inference=inference, num_envs=1)
    for num_envs in (8, 32):
        many = treadle.evaluate(TASKS, policy, 12, seed=4, inference=inference, num_envs=num_envs)
        assert many == alone


def test_no_more_environments_live_than_are_allowed() -> None:
    alive, highest, built, lock = set[int](), [0], list[str](), threading.Lock()

    class Counted(Task):
        def __init__(self, pay: float, more: int = 0) -> None:
            super().__init__(pay, more)
            with lock:
                alive.add(id(self))
                highest[0] = max(highest[0], len(alive))
                built.append(f"{pay} {more}")

        def close(self) -> None:
            with lock:
                alive.discard(id(self))

    tasks = {name: (Counted, kwargs) for name, (_, kwargs) in TASKS.items()}
    options: dict[str, Any] = {
        "worker_options": treadle.WorkerOptions(backend="thread"),
        "inference": "caller",
        "num_envs": 4,
    }
    treadle.evaluate(tasks, policy, 10, **options)
    assert not alive
    assert highest[0] <= 4
    assert len(set(built)) == 3
    assert len(built) <= 4 * 3 + 3  # one slot builds all of them first


def test_tasks_of_other_spaces_are_refused_by_name() -> None:
    class Wider(Task):
        action_space = gym.spaces.Discrete(7)

    for other, match in (
        ((Wider, {"pay": 1.0}), r"tasks of one run have one action_space: wide has Discrete\(7\)"),
        ("no_such_file.py:Task", "file no_such_file.py does not exist"),
    ):
        with pytest.raises(StartupFailed, match=match):
            treadle.evaluate({"cheap": TASKS["cheap"], "wide": other}, policy, 2, workers=1)


def test_two_policies_are_compared_by_task() -> None:
    first = treadle.evaluate(TASKS, policy, 6, seed=2, workers=1)
    second = treadle.evaluate(TASKS, None, 6, seed=2, workers=1)
    differences = [treadle.compare(first.tasks[task], second.tasks[task]).difference for task in TASKS]
    assert np.mean(differences) == pytest.approx(treadle.compare(first, second).difference)


def test_a_suite_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(UsageError, match="an environment is an id"):
        treadle.evaluate({"a": 3}, policy, 2)
