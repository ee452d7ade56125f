"""What workers in processes and in threads have in common: the caller's end of a line."""

from __future__ import annotations

from typing import Any

from treadle.pool.line import Chosen, Line
from treadle.pool.messages import CLOSING, Raised, Reply


class Lined:
    """A worker that is asked over a line; None until it has its ground, and after its end."""

    line: Line | None
    channel: Any

    def take(self) -> Reply | None:
        """The next answer, None when there is none."""
        raise NotImplementedError

    def pack(self, payload: Any) -> Any:
        """A payload as `send` takes it. Raises what pickling raises."""
        return payload if payload is None or type(payload) is Chosen else self.channel.pack(payload)

    def idle(self) -> bool:
        """Has every request been answered, and every answer been taken?"""
        return self.line is not None and self.line.idle()

    def looks(self) -> int:
        """See `Line.looks`; begins anew with a worker."""
        return self.line.looks() if self.line is not None else 0

    def stop(self, id: int) -> None:
        """Ask streams of requests up to `id` to end."""
        if self.line is not None:
            self.line.stop(id)

    def drain(self) -> None:
        """Drop an answer: nobody wants it, and its worker may wait to send it."""
        if self.line is not None:
            self.take()

    def last_words(self) -> dict[int, Raised]:
        """What its slots raised when they were closed."""
        raised: dict[int, Raised] = {}
        while self.line is not None and (reply := self.take()) is not None:
            if reply.id == CLOSING and reply.extras is not None:
                raised.update(reply.extras.raised)
        return raised


__all__ = ["Lined"]
