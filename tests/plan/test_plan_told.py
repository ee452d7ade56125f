"""What planning says of a mistake, a death and a reward that is none; and what plangym's users override."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from plan_envs import Walk

from treadle.errors import TaskRaised, UsageError, WorkerDied, WorkerTimeout
from treadle.plan import ExternalProcess, GymPlanEnv, ParallelEnv
from treadle.worker.options import WorkerOptions


def walks(n: int = 2, **options: Any) -> ParallelEnv:
    return ParallelEnv(GymPlanEnv, Walk, n_workers=n, **options)


@pytest.mark.parametrize("at", [0, 5, 7])
def test_a_death_names_the_item_that_the_worker_was_at(at: int) -> None:
    actions = [0] * 8
    actions[at] = 3
    with walks() as env:
        state, _, _ = env.reset()
        with pytest.raises(WorkerDied, match=rf"^slot \d .* in item {at} of a batch: .*exited with code 7") as caught:
            env.step_batch(actions, [state] * 8)
        assert caught.value.where.item == at


def test_a_death_in_a_rollout_and_an_item_that_always_kills_are_named() -> None:
    with walks(on_failure="restart", worker_options=WorkerOptions(max_restarts=1)) as env:
        state, _, _ = env.reset()
        with pytest.raises(WorkerDied, match="in item 2 of a batch: "):
            env.rollout_batch([state] * 4, [[0, 0], [0, 0], [0, 3], [0, 0]])


def test_a_missed_deadline_names_the_item() -> None:
    with walks(1, step_timeout=2.0) as env:
        state, _, _ = env.reset()
        with pytest.raises(WorkerTimeout, match="in item 1 of a batch: ") as caught:
            env.step_batch([0, 4, 0], [state] * 3)
        assert caught.value.where.item == 1


def test_a_batch_of_one_process_names_the_item_and_a_call_names_none() -> None:
    with ExternalProcess(lambda: GymPlanEnv(Walk)) as process, pytest.raises(WorkerDied, match="in item 1 of a"):
        process.step_batch([0, 3])
    with ExternalProcess(lambda: GymPlanEnv(Walk)) as process:
        process.step_batch([0, 1, 0])
        with pytest.raises(WorkerDied) as caught:
            process.step(3)
        assert caught.value.where.item is None


class Rewards(gym.Env):
    """Gives whatever reward its action stands for."""

    observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(6)
    given = (1, 0.5, np.float32(0.25), True, None, "1.5")

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> Any:
        return np.zeros(1, np.float32), self.given[action], False, False, {}


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_rollouts_refuse_a_reward_that_is_no_number(backend: str) -> None:
    with ParallelEnv(GymPlanEnv, Rewards, n_workers=1, worker_options=WorkerOptions(backend=backend)) as env:
        state, _, _ = env.reset()
        assert env.rollout_batch([state], [[0, 1, 2, 3]]).rewards.tolist() == [[1.0, 0.5, 0.25, 1.0]]
        for action in (4, 5):
            with pytest.raises(TaskRaised, match=rf"item 1 .*a number as its reward, got {Rewards.given[action]!r}"):
                env.rollout_batch([state] * 2, [[0, 1], [2, action]])


class Counted(ParallelEnv):
    """Overrides what plangym's page says can be overridden, with its signature."""

    def make_transitions(self, actions: Any, states: Any = None, dt: Any = 1, return_state: bool | None = None) -> Any:
        self.seen = len(actions)
        return super().make_transitions(actions, states, dt, return_state)


class ByHand(ParallelEnv):
    """Deals the chunks itself, as plangym's own environments do."""

    def make_transitions(self, actions: Any, states: Any = None, dt: Any = 1, return_state: bool | None = None) -> Any:
        wanted = states is not None if return_state is None else return_state
        chunks = self.batch_step_data(actions, states, dt, self.n_workers)
        results = [
            self.plan_env.step_batch(actions=acted, states=begun, dt=dts, return_state=wanted)
            for begun, acted, dts in zip(*chunks, strict=True)
        ]
        return self.unpack_transitions(results, wanted)


@pytest.mark.parametrize("kind", [Counted, ByHand])
def test_transitions_can_be_overridden_with_the_older_signature(kind: Any) -> None:
    with (
        kind(GymPlanEnv, "CartPole-v1", n_workers=2) as env,
        ParallelEnv(GymPlanEnv, "CartPole-v1", n_workers=2) as own,
    ):
        env.seed(3)
        own.seed(3)
        state, _, _ = env.reset()
        own.reset()
        mine = env.step_batch([0, 1, 1, 0, 1], [state] * 5, [1, 2, 1, 1, 3])
        theirs = own.step_batch([0, 1, 1, 0, 1], [state] * 5, [1, 2, 1, 1, 3])
        assert len(mine) == 6
        np.testing.assert_array_equal(np.stack(mine[1]), np.stack(theirs[1]))
        assert [info["n_step"] for info in mine[-1]] == [1, 2, 1, 1, 3]
        assert len(env.step_batch([0, 1])) == 5


def test_the_parts_of_a_batch_as_plangym_cuts_them() -> None:
    states, actions, dts = ParallelEnv.batch_step_data(list(range(9)), None, 2, 8)
    assert [len(chunk) for chunk in actions] == [2, 2, 2, 2, 1]
    assert states == [[None] * 2] * 4 + [[None]]
    assert [chunk.tolist() for chunk in dts] == [[2, 2]] * 4 + [[2]]
    assert ParallelEnv.unpack_transitions([([1], [2], [3], [4], [5]), ([6], [7], [8], [9], [0])], False)[0] == [1, 6]
    with pytest.raises(UsageError, match="result 0 has 5 parts, 6 are due"):
        ParallelEnv.unpack_transitions([([1], [2], [3], [4], [5])], True)
    with pytest.raises(UsageError, match="batch_size"):
        ParallelEnv.batch_step_data([1], None, 1, 0)
