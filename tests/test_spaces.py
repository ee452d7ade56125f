"""Layouts: what is written comes back to the byte, and whatever does not fit is refused with its place."""

from __future__ import annotations

import array
import copy
import pickle
import warnings
from collections import OrderedDict
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces as gs
from hypothesis import assume, given
from hypothesis import strategies as st

from conftest import require
from drawn_spaces import (
    FLOATS,
    INTEGERS,
    any_space,
    batch,
    fixed_leaves,
    loose_leaves,
    nested,
    read,
    replaced,
    same_leaves,
    sample,
    writer,
)
from treadle import trees
from treadle.spaces import Layout, Leaf, Mismatch

# -------------------------------------------------------------------------------------------------------- the layout


def test_leaves_of_a_nested_space() -> None:
    space = gs.Dict(
        b=gs.Tuple([gs.Discrete(3, dtype=np.int8), gs.Text(4)]), a=gs.Box(0, 255, (7, 7, 3), np.uint8), c=gs.Dict()
    )
    layout = Layout.of(space)
    assert [leaf.path for leaf in layout.leaves] == [
        ("a",) if key == "a" else ("b", i) for key in space.spaces for i in range({"a": 1, "b": 2, "c": 0}[key])
    ]
    by_path = {leaf.path: leaf for leaf in layout.leaves}
    assert by_path[("a",)] == Leaf(("a",), space["a"], np.dtype(np.uint8), (7, 7, 3), True, 147)
    assert by_path[("b", 0)] == Leaf(("b", 0), space["b"][0], np.dtype(np.int8), (), True, 1)
    assert by_path[("b", 1)] == Leaf(("b", 1), space["b"][1], None, None, False, 0)
    assert layout.row_nbytes == 148
    assert [layout.leaves[i].path for i in layout.loose] == [("b", 1)]
    assert sorted(layout.fixed + layout.loose) == [0, 1, 2]


class Custom(gym.Space[Any]):
    """A space that Gymnasium does not ship."""


@pytest.mark.parametrize(
    "space", [gs.Text(3), gs.Graph(gs.Discrete(2), None), gs.Sequence(gs.Discrete(2)), gs.OneOf([gs.Text(1)]), Custom()]
)
def test_spaces_without_one_shape_are_loose(space: gym.Space[Any]) -> None:
    layout = Layout.of(space)
    assert layout.loose == (0,)
    assert layout.fixed == ()
    assert layout.row_writer([None])("anything") == ["anything"]
    assert read(layout, [None], ["anything"]) == "anything"


def test_a_box_of_objects_is_loose() -> None:
    space = gs.Box(0, 1, (2,))
    space.dtype = np.dtype(object)  # what older Gymnasium allowed to be constructed
    assert Layout.of(space).loose == (0,)


@given(any_space)
def test_a_layout_survives_pickle(space: gym.Space[Any]) -> None:
    layout = Layout.of(space)
    clone = pickle.loads(pickle.dumps(layout))
    assert clone.leaves == layout.leaves
    assert clone.plan == layout.plan


@given(any_space, st.integers(0, 99))
def test_unflatten_is_the_inverse_of_flatten(space: gym.Space[Any], seed: int) -> None:
    value = sample(space, seed)
    layout = Layout.of(space)
    again = layout.unflatten(layout.flatten(value))
    assert trees.paths(again) == trees.paths(value)
    assert same_leaves(layout, again, value)


def test_a_mismatch_keeps_its_fields_through_pickle_and_copy() -> None:
    first = Mismatch(("a", 0), "uint8[3]", "float64[3]", 5, "action")
    for clone in (pickle.loads(pickle.dumps(first)), copy.copy(first)):
        assert (clone.path, clone.expected, clone.got, clone.row) == (("a", 0), "uint8[3]", "float64[3]", 5)
        assert str(clone) == "row 5 of action['a'][0]: expected uint8[3], got float64[3]"


# ------------------------------------------------------------------------------------------------------- single rows


@given(any_space, st.integers(0, 99))
def test_what_is_written_comes_back(space: gym.Space[Any], seed: int) -> None:
    layout = Layout.of(space)
    write, rows = writer(layout)
    value = sample(space, seed)
    loose = write(value)
    assert (loose is None) == (not layout.loose)
    assert layout.problem(value) is None
    back = read(layout, rows, loose or ())
    assert same_leaves(layout, back, value)
    discrete = [isinstance(leaf.space, gs.Discrete) for leaf in layout.leaves]
    assert all(type(item) is int for item, is_int in zip(layout.flatten(back), discrete) if is_int)


@given(st.data(), any_space, st.integers(0, 99))
def test_every_wrong_leaf_is_refused_and_named(data: st.DataObject, space: gym.Space[Any], seed: int) -> None:
    layout = Layout.of(space)
    assume(layout.fixed)
    index = data.draw(st.sampled_from(layout.fixed))
    leaf = layout.leaves[index]
    good = np.zeros(leaf.shape, leaf.dtype)
    wrong = [good[None], good.tolist() if leaf.shape else "0", None, good.astype(np.complex64), np.ma]
    if isinstance(leaf.space, gs.Discrete):
        wrong += [True, np.True_, 0.0, 2**64, np.zeros(1, leaf.dtype)]
    else:
        wrong += [good.astype(dtype) for dtype in [*FLOATS, *INTEGERS, np.bool_] if np.dtype(dtype) != leaf.dtype]
        wrong += [good.astype(good.dtype.newbyteorder())] if good.itemsize > 1 else []
        wrong += [good[:-1], good[0], bytes(good), memoryview(good), good[None, None]] if leaf.shape else [0, 0.0]
    bad = replaced(layout, sample(space, seed), index, wrong[data.draw(st.integers(0, len(wrong) - 1))])
    write, _ = writer(layout)
    with pytest.raises(Mismatch) as caught:
        write(bad)
    assert caught.value.path == leaf.path
    assert str(caught.value) == str(layout.problem(bad))


@given(st.data(), st.recursive(fixed_leaves | loose_leaves, nested, max_leaves=5).flatmap(lambda s: nested(st.just(s))))
def test_every_wrong_outline_is_refused_and_named(data: st.DataObject, space: gym.Space[Any]) -> None:
    value = sample(space, 0)
    layout = Layout.of(space)
    if isinstance(space, gs.Dict):
        key = data.draw(st.sampled_from(sorted(value)))
        rest = {k: v for k, v in value.items() if k != key}
        cases = [({**value, "new": 1}, ("new",)), (rest, (key,)), (tuple(value.values()), ())]
        cases.append(({**rest, "new": value[key]}, (key,)))
    else:
        cases = [((*value, 1), ()), (value[:-1], ()), (dict(enumerate(value)), ())]
    bad, path = data.draw(st.sampled_from(cases))
    write, _ = writer(layout)
    with pytest.raises(Mismatch) as caught:
        write(bad)
    assert caught.value.path == path
    with pytest.raises(Mismatch):
        layout.flatten(bad)


@pytest.mark.parametrize(
    ("space", "value", "message"),
    [
        (
            gs.Dict(image=gs.Box(0, 255, (7, 7, 3), np.uint8)),
            {"image": np.zeros((7, 7, 3))},
            "observation['image']: expected uint8[7, 7, 3], got float64[7, 7, 3]",
        ),
        (gs.Box(0, 1, (4,)), np.zeros(1, np.float32), "observation: expected float32[4], got float32[1]"),
        (gs.Box(0, 1, (4,)), [0.0] * 4, "observation: expected float32[4], got list of length 4"),
        (gs.Discrete(3, dtype=np.int8), 300, "observation: expected an integer that fits int8, got int 300"),
        (
            gs.Dict(a=gs.Dict(b=gs.Discrete(2))),
            {"a": {}},
            "observation['a']['b']: expected int64[], got nothing (the key is missing)",
        ),
        (
            gs.Tuple([gs.Discrete(2), gs.Discrete(2)]),
            (1,),
            "observation: expected tuple of length 2, got tuple of length 1",
        ),
        (gs.Dict(), {"x": None}, "observation['x']: expected no such key, got None"),
    ],
)
def test_messages(space: gym.Space[Any], value: Any, message: str) -> None:
    write, _ = writer(Layout.of(space))
    with pytest.raises(Mismatch) as caught:
        write(value)
    assert str(caught.value) == message
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_a_refused_shape_is_not_broadcast() -> None:
    write, (row,) = writer(Layout.of(gs.Box(0, 1, (4,))))
    with pytest.raises(Mismatch):
        write(np.ones(1, np.float32))
    assert not row.any()


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.bool_])
@pytest.mark.parametrize("other", [np.uint8, np.int8, np.bool_])
def test_one_byte_kinds_do_not_pass_for_one_another(dtype: Any, other: Any) -> None:
    write, _ = writer(Layout.of(gs.Box(0, 1, (4,), dtype)))
    value = np.ones(4, other)
    if dtype is other:
        assert write(value) is None
    else:
        with pytest.raises(Mismatch):
            write(value)


@pytest.mark.parametrize("buffer", [b"abcd", bytearray(4), array.array("B", [1] * 4), memoryview(b"abcd")])
@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: {"a": x}])
def test_buffers_that_are_no_arrays_are_refused(buffer: Any, wrap: Any) -> None:
    space = gs.Box(0, 255, (4,), np.uint8)
    write, _ = writer(Layout.of(space if wrap(0) == 0 else gs.Dict(a=space)))
    with pytest.raises(Mismatch, match=type(buffer).__name__):
        write(wrap(buffer))


class Tagged(np.ndarray):
    """A subclass of ndarray, as wrappers and unit libraries make them."""


UNUSUAL = [
    (gs.Box(-9, 9, (4,), np.int64), np.arange(4, dtype=np.longlong)),
    (gs.Box(-9, 9, (4,), np.float32), np.arange(8, dtype=np.float32)[::2]),
    (gs.Box(-9, 9, (4,), np.float32), np.arange(4, dtype=np.float32)[::-1]),
    (gs.Box(-9, 9, (2, 3), np.float32), np.arange(6, dtype=np.float32).reshape(3, 2).T),
    (gs.Box(-9, 9, (4,), np.float32), np.arange(4, dtype=np.float32).view(Tagged)),
    (gs.Box(-9, 9, (4,), np.dtype(">f4")), np.arange(4, dtype=">f4")),
    (gs.Box(-9, 9, (4,), np.longdouble), np.arange(4, dtype=np.longdouble)),
    (gs.Box(-9, 9, (4,), np.float16), np.arange(4, dtype=np.float16)),
    (gs.Box(-9, 9, ()), np.float32(2)),
    (gs.Box(-9, 9, ()), np.array(2, np.float32)),
    (gs.Box(-9, 9, (0,)), np.zeros(0, np.float32)),
    (gs.Box(-9, 9, (0, 3)), np.zeros((0, 3), np.float32)),
]


@pytest.mark.parametrize("wrap", [False, True])
@pytest.mark.parametrize(("space", "value"), UNUSUAL)
def test_unusual_arrays_of_the_right_dtype_are_written(space: gym.Space[Any], value: Any, wrap: bool) -> None:
    layout = Layout.of(gs.Dict(a=space) if wrap else space)
    write, rows = writer(layout)
    write({"a": value} if wrap else value)
    assert rows[0].tolist() == value.tolist()


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.dtype(">i8")])
@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3), np.longlong(3), np.array(3, np.int16)])
@pytest.mark.parametrize("wrap", [False, True])
def test_every_kind_of_integer_goes_to_a_discrete_leaf(dtype: Any, value: Any, wrap: bool) -> None:
    space = gs.Discrete(5)
    space.dtype = np.dtype(
        dtype
    )  # the constructor narrows what it accepts; a foreign byte order must work all the same
    layout = Layout.of(gs.Tuple([space]) if wrap else space)
    write, rows = writer(layout)
    write((value,) if wrap else value)
    back = read(layout, rows)
    assert (back if not wrap else back[0]) == 3


def test_ordered_dicts_and_lists_nest_as_well() -> None:
    layout = Layout.of(gs.Dict(a=gs.Discrete(3), b=gs.Tuple([gs.Discrete(3), gs.Text(3)])))
    write, rows = writer(layout)
    loose = write(OrderedDict(b=[2, "t"], a=1))
    assert loose == ["t"]
    assert read(layout, rows, loose) == {"a": 1, "b": (2, "t")}


def test_strided_rows_are_written() -> None:
    layout = Layout.of(gs.Box(0, 9, (3,)))
    big = np.zeros((3, 5), np.float32)
    layout.row_writer([big[:, 2]])(np.arange(3, dtype=np.float32))
    assert big[:, 2].tolist() == [0, 1, 2]
    assert big.sum() == 3


@pytest.mark.parametrize(
    "rows",
    [[], [None, None], [np.zeros(4), None], [np.zeros(3, np.float32), None], [np.zeros(4, np.float32)] * 2],
)
def test_rows_that_do_not_fit_the_leaves_are_refused(rows: list[Any]) -> None:
    layout = Layout.of(gs.Tuple([gs.Box(0, 1, (4,)), gs.Text(2)]))
    with pytest.raises(ValueError, match="row"):
        layout.row_writer(rows)


def test_a_scalar_taken_out_of_its_array_is_no_row() -> None:
    with pytest.raises(ValueError, match=r"must be an array int64\[\], got int64 0"):
        Layout.of(gs.Discrete(2)).row_writer([np.zeros(3, np.int64)[1]])


# -------------------------------------------------------------------------------------------------- real environments


def make(name: str) -> gym.Env[Any, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some register with deprecation notices
        if name.startswith("ALE/"):
            gym.register_envs(require("ale_py"))
        elif name.startswith("MiniGrid"):
            gym.register_envs(require("minigrid"))
        elif name.startswith("Hopper"):
            require("mujoco")
        return gym.make(name)


@pytest.mark.parametrize("name", ["CartPole-v1", "ALE/Pong-v5", "MiniGrid-DoorKey-5x5-v0", "Hopper-v5"])
def test_real_environments(name: str) -> None:
    env = make(name)
    try:
        seen, acted = Layout.of(env.observation_space), Layout.of(env.action_space)
        write_obs, rows = writer(seen)
        write_actions, arrays = batch(acted, 2)
        read_actions = acted.batch_reader(arrays, 0, 2)
        observation, _ = env.reset(seed=1)
        env.action_space.seed(1)
        for _ in range(5):
            loose = write_obs(observation)
            assert same_leaves(seen, read(seen, rows, loose or ()), observation)
            assert write_actions(np.stack([env.action_space.sample() for _ in range(2)])) is None
            observation, *_ = env.step(read_actions()[1])
        if name.startswith("MiniGrid"):
            assert [seen.leaves[i].path for i in seen.loose] == [("mission",)]
            assert loose == [observation["mission"]]
    finally:
        env.close()
