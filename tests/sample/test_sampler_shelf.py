"""Memory of large results: used again, but never while somebody holds it."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

from treadle.sample import shelf
from treadle.sample.padding import joined
from treadle.sample.shelf import Shelf


def address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


@pytest.fixture(autouse=True)
def small_arrays_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelf, "LEAST", 1000)


def made(on: Shelf, rows: int = 100) -> np.ndarray:
    array = on.array((rows, 5), np.int64)
    assert array is not None
    array[:] = 7
    return array


def test_two_regions_take_turns() -> None:
    on = Shelf()
    held = made(on)
    seen = [address(held)]
    for _ in range(6):
        following = made(on)
        seen.append(address(following))
        held = following  # as a training loop does
    assert len(set(seen)) == 2


@pytest.mark.parametrize("hold", [lambda a: a[3:5], lambda a: a.reshape(-1)[::2], memoryview, lambda a: a.T[1]])
def test_what_is_held_is_not_written_again(hold: Any) -> None:
    on = Shelf()
    kept = hold(made(on))
    gc.collect()
    for _ in range(4):
        made(on)[:] = 1
    assert (np.asarray(kept) == 7).all()


def test_what_is_too_small_too_large_or_no_number_is_not_taken() -> None:
    on = Shelf()
    assert on.array((10,), np.uint8) is None
    assert on.array((1000,), object) is None
    first = address(made(on, 1000))
    assert address(made(on, 100)) != first  # a region is not wasted on a tenth of it
    array = made(on, 5000)
    on.clear()
    assert (array == 7).all()


def test_joining_in_a_place_is_joining() -> None:
    on = Shelf()
    pieces = [np.arange(n * 4.0).reshape(n, 4) for n in (30, 1, 50)]
    assert (joined(pieces, on.array) == np.concatenate(pieces)).all()
    mixed = [np.ones((60, 4)), np.ones((60, 4), np.float32)]
    assert joined(mixed, on.array).dtype == np.float64
