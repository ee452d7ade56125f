"""Slots of vectors that failed: replayed from their last seeded reset, over all episodes since."""

from __future__ import annotations

import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import treadle

sys.path.insert(0, str(Path(__file__).parent))

from drills import BAD_STEP, LATE_EPISODE, LENGTH, Late

N, BAD_EPISODE = 4, LATE_EPISODE


def driven(steps: int = 400, *, partial: bool = False, posted: bool = False, **options: Any) -> treadle.WorkerError:
    """The error that ends a vector of `Late`, stepped with random actions after a reset with seeds 5, 6, ..."""
    rng = np.random.default_rng(0)
    kwargs = {"fault": options.pop("fault", "divide")}
    made = treadle.VectorEnv(Late, N, kwargs=kwargs, workers=2, worker_output="keep", **options)
    with closing(made) as envs:
        with pytest.raises(treadle.WorkerError) as failed:
            if partial:
                envs.async_reset(seed=5)
                for _ in range(steps * 20):  # which worker answers how often is not ours to say
                    _, _, _, _, infos = envs.recv(min=1, max=N)
                    slots = infos["env_id"]
                    envs.send(rng.integers(2, size=len(slots)), slots)
            else:
                envs.reset(seed=5)
                for _ in range(steps):
                    actions = rng.integers(2, size=N)
                    if posted:
                        envs.step_async(actions)
                        envs.step_wait()
                    else:
                        envs.step(actions)
        return failed.value


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
@pytest.mark.parametrize("recorder", [True, "full"])
def test_a_slot_is_replayed_from_its_seeded_reset(mode: str, recorder: Any) -> None:
    error = driven(autoreset_mode=mode, recorder=recorder)
    assert isinstance(error, ZeroDivisionError)
    result = treadle.replay(error)
    assert result.as_recorded, str(result)
    assert (result.episode, result.steps, type(result.error)) == (BAD_EPISODE, BAD_STEP, ZeroDivisionError)
    assert result.compared == ["rewards", "ends", *(["observations"] if recorder == "full" else [])]
    assert len(error.repro.arrays["rewards"]) >= BAD_EPISODE * LENGTH, "all that was done is compared"
    last = treadle.last_failure()
    assert last is not None
    assert last.about == error.repro.about


def test_other_ways_to_step_are_recorded_too() -> None:
    for options in ({"partial": True}, {"posted": True}, {"backend": "serial"}, {"inline": N - 1}):
        result = treadle.replay(driven(**options))
        assert (result.as_recorded, result.episode, result.steps) == (True, BAD_EPISODE, BAD_STEP), str(result)


def test_a_worker_that_died_leaves_what_it_did(tmp_path: Path) -> None:
    error = driven(fault="segfault", inline=0)
    assert isinstance(error, treadle.WorkerDied)
    path = error.repro.save(tmp_path / "died.repro")
    result = treadle.replay(path)
    assert str(result).startswith(
        f"step {BAD_STEP} of episode {BAD_EPISODE}: the process was ended by SIGSEGV (drills.py:"
    )
    assert result.as_recorded


@pytest.mark.parametrize("reset", [True, False])
def test_a_death_in_lockstep_after_partial_batches_has_its_last_step(reset: bool) -> None:
    """Their steps are noted before they are made, those of lockstep after that."""
    ones = np.ones(N, np.int64)
    with closing(treadle.VectorEnv(Late, N, kwargs={"fault": "segfault"}, workers=2, inline=0)) as envs:
        envs.async_reset(seed=5)
        envs.recv(min=N)
        envs.send(ones)
        envs.recv(min=N)
        if reset:
            envs.reset(seed=5)
        with pytest.raises(treadle.WorkerDied) as failed:
            for _ in range(LENGTH * (BAD_EPISODE + 2)):
                envs.step(ones)
    result = treadle.replay(failed.value)
    assert (result.as_recorded, result.episode, result.steps) == (True, BAD_EPISODE, BAD_STEP), str(result)


def test_the_first_step_in_lockstep_after_partial_batches_may_be_the_last() -> None:
    ones = np.ones(N, np.int64)
    with closing(treadle.VectorEnv(Late, N, kwargs={"fault": "segfault"}, workers=2, inline=0)) as envs:
        envs.async_reset(seed=5)
        envs.recv(min=N)
        for _ in range(BAD_EPISODE * (LENGTH + 1) + BAD_STEP - 1):
            envs.send(ones)
            envs.recv(min=N)
        with pytest.raises(treadle.WorkerDied) as failed:
            envs.step(ones)
    result = treadle.replay(failed.value)
    assert (result.as_recorded, result.episode, result.steps) == (True, BAD_EPISODE, BAD_STEP), str(result)


def test_an_environment_that_its_seed_does_not_decide_is_found_out() -> None:
    result = treadle.replay(driven(fault="divide"), env=lambda **kwargs: Other(**kwargs))
    assert not result.as_recorded
    assert result.difference is not None
    assert (result.difference.field, result.difference.step) == ("reward", 1)


def test_what_differs_in_a_child_is_told_as_it_is_here(tmp_path: Path) -> None:
    """Of observations only check sums are recorded, so there are no values to tell."""
    error = driven(fault="segfault", inline=0, recorder="full")
    result = treadle.replay(error.repro.save(tmp_path / "x"), env=f"{__file__}:Harmless")
    assert result.difference == (1, "observation", None, None, 0)
    assert str(result.difference) == "step 1, observation"
    assert result.as_dict()["difference"]["recorded"] is None


class Harmless(Late):
    def look(self) -> np.ndarray:
        return super().look() + 1.0

    def fail(self) -> None:
        """It goes on."""


class Other(Late):
    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        super().reset(**given)
        self.x += 1.0
        return self.look(), {}


def test_options_and_later_resets_are_given_again() -> None:
    with closing(treadle.VectorEnv(Late, N, workers=2, autoreset_mode="Disabled")) as envs:
        envs.reset(seed=5, options={"start": 3.0})
        with pytest.raises(ZeroDivisionError) as failed:
            for _ in range(BAD_EPISODE + 1):
                for _ in range(LENGTH):
                    ended = envs.step(np.ones(N, np.int64))[2]
                envs.reset(options={"reset_mask": ended, "start": 1.0})
    result = treadle.replay(failed.value)
    assert (result.as_recorded, result.episode, result.steps) == (True, BAD_EPISODE, BAD_STEP), str(result)


def test_a_vector_without_the_recorder_keeps_nothing() -> None:
    error = driven(recorder=False)
    assert error.repro is None
    with pytest.raises(treadle.UsageError, match="no failure to replay"):
        treadle.replay(error)


def test_what_is_no_longer_recorded_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.pool.history.CHUNK_BYTES", 1)
    monkeypatch.setattr("treadle.pool.history.MOST_BYTES", 1)
    with pytest.raises(treadle.UsageError, match="is still recorded"):
        treadle.replay(driven())


@pytest.mark.parametrize("fault", ["divide", "segfault"])
def test_rows_of_a_vectorised_environment_say_why_they_cannot_be_replayed(fault: str) -> None:
    recipe = treadle.OwnedVectors(one_after_the_other, kwargs={"fault": fault})
    with closing(treadle.VectorEnv(recipe, N, workers=1, worker_output="keep")) as envs:
        envs.reset(seed=5)
        with pytest.raises(treadle.WorkerError) as failed:
            for _ in range(400):
                envs.step(np.zeros(N, np.int64))
    assert any("it cannot be replayed: what the rows of" in note for note in failed.value.__notes__)
    for source in (failed.value, treadle.last_failure()):
        with pytest.raises(treadle.UsageError, match="cannot be replayed: what the rows of"):
            treadle.replay(source)


def one_after_the_other(num_envs: int, fault: str) -> Any:
    return gym.vector.SyncVectorEnv([partial(Late, fault)] * num_envs)
