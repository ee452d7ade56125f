"""Verdicts on runs that are known to be bound by one kind. All of them wait, so a busy machine changes little."""

from __future__ import annotations

import contextlib
import logging
import math
import re
import time
from contextlib import closing
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import treadle
from treadle.lockstep import measured
from treadle.pool.processor import Usage
from treadle.verdict import Figures, Kind, Verdict


class Waits(gym.Env[Any, Any]):
    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, step: float = 0.0, reset: float = 0.0, length: int = 10**9) -> None:
        self._step, self._reset, self._length = step, reset, length

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self._left = self._length
        time.sleep(self._reset)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._left -= 1
        time.sleep(self._step)
        return np.zeros(2, np.float32), 0.0, self._left <= 0, False, {}


@pytest.fixture(autouse=True)
def calm(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start, other programs and a lack of memory are the machine's affair; what a run itself does is judged here."""
    monkeypatch.setattr("treadle.verdict.STARTS", math.inf)  # no start is counted
    monkeypatch.setattr(measured, "RECENT", 1 << 62)  # nothing is old, whoever else computes
    monkeypatch.setattr("treadle.pool.spent.stalled", lambda: 0.0)


def judged(envs: list[Any], steps: int, think: float = 0.0, **options: Any) -> tuple[Verdict, Figures]:
    with closing(treadle.VectorEnv(envs, **{"workers": len(envs), "inline": 0, **options})) as vector:
        vector.reset(seed=0)
        for _ in range(steps):
            time.sleep(think)
            vector.step(np.zeros(len(envs), np.int64))
        stats, figures = vector.stats(), vector._core.measured.judged()
    assert str(stats.verdict) in repr(stats)
    return stats.verdict, figures


def test_one_slow_slot_is_named() -> None:
    found, _ = judged([partial(Waits, step=0.12 if slot == 2 else 0.015) for slot in range(4)], 12)
    assert found.kind is Kind.STRAGGLER
    assert found.says.startswith("slot 2 takes ")
    assert found.change.startswith("recv(min=")


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_long_resets_are_named(mode: str) -> None:
    found, figures = judged([partial(Waits, step=0.002, reset=0.2, length=3)] * 2, 12, autoreset_mode=mode)
    assert found.kind is Kind.RESET
    # they come at once: nobody could go on meanwhile, so no change is named (tests/test_verdict.py)
    assert sum(min(batch) >= 0.2 for batch in figures.batches) >= 2


def test_resets_that_are_asked_for_are_named() -> None:
    with closing(treadle.VectorEnv([partial(Waits, reset=0.1)] * 2, workers=2, autoreset_mode="Disabled")) as vector:
        for _ in range(4):
            vector.reset(seed=0)
            vector.step([0, 0])
        assert vector.stats().verdict.kind is Kind.RESET


def test_a_caller_that_thinks_is_named() -> None:
    found, _ = judged([Waits] * 2, 6, think=0.1)
    assert found.kind is Kind.POLICY
    assert found.change == ""


def test_environments_that_wait_in_turns_may_wait_at_once() -> None:
    found, _ = judged([partial(Waits, step=0.03)] * 6, 8, workers=1)
    assert (found.kind, found.change) == (Kind.ENV, "workers=6")
    assert found.gain > 2


def test_partial_batches_and_posted_steps_are_judged_too() -> None:
    with closing(treadle.VectorEnv([partial(Waits, step=0.08)] * 4, workers=4)) as vector:
        vector.async_reset(seed=0)
        for _ in range(12):
            found = vector.recv(min=2)
            vector.send(np.zeros(len(found[1]), np.int64), found[4]["env_id"])
        partly = vector.stats().verdict
        vector.recv(min=4)
    with closing(treadle.VectorEnv([partial(Waits, step=0.05)] * 2, workers=2)) as vector:
        vector.reset(seed=0)
        for _ in range(6):
            vector.step_async([0, 0])
            vector.step_wait()
        posted = vector.stats().verdict
    assert partly.kind is posted.kind is Kind.ENV


def test_a_vector_that_has_just_begun_is_unsure_and_an_end_is_told_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("treadle.verdict.STARTS", 0.0)  # every start is a long one
    with caplog.at_level(logging.INFO, "treadle"):
        with closing(treadle.VectorEnv([Waits] * 2, workers=2)) as vector:
            assert vector.stats().verdict.kind is Kind.UNSURE
        assert "unsure" not in caplog.text  # nothing was done
        judged([partial(Waits, step=0.1)] * 2, 4)
    assert sum("-bound" in record.message for record in caplog.records) == 1


def test_the_choice_of_auto_stands_in_the_stats() -> None:
    with closing(treadle.VectorEnv([partial(Waits, step=0.01)] * 3)) as vector:
        assert "workers='auto': environments wait" in repr(vector.stats())


@pytest.mark.parametrize("inline", [0, 2])
def test_the_end_of_partial_batches_tells_what_the_stats_say(caplog: pytest.LogCaptureFixture, inline: int) -> None:
    with caplog.at_level(logging.INFO, "treadle"):
        workers = {"workers": 2} if not inline else {}
        with closing(treadle.VectorEnv([partial(Waits, step=0.02)] * 2, inline=inline, **workers)) as vector:
            vector.async_reset(seed=0)
            for _ in range(12):
                found = vector.recv(min=1)
                vector.send(np.zeros(1, np.int64), found[4]["env_id"])
            vector.recv(min=2)
            stats = vector.stats()
            figures = vector._core.measured.judged(int(stats.steps.sum()))
    assert sum(figures.busy) > 0.9 * 0.02 * stats.steps.sum()
    assert caplog.records[-1].message.startswith(tuple(kind.value for kind in Kind))
    assert not re.search("from 0| in all", caplog.records[-1].message)  # steps are counted


def test_a_call_that_fails_or_waits_in_vain_is_not_counted_twice() -> None:
    inside = 0.0  # seconds of calls that the vector counts
    with closing(treadle.VectorEnv([partial(Waits, step=0.1)] * 2, workers=2, inline=0)) as vector:
        vector.reset(seed=0)
        vector.step([0, 0])
        for _ in range(4):
            time.sleep(0.02)
            with pytest.raises(treadle.BadAction):
                vector.step([7, 7, 7])
            began = time.perf_counter()
            vector.step_async([0, 0])
            inside += time.perf_counter() - began
            ready = False
            while not ready:
                began = time.perf_counter()
                with contextlib.suppress(TimeoutError):
                    vector.step_wait(timeout=0.01)
                    ready = True
                inside += time.perf_counter() - began
        found = vector.stats().verdict
        figures = vector._core.measured.judged()
    assert found.kind is not Kind.POLICY, str(found)
    assert figures.away <= figures.elapsed - inside + 0.02  # what is not of these calls, and that once


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A list whose entry says how many cores other programs use; what is old is so after 10 ms."""
    found, since = [0.0], Usage.since
    monkeypatch.setattr(Usage, "since", lambda usage: since(usage)._replace(others=found[0]))
    monkeypatch.setattr(measured, "RECENT", 10_000_000)
    return found


def test_programs_that_come_later_are_named_and_what_was_before_does_not_count(others: list[float]) -> None:
    with closing(treadle.VectorEnv([partial(Waits, step=0.02)] * 2, workers=2, inline=0)) as vector:
        vector.reset(seed=0)
        for step in range(24):
            others[0] = 0.0 if step < 12 else 1.1
            vector.step([0, 0])
        figures = vector._core.measured.judged()
        assert 0 < figures.calls < 12
        assert "of them yours" in str(vector.stats())


def test_programs_that_come_later_are_named_in_partial_batches_too(others: list[float]) -> None:
    with closing(treadle.VectorEnv([partial(Waits, step=0.02)] * 2, workers=2, inline=0)) as vector:
        vector.async_reset(seed=0)
        for step in range(24):
            if step == 12:
                came = time.perf_counter()
            others[0] = 0.0 if step < 12 else 1.1
            *_, infos = vector.recv(min=2)
            vector.send([0, 0], infos["env_id"])
        vector.recv(min=2)
        assert 0 < vector._core.measured.judged().elapsed <= time.perf_counter() - came
        assert "of them yours" in str(vector.stats())
