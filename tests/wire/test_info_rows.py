"""Infos as rows: whatever environments put into their infos comes out as it went in, and as the same columns."""

import enum
import pickle
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import treadle
from treadle.vector.infos import columns
from treadle.wire.info_rows import FinalRows, InfoPacker, InfoRows, Schema, columns_of_rows, from_raw, joined, raw_of

KINDS = [np.float64, np.float32, np.float16, np.int64, np.int32, np.int16, np.int8, np.uint64, np.uint32, np.uint8]


class Colour(enum.IntEnum):
    RED = 1


def _arrays(draw: Any) -> np.ndarray:
    shape = draw(st.lists(st.integers(0, 3), max_size=2))
    return np.full(shape, draw(st.integers(0, 100)), draw(st.sampled_from([np.float32, np.int16, np.bool_, object])))


VALUES = st.one_of(
    st.integers(-(2**65), 2**65),
    st.integers(-3, 3),
    st.floats(),
    st.booleans(),
    st.builds(lambda kind, value: kind(value), st.sampled_from(KINDS), st.integers(0, 100)),
    st.builds(np.bool_, st.booleans()),
    st.composite(_arrays)(),
    st.sampled_from([None, "text", Colour.RED, [1, 2], (), 1j]),
)
KEYS = st.sampled_from(["x", "y", "velocity", "_x", "final_obs", "é", ""])
INFOS = st.recursive(
    st.dictionaries(KEYS, VALUES, max_size=4),
    lambda inner: st.dictionaries(KEYS, st.one_of(VALUES, inner), max_size=4),
    max_leaves=4,
)


def same(found: Any, expected: Any) -> None:
    """The same, types and order and bytes included."""
    assert type(found) is type(expected), (found, expected)
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        for key in expected:
            same(found[key], expected[key])
    elif isinstance(expected, np.ndarray):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        if expected.dtype.hasobject:
            for mine, theirs in zip(found.ravel(), expected.ravel(), strict=True):
                same(mine, theirs)
        else:
            assert found.tobytes() == expected.tobytes()
    elif isinstance(expected, np.generic):
        assert found.tobytes() == expected.tobytes()
    else:
        assert repr(found) == repr(expected)


def travelled(packer: InfoPacker, known: dict[int, Schema], infos: dict[int, Any], first: int) -> Mapping[int, Any]:
    """What the caller gets of a worker's infos."""
    groups, rest = packer.pack(infos)
    rest = {first + slot: info for slot, info in rest.items()}
    raw = raw_of(InfoRows(groups, rest), {}, known)
    if raw is not None:
        return from_raw(raw, known)[0]
    known.update((schema.number, schema) for schema, _, _ in groups)
    return pickle.loads(pickle.dumps(InfoRows(groups, rest))) if groups else rest


@given(st.lists(st.lists(INFOS, min_size=5, max_size=5), min_size=1, max_size=4), st.integers(0, 5))
def test_infos_come_out_as_they_went_in(steps: list[list[dict[str, Any]]], split: int) -> None:
    shares = [(0, split), (split, 5)]
    packers, known = [InfoPacker(tuple(range(*share))) for share in shares], [{}, {}]
    for infos in steps:
        given_ = {slot: info for slot, info in enumerate(infos) if info}
        parts = []
        for worker, (lo, hi) in enumerate(shares):
            own = {slot - lo: info for slot, info in given_.items() if lo <= slot < hi}
            parts.append(travelled(packers[worker], known[worker], own, lo))
        found = joined(parts)
        assert len(found) == len(given_)
        same(dict(found), given_)
        same(columns(5, found), columns(5, given_))


@given(st.lists(st.booleans(), min_size=4, max_size=4), st.sampled_from(KINDS))
def test_slots_without_an_info_are_masked(has: list[bool], kind: type) -> None:
    given_ = {slot: {"x": kind(slot), "at": {"y": slot}} for slot in range(4) if has[slot]}
    groups, rest = InfoPacker(tuple(range(4))).pack(given_)
    assert not rest
    same(columns(4, InfoRows(groups) if groups else {}), columns(4, given_))


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ((1, 0.5), np.float64),  # as a FrozenLake's reset and its steps tell
        ((0.5, 1), np.float64),
        ((True, 2), np.int64),
        ((np.int32(1), 2.0), np.float64),
        ((np.float32(1), 2.0), None),  # one column may round: as Gymnasium has it, slot by slot
    ],
)
def test_kinds_of_numbers_become_one_column(values: tuple[Any, Any], dtype: Any) -> None:
    infos = {slot: {"prob": value} for slot, value in enumerate(values)}
    groups, _ = InfoPacker((0, 1)).pack(infos)
    assert len(groups) == 2
    made = columns_of_rows(2, groups)
    if dtype is None:
        assert made is None
    else:
        assert made is not None
        same(made["prob"], np.array(values, dtype))
    same(columns(2, InfoRows(groups)), columns(2, infos))


def test_an_integer_beyond_64_bits_stays_itself_among_floats() -> None:
    found = columns(3, {0: {"x": 0.5}, 1: {"x": 2**64}, 2: {"x": float("nan")}})["x"]
    assert found.dtype == object
    assert found[1] == 2**64


def test_what_is_handed_out_is_the_callers() -> None:
    groups, _ = InfoPacker((0, 1)).pack({0: {"x": 1.0, "a": np.arange(3)}, 1: {"x": 2.0, "a": np.arange(3)}})
    rows = InfoRows(groups)
    out = columns(2, rows)
    for value in out.values():
        value[:] = 0
    rows[0]["a"][:] = 7
    assert rows[0]["x"] == 1.0
    same(rows[1]["a"], np.arange(3))
    assert columns(2, rows)["x"].tolist() == [1.0, 2.0]
    assert columns(2, rows)["_a"].all()


def test_final_infos_travel_beside_infos() -> None:
    packer = InfoPacker((4, 5, 6))
    infos = {0: {"x": 1}, 2: {"x": 2}}
    ended = {2: {"total": 0.5, "episode": {"l": 3}}}
    groups, finals = packer.pack(infos)[0], packer.pack(ended)[0]
    known = {schema.number: schema for schema, _, _ in [*groups, *finals]}
    assert raw_of(InfoRows(groups), FinalRows(finals), {}) is None
    raw = raw_of(InfoRows(groups), FinalRows(finals), known)
    assert raw is not None
    found, told = from_raw(raw, known)
    assert dict(found) == {4: {"x": 1}, 6: {"x": 2}}
    assert dict(told) == {6: ({"total": 0.5, "episode": {"l": 3}}, None)}
    assert raw_of(InfoRows(groups), FinalRows(finals, {5: ({"why": "text"}, None)}), known) is None


@pytest.mark.parametrize(
    "info",
    [{"x": np.zeros(1000)}, {"x": np.zeros(0)}, {"x": Colour.RED}, {"_x": 1}, {"": 1}, {1: 1}, {"x": {"y": "text"}}, 3]
    + [{"x": value} for value in (None, np.bool_(True), np.longlong(1), 1j)],
)
def test_what_goes_by_message(info: Any) -> None:
    assert InfoPacker((0,)).pack({0: info}) == ([], {0: info})


def test_keys_without_end_are_not_remembered_without_end() -> None:
    packer = InfoPacker((0,))
    for number in range(1000):
        groups, rest = packer.pack({0: {f"key {number}": number}})
        assert bool(groups) != bool(rest)
    assert len(packer._schemas) == 64


def test_deep_infos_go_by_message() -> None:
    deep: dict[str, Any] = {"x": 1}
    for _ in range(16):
        assert not InfoPacker((0,)).pack({0: deep})[1]
        deep = {"in": deep}
    assert InfoPacker((0,)).pack({0: deep}) == ([], {0: deep})


class Talkative(gym.Env):
    """Infos whose keys and types change from step to step, and between slots."""

    observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(1, np.float32), {"begun": np.float32(0.1)}

    def step(self, action: int) -> Any:
        self.t += 1
        t = self.t
        info: dict[str, Any] = {"t": t, "x": np.float64(t) / 3, "small": np.float32(t) / 3, "yes": t % 2 == 0}
        if t % 3 == 0:
            info = {"x": t, "nested": {"a": np.int16(t), "b": np.arange(2) * t}}
        elif t % 4 == 0:
            info["word"] = "four"
        elif t % 5 == 0:
            info = {f"key {i}": float(i) for i in range(100)}
        elif t % 7 == 0:
            info = {}
        return np.zeros(1, np.float32), 0.0, self.np_random.random() < 0.05, False, info


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
@pytest.mark.parametrize(
    "options",
    [{"workers": 2}, {"workers": 1, "inline": 2}, {"worker_options": treadle.WorkerOptions(backend="thread")}],
)
def test_a_vector_tells_what_the_environments_told(mode: str, options: dict[str, Any]) -> None:
    mode_ = gym.vector.AutoresetMode(mode)
    theirs = gym.vector.SyncVectorEnv([Talkative] * 5, autoreset_mode=mode_)
    with_ours = treadle.VectorEnv([Talkative] * 5, autoreset_mode=mode_, **options)
    try:
        same(with_ours.reset(seed=3)[1], theirs.reset(seed=3)[1])
        for _ in range(150):
            actions = np.zeros(5, np.int64)
            infos = with_ours.step(actions)[4]
            expected = theirs.step(actions)[4]
            infos.pop("x", None), expected.pop("x", None)  # Gymnasium keeps the first one's type and cuts the others
            same(_sorted(infos), _sorted(expected))
    finally:
        with_ours.close()
        theirs.close()


def _sorted(infos: Any) -> Any:
    """Gymnasium's order of columns is that of slots; ours, too, but an absent slot's mask stands elsewhere."""
    return {key: _sorted(infos[key]) if isinstance(infos[key], dict) else infos[key] for key in sorted(infos)}
