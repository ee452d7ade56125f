"""How long to try before sleeping: decided from the waits that were, with no clock and no process."""

from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.wire.bell import LONG_REST, LONGEST, MARGIN, OVERDUE, SHORT_REST, Rhythm

US, MS = 1_000, 1_000_000


class Clocked:
    """A rhythm whose waits follow one another, with `between` ns of work from each to the next."""

    def __init__(self, longest: int = LONGEST, between: int = 30 * US) -> None:
        self.rhythm, self.now, self.between = Rhythm(longest), 1_000 * MS, between

    def waits(self, *waits: int, held_up: int = 0) -> list[int]:
        """Wait so long; returns what was allowed for each."""
        budgets = []
        for waited in waits:
            budgets.append(self.rhythm.budget)
            tried = min(waited, self.rhythm.budget)
            self.now += self.between + waited
            self.rhythm.note(self.now, waited, tried, held_up if tried else 0)
        return budgets

    def rests(self) -> int:
        """How long it does not try from now on, in ns, while short waits go on."""
        began = self.now
        while not self.rhythm.budget:
            self.waits(10 * US)
        return self.now - began


@pytest.mark.parametrize("gap", [0, 5 * US, 50 * US, 200 * US, 900 * US])
def test_it_tries_for_somewhat_longer_than_usual(gap: int) -> None:
    wait = Clocked()
    wait.waits(*[gap] * 50)
    assert gap < wait.rhythm.budget <= 1.5 * gap + 1.2 * MARGIN


@pytest.mark.parametrize("gap", [1_300 * US, 10 * MS, 100 * MS])
def test_long_waits_are_slept_through(gap: int) -> None:
    wait = Clocked()
    budgets = wait.waits(*[gap] * 50)
    assert sum(budgets) <= 20 * LONGEST  # until that is known
    assert budgets[-20:] == [0] * 20


def test_a_single_long_wait_changes_little() -> None:
    wait = Clocked()
    wait.waits(*[200 * US] * 50)
    wait.waits(900 * MS)  # an update of the policy, say
    budgets = wait.waits(*[200 * US] * 20)
    assert budgets[0] == 0
    assert 200 * US < budgets[-1] < LONGEST


def test_it_follows_when_the_policy_changes() -> None:
    wait = Clocked()
    wait.waits(*[10 * MS] * 50)
    assert wait.rhythm.budget == 0
    wait.waits(*[100 * US] * 30)
    assert wait.rhythm.budget > 100 * US


def test_who_may_not_try_never_does() -> None:
    wait = Clocked(longest=0)
    assert wait.waits(*[10 * US] * 50) == [0] * 50


def test_a_shorter_limit() -> None:
    wait = Clocked(longest=100 * US)
    wait.waits(*[80 * US] * 50)
    assert wait.rhythm.budget > 80 * US
    wait.waits(*[150 * US] * 50)
    assert wait.rhythm.budget == 0


def test_a_core_that_somebody_else_takes_ends_it_for_a_while() -> None:
    wait = Clocked()
    wait.waits(*[20 * US] * 50)
    wait.waits(4 * MS, held_up=4 * MS)
    assert SHORT_REST - MS <= wait.rests() <= 2 * SHORT_REST


def test_a_core_shared_with_the_other_side_does_not() -> None:
    """It gives way to it, whose share is over soon."""
    wait = Clocked()
    wait.waits(*[200 * US] * 500, held_up=180 * US)
    assert wait.rhythm.budget


def test_a_partner_without_a_core_ends_it() -> None:
    wait = Clocked()
    wait.waits(*[20 * US] * 50)
    wait.waits(20 * US + 2 * OVERDUE)
    assert wait.rhythm.budget == 0


def test_rests_grow_while_it_does_not_help_and_begin_small_again() -> None:
    wait = Clocked()
    rests = []
    for _ in range(6):
        wait.waits(*[20 * US] * 50)
        wait.waits(4 * MS, held_up=4 * MS)
        rests.append(wait.rests())
    assert all(before <= 1.1 * after for before, after in pairwise(rests))
    assert 0.9 * LONG_REST <= rests[-1] <= 1.1 * LONG_REST
    wait.waits(*[20 * US] * (5 * LONG_REST // (50 * US)))  # the stranger has gone
    wait.waits(4 * MS, held_up=4 * MS)
    assert wait.rests() <= 2 * SHORT_REST


waits = st.tuples(st.integers(0, 200 * MS), st.integers(0, 5 * MS))


@given(st.lists(waits, max_size=200), st.integers(0, LONGEST))
def test_it_never_tries_longer_than_that(told: Iterable[tuple[int, int]], longest: int) -> None:
    wait = Clocked(longest)
    for waited, held_up in told:
        wait.waits(waited, held_up=held_up)
        assert 0 <= wait.rhythm.budget <= 1.5 * longest + MARGIN
        assert longest or not wait.rhythm.budget


@given(st.lists(waits, min_size=1, max_size=200))
def test_whatever_was_it_tries_again(told: Iterable[tuple[int, int]]) -> None:
    wait = Clocked()
    for waited, held_up in told:
        wait.waits(waited, held_up=held_up)
    assert wait.rests() <= LONG_REST + 10 * MS


@pytest.mark.parametrize("turn", [3 * MS, 4 * MS, 20 * MS])
def test_strangers_cost_little(turn: int) -> None:
    """Somebody else takes every other turn of the core from one that never sleeps: nearly always it does sleep."""
    wait = Clocked()
    lost = ran = 0
    while wait.now < 21_000 * MS:
        before = wait.now
        tries = wait.rhythm.budget > 0
        held_up = turn if tries and ran >= turn else 0
        wait.waits(20 * US + held_up, held_up=held_up)
        ran = 0 if held_up or not tries else ran + wait.now - before
        lost += held_up
    assert lost <= 0.05 * wait.now
