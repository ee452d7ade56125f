"""Arena, buffers and spaces of slots: memory that is shared, handed out and taken back."""

import gc
import os
import pickle
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces as gs
from hypothesis import given
from hypothesis import strategies as st

from conftest import own_shm
from treadle.errors import ArenaError
from treadle.memory import arena as arenas
from treadle.memory.arena import ALIGN, PAGE, Arena
from treadle.memory.ring import SMALL, TABLE, Ring, Rings, RowMemory
from treadle.memory.rows import Rows

N = SMALL // 8 + 1


def rings(arena: Arena, blocks: int = 2, finals: bool = False) -> RowMemory:
    """4 slots, each of which sees int64[N], which is large enough to be lent; rewards and flags are not."""
    spaces = {"observation_space": gs.Box(0, 9, (N,), np.int64), "action_space": gs.Discrete(2)}
    return RowMemory(arena, [SimpleNamespace(**spaces, numpy_integers=False, finals=finals)] * 4, blocks=blocks)


def buffers(count: int) -> Ring:
    """`count` blocks and the spare."""
    return rings(Arena(shared=False), count).standing


# -- arena ------------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["memfd", "not shared"])
def arena(request: pytest.FixtureRequest) -> Any:
    made = Arena(shared=request.param != "not shared")
    yield made
    made.forget()


def test_fields_do_not_overlap(arena: Arena) -> None:
    plan = arena.plan()
    fields = [plan.add(dtype, shape) for dtype, shape in (("u1", (3,)), ("f8", (2, 5)), ("?", ()), ("i4", (0,)))]
    arena.grow(plan)
    arrays = [arena.array(field) for field in fields]
    for i, array in enumerate(arrays):
        assert not array.any(), "zeroed"
        assert array.ctypes.data % ALIGN == 0
        array[...] = i + 1
    assert [array.tolist() for array in arrays] == [[1] * 3, [[2.0] * 5] * 2, True, []]


def test_it_grows_and_earlier_arrays_stay(arena: Arena) -> None:
    arrays = []
    for size in (10, PAGE, 5 * PAGE + 3):
        plan = arena.plan()
        field = plan.add("u1", (size,))
        arena.grow(plan)
        arrays.append(arena.array(field))
        arrays[-1][:] = len(arrays)
    assert [int(a[0]) for a in arrays] == [int(a[-1]) for a in arrays] == [1, 2, 3]
    assert [nbytes % PAGE for _, nbytes in arena.segments] == [0, 0, 0]


def test_two_mappings_are_one_memory() -> None:
    ours = Arena()
    theirs = Arena(fd=os.dup(ours.fd))
    try:
        for value in (1.5, 2.5):  # the second is a segment that they map when they hear of it
            plan = ours.plan()
            field = plan.add("f8", (1000,))
            ours.grow(plan)
            ours.array(field)[:] = value
            theirs.join(ours.segments)
            assert (theirs.array(field) == value).all()
            theirs.array(field)[7] = -1
            assert ours.array(field)[7] == -1
    finally:
        ours.forget()
        theirs.forget()


def test_arrays_outlive_it() -> None:
    arena = Arena()
    plan = arena.plan()
    field = plan.add("i8", (1000,))
    arena.grow(plan)
    array = arena.array(field)
    array[:] = 5
    arena.forget()
    arena.forget()
    del arena
    gc.collect()
    array[0] += 1
    assert array.sum() == 5001


@pytest.mark.parametrize("shared", [True, False], ids=["memfd", "not shared"])
def test_nothing_has_a_name(shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # others make files in the system's
    before = own_shm()
    arena = Arena(shared=shared)
    try:
        plan = arena.plan()
        plan.add("u1", (PAGE,))
        arena.grow(plan)
        assert own_shm() <= before
        assert os.listdir(tmp_path) == []
    finally:
        arena.forget()


def test_more_than_there_is_is_refused(arena: Arena) -> None:
    plan = arena.plan()
    plan.add("u1", (2**50,))
    with pytest.raises(ArenaError, match=r"MiB asked and .* MiB are available") as caught:
        arena.grow(plan)
    assert caught.value.asked >= 2**50
    assert caught.value.available is not None
    assert isinstance(caught.value, MemoryError)
    assert arena.segments == []


def test_a_full_file_system_is_an_arena_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    arena = Arena()
    plan = arena.plan()
    plan.add("u1", (10,))
    monkeypatch.setattr(os, "posix_fallocate", full)
    try:
        with pytest.raises(ArenaError, match="No space left"):
            arena.grow(plan)
    finally:
        arena.forget()


@pytest.mark.parametrize(
    ("files", "room"),
    [
        ({"/proc/meminfo": "MemTotal: 9 kB\nMemAvailable:  100 kB\n"}, 100 * 1024),
        ({"/sys/fs/cgroup/memory.max": "5000\n", "/sys/fs/cgroup/memory.current": "2000\n"}, 3000),
        ({"/sys/fs/cgroup/memory.max": "max\n", "/sys/fs/cgroup/memory.current": "2000\n"}, None),
        (
            {
                "/proc/meminfo": "MemAvailable: 1 kB",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes": "5000",
                "/sys/fs/cgroup/memory/memory.usage_in_bytes": "4900",
            },
            100,
        ),
        ({"/sys/fs/cgroup/memory.max": "10", "/sys/fs/cgroup/memory.current": "20"}, 0),
    ],
)
def test_how_much_room_there_is(files: dict[str, str], room: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arenas, "text_of", lambda path: files.get(path, ""))
    assert arenas.memory_available() == room


# -- rings ------------------------------------------------------------------------------------------------------------


def test_a_block_is_free_when_nobody_holds_it() -> None:
    ring = buffers(2)
    first = ring.take()
    arrays = ring.row(first)
    assert first == 0
    assert ring.take() == 1
    del arrays
    assert ring.take() == 0


HOLDS = {
    "the array": lambda a: a,
    "a slice": lambda a: a[1:3],
    "a view of a view": lambda a: a[1:].reshape(-1)[::2].view("u8"),
    "a transposed one": lambda a: a.T,
    "a memoryview": lambda a: memoryview(a),
    "an array over its buffer": lambda a: np.frombuffer(memoryview(a), np.int64),
    "a pickle buffer": lambda a: pickle.PickleBuffer(a),
    "asarray": lambda a: np.asarray(a),
    "DLPack": lambda a: np.from_dlpack(a),
}


@pytest.mark.parametrize("kind", HOLDS)
def test_whatever_looks_into_a_block_holds_it(kind: str) -> None:
    ring = buffers(1)
    arrays = ring.row(ring.take())
    held = HOLDS[kind](arrays[0])
    del arrays
    assert ring.take() == 1, "the spare: block 0 is still looked at"
    del held
    assert ring.take() == 0


def test_a_copy_does_not_hold_a_block() -> None:
    ring = buffers(1)
    kept = ring.row(ring.take())[0].copy()
    assert ring.take() == 0
    assert kept.tolist() == [[0] * N] * 4


def test_small_arrays_are_copies_and_hold_nothing() -> None:
    ring = buffers(1)
    ring.peek(0)[1][:] = True
    small = ring.row(ring.take())[1]
    assert ring.take() == 0
    ring.peek(0)[1][:] = False
    assert small.all()


def test_when_all_are_held_copies_are_made() -> None:
    ring = buffers(2)
    held = []
    for i in range(10):
        block = ring.take()
        ring.peek(block)[0][:] = i
        held.append(ring.row(block))
    assert [arrays[0].tolist() for arrays in held] == [[[i] * N] * 4 for i in range(10)]
    blocks = [ring.peek(block)[0] for block in range(2)]
    assert sum(any(np.shares_memory(arrays[0], block) for block in blocks) for arrays in held) == 2, "others are copies"
    del held[0]
    assert ring.take() == 0


def test_a_pinned_block_is_out_of_service() -> None:
    ring = buffers(2)
    ring.pins.add(0)
    assert ring.take() == 1
    ring.pins.add(1)
    assert ring.take() == 2
    ring.pins.discard(0)
    assert ring.take() == 0
    ring.pins.discard(0)  # twice does no harm


@given(st.lists(st.tuples(st.sampled_from(["take", "drop", "pin", "unpin"]), st.integers(0, 3))))
def test_what_is_held_or_pinned_is_not_taken(steps: list[tuple[str, int]]) -> None:
    ring = buffers(3)
    held: list[tuple[int, int, list[np.ndarray]]] = []
    pins: set[int] = set()
    for number, (what, which) in enumerate(steps):
        if what == "take":
            block = ring.take()
            out = {each for each, _, _ in held} | pins
            assert block == min({0, 1, 2} - out, default=ring.spare)
            ring.peek(block)[0][:] = number
            held.append((block, number, ring.row(block)))
        elif what == "drop" and held:
            del held[which % len(held)]
        elif what == "pin":
            pins.add(which)
            ring.pins.add(which)
        elif what == "unpin":
            pins.discard(which)
            ring.pins.discard(which)
        assert all((arrays[0] == said).all() for _, said, arrays in held)


def test_a_rollout_is_free_when_nothing_of_it_is_held() -> None:
    memory = rings(Arena(shared=False))
    ring = memory.rings.open(5)
    memory.standing.target = ring
    for hold in (
        lambda: ring.whole(3).rewards,
        lambda: ring.whole(5).observations[0],
        lambda: ring.row(ring.first + 4)[0],
        lambda: memory.standing.row(ring.first)[0][1:],
    ):
        assert ring.free
        kept = hold()
        assert not ring.free
        del kept
    ring.pins.add(ring.first)
    assert not ring.free


def test_a_rollout_is_its_blocks_one_after_the_other() -> None:
    ring = rings(Arena(shared=False)).rings.open(3)
    whole = ring.whole(3)
    for t in range(3):
        observations, rewards, *flags = ring.peek(ring.first + t)
        observations[:], rewards[:] = t, 10 + t
        for i, flag in enumerate(flags):
            flag[i] = True
    assert whole.observations[0] is not None
    assert whole.observations[0][:, 0, 0].tolist() == [0, 0, 1, 2]
    assert whole.rewards[:, 3].tolist() == [10, 11, 12]
    assert whole.terminated.tolist() == [[True, False, False, False]] * 3
    assert whole.truncated.tolist() == [[False, True, False, False]] * 3


@pytest.fixture
def both() -> Any:
    """A caller's memory, and what a worker process makes of it."""
    ours = Arena()
    memory = rings(ours, finals=True)
    theirs = Arena(fd=os.dup(ours.fd))
    theirs.join(ours.segments[:1])
    yield memory, Rings(theirs, memory.fields, memory.observations, memory.actions)
    ours.forget()
    theirs.forget()


def test_a_worker_finds_a_ring_by_the_number_of_a_block(both: tuple[RowMemory, Rings]) -> None:
    memory, theirs = both
    rows = Rows(theirs, 1, 3)
    ring = memory.rings.open(4)
    for block in (0, 2, ring.first, ring.first + 3):
        found = rows.block(block)
        found.writes[1](np.full(N, block))
        found.write_finals[0](np.full(N, 7 + block))
        found.rewards[0] = 5.0
        found.settle()
        holder = memory.rings.of(block)
        assert holder.peek(block)[0][:, 0].tolist() == [0, 0, block, 0]
        assert holder.peek(block)[1].tolist() == [0, 5, 0, 0]
        assert holder.finals[0] is not None
        assert holder.finals[0][:, 0].tolist() == [0, 7 + block, 0, 0]
    with pytest.raises(IndexError, match=f"no ring has block {ring.first + 4}"):
        rows.block(ring.first + 4)


def test_a_worker_forgets_rings_that_are_no_more(both: tuple[RowMemory, Rings]) -> None:
    memory, theirs = both
    rows = Rows(theirs, 0, 4)
    first = memory.rings.open(2)
    rows.block(first.first)
    memory.rings.drop(first)
    second = memory.rings.open(3)
    rows.block(second.first)
    assert [ring.first for ring in theirs.all] == [0, second.first]
    assert {*rows._blocks} == {0, second.first}
    with pytest.raises(IndexError):
        memory.rings.of(first.first)


def test_rings_without_number_are_found_when_they_are_taken(both: tuple[RowMemory, Rings]) -> None:
    memory, theirs = both
    many = [memory.rings.open(1) for _ in range(TABLE + 3)]
    assert theirs.of(0).first == 0
    with pytest.raises(IndexError):
        theirs.of(many[0].first)
    for ring in (many[0], many[-1], many[0]):
        memory.rings.announce(ring)
        assert theirs.of(ring.first).first == ring.first
