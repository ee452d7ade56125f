"""Infos become columns by rule, and come back."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unpacked import unpack_infos

from treadle.record.columns import pack_infos


def packed(rows) -> tuple[dict[str, np.ndarray], list[str]]:
    left_out: list[str] = []
    return {"/".join(path): array for path, array in pack_infos(rows, left_out)}, left_out


def nested(columns: dict[str, np.ndarray]) -> dict:
    tree: dict = {}
    for path, array in columns.items():
        *above, last = path.split("/")
        node = tree
        for name in above:
            node = node.setdefault(name, {})
        node[last] = array
    return tree


@pytest.mark.parametrize(
    ("values", "dtype", "shape"),
    [
        ([1, 2, 3], np.int64, (3,)),
        ([True, False], bool, (2,)),
        ([np.bool_(True), False], bool, (2,)),
        ([1.5, np.float64(2)], np.float64, (2,)),
        ([np.uint8(3), np.uint8(4)], np.uint8, (2,)),
        ([np.zeros((2, 3), np.int16)] * 4, np.int16, (4, 2, 3)),
        ([np.arange(2, dtype=">i4")] * 2, np.int32, (2, 2)),
    ],
)
def test_numbers_become_arrays(values, dtype, shape):
    columns, left_out = packed([{"k": v} for v in values])
    assert (columns["k"].dtype, columns["k"].shape, left_out) == (dtype, shape, [])
    assert columns["k"].tolist() == [np.asarray(v).tolist() for v in values]


@pytest.mark.parametrize(
    "values",
    [["a", "é\0"], [None, 1], [1, 1.5], [2**63, 1], [[1], [1, 2]], [{}, {"a": 1}], [{"a": 1}, None], [1, True]],
)
def test_the_rest_becomes_json(values):
    columns, left_out = packed([{"k": v} for v in values])
    assert columns["k"].dtype.kind == "S"
    assert not left_out
    assert [row["k"] for row in unpack_infos(columns)] == values


@pytest.mark.parametrize("value", [object(), {1, 2}, {(1, 2): 3}, b"bytes", 1j, np.complex64(1)])
def test_what_is_neither_is_named(value):
    columns, left_out = packed([{"good": 1, "bad": value}])
    assert left_out == ["bad"]
    assert list(columns) == ["good"]


def test_missing_rows_are_masked():
    rows = [{"seeds": (1, 2)}, {"x": 0.0, "n": None}, {"x": 2.0}, {"x": math.nan}]
    columns, _ = packed(rows)
    assert columns["_x"].tolist() == [False, True, True, True]
    back = unpack_infos(columns)
    assert back[:3] == [{"seeds": [1, 2]}, {"x": 0.0, "n": None}, {"x": 2.0}]
    assert math.isnan(back[3]["x"])


def test_masks_of_the_environment_are_not_taken_for_ours():
    rows = [{"x": 1, "_x": False}, {"x": 2, "_x": True}]
    assert unpack_infos(packed(rows)[0]) == rows


def test_slashes_make_groups_and_collisions_are_named():
    columns, left_out = packed([{"a/b": 1, "a": 2, "/": 3, "c/d": 4, "c": {"e": 5}}])
    assert set(columns) == {"a/b", "c/d", "c/e"}
    assert left_out == ["a", "/"]


_VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(allow_nan=False), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("abc"), inner, max_size=3)),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from("pqr"), _VALUES, max_size=3), min_size=1, max_size=5))
def test_any_json_comes_back(rows):
    columns, left_out = packed(rows)
    assert not left_out
    if columns:
        assert unpack_infos(nested(columns)) == rows
