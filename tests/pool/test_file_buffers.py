"""Memory files that are lent: arrays travel without a copy, and are never written while somebody holds them."""

from __future__ import annotations

import gc
import os
import pickle
import resource
import socket
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from treadle import collect
from treadle.pool import file_buffers
from treadle.pool.channel import Channel
from treadle.pool.file_buffers import LEAST, Borrower, Lender
from treadle.sample.buffer import MOST_COLUMNS, Columns
from treadle.spaces import Layout

ROW = (64, 64)
NBYTES = 1 << 24


class Ends:
    """A worker's end and the caller's, of one channel."""

    def __init__(self) -> None:
        a, b = socket.socketpair()
        self.words = memoryview(np.zeros(file_buffers.PLACES, np.int64))  # type: ignore[arg-type]
        self.worker, self.caller = Channel(a), Channel(b)
        self.worker.lender, self.caller.borrower = Lender(self.words), Borrower(self.words)

    def close(self) -> None:
        self.worker.close()
        self.caller.close()
        self.worker.lender = None  # pytest holds these ends for a while yet

    @property
    def lender(self) -> Lender:
        assert self.worker.lender is not None
        return self.worker.lender

    def sent(self, message: Any) -> Any:
        self.worker.send(message)
        received = self.caller.recv_wait(5.0)
        assert received is not None
        self.caller.settle()
        return received[0]

    def array(self, value: int, count: int = LEAST) -> tuple[Any, np.ndarray]:
        file = self.lender.file(NBYTES)
        assert file is not None
        array = np.ndarray((count,), np.uint8, file.memory)
        array[:] = value
        return file, array


@pytest.fixture
def ends() -> Iterator[Ends]:
    found = Ends()
    yield found
    found.close()


def test_what_lies_in_a_file_arrives_without_a_copy(ends: Ends) -> None:
    file, array = ends.array(7, 3 * LEAST)
    other = np.arange(LEAST)
    got = ends.sent({"a": array[:LEAST], "b": array[2 * LEAST :], "other": other, "small": array[:5]})
    assert (got["a"] == 7).all()
    assert (got["other"] == other).all()
    assert got["small"].tolist() == [7] * 5
    array[:] = 8  # against the rules; it shows whose memory it is
    assert (got["a"] == 8).all()
    assert (got["b"] == 8).all()
    assert got["small"].tolist() == [7] * 5
    assert ends.lender.out(file)


@pytest.mark.parametrize(
    "hold", [lambda a: a[3:5], lambda a: a.reshape(-1, 2).T, memoryview, lambda a: a.view(np.int8)]
)
def test_a_file_is_out_until_nobody_holds_anything_of_it(ends: Ends, hold: Any) -> None:
    file, array = ends.array(7)
    assert not ends.lender.out(file)
    held = hold(ends.sent([array])[0])
    gc.collect()
    assert ends.lender.out(file)
    del held
    assert not ends.lender.out(file)
    again = ends.sent([array])[0]
    assert (again == 7).all()
    assert ends.lender.out(file)


def test_what_is_out_already_is_copied(ends: Ends) -> None:
    _, array = ends.array(7)
    first = ends.sent(array)
    second = ends.sent(array)
    array[:] = 8
    assert (first == 8).all()
    assert (second == 7).all()


def test_a_place_may_be_given_to_a_new_file(ends: Ends) -> None:
    file, array = ends.array(7)
    held = ends.sent(array)
    ends.lender.forget(file)
    other, array = ends.array(9, 3 * LEAST)
    assert other.place == file.place
    got = ends.sent(array)
    del held
    assert ends.lender.out(other), "the old file's end says nothing of the new one"
    assert (got == 9).all()
    del got
    assert not ends.lender.out(other)
    files = [ends.lender.file(NBYTES) for _ in range(file_buffers.PLACES)]
    assert files.count(None) == 1, "when all places are taken, there is none"


def test_many_new_files_in_one_message(ends: Ends) -> None:
    pairs = [ends.array(value) for value in range(20)]
    got = ends.sent([array for _, array in pairs])
    assert [int(array[-1]) for array in got] == list(range(20))
    assert sum(ends.lender.out(file) for file, _ in pairs) == file_buffers.MOST_NEW


def test_nothing_is_given_back_before_a_message_is_taken(ends: Ends) -> None:
    file, array = ends.array(7)
    ends.worker.send([array])
    received = ends.caller.recv_wait(5.0)
    del received  # as when an interrupt comes before anybody has it
    assert ends.lender.out(file)


def test_what_is_out_at_a_fork_stays_out(ends: Ends) -> None:
    file, array = ends.array(7)
    held = ends.sent(array)
    child = os.fork()
    if child == 0:
        del held
        os._exit(0)
    os.waitpid(child, 0)
    assert ends.lender.out(file), "a fork's end is not the caller's"
    del held
    assert ends.lender.out(file), "the fork may have held it"
    other, array = ends.array(8)
    assert (ends.sent(array) == 8).all()
    assert not ends.lender.out(other)


def test_arrays_outlive_the_channel() -> None:
    ends = Ends()
    _, array = ends.array(7)
    held = ends.sent(array)
    ends.close()
    assert (held == 7).all()
    assert (pickle.loads(pickle.dumps(held)) == 7).all()


def test_columns_take_turns(ends: Ends) -> None:
    columns = Columns(Layout.of(gym.spaces.Box(0, 255, ROW, np.uint8)))
    columns.lend(ends.lender)

    def made(value: int) -> np.ndarray:
        column = columns.free()
        while len(column.writes) < 20:
            column.more()
        for row in range(20):
            column.writes[row](np.full(ROW, value, np.uint8))
        return ends.sent([column.tree(20, copy=False)])[0]

    first = columns.free()
    assert (made(1) == 1).all()
    assert columns.free() is first
    held = [made(value) for value in range(3 * MOST_COLUMNS)]
    assert [int(array.max()) for array in held] == [int(array.min()) for array in held] == list(range(len(held)))


class Frames(gym.Env[Any, Any]):
    """Episodes of six frames of 24 KB, all the same number: the episode's own."""

    observation_space = gym.spaces.Box(0, 255, (96, 256), np.uint8)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.number, self.left = int(self.np_random.integers(256)), 6
        return np.full((96, 256), self.number, np.uint8), {}

    def step(self, action: int) -> Any:
        self.left -= 1
        return np.full((96, 256), self.number, np.uint8), float(self.number), self.left == 0, False, {}


def test_episodes_that_are_kept_stay_as_they_are() -> None:
    kept = []
    for i, episode in enumerate(collect(Frames, episodes=40, workers=2)):
        if i % 3:
            kept.append(episode)
        assert (episode.observations == episode.rewards[0]).all()
    for episode in kept:
        assert (episode.observations == episode.rewards[0]).all()


def test_as_many_episodes_are_held_as_there_is_memory_for() -> None:
    """A mapping holds no descriptor."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(128, used + 60), limits[1]))
    try:
        episodes = list(collect(Fading, episodes=200, workers=1))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert [int(episode.observations[0, 0, 0]) for episode in episodes] == [episode.seed % 251 for episode in episodes]
    assert len(os.listdir("/proc/self/fd")) == used


def test_beyond_so_many_mappings_arrays_are_copied(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    _, array = ends.array(7)
    held = ends.sent(array)
    monkeypatch.setattr(file_buffers, "MOST_MAPPED", 1)
    _, array = ends.array(8)
    copied = ends.sent(array)
    array[:] = 9  # against the rules; it shows whose memory it is
    assert (held == 7).all()
    assert (copied == 8).all()


def test_a_file_of_which_more_is_lent_than_before_is_mapped_anew(ends: Ends) -> None:
    file = ends.lender.file(NBYTES)
    assert file is not None
    for count in (LEAST, 2 * LEAST, 2 * LEAST + 1, 8 * LEAST):
        array = np.ndarray((count,), np.uint8, file.memory)
        array[:] = value = count % 251
        got = ends.sent(array)
        assert (got == value).all()
        assert ends.lender.out(file)
        del got
        assert not ends.lender.out(file)


class Fading(gym.Env[np.ndarray, int]):
    """Short episodes of one shade, which the seed says."""

    observation_space = gym.spaces.Box(0, 255, (200, 200), np.uint8)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.left, self.shade = 3, 0 if seed is None else seed % 251
        return np.full((200, 200), self.shade, np.uint8), {}

    def step(self, action: int) -> Any:
        self.left -= 1
        return np.full((200, 200), self.shade, np.uint8), 0.0, self.left == 0, False, {}
