"""How to add an end of a run: a rule that says when there are enough episodes, in twenty lines."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import pytest

import treadle
from treadle.sample.collect import collect, in_order
from treadle.sample.run import Run, RunKeywords
from treadle.sample.schedule import Schedule


class Timed(Schedule):
    """Episodes are handed out for so many seconds after the first one."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        super().__init__()
        self._seconds, self._clock, self._began = seconds, clock, clock()

    def take(self) -> int | None:
        """The next index; None once the time is over: what was handed out still belongs to the run."""
        if self.end is None and self._clock() - self._began >= self._seconds:
            self.end = self.upcoming
        return super().take()

    def to_hand_out(self, mean: float) -> float:
        """Nobody knows, so orders stay small: no worker gets episodes for later."""
        return super().to_hand_out(mean) if self.end is not None else 1.0


@pytest.mark.parametrize("how", [{"worker_options": treadle.WorkerOptions(backend="serial")}, {"workers": 2}])
def test_a_run_ends_by_a_rule_of_its_own(how: dict[str, Any]) -> None:
    ticks = itertools.count()
    run = Run.of(collect, RunKeywords, lambda: gym.make("CartPole-v1"), None, seed=3, **how)
    schedule = Timed(20, lambda: float(next(ticks)))
    made = list(in_order(run.collection, schedule, True, False))
    assert 1 <= len(made) <= 20
    assert [episode.index for episode in made] == list(range(len(made)))
    wanted = list(collect("CartPole-v1", episodes=len(made), seed=3))
    assert [each.observations.tobytes() for each in made] == [each.observations.tobytes() for each in wanted]
