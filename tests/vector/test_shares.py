"""What "auto" chooses."""

from typing import Any

import pytest

from treadle.errors import UsageError
from treadle.vector.shares import MOST_WORKERS, Measured, Why, choose_shares, level, matters, worth_using


@pytest.mark.parametrize(
    ("n", "cores", "guarded", "backend", "expected"),
    [
        (8, 2, False, "process", (1, 4)),
        (9, 2, False, "process", (1, 4)),
        (8, 4, False, "process", (3, 2)),
        (8, 16, False, "process", (7, 1)),
        (1, 4, False, "process", (1, 1)),
        (8, 1, False, "process", (1, 8)),
        (8, 1, True, "process", (1, 0)),
        (8, 2, True, "process", (2, 0)),
        (2, 8, True, "process", (2, 0)),
        (8, 4, False, "thread", (4, 0)),
        (8, 4, False, "serial", (4, 0)),
    ],
)
def test_auto(n: int, cores: int, guarded: bool, backend: str, expected: Any) -> None:
    assert choose_shares(n, backend, "auto", "auto", guarded=guarded, cores=cores) == expected


@pytest.mark.parametrize(
    ("n", "workers", "inline", "expected"),
    [
        (8, "auto", "auto", (8, 0)),
        (8, "auto", 3, (5, 3)),
        (8, 2, "auto", (2, 0)),
        (500, "auto", "auto", (MOST_WORKERS, 0)),
    ],
)
def test_auto_where_environments_wait(n: int, workers: Any, inline: Any, expected: Any) -> None:
    assert choose_shares(n, "process", workers, inline, guarded=False, cores=2, waits=True) == expected
    if workers == inline == "auto":  # of threads there may be any number
        assert choose_shares(n, "thread", workers, inline, guarded=False, cores=2, waits=True) == (n, 0)


@pytest.mark.parametrize(
    ("n", "backend", "workers", "inline", "guarded", "expected"),
    [
        (2, "process", "auto", "auto", False, True),
        (1, "process", "auto", "auto", False, False),  # the caller's, whatever it does
        (2, "process", "auto", "auto", True, False),  # one worker for each either way
        (3, "process", "auto", "auto", True, True),
        (2, "process", "auto", 0, False, False),
        (3, "process", "auto", 0, False, True),
        (3, "process", "auto", 2, False, False),
        (4, "process", "auto", 2, False, True),
        (9, "process", 2, "auto", False, False),
        (9, "process", None, 0, False, False),
        (9, "serial", "auto", "auto", False, False),
        (9, "thread", "auto", "auto", False, False),
    ],
)
def test_when_it_matters_how_they_spend_their_steps(
    n: int, backend: str, workers: Any, inline: Any, guarded: bool, expected: bool
) -> None:
    assert matters(n, backend, workers, inline, 2, guarded) is expected


def test_numbers_stand() -> None:
    assert choose_shares(8, "process", 3, 2, guarded=False, cores=4) == (3, 2)
    assert choose_shares(8, "process", None, 0, guarded=False, cores=4) == (None, 0)
    assert choose_shares(9, "process", 2, "auto", guarded=False, cores=4) == (2, 3)
    assert choose_shares(8, "process", "auto", 2, guarded=True, cores=4) == (3, 2)
    assert choose_shares(8, "process", 1, "auto", guarded=False, cores=2, using=1) == (1, 4)
    assert choose_shares(8, "process", "auto", 3, guarded=False, cores=2, using=1) == (1, 3)
    assert choose_shares(8, "process", "auto", 0, guarded=False, cores=2, using=1) == (2, 0)


@pytest.mark.parametrize(
    ("workers", "cores", "inline"), [(1, 2, 4), (2, 2, 0), (3, 2, 0), (2, 3, 2), (None, 2, 0), (None, 16, 0), (1, 1, 0)]
)
def test_the_caller_steps_nothing_where_workers_fill_the_cores(workers: Any, cores: int, inline: int) -> None:
    assert choose_shares(8, "process", workers, "auto", guarded=False, cores=cores) == (workers, inline)


US, MS = 1e-6, 1e-3
QUIET, CROWD = 0.02, 0.36


@pytest.mark.parametrize(
    ("n", "step", "share", "stood", "threads", "cores", "using", "why"),
    [
        (8, 5 * US, 0, QUIET, 1, 2, 1, Why.SHORT),
        (2, 20 * US, 0, QUIET, 1, 16, 1, Why.SHORT),
        (64, 5 * US, 0, QUIET, 1, 2, 2, Why.COMPUTE),
        (8, 40 * US, 0, QUIET, 1, 2, 2, Why.COMPUTE),
        (8, 40 * US, 0, QUIET, 1, 16, 16, Why.COMPUTE),
        (8, 40 * US, 0, CROWD, 1, 2, 1, Why.CROWDED),
        (8, 5 * US, 0, CROWD, 1, 2, 1, Why.SHORT),
        (8, 1 * MS, 0, CROWD, 1, 2, 2, Why.COMPUTE),  # as much is gained as is lost
        (8, 100 * US, 0, QUIET, 2, 2, 1, Why.THREADS),
        (8, 1 * MS, 0, QUIET, 2, 2, 1, Why.THREADS),
        (8, 10 * MS, 0, QUIET, 2, 2, 2, Why.COMPUTE),
        (8, 100 * US, 0, QUIET, 4, 8, 5, Why.THREADS),
        (8, 100 * US, 0, QUIET, 8, 8, 1, Why.THREADS),
        (16, 1 * MS, 0, QUIET, 16, 16, 16, Why.COMPUTE),
        (8, 1 * MS, 0.95, CROWD, 2, 2, 2, Why.WAIT),
        (8, 1 * MS, 0.3, QUIET, 1, 2, 2, Why.COMPUTE),
        (8, 40 * US, 0, QUIET, 1, 1, 1, Why.COMPUTE),
    ],
)
def test_how_many_cores_are_worth_using(
    n: int, step: float, share: float, stood: float, threads: int, cores: int, using: int, why: Why
) -> None:
    assert worth_using(n, cores, Measured(step, share, 70 * US, stood), threads) == (using, why)


@pytest.mark.parametrize(
    ("n", "step", "threads", "is_level"),
    [
        (8, 5 * US, 1, False),
        (8, 7 * US, 1, True),  # nearly as long as waking a worker takes
        (8, 10 * US, 1, True),
        (64, 5 * US, 1, False),
        (8, 100 * US, 2, False),
        (8, 1.3 * MS, 2, True),  # torch's threads have nearly gone to sleep
        (8, 10 * MS, 2, False),
    ],
)
def test_where_a_start_may_choose_otherwise_both_are_level(n: int, step: float, threads: int, is_level: bool) -> None:
    assert level(n, 2, Measured(step, 0.0, 70 * US), threads) is is_level
    assert not level(n, 2, None, threads)


def test_nothing_known_counts_as_computing() -> None:
    assert worth_using(8, 4, None, 4) == (4, Why.COMPUTE)


@pytest.mark.parametrize(("n", "cores", "using", "expected"), [(8, 2, 1, (1, 8)), (8, 8, 3, (2, 2)), (2, 8, 5, (1, 1))])
def test_of_the_cores_so_many(n: int, cores: int, using: int, expected: Any) -> None:
    assert choose_shares(n, "process", "auto", "auto", guarded=False, cores=cores, using=using) == expected


def test_what_is_worth_a_worker() -> None:
    assert Measured(0.001, 0.9).waits
    assert not Measured(0.001, 0.4).waits  # it computes more than it waits
    assert not Measured(0.0001, 0.9).waits  # waking its worker would take as long


@pytest.mark.parametrize("wrong", [{"workers": "all"}, {"inline": "yes"}])
def test_wrong_words(wrong: dict[str, Any]) -> None:
    given: dict[str, Any] = {
        "backend": "process",
        "workers": "auto",
        "inline": "auto",
        **wrong,
    }
    with pytest.raises(UsageError, match=next(iter(wrong))):
        choose_shares(4, **given, guarded=False, cores=2)
