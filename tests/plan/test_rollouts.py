"""Rollouts and fan-out: several steps, and several items, from one state."""

import contextlib
import gc
import weakref
from typing import Any

import numpy as np
import pytest
from plan_envs import Walk, same

from treadle.errors import TaskRaised, UsageError
from treadle.plan import GymPlanEnv, ParallelEnv
from treadle.worker.options import WorkerOptions


@pytest.fixture(params=["serial", "thread", "process"], scope="module")
def shared(request: pytest.FixtureRequest) -> Any:
    with ParallelEnv(GymPlanEnv, Walk, n_workers=2, worker_options=WorkerOptions(backend=request.param)) as made:
        made.step_batch([0], [made.get_state()])  # lays trays, which stay as long as the fixture
        yield made


@pytest.fixture
def env(shared: ParallelEnv) -> ParallelEnv:
    shared.seed(3)
    shared.reset()
    return shared


def test_fan_out(env: ParallelEnv) -> None:
    states = [env.get_state(), env.step(1, dt=4, return_state=True)[0], env.step(1, dt=2, return_state=True)[0]]
    actions = [0, 1] * 6
    expected = env.step_batch(actions, [state for state in states for _ in range(4)])
    same(env.step_batch(actions, states, repeat=4), expected)


def test_rollouts_are_steps(env: ParallelEnv) -> None:
    rng = np.random.default_rng(0)
    states = [env.get_state(), env.step(1, dt=6, return_state=True)[0]]
    sequences = rng.integers(2, size=(6, 25))
    found = env.rollout_batch(states, sequences, repeat=3, return_state=True, observations="all", dt=[1, 2, 1, 1, 1, 2])
    alone = GymPlanEnv(Walk, autoreset=False)
    for item, dt in enumerate([1, 2, 1, 1, 1, 2]):
        alone.set_state(states[item // 3])
        rewards, seen, end = [], [], False
        for action in sequences[item]:
            observation, reward, end, _, _ = alone.step(action, dt=dt)
            rewards.append(reward)
            seen.append(observation)
            if end:
                break
        assert found.lengths[item] == len(rewards)
        assert found.terminated[item] == end
        np.testing.assert_array_equal(found.rewards[item], rewards + [0.0] * (25 - len(rewards)))
        np.testing.assert_array_equal(found.observations[item], seen)
        assert found.states[item] == alone.get_state()
    assert len(found) == 6
    np.testing.assert_allclose(found.returns, found.rewards.sum(1))
    last = env.rollout_batch(states, sequences, repeat=3, return_state=True, observations="last")
    assert last.observations.shape == (6, 2)
    more = env.rollout_batch(last.states, [[1], [0, 1], [1], [1], [1, 1, 1], [0]])
    assert more.rewards.shape == (6, 3)
    assert more.states is more.observations is None


@pytest.mark.parametrize(
    ("states", "sequences", "options", "text"),
    [
        (1, [], {}, "an empty batch"),
        (1, [[0], [1]], {}, "1 states for 2 actions: item 1"),
        (2, [[0], []], {}, "item 1 has no actions"),
        (0, [[0]], {}, "rollouts begin in states"),
        (1, [[0]], {"observations": "some"}, "observations must be"),
        (1, [[0]], {"dt": 0}, "dt of item 0"),
        (1, [3], {}, "the actions of item 0 must be a sequence, one for each step"),
    ],
)
def test_bad_rollouts(env: ParallelEnv, states: int, sequences: Any, options: Any, text: str) -> None:
    given = [env.get_state()] * states if states else None
    with pytest.raises(UsageError, match=text):
        env.rollout_batch(given, sequences, **options)
    with pytest.raises(KeyError, match="item 1 of 2"):
        env.rollout_batch([env.get_state()] * 2, [[0], [0, 2]])
    assert env.rollout_batch([env.get_state()], [[0]]).lengths.tolist() == [1]


def test_any_number_of_workers_gives_the_same_bytes() -> None:
    results = []
    for workers in (1, 2, 3):
        with ParallelEnv(
            GymPlanEnv, Walk, n_workers=workers, worker_options=WorkerOptions(start_method="forkserver")
        ) as env:
            env.seed(9)
            states = [env.reset()[0]]
            states += [env.step(1, return_state=True)[0] for _ in range(4)]
            for _ in range(3):  # the more is known of what items take, the more chunks there are
                steps = env.step_batch([0, 1] * 10, states, repeat=4)
                played = env.rollout_batch(steps[0], [[0, 1, 1]] * 20, return_state=True)
            results.append([*steps, played.rewards, played.states])
    same(results[1], results[0])
    same(results[2], results[0])


class Unsendable:
    def __reduce__(self) -> Any:
        raise ValueError("it stays here")


@pytest.mark.parametrize("action", [2, Unsendable()], ids=["raises", "cannot be sent"])
def test_an_error_that_was_caught_holds_no_states(action: Any) -> None:
    with ParallelEnv(
        GymPlanEnv, Walk, n_workers=2, array_state=True, worker_options=WorkerOptions(recorder=False)
    ) as env:
        states = [env.reset()[0]] * 2
        held = weakref.ref(states[0])
        gc.disable()
        try:
            with contextlib.suppress(TaskRaised, UsageError):
                env.step_batch([0, action], states)
            del states
            assert held() is None
        finally:
            gc.enable()
