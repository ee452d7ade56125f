"""Workers that own a vectorised environment: the rows of its share, side by side, are what it returns alone."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces as gs
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from small_envs import Counter, Echo, assert_same, copied, of

import treadle
from treadle.errors import UsageError
from treadle.vector.gymnasium import VectorEnv
from treadle.vector.owned import OwnedVectors, rows_of_infos

N, STEPS = 6, 40
SETUPS: list[tuple[dict[str, Any], list[int]]] = [  # options, and how many rows each environment has
    ({"workers": 1, "inline": 0}, [6]),
    ({"workers": 2, "inline": 0}, [3, 3]),
    ({"workers": 1, "inline": 2}, [2, 4]),
    ({"backend": "thread", "workers": 2}, [3, 3]),
    ({"backend": "serial"}, [6]),
]
modes = pytest.mark.parametrize("mode", AutoresetMode, ids=lambda mode: mode.value)


def show(value: Any) -> str | None:
    return "-".join(f"{key}={each}" for key, each in value.items()) if isinstance(value, dict) else None


def sync(env: Callable[[], gym.Env], mode: AutoresetMode = AutoresetMode.NEXT_STEP) -> Callable[..., Any]:
    """Gymnasium's own vector as the one to be owned: it seeds its rows s, s + 1, ..., so any split is the same."""
    return lambda num_envs: SyncVectorEnv([env] * num_envs, autoreset_mode=mode)


def play(vector: gym.vector.VectorEnv, actions: np.ndarray) -> list[Any]:
    results: list[Any] = [copied(vector.reset(seed=7))]
    for batch in actions:
        results.append(copied(vector.step(batch)))
        over = results[-1][2] | results[-1][3]
        if vector.metadata["autoreset_mode"] is AutoresetMode.DISABLED and over.any():
            results.append(copied(vector.reset(options={"reset_mask": over})))
    return results


@pytest.mark.parametrize(("setup", "shares"), SETUPS, ids=show)
def test_numpy_cartpole(setup: dict[str, Any], shares: list[int]) -> None:
    actions = np.random.default_rng(0).integers(0, 2, (STEPS, N))
    expected, at = [], 0
    for rows in shares:
        alone = CartPoleVectorEnv(num_envs=rows)
        expected.append([alone.reset(seed=7 + at)[:1], *(alone.step(a)[:4] for a in actions[:, at : at + rows])])
        at += rows
    with closing(treadle.make_vec(CartPoleVectorEnv, N, owned=True, **setup)) as vector:
        found = play(vector, actions)
        assert vector.autoreset_mode is vector.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
        ends = sum((result[2] | result[3]).sum() for result in found[1:])
        assert ends >= N
        assert (vector.stats().steps < STEPS).all()
    for ours, *theirs in zip(found, *expected, strict=True):
        assert ours[-1] == {}
        for part, *rows in zip(ours, *theirs):
            np.testing.assert_array_equal(part, np.concatenate(rows))


@pytest.mark.parametrize(("setup", "shares"), SETUPS, ids=show)
@modes
def test_as_one_vector_of_all_rows(mode: AutoresetMode, setup: dict[str, Any], shares: list[int]) -> None:
    """Infos with their masks, final observations and final infos included."""
    actions = np.random.default_rng(1).integers(0, 2, (STEPS, N))
    env = of(gym.make, "CartPole-v1", max_episode_steps=11)
    theirs = sync(env, mode)(num_envs=N)
    with closing(VectorEnv(OwnedVectors(sync(env, mode)), N, **setup)) as ours:
        assert ours.observation_space == theirs.observation_space
        assert ours.action_space == theirs.action_space
        assert_same(play(ours, actions), play(theirs, actions))
    theirs.close()


@modes
def test_infos_of_every_step(mode: AutoresetMode) -> None:
    actions = np.random.default_rng(1).integers(0, 5, (12, 4))
    theirs = sync(of(Counter, 3), mode)(num_envs=4)
    with closing(treadle.make_vec(sync(of(Counter, 3), mode), 4, owned=True, workers=1, inline=1)) as ours:
        assert_same(play(ours, actions), play(theirs, actions))


@modes
def test_nested_spaces(mode: AutoresetMode) -> None:
    space = gs.Dict(grid=gs.Box(0, 255, (3, 3), np.uint8), at=gs.Tuple((gs.Discrete(4), gs.Box(-1, 1, (2,)))))
    env = of(Echo, space, gs.Dict(turn=gs.Discrete(3), push=gs.Box(-1, 1, (2,))))
    theirs = sync(env, mode)(num_envs=4)
    theirs.action_space.seed(3)
    actions: Any = [theirs.action_space.sample() for _ in range(12)]
    with closing(treadle.make_vec(sync(env, mode), 4, owned=True, workers=2, inline=0)) as ours:
        assert_same(play(ours, actions), play(theirs, actions))


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_atari(mode: str, require: Any) -> None:
    require("ale_py")

    def make(num_envs: int) -> Any:
        from ale_py.vector_env import AtariVectorEnv

        return AtariVectorEnv(
            "pong", num_envs, autoreset_mode=mode, max_num_frames_per_episode=40, num_threads=1, noop_max=3
        )

    alone = make(3)
    actions = np.random.default_rng(1).integers(0, 6, (14, 3))
    expected = play(alone, actions)
    with closing(treadle.make_vec(make, 3, owned=True, workers=1, inline=0)) as vector:
        found = play(vector, actions)
    for ours, theirs in zip(found, expected, strict=True):
        for a, b in zip(ours[:-1], theirs[:-1], strict=True):
            np.testing.assert_array_equal(a, b)
        assert_same({key: ours[-1][key] for key in theirs[-1] if key != "final_obs"}, without(theirs[-1], "final_obs"))
    ended = [(ours[-1], theirs) for ours, theirs in zip(found[1:], expected[1:], strict=True) if theirs[3].any()]
    assert ended
    for infos, theirs in ended if mode == "SameStep" else ():
        for slot in np.flatnonzero(theirs[3]):
            np.testing.assert_array_equal(infos["final_obs"][slot], theirs[-1]["final_obs"][slot])


def without(infos: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in infos.items() if name != key}


@modes
def test_rollouts(mode: AutoresetMode) -> None:
    """The same as those of a vector of single environments."""
    env = of(gym.make, "CartPole-v1", max_episode_steps=7)
    rollouts = []
    for vector in (
        treadle.make_vec(sync(env, mode), N, owned=True, workers=1, inline=2),
        VectorEnv([env] * N, workers=1, inline=2, autoreset_mode=mode),
    ):
        with closing(vector):
            vector.reset(seed=5)
            vector.action_space.seed(1)
            rollouts.append([vector.rollout(steps=steps) for steps in (9, 30, 9)])
    for ours, theirs in zip(*rollouts, strict=True):
        assert (theirs.terminated | theirs.truncated).any()
        for name in ("observations", "actions", "rewards", "terminated", "truncated", "valid", "episode_ids"):
            assert_same(getattr(ours, name), getattr(theirs, name), name)
        assert_same(ours.next_obs, theirs.next_obs)
        assert_same(ours.infos, theirs.infos)


def test_attributes_and_calls_are_the_environments_own() -> None:
    with closing(treadle.make_vec(CartPoleVectorEnv, 4, owned=True, workers=2, inline=0)) as vector:
        vector.reset(seed=1)
        assert vector.get_attr("gravity") == (9.8,) * 4
        assert [steps.item() for steps in vector.get_attr("steps")] == [0] * 4  # an array of k values is dealt out
        vector.set_attr("gravity", 1.5)
        assert vector.call_at(3, "gravity") == 1.5
        with pytest.raises(treadle.TaskRaised, match="one value for all slots"):
            vector.set_attr("gravity", [1.0, 2.0, 3.0, 4.0])
        with pytest.raises(treadle.TaskRaised, match="nosuch"):
            vector.get_attr("nosuch")
        assert vector.step([0, 1, 0, 1])[0].shape == (4, 4)


def test_what_is_called_for_all_is_called_once() -> None:
    class Ringing(CartPoleVectorEnv):
        rung = 0

        def ring(self) -> int:
            self.rung += 1
            return self.rung

    with closing(treadle.make_vec(Ringing, 4, owned=True, workers=1, inline=0)) as vector:
        assert vector.call("ring") == (1,) * 4
        assert vector.call("ring") == (2,) * 4


# -- when something is wrong -------------------------------------------------------------------------------------------


class Odd(CartPoleVectorEnv):
    """Does what it is told to do wrong, when it is given action 1 in every row."""

    def __init__(self, num_envs: int, fault: str) -> None:
        super().__init__(num_envs=num_envs)
        self.fault = fault

    def step(self, action: Any) -> Any:
        observations, rewards, terminated, truncated, infos = super().step(action)
        if action.all():
            if self.fault == "raise":
                raise ZeroDivisionError("odd")
            if self.fault == "dtype":
                observations = observations.astype(np.float64)
            if self.fault == "rewards":
                rewards = rewards[:1]
            if self.fault == "flags":
                terminated = terminated.astype(np.int64)
            if self.fault == "die":
                os._exit(3)
        return observations, rewards, terminated, truncated, infos


@pytest.mark.parametrize(
    ("fault", "error", "text"),
    [
        ("raise", ZeroDivisionError, "odd"),
        ("dtype", treadle.BadObservation, r"expected float32\[2, 4\], got float64\[2, 4\]"),
        ("rewards", treadle.SpaceError, "rewards"),
        ("flags", treadle.SpaceError, "terminated"),
    ],
)
@pytest.mark.parametrize("inline", [0, 2])
def test_rows_fail_together(fault: str, error: type[Exception], text: str, inline: int) -> None:
    """The rows of the other environment are good, and a reset of those that failed mends it."""
    with closing(treadle.make_vec(Odd, 4, owned=True, workers=2 - inline // 2, inline=inline, fault=fault)) as vector:
        vector.reset(seed=1)
        with pytest.raises(error, match=text) as caught:
            vector.step([1, 1, 0, 1])
        assert caught.value.where.slot == 0  # type: ignore[attr-defined]
        assert "[1]" in caught.value.__notes__[0]
        assert caught.value.partial[1].tolist() == [0, 0, 1, 1]  # type: ignore[attr-defined]
        with pytest.raises(treadle.UsageError, match=r"\[0, 1\]"):
            vector.step([0, 0, 0, 0])
        vector.reset_at([0, 1])
        assert vector.step([0, 1, 0, 1])[1].tolist() == [1.0] * 4


class Interrupted(CartPoleVectorEnv):
    """Ctrl-C in its third step."""

    calls = 0

    def step(self, action: Any) -> Any:
        self.calls += 1
        if self.calls == 3:
            raise KeyboardInterrupt
        if self.calls == 6:
            raise ValueError("the cart fell")
        return super().step(action)


def test_an_interrupt_cuts_all_rows_and_counts_once() -> None:
    with closing(treadle.make_vec(Interrupted, 3, owned=True, backend="serial")) as vector:
        vector.reset(seed=7)
        actions = np.zeros(3, np.int64)
        for _ in range(2):
            vector.step(actions)
        with pytest.raises(KeyboardInterrupt):
            vector.step(actions)
        with pytest.raises(UsageError, match=r"slots \[0, 1, 2\] moved on"):
            vector.step(actions)
        vector.reset(seed=7)
        for _ in range(2):
            vector.step(actions)
        with pytest.raises(ValueError, match="the cart fell") as caught:
            vector.step(actions)
        assert caught.value.where.step == 3  # type: ignore[attr-defined]


def test_a_worker_that_dies() -> None:
    with closing(treadle.make_vec(Odd, 4, owned=True, workers=2, inline=0, on_failure="drop", fault="die")) as vector:
        vector.reset(seed=1)
        infos = vector.step([1, 1, 0, 1])[4]
        assert infos["_aborted"].tolist() == [True, True, False, False]
        for _ in range(3):
            rewards = vector.step([0, 0, 0, 1])[1]
        assert rewards.tolist() == [0.0, 0.0, 1.0, 1.0]
    with pytest.raises(treadle.UsageError, match="drop"):
        treadle.make_vec("CartPole-v1", 4, owned=True, on_failure="restart")


def test_an_environment_that_cannot_reset_some_rows_is_found_out() -> None:
    with closing(treadle.make_vec(CartPoleVectorEnv, 3, owned=True, workers=1, inline=0)) as vector:
        vector.reset(seed=1)
        vector.step([0, 1, 0])
        with pytest.raises(treadle.UsageError, match="reset_mask"):
            vector.reset_at(1)
        vector.reset(seed=1)
        assert vector.step([0, 1, 0])[1].tolist() == [1.0] * 3


def test_reset_orders_that_one_environment_cannot_have() -> None:
    make = sync(of(Counter, 5), AutoresetMode.DISABLED)
    with closing(treadle.make_vec(make, 3, owned=True, workers=1, inline=0)) as vector:
        vector.reset(seed=[4, 9, 2])
        assert vector.reset(seed=[4, 9, 2])[1]["seed"].tolist() == [4, 9, 2]
        assert vector.reset(options={"level": 3})[1]["options"]["level"].tolist() == [3, 3, 3]
        with pytest.raises(treadle.UsageError, match="one dict for all"):
            vector.reset(options=[{"level": 1}, {"level": 2}, None])
        vector.reset()
        with pytest.raises(treadle.UsageError, match="without seeds"):
            vector.reset_at(1, seed=3)


@pytest.mark.parametrize("inline", [0, 2])
def test_partial_batches_are_of_whole_environments(inline: int) -> None:
    with closing(treadle.make_vec("CartPole-v1", 4, owned=True, workers=2 - inline // 2, inline=inline)) as vector:
        vector.async_reset(seed=1)
        assert vector.recv(min=4)[0].shape == (4, 4)
        vector.send([0, 1], [0, 1])
        assert vector.recv(min=2)[1].tolist() == [1.0, 1.0]
        vector.send([1], [2])
        with pytest.raises(treadle.UsageError, match="step together"):
            vector.recv(min=1)


def one_too_many(num_envs: int) -> Any:
    return CartPoleVectorEnv(num_envs=num_envs + 1)


def silent(num_envs: int) -> Any:
    env = CartPoleVectorEnv(num_envs=num_envs)
    env.metadata = {}
    return env


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (one_too_many, "a vector of 3 environments, 2 were asked for"),
        (lambda num_envs: gym.make("CartPole-v1"), "not a gymnasium.vector.VectorEnv"),
        (silent, "autoreset_mode"),
        (sync(of(Echo, gs.Text(4))), "cannot be owned"),
    ],
)
def test_what_cannot_be_owned(make: Any, text: str) -> None:
    with pytest.raises(treadle.StartupFailed, match=text):
        treadle.make_vec(make, 2, owned=True, workers=1, inline=0)


def test_refusals() -> None:
    with pytest.raises(treadle.UsageError, match="autoreset modes differ: NextStep, SameStep"):
        treadle.make_vec("CartPole-v1", 2, owned=True, workers=1, inline=0, autoreset_mode="SameStep")
    with pytest.raises(treadle.UsageError, match="legacy"):
        treadle.make_vec("CartPole-v1", 2, owned=True, workers=1, inline=0, infos="legacy")
    with pytest.raises(treadle.UsageError, match="give num_envs"):
        VectorEnv(OwnedVectors("CartPole-v1"))
    with pytest.raises(treadle.UsageError, match="OwnedVectors"):
        VectorEnv(OwnedVectors("CartPole-v1"), 2, kwargs={"sutton_barto_reward": True})
    with pytest.raises(treadle.UsageError, match="id or a callable"):
        treadle.make_vec(gym.spec("CartPole-v1"), 2, owned=True)


def test_building_arguments() -> None:
    options: dict[str, Any] = {"wrappers": [Halved], "sutton_barto_reward": True, "workers": 1, "inline": 0}
    with closing(treadle.make_vec("CartPole-v1", 2, owned=True, **options)) as vector:
        vector.reset(seed=1)
        rewards = [vector.step([0, 0])[1] for _ in range(12)]
        assert sorted({float(r) for batch in rewards for r in batch}) == [-0.5, 0.0]


class Halved(gym.wrappers.vector.TransformReward):
    def __init__(self, env: Any) -> None:
        super().__init__(env, lambda rewards: rewards / 2)


def test_infos_row_by_row() -> None:
    infos = {
        "a": np.array([1, 0, 3]),
        "_a": np.array([True, False, True]),
        "b": {"c": np.array([5.0, 6.0, 7.0]), "_c": np.array([True, True, False])},
        "_b": np.array([True, True, False]),
        "lives": np.array([3, 2, 1], np.int32),
        "whole": "same for all",
    }
    rows = rows_of_infos(infos, 3)
    assert rows[0] == {"a": 1, "b": {"c": 5.0}, "lives": 3, "whole": "same for all"}
    assert rows[1] == {"b": {"c": 6.0}, "lives": 2, "whole": "same for all"}
    assert rows[2] == {"a": 3, "lives": 1, "whole": "same for all"}
    assert {type(row["lives"]) for row in rows.values()} == {np.int32}
