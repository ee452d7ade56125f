"""Arena, buffers and spaces of slots: memory that is shared, handed out and taken back."""

import gc
import os
import pickle
import tempfile
from typing import Any

import numpy as np
import pytest

from conftest import own_shm
from treadle.errors import ArenaError
from treadle.memory import arena as arenas
from treadle.memory.arena import ALIGN, PAGE, Arena
from treadle.memory.ring import SMALL, BatchBuffers

N = SMALL // 8 + 1


def buffers(count: int) -> tuple[BatchBuffers, Arena]:
    """`count` blocks and the spare, each int64[N], which is large enough to be leased, and bool[4], which is not."""
    arena = Arena(shared=False)
    plan = arena.plan()
    fields = [[plan.add("i8", (N,)), plan.add("?", (4,))] for _ in range(count + 1)]
    arena.grow(plan)
    return BatchBuffers(arena, fields), arena


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


def test_nothing_has_a_name(arena: Arena) -> None:
    before = own_shm(), set(os.listdir(tempfile.gettempdir()))
    plan = arena.plan()
    plan.add("u1", (PAGE,))
    arena.grow(plan)
    assert own_shm() <= before[0]
    assert not {name for name in set(os.listdir(tempfile.gettempdir())) - before[1] if name.startswith("treadle-")}


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
    monkeypatch.setattr(arenas, "_read", lambda path: files.get(path, ""))
    assert arenas.memory_available() == room


# -- buffers ----------------------------------------------------------------------------------------------------------


def test_a_block_is_free_when_nobody_holds_it() -> None:
    ring, _ = buffers(2)
    first = ring.take()
    arrays = ring.hand_out(first)
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
    ring, _ = buffers(1)
    arrays = ring.hand_out(ring.take())
    held = HOLDS[kind](arrays[0])
    del arrays
    assert ring.take() == 1, "the spare: block 0 is still looked at"
    del held
    assert ring.take() == 0


def test_a_copy_does_not_hold_a_block() -> None:
    ring, _ = buffers(1)
    kept = ring.hand_out(ring.take())[0].copy()
    assert ring.take() == 0
    assert kept.tolist() == [0] * N


def test_small_arrays_are_copies_and_hold_nothing() -> None:
    ring, _ = buffers(1)
    ring.peek(0)[1][:] = True
    small = ring.hand_out(ring.take())[1]
    assert ring.take() == 0
    ring.peek(0)[1][:] = False
    assert small.all()


def test_when_all_are_held_copies_are_made() -> None:
    ring, _ = buffers(2)
    held = []
    for i in range(10):
        block = ring.take()
        ring.peek(block)[0][:] = i
        held.append(ring.hand_out(block))
    assert [arrays[0].tolist() for arrays in held] == [[i] * N for i in range(10)]
    assert ring.copies == 8
    del held[0]
    assert ring.take() == 0


def test_a_pinned_block_is_out_of_service() -> None:
    ring, _ = buffers(2)
    ring.pin(0)
    assert ring.take() == 1
    ring.pin(1)
    assert ring.take() == 2
    ring.unpin(0)
    assert ring.take() == 0
    ring.unpin(0)  # twice does no harm
