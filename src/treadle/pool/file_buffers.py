"""Buffers between processes: memory files that a worker fills, sends by name, and fills again once the caller holds
nothing of them, by the rule of `buffers.py`.

First touches of new memory cost several times what writing to memory costs that is there (on a virtual machine that
hands free pages back to its host, twenty times). So what a worker records large arrays in is a memory file that both
sides keep mapped: a message only says where in it an array lies, and nobody copies. Whenever a message lends of a file,
that has a number; when the last array over it is gone, the caller writes the number to the file's word in the arena,
and the worker may fill the file again. (Samples of raw Pong come 1.3 times as fast as without; 2 workers, 2 cores,
2026-11-22.)

A file has a *place*, which is the index of its word. A worker may forget a file that is out for too long and give its
place to a new one: the caller learns of that by the descriptor that comes with the new file's first array, and numbers
are never used twice, so what it then says of the old file means nothing. Memory of forgotten files belongs to those
who hold arrays in it.

The caller keeps no descriptor of them: one comes along whenever more of a file is lent than it has mapped, which is
twice what it was lent then. So what it can hold is limited by memory, and by the number of mappings that a process may
have: beyond that it is given copies.

A fork of the caller shares its mappings but not its references: what is out at a fork stays out for good.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import weakref
from typing import Any

import numpy as np

from treadle.pool.arena import anonymous_file, map_file
from treadle.pool.buffers import when_let_go
from treadle.pool.fences import fence

PLACES = 64  # files of one worker
LEAST = 64 * 1024  # bytes of an array from which on it is worth it
MOST_MAPPED = 1 << 14  # mappings that may be held; Linux allows a process 65530 of all kinds
MOST_NEW = 8  # new files in one message: it carries few descriptors

# an array in a message: place, number, start, stop, does a descriptor come along (new file, or longer)?
Spot = tuple[int, int, int, int, bool]


class FileBuffer:
    """A worker's file. `number`: with which it was lent last, 0: never. `known`: bytes that the caller has mapped."""

    def __init__(self, place: int, nbytes: int) -> None:
        """A sparse file: what is not written takes no memory. Raises OSError where so much cannot be mapped."""
        self.place, self.number, self.known = place, 0, 0
        self.fd = anonymous_file()
        try:
            os.ftruncate(self.fd, nbytes)
            self.memory = map_file(self.fd, nbytes)
        except BaseException:
            self.close()
            raise
        self.start = _address(self.memory)
        self.stop = self.start + nbytes

    def close(self) -> None:
        """Nothing more is lent of it; its memory stays."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        with contextlib.suppress(OSError):  # an environment has closed it: told where it is missed
            self.close()


class Lender:
    """The worker's side. `words`: one a place, which the caller writes."""

    def __init__(self, words: Any) -> None:
        self._words = words
        self._files: weakref.WeakValueDictionary[int, FileBuffer] = weakref.WeakValueDictionary()
        self._number = os.getpid() << 32

    def file(self, nbytes: int) -> FileBuffer | None:
        """A new file of so many bytes at most; None: all places are taken. Raises OSError.

        Who is given it holds it; when he lets it go, its place is free, as if it were forgotten.
        """
        place = next((place for place in range(len(self._words)) if place not in self._files), None)
        if place is None:
            return None
        file = self._files[place] = FileBuffer(place, nbytes)
        return file

    def forget(self, file: FileBuffer) -> None:
        """Its place is free; the memory lives as long as anybody maps it."""
        if self._files.get(file.place) is file:
            del self._files[file.place]
        file.close()

    def out(self, file: FileBuffer) -> bool:
        """Does the caller hold something of it?"""
        return file.number != 0 and self._words[file.place] != file.number

    def lend(self, raws: list[memoryview]) -> tuple[list[Spot | None], list[int]]:
        """Where each buffer lies in files that are here, None where it does not; and duplicates of the descriptors that
        have to come along, in the order of the files' first spots, to be sent and closed. From now on these files are
        out. Raises OSError where no descriptor is left, with nothing lent."""
        found = [self._find(raw) for raw in raws]
        needed: dict[FileBuffer, int] = {}
        for raw, each in zip(raws, found, strict=True):
            if each is not None:
                file, start = each
                needed[file] = max(start + raw.nbytes, needed.get(file, 0))
        fresh = [file for file, stop in needed.items() if stop > file.known]
        for file in fresh[MOST_NEW:]:  # what lies there is copied
            del needed[file]
        del fresh[MOST_NEW:]
        fds = _duplicates([file.fd for file in fresh])
        self._number += 1
        spots: list[Spot | None] = []
        for raw, each in zip(raws, found, strict=True):
            if each is None or each[0] not in needed:
                spots.append(None)
                continue
            file, start = each
            spots.append((file.place, self._number, start, start + raw.nbytes, file in fresh))
        for file, stop in needed.items():
            file.number = self._number
            if file in fresh:
                file.known = mapped_for(stop, file.stop - file.start)
        return spots, fds

    def _find(self, raw: memoryview) -> tuple[FileBuffer, int] | None:
        if raw.nbytes < LEAST:
            return None
        address = _address(raw)
        for file in list(self._files.values()):
            if file.start <= address < file.stop and not self.out(file):
                return file, address - file.start
        return None


class Borrower:
    """The caller's side of one worker's files. `words`: one a place. `fenced`: see `fences.py`."""

    def __init__(self, words: Any, fenced: bool = False) -> None:
        self._words, self._fenced = words, fenced
        self._files: dict[int, mmap.mmap] = {}  # place -> as much of its file as was needed so far
        self.pending: list[tuple[np.ndarray, mmap.mmap, int, int]] = []
        self._latest = self._pinned = 0  # what was lent up to this number is never given back
        self._pid = os.getpid()
        _borrowers.add(self)

    def open(self, spots: list[Spot | None], fds: list[int]) -> list[memoryview | None]:
        """The buffers of a message; `fds`: of new files, in order. Call `settle` once the message cannot be read
        again: until then it does not count as given back, whatever becomes of what was read."""
        self.pending = []
        fresh = iter(fds)
        needed: dict[int, int] = {}
        for place, number, _, stop, _ in filter(None, spots):
            needed[place] = max(stop, needed.get(place, 0))
            self._latest = number
        for place in dict.fromkeys(spot[0] for spot in spots if spot is not None and spot[4]):
            fd = next(fresh)
            self._files.pop(place, None)  # should the next line raise, no other file is taken for this one
            self._files[place] = counted(map_file(fd, mapped_for(needed[place], os.fstat(fd).st_size)))
        holders: dict[int, memoryview] = {}
        for place in needed:
            memory = self._files[place]
            # a fresh array over the file: whatever is made from it holds it, and not only the mapping
            holder = np.ndarray((len(memory),), np.uint8, memory)
            self.pending.append((holder, memory, place, self._latest))
            holders[place] = memoryview(holder)  # type: ignore[arg-type]
        found = [None if spot is None else holders[spot[0]][spot[2] : spot[3]] for spot in spots]
        if crowded():
            return [None if each is None else memoryview(bytearray(each)) for each in found]
        return found

    def settle(self) -> None:
        """What was opened last is given back when it is let go."""
        pending, self.pending = self.pending, []
        for holder, memory, place, number in pending:
            when_let_go(holder, self._give_back, memory, place, number)

    def _give_back(self, memory: mmap.mmap, place: int, number: int) -> None:
        words = self._words
        known = words is not None and self._files.get(place) is memory
        if known and number > self._pinned and self._pid == os.getpid():
            if self._fenced:
                fence()  # what was read was read before
            words[place] = number

    def pin(self) -> None:
        """What is out now stays out."""
        self._pinned = self._latest

    def close(self) -> None:
        """Nothing is given back any more; arrays that are held stay as they are."""
        self._words, self.pending, self._files = None, [], {}


_borrowers: weakref.WeakSet[Borrower] = weakref.WeakSet()


def _pin_all() -> None:
    for borrower in list(_borrowers):
        borrower.pin()


os.register_at_fork(before=_pin_all)


def _duplicates(fds: list[int]) -> list[int]:
    made: list[int] = []
    try:
        for fd in fds:
            made.append(os.dup(fd))
    except OSError:
        for fd in made:
            os.close(fd)
        raise
    return made


def mapped_for(stop: int, size: int) -> int:
    """Bytes of a file of `size` bytes that the caller maps when it needs `stop` of them. Both sides reckon so."""
    return min(-(-2 * stop // mmap.PAGESIZE) * mmap.PAGESIZE, size)


def counted(memory: mmap.mmap) -> mmap.mmap:
    """A mapping that `crowded` is to count for as long as it lives."""
    _mappings.add(memory)
    return memory


def crowded() -> bool:
    """Has this process so many mappings that there had better be no more?"""
    return len(_mappings) >= MOST_MAPPED


_mappings: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()


def _address(memory: Any) -> int:
    return np.frombuffer(memory, np.uint8).__array_interface__["data"][0]
