"""Slots of vectors that failed: replayed from their last seeded reset, over all episodes since."""

from __future__ import annotations

import io
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import treadle

sys.path.insert(0, str(Path(__file__).parent))

from drills import BAD_STEP, LATE_EPISODE, LATE_SEED, LENGTH, Corridor, Late, line_of

N, BAD_EPISODE = 4, LATE_EPISODE


def driven(steps: int = 400, *, partial: bool = False, posted: bool = False, **options: Any) -> treadle.WorkerError:
    """The error that ends a vector of `Late`, stepped with random actions after a reset with seeds 5, 6, ... `env`:
    of another; `seed`: of the reset."""
    seed = options.pop("seed", 5)
    rng = np.random.default_rng(0)
    kwargs = {"fault": options.pop("fault", "divide")}
    given = {"workers": 2, "worker_options": treadle.WorkerOptions(worker_output="keep"), **options}
    made = treadle.VectorEnv(given.pop("env", Late), N, env_kwargs=kwargs, **given)
    with closing(made) as envs:
        with pytest.raises(treadle.WorkerError) as failed:
            if partial:
                envs.async_reset(seed=seed)
                while True:  # which worker answers how often is not ours to say
                    _, _, _, _, infos = envs.recv(min=1, max=N)
                    slots = infos["env_id"]
                    envs.send(rng.integers(2, size=len(slots)), slots)
            else:
                envs.reset(seed=seed)
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
    error = driven(autoreset_mode=mode, worker_options=treadle.WorkerOptions(recorder=recorder))
    assert isinstance(error, ZeroDivisionError)
    result = treadle.replay(error)
    assert result.as_recorded, str(result)
    assert (result.episode, result.steps, type(result.error)) == (BAD_EPISODE, BAD_STEP, ZeroDivisionError)
    assert result.compared == ["rewards", "ends", "observations" if recorder == "full" else "first observation"]
    assert len(error.repro.arrays["rewards"]) >= BAD_EPISODE * LENGTH, "all that was done is compared"
    last = treadle.last_failure()
    assert last is not None
    assert last.about == error.repro.about


def test_other_ways_to_step_are_recorded_too() -> None:
    ways = (
        {"partial": True},
        {"posted": True},
        {"worker_options": treadle.WorkerOptions(backend="serial")},
        {"inline": N - 1},
    )
    full = {"worker_options": treadle.WorkerOptions(recorder="full")}
    serial = {"worker_options": treadle.WorkerOptions(recorder="full", backend="serial")}
    for options in (*ways, *({**way, **(serial if "worker_options" in way else full)} for way in ways)):
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
    with closing(treadle.VectorEnv(Late, N, env_kwargs={"fault": "segfault"}, workers=2, inline=0)) as envs:
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
    with closing(treadle.VectorEnv(Late, N, env_kwargs={"fault": "segfault"}, workers=2, inline=0)) as envs:
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


@pytest.mark.parametrize(
    "options", [{}, {"inline": N}, {"workers": 1}, {"worker_options": treadle.WorkerOptions(backend="serial")}]
)
def test_another_environment_is_found_by_the_first_observation(options: dict[str, Any]) -> None:
    error = driven(**{"workers": 2, **options})
    played: list[Any] = []
    with pytest.raises(treadle.UsageError, match="not what was played: it differs in the reset, observation"):
        treadle.replay(error, env=lambda **kwargs: Shifted(**kwargs), tick=lambda *at: played.append(at))
    assert played == [(0, 0)], "no step"


def test_a_debugger_stops_in_a_reset_that_is_not_as_recorded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = driven(env=Clock)
    monkeypatch.setattr(Clock, "fails", False)
    monkeypatch.setattr("sys.stdin", io.StringIO("p seed\nc\n"))
    result = treadle.replay(error, pdb=True)
    shown = capsys.readouterr().out
    assert shown.startswith("it first differs from what was recorded in the reset, observation")
    assert f"(Pdb) {LATE_SEED}" in shown
    assert not result.as_recorded


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
@pytest.mark.parametrize("fault", ["reset", "step"])
def test_a_debugger_stops_whatever_the_environment_looks_like(
    mode: str, fault: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Within a wrapper, with signatures over several lines and texts, and in a later episode's reset."""
    error = driven(env=wrapped, fault=fault, autoreset_mode=mode, worker_options=treadle.WorkerOptions(recorder="full"))
    monkeypatch.setattr(Written, "calm", True)
    monkeypatch.setattr("sys.stdin", io.StringIO("p self.episode\nc\n"))
    result = treadle.replay(error, pdb=True)
    shown = capsys.readouterr().out
    assert not result.as_recorded
    assert "it first differs from what was recorded in " in shown
    # in the SAME_STEP mode a reset is made within the step that ends the episode before
    where = "reset" if fault == "reset" and mode == "NextStep" else "step"
    assert f"test_replay_slots.py({line_of(f'# {where}: first line', __file__)}){where}()" in shown
    assert f"(Pdb) {int(fault == 'step')}" in shown


def test_a_reset_without_a_seed_shows_something_else_each_time() -> None:
    result = treadle.replay(driven(env=Often, seed=None))
    assert result.compared == ["rewards", "ends"]
    assert result.difference is None or result.difference.step > 0


def test_what_has_no_fixed_shape_is_not_said_to_be_compared() -> None:
    with closing(treadle.VectorEnv(Talks, 2, workers=1)) as envs:
        envs.reset(seed=5)
        with pytest.raises(ZeroDivisionError) as failed:
            envs.step([1, 1])
    assert treadle.replay(failed.value).compared == []


def test_a_reset_right_after_another_is_made_too() -> None:
    """The generator goes on where the first one left it."""
    with closing(treadle.VectorEnv(Late, N, workers=2)) as envs:
        envs.reset(seed=5)
        envs.reset()
        with pytest.raises(ZeroDivisionError) as failed:
            for _ in range((LENGTH + 1) * (BAD_EPISODE + 1)):
                envs.step(np.ones(N, np.int64))
    result = treadle.replay(failed.value)
    assert (result.as_recorded, result.episode, result.steps) == (True, BAD_EPISODE, BAD_STEP), str(result)


def test_what_differs_in_a_child_is_told_as_it_is_here(tmp_path: Path) -> None:
    """Of observations only check sums are recorded, so there are no values to tell."""
    error = driven(fault="segfault", inline=0, worker_options=treadle.WorkerOptions(recorder="full"))
    result = treadle.replay(error.repro.save(tmp_path / "x"), env=f"{__file__}:Harmless")
    assert result.difference == (1, "observation", None, None, 0)
    assert str(result.difference) == "step 1, observation"
    assert result.as_dict()["difference"]["recorded"] is None


class Harmless(Late):
    def look(self) -> np.ndarray:
        return super().look() + (1.0 if self.t else 0.0)

    def fail(self) -> None:
        """It goes on."""


class Other(Late):
    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        found = super().reset(**given)
        self.x += 1.0
        return found


class Shifted(Late):
    def look(self) -> np.ndarray:
        return super().look() + 1.0


class Written(gym.Env):
    """Raises in its second episode, in whose reset, or first step, it shows another number in this process if it is
    to be `calm`."""

    observation_space = gym.spaces.Box(-1e9, 1e9, (1,), np.float64)
    action_space = gym.spaces.Discrete(2)
    calm = False

    def __init__(self, fault: str) -> None:
        self.fault = fault

    def reset(
        self,
        *,
        seed: int | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Its text.

        Of several lines.
        """
        super().reset(seed=seed)  # reset: first line
        self.episode = 0 if seed is not None else self.episode + 1
        self.t = 0
        return np.array([float(self.calm and self.episode == 1 and self.fault == "reset")]), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Its text."""
        self.t += 1  # step: first line
        if self.episode == 1 and self.t == 3 and not self.calm:
            raise ZeroDivisionError
        other = self.calm and self.episode == 1 and self.t == 1 and self.fault == "step"
        return np.array([float(other)]), 1.0, self.t == 3, False, {}


def wrapped(fault: str) -> gym.Env:
    return gym.wrappers.TimeLimit(Written(fault), 100)


class Talks(gym.Env):
    observation_space = gym.spaces.Text(9)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        return "abc", {}

    def step(self, action: Any) -> Any:
        raise ZeroDivisionError


class Often(Corridor):
    """Fails in step 30 of its fourth episode, whatever its seed."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.seed = self.bad_seed = 0
        if not (self.episode == LATE_EPISODE and self.t == BAD_STEP - 1):
            self.bad_seed = 1
        return super().step(action)


class Clock(Late):
    fails = True

    def fail(self) -> None:
        if self.fails:
            super().fail()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        return self.look() + time.monotonic_ns() % 10**8 + 1, {}


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
    error = driven(worker_options=treadle.WorkerOptions(recorder=False))
    assert error.repro is None
    with pytest.raises(treadle.UsageError, match="no failure to replay"):
        treadle.replay(error)


def test_what_is_no_longer_recorded_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.lockstep.history.CHUNK_BYTES", 1)
    monkeypatch.setattr("treadle.lockstep.history.MOST_BYTES", 1)
    with pytest.raises(treadle.UsageError, match="before the recorded ones"):
        treadle.replay(driven())
