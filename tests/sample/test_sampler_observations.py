"""Observations that do not fit their space: refused where they come up, with the place, and never kept in a batch."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from sampler_kit import Coin, Odd, OwnInterface

from treadle import (
    BadObservation,
    DefaultWorker,
    FragmentWorker,
    LocalSampler,
    MultiprocessingSampler,
    VecWorker,
    WorkersLost,
    rollout,
)
from treadle.samplers import EnvSpec
from treadle.spaces import Mismatch
from treadle.spaces.fit import Fit

BAD = {
    "shape": np.zeros(3, np.float32),
    "None": None,
    "text": "no",
    "int64": np.zeros(2, np.int64),
    "1e300": np.full(2, 1e300),
    "a number": 1.0,
}


class Own(DefaultWorker):
    """A rollout of a user's own: two episodes, with a start of its own."""

    def start_episode(self) -> None:
        self._eps_length = 0
        self._prev_obs, _ = self.env.reset()

    def rollout(self) -> Any:
        for _ in range(2):
            self.start_episode()
            while not self.step_episode():
                pass
        return self.collect_episode()


WORKERS = [DefaultWorker, Own, VecWorker, FragmentWorker]


def sampler(kind: Any, envs: Any, **more: Any) -> Any:
    return kind(Coin(), envs, max_episode_length=9, n_workers=2, seed=1, **{"on_failure": "raise", **more})


def check(error: BadObservation, at: int, pattern: str) -> None:
    """The third episode of worker 1, which is slot 1, in step `at`."""
    where = error.where
    assert (where.slot, where.episode, where.step) == (1, 2, at or None)
    assert where.phase == ("rollout" if at else "reset")
    assert error.expected == "float32[2]"
    assert pattern in str(error)
    assert "does not fit its own observation_space" in str(error)


@pytest.mark.parametrize("at", [0, 3, 5])
@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("interface", [lambda env: env, OwnInterface], ids=["gymnasium", "own"])
@pytest.mark.parametrize("worker_class", WORKERS)
def test_what_does_not_fit_is_refused_with_its_place(worker_class: Any, interface: Any, bad: str, at: int) -> None:
    envs = [interface(Odd(np.full(2, at, np.float32), at)), interface(Odd(BAD[bad], at))]
    many = worker_class in (VecWorker, FragmentWorker)
    with sampler(LocalSampler, envs, worker_class=worker_class, worker_args={"n_envs": 1} if many else {}) as local:
        with pytest.raises(BadObservation) as caught:
            local.obtain_exact_episodes(60, None)
        check(caught.value, at, f"in step {at} of a rollout of episode 2" if at else "in reset of episode 2")
        if many:
            assert "environment 0's observation: expected" in str(caught.value)
        batch = local.obtain_exact_episodes(1, None)  # it goes on, and nothing is left of that episode
    assert batch.observations.dtype == np.float32
    assert batch.observations.shape[1:] == (2,)
    if worker_class is not FragmentWorker:
        for episode in batch.split():
            assert episode.observations[:, 0].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("worker_class", WORKERS)
def test_it_comes_from_another_process_as_it_is(worker_class: Any) -> None:
    envs = [Odd(np.full(2, 3, np.float32)), Odd(None)]
    with sampler(MultiprocessingSampler, envs, worker_class=worker_class) as there:
        with pytest.raises(BadObservation) as caught:
            there.obtain_exact_episodes(100, None)
        check(caught.value, 3, "worker 1, pid")


def test_a_worker_that_is_dropped_for_it_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.WARNING, "treadle"),
        sampler(LocalSampler, Odd(None), on_failure="drop") as local,
        pytest.raises(WorkersLost, match=r"worker 0: observation: expected float32\[2\], got None.*step 3 of an ep"),
    ):
        local.obtain_samples(0, 1000, None)
    assert "worker 0 is dropped" in caplog.text


def test_by_index_the_episode_is_that_of_the_run() -> None:
    with sampler(LocalSampler, Odd(None), ordered=True) as local, pytest.raises(BadObservation) as caught:
        local.obtain_exact_episodes(10, None)
    assert caught.value.where.episode in range(2, 20)
    assert caught.value.where.seed is not None
    assert caught.value.where.step == 3


def test_one_episode_in_the_caller() -> None:
    env = Odd("no")
    env.episode = 1
    with pytest.raises(BadObservation, match="in step 3 of episode 0: observation: expected") as caught:
        rollout(env, Coin())
    assert (caught.value.where.step, caught.value.got) == (3, "str 'no'")


class Wide(Odd):
    """Its observations are wider than its space says, but for those of resets."""

    def _look(self) -> Any:
        return np.full(2, self.t + 0.1, np.float64 if self.t else np.float32)


class Looks(Coin):
    """Tells the dtype of what it is given."""

    def get_action(self, observation: Any) -> Any:
        return 0, {"seen": observation.dtype.itemsize}

    def get_actions(self, observations: Any) -> Any:
        return [0] * len(observations), {"seen": [observations.dtype.itemsize] * len(observations)}


@pytest.mark.parametrize("worker_class", WORKERS)
def test_other_widths_of_environments_with_our_own_interface_are_cast_before_the_agent_has_them(
    worker_class: Any,
) -> None:
    env = OwnInterface(Wide(None))
    with LocalSampler(Looks(), env, max_episode_length=9, n_workers=1, worker_class=worker_class) as local:
        batch = local.obtain_samples(0, 40, None)
    assert batch.observations.dtype == batch.last_observations.dtype == np.float32
    assert set(batch.agent_infos["seen"]) == {4}
    with sampler(LocalSampler, Wide(None), worker_class=worker_class) as local, pytest.raises(BadObservation):
        local.obtain_samples(0, 40, None)


Foreign = SimpleNamespace  # spaces of another library: known by what they have


def test_spaces_of_other_libraries() -> None:
    box = Foreign(shape=(2,), dtype=np.dtype(np.float32))
    nested = Foreign(spaces={"a": box, "b": Foreign(spaces=(Foreign(shape=(), n=3), Foreign(shape=None)))})
    fit = Fit(nested, exact=False)
    found = fit({"a": np.ones(2), "b": (2, "anything")})
    assert found["a"].dtype == np.float32
    assert found["b"] == (2, "anything")
    for wrong, path in (
        ({"a": np.ones(3), "b": (2, 0)}, ("a",)),
        ({"a": [[1.0], [2.0, 3.0]], "b": (2, 0)}, ("a",)),
        ({"a": np.ones(2), "b": (2.5, 0)}, ("b", 0)),
        ({"a": np.ones(2)}, ("b",)),
    ):
        with pytest.raises(Mismatch) as caught:
            fit(wrong)
        assert caught.value.path == path


@pytest.mark.parametrize(
    ("space", "value", "fits"),
    [
        (gym.spaces.Box(0, 255, (2,), np.uint8), np.array([1, 2]), True),
        (gym.spaces.Box(0, 255, (2,), np.uint8), np.array([1, 256]), False),
        (gym.spaces.Box(0, 255, (2,), np.uint8), np.array([True, False]), False),
        (gym.spaces.Box(-1, 1, (), np.float32), 0.5, True),
        (gym.spaces.Box(-1, 1, (2,), np.float32), [0.5, 1.0], True),
        (gym.spaces.Box(-1, 1, (2,), np.float32), np.array([np.inf, np.nan]), True),
        (gym.spaces.Box(-1, 1, (2,), np.float32), np.array([1e300, 0]), False),
        (gym.spaces.Discrete(3), np.int8(2), True),
        (gym.spaces.Discrete(3), np.array([0, 1, 0]), False),
    ],
)
def test_what_may_be_cast(space: Any, value: Any, fits: bool) -> None:
    fit = Fit(EnvSpec(space, space).observation_space, exact=False)
    if fits:
        found = fit(value)
        assert np.array_equal(found, value, equal_nan=True)
        assert np.asarray(found).dtype == space.dtype or isinstance(space, gym.spaces.Discrete)
    else:
        with pytest.raises(Mismatch):
            fit(value)
