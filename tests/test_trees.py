"""Trees: leaves, paths, map, equality to the byte."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from treadle import trees

Point = namedtuple("Point", "x y")

TREE = {"b": (1, np.zeros(2)), "a": {"c": "text"}, "e": ()}

arrays = hnp.arrays(
    st.sampled_from([np.float16, np.float32, np.float64, np.uint8, np.int64, np.bool_]),
    hnp.array_shapes(min_dims=0, max_dims=2, max_side=3),
)
leaf_values = arrays | st.text(max_size=3) | st.integers(-(2**40), 2**40) | st.floats()
any_tree = st.recursive(
    leaf_values,
    lambda inner: st.dictionaries(st.text(max_size=2), inner, max_size=3) | st.lists(inner, max_size=3).map(tuple),
    max_leaves=8,
)


def test_leaves_and_paths_go_by_the_dicts_own_order() -> None:
    assert trees.paths(TREE) == [("b", 0), ("b", 1), ("a", "c")]
    assert trees.leaves(TREE)[0] == 1
    assert trees.leaves(TREE)[2] == "text"


def test_a_value_that_is_no_node_is_one_leaf() -> None:
    assert trees.paths([1, 2]) == [()]
    assert trees.leaves(Point(1, 2)) == [Point(1, 2)]
    assert trees.leaves({}) == []


def test_map_reads_further_trees_by_key() -> None:
    assert trees.map(lambda a, b: a - b, {"x": 5, "y": (7,)}, {"y": (1,), "x": 2}) == {"x": 3, "y": (6,)}


def test_map_keeps_the_first_trees_order() -> None:
    assert list(trees.map(lambda a, b: a, {"x": 1, "a": 2}, {"a": 1, "x": 2})) == ["x", "a"]


@pytest.mark.parametrize(
    ("other", "place"),
    [
        ({"x": (1, 2)}, r"\('x',\)"),
        ({"x": 1}, r"\('x',\)"),
        ({}, r"\(\)"),
        ({"x": (1,), "y": 1}, r"\(\)"),
        (3, r"\(\)"),
    ],
)
def test_map_names_where_structures_differ(other: Any, place: str) -> None:
    with pytest.raises(ValueError, match=rf"differ in structure at path {place}"):
        trees.map(lambda a, b: a, {"x": (1,)}, other)


@given(any_tree)
def test_every_tree_equals_its_own_copy(tree: Any) -> None:
    copy = trees.map(lambda leaf: leaf.copy() if isinstance(leaf, np.ndarray) else leaf, tree)
    assert trees.equal(tree, copy)


def test_equal_does_not_mind_the_order_of_keys() -> None:
    assert trees.equal({"a": 1, "b": 2}, OrderedDict(b=2, a=1))


def test_equal_sees_nan_as_itself() -> None:
    assert trees.equal((np.array([np.nan]), float("nan")), (np.array([np.nan]), float("nan")))


def test_equal_takes_a_numpy_scalar_for_its_array() -> None:
    assert trees.equal(np.float32(2), np.array(2, np.float32))


def test_equal_looks_into_object_arrays() -> None:
    a, b = np.array([(1, 2), "x"], object), np.array([(1, 2), "x"], object)
    assert trees.equal(a, b)
    b[0] = (1, 3)
    assert not trees.equal(a, b)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (np.zeros(2, np.float32), np.zeros(2, np.float64)),
        (np.zeros(2), np.zeros((2, 1))),
        (np.array([0.0]), np.array([-0.0])),
        (0.0, -0.0),
        (1, 1.0),
        (1, True),
        (1, np.int64(1)),
        ((1, 2), [1, 2]),
        ((1, 2), (1, 2, 3)),
        (Point(1, 2), (1, 2)),
        ({"a": 1}, {"a": 1, "b": 2}),
        ({"a": 1}, {"b": 1}),
        ({"a": 1}, (1,)),
        ("a", "b"),
        ([np.zeros(1)], [np.ones(1)]),
    ],
)
def test_equal_tells_apart(a: Any, b: Any) -> None:
    assert not trees.equal(a, b)
    assert not trees.equal(b, a)


def test_a_row_of_a_tree_is_a_view() -> None:
    tree = {"a": np.arange(6).reshape(3, 2), "b": (["x", "y", "z"], np.arange(3))}
    found = trees.row(tree, 1)
    assert found["a"].tolist() == [2, 3]
    assert np.shares_memory(found["a"], tree["a"])
    assert found["b"] == ("y", 1)


def test_the_first_difference_of_two_records_is_the_earliest_step() -> None:
    one = {"seen": np.arange(4.0), "done": np.zeros(3, bool), "said": np.array([b"a", b"bc", b""])}

    def begins(name: str) -> int:
        return 0 if name == "seen" else 1

    def changed(**other: Any) -> tuple[int, str] | None:
        return trees.first_difference(one, {**one, **other}, begins)

    assert changed() is None
    assert changed(seen=np.array([0.0, 1, 2, np.nan])) == (3, "seen")
    assert changed(seen=np.array([0.0, 1, 2, 4]), done=np.array([False, True, True])) == (2, "done")
    assert changed(said=np.array([b"a", b"b", b""])) == (2, "said")
    assert changed(seen=one["seen"][:2]) == (2, "seen"), "it ends too early"
    assert changed(more=np.zeros(3)) == (1, "more"), "one of them lacks it"
