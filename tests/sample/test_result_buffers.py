"""Memory of large results: filled piece by piece and used again, but never while somebody holds it."""

from __future__ import annotations

import gc
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import treadle
from treadle.memory import reserved
from treadle.memory.reserved import ResultBuffers
from treadle.samplers.columns import joined


def address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


@pytest.fixture(autouse=True)
def small_arrays_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reserved, "LEAST", 1000)
    monkeypatch.setattr(reserved, "SPARE", 10_000)


def made(on: ResultBuffers, *rows: int) -> np.ndarray:
    on.begin()
    pieces = [np.full((n, 5), 7 + i) for i, n in enumerate(rows or (60, 40))]
    array = joined([on.lay("key", piece) for piece in pieces], on.joined)
    assert (array == np.concatenate(pieces)).all()
    return array


def test_two_buffers_take_turns() -> None:
    on = ResultBuffers()
    held = made(on)
    seen = [address(held)]
    for _ in range(6):
        following = made(on)
        seen.append(address(following))
        held = following  # as a training loop does
    assert len(set(seen)) == 2


@pytest.mark.parametrize("hold", [lambda a: a[3:5], lambda a: a.reshape(-1)[::2], memoryview, lambda a: a.T[1, :50]])
def test_what_is_held_is_not_written_again(hold: Any) -> None:
    on = ResultBuffers()
    kept = hold(made(on))
    gc.collect()
    for _ in range(4):
        made(on)[:] = 1
    assert np.asarray(kept).min() >= 7


def test_pieces_are_the_result_and_are_not_copied_again() -> None:
    on = ResultBuffers()
    on.begin()
    pieces = [on.lay("key", np.full((n, 5), n)) for n in (30, 1, 50)]
    whole = joined(pieces, on.joined)
    assert address(whole) == address(pieces[0])
    assert whole.shape == (81, 5)
    one = made(on, 300)
    assert address(one[1:]) != address(one)
    assert address(made(on, 300)) != address(one), "one piece alone is a result, too, and somebody holds it"


@pytest.mark.parametrize(
    "pieces",
    [
        [np.ones((60, 4)), np.ones((60, 4), np.float32)],
        [np.ones((60, 4), np.float32), np.ones((1, 4))],
        [np.ones((2, 4)), np.ones((60, 4))],
        [np.ones((10, 4)), np.ones((10, 4))],
        [np.array([None] * 500), np.array([1] * 500, object)],
        [np.ones((60, 4))[::2], np.ones((60, 4))[:, ::-1]],
    ],
)
def test_joining_is_joining(pieces: list[np.ndarray]) -> None:
    on = ResultBuffers()
    on.begin()
    found, wanted = joined([on.lay("key", piece) for piece in pieces], on.joined), np.concatenate(pieces)
    assert found.dtype == wanted.dtype
    assert (found == wanted).all()
    cut = joined([on.lay("other", pieces[0]), on.lay("other", pieces[0])[:1]], on.joined)
    assert (cut == np.concatenate([pieces[0], pieces[0][:1]])).all()


def test_results_of_other_kinds_follow_in_the_same_memory() -> None:
    on = ResultBuffers()
    first = address(made(on, 5000))
    on.begin()
    pieces = [on.lay("key", np.full((400, 3), value, np.uint8)) for value in (1, 2)]
    found = joined(pieces, on.joined)
    assert address(found) == first
    assert found[:400].max() == 1
    assert found[400:].min() == 2
    assert np.frombuffer(found.base, np.uint8, 8, 100_000).max() == 0, "what one large result left is given back"
    held = made(on)
    on.clear()
    assert (held[:60] == 7).all()


def test_nothing_of_a_result_is_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not what a batch of one message alone shows of it, either."""
    monkeypatch.setattr(reserved, "LEAST", 8)
    with treadle.LocalSampler(
        lambda o: (o[:, 2] > 0).astype(int), gym.make("CartPole-v1"), max_episode_length=50, seed=1
    ) as sampler:
        batches = [sampler.obtain_samples(i, 1, None) for i in range(6)]
    assert len({len(batch) for batch in batches}) > 1
    assert [len(batch.lengths) for batch in batches] == [1] * 6
    assert [batch.lengths.sum() for batch in batches] == [len(batch.rewards) for batch in batches]
