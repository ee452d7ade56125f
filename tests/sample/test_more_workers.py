"""How many workers are worth having, as numbers."""

import math

import pytest

from treadle.sample.growth import AT_ONCE, Load, worth_having


@pytest.mark.parametrize(
    ("load", "most", "expected"),
    [
        (Load(2, waits=0.0, own=1.0), 128, 2),  # they compute
        (Load(2, waits=0.1, own=0.5), 128, 2),  # there is next to nothing to gain
        (Load(2, waits=0.95, own=0.05), 128, AT_ONCE),
        (Load(2, waits=0.95, own=0.05), 5, 5),
        (Load(2, waits=0.95, own=0.05), 1, 2),  # never fewer than there are
        (Load(16, waits=0.95, own=0.1), 128, 32),  # twice as many at a time
        (Load(2, waits=0.5, own=0.5), 128, 8),  # as many as fill the cores, twice
        (Load(2, waits=0.5, own=0.9), 128, 2),  # the cores are full
        (Load(2, waits=0.9, own=0.05, used=1.0), 128, 4),  # of others, or of what the run has started
        (Load(2, waits=0.95, own=0.05, away=0.9), 128, 2),  # the caller sets the pace
        (Load(2, waits=0.95, own=0.0), 128, AT_ONCE),
        (Load(1, waits=0.95, own=0.05), math.inf, AT_ONCE),
    ],
)
def test_as_many_as_have_cores_and_something_to_do(load: Load, most: float, expected: int) -> None:
    assert worth_having(load, most) == expected


@pytest.mark.parametrize(
    ("left", "starting", "expected"),
    [(0.1, 0.5, 2), (2.0, 0.5, 4), (math.inf, 0.5, 16), (2.0, 0.0, 16), (0.0, 0.5, 2)],
)
def test_no_more_than_have_time_to_start(left: float, starting: float, expected: int) -> None:
    assert worth_having(Load(2, waits=0.95, own=0.02), 128, left, starting) == expected


def test_the_number_that_ends_the_run_first() -> None:
    load, left, starting = Load(2, waits=0.95, own=0.01), 8.0, 0.5

    def ends(workers: int) -> float:
        return left * 2 / workers + starting * (workers - 2) / 2

    assert worth_having(load, 16, left, starting) == min(range(2, 17), key=ends)
