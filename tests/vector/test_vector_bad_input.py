"""Wrong actions and broken environments: clear errors that name slots, and a vector that goes on."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces as gs
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError
from gymnasium.vector import SyncVectorEnv
from small_envs import Counter, Echo, Picky, assert_same, of

from treadle.errors import BadAction, BadObservation, ClosedPool, TaskRaised, UsageError, WorkerDied
from treadle.vector.gymnasium import VectorEnv
from treadle.worker.options import WorkerOptions

SETUPS = pytest.mark.parametrize(
    "setup",
    [{"worker_options": WorkerOptions(backend="serial")}, {"workers": 2, "inline": 0}, {"workers": 1, "inline": 1}],
    ids=str,
)


@pytest.mark.parametrize(
    ("actions", "slot"),
    [
        ([0, 0], None),
        (np.zeros(4, np.int64), None),
        (np.zeros((3, 1), np.int64), None),
        (np.zeros(3), None),
        ([0, 1.5, 0], 1),
        ([0, 0, "up"], 2),
        (np.array([0, 0, 5]), 2),
        ([-1, 0, 0], 0),
        (3, None),
        (None, None),
    ],
    ids=repr,
)
def test_actions_that_do_not_fit(actions: Any, slot: int | None) -> None:
    vector = VectorEnv([of(Counter, 50)] * 3, worker_options=WorkerOptions(backend="serial"))
    vector.reset()
    vector.step([0, 0, 0])
    with pytest.raises(BadAction, match="Nothing was sent") as caught:
        vector.step(actions)
    assert caught.value.where.slot == slot
    with pytest.raises(BadAction):
        vector.step_async(actions)
    assert vector.step([1, 2, 3])[0].tolist() == [2, 2, 2]  # no environment has moved meanwhile
    vector.close()


@pytest.mark.parametrize("wrong", [np.full((2, 3), np.nan), np.zeros((2, 2)), [[0, 0, 0]]])
def test_float_actions_that_do_not_fit(wrong: Any) -> None:
    vector = VectorEnv(
        [of(Echo, gs.Discrete(2), gs.Box(-1, 1, (3,)))] * 2, worker_options=WorkerOptions(backend="serial")
    )
    vector.reset()
    with pytest.raises(BadAction):
        vector.step(wrong)
    vector.step(np.zeros((2, 3), np.float32))
    vector.close()


@SETUPS
def test_ignored_actions_may_be_anything(setup: dict[str, Any]) -> None:
    """In NEXT_STEP mode the step after an end takes no notice of its action."""
    vector = VectorEnv([of(Counter, 1), of(Counter, 9)], **setup)
    vector.reset()
    vector.step([0, 0])
    observations, rewards, *_ = vector.step([77, 4])
    assert (observations.tolist(), rewards.tolist()) == ([0, 2], [0, 4])
    with pytest.raises(BadAction, match="slot 1"):
        vector.step([0, 77])
    vector.step([0, 0])
    with pytest.raises(BadAction, match="slot 1"):
        vector.step([77, 77])
    vector.close()


@SETUPS
def test_an_environment_that_raises(setup: dict[str, Any]) -> None:
    vector = VectorEnv([Picky] * 3, **setup)
    try:
        vector.reset()
        with pytest.raises(ValueError, match="no luck in step with 3") as caught:
            vector.step([0, 3, 0])
        error = caught.value
        assert isinstance(error, TaskRaised)
        assert error.where.slot == 1
        assert "no luck" in error.remote_traceback
        observations, rewards, _, _, infos = error.partial
        assert rewards.tolist() == [1, 0, 1]
        assert observations[:, 0].tolist() == [0.5, 0, 0.5]
        assert infos == {}
        with pytest.raises(ValueError, match=r"\[1\].*reset them first"):
            vector.step([0, 0, 0])
        vector.reset_at(1)
        assert vector.step([0, 0, 0])[1].tolist() == [1, 1, 1]
        with pytest.raises(ValueError, match="no luck in reset") as caught:
            vector.reset(seed=[0, 1, 13])
        assert caught.value.where.slot == 2  # type: ignore[attr-defined]
        vector.reset()
        assert vector.step([0, 0, 0])[1].tolist() == [1, 1, 1]
    finally:
        vector.close()


@SETUPS
def test_an_observation_outside_its_layout(setup: dict[str, Any]) -> None:
    vector = VectorEnv([Picky] * 3, **setup)
    vector.reset()
    with pytest.raises(BadObservation, match=r"slot 2.*expected float32\[3\]") as caught:
        vector.step([0, 0, 4])
    assert caught.value.partial[1].tolist() == [1, 1, 0]
    vector.reset()
    vector.step([0, 0, 0])
    vector.close()


def test_stepping_on_after_an_end_that_holds() -> None:
    vector = VectorEnv(
        [of(Counter, 1), of(Counter, 9)], worker_options=WorkerOptions(backend="serial"), autoreset_mode="Disabled"
    )
    vector.reset()
    vector.step([0, 0])
    with pytest.raises(ValueError, match=r"slot 0.*reset the slot first"):
        vector.step([0, 0])
    vector.reset_at(0)
    assert vector.step([0, 0])[0].tolist() == [1, 3]
    vector.close()


def test_a_call_that_raises() -> None:
    class Shy(Counter):
        def talk(self, to: int) -> int:
            return 6 // to

    vector = VectorEnv([Shy] * 2, workers=1, inline=1)
    with pytest.raises(ZeroDivisionError, match="slot 0"):
        vector.call("talk", 0)
    assert vector.call("talk", 2) == (3, 3)
    vector.close()


def test_a_worker_that_dies() -> None:
    class Mortal(Counter):
        def step(self, action: int) -> Any:
            if action == 4:
                import os

                os._exit(3)
            return super().step(action)

    vector = VectorEnv([Mortal] * 2, workers=2, inline=0)
    vector.reset()
    with pytest.raises(WorkerDied, match="slot 1") as caught:
        vector.step([0, 4])
    assert caught.value.exit_code == 3
    assert caught.value.partial[0].tolist() == [1, 0]
    vector.close()


def test_use_after_close() -> None:
    vector = VectorEnv([Counter] * 2, workers=1, inline=1)
    vector.reset()
    vector.close()
    vector.close()
    assert vector.closed
    uses: list[Any] = [
        vector.reset,
        lambda: vector.step([0, 0]),
        lambda: vector.step_async([0, 0]),
        vector.step_wait,
        vector.reset_async,
        vector.reset_wait,
        lambda: vector.reset_at(0),
        lambda: vector.call("length"),
        lambda: vector.call_async("length"),
        vector.call_wait,
        lambda: vector.set_attr("length", 3),
        vector.render,
        vector.stats,
        lambda: vector.valid,
        lambda: vector.send([0], [0]),
        vector.recv,
        vector.async_reset,
        lambda: vector.rollout(steps=1),
    ]
    for use in uses:
        with pytest.raises(ClosedEnvironmentError, match="after a call to `close"):
            use()
        with pytest.raises(ClosedPool):
            use()


def test_results_after_errors_equal_syncs() -> None:
    """A refused batch leaves no trace."""
    envs = [lambda: gym.make("CartPole-v1")] * 2
    ours, theirs = VectorEnv(envs, workers=1, inline=1), SyncVectorEnv(envs)
    ours.reset(seed=1)
    theirs.reset(seed=1)
    for t in range(20):
        with pytest.raises(BadAction):
            ours.step(np.array([0.5, 0.5]))
        actions = np.array([t % 2, 1])
        assert_same(ours.step(actions), theirs.step(actions))
    ours.close()


def test_a_refused_call_leaves_what_is_pending() -> None:
    vector = VectorEnv([of(Counter, 50)] * 3, workers=1, inline=1)
    vector.reset()
    vector.step_async([0, 0, 0])
    uses: list[Any] = [
        vector.recv,
        lambda: vector.send([0], [0]),
        vector.async_reset,
        lambda: vector.step([0, 0, 0]),
        lambda: vector.rollout(steps=2),
        lambda: vector.call("length"),
        lambda: vector.batch_size,
    ]
    for use in uses:
        with pytest.raises(AlreadyPendingCallError, match="call `step_wait` first"):
            use()
    assert vector.step_wait()[0].tolist() == [1, 1, 1]
    vector.close()


@pytest.mark.parametrize("slots", [[], [0, 0], [0, 3], [-1], [0.0, 1.0], [1.5], ["a"], [True, False, True]], ids=repr)
def test_slots_that_are_none(slots: Any) -> None:
    vector = VectorEnv([of(Counter, 50)] * 3, worker_options=WorkerOptions(backend="serial"))
    vector.async_reset()
    vector.recv(min=3)
    message = "distinct integers in 0..2"
    with pytest.raises(UsageError, match=message):
        vector.send([0, 0], slots)
    with pytest.raises(UsageError, match=message):
        vector.reset_at(slots)
    with pytest.raises(UsageError, match=message):
        vector.call_at(slots, "length")
    assert vector.step([0, 0, 0])[0].tolist() == [1, 1, 1]
    vector.close()


@pytest.mark.parametrize("steps", [0, -1, 2.5, "3", None])
def test_a_rollout_of_no_steps(steps: Any) -> None:
    vector = VectorEnv([of(Counter, 50)] * 2, worker_options=WorkerOptions(backend="serial"))
    with pytest.raises(UsageError, match="steps must be a whole number"):
        vector.rollout(steps=steps)
    assert vector.rollout(steps=2).observations.tolist() == [[0, 0], [1, 1]]
    vector.close()


class Duck:
    """No gymnasium.Env, but for what is needed of one: two spaces, reset and step."""

    observation_space = gs.Box(-1, 1, (2,), np.float32)
    action_space = gs.Discrete(3)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: int) -> Any:
        self.t += 1
        return np.full(2, self.t / 8, np.float32), 1.0, self.t == 3, False, {}


@SETUPS
def test_anything_that_steps_like_an_environment(setup: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    vector = VectorEnv([Duck] * 3, **setup)  # type: ignore[list-item]
    assert (vector.spec, vector.render_mode) == (None, None)
    vector.reset(seed=1)
    assert [vector.step([0, 1, 2])[0][2, 1] for _ in range(5)] == [0.125, 0.25, 0.375, 0, 0.125]
    assert vector.get_attr("t") == (1, 1, 1)
    vector.set_attr("t", [0, 1, 2])
    assert vector.step([0, 0, 0])[2].tolist() == [False, False, True]
    with pytest.raises(AttributeError, match="no attribute 'render'"):
        vector.render()
    vector.close()
    assert caplog.records == []  # it has no close() to be called
