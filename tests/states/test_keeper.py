"""A state is complete: the same actions from it give the same again, for every environment that is known."""

import contextlib
import re
from collections import deque
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import wrappers as w

from conftest import require
from treadle.errors import StateDiffers, StateError, UsageError
from treadle.plan.checking import check_state
from treadle.plan.gym_plan_env import GymPlanEnv
from treadle.states.keeper import Keeper
from treadle.states.replay import Replayed


def made(env_id: str, **kwargs: Any) -> gym.Env:
    """An environment of an id whose package is imported first."""
    if env_id.startswith("ALE/"):
        gym.register_envs(require("ale_py"))
    elif env_id.startswith(("MiniGrid", "BabyAI")):
        gym.register_envs(require("minigrid"))
    elif env_id in ("Hopper-v5", "Ant-v5", "Humanoid-v5"):
        require("mujoco")
    return gym.make(env_id, **kwargs)


CLASSIC = ["CartPole-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1"]
OTHERS = ["MiniGrid-DoorKey-5x5-v0", "MiniGrid-Dynamic-Obstacles-5x5-v0", "BabyAI-GoToObj-v0", "Hopper-v5", "Ant-v5"]


@pytest.mark.parametrize("env_id", CLASSIC + OTHERS)
def test_states_are_complete(env_id: str) -> None:
    report = check_state(lambda: made(env_id), steps=60, points=2)
    assert report.steps == 240
    assert report.nbytes < 40_000


@pytest.mark.parametrize(
    ("sticky", "frameskip", "obs"), [(0.25, 4, "rgb"), (0.0, 4, "ram"), (0.25, (2, 5), "ram"), (0.5, 1, "ram")]
)
def test_ale_is_complete(sticky: float, frameskip: Any, obs: str) -> None:
    def make() -> gym.Env:
        return made("ALE/Boxing-v5", repeat_action_probability=sticky, frameskip=frameskip, obs_type=obs)

    assert check_state(make, steps=40, points=3).steps == 240


def test_ale_puts_back_the_action_that_sticks() -> None:
    """An emulator that did something else meanwhile repeats what the state says (`cloneState` alone fails)."""
    envs = [made("ALE/Boxing-v5", obs_type="ram", repeat_action_probability=0.5, frameskip=2) for _ in range(2)]
    first, other = envs
    keepers = [Keeper(env) for env in envs]
    first.reset(seed=1)
    other.reset(seed=2)
    rng = np.random.default_rng(0)
    differ_without = 0
    for _ in range(150):
        state = keepers[0].get()
        bare = first.unwrapped.ale.cloneState(include_rng=True)
        action, others = int(rng.integers(18)), rng.integers(18, size=2).tolist()
        keepers[1].set(state)
        found = other.step(action)[0]
        for each in others:
            other.step(each)
        other.unwrapped.ale._ale.restoreState(bare)
        without = other.step(action)[0]
        expected = first.step(action)[0]
        np.testing.assert_array_equal(found, expected)
        differ_without += not np.array_equal(without, expected)
    assert differ_without > 0


def test_ale_without_the_emulators_randomness_is_caught() -> None:
    def make() -> GymPlanEnv:
        require("ale_py")
        return GymPlanEnv("ALE/Boxing-v5", obs_type="ram", randomness=False)

    with pytest.raises(StateDiffers, match="incomplete") as caught:
        check_state(make, steps=60)
    assert caught.value.field.startswith(("observation", "reward"))
    assert caught.value.step >= 0
    assert "the observation[" in str(caught.value)  # which byte, not two arrays that begin alike


def test_ale_needs_a_reset_before_its_sticky_action_is_known() -> None:
    env = made("ALE/Boxing-v5", obs_type="ram", repeat_action_probability=1.0)
    env.reset(seed=0)
    keeper = Keeper(env)
    env.step(1)
    keeper.env.unwrapped.ale.base = None
    with pytest.raises(StateError, match="reset the environment"):
        for _ in range(10):
            keeper.get()
    env.reset()
    keeper.get()


WRAPPED = {
    "time limit": lambda: w.TimeLimit(gym.make("CartPole-v1").unwrapped, 9),
    "frame stack": lambda: w.FrameStackObservation(gym.make("CartPole-v1"), 3),
    "statistics": lambda: w.RecordEpisodeStatistics(gym.make("CartPole-v1")),
    "autoreset": lambda: w.Autoreset(gym.make("CartPole-v1")),
    "time aware": lambda: w.TimeAwareObservation(gym.make("CartPole-v1")),
    "delay": lambda: w.DelayObservation(gym.make("CartPole-v1"), 2),
    "normalize": lambda: w.NormalizeReward(w.NormalizeObservation(gym.make("CartPole-v1"))),
    "sticky": lambda: w.StickyAction(gym.make("CartPole-v1"), 0.5),
    "atari": lambda: w.FrameStackObservation(
        w.AtariPreprocessing(made("ALE/Breakout-v5", frameskip=1), screen_size=42, noop_max=3), 2
    ),
}


def test_a_state_shows_what_it_is_of() -> None:
    with contextlib.closing(gym.make("CartPole-v1")) as env:
        env.reset(seed=0)
        kind = "TimeLimit<OrderEnforcing<PassiveEnvChecker<CartPole-v1>>>"
        assert re.fullmatch(rf"EnvState\('{kind}', \d+ bytes\)", repr(Keeper(env).take()))


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.heavy if n == "atari" else ()) for n in WRAPPED])
def test_wrappers_are_kept(name: str) -> None:
    if name == "atari":
        require("cv2")
    assert check_state(WRAPPED[name], steps=40, points=2).points == 2


COUNTS = deque([0])


class Counting(gym.Wrapper):
    """Counts outside of its attributes, so no state has the count."""

    counts = COUNTS

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.counts[0] += 1
        return observation, reward, terminated, truncated, {**info, "count": self.counts[0]}


def test_what_is_no_environment_is_refused() -> None:
    with pytest.raises(UsageError, match="check_state takes an environment"):
        check_state(None)  # type: ignore[arg-type]


def test_a_counter_that_is_not_in_the_state_is_caught() -> None:
    with pytest.raises(StateDiffers, match=r"step 0 the info\['count'\] is") as caught:
        check_state(Counting(gym.make("CartPole-v1")))
    assert (caught.value.step, caught.value.field) == (0, "info['count']")
    assert caught.value.again == caught.value.first + 65


class Global(gym.Env):
    """Draws from NumPy's global generator."""

    observation_space = gym.spaces.Box(0, 1, ())
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.random.random(), {}

    def step(self, action: Any) -> Any:
        return np.random.random(), 0.0, False, False, {}


def test_global_generators_are_kept_on_request() -> None:
    with pytest.raises(StateDiffers, match="global_rngs=True"):
        check_state(Global())
    before = np.random.get_state()
    try:
        assert check_state(Global(), global_rngs=True).steps == 180
    finally:
        np.random.set_state(before)


class Generator(gym.Env):
    """Its story is a running generator, which nothing can copy."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, ())
    action_space = gym.spaces.Discrete(5)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.total = 0.0
        self.story = (self.np_random.random() for _ in range(1000))
        return np.float64(0.0), {}

    def step(self, action: Any) -> Any:
        self.total += next(self.story) * action
        return np.float64(self.total), 1.0, self.total > 40, False, {}


def test_what_cannot_be_captured_is_named_and_can_be_replayed() -> None:
    env = Generator()
    env.reset(seed=0)
    with pytest.raises(StateError, match=r"Generator\.story .*Replayed"):
        Keeper(env).get()
    assert check_state(Replayed(Generator()), steps=30).kind == "Replayed<test_keeper.Generator>"
    assert isinstance(GymPlanEnv(Generator).gym_env, Replayed)
    assert check_state(lambda: GymPlanEnv(Generator), steps=30).steps == 180


def test_a_replayed_environment_plays_only_what_is_new() -> None:
    played = []

    class Loud(Generator):
        def step(self, action: Any) -> Any:
            played.append(action)
            return super().step(action)

    env = Replayed(Loud())
    keeper = Keeper(env)
    env.reset(seed=3)
    states = []
    for action in (1, 2, 3):
        env.step(action)
        states.append(keeper.get())
    played.clear()
    keeper.set(states[0])
    assert played == [1]
    keeper.set(states[2])
    assert played == [1, 2, 3]


def test_a_state_of_another_environment_is_refused() -> None:
    first, second = Keeper(gym.make("CartPole-v1")), Keeper(w.TimeLimit(gym.make("CartPole-v1"), 5))
    first.env.reset(seed=0)
    with pytest.raises(StateError, match="state of TimeLimit<OrderEnforcing"):
        second.set(first.get())
    with pytest.raises(StateError, match="an EnvState, got int"):
        second.set(3)  # type: ignore[arg-type]


def test_states_are_values() -> None:
    env = gym.make("CartPole-v1")
    env.reset(seed=0)
    keeper = Keeper(env)
    state = keeper.get()
    env.step(0)
    other = keeper.get()
    assert state == state.copy() == keeper.get() or state != other
    assert state != other
    assert len({state, other, state.copy()}) == 2
    keeper.set(state)
    np.testing.assert_array_equal(env.step(0)[0], env.unwrapped.state.astype(np.float32))


def test_a_new_wrapper_is_seen() -> None:
    env: gym.Env = gym.make("CartPole-v1")
    env.reset(seed=0)
    keeper = Keeper(env)
    kind = keeper.kind
    keeper.env = w.TimeLimit(env, 3)
    assert keeper.kind == f"TimeLimit<{kind}>"
