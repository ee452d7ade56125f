"""A chunk's steps are those of `PlanEnv.step`, also where an environment uses its memory again or makes itself anew."""

import copy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from plan_envs import same

from treadle.errors import TaskRaised
from treadle.plan import GymPlanEnv, ParallelEnv
from treadle.worker.options import WorkerOptions

ACTIONS = [0, 1, 2, 1, 0, 2, 2, 1, 1, 0, 0, 0]


class Reused(gym.Env):
    """Five steps an episode. Observation, rewards and the mask of its info are always the same arrays."""

    observation_space = gym.spaces.Box(0, 9, (1,), np.float32)
    action_space = gym.spaces.Discrete(3)

    def __init__(self) -> None:
        self.seen, self.paid, self.mask = np.zeros(1, np.float32), np.zeros(2), np.zeros(3, int)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.seen[:], self.paid[:], self.mask[:] = 0, 0, 0
        return self.seen, {"deep": {"mask": self.mask}}

    def step(self, action: int) -> Any:
        self.seen += 1
        self.paid += action
        self.mask[action] += 1
        return self.seen, self.paid, bool(self.seen[0] >= 5), False, {"deep": {"mask": self.mask}}


class Other(Reused):
    """The same, by another name."""


class Renewed(gym.Wrapper):
    """Makes the environment inside anew with each episode."""

    def reset(self, **kwargs: Any) -> Any:
        self.env = Reused()
        return self.env.reset(**kwargs)


class Going(gym.Wrapper):
    """Goes on in an environment made anew when the one inside has ended, in the middle of its step."""

    def step(self, action: int) -> Any:
        seen, paid, ended, truncated, info = self.env.step(action)
        if ended:
            self.env = Reused()
            self.env.reset()
        return seen, paid, False, truncated, info


class Turning(gym.Wrapper):
    """Action 2 puts another kind of environment into the place of the one inside."""

    def step(self, action: int) -> Any:
        if action == 2:
            self.env = Other()
            self.env.reset()
        return self.env.step(action)


class Rebuilding(GymPlanEnv):
    """Builds everything anew with each episode."""

    _building = False

    def apply_reset(self, seed: int | None = None) -> Any:
        if not self._building:
            self._building = True
            self.setup()
            self._building = False
        return self.gym_env.reset(seed=seed)


def wrapped(wrapper: Any) -> Any:
    def make() -> gym.Env:
        return wrapper(Reused())

    return make


@pytest.mark.parametrize("given", [False, True], ids=["on", "given"])
@pytest.mark.parametrize(
    ("plan_env", "env"),
    [(GymPlanEnv, Reused), (Rebuilding, Reused), *((GymPlanEnv, wrapped(each)) for each in (Renewed, Going))],
    ids=["reused", "rebuilding", "renewed", "going"],
)
def test_items_share_nothing_and_steps_are_the_templates(plan_env: Any, env: Any, given: bool) -> None:
    alone = plan_env(env)
    alone.seed(3)
    start = alone.reset()[0]
    states = [start] * len(ACTIONS) if given else None
    rows = [copy.deepcopy(alone.step(action, start if given else None, 1, True)) for action in ACTIONS]
    with ParallelEnv(plan_env, env, n_workers=1, worker_options=WorkerOptions(backend="serial")) as found:
        found.sync_states(start)
        same(found.step_batch(ACTIONS, states, return_state=True), tuple(map(list, zip(*rows, strict=True))))


def test_an_episodes_last_reward_and_info_are_not_those_of_the_reset_that_follows() -> None:
    alone = GymPlanEnv(Reused)
    alone.reset()
    last = [alone.step(action) for action in ACTIONS[:5]][-1]
    with ParallelEnv(GymPlanEnv, Reused, n_workers=1, worker_options=WorkerOptions(backend="serial")) as env:
        in_batch = [column[-1] for column in env.step_batch(ACTIONS[:5], return_state=False)]
    for _, reward, *_, info in (last, in_batch):
        assert reward.tolist() == [4, 4]
        assert info["deep"]["mask"].tolist() == [2, 2, 1]


def test_a_kind_that_changes_within_a_chunk_is_that_of_each_state() -> None:
    with ParallelEnv(GymPlanEnv, wrapped(Turning), n_workers=1, worker_options=WorkerOptions(backend="serial")) as env:
        start = env.reset()[0]
        kinds = [state.kind for state in env.step_batch([0, 2, 1], return_state=True)[0]]
        assert kinds == ["Turning<test_walks.Reused>", "Turning<test_walks.Other>", "Turning<test_walks.Other>"]
    with (
        ParallelEnv(GymPlanEnv, wrapped(Turning), n_workers=1, worker_options=WorkerOptions(backend="serial")) as env,
        pytest.raises(TaskRaised, match=r"item 2 of 3.*Turning<test_walks\.Other"),
    ):
        env.step_batch([0, 2, 1], [start] * 3)
