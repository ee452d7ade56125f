"""Failures in the workers of garage's samplers: replayed from the episode's seeds, or from the worker's."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import treadle
from treadle import FragmentWorker, LocalSampler, MultiprocessingSampler, VecWorker

sys.path.insert(0, str(Path(__file__).parent))

from drills import BAD_EPISODE, BAD_STEP, Brittle, Corridor

BOTH = pytest.mark.parametrize("kind", [LocalSampler, MultiprocessingSampler])


class Drawn:
    """An agent that draws from a generator of its own: seeded for each episode by index, else it goes on drawing."""

    def __init__(self, kind: Any = int) -> None:
        self.kind = kind
        self.seed(0)

    def seed(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def get_action(self, observation: np.ndarray) -> tuple[int, dict[str, Any]]:
        return self.kind(self.rng.integers(2)), {}


def failed(kind: Any, env: Any, **options: Any) -> Any:
    """The error of a sampling of thirty episodes."""
    given = {"seed": 0, "n_workers": 1, "max_episode_length": 100, "on_failure": "raise", **options}
    agent = given.pop("agent", Drawn())
    with kind(agent, env, **given) as sampler, pytest.raises(treadle.WorkerError) as error:
        sampler.obtain_exact_episodes(30, None)
    return error.value


def same(result: Any, step: int = BAD_STEP) -> None:
    assert (result.steps, result.as_recorded) == (step, True), str(result)


@BOTH
def test_an_episode_by_index_that_raised_is_replayed_by_its_actions(kind: Any, tmp_path: Path) -> None:
    error = failed(kind, Corridor, ordered=True)
    assert error.repro.about["seed"] == treadle.seeding.episode_env_seed(0, BAD_EPISODE)
    assert len(error.repro.arrays["action.0"]) == BAD_STEP
    path = error.repro.save(tmp_path / "one")
    for result in (treadle.replay(error), treadle.replay(treadle.last_failure()), treadle.replay(path)):
        same(result)
        assert type(result.error) is ZeroDivisionError
        assert result.compared == ["rewards", "observations"]
    same(treadle.replay(path, policy=True, trust=True))


@BOTH
def test_an_episode_by_arrival_that_raised_is_replayed_from_its_generators_state(kind: Any, tmp_path: Path) -> None:
    error = failed(kind, Brittle, agent=Drawn(np.float64))
    assert error.repro.arrays["action.0"].dtype == np.float64, "as the environment was given them"
    assert error.where.episode > 0, "so its reset had no seed"
    same(treadle.replay(treadle.last_failure()))
    result = treadle.replay(error.repro.save(tmp_path / "one"))
    same(result)
    assert result.compared == ["rewards", "observations"]


@pytest.mark.parametrize("fault", ["segfault", "hang"])
def test_what_ended_a_worker_by_index_is_found_among_what_it_was_given(fault: str, tmp_path: Path) -> None:
    limit = {"step_timeout": 3.0} if fault == "hang" else {}
    error = failed(MultiprocessingSampler, Faulty(fault), ordered=True, **limit)
    for source, trust in ((treadle.last_failure(), False), (error.repro.save(tmp_path / "one"), True)):
        result = treadle.replay(source, trust=trust)
        same(result)
        assert "drills.py" in result.failed


def test_what_ended_a_worker_by_arrival_is_played_from_its_first_episode() -> None:
    failed(MultiprocessingSampler, Faulty("segfault", Brittle))
    result = treadle.replay(treadle.last_failure())
    same(result)
    assert result.episode > 0
    assert "SIGSEGV" in result.failed


def test_an_agent_in_the_caller_leaves_episodes_by_index() -> None:
    error = failed(MultiprocessingSampler, Corridor, inference="caller", ordered=True)
    same(treadle.replay(error))


def test_one_that_is_replaced_or_dropped_leaves_its_failure_too() -> None:
    for policy, options in (("restart", {"seed": 0}), ("drop", {"seed": 0, "n_workers": 2})):
        before = treadle.last_failure()
        given = {"max_episode_length": 100, "on_failure": policy, **options}
        with MultiprocessingSampler(Drawn(), Brittle, **given) as sampler:
            try:
                sampler.obtain_samples(0, 400, None)
            except treadle.WorkerError as error:
                same(treadle.replay(error))
        assert treadle.last_failure() is not before
        same(treadle.replay(treadle.last_failure()))


MANY = pytest.mark.parametrize("worker", [VecWorker, FragmentWorker])


@MANY
@BOTH
def test_what_one_of_a_workers_environments_raised_is_replayed_by_its_actions(
    kind: Any, worker: Any, tmp_path: Path
) -> None:
    args = {"n_envs": 3} | ({"timesteps_per_call": 7} if worker is FragmentWorker else {})
    error = failed(kind, Brittle, worker_class=worker, worker_args=args)
    assert "of environment" in error.repro.about["title"]
    same(treadle.replay(treadle.last_failure()))
    result = treadle.replay(error.repro.save(tmp_path / "one"))
    same(result)
    assert type(result.error) is ZeroDivisionError
    assert result.compared == ["rewards", "observations"]


class Lame(Corridor):
    """The reset of an episode that begins beyond 0.8 raises."""

    def reset(self, **given: Any) -> Any:
        found = super().reset(**given)
        if self.x > 0.8:
            raise ValueError("lame")
        return found


@MANY
def test_a_reset_of_one_of_a_workers_environments_is_replayed(worker: Any) -> None:
    error = failed(MultiprocessingSampler, Lame, worker_class=worker, worker_args={"n_envs": 3})
    result = treadle.replay(error)
    assert (type(result.error), result.as_recorded, result.steps) == (ValueError, True, 0)


def test_a_death_of_a_worker_with_several_environments_says_why_it_cannot_be_replayed() -> None:
    error = failed(MultiprocessingSampler, Faulty("segfault", Brittle), worker_class=VecWorker)
    assert any("it cannot be replayed: a" in note for note in error.__notes__)
    for source in (error, treadle.last_failure()):
        with pytest.raises(treadle.UsageError, match="cannot be replayed: a VecWorker may play several"):
            treadle.replay(source)


class Homesick(Drawn):
    """Cannot be opened where it was packed."""

    def __getstate__(self) -> dict[str, Any]:
        return {"rng": self.rng, "kind": self.kind, "home": os.getpid()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if state["home"] == os.getpid():
            raise OSError("not here")
        vars(self).update(state)


def test_what_cannot_be_kept_does_not_hide_the_failure(caplog: pytest.LogCaptureFixture) -> None:
    with MultiprocessingSampler(Drawn(), Corridor, seed=0, n_workers=1, max_episode_length=100) as sampler:
        sampler.obtain_exact_episodes(1, None)
        with pytest.raises(treadle.WorkersLost, match="ZeroDivisionError") as error:
            sampler.evaluate(6, Homesick(), seed=0)
    assert error.value.repro is None
    assert "what worker 0 can be replayed from was not kept: OSError('not here')" in caplog.text


class Faulty:
    """Makes environments with a fault."""

    def __init__(self, fault: str, kind: Any = Corridor) -> None:
        self.fault, self.kind = fault, kind

    def __call__(self) -> Any:
        return self.kind(self.fault)
