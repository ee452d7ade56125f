"""The stderr of workers, and their stdout on request.

Lines are passed on with a prefix that names the slots, and the last ones kept for errors.

One thread of the caller reads all of a pool's pipes, so that a worker can never block on a full one.

Packages of environments warn in each worker, some for each environment. The same warning is passed on once a process,
whichever worker it comes from. A warning is a line of Python's `warnings`, with the line of source after it, or
MuJoCo's `WARNING: ...` and an empty line. Empty lines are not passed on. All others are, however often they come.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import selectors
import sys
import threading
from collections import deque
from itertools import compress, zip_longest

KEPT = 50  # lines a worker
AT_ONCE = 16  # reads of one pipe, more than one pipe holds
THREAD_NAME = "treadle-stderr"
MOST_WARNINGS = 1000  # warnings that are remembered
MOMENT = 0.02  # seconds in which an empty line may follow
_WARNING = re.compile(r".+:\d+: \w*Warning: ")
_CODE = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")  # colours, cursors, titles

_warned: set[str] = set()  # warnings that this process has passed on


def plain(text: str) -> str:
    """Return the text without the codes that only a terminal understands."""
    return _CODE.sub("", text) if "\x1b" in text else text


class StderrReader:
    """Reads the stderr of a pool's workers in a thread.

    `shown`: True: lines are passed on; False: they are only kept.
    """

    def __init__(self, *, shown: bool = True) -> None:
        self._shown = shown
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe()
        self._selector.register(self._wake_read, selectors.EVENT_READ, None)
        self._lock = threading.Lock()
        self._closing = self._closed = False
        self._thread: threading.Thread | None = None

    def add(self, fd: int, prefix: str) -> Tail:
        """Read `fd` (taken over) until its end; every line goes to this process's stderr behind `prefix`."""
        tail = Tail(fd, prefix, shown=self._shown)
        os.set_blocking(fd, False)
        with self._lock:
            self._selector.register(fd, selectors.EVENT_READ, tail)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)
                self._thread.start()
        os.write(self._wake_write, b"!")
        return tail

    def finish(self, tail: Tail) -> tuple[str, ...]:
        """Read the rest of an ended worker's output, and close the pipe, which a grandchild may hold open for ever."""
        with self._lock:
            if tail.fd >= 0:
                self._drain(tail)
                self._drop(tail)
        return tail.lines()

    def close(self) -> None:
        """Stop the thread and close everything. Idempotent; can be called again after an interrupt."""
        with self._lock:
            if self._closed:
                return
            self._closing = True
            os.write(self._wake_write, b"!")
        if self._thread is not None and self._thread.ident != threading.get_ident():
            with contextlib.suppress(RuntimeError):  # an interrupt came before it began: it will find nothing to do
                self._thread.join()
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for key in list(self._selector.get_map().values()):
                if isinstance(key.data, Tail):
                    self._drain(key.data)
                    self._drop(key.data)
            self._selector.close()
            os.close(self._wake_read)
            os.close(self._wake_write)

    def _run(self) -> None:
        while not self._closing:
            for key, _ in self._selector.select():
                with self._lock:
                    if key.data is None:
                        os.read(self._wake_read, 4096)
                    elif key.data.fd >= 0 and not self._drain(key.data):
                        self._drop(key.data)

    def _drain(self, tail: Tail) -> bool:
        """Read at most `AT_ONCE` times, as the other pipes fill up meanwhile. Returns False at the end of the pipe."""
        for _ in range(AT_ONCE):
            try:
                data = os.read(tail.fd, 65536)
            except BlockingIOError:
                if tail.held and select.select([tail.fd], [], [], MOMENT)[0]:
                    continue
                if tail.held:
                    tail.end()
                return True
            if not data:
                return False
            tail.feed(data)
        return True

    def _drop(self, tail: Tail) -> None:
        self._selector.unregister(tail.fd)
        os.close(tail.fd)
        tail.fd = -1
        tail.end()


class Tail:
    """One worker's stderr: complete lines are passed on, the last ones kept. `count`: lines that are not blank."""

    def __init__(self, fd: int, prefix: str, *, shown: bool = True) -> None:
        self.fd, self.prefix, self._shown, self.count = fd, prefix, shown, 0
        self._kept: deque[str] = deque(maxlen=KEPT)
        self._open = b""
        self._source = False  # True if the next line may belong to a warning that was not passed on

    @property
    def held(self) -> bool:
        """True while a line is kept back until it is known whether an empty one follows."""
        return self._open.endswith(b"\n")

    def feed(self, data: bytes) -> None:
        *lines, self._open = (self._open + data).split(b"\n")
        if lines and not self._open and lines[-1].startswith(b"WARNING: "):
            self._open = lines.pop() + b"\n"
        if len(self._open) > 65536:  # a line without an end is passed on in pieces
            lines.append(self._open)
            self._open = b""
        self._emit(lines)

    def end(self) -> None:
        if self._open:
            self._emit([self._open.removesuffix(b"\n")])
            self._open = b""

    def lines(self) -> tuple[str, ...]:
        return tuple(self._kept)

    def _emit(self, lines: list[bytes]) -> None:
        texts = [line.decode("utf-8", "replace") for line in lines]
        bare = [plain(text) for text in texts]  # errors go to files and pages
        told = [text for text in bare if text.strip()]
        self._kept.extend(told)
        self.count += len(told)
        if self._shown and sys.stderr is not None:
            try:
                as_it_is = getattr(sys.stderr, "isatty", bool)()
                news = [self._is_news(*pair) for pair in zip_longest(bare, bare[1:])]
                if any(news):
                    shown = compress(texts if as_it_is else bare, news)
                    sys.stderr.write("".join(f"{self.prefix} {text}\n" for text in shown))
                    sys.stderr.flush()
            except Exception:  # noqa: BLE001 - it is closed, or a foreign object: workers must not wait for it
                return

    def _is_news(self, line: str, following: str | None) -> bool:
        """Return True for a line that is not empty, not a repeated warning, and not the source line after one.

        `following`: the line after it, if that is there already.
        """
        source, self._source = self._source and line.startswith("  "), False
        of_c = line.startswith("WARNING: ") and following == ""
        of_python = "Warning: " in line and _WARNING.match(line) is not None
        if of_c or of_python:
            if line in _warned:
                self._source = of_python
                return False
            if len(_warned) >= MOST_WARNINGS:
                _warned.clear()
            _warned.add(line)
        return bool(line.strip()) and not source
