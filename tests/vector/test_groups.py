"""Groups of slots: each is what a vector of its slots alone would be, and together they are what they were before."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces as gs
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from small_envs import Counter, Echo, Parrot, assert_same, copied, of

import treadle
from treadle.errors import BadAction, TaskRaised, UsageError
from treadle.vector.async_vector import AsyncVectorEnv
from treadle.vector.gymnasium import VectorEnv
from treadle.vector.refusals import ClosedVector

N, STEPS = 5, 30
WORDS = gs.Dict(grid=gs.Box(0, 255, (3, 3), np.uint8), text=gs.Text(5), at=gs.Tuple((gs.Discrete(4), gs.Box(-1, 1))))
ENVS: dict[str, tuple[Callable[[], gym.Env], str | None]] = {
    "cartpole": (lambda: gym.make("CartPole-v1", max_episode_steps=9), None),
    "pong": (lambda: gym.make("ALE/Pong-v5", max_episode_steps=9), "ale_py"),  # large enough to be leased
    "minigrid": (lambda: gym.make("MiniGrid-DoorKey-5x5-v0", max_steps=8), "minigrid"),
    "hopper": (lambda: gym.make("Hopper-v5"), "mujoco"),
    "counter": (of(Counter, 4), None),
    "words": (of(Echo, WORDS, gs.Dict(turn=gs.Discrete(3), push=gs.Box(-1, 1, (2,)))), None),
}
SETUPS: list[dict[str, Any]] = [
    {"workers": 2},
    {"workers": 1},
    {"workers": 5},
    {"workers": 2, "copy": False},
    {"workers": 2, "inline": 2},
    {"workers": 2, "on_failure": "restart"},
    {"backend": "thread", "workers": 2},
    {"backend": "serial"},
]
modes = pytest.mark.parametrize("mode", AutoresetMode, ids=lambda mode: mode.value)


def show(setup: dict[str, Any]) -> str:
    return "-".join(f"{key}={value}" for key, value in setup.items())


def cases(names: Iterable[str], *counts: int) -> Any:
    """Everything with everything; of real environments, which take long to build, less."""
    few = (SETUPS[0], SETUPS[5])
    return pytest.mark.parametrize(
        ("name", "setup", "count"),
        [
            pytest.param(
                name,
                setup,
                count,
                id=f"{name}-{show(setup)}-{count}",
                marks=pytest.mark.slow if name == "pong" and setup is SETUPS[5] else (),
            )
            for name in names
            for setup in SETUPS
            for count in counts
            if ENVS[name][1] is None or (setup in few and count == 2)
        ],
    )


def actions_of(make: Callable[[], gym.Env]) -> list[list[Any]]:
    """STEPS times an action for each of N slots."""
    space = make().action_space
    space.seed(3)
    return [[space.sample() for _ in range(N)] for _ in range(STEPS)]


def alone(make: Callable[[], gym.Env], mode: AutoresetMode, slots: slice, actions: list[list[Any]]) -> list[Any]:
    """What a vector of these slots and no others returns; in DISABLED mode ended slots are reset with a mask."""
    seeds = list(range(7, 7 + N))[slots]
    vector = SyncVectorEnv([make] * len(seeds), autoreset_mode=mode)
    found: list[Any] = [copied(vector.reset(seed=seeds))]
    for batch in actions:
        found.append(copied(vector.step(iterable(vector, batch[slots]))))
        over = found[-1][2] | found[-1][3]
        if mode is AutoresetMode.DISABLED and over.any():
            found.append(copied(vector.reset(options={"reset_mask": over})))
    vector.close()
    return found


def iterable(vector: Any, batch: list[Any]) -> Any:
    """A batch of actions as the vector's action space nests them."""
    if isinstance(vector.single_action_space, gs.Dict):
        return {key: np.array([action[key] for action in batch]) for key in vector.single_action_space}
    return np.array(batch)


@modes
@cases(ENVS, 2, 3, N)
def test_each_is_a_vector_of_its_slots(
    name: str, setup: dict[str, Any], count: int, mode: AutoresetMode, require: Any
) -> None:
    """Bit by bit, infos included."""
    make, package = ENVS[name]
    if package is not None:
        gym.register_envs(require(package))
    actions = actions_of(make)
    found: dict[int, list[Any]] = {}
    with closing(VectorEnv([make] * N, groups=count, autoreset_mode=mode, **setup)) as vector:
        vector.reset(seed=7)
        for group in vector.groups(steps=STEPS):
            mine = found.setdefault(group.slots.start, [])
            parts = group.observations, group.rewards, group.terminated, group.truncated, group.infos
            assert len(group.rewards) == group.num_envs == len(range(N)[group.slots])
            if group.t:
                mine.append(copied(parts))
                over = group.terminated | group.truncated
                if mode is AutoresetMode.DISABLED and over.any():
                    mine.append(copied(group.reset(options={"reset_mask": over})))
            if group.t < STEPS:
                group.step(iterable(vector, actions[group.t][group.slots]))
        after = copied(vector.step(iterable(vector, actions[0])))  # of all slots again, from where they are
    for k in range(count):
        slots = slice(k, N, count)
        _, *expected = alone(make, mode, slots, [*actions, actions[0]])
        assert_same(found[k], expected[: len(found[k])], f"group {k}: ")
        for ours, theirs in zip(after[:4], expected[len(found[k])][:4], strict=True):
            assert_same(rows(ours, slots), theirs, f"the step after it, group {k}: ")


def rows(batch: Any, slots: slice) -> Any:
    """Rows of a batch of any nesting, whose leaves are arrays or tuples of text."""
    if isinstance(batch, dict):
        return {key: rows(part, slots) for key, part in batch.items()}
    nested = isinstance(batch, tuple) and not isinstance(batch[0], str)
    return tuple(rows(part, slots) for part in batch) if nested else batch[slots]


@modes
@cases(["cartpole", "counter", "minigrid", "pong"], 2, 3)
def test_rollouts_are_the_same(name: str, setup: dict[str, Any], count: int, mode: AutoresetMode, require: Any) -> None:
    """Byte for byte, infos included, also across rollouts of different lengths and steps between them."""
    make, package = ENVS[name]
    if package is not None:
        gym.register_envs(require(package))
    found: list[list[Any]] = []
    for groups in (1, count):
        with closing(VectorEnv([make] * N, groups=count, autoreset_mode=mode, **setup)) as vector:
            vector.reset(seed=7)
            found.append([])
            for steps in (7, 1, 12, 5):
                rollout = vector.rollout(rowwise, steps=steps, groups=groups)
                found[-1].append(copied({**vars(rollout), "next_obs": rollout.next_obs}))
                over = rollout.terminated[-1] | rollout.truncated[-1]
                if mode is AutoresetMode.DISABLED and over.any():
                    vector.reset(options={"reset_mask": over})
                found[-1].append(copied(vector.step(np.zeros(N, np.int64))))
            found[-1].append(vector.stats().steps)
    assert_same(found[1], found[0])


def rowwise(observations: Any) -> np.ndarray:
    """A policy that does for a slot what its observation says, whoever is beside it."""
    leaf = observations["image"] if isinstance(observations, dict) else observations
    return leaf.reshape(len(leaf), -1).astype(np.float64).sum(1).astype(np.int64) % 2


def test_rollouts_of_actions_by_message_and_observations_without_shape() -> None:
    class Lax(Echo):
        def step(self, action: Any) -> Any:
            return *super().step(action.astype(np.float32))[:2], False, self.t == 3, {}

    def policy(seen: Any) -> np.ndarray:
        return np.full((len(seen["text"]), 2), 0.1) * (seen["at"][0][:, None] + 1) / 5

    make = of(Lax, WORDS, gs.Box(-1, 1, (2,)))  # the policy gives float64
    found = []
    for groups in (1, 2):
        with closing(VectorEnv([make] * N, groups=2, workers=2)) as vector:
            vector.reset(seed=7)
            rollout = vector.rollout(policy, steps=9, groups=groups)
            found.append(copied({**vars(rollout), "next_obs": rollout.next_obs}))
    assert found[0]["actions"].dtype == np.float64
    assert_same(found[1], found[0])


# -- the loop ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def counters() -> Iterator[VectorEnv]:
    """Six slots in two groups; an observation is the number of steps since the reset."""
    with closing(VectorEnv([of(Counter, 1000)] * 6, groups=2, workers=2)) as vector:
        yield vector


def count(vector: VectorEnv, steps: int) -> None:
    for group in vector.groups(steps=steps):
        if group.t < steps:
            group.step(np.ones(group.num_envs, np.int64))


def test_results_are_stored_by_slots(counters: VectorEnv) -> None:
    """As a training loop does it: the first loop resets, and each begins where the last has ended."""
    for update in range(3):
        saw, rewards = np.zeros((6, 6)), np.zeros((6, 6))
        came = []
        for group in counters.groups(steps=5):
            came.append((group.t, group.slots))
            saw[group.t, group.slots], rewards[group.t, group.slots] = group.observations, group.rewards
            if group.t < 5:
                group.step(np.arange(6)[group.slots] % 5)
        assert came == [(t, slice(k, 6, 2)) for t in range(6) for k in range(2)]
        assert saw.tolist() == [[5 * update + t] * 6 for t in range(6)]
        assert rewards[1:].tolist() == [[0, 1, 2, 3, 4, 0]] * 5
    assert counters.stats().steps.tolist() == [15] * 6
    assert counters.valid.tolist() == [True] * 6


def test_a_group_that_is_not_stepped_rests(counters: VectorEnv) -> None:
    came: list[tuple[int, int]] = []
    for group in counters.groups():
        came.append((group.slots.start, group.t))
        if group.t < (2 if group.slots.start else 4):
            group.step(np.ones(3, np.int64))
    assert came == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2), (0, 3), (0, 4)]
    observations, *_ = counters.step(np.ones(6, np.int64))
    assert observations.tolist() == [5, 3, 5, 3, 5, 3]


def broken_out_of(vector: VectorEnv) -> None:
    """Leaves a loop with one group under way: all slots have taken 3 steps, those of group 1 one more."""
    for group in vector.groups():
        if group.t == 3 and group.slots.start == 0:
            break
        group.step(np.ones(3, np.int64))


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("then", ["step", "rollout", "reset", "groups", "call", "step_async", "snapshot", "send"])
def test_leaving_it_early(counters: VectorEnv, then: str, raises: bool, tmp_path: Any) -> None:
    """By `break`, or by an error of the policy's: the vector goes on with what it is asked."""
    ones = np.ones(6, np.int64)
    if raises:
        with pytest.raises(ZeroDivisionError):
            for group in counters.groups():
                group.step(np.ones(3, np.int64) if group.t < 3 else np.array([1 // 0]))
    else:
        broken_out_of(counters)
    expected = [4, 4, 4, 4, 4, 4]
    if then == "groups":
        seen = {group.slots.start: (group.t, group.observations.tolist()) for group in counters.groups()}
        assert seen == {0: (0, [3, 3, 3]), 1: (0, [3, 3, 3])}
    elif then == "rollout":
        rollout = counters.rollout(lambda _: ones, steps=2)
        assert rollout.observations.tolist() == [[3] * 6, [4] * 6]
        expected = [6] * 6
    elif then == "reset":
        assert counters.reset()[0].tolist() == [0] * 6
        expected = [1] * 6
    elif then == "call":
        assert counters.get_attr("count") == (3,) * 6
    elif then == "step_async":
        counters.step_async(ones)
        assert counters.step_wait()[0].tolist() == [4] * 6
        expected = [5] * 6
    elif then == "snapshot":
        counters.snapshot(tmp_path / "snapshot")
        counters.step(ones)
        counters.restore(tmp_path / "snapshot")
    elif then == "send":
        counters.async_reset()
        counters.recv(min=6)
        counters.send(ones)
        assert counters.recv(min=6)[0].tolist() == [1] * 6
        return
    assert counters.step(ones)[0].tolist() == expected


def test_a_step_under_way_is_not_lost(counters: VectorEnv) -> None:
    """To the next loop it is what there is to be seen; for whoever goes on with all slots it has been taken."""
    for group in counters.groups():
        if group.t == 2:
            break
        group.step(np.full(3, 2, np.int64))
    assert group.slots.start == 0
    seen = {group.slots.start: (group.observations.tolist(), group.rewards.tolist()) for group in counters.groups()}
    assert seen == {0: ([2] * 3, [2.0] * 3), 1: ([2] * 3, [2.0] * 3)}
    for group in counters.groups():
        group.step(np.ones(3, np.int64))
        break
    rollout = counters.rollout(lambda seen: np.ones(len(seen), np.int64), steps=1)
    assert rollout.observations.tolist() == [[3, 2] * 3]
    assert counters.stats().steps.tolist() == [3, 3] * 3  # what nobody has seen does not count


def test_other_calls_end_it(counters: VectorEnv) -> None:
    loop = counters.groups()
    first = next(loop)
    first.step(np.ones(3, np.int64))
    counters.reset()
    for act in (lambda: next(loop), lambda: first.step(np.ones(3, np.int64)), first.reset):
        with pytest.raises(UsageError, match="this loop over groups has ended"):
            act()
    again, later = counters.groups(), counters.groups()
    with pytest.raises(UsageError, match="this loop over groups has ended"):
        next(again)
    assert next(later).observations.tolist() == [0, 0, 0]


def test_what_it_hands_out_is_the_callers_to_keep() -> None:
    """Leased views of one memory: none of them is ever written again, however many are kept."""
    with closing(treadle.make_vec(lambda: Pictures(), 4, groups=2, workers=2, blocks=3)) as vector:
        kept: list[tuple[int, np.ndarray]] = []
        for group in vector.groups(steps=12):
            assert np.shares_memory(group.observations, group.observations[0])
            kept.append((group.t, group.observations[1]))
            if group.t < 12:
                group.step(np.zeros(2, np.int64))
        vector.step(np.zeros(4, np.int64))
        vector.rollout(lambda seen: np.zeros(len(seen), np.int64), steps=6, groups=2)
        for t, picture in kept:
            assert (picture == t).all()
        del group, kept, picture
        gc.collect()
        found = set()
        for group in vector.groups(steps=6):
            found.add(group.observations.__array_interface__["data"][0])
            if group.t < 6:
                group.step(np.zeros(2, np.int64))
        assert len(found) <= 6  # two blocks a group, and where the rollout lay


class Pictures(gym.Env[np.ndarray, int]):
    """84 x 84 x 3 times the number of steps."""

    observation_space = gs.Box(0, 255, (84, 84, 3), np.uint8)
    action_space = gs.Discrete(2)

    def __init__(self) -> None:
        self.t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return np.zeros((84, 84, 3), np.uint8), {}

    def step(self, action: int) -> Any:
        self.t += 1
        return np.full((84, 84, 3), self.t, np.uint8), 0.0, False, False, {}


def test_resets_of_a_group(counters: VectorEnv) -> None:
    """Slot i gets seed + i, as in a reset of all slots; the other rows and the other group stay as they are."""
    counters.reset(seed=0)
    for group in counters.groups(steps=2):
        if group.t == 1:
            observations, infos = group.reset(seed=10, options={"reset_mask": np.array([False, True, True])})
            assert observations.tolist() == [1, 0, 0] == group.observations.tolist()
            first = group.slots.start
            assert infos["seed"].tolist() == [0, 12 + first, 14 + first]
            assert infos["_seed"].tolist() == [False, True, True]
        if group.t < 2:
            group.step(np.ones(3, np.int64))
    assert counters.step(np.ones(6, np.int64))[0].tolist() == [3, 3, 2, 2, 2, 2]


@pytest.mark.parametrize("style", ["list", "legacy"])
def test_other_forms_of_infos(style: str) -> None:
    with closing(VectorEnv([of(Counter, length) for length in (2, 3, 9)], groups=2, workers=1, infos=style)) as vector:
        vector.reset(seed=0)
        told = {}
        for group in vector.groups(steps=2):
            told[group.slots.start, group.t] = group.infos
            if group.t < 2:
                group.step(np.ones(group.num_envs, np.int64))
    if style == "list":
        assert told[0, 2] == [{"count": 2, "of": {"length": 2}}, {"count": 2, "of": {"length": 9}}]
        assert told[0, 0] == [{}, {}]
    else:
        assert told[0, 2]["_final_info"].tolist() == [True, False]
        assert told[0, 2]["final_info"][0] == {"count": 2, "of": {"length": 2}}
        assert told[1, 2]["count"].tolist() == [2]


def test_a_gymnasium_subclass_and_async_vector_env() -> None:
    with closing(AsyncVectorEnv([of(Counter, 9)] * 4, groups=2)) as vector:
        count(vector, 3)
        assert vector.step([1] * 4)[0].tolist() == [4] * 4


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("groups", [0, 4, -1, 1.5, "2", None, True])
def test_numbers_of_groups(groups: Any) -> None:
    with pytest.raises(UsageError, match=r"groups must be a whole number from 1 to the number of slots \(3\), got"):
        VectorEnv([of(Counter)] * 3, groups=groups, backend="serial")
    with closing(VectorEnv([of(Counter)] * 3, backend="serial")) as vector:
        with pytest.raises(UsageError, match=r"groups must be a whole number from 1 to the number of slots \(3\)"):
            vector.rollout(lambda seen: np.ones(len(seen), np.int64), steps=3, groups=groups)
        assert vector.rollout(lambda seen: np.ones(len(seen), np.int64), steps=3, groups=3).rewards.shape == (3, 3)


def test_what_groups_do_not_do(counters: VectorEnv) -> None:
    for steps in (0, -1, 1.5, "3", True):
        with pytest.raises(UsageError, match="steps must be a whole number of at least 1, or None"):
            counters.groups(steps=steps)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="a rollout in groups needs a policy"):
        counters.rollout(steps=3, groups=2)
    group = next(counters.groups(steps=1))
    with pytest.raises(BadAction, match="give 3 actions"):
        group.step(np.ones(6, np.int64))
    with pytest.raises(BadAction, match="slot 4: "):
        group.step([1, 1, 7])
    group.step([1, 1, 1])
    for act in (lambda: group.step([1, 1, 1]), group.reset):
        with pytest.raises(UsageError, match="of a group that is under way"):
            act()
    counters.async_reset()
    with pytest.raises(treadle.AlreadyPending, match="recv"):
        counters.groups()
    counters.recv(min=6)
    with pytest.raises(UsageError, match="use another vector for partial batches"):
        counters.groups()


def test_no_more_than_its_steps(counters: VectorEnv) -> None:
    with pytest.raises(UsageError, match="has taken the 2 steps of this loop"):
        for group in counters.groups(steps=2):
            group.step(np.ones(3, np.int64))
    count(counters, 2)


def test_vectorised_environments_and_strange_spaces() -> None:
    with closing(treadle.make_vec("CartPole-v1", 4, owned=True, groups=2, workers=2)) as vector:
        with pytest.raises(UsageError, match="rows of a vectorised environment are stepped together"):
            vector.groups()
        with pytest.raises(UsageError, match="rows of a vectorised environment are stepped together"):
            vector.rollout(lambda seen: np.zeros(len(seen), np.int64), steps=2, groups=2)
    with closing(VectorEnv([Parrot] * 3, groups=2, workers=2)) as vector:
        said = {}
        for group in vector.groups(steps=2):
            said[group.slots.start, group.t] = group.observations
            if group.t < 2:
                group.step([f"{slot}" for slot in range(3)[group.slots]])
        assert said[0, 2] == ("step(0)", "step(2)")
        assert said[1, 2] == ("step(1)",)
        with pytest.raises(UsageError, match="actions of a fixed shape"):
            vector.rollout(lambda seen: list(seen), steps=2, groups=2)


def test_actions_that_are_ignored_may_be_anything() -> None:
    """NEXT_STEP, after an end: as in a step of all slots."""
    with closing(VectorEnv([of(Counter, length) for length in (1, 2, 9, 9)], groups=2, workers=2)) as vector:
        vector.reset()
        for group in vector.groups(steps=2):
            if group.t == 0:
                group.step([1, 1])
            elif group.t == 1 and group.slots.start == 0:
                group.step([99, 1])
            elif group.t == 1:
                with pytest.raises(BadAction, match="slot 1: "):
                    group.step([99, 1])
                group.step([1, 1])
        assert group.valid.tolist() == [True, True]


def test_closing_it_meanwhile(counters: VectorEnv) -> None:
    loop = counters.groups()
    group = next(loop)
    group.step([1, 1, 1])
    other = next(loop)
    counters.close()
    for act in (lambda: next(loop), lambda: other.step([1, 1, 1]), counters.groups):
        with pytest.raises(ClosedVector):
            act()


def test_a_slot_that_raises(require: Any) -> None:
    """Once, from the loop; the others' rows come with the error, and a reset brings it back."""

    class Raises(Counter):
        def step(self, action: int) -> Any:
            if action == 3:
                raise ValueError("no luck")
            return super().step(action)

    with closing(VectorEnv([of(Raises, 1000)] * 4, groups=2, workers=2)) as vector:
        vector.reset(seed=0)
        with pytest.raises(TaskRaised, match="slot 2") as caught:
            for group in vector.groups():
                group.step([1, 3] if group.t == 1 and group.slots.start == 0 else [1, 1])
        assert (caught.value.where.slot, caught.value.where.step) == (2, 2)
        assert caught.value.partial[0].tolist() == [2, 0]  # type: ignore[attr-defined]
        with pytest.raises(UsageError, match=r"slots \[2\] moved on"):
            for group in vector.groups():
                group.step([1, 1])
        with pytest.raises(UsageError, match=r"slots \[2\] moved on"):
            vector.step([1] * 4)
        vector.reset_at(2)
        taken = vector.step([1] * 4)[0].tolist()
        assert taken[0] == 3
        assert taken[2] == 1
        assert taken[1] == taken[3]
