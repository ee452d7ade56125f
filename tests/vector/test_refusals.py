"""Errors of the Gymnasium face pickle and copy with their fields, as all of ours do."""

import copy
import pickle

import pytest

from treadle.errors import TreadleError
from treadle.vector.core import (
    AlreadyPending,
    ClosedVector,
    NothingPending,
    SpacesDiffer,
    WaitTimeout,
    WrongType,
)

ERRORS = [
    AlreadyPending("busy", "step"),
    NothingPending("nothing", "reset"),
    ClosedVector("closed"),
    SpacesDiffer("differ"),
    WrongType("wrong"),
    WaitTimeout("late", limit=0.5),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_round_trips(error: TreadleError) -> None:
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is type(error)
        assert str(again) == str(error) != ""
        assert vars(again) == vars(error)
