"""`channel.py`'s road within one process (threads): objects pass as they are."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class LocalPacked:
    """A message that needs no pickling, and so never fits the box."""

    body: Any
    size: float = float("inf")

    def discard(self) -> None:
        """Nothing is held."""


class LocalChannel:
    """One end of a road within a process: messages pass by reference."""

    in_process = True

    def __init__(self, inbox: deque[Any], outbox: deque[Any]) -> None:
        self._inbox, self._outbox = inbox, outbox

    @classmethod
    def pair(cls) -> tuple[LocalChannel, LocalChannel]:
        a: deque[Any] = deque()
        b: deque[Any] = deque()
        return cls(a, b), cls(b, a)

    @staticmethod
    def pack(message: Any) -> LocalPacked:
        return LocalPacked(message)

    def send(self, message: Any, fds: tuple[int, ...] = (), *, block: bool = False) -> None:
        self._outbox.append(message)

    def send_packed(self, packed: LocalPacked, fds: tuple[int, ...] = (), *, block: bool = False) -> None:
        self._outbox.append(packed.body)

    def recv(self) -> tuple[Any, list[int]] | None:
        return (self._inbox.popleft(), []) if self._inbox else None

    def recv_wait(self, timeout: float | None = None) -> tuple[Any, list[int]] | None:
        return self.recv()

    def settle(self) -> None:
        """Nothing is borrowed."""

    def pump(self) -> bool:
        return True

    def close(self) -> None:
        self._inbox.clear()
