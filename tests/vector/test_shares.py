"""What "auto" chooses."""

from typing import Any

import pytest

from treadle.errors import UsageError
from treadle.vector.shares import MOST_WORKERS, choose_shares, matters


@pytest.mark.parametrize(
    ("n", "cores", "guarded", "backend", "expected"),
    [
        (8, 2, False, "process", (1, 4)),
        (9, 2, False, "process", (1, 4)),
        (8, 4, False, "process", (3, 2)),
        (8, 16, False, "process", (7, 1)),
        (1, 4, False, "process", (1, 1)),
        (8, 1, False, "process", (1, 0)),
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


@pytest.mark.parametrize(
    ("n", "backend", "workers", "inline", "expected"),
    [
        (3, "process", "auto", "auto", True),
        (2, "process", "auto", "auto", False),  # one for each core and the caller either way
        (3, "process", "auto", 2, False),
        (4, "process", "auto", 2, True),
        (9, "process", 2, "auto", False),
        (9, "process", None, 0, False),
        (9, "serial", "auto", "auto", False),
        (9, "thread", "auto", "auto", False),
    ],
)
def test_when_it_matters_whether_they_wait(n: int, backend: str, workers: Any, inline: Any, expected: bool) -> None:
    assert matters(n, backend, workers, inline, cores=2) is expected


def test_numbers_stand() -> None:
    assert choose_shares(8, "process", 3, 2, guarded=False, cores=4) == (3, 2)
    assert choose_shares(8, "process", None, 0, guarded=False, cores=4) == (None, 0)
    assert choose_shares(9, "process", 2, "auto", guarded=False, cores=4) == (2, 3)
    assert choose_shares(8, "process", "auto", 2, guarded=True, cores=4) == (3, 2)


@pytest.mark.parametrize("wrong", [{"workers": "all"}, {"inline": "yes"}, {"backend": "ray2"}])
def test_wrong_words(wrong: dict[str, Any]) -> None:
    given: dict[str, Any] = {"backend": "process", "workers": "auto", "inline": "auto", **wrong}
    with pytest.raises(UsageError, match=next(iter(wrong))):
        choose_shares(4, **given, guarded=False, cores=2)
