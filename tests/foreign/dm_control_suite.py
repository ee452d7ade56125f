"""dm_control's suite in slots, against plain loops. For `make test-foreign`: it wants another MuJoCo than ours."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from dm_control import suite

import treadle
from treadle.dm_env import from_dm_env

TASKS = [("cartpole", "swingup"), ("cheetah", "run"), ("ball_in_cup", "catch"), ("walker", "walk"), ("reacher", "easy")]


@pytest.mark.parametrize(("domain", "task"), TASKS)
def test_the_suite_is_seeded_and_the_same_in_workers(domain: str, task: str) -> None:
    vector = treadle.make_vec(from_dm_env(partial(suite.load, domain, task)), 2, workers=2, inline=0)
    loops = [suite.load(domain, task, task_kwargs={"random": 7 + i}) for i in range(2)]
    try:
        observations, _ = vector.reset(seed=7)
        rows = [loop.reset() for loop in loops]
        vector.action_space.seed(1)
        ends = 0
        for _ in range(1100):
            for i, row in enumerate(rows):
                for key, value in row.observation.items():
                    assert observations[key][i].tobytes() == np.asarray(value).tobytes()
            action = vector.action_space.sample()
            observations, rewards, terminated, truncated, _ = vector.step(action)
            rows = [loop.step(action[i]) for i, loop in enumerate(loops)]
            assert rewards.tolist() == [row.reward or 0.0 for row in rows]
            assert (terminated | truncated).tolist() == [row.last() for row in rows]
            assert not terminated.any()
            ends += int(truncated.sum())
        assert ends == 2
    finally:
        vector.close()


@pytest.mark.parametrize(("domain", "task"), TASKS)
def test_a_state_is_gone_on_from(domain: str, task: str) -> None:
    vector = treadle.make_vec(from_dm_env(partial(suite.load, domain, task)), 2, workers=1, inline=0)
    try:
        vector.reset(seed=1)
        action = np.full(vector.action_space.shape, 0.3, vector.action_space.dtype)
        for _ in range(5):
            vector.step(action)
        states = vector.get_states()
        first = [vector.step(action) for _ in range(30)]
        vector.set_states(states)
        for before in first:
            after = vector.step(action)
            assert after[1].tolist() == before[1].tolist()
            for key, value in before[0].items():
                assert after[0][key].tobytes() == value.tobytes()
    finally:
        vector.close()
