"""Columns of infos, against Gymnasium's own `_add_info` and where they part from it."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_envs import assert_same

from treadle.errors import UsageError
from treadle.vector.infos import InfoStyle, batcher, columns, gymnasium_infos, rows_of_infos

N = 4

# one kind a key, as environments send; Gymnasium's own columns take nothing else
KINDS: dict[str, Any] = {
    "flag": st.booleans(),
    "count": st.integers(-(2**62), 2**62),
    "real": st.floats(allow_nan=False),
    "small": st.integers(-100, 100).map(np.int8),
    "single": st.floats(allow_nan=False, width=32).map(np.float32),
    "text": st.text(max_size=3),
    "none": st.none(),
    "vector": st.lists(st.integers(0, 9), min_size=2, max_size=2).map(np.array),
    "picture": st.integers(0, 255).map(lambda v: np.full((2, 3), v, np.uint8)),
    "list": st.lists(st.integers(), max_size=2),
    "truth": st.booleans().map(np.bool_),
}
FLAT = st.fixed_dictionaries({}, optional=KINDS)
INFO = st.fixed_dictionaries({}, optional={**KINDS, "inner": FLAT, "final_obs": KINDS["vector"]})


def theirs(infos: dict[int, dict[str, Any]]) -> dict[str, Any]:
    vector = gym.vector.VectorEnv()
    vector.num_envs = N
    out: dict[str, Any] = {}
    for slot, info in infos.items():
        out = vector._add_info(out, info, slot)
    return out


@given(st.dictionaries(st.integers(0, N - 1), INFO))
def test_columns_are_gymnasiums(infos: dict[int, dict[str, Any]]) -> None:
    infos = dict(sorted(infos.items()))
    assert_same(columns(N, infos), theirs(infos))


@given(INFO)
def test_columns_of_like_infos_are_gymnasiums(info: dict[str, Any]) -> None:
    infos = dict.fromkeys(range(N), info)
    assert_same(columns(N, infos), theirs(infos))


def test_every_array_is_its_own() -> None:
    out = columns(2, {0: {"a": 1, "b": 2}, 1: {"a": 3, "b": 4}})
    out["_a"][0] = False
    assert out["_b"].all()


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([0, 0.5], np.float64),
        ([True, 7], np.int64),
        ([1, "one"], object),
        ([1, None], object),
        ([1, 2**70], object),
        ([1, 2**63], object),
        ([np.zeros(2), np.zeros(3)], object),
        ([np.zeros(2, np.int32), np.full(2, 0.25)], np.float64),
        ([np.zeros(2), {"a": 1}], object),
        ([{"a": 1}, 3], object),
    ],
)
@pytest.mark.parametrize("n", [2, 3])
def test_nothing_is_lost_where_kinds_differ(values: list[Any], dtype: Any, n: int) -> None:
    column = columns(n, dict(enumerate({"x": value} for value in values)))["x"]
    assert column.dtype == dtype
    for slot, value in enumerate(values):
        assert_same(np.asarray(column[slot], object).tolist(), np.asarray(value, object).tolist())


def test_big_integers_of_one_kind() -> None:
    assert columns(2, {0: {"x": 2**70}, 1: {"x": 1}})["x"].tolist() == [2**70, 1]


FINALS = {1: (np.array([1.0, 2.0]), {"episode": {"r": 3.0}})}
INFOS = {0: {"k": 1}, 1: {"k": 2}}


def test_gymnasium_style() -> None:
    out = batcher(InfoStyle.of("gymnasium"), 3)(INFOS, FINALS)
    assert out["k"].tolist() == [1, 2, 0]
    assert out["_k"].tolist() == [True, True, False]
    assert out["_final_obs"].tolist() == out["_final_info"].tolist() == [False, True, False]
    assert [each is None for each in out["final_obs"]] == [True, False, True]
    assert out["final_info"]["episode"]["r"].tolist() == [0, 3, 0]
    assert out["final_info"]["_episode"].tolist() == [False, True, False]


def test_finals_without_infos() -> None:
    out = gymnasium_infos(2, {}, {0: (np.zeros(1), {})})
    assert out["final_info"] == {}
    assert out["_final_info"].tolist() == [True, False]


def test_legacy_style() -> None:
    """As course code of Gymnasium 0.29 reads it."""
    out = batcher(InfoStyle.of("legacy"), 3)(INFOS, FINALS)
    returns = [info["episode"]["r"] for info in out["final_info"] if info and "episode" in info]
    assert returns == [3.0]
    assert out["final_observation"][1].tolist() == [1.0, 2.0]
    assert out["final_observation"][0] is None
    assert out["_final_observation"].tolist() == out["_final_info"].tolist() == [False, True, False]
    assert "final_obs" not in out


def test_list_style() -> None:
    out = batcher(InfoStyle.LIST, 3)(INFOS, FINALS)
    assert out[0] == {"k": 1}
    assert out[2] == {}
    assert out[1]["k"] == 2
    assert out[1]["final_info"] == {"episode": {"r": 3.0}}
    assert INFOS[1] == {"k": 2}


def test_unknown_style() -> None:
    with pytest.raises(UsageError, match="infos must be 'gymnasium' or 'legacy', got 'dict'"):
        InfoStyle.of("dict")


def test_infos_row_by_row() -> None:
    infos = {
        "a": np.array([1, 0, 3]),
        "_a": np.array([True, False, True]),
        "b": {"c": np.array([5.0, 6.0, 7.0]), "_c": np.array([True, True, False])},
        "_b": np.array([True, True, False]),
        "lives": np.array([3, 2, 1], np.int32),
        "whole": "same for all",
    }
    rows = rows_of_infos(infos, 3)
    assert rows[0] == {"a": 1, "b": {"c": 5.0}, "lives": 3, "whole": "same for all"}
    assert rows[1] == {"b": {"c": 6.0}, "lives": 2, "whole": "same for all"}
    assert rows[2] == {"a": 3, "lives": 1, "whole": "same for all"}
    assert {type(row["lives"]) for row in rows.values()} == {np.int32}
