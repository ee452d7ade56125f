"""What a caller gives as actions is what environments get, as Gymnasium's SyncVectorEnv hands it over: unrounded."""

from __future__ import annotations

from contextlib import closing
from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces as gs
from gymnasium.vector import SyncVectorEnv
from small_envs import of

import treadle
from treadle.errors import BadAction, WorkerDied
from treadle.vector.gymnasium import VectorEnv

N = 4
SETUPS: list[dict[str, Any]] = [
    {"worker_options": treadle.WorkerOptions(backend="serial")},
    {"worker_options": treadle.WorkerOptions(backend="thread"), "workers": 2, "inline": 0},
    {"workers": 2, "inline": 0},
    {"workers": 1, "inline": 2},
]
RESTARTING: dict[str, Any] = {"workers": 2, "on_failure": "restart"}


def show(setup: dict[str, Any]) -> str:
    return "-".join(f"{key}={value}" for key, value in setup.items())


def told(action: Any) -> Any:
    """What an action is, to the last bit, in words that compare."""
    if isinstance(action, dict):
        return {key: told(action[key]) for key in sorted(action)}
    if isinstance(action, tuple):
        return tuple(told(part) for part in action)
    kind = type(action).__name__
    if isinstance(action, np.ndarray | np.generic):
        return kind, str(action.dtype), action.tolist()
    return kind, repr(action)


class Witness(gym.Env[Any, Any]):
    """Says in its infos what it was given."""

    observation_space = gs.Box(-1, 1, (1,))

    def __init__(self, action_space: gym.Space) -> None:
        self.action_space = action_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        info = {"got": repr(told(action))}
        if isinstance(action, np.ndarray):
            action[...] = 0  # some environments change what they are given
        return np.zeros(1, np.float32), 0.0, False, False, info


NUMBERS = np.linspace(-0.9, 0.9, N * 3).reshape(N, 3)
BOX, TALL, COUNTS = gs.Box(-1, 1, (3,)), gs.Box(-1, 1, (3,), np.float64), gs.Box(0, 255, (3,), np.uint8)
BOTH = gs.Dict(push=BOX, pair=gs.Tuple((gs.Box(-1, 1, ()), gs.MultiDiscrete([5, 5]))))
GIVEN: dict[str, tuple[gym.Space, Any]] = {
    "own": (BOX, NUMBERS.astype(np.float32)),
    "float64": (BOX, NUMBERS),
    "float16": (BOX, NUMBERS.astype(np.float16)),
    "int64": (BOX, np.arange(N * 3).reshape(N, 3)),
    "lists": (BOX, NUMBERS.tolist()),
    "rows": (BOX, list(NUMBERS)),
    "own rows": (BOX, list(NUMBERS.astype(np.float32))),
    "mixed": (BOX, [NUMBERS[0], NUMBERS[1].astype(np.float32), [0, 1, 2], NUMBERS[3].tolist()]),
    "too large": (BOX, np.full((N, 3), 1e300)),
    "narrower": (TALL, NUMBERS.astype(np.float32)),
    "counts": (COUNTS, np.arange(N * 3).reshape(N, 3)),
    "scalars": (gs.Box(-1, 1, ()), NUMBERS[:, 0]),
    "numbers": (gs.Box(-1, 1, ()), NUMBERS[:, 0].tolist()),
    "choices": (gs.MultiDiscrete([5, 5]), np.ones((N, 2), np.int32)),
    "choice lists": (gs.MultiDiscrete([5, 5]), [[1, 2]] * N),
    "bits": (gs.MultiBinary(2), [[0, 1]] * N),
    "nested": (BOTH, {"push": NUMBERS, "pair": (NUMBERS[:, 0].tolist(), np.ones((N, 2), int))}),
    "discrete": (gs.Discrete(5), [0, 1, 2, 3]),
}


def by_hand(space: gym.Space, actions: Any) -> list[str]:
    with closing(SyncVectorEnv([of(Witness, space)] * N)) as envs:
        envs.reset()
        return envs.step(actions)[4]["got"].tolist()  # type: ignore[no-any-return]


def fresh(name: str) -> tuple[gym.Space, Any]:
    """The environments of SyncVectorEnv change the caller's arrays, which ours must not."""
    space, actions = GIVEN[name]
    return space, deepcopy(actions)


@pytest.mark.parametrize("name", GIVEN)
@pytest.mark.parametrize("setup", [*SETUPS, RESTARTING], ids=show)
def test_actions_arrive_as_gymnasium_hands_them_over(name: str, setup: dict[str, Any]) -> None:
    expected = by_hand(*fresh(name))
    space, actions = fresh(name)
    with closing(VectorEnv(of(Witness, space), N, **setup)) as envs:
        envs.reset()
        for _ in range(2):
            assert envs.step(actions)[4]["got"].tolist() == expected
        envs.step_async(actions)
        if isinstance(actions, np.ndarray):
            actions[...] = 0  # they were given: what becomes of the array now is the caller's business
        assert envs.step_wait()[4]["got"].tolist() == expected
        actions = fresh(name)[1]
        rollout = envs.rollout(lambda _: actions, steps=3)
        assert [infos["got"].tolist() for infos in rollout.infos] == [expected] * 3


@pytest.mark.parametrize("name", [name for name in GIVEN if name != "nested"])
@pytest.mark.parametrize("setup", SETUPS, ids=show)
def test_partial_batches_hand_over_the_same(name: str, setup: dict[str, Any]) -> None:
    expected = by_hand(*fresh(name))
    space, actions = fresh(name)
    with closing(VectorEnv(of(Witness, space), N, **setup)) as envs:
        envs.async_reset()
        envs.recv(min=N)
        for chosen in ([3, 1], [0, 2], [2], [0, 1, 2, 3]):
            envs.send([actions[slot] for slot in chosen] if isinstance(actions, list) else actions[chosen], chosen)
            _, _, _, _, infos = envs.recv(min=len(chosen))
            assert dict(zip(infos["env_id"].tolist(), infos["got"].tolist(), strict=True)) == {
                slot: expected[slot] for slot in chosen
            }


class Overheard(gym.Wrapper[Any, Any, Any, Any]):
    """Says in its infos what it was given."""

    def step(self, action: Any) -> Any:
        *rest, info = super().step(action)
        return *rest, {**info, "got": repr(told(action))}


def cart_pole() -> gym.Env[Any, Any]:
    return Overheard(gym.make("CartPole-v1"))


@pytest.mark.parametrize("setup", SETUPS, ids=show)
def test_gymnasiums_own_environments_get_numpy_integers_and_others_pythons(setup: dict[str, Any]) -> None:
    actions = np.array([0, 1, 1, 0])
    with closing(SyncVectorEnv([cart_pole] * N)) as theirs:
        theirs.reset(seed=0)
        expected = theirs.step(actions)[4]["got"].tolist()
    with closing(VectorEnv(cart_pole, N, **setup)) as envs:
        envs.reset(seed=0)
        assert envs.step(actions)[4]["got"].tolist() == expected
        assert expected[1] == repr(("int64", "int64", 1))
    for mixed in ([of(Witness, gs.Discrete(2))] * N, [of(Witness, gs.Discrete(2)), *[cart_pole_as_box] * (N - 1)]):
        with closing(VectorEnv(mixed, **setup)) as envs:
            envs.reset(seed=0)
            assert envs.step(actions)[4]["got"].tolist() == [repr(("int", repr(a))) for a in actions.tolist()]


def cart_pole_as_box() -> gym.Env[Any, Any]:
    """The same, with the observations of `Witness`."""
    space = Witness.observation_space
    return gym.wrappers.TransformObservation(cart_pole(), lambda _: np.zeros(1, np.float32), space)


def test_actions_without_a_fixed_shape_can_be_sent_to_some_slots() -> None:
    with closing(VectorEnv(of(Witness, gs.Tuple((gs.Text(5), gs.Discrete(3)))), N, workers=2, inline=1)) as envs:
        envs.async_reset()
        envs.recv(min=N)
        envs.send((["a", "b"], [1, 2]), [3, 1])
        _, _, _, _, infos = envs.recv(min=2)
        got = dict(zip(infos["env_id"].tolist(), infos["got"].tolist(), strict=True))
        assert got == {3: repr(told(("a", 1))), 1: repr(told(("b", 2)))}


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ([np.float64] * 3, np.float64),
        ([np.float32] * 3, np.float32),
        ([np.float16] * 3, np.float32),
        ([np.float32, np.float64, np.float32], np.float64),
        ([list] * 3, np.float64),
    ],
    ids=str,
)
def test_a_rollout_keeps_the_actions_that_the_environments_got(given: list[Any], kept: type) -> None:
    actions = [NUMBERS.tolist() if kind is list else (NUMBERS * t).astype(kind) for t, kind in enumerate(given, 1)]
    with closing(VectorEnv(of(Witness, BOX), N, worker_options=treadle.WorkerOptions(backend="serial"))) as envs:
        todo = iter(actions)
        rollout = envs.rollout(lambda _: next(todo), steps=3)
        assert rollout.actions.dtype == kept
        for t, action in enumerate(actions):
            assert (rollout.actions[t] == np.asarray(action)).all()
        assert envs.rollout(lambda _: NUMBERS.astype(np.float32), steps=3).actions.dtype == np.float32


def test_halfcheetah_is_what_sync_vector_env_makes_of_float64_actions() -> None:
    def play(envs: Any) -> list[Any]:
        rng = np.random.default_rng(0)
        with closing(envs):
            out = [envs.reset(seed=3)[0].tobytes()]
            for _ in range(200):
                observations, rewards, *_ = envs.step(rng.uniform(-1, 1, (2, 6)))
                out += [observations.tobytes(), rewards.tobytes()]
        return out

    ours = treadle.make_vec("HalfCheetah-v5", 2, workers=1, inline=1)
    assert play(ours) == play(SyncVectorEnv([lambda: gym.make("HalfCheetah-v5")] * 2))


class Fatal(Witness):
    def step(self, action: Any) -> Any:
        import os

        os._exit(3)


def test_a_death_tells_the_action_that_was_given() -> None:
    with closing(VectorEnv([of(Witness, BOX), of(Fatal, BOX)], workers=1, inline=0)) as envs:
        envs.reset()
        with pytest.raises(WorkerDied) as caught:
            envs.step(NUMBERS[:2])
        assert told(caught.value.where.last_action) == told(NUMBERS[1])


@pytest.mark.parametrize("wrong", [np.full((N, 3), np.nan), np.zeros((N, 3), complex), np.zeros((N, 3), object)])
def test_what_is_no_number_is_still_refused(wrong: Any) -> None:
    with closing(VectorEnv(of(Witness, BOX), N, worker_options=treadle.WorkerOptions(backend="serial"))) as envs:
        envs.reset()
        with pytest.raises(BadAction, match="Nothing was sent"):
            envs.step(wrong)


class Recorder(Witness):
    """Its rewards are what it got, so that they can be compared with what was recorded."""

    def __init__(self) -> None:
        super().__init__(gs.Box(-1, 1, (1,)))
        self._t = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._t = 0
        return super().reset()

    def step(self, action: Any) -> Any:
        self._t += 1
        return np.zeros(1, np.float32), float(action[0]), False, self._t == 5, {}


def test_collecting_casts_once_before_the_environment() -> None:
    def policy(observation: Any) -> Any:
        return np.full((1, 1), 0.1)  # float64

    episodes = list(treadle.collect(Recorder, policy, episodes=2, workers=1))
    assert len(episodes) == 2
    for episode in episodes:
        assert episode.actions.dtype == np.float32
        assert episode.rewards.tolist() == episode.actions[:, 0].tolist() == [float(np.float32(0.1))] * 5


def test_collecting_refuses_what_cannot_be_cast() -> None:
    with pytest.raises(treadle.CollectionFailed, match="numbers that fit float32"):
        list(treadle.collect(Recorder, lambda _: np.full((1, 1), 1e300), episodes=1, workers=1))


class Constant:
    """Always does the same, as float64."""

    def reset(self, do_resets: Any = None) -> None: ...

    def get_action(self, observation: Any) -> Any:
        return np.full(1, 0.1), {}

    def get_actions(self, observations: Any) -> Any:
        return np.full((len(observations), 1), 0.1), {}


@pytest.mark.parametrize("kind", [treadle.DefaultWorker, treadle.VecWorker, treadle.FragmentWorker])
def test_samplers_record_what_the_environment_got(kind: type) -> None:
    sampler = treadle.LocalSampler(
        agents=Constant(), envs=Recorder(), max_episode_length=5, n_workers=1, worker_class=kind
    )
    batch = sampler.obtain_samples(0, 10, None)
    sampler.shutdown_worker()
    assert batch.rewards.tolist() == batch.actions[:, 0].tolist()
