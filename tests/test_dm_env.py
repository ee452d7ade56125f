"""dm_env both ways, by its own tests and against plain loops."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces as gs

import treadle
from conftest import require
from treadle.errors import StartupFailed, UsageError

pytestmark = pytest.mark.heavy
dm_env = require("dm_env")
ours = require("treadle.dm_env")
specs = dm_env.specs


class Catch(dm_env.Environment):
    """A ball falls; a discount of 0.5 in its third row; cut, not ended, where `cut`."""

    def __init__(self, seed: int = 0, cut: bool = False) -> None:
        self.rng, self.cut, self.t = np.random.default_rng(seed), cut, -1

    def reset(self) -> Any:
        self.t, self.ball = 0, int(self.rng.integers(5))
        return dm_env.restart(self._seen())

    def step(self, action: Any) -> Any:
        if self.t < 0:
            return self.reset()
        self.t += 1
        if self.t == 6:
            self.t = -1
            reward = float(action == self.ball)
            return dm_env.truncation(reward, self._seen()) if self.cut else dm_env.termination(reward, self._seen())
        return dm_env.transition(0.25, self._seen(), 0.5 if self.t == 3 else 1.0)

    def _seen(self) -> Any:
        return {"board": np.array([self.t, self.ball], np.float32), "ball": float(self.ball)}

    def observation_spec(self) -> Any:
        return {"board": specs.Array((2,), np.float32), "ball": specs.BoundedArray((), np.float64, 0, 4)}

    def action_spec(self) -> Any:
        return specs.DiscreteArray(5)


@pytest.mark.parametrize("cut", [False, True])
def test_a_vector_of_dm_envs_is_a_plain_loop_over_them(cut: bool) -> None:
    n, steps = 3, 30
    vector = ours.DmVector(ours.from_dm_env(partial(Catch, cut=cut)), n, workers=2, inline=0)
    loops = [Catch(5 + i, cut) for i in range(n)]
    try:
        batch = vector.reset(seed=5)
        rows = [loop.reset() for loop in loops]
        for t in range(steps):
            assert batch.step_type.tolist() == [row.step_type for row in rows]
            assert batch.reward.tolist() == [row.reward or 0.0 for row in rows]
            assert batch.discount.tolist() == [1.0 if row.discount is None else row.discount for row in rows]
            for i, row in enumerate(rows):
                assert batch.observation["board"][i].tobytes() == row.observation["board"].tobytes()
                assert batch.observation["ball"][i] == row.observation["ball"]
            action = np.arange(n) + t % 2
            batch = vector.step(action)
            rows = [loop.step(action[i]) for i, loop in enumerate(loops)]
        for value, spec in (
            (batch.reward, vector.reward_spec()),
            (batch.discount, vector.discount_spec()),
            (batch.observation["board"], vector.observation_spec()["board"]),
            (action, vector.action_spec()),
        ):
            spec.validate(value)
    finally:
        vector.close()


def test_dm_envs_are_collected_like_all_others() -> None:
    env = ours.from_dm_env(Catch)
    once, again = (list(treadle.collect(env, episodes=6, seed=3, workers=workers)) for workers in (1, 2))
    assert [len(episode.rewards) for episode in once] == [6] * 6
    for a, b in zip(once, again, strict=True):
        assert a.rewards.tobytes() == b.rewards.tobytes()
        assert a.observations["board"].tobytes() == b.observations["board"].tobytes()
        assert a.terminated[-1]


def own_tests() -> list[Any]:
    """dm_env's own tests, of a Gymnasium environment, of one with nested spaces, and of a dm_env one there and back."""
    import unittest

    from dm_env import test_utils

    sources: dict[str, Any] = {
        "Gymnasium": "CartPole-v1",
        "Nested": Nested,
        "There and back": ours.from_dm_env(Catch),
    }
    suites = []
    for name, source in sources.items():

        class Case(test_utils.EnvironmentTestMixin, unittest.TestCase):
            made = source

            def make_object_under_test(self) -> Any:
                return ours.DmEnvironment(type(self).made)

            def make_action_sequence(self) -> Any:
                for _ in range(40):
                    yield self.make_action()

        suites += [
            pytest.param(Case(test), id=f"{name}: {test}") for test in unittest.TestLoader().getTestCaseNames(Case)
        ]
    return suites


class Nested(gym.Env):
    observation_space = gs.Dict(
        {"a": gs.Box(-1, 1, (2,), np.float32), "b": gs.Tuple([gs.Discrete(3), gs.MultiBinary(2)])}
    )
    action_space = gs.Dict({"go": gs.MultiDiscrete([2, 3]), "to": gs.Box(0, 1, (1,), np.float64)})

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        return self.observation_space.sample(), 1.0, bool(self.np_random.random() < 0.1), False, {}


@pytest.mark.parametrize("case", own_tests())
def test_dm_envs_own_tests(case: Any) -> None:
    import unittest

    result = unittest.TestResult()
    case.run(result)
    assert result.testsRun == 1
    assert not result.errors + result.failures, (result.errors + result.failures)[0][1]


@pytest.mark.parametrize(
    "space",
    [
        gs.Box(-1, 1, (2, 3), np.float32),
        gs.Box(-np.inf, np.inf, (), np.float64),
        gs.Box(0, 255, (4, 4, 3), np.uint8),
        gs.Discrete(4),
        gs.Dict({"a": gs.Discrete(2), "b": gs.Tuple([gs.Box(0, 1, (1,), np.float32), gs.Discrete(3)])}),
    ],
    ids=str,
)
def test_spaces_go_to_specs_and_back(space: gym.Space) -> None:
    assert ours.space_of(ours.spec_of(space)) == space


def test_bad_input_is_one_clear_line() -> None:
    with pytest.raises(UsageError, match="no spec has the values of Text"):
        ours.spec_of(gs.Text(3))
    with pytest.raises(UsageError, match="no space has the values of StringArray"):
        ours.space_of(specs.StringArray(()))
    with pytest.raises(UsageError, match='autoreset_mode="NextStep"'):
        ours.DmVector("CartPole-v1", 2, autoreset_mode="SameStep")
    with pytest.raises(UsageError, match="no word for a row that is gone"):
        ours.DmVector("CartPole-v1", 2, on_failure="drop")
    with pytest.raises(StartupFailed, match=r"made a CartPoleEnv, which is not a dm_env.Environment"):
        treadle.make_vec(ours.from_dm_env(lambda: gym.make("CartPole-v1").unwrapped), 2, workers=1)
    env = ours.from_dm_env(lambda: Catch(1))()
    with pytest.warns(UserWarning, match="Catch cannot be seeded"):
        env.reset(seed=3)
    env.reset()
    for _ in range(6):
        env.step(0)
    with pytest.raises(UsageError, match="the episode has ended"):
        env.step(0)


def test_what_makes_no_environment_is_refused_at_once() -> None:
    with pytest.raises(UsageError, match="got int"):
        ours.from_dm_env(3)  # type: ignore[arg-type]
