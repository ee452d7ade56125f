"""`PlanEnv`: steps from given states, repeated actions, ends, infos, copies."""

import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from plan_envs import Abacus, Walk

from conftest import require
from treadle.errors import StateError, UsageError
from treadle.plan import Keeper, PlanEnv, check_state, make
from treadle.plan.gym_plan_env import GymPlanEnv


def test_a_step_is_the_sum_of_its_actions() -> None:
    env = Abacus("abacus", frameskip=2, return_image=True)
    state, _, info = env.reset()
    np.testing.assert_array_equal(state, [0, 0])
    assert info["rgb"].shape == (2, 2, 3)
    _, reward, terminal, truncated, info = env.step(2, dt=2)
    assert (reward, terminal, truncated, info["n_step"], info["dt"]) == (8.0, False, False, 4, 2)
    assert info["rgb"][0, 0, 0] == 4
    _obs, reward, terminal, _, info = env.step(1, dt=3)
    assert (reward, terminal, info["n_step"], info["dt"]) == (1.0, True, 1, 3), "it stops when the episode ends"


class Wordy(Walk):
    """Says in its infos what a planning step says too, but means something else by it."""

    def step(self, action: int) -> Any:
        return *super().step(action)[:4], {"n_step": -1, "dt": "a word", "rgb": "red"}


class Redone(GymPlanEnv):
    """The same by the template, whose parts a subclass may change."""

    def process_info(self, info: dict[str, Any], **step: Any) -> dict[str, Any]:
        return dict(info)


@pytest.mark.parametrize("kind", [GymPlanEnv, Redone])
def test_an_environments_own_words_are_kept(kind: type[GymPlanEnv]) -> None:
    env = kind(Wordy)
    state, _, _ = env.reset()
    told = {"n_step": 2, "dt": 2, "env_n_step": -1, "env_dt": "a word", "rgb": "red"}
    assert env.step(0, dt=2)[-1] == told
    assert env.step_batch([0], [state], 2)[-1] == [told]


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("return_state", [None, True, False])
def test_the_rule_of_return_state(given: bool, return_state: bool | None) -> None:
    env = Abacus("abacus")
    state, _, _ = env.reset()
    result = env.step(1, state=state if given else None, return_state=return_state)
    wanted = given if return_state is None else return_state
    assert len(result) == 5 + wanted
    if wanted:
        np.testing.assert_array_equal(result[0], [1, 1])
    batch = env.step_batch([1, 2], [state, state] if given else None, return_state=return_state)
    assert len(batch) == 5 + wanted
    assert all(isinstance(column, list) and len(column) == 2 for column in batch)
    assert len(env.step_batch([1])) == 6, "in a batch of its own the state is returned unless told not to"


@pytest.mark.parametrize("autoreset", [True, False])
def test_the_state_of_an_end_is_the_end(autoreset: bool) -> None:
    env = Abacus("abacus", autoreset=autoreset)
    env.reset()
    state, _obs, _, terminal, _, _ = env.step(1, dt=9, return_state=True)
    assert terminal
    np.testing.assert_array_equal(state, [5, 5])
    np.testing.assert_array_equal(env.get_state(), [0, 0] if autoreset else [5, 5])


def test_batches_hold_values_not_views() -> None:
    env = Abacus("abacus")
    env.reset()
    _, observations, *_ = env.step_batch([1, 1, 1])
    assert [tuple(o) for o in observations] == [(1, 1), (2, 2), (3, 3)]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"actions": []}, "an empty batch"),
        ({"actions": [0, 1], "states": "one"}, "1 states for 2 actions: item 1 has no pair"),
        ({"actions": [0, 1], "states": "mixed"}, "item 1 has no state and others have"),
        ({"actions": [0, 1], "dt": [1, 0]}, "dt of item 1 must be at least 1, got 0"),
        ({"actions": [0, 1], "dt": 0}, "dt of item 0 must be at least 1"),
        ({"actions": [0, 1], "dt": 1.5}, "dt of item 0 must be a positive integer, got 1.5"),
        ({"actions": [0, 1], "dt": [1, 1, 1]}, "3 dts for 2 actions: item 2 has no pair"),
        ({"actions": 3}, "actions must be a sequence"),
        ({"actions": [0], "return_state": "yes"}, "return_state must be"),
    ],
)
def test_bad_batches_name_the_item(arguments: dict[str, Any], text: str) -> None:
    env = Abacus("abacus")
    state, _, _ = env.reset()
    if "states" in arguments:
        arguments = {**arguments, "states": {"one": [state], "mixed": [state, None]}[arguments["states"]]}
    with pytest.raises(UsageError, match=text):
        env.step_batch(**arguments)
    with pytest.raises(ValueError, match="dt must be at least 1"):
        env.step(0, dt=0)
    assert env.step_batch([1], [None])[3] == [False], "a list of None is no states"


def test_a_gym_environment_carries_its_state() -> None:
    env = make("CartPole-v1")
    env.seed(3)
    state, obs, _info = env.reset()
    plain = gym.make("CartPole-v1")
    expected, _ = plain.reset(seed=3)
    np.testing.assert_array_equal(obs, expected)
    trajectory = [env.step(a)[0].tobytes() for a in (0, 1, 1, 0)]
    for _ in range(2):
        env.set_state(state)
        assert [env.step(a)[0].tobytes() for a in (0, 1, 1, 0)] == trajectory
    assert env.obs_shape == (4,)
    assert env.action_shape == ()
    assert env.action_space.contains(env.sample_action())
    assert env.STATE_IS_ARRAY is False
    assert "CartPole-v1" in repr(env)
    env.close()
    env.close()


def test_array_states_are_arrays_of_one_object() -> None:
    env = make("CartPole-v1", array_state=True)
    state, _, _ = env.reset()
    assert env.STATE_IS_ARRAY
    assert state.shape == (1,)
    assert (state == env.get_state()).all()
    assert env.step(0, state=state)[0].shape == (1,)


def test_setup_can_wait_and_then_it_pickles() -> None:
    env = GymPlanEnv("CartPole-v1", delay_setup=True)
    assert env._gym_env is None
    copied = pickle.loads(pickle.dumps(env))
    assert copied._gym_env is None
    copied.reset()
    copied.step(1)
    later = pickle.loads(pickle.dumps(copied))
    assert later.get_state() == copied.get_state()
    np.testing.assert_array_equal(later.step(0)[0], copied.step(0)[0])


def test_a_clone_has_all_arguments_and_no_state() -> None:
    env = GymPlanEnv("CartPole-v1", frameskip=3, autoreset=False, array_state=True, remove_time_limit=True)
    env.seed(1)
    env.reset()
    clone = env.clone(frameskip=2)
    assert (clone.frameskip, clone.autoreset, clone.STATE_IS_ARRAY, clone.remove_time_limit) == (2, False, True, True)
    assert "TimeLimit" not in str(clone.gym_env)
    assert (clone.get_state() != env.get_state()).all()


def test_pictures() -> None:
    require("pygame")
    env = GymPlanEnv("CartPole-v1", obs_type="grayscale", render_mode="rgb_array", return_image=True)
    _, obs, info = env.reset()
    assert obs.shape == env.obs_shape == env.get_image().shape[:2]
    assert info["rgb"].shape == env.img_shape
    obs, *_, info = env.step(0)
    assert obs.dtype == np.uint8
    assert info["rgb"].shape == env.img_shape
    env.close()
    plain = GymPlanEnv("CartPole-v1")
    assert plain.img_shape is None
    with pytest.raises(UsageError, match="render_mode='rgb_array'"):
        plain.get_image()
    with pytest.raises(UsageError, match="needs render_mode"):
        GymPlanEnv("CartPole-v1", return_image=True)


def test_atari_makes_its_own_kinds_of_observation() -> None:
    require("ale_py")
    env = make("ALE/Pong-v5", obs_type="ram")
    assert env.obs_shape == (128,)
    assert env.get_image().shape == (210, 160, 3)
    assert env.obs_type == "ram"


def test_a_state_of_another_environment_is_refused() -> None:
    first, second = make("CartPole-v1"), make("Pendulum-v1")
    with pytest.raises(StateError, match=r"state of .*CartPole-v1.*Pendulum-v1"):
        second.step([0.0], state=first.get_state())


def test_check_state_of_planning_environments() -> None:
    assert check_state(lambda: GymPlanEnv(Walk)).steps == 360
    assert check_state(Abacus("abacus"), steps=12).kind == "abacus"
    with pytest.raises(UsageError, match="steps must be a whole number of at least 1"):
        check_state(Abacus("abacus"), steps=0)
    with pytest.raises(UsageError, match="actions is a sequence of them"):
        check_state("CartPole-v1", actions=[])


class Late(PlanEnv):
    """What a newcomer writes: it cannot be stepped before its first reset."""

    def setup(self) -> None:
        self.env = gym.make("CartPole-v1")

    def apply_reset(self, seed: int | None = None) -> Any:
        return self.env.reset(seed=seed)

    def apply_action(self, action: Any) -> Any:
        return self.env.step(action)

    @property
    def action_space(self) -> gym.Space:
        return self.env.action_space

    def get_state(self) -> Any:
        return Keeper(self.env).get()

    def set_state(self, state: Any) -> None:
        Keeper(self.env).set(state)


def test_check_state_resets_both_environments_first() -> None:
    assert check_state(lambda: Late("late"), steps=9).steps == 54
