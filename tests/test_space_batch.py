"""Batches of actions: every form that is taken, every fault that is named before anything is written."""

from __future__ import annotations

import math
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces as gs
from gymnasium.vector.utils import batch_space
from hypothesis import given, settings
from hypothesis import strategies as st

from drawn_spaces import any_space, batch, batched, fixed_spaces, same_leaves, sample
from treadle import trees
from treadle.spaces import Layout, Mismatch


@settings(deadline=None)
@given(any_space, st.integers(1, 4), st.booleans(), st.data())
def test_a_batch_comes_back_action_by_action(space: gym.Space[Any], n: int, as_list: bool, data: st.DataObject) -> None:
    samples = [sample(space, seed) for seed in range(n)]
    layout = Layout.of(space)
    write, arrays = batch(layout, n)
    mailed = write(samples if as_list else batched(space, samples))
    assert set(layout.loose).issubset(mailed or ())
    lo = data.draw(st.integers(0, n - 1))
    hi = data.draw(st.integers(lo + 1, n))
    read = layout.batch_reader(arrays, lo, hi)
    actions = read({leaf: column[lo:hi] for leaf, column in (mailed or {}).items()})
    assert len(actions) == hi - lo
    for action, expected in zip(actions, samples[lo:hi], strict=True):
        assert trees.paths(action) == trees.paths(expected)
        assert same_leaves(layout, action, expected)


@given(fixed_spaces, st.integers(1, 4))
def test_a_batch_space_samples_what_the_writer_takes(space: gym.Space[Any], n: int) -> None:
    layout = Layout.of(space)
    write, arrays = batch(layout, n)
    whole = batch_space(space, n)
    actions = sample(whole, 3)
    write(actions)
    assert trees.equal(layout.unflatten(arrays), trees.map(np.asarray, actions))


def test_an_action_may_be_kept_by_its_environment() -> None:
    layout = Layout.of(gs.Dict(a=gs.Box(0, 9, (2,)), b=gs.Discrete(9)))
    write, arrays = batch(layout, 2)
    read = layout.batch_reader(arrays, 0, 2)
    write({"a": np.full((2, 2), 3, np.float32), "b": np.array([1, 2])})
    kept = read()
    write({"a": np.full((2, 2), 5, np.float32), "b": np.array([3, 4])})
    assert [action["b"] for action in kept] == [1, 2]
    assert all(type(action["b"]) is int and action["a"].tolist() == [3, 3] for action in kept)
    kept[0]["a"][:] = 7
    assert read()[0]["a"].tolist() == [5, 5]


PAIR = gs.Tuple([gs.Discrete(3), gs.Discrete(3)])


def test_a_tuple_is_batches_and_a_list_is_actions() -> None:
    write, arrays = batch(Layout.of(PAIR), 2)
    write((np.array([0, 1]), np.array([2, 2])))
    assert [a.tolist() for a in arrays] == [[0, 1], [2, 2]]
    write([(0, 1), (2, 2)])
    assert [a.tolist() for a in arrays] == [[0, 2], [1, 2]]


GOOD = [
    (gs.Discrete(3), [0, 2], [0, 2]),
    (gs.Discrete(3), (np.int8(0), np.int8(2)), [0, 2]),
    (gs.Discrete(3), [np.array(0), 2], [0, 2]),
    (gs.Discrete(3), np.array([0, 2], np.uint8), [0, 2]),
    (gs.Discrete(3), np.array([0, 9, 2, 9])[::2], [0, 2]),
    (gs.Discrete(3, start=-1), np.array([-1, 1]), [-1, 1]),
    (gs.Discrete(5000), np.array([0, 4999]), [0, 4999]),
    (gs.MultiBinary(2), np.array([[0, 1], [1, 0]]), [[0, 1], [1, 0]]),
    (gs.MultiDiscrete([2, 128], dtype=np.uint8), [[0, 127], [1, 0]], [[0, 127], [1, 0]]),
    (gs.Box(0, 255, (1,), np.uint8), np.array([[0], [255]]), [[0], [255]]),
    (gs.Box(-1, 1, (1,)), np.array([[7.0], [-np.inf]], np.float32), [[7.0], [-math.inf]]),
    (gs.Box(-1, 1, (1,)), np.array([[0.5], [1]], np.float16), [[0.5], [1]]),
    (gs.Box(-1, 1, (1,)), [[0.5], [1]], [[0.5], [1]]),
    (gs.Box(-1, 1, (1,)), [np.array([0.5], np.float32), [1]], [[0.5], [1]]),
    (gs.Box(-1, 1, ()), [0.5, 1], [0.5, 1]),
    (gs.Box(-1, 1, (2,), np.float64), np.full((2, 2), 1e300), [[1e300] * 2] * 2),
    (gs.Box(0, 1, (1,), bool), [[True], [False]], [[True], [False]]),
]


@pytest.mark.parametrize(("space", "actions", "expected"), GOOD)
def test_what_a_batch_may_be_made_of(space: gym.Space[Any], actions: Any, expected: Any) -> None:
    layout = Layout.of(space)
    write, arrays = batch(layout, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mailed = write(actions)
    assert arrays[0].tolist() == expected
    of_its_dtype = [getattr(item, "dtype", None) == space.dtype for item in actions]
    assert (mailed is None) == (isinstance(space, gs.Discrete) or all(of_its_dtype))
    if mailed is not None:
        assert list(mailed) == [0]
        assert trees.equal(mailed[0], actions)
    assert layout.batch_writer(arrays, 2, cast=True)(actions) is None
    assert arrays[0].tolist() == expected


F32, NAN = np.float32, math.nan
BOTH = gs.Dict(move=gs.Discrete(3), turn=gs.Box(-1, 1, (2,)), say=gs.Text(3))
FINE = {"move": np.zeros(2, int), "turn": np.zeros((2, 2), F32), "say": ["a", "b"]}
ONE = {"move": 1, "turn": np.zeros(2, F32), "say": "a"}
BAD = [
    (gs.Discrete(3), np.array([0, 3]), (), 1, "expected an integer in [0, 2], got 3"),
    (gs.Discrete(3), np.array([-1, 0]), (), 0, "expected an integer in [0, 2], got -1"),
    (gs.Discrete(3), [0, 3], (), 1, "got 3"),
    (gs.Discrete(3), [0, True], (), 1, "got bool True"),
    (gs.Discrete(3), [True, True], (), 0, "got bool True"),
    (gs.Discrete(3), [0, 1.0], (), 1, "got float 1.0"),
    (gs.Discrete(3), [0, None], (), 1, "got None"),
    (gs.Discrete(3), [0, 2**80], (), 1, "got int 1208925819614629174706176"),
    (gs.Discrete(3, start=5), np.array([5, 0]), (), 1, "expected an integer in [5, 7], got 0"),
    (gs.Discrete(5000), np.array([0, 5000]), (), 1, "got 5000"),
    (gs.Discrete(3, dtype=np.uint8), np.array([0, 256]), (), 1, "got 256"),
    (gs.Discrete(3), np.array([0, 2**63], np.uint64), (), 1, "got 9223372036854775808"),
    (gs.Discrete(3), np.array([0, 1, 2]), (), None, "expected int64[2], got int64[3]"),
    (gs.Discrete(3), [0], (), None, "expected a batch of 2, got list of length 1"),
    (gs.Discrete(3), 1, (), None, "got int 1"),
    (gs.Discrete(3), "01", (), None, "got str '01'"),
    (gs.Discrete(3), None, (), None, "got None"),
    (gs.Discrete(3), np.array([0.0, 1.0]), (), None, "expected int64[2], got float64[2]"),
    (gs.Discrete(3), np.array([True, False]), (), None, "got bool[2]"),
    (gs.Discrete(3), np.zeros((2, 1), int), (), None, "got int64[2, 1]"),
    (gs.Discrete(3), np.array([0, 1], object), (), None, "got object[2]"),
    (gs.MultiDiscrete([2, 3]), np.array([[1, 2], [0, 3]]), (), 1, "expected an integer in [0, 2], got 3 at index [1]"),
    (gs.MultiDiscrete([2, 3], dtype=np.int8), [[0, 0], [2, 0]], (), 1, "expected an integer in [0, 1], got 2"),
    (gs.MultiBinary(2), np.array([[0, 1], [2, 0]], np.int8), (), 1, "expected an integer in [0, 1], got 2"),
    (gs.Box(0, 255, (1,), np.uint8), np.array([[0], [256]]), (), 1, "expected an integer in [0, 255], got 256"),
    (gs.Box(-1, 1, (2,)), np.array([[0, 0], [0, NAN]], F32), (), 1, "expected no NaN, got nan at index [1]"),
    (gs.Box(-1, 1, (2,), np.float16), np.array([[0, 0], [0, NAN]], np.float16), (), 1, "expected no NaN"),
    (gs.Box(-1, 1, (2,)), [np.zeros(2, F32), np.array([NAN, 0], F32)], (), 1, "expected no NaN"),
    (gs.Box(-1, 1, (1,)), [[0.0], [NAN]], (), 1, "expected no NaN"),
    (gs.Box(-1, 1, (1,)), [[0.0], [[1.0]]], (), 1, "expected float32[1], got list of length 1"),
    (gs.Box(-1, 1, (2,)), [[0.0, 1.0], [0.0, [1.0]]], (), 1, "expected float32[2], got list of length 2"),
    (gs.Box(-1, 1, (2,)), [np.zeros(2, F32), np.zeros(1, F32)], (), 1, "expected float32[2], got float32[1]"),
    (gs.Box(-1, 1, (2,)), np.zeros((2, 2), complex), (), None, "expected float32[2, 2], got complex128[2, 2]"),
    (gs.Box(-1, 1, (2,)), np.zeros(2, F32), (), None, "expected float32[2, 2], got float32[2]"),
    (gs.Box(0, 1, (1,), bool), np.zeros((2, 1), int), (), None, "expected bool[2, 1], got int64[2, 1]"),
    (BOTH, {**FINE, "move": np.array([0, 3])}, ("move",), 1, "got 3"),
    (BOTH, {**FINE, "turn": np.full((2, 2), NAN, F32)}, ("turn",), 0, "got nan"),
    (BOTH, {**FINE, "say": ["a"]}, ("say",), None, "expected a list or tuple of 2 values, got list of length 1"),
    (BOTH, {**FINE, "say": "ab"}, ("say",), None, "got str 'ab'"),
    (BOTH, {**FINE, "more": 1}, ("more",), None, "expected no such key"),
    (BOTH, {k: v for k, v in FINE.items() if k != "turn"}, ("turn",), None, "the key is missing"),
    (BOTH, [ONE], (), None, "expected a batch of 2, got list of length 1"),
    (BOTH, [ONE, {**ONE, "turn": np.full(2, NAN, F32)}], ("turn",), 1, "expected no NaN"),
    (BOTH, (ONE, {**ONE, "move": 5}), ("move",), 1, "got 5"),
    (BOTH, [ONE, {"move": 1}], ("turn",), 1, "the key is missing"),
    (BOTH, [ONE, 3], (), 1, "expected dict with keys"),
    (BOTH, np.zeros(2), (), None, "expected dict with keys"),
    (PAIR, (np.zeros(2, int), np.zeros(3, int)), (1,), None, "expected int64[2], got int64[3]"),
    (PAIR, ((0, 0), (0, 3)), (1,), 1, "got 3"),
    (PAIR, [(0, 0), (0,)], (), 1, "expected tuple of length 2, got tuple of length 1"),
    (PAIR, (np.zeros(2, int),), (), None, "expected tuple of length 2"),
]


@pytest.mark.parametrize(("space", "actions", "path", "row", "words"), BAD)
def test_a_bad_batch_is_refused_and_nothing_is_written(
    space: gym.Space[Any], actions: Any, path: tuple[Any, ...], row: int | None, words: str
) -> None:
    write, arrays = batch(Layout.of(space), 2)
    for a in arrays:
        if a is not None:
            a[...] = 1
    with pytest.raises(Mismatch) as caught:
        write(actions)
    assert (caught.value.path, caught.value.row) == (path, row)
    assert words in str(caught.value)
    start = "action" if row is None else f"row {row} of action"
    assert str(caught.value).startswith(start)
    assert all(a is None or (a == 1).all() for a in arrays)


@pytest.mark.parametrize("actions", [[[0.0], [1e300]], np.array([[0.0], [1e300]]), [np.zeros(1), np.array([-1e39])]])
def test_numbers_too_large_for_the_dtype_go_by_message_or_are_refused(actions: Any) -> None:
    layout = Layout.of(gs.Box(-1, 1, (1,)))
    write, arrays = batch(layout, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert trees.equal(write(actions), {0: actions})
    arrays[0][...] = 1
    with pytest.raises(Mismatch, match="numbers that fit float32") as caught:
        layout.batch_writer(arrays, 2, cast=True)(actions)
    assert caught.value.row == 1
    assert (arrays[0] == 1).all()


@pytest.mark.parametrize("n", [32, 33, 200])
@pytest.mark.parametrize("bad", [-1, 7, 2**62, -(2**63)])
def test_every_row_of_a_large_batch_is_checked(n: int, bad: int) -> None:
    write, arrays = batch(Layout.of(gs.Discrete(7)), n)
    actions = np.arange(n) % 7
    write(actions)
    assert (arrays[0] == actions).all()
    for row in (0, n // 2, n - 1):
        broken = actions.copy()
        broken[row] = bad
        with pytest.raises(Mismatch) as caught:
            write(broken)
        assert caught.value.row == row


@given(st.lists(st.floats(width=32, allow_nan=True), min_size=6, max_size=6))
def test_nan_and_only_nan_is_refused(numbers: list[float]) -> None:
    write, arrays = batch(Layout.of(gs.Box(-1, 1, (3,))), 2)
    actions = np.array(numbers, F32).reshape(2, 3)
    if np.isnan(actions).any():
        with pytest.raises(Mismatch) as caught:
            write(actions)
        assert caught.value.row == int(np.isnan(actions).any(axis=1).argmax())
    else:
        write(actions)
        assert trees.equal(arrays[0], actions)


@settings(deadline=None)
@given(st.data(), any_space, st.integers(1, 3))
def test_a_batch_of_another_size_is_refused(data: st.DataObject, space: gym.Space[Any], n: int) -> None:
    layout = Layout.of(space)
    other = data.draw(st.integers(1, 4).filter(lambda size: size != n))
    samples = [sample(space, seed) for seed in range(other)]
    write, _ = batch(layout, n)
    with pytest.raises(Mismatch):
        write(samples)
    with pytest.raises(Mismatch):
        write(batched(space, samples))


def test_arrays_and_rows_that_do_not_fit_are_refused() -> None:
    layout = Layout.of(gs.Tuple([gs.Discrete(2), gs.Text(2)]))
    good = [np.zeros(3, np.int64), None]
    for arrays in ([], [None, None], [np.zeros(2, np.int64), None], [np.zeros(3, np.int32), None], good[:1] * 2):
        with pytest.raises(ValueError, match="array"):
            layout.batch_writer(arrays, 3)
    with pytest.raises(ValueError, match="at least one action"):
        layout.batch_writer([np.zeros(0, np.int64), None], 0)
    for lo, hi in ((-1, 2), (0, 4), (2, 1)):
        with pytest.raises(ValueError, match="not within"):
            layout.batch_reader(good, lo, hi)
    with pytest.raises(ValueError, match="loose leaf"):
        layout.batch_reader(good, 0, 2)()
    with pytest.raises(ValueError, match=r"shorter|longer"):
        layout.batch_reader(good, 0, 2)({1: ["a"]})
