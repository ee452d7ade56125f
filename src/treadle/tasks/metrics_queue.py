"""Where metrics of tasks go that nobody has given a queue for."""

from __future__ import annotations

import queue
from typing import Any

LATEST = 10_000  # metrics that wait for a reader who may never come


class MetricsQueue(queue.Queue[Any]):
    """A queue that keeps the latest `LATEST` metrics: what is older makes room."""

    def __init__(self) -> None:
        super().__init__(LATEST)

    def put_nowait(self, item: Any) -> None:
        """Put it in; never raises `queue.Full`."""
        while True:
            try:
                return super().put_nowait(item)
            except queue.Full:
                try:
                    self.get_nowait()
                except queue.Empty:
                    continue  # a reader was quicker


__all__ = ["LATEST", "MetricsQueue"]
