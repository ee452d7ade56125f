"""Rollouts hold what stepping by hand and storing would have held, in every mode, and are the holder's to keep."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces as gs
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from small_envs import Counter, Echo, Picky, assert_same, copied, of

import treadle
from treadle.trees import equal
from treadle.vector.core import AlreadyPending, ClosedVector
from treadle.vector.gymnasium import VectorEnv
from treadle.vector.infos import InfoStyle
from treadle.vector.rollout import Rollout

N = 5
FEWER = {"pong": 3}  # slots: to build one, with a seed, takes longer than all of its steps
PIECES = (7, 1, 12, 5, 12)  # lengths of consecutive rollouts: memory is grown, reused, and used in part
STEPS = sum(PIECES)
WORDS = gs.Dict(
    grid=gs.Box(0, 255, (3, 3), np.uint8), text=gs.Text(5), at=gs.Tuple((gs.Discrete(4), gs.Box(-1, 1, (2,))))
)
ENVS: dict[str, Callable[[], gym.Env]] = {
    "cartpole": lambda: gym.make("CartPole-v1", max_episode_steps=9),
    "pong": lambda: gym.make("ALE/Pong-v5", max_episode_steps=9),
    "minigrid": lambda: gym.make("MiniGrid-DoorKey-5x5-v0", max_steps=8),
    "counter": of(Counter, 4),
    "nested": of(Echo, WORDS, gs.Dict(turn=gs.Discrete(3), push=gs.Box(-1, 1, (2,)))),
    "word": of(Echo, gs.Text(4)),
}
SETUPS: list[dict[str, Any]] = [
    {"workers": 1, "inline": 0},
    {"workers": 2, "inline": 0},
    {"workers": 1, "inline": 2},
    {"workers": 2, "inline": 1},
    {"worker_options": treadle.WorkerOptions(backend="thread"), "workers": 2, "inline": 0},
    {"worker_options": treadle.WorkerOptions(backend="serial")},
]
modes = pytest.mark.parametrize("mode", AutoresetMode, ids=lambda mode: mode.value)


def show(setup: dict[str, Any]) -> str:
    return "-".join(f"{key}={value}" for key, value in setup.items())


@dataclass
class ByHand:
    """What a loop over SyncVectorEnv stores, step by step."""

    saw: list[Any] = field(default_factory=list)
    did: list[Any] = field(default_factory=list)
    got: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = field(default_factory=list)
    valid: list[np.ndarray] = field(default_factory=list)
    led_to: list[Any] = field(default_factory=list)
    infos: list[Any] = field(default_factory=list)
    episodes: list[np.ndarray] = field(default_factory=list)


@cache
def by_hand(name: str, mode: AutoresetMode) -> ByHand:
    n = FEWER.get(name, N)
    vector = SyncVectorEnv([ENVS[name]] * n, autoreset_mode=mode)
    vector.action_space.seed(99)
    told = ByHand()
    seen = vector.reset(seed=7)[0]
    over, episode = np.zeros(n, np.bool_), np.zeros(n, np.int64)
    for _ in range(STEPS):
        if mode is AutoresetMode.DISABLED and over.any():
            seen = vector.reset(options={"reset_mask": over})[0]
        told.saw.append(copied(seen))
        told.did.append(vector.action_space.sample())
        told.valid.append(~over if mode is AutoresetMode.NEXT_STEP else np.ones(n, np.bool_))
        episode = episode + over
        told.episodes.append(episode)
        seen, rewards, terminated, truncated, infos = copied(vector.step(told.did[-1]))
        told.got.append((rewards, terminated, truncated))
        told.infos.append(infos)
        told.led_to.append(treadle.next_obs(seen, infos, vector.single_observation_space))
        over = terminated | truncated
    vector.close()
    return told


def check(rollout: Rollout, told: ByHand, start: int) -> None:
    """Is the rollout what was stored by hand from step `start` on?"""
    steps = len(rollout.rewards)
    part = slice(start, start + steps)
    assert_same(rollout.observations, over_time(told.saw[part]), "observations: ")
    assert_same(rollout.actions, over_time(told.did[part]), "actions: ")
    for i, name in enumerate(("rewards", "terminated", "truncated")):
        assert_same(getattr(rollout, name), np.stack([each[i] for each in told.got[part]]), f"{name}: ")
    assert_same(rollout.valid, np.stack(told.valid[part]), "valid: ")
    assert_same(rollout.next_obs, over_time(told.led_to[part]), "next_obs: ")
    assert_same(rollout.episode_ids, np.stack(told.episodes[part]), "episode_ids: ")
    assert_same(rollout.infos, told.infos[part], "infos: ")
    if start + steps < STEPS and rollout.terminated.shape and not (rollout.terminated | rollout.truncated)[-1].any():
        assert_same(rollout.bootstrap, told.saw[start + steps], "bootstrap: ")


def over_time(batches: list[Any]) -> Any:
    """[T, n, ...] from T batches; leaves without a fixed shape, which are tuples of n strings here, as a list."""
    if isinstance(batches[0], dict):
        return {key: over_time([batch[key] for batch in batches]) for key in batches[0]}
    if isinstance(batches[0], tuple):
        if isinstance(batches[0][0], str):
            return batches
        return tuple(over_time([batch[i] for batch in batches]) for i in range(len(batches[0])))
    return np.stack(batches)


def scripted(actions: list[Any]) -> Callable[[Any], Any]:
    """A policy that takes the next of these batches whenever it is asked."""
    stock = iter(actions)
    return lambda observations: next(stock)


def compare(name: str, mode: AutoresetMode, setup: dict[str, Any]) -> None:
    told = by_hand(name, mode)
    vector = VectorEnv([ENVS[name]] * FEWER.get(name, N), autoreset_mode=mode, **setup)
    try:
        vector.reset(seed=7)
        policy, start = scripted(told.did), 0
        for steps in PIECES:
            check(vector.rollout(policy, steps=steps), told, start)
            start += steps
    finally:
        vector.close()


@pytest.mark.parametrize("setup", SETUPS, ids=show)
@modes
def test_cartpole(mode: AutoresetMode, setup: dict[str, Any]) -> None:
    compare("cartpole", mode, setup)


@pytest.mark.parametrize("setup", [SETUPS[1], SETUPS[2]], ids=show)
@modes
@pytest.mark.parametrize(("name", "package"), [("pong", "ale_py"), ("minigrid", "minigrid")])
def test_real_environments(name: str, package: str, mode: AutoresetMode, setup: dict[str, Any], require: Any) -> None:
    gym.register_envs(require(package))
    compare(name, mode, setup)


@pytest.mark.parametrize("setup", [SETUPS[1], SETUPS[5]], ids=show)
@modes
@pytest.mark.parametrize("name", ["counter", "nested", "word"])
def test_spaces_of_all_kinds(name: str, mode: AutoresetMode, setup: dict[str, Any]) -> None:
    compare(name, mode, setup)


def test_the_runs_do_contain_ends() -> None:
    """Otherwise the comparisons above would compare little."""
    for mode in AutoresetMode:
        ends = sum((terminated | truncated).sum() for _, terminated, truncated in by_hand("cartpole", mode).got)
        assert ends >= 3 * N


def test_the_policy_sees_the_rollouts_own_rows() -> None:
    seen: list[np.ndarray] = []

    def policy(observations: np.ndarray) -> np.ndarray:
        seen.append(observations)
        return (observations[:, 2] > 0).astype(np.int64)

    with closing(VectorEnv("CartPole-v1", 3, workers=1, inline=1)) as vector:
        rollout = vector.rollout(policy, steps=6)
        assert all(np.shares_memory(each, rollout.observations[t]) for t, each in enumerate(seen))
        np.testing.assert_array_equal(rollout.actions, (rollout.observations[:, :, 2] > 0).astype(np.int64))
        np.testing.assert_array_equal(rollout.bootstrap, rollout.following[-1])
        np.testing.assert_array_equal(rollout.following[:-1], rollout.observations[1:])


def test_its_repr_is_one_line() -> None:
    with closing(VectorEnv("CartPole-v1", 3, workers=1)) as envs:
        envs.reset(seed=0)
        assert repr(envs.rollout(steps=4)) == "<Rollout: 4 steps of 3 slots, 12 transitions>"


def test_steps_and_rollouts_follow_one_another() -> None:
    """The rollout begins at what `step` showed last, and `step` goes on where the rollout ended."""
    told = by_hand("cartpole", AutoresetMode.NEXT_STEP)
    with closing(VectorEnv([ENVS["cartpole"]] * N, workers=2)) as vector:
        vector.reset(seed=7)
        for t in range(5):
            vector.step(told.did[t])
        check(vector.rollout(scripted(told.did[5:]), steps=8), told, 5)
        np.testing.assert_array_equal(vector.valid, told.valid[12])
        seen = vector.step(told.did[13])[0]
        np.testing.assert_array_equal(seen, told.saw[14])
        check(vector.rollout(scripted(told.did[14:]), steps=9), told, 14)
        assert vector.stats().steps.tolist() == np.sum(told.valid[:23], axis=0).tolist()


def test_a_row_that_was_reset_by_hand_is_where_the_next_rollout_begins() -> None:
    with closing(VectorEnv([of(Counter, 6)] * 3, workers=1, inline=1)) as vector:
        vector.rollout(lambda _: [0, 0, 0], steps=4)
        vector.reset_at(1)
        rollout = vector.rollout(lambda _: [0, 0, 0], steps=2)
        assert rollout.observations.tolist() == [[4, 0, 4], [5, 1, 5]]
        assert rollout.episode_ids.tolist() == [[0, 1, 0], [0, 1, 0]]


def test_held_rollouts_never_change() -> None:
    with closing(VectorEnv("CartPole-v1", 4, workers=1, inline=2, autoreset_mode="SameStep")) as vector:
        held = [vector.rollout(steps=20) for _ in range(5)]
        copies = [copied((each.observations, each.actions, each.rewards, each.truncated)) for each in held]
        last = [vector.rollout(steps=20).next_obs for _ in range(4)]
        assert all(
            equal((each.observations, each.actions, each.rewards, each.truncated), copy)
            for each, copy in zip(held, copies, strict=True)
        )
        assert len({each.tobytes() for each in last}) == 4


def test_two_take_turns_in_a_loop_and_a_single_kept_row_keeps_its_rollout() -> None:
    with closing(VectorEnv("CartPole-v1", 4, workers=1, inline=2)) as vector:
        places = set()
        rollout = None
        for _ in range(6):
            rollout = vector.rollout(steps=10)
            places.add(address(rollout.observations))
        assert len(places) == 2
        kept: list[np.ndarray] = []
        rollout = vector.rollout(lambda seen: kept.append(seen) or [0] * 4, steps=10)
        before, row = address(rollout.observations), kept[3].copy()
        del rollout, kept[4:], kept[:3]
        for _ in range(4):
            rollout = vector.rollout(steps=10)
            assert address(rollout.observations) != before
        np.testing.assert_array_equal(kept[0], row)


HUGE = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
IN_MEBIBYTES = HUGE.exists() and any(f"[{word}]" in HUGE.read_text() for word in ("always", "within_size", "force"))


@pytest.mark.skipif(IN_MEBIBYTES, reason="shared memory is taken in pages of MiB here")
def test_memory_that_has_become_too_small_is_given_back() -> None:
    image = gs.Box(0, 255, (64, 64), np.uint8)
    with closing(VectorEnv([of(Echo, image)] * 4, workers=2, inline=0)) as vector:
        arena = vector._pool.memory.arena
        assert arena is not None

        def mebibytes() -> float:
            return os.fstat(arena.fd).st_blocks * 512 / 2**20

        start = mebibytes()
        one = 64 * 64 * 4 / 2**20
        for steps in (100, 200, 400):
            vector.rollout(steps=steps)
            vector.step([0] * 4)  # the last batch no longer lies in the rollout
        assert start + 400 * one < mebibytes() < start + 440 * one
        first = vector.rollout(steps=10)
        assert first.observations.shape == (10, 4, 64, 64)


def test_random_actions_are_the_action_spaces() -> None:
    with closing(VectorEnv("CartPole-v1", 3, worker_options=treadle.WorkerOptions(backend="serial"))) as vector:
        vector.action_space.seed(5)
        rollout = vector.rollout(steps=9)
        vector.action_space.seed(5)
        np.testing.assert_array_equal(rollout.actions, np.stack([vector.action_space.sample() for _ in range(9)]))


@pytest.mark.parametrize("infos", [InfoStyle.LIST, "legacy"])
def test_other_forms_of_infos(infos: str) -> None:
    envs = [of(Counter, length) for length in (2, 3)]
    with closing(VectorEnv(envs, workers=1, inline=1, infos=infos, autoreset_mode="SameStep")) as vector:
        rollout = vector.rollout(lambda _: [1, 2], steps=4)
        assert rollout.next_obs.tolist() == [[1, 1], [2, 2], [1, 3], [2, 1]]
        assert rollout.following.tolist() == [[1, 1], [0, 2], [1, 0], [0, 1]]
        again = VectorEnv(
            envs, worker_options=treadle.WorkerOptions(backend="serial"), infos=infos, autoreset_mode="SameStep"
        )
        again.reset()
        assert_same(rollout.infos, [again.step([1, 2])[4] for _ in range(4)])
        again.close()


# -- when something is wrong -------------------------------------------------------------------------------------------


def test_refusals() -> None:
    vector = VectorEnv("CartPole-v1", 2, workers=1, inline=0)
    with pytest.raises(treadle.UsageError, match="steps must be a whole number"):
        vector.rollout(steps=0)
    vector.reset()
    vector.step_async([0, 0])
    with pytest.raises(AlreadyPending):
        vector.rollout(steps=1)
    vector.step_wait()
    with pytest.raises(treadle.BadAction, match="slot 1"):
        vector.rollout(lambda _: [0, 7], steps=3)
    vector.async_reset()
    vector.recv(min=2)
    with pytest.raises(treadle.UsageError, match="partial"):
        vector.rollout(steps=1)
    vector.close()
    with pytest.raises(ClosedVector):
        vector.rollout(steps=1)


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_a_policy_that_raises_costs_the_rollout_and_nothing_else(error: type[BaseException]) -> None:
    told = by_hand("cartpole", AutoresetMode.SAME_STEP)
    with closing(
        VectorEnv([ENVS["cartpole"]] * N, workers=1, inline=2, autoreset_mode=AutoresetMode.SAME_STEP)
    ) as vector:
        vector.reset(seed=7)
        stock, left = scripted(told.did), iter(range(5))

        def policy(observations: Any) -> Any:
            if next(left, None) is None:
                raise error
            return stock(observations)

        with pytest.raises(error):
            vector.rollout(policy, steps=20)
        check(vector.rollout(stock, steps=12), told, 5)


def test_an_environment_that_raises() -> None:
    with closing(VectorEnv([Picky] * 3, workers=1, inline=1)) as vector:
        with pytest.raises(treadle.TaskRaised, match="no luck in step") as caught:
            vector.rollout(scripted([[0, 0, 0], [0, 3, 0], [0, 0, 0]]), steps=3)
        assert caught.value.where.slot == 1
        assert caught.value.partial[0].shape == (3, 3)
        vector.reset_at(1)
        rollout = vector.rollout(lambda _: [0, 0, 0], steps=2)
        assert rollout.valid.all()
        assert rollout.observations[0].tolist() == [[0.5] * 3, [0.0] * 3, [0.5] * 3]


def test_rewards_that_an_error_has_are_not_written_again() -> None:
    with closing(VectorEnv([Picky] * 3, workers=1, inline=1)) as vector:
        try:
            vector.rollout(scripted([[0, 3, 0]]), steps=1)
        except treadle.TaskRaised as error:
            rewards = error.partial[1]
        vector.reset_at(1)
        vector.rollout(lambda _: [0, 0, 0], steps=1)
        assert rewards.tolist() == [1.0, 0.0, 1.0]


class Photo(gym.Env[np.ndarray, int]):
    """Images that say the step's number. Action 3: a subclass of ndarray, 4: another dtype."""

    observation_space = gs.Box(0, 255, (40, 40), np.uint8)
    action_space = gs.Discrete(5)
    t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.t = 0
        return np.zeros((40, 40), np.uint8), {}

    def step(self, action: int) -> Any:
        self.t += 1
        image = np.full((40, 40), self.t, np.uint16 if action == 4 else np.uint8)
        return image.view(np.recarray) if action == 3 else image, 0.0, False, False, {}


def test_images_are_checked_like_everywhere() -> None:
    with closing(VectorEnv([Photo] * 3, workers=1, inline=1)) as vector:
        rollout = vector.rollout(lambda _: [0, 3, 3], steps=4)
        assert rollout.following[:, :, 7, 7].tolist() == [[t] * 3 for t in (1, 2, 3, 4)]
        with pytest.raises(treadle.BadObservation, match=r"expected uint8\[40, 40\], got uint16\[40, 40\]") as caught:
            vector.rollout(scripted([[0, 0, 0], [0, 0, 4]]), steps=3)
        assert caught.value.where.slot == 2
        vector.reset_at(2)
        assert vector.rollout(lambda _: [0, 0, 0], steps=2).observations[:, :, 0, 0].tolist() == [[6, 6, 0], [7, 7, 1]]


class Mortal(Counter):
    """Its process ends with action 4."""

    def step(self, action: int) -> Any:
        if action == 4:
            os._exit(3)
        return super().step(action)


def test_a_worker_that_dies_breaks_the_vector_and_not_what_is_held() -> None:
    with closing(VectorEnv([of(Mortal, 9)] * 2, workers=2, inline=0)) as vector:
        held = vector.rollout(lambda _: [1, 1], steps=3)
        with pytest.raises(treadle.WorkerDied, match="code 3"):
            vector.rollout(scripted([[1, 1], [1, 4]]), steps=3)
    assert held.observations.tolist() == [[0, 0], [1, 1], [2, 2]]


@modes
def test_a_worker_that_is_restarted(mode: AutoresetMode) -> None:
    """Its slots' rows are no transitions, the episodes are numbered on, and the other slots notice nothing."""
    with closing(
        VectorEnv([of(Mortal, 50)] * 2, workers=2, inline=0, on_failure="restart", autoreset_mode=mode)
    ) as vector:
        vector.rollout(lambda _: [1, 1], steps=2)
        rollout = vector.rollout(scripted([[1, 1], [1, 4], [1, 1], [1, 1]]), steps=4)
        assert rollout.valid[:, 0].all()
        assert rollout.observations[:, 0].tolist() == [2, 3, 4, 5]
        assert rollout.truncated[:, 1].tolist() == [False, True, False, False]
        assert not rollout.valid[1, 1]
        assert rollout.rewards[1].tolist() == [1.0, 0.0]
        assert rollout.episode_ids[:, 0].tolist() == [0] * 4
        assert rollout.episode_ids[:, 1].tolist() == [0, 0, 1, 1]
        next_step = mode is AutoresetMode.NEXT_STEP
        assert rollout.following[2:, 1].tolist() == ([0, 1] if next_step else [1, 2])
        longer = vector.rollout(lambda _: [1, 1], steps=5)
        assert longer.valid.all()
        assert longer.observations[:, 1].tolist() == ([1, 2, 3, 4, 5] if next_step else [2, 3, 4, 5, 6])
        assert longer.episode_ids[:, 1].tolist() == [1] * 5


class Full(Counter):
    """Action 3: its process may have no more memory from then on; 4: it may again."""

    def step(self, action: int) -> Any:
        if action in (3, 4):
            hard = resource.getrlimit(resource.RLIMIT_AS)[1]
            resource.setrlimit(resource.RLIMIT_AS, (2**20 if action == 3 else hard, hard))
        return super().step(action)


def test_a_worker_that_cannot_map_a_rollout_says_so_and_lives() -> None:
    with closing(VectorEnv([of(Full, 90)] * 2, workers=2, inline=0)) as vector:
        vector.reset()
        vector.step([3, 1])
        with pytest.raises(treadle.TaskRaised, match="Cannot allocate memory") as caught:
            vector.rollout(lambda _: [1, 1], steps=3)
        assert caught.value.where.slot == 0
        vector.reset_at(0)
        vector.step([4, 1])
        assert vector.rollout(lambda _: [1, 1], steps=3).observations.tolist() == [[1, 3], [2, 4], [3, 5]]


# -- helpers -----------------------------------------------------------------------------------------------------------


def address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def test_what_is_noted_of_a_rollout_does_not_grow_with_rollouts() -> None:
    """Each look for one that nobody holds would take longer than the last."""
    vector = VectorEnv("CartPole-v1", 3, worker_options=treadle.WorkerOptions(backend="serial"))
    try:
        vector.reset(seed=0)
        noted = set()
        for number in range(6):
            vector.rollout(lambda seen: np.zeros(len(seen), np.int64), steps=8)
            if number > 1:
                noted.add(max(len(each.lent) for each in vector._lockstep.memory.rings.all))
        assert len(noted) == 1
    finally:
        vector.close()
