"""Where a worker's time goes: whatever takes how long, no share is negative and none of the time is counted twice."""

from __future__ import annotations

from itertools import cycle, pairwise
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.play import player, rounds
from treadle.play.recipe import RolloutOrder, RolloutRecipe, Shares
from treadle.play.rounds import Globals, RolloutSlot
from treadle.program.gym_env import EnvRecipe
from treadle.record.summary import time_shares


class Clock:
    """Goes on only when somebody says for how long something took."""

    def __init__(self, *durations: list[float]) -> None:
        self.now = 0.0
        self.step, self.act, self.reset, self.pause = map(cycle, durations)

    def __call__(self) -> float:
        return self.now


class Timed(gym.Env[Any, Any]):
    observation_space = gym.spaces.Box(0, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, clock: Clock, lengths: Any) -> None:
        self.clock, self.lengths = clock, lengths

    def reset(self, **_: Any) -> Any:
        self.clock.now += next(self.clock.reset)
        self.left = next(self.lengths)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.clock.now += next(self.clock.step)
        self.left -= 1
        return np.zeros(1, np.float32), 1.0, self.left == 0, False, {}


class Control:
    """Nobody stops it."""

    def stopped(self) -> bool:
        return False

    def resets(self, episode: int) -> None:
        """Where a death would be placed: there is none."""

    def begins(self) -> None:
        """As above."""

    def plays(self, episode: int, steps: int) -> None:
        """As above."""

    def ends(self) -> None:
        """As above."""


def told(stream: Any) -> Any:
    """What a stream yields, and what it ends with."""
    last = yield from stream
    if last is not None:
        yield last


# mostly short, with an outlier now and then: one slow call of a policy stands for many that were not timed
seconds = st.lists(st.sampled_from([0.0, 1e-6, 1e-3, 0.2, 30.0]), min_size=1, max_size=40)


@given(
    seconds, seconds, seconds, seconds, st.integers(1, 3), st.lists(st.integers(1, 40), min_size=1, max_size=6),
    st.sets(st.integers(1, 5)),
)  # fmt: skip
def test_shares_are_within_0_and_1_and_no_time_counts_twice(
    step: list[float],
    act: list[float],
    reset: list[float],
    pause: list[float],
    rows: int,
    lengths: list[int],
    cuts: set[int],
) -> None:
    clock = Clock(step, act, reset, pause)

    def policy(observations: np.ndarray) -> np.ndarray:
        clock.now += next(clock.act)
        return np.zeros(len(observations), np.int64)

    endless = cycle(lengths)
    recipe = RolloutRecipe(EnvRecipe(lambda: Timed(clock, endless)), lambda: policy, rows)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(rounds, "perf_counter", clock)
        patched.setattr(player, "perf_counter", clock)
        slot = RolloutSlot(recipe, 0, Globals.LEAVE)
        made = 0
        orders = [tuple(range(*cut)) for cut in pairwise([0, *sorted(cuts), 6])]
        for indices in [*orders, ()]:
            for results in told(slot.stream(RolloutOrder(0, indices), Control())):
                made += len(results)
                clock.now += next(clock.pause)  # the caller takes its time
            clock.now += next(clock.pause)
        slot.close()
    spent = slot.shares
    assert made == 6
    assert min(spent.step, spent.policy, spent.encode, spent.reset) >= 0
    assert spent.busy <= clock.now + 1e-6
    shares = time_shares([spent], 0.25)
    assert all(0 <= share <= 1 for share in shares.values())
    assert sum(shares.values()) == pytest.approx(1)


def test_a_slow_call_that_was_timed_by_chance_takes_nothing_from_the_steps() -> None:
    spent = Shares(step=3.0)
    spent.played(1.0, policy=16 * 0.5)
    assert (spent.step, spent.policy) == (3.0, 1.0)


def test_a_run_whose_workers_could_not_be_asked_has_no_shares() -> None:
    assert time_shares([], 2.0) == {}
    assert time_shares([Shares()], 0.0) == {}
