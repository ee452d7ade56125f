"""Which episodes belong to a run: pure decisions, so every order of events can be tried."""

from __future__ import annotations

import heapq
import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from treadle.sample.nodes import FedSchedule
from treadle.sample.schedule import ByIndex, Schedule

LENGTHS = st.lists(st.integers(1, 50), min_size=60, max_size=60)


@st.composite
def runs(draw: st.DrawFn) -> tuple[Schedule, dict[str, int], list[int], dict[int, int]]:
    """A schedule, its amounts, the lengths of all episodes there could be, and those that exist already."""
    lengths = draw(LENGTHS)
    if draw(st.booleans()):
        amounts = {"episodes": draw(st.integers(1, 30))}
    else:
        amounts = {"steps": draw(st.integers(1, 60))}
    have = {i: lengths[i] for i in draw(st.sets(st.integers(0, 40), max_size=12))}
    return Schedule(**amounts, have=have), amounts, lengths, have


@given(runs(), st.data())
def test_whatever_happens_the_run_is_the_same_prefix(run, data: st.DataObject) -> None:
    schedule, amounts, lengths, _ = run
    limit = data.draw(st.integers(1, 6))
    lost = 0
    while not schedule.complete:
        while len(schedule.issued) < limit and schedule.take() is not None:
            assert schedule.issued.isdisjoint(schedule.lengths)
            assert min(schedule.issued) >= schedule.prefix
        assert schedule.issued, "it is not complete, and there is nothing to do"
        index = data.draw(st.sampled_from(sorted(schedule.issued)))
        if lost < 5 and data.draw(st.booleans()):
            lost += 1
            schedule.lose(index)
        else:
            assert schedule.finish(index, lengths[index])
            assert not schedule.finish(index, lengths[index]), "a second copy does not count"
    totals = list(itertools.accumulate(lengths))
    end = amounts.get("episodes") or next(i + 1 for i, total in enumerate(totals) if total >= amounts["steps"])
    assert schedule.end == end
    assert schedule.prefix == end <= min(schedule.lengths, default=end), "what the prefix has is forgotten"
    assert schedule.prefix_steps == totals[end - 1]
    assert schedule.speculative == sorted(i for i in schedule.lengths if i >= end)
    assert schedule.take() is None


@given(runs(), st.sets(st.integers(0, 45), max_size=8), st.data())
def test_what_is_skipped_is_as_if_there_were_no_such_episode(run, bad: set[int], data: st.DataObject) -> None:
    _, amounts, lengths, have = run
    known = data.draw(st.sets(st.sampled_from(sorted(bad)))) if bad else set()
    schedule = Schedule(**amounts, have=have, skipped=known)
    bad = bad - have.keys()
    while not schedule.complete:
        while len(schedule.issued) < 3 and (index := schedule.take()) is not None:
            assert index not in schedule.skipped
        index = data.draw(st.sampled_from(sorted(schedule.issued)))
        if index in bad:
            assert schedule.skip(index)
            assert not schedule.skip(index)
            assert not schedule.finish(index, 1), "it comes too late"
        else:
            schedule.finish(index, lengths[index])
    left = [index for index in range(60) if index not in bad]
    if (end := amounts.get("episodes")) is None:
        totals = itertools.accumulate(lengths[index] for index in left)
        end = next(index + 1 for index, total in zip(left, totals) if total >= amounts["steps"])
        assert schedule.prefix_steps == sum(lengths[index] for index in left if index < end)
    assert schedule.end == schedule.prefix == end
    assert schedule.finished - len(schedule.lengths) == sum(i < end for i in left)


@given(runs())
def test_what_is_there_is_never_made_again(run) -> None:
    schedule, _, lengths, have = run
    made = set()
    while (index := schedule.take()) is not None and not schedule.complete:
        made.add(index)
        schedule.finish(index, lengths[index])
    assert made.isdisjoint(have)


def arrivals(lengths: np.ndarray, workers: int, schedule: Schedule) -> list[int]:
    """The indices in order of arrival, where an episode takes as long as it is long and free workers take the next."""
    playing: list[tuple[int, int]] = []  # (when it ends, index)
    order: list[int] = []
    now = 0
    while not schedule.complete:
        while len(playing) < workers and (index := schedule.take()) is not None:
            heapq.heappush(playing, (now + int(lengths[index]), index))
        now, index = heapq.heappop(playing)
        order.append(index)
        schedule.finish(index, int(lengths[index]))
    return order


WORKERS, EPISODES, RUNS = 16, 40, 1500


def test_short_episodes_are_not_over_represented_but_by_arrival_they_would_be() -> None:
    """Lengths are heavy-tailed; both ways of taking 40 episodes are compared with the true mean length."""
    rng = np.random.default_rng(7)
    every = 1 + np.minimum(rng.pareto(1.5, (RUNS, EPISODES + WORKERS)) * 10, 300).astype(int)
    ours, by_arrival = [], []
    for lengths in every:
        schedule = Schedule(EPISODES)
        arrivals(lengths, WORKERS, schedule)
        ours.append(schedule.prefix_steps / EPISODES)
        first = arrivals(lengths, WORKERS, Schedule(EPISODES + WORKERS))[:EPISODES]
        by_arrival.append(lengths[first].mean())
    expected = 1 + np.minimum(np.random.default_rng(8).pareto(1.5, 2_000_000) * 10, 300).astype(int)
    error = np.std(ours) / np.sqrt(RUNS)
    assert abs(np.mean(ours) - expected.mean()) < 4 * error
    assert np.mean(by_arrival) < expected.mean() - 20 * error


def test_a_run_of_steps_is_a_prefix_whatever_the_number_of_workers() -> None:
    lengths = 1 + np.minimum(np.random.default_rng(3).pareto(1.2, 400) * 10, 500).astype(int)
    runs = []
    for workers in (1, 2, 5, 16):
        schedule = Schedule(steps=1000)
        arrivals(lengths, workers, schedule)
        runs.append((schedule.end, schedule.prefix_steps))
    assert len(set(runs)) == 1
    assert runs[0][1] >= 1000 > runs[0][1] - lengths[runs[0][0] - 1]


def test_a_schedule_knows_whether_others_follow() -> None:
    schedule = Schedule(episodes=2)
    for index in range(2):
        assert schedule.goes_on
        assert schedule.take() == index
    assert not schedule.goes_on
    schedule.lose(1)
    assert schedule.goes_on  # it is made again
    assert Schedule(steps=5).goes_on


def test_what_a_node_is_fed_is_dealt_at_once_as_long_as_others_follow() -> None:
    sizes = {}
    for more in (False, True):
        schedule = FedSchedule()
        schedule.feed(range(41), more)
        schedule.finish(schedule.take() or 0, 20)
        sizes[more] = schedule.share(4)
    assert sizes == {False: (2, 2), True: (10, 32)}


def test_what_is_left_to_hand_out() -> None:
    schedule = Schedule(steps=100)
    assert schedule.to_hand_out(10.0) == 10
    taken = [schedule.take() for _ in range(4)]
    assert taken == [0, 1, 2, 3]
    assert schedule.to_hand_out(10.0) == 6
    schedule.finish(0, 40)  # a long one: 60 steps are left, and three of six episodes are under way
    assert schedule.to_hand_out(10.0) == 3
    schedule.finish(1, 60)
    assert schedule.to_hand_out(10.0) <= 0
    assert Schedule(episodes=7).to_hand_out(3.0) == 7
    assert Schedule().to_hand_out(3.0) == float("inf")


def test_a_share_before_and_after_anybody_knows_how_long_an_episode_is() -> None:
    """What takes long to answer is given more at first and towards the end, and never more than its share."""
    schedule = Schedule(episodes=80)
    assert schedule.share(4) == (1, 1)
    assert schedule.share(4, 8, 2, 16) == (10, 10)
    assert schedule.share(4, 8, 1, 16) == (16, 16)
    index = schedule.take()
    assert index == 0
    schedule.finish(index, 10)
    assert schedule.share(4) == (4, 4)
    assert schedule.share(4, 8, 1) == (19, 19)


def test_a_shard_has_no_more_workers_than_episodes_of_its_own() -> None:
    assert ByIndex(Schedule(8, shard=(0, 8)), 0).bounded(4) == 1
    assert ByIndex(Schedule(10, have={1: 5}, shard=(1, 4)), 0).bounded(4) == 2
    assert ByIndex(Schedule(10), 0).bounded(4) == 4
