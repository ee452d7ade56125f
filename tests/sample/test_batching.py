"""The batch former: pure decisions about whom a policy in the caller is asked for, and when."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.sample.batching import BatchFormer, Choice, fitted, fitting


def test_a_full_batch_goes_at_once_and_takes_all_who_are_ready() -> None:
    former = BatchFormer(8, 2, size=3, patience=math.inf)
    for slot in (5, 1):
        former.ready(slot, 0.0)
    assert former.take(10.0, coming=6) == []
    former.ready(7, 10.0)
    former.ready(2, 10.0)
    assert former.take(10.0, coming=4) == [5, 1, 7, 2]
    assert former.waited == 20.0


def test_no_more_rows_than_the_policy_takes_and_the_rest_goes_next() -> None:
    former = BatchFormer(6, 2, size=2, patience=0.0, most=4)
    for slot in range(6):
        former.ready(slot, 0.0)
    assert former.take(0.0, coming=0) == [0, 1, 2, 3]
    assert former.take(0.0, coming=4) == [4, 5]
    assert former.take(0.0, coming=6) == []


def test_who_has_waited_long_enough_goes_with_whoever_is_there() -> None:
    former = BatchFormer(8, 2, size=8, patience=0.5)
    former.ready(3, 1.0)
    former.ready(4, 1.2)
    assert former.take(1.25, coming=6) == []
    assert former.wait(1.25) == pytest.approx(0.25)
    assert former.take(1.5, coming=6) == [3, 4]
    assert former.wait(1.5) is None


def test_nobody_is_waited_for_when_nobody_can_come() -> None:
    former = BatchFormer(8, 2, size=8, patience=math.inf)
    former.ready(0, 0.0)
    assert former.wait(0.0) is None
    assert former.take(0.0, coming=1) == []
    assert former.take(0.0, coming=0) == [0]


def test_the_slots_of_a_dead_worker_are_not_asked_for() -> None:
    former = BatchFormer(4, 2, size=2, patience=math.inf)
    for slot in range(3):
        former.ready(slot, 0.0)
    former.gone({0, 2})
    assert former.take(0.0, coming=2) == []
    assert former.take(0.0, coming=0) == [1]


def test_a_size_that_the_slots_cannot_fill_is_bounded_by_them() -> None:
    assert BatchFormer(4, 2, size=100).choice.size == 4
    assert BatchFormer(16, 2, size=100, most=8).choice.size == 8


@given(call=st.floats(1e-4, 0.1), row=st.floats(0, 1e-3))
def test_what_a_call_and_a_row_cost_is_found_from_batches(call: float, row: float) -> None:
    asked = [(rows, call + row * rows) for rows in (1, 2, 4, 8, 16) for _ in range(3)]
    found = fitted(asked)
    assert found == pytest.approx((call, row), rel=1e-6, abs=1e-9)


def test_a_batch_that_was_delayed_says_nothing_of_the_policy() -> None:
    asked = [(rows, 0.01 + 0.001 * rows) for rows in (2, 4, 8) for _ in range(5)] + [(2, 3.0), (8, 2.0)]
    assert fitted(asked) == pytest.approx((0.01, 0.001))


def test_one_size_alone_is_a_cost_a_call() -> None:
    assert fitted([(8, 0.02)] * 4) == (pytest.approx(0.02), 0.0)


def test_a_slow_policy_is_asked_for_all_and_a_quick_one_for_whoever_is_there() -> None:
    steps = np.random.default_rng(0).exponential(0.004, 200).tolist()
    assert fitting(0.04, 0.0, steps, 16, 16) == 16, "all are ready again in less than a call"
    assert fitting(0.006, 0.0, steps, 16, 16) == 8, "half of them step while the others are asked for"
    assert fitting(0.0006, 0.0, steps, 16, 16) == 3, "so many arrive in a call"
    assert fitting(0.0001, 0.0, steps, 16, 16) == 1


def test_slots_that_no_worker_would_step_anyway_are_waited_for() -> None:
    assert fitting(0.0005, 0.0, [0.001], 16, 2) == 8
    assert fitting(0.006, 0.0, [0.001], 64, 2) == 32
    assert fitting(0.006, 0.0002, [0.001], 64, 2) == 22, "else the others would not last for two calls"
    assert fitting(0.006, 0.0, [0.001], 16, 2) == 8, (
        "the workers have less to do than a call takes, and so many arrive in it"
    )
    assert fitting(0.0005, 0.0, [0.001], 4, 2) == 1


def test_steps_that_take_no_time_are_waited_for() -> None:
    assert fitting(0.001, 0.0, [0.0], 8, 2) == 8
    assert fitting(0.0, 0.0, [0.0], 8, 2) == 8
    assert fitting(0.0, 0.0, [0.001], 1, 1) == 1


def test_a_policy_that_takes_hardly_any_time_is_asked_at_once() -> None:
    assert fitting(0.0001, 0.0, [0.25], 500, 500) == 1


@pytest.mark.parametrize(
    ("given", "choice"),
    [
        ({"size": 5}, Choice(5, pytest.approx(0.08))),
        ({"patience": 0.25}, Choice(16, 0.25)),
        ({"most": 4}, Choice(4, pytest.approx(0.08))),
        ({"size": 100, "patience": 0.0}, Choice(16, 0.0)),
    ],
    ids=str,
)
def test_what_the_user_gives_is_kept(given: dict, choice: Choice) -> None:
    former = BatchFormer(16, 16, **given)
    for _ in range(8):
        former.stepped(0.001)
        former.answered(4, 0.0, 0.04)
    former.choose()
    assert former.choice == choice


def test_a_choice_is_made_from_what_was_measured() -> None:
    former = BatchFormer(16, 16)
    assert former.choice.size == 8
    for _ in range(200):
        former.stepped(0.001)
    now = 0.0
    for _ in range(8):
        for slot in range(16):
            former.ready(slot, now)
        taken = former.take(now, coming=0)
        former.answered(len(taken), now, now + 0.04)
        now += 0.05
    assert former.choice == Choice(16, pytest.approx(0.08)), "a call is longer than all steps, and is waited for twice"
    told = former.stats()
    assert told["batches"] == 8
    assert told["rows_per_batch"] == 16
    assert told["policy_busy"] == pytest.approx(0.32 / 0.39)


@given(
    st.integers(1, 40), st.integers(1, 8), st.lists(st.sampled_from(["ready", "take", "die"]), max_size=200), st.data()
)
def test_every_slot_is_asked_for_once_each_time_it_is_ready(
    slots: int, workers: int, moves: list[str], data: st.DataObject
) -> None:
    size = data.draw(st.integers(1, slots))
    former = BatchFormer(slots, workers, size=size, patience=data.draw(st.sampled_from([0.0, 1.0, math.inf])))
    waiting: list[int] = []
    stepping = set(range(slots))
    for now, move in enumerate(moves):
        if move == "ready" and stepping:
            slot = data.draw(st.sampled_from(sorted(stepping)))
            stepping.discard(slot)
            waiting.append(slot)
            former.ready(slot, float(now))
        elif move == "die" and waiting:
            slot = data.draw(st.sampled_from(waiting))
            waiting.remove(slot)
            stepping.add(slot)
            former.gone([slot])
        else:
            taken = former.take(float(now), len(stepping))
            assert taken == waiting[: len(taken)]
            assert taken or not waiting or stepping
            waiting = waiting[len(taken) :]
            stepping.update(taken)
