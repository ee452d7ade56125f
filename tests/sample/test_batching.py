"""The batch former: pure decisions about whom a policy in the caller is asked for, and when."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.errors import UsageError
from treadle.sample.batching import BatchFormer, Choice, Pace, best, candidates, fitted, queued, simulated


def test_a_full_batch_goes_at_once_and_takes_all_who_are_ready() -> None:
    former = BatchFormer(8, 2, size=3, patience=math.inf)
    for slot in (5, 1):
        former.ready(slot, 0.0)
    assert former.take(10.0, coming=6) == []
    former.ready(7, 10.0)
    former.ready(2, 10.0)
    assert former.take(10.0, coming=4) == [5, 1, 7, 2]
    assert former.counts.full == 1
    assert former.counts.waited == 20.0


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
    assert former.counts.patient == 1


def test_nobody_is_waited_for_when_nobody_can_come() -> None:
    former = BatchFormer(8, 2, size=8, patience=math.inf)
    former.ready(0, 0.0)
    assert former.wait(0.0) is None
    assert former.take(0.0, coming=1) == []
    assert former.take(0.0, coming=0) == [0]
    assert former.counts.last == 1


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


@pytest.mark.parametrize("wrong", [{"size": 0}, {"size": 1.5}, {"size": True}, {"most": 0}, {"patience": -1.0}])
def test_bad_bounds_are_refused_by_name(wrong: dict) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        BatchFormer(8, 2, **wrong)


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


def test_a_slow_policy_is_asked_for_many_and_a_quick_one_for_whoever_is_there() -> None:
    steps = tuple(np.random.default_rng(0).exponential(0.004, 200).tolist())
    slow = best(Pace(0.04, 0.001, steps, 16), 16)
    quick = best(Pace(0.0005, 0.00002, steps, 16), 16)
    assert slow.size > 8
    assert quick.patience < 0.01
    at_once = simulated(Pace(0.04, 0.001, steps, 16), 16, Choice(1, 0.0))
    assert simulated(Pace(0.04, 0.001, steps, 16), 16, slow) > 1.2 * at_once


@pytest.mark.parametrize("slots", [16, 64])
def test_of_sizes_that_do_as_well_one_in_the_middle_is_waited_for(slots: int) -> None:
    """Where the workers are the bottleneck: steps that come later than the model knows cost nothing then."""
    pace = Pace(0.006, 0.0002, (0.001,), 2)
    choice = best(pace, slots)
    most = max(simulated(pace, slots, Choice(size, math.inf)) for size in candidates(slots))
    assert 1 < choice.size <= slots // 4
    assert simulated(pace, slots, Choice(2 * choice.size, math.inf)) >= 0.98 * most


def test_with_a_patience_of_ones_own_the_most_are_waited_for_that_do_as_well() -> None:
    assert best(Pace(0.006, 0.0002, (0.001,), 2), 16, patience=0.02).size == 8


def test_what_the_user_gives_is_kept() -> None:
    pace = Pace(0.04, 0.001, (0.004,), 16)
    assert best(pace, 16, size=5).size == 5
    assert best(pace, 16, patience=0.25).patience == 0.25
    assert best(pace, 16, most=4).size <= 4


def test_the_model_agrees_with_arithmetic() -> None:
    """Lockstep of equal steps: a cycle is the policy, then each worker's slots one after another."""
    pace = Pace(0.010, 0.001, (0.002,), 4)
    cycle = 0.010 + 0.001 * 8 + 2 * 0.002
    assert simulated(pace, 8, Choice(8, math.inf)) == pytest.approx(8 / cycle, rel=0.02)
    one = Pace(0.0, 0.0, (0.002,), 1)
    assert simulated(one, 4, Choice(1, 0.0)) == pytest.approx(500, rel=0.02)  # one worker is never idle


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
    assert former.pace() == Pace(pytest.approx(0.04), 0.0, (0.001,) * 200, 16)
    assert former.choice.size in candidates(16)
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


def fed(former: BatchFormer, call: float, row: float, step: float) -> BatchFormer:
    """A former that has seen batches of all slots and of half of them, and steps of so many seconds."""
    now = 0.0
    for batch in range(40):
        for slot in range(former.slots // (1 + batch % 2)):
            former.ready(slot, now)
            former.stepped(step)
        rows = len(former.take(now, coming=0))
        former.answered(rows, now, now + call + row * rows)
        now += call + row * rows + step
    return former


def test_what_would_be_faster_is_said_by_what_was_measured() -> None:
    (text,) = fed(BatchFormer(16, 16), call=0.0, row=0.004, step=0.004).advice()  # each row costs as much as a step
    assert "inference='worker', workers=16" in text
    assert fed(BatchFormer(16, 16, cores=1), call=0.0, row=0.004, step=0.004).advice() == []
    assert fed(BatchFormer(16, 16), call=0.04, row=0.0, step=0.004).advice() == []
    (text,) = fed(BatchFormer(16, 4, size=16, patience=math.inf), call=0.01, row=0.0, step=0.01).advice()
    assert "batch_size=" in text
    assert BatchFormer(4, 2).advice() == []


def test_a_policy_that_takes_hardly_any_time_is_asked_at_once() -> None:
    assert best(Pace(0.0001, 0.0, (0.25,), 500), 500) == Choice(1, 0.0)


def test_so_is_one_for_which_whoever_is_asked_for_alone_hardly_waits() -> None:
    def crowd_of(call: float) -> tuple[float, float, tuple[float, ...], int]:
        return call, call / 5, tuple(np.random.default_rng(0).uniform(0.005, 0.495, 64)), 500

    crowd = Pace(*crowd_of(0.0002))
    assert best(crowd, 500) == Choice(1, 0.0)
    rate, most = (simulated(Pace(*of), 500, Choice(1, 0.0), steps=20_000) for of in (crowd_of(0.0002), crowd_of(0.0)))
    assert rate >= 0.98 * most, "the model agrees"
    for call in (0.0006, 0.002):
        assert best(Pace(*crowd_of(call)), 500).size > 1, "it would take more than half of a core"
    assert math.isfinite(simulated(crowd, 2500, Choice(1000, math.inf)))


def test_a_queue_by_hand() -> None:
    assert queued(0.5, 1.0) == pytest.approx(0.75)  # its own call, and half of the time half of one
    assert queued(1.0, 1.0) == queued(2.0, 1.0) == math.inf
    assert queued(0.0, 0.0) == math.inf
    assert queued(0.0, 1.0) == 0.0


def test_what_has_not_changed_is_not_chosen_for_again() -> None:
    one, two = Pace(0.01, 0.001, (0.004,), 4), Pace(0.011, 0.001, (0.004, 0.0045), 4)
    assert one.like(two)
    assert not one.like(Pace(0.02, 0.001, (0.004,), 4))
    assert not one.like(None)
