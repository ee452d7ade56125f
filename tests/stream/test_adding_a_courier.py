"""How to add a courier, a way of asking workers, with a source and a fate: sixty lines, and what it has for nothing."""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from treadle.errors import WorkerDied
from treadle.pool.calls import Calls
from treadle.pool.events import Done, Lost
from treadle.pool.pool import Pool
from treadle.program.base import Program
from treadle.progress import Standing
from treadle.stream.stream import Stream, Watch
from treadle.wire.messages import Op
from treadle.worker import life
from treadle.worker.life import RestartPolicy
from treadle.worker.worker import Worker

AHEAD = 2  # items that a worker has at a time, so that it never waits for the caller


class Applies(Program):
    """What runs in a slot: a function of the user's."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function

    def apply(self, item: Any) -> Any:
        return self.function(item)


class Items:
    """A source: each item once."""

    def __init__(self, items: Sequence[Any]) -> None:
        self.todo, self.unmade = deque(enumerate(items)), len(items)

    @property
    def done(self) -> bool:
        return not self.unmade


class ByCall:
    """A courier: an item is a call of `apply`; its tag is the item, so a lost call says what was lost."""

    def __init__(self, calls: Calls, source: Items) -> None:
        self.calls, self.source = calls, source

    def give(self, held: int) -> None:
        for worker in self.calls.workers:
            while self.source.todo and worker.state in life.ALIVE and len(worker.owed) < AHEAD:
                tag = self.source.todo.popleft()
                call = {slot: ("apply", (tag[1],), {}) for slot in worker.slots}
                self.calls.submit(worker, Op.CALL, call, worker.slots, tag)

    def answered(self, event: Done) -> Iterable[tuple[int, Any]]:
        assert event.reply.extras is not None
        for result in event.reply.extras.infos.values():
            self.source.unmade -= 1
            yield event.tag[0], result

    def ready(self, worker: Worker) -> None:
        """Nothing: `give` finds it."""

    def gone(self, event: Lost) -> None:
        """Nothing: the items are the fate's."""

    def patience(self) -> float | None:
        return None


class Again:
    """A fate: what a dead worker had is made again where `on_failure` says so."""

    over = False

    def __init__(self, source: Items) -> None:
        self.source = source

    def died(self, event: Lost) -> None:
        if event.verdict is RestartPolicy.RAISE:
            raise event.error
        self.source.todo.extendleft(event.tags)


def applied(function: Callable[[Any], Any], items: Sequence[Any], **options: Any) -> Iterator[tuple[int, Any]]:
    """(number of the item, result) in order of arrival. `options`: of a pool."""
    source = Items(items)
    with Pool([lambda: Applies(function)] * 2, rows=False, **options) as pool:
        watch = Watch(Standing(), None)
        watch.begin(pool)
        yield from Stream(pool.calls, source, ByCall(pool.calls, source), Again(source), watch)


# --- and what the loop does for it ---------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["process", "thread", "serial"])
def test_every_item_is_made_once_by_every_backend(backend: str) -> None:
    assert sorted(applied(lambda x: x * x, range(20), backend=backend)) == [(i, i * i) for i in range(20)]


def test_what_a_dead_worker_had_is_made_again_or_the_death_is_raised(tmp_path: Path) -> None:
    def dies_once(path: Path) -> Callable[[int], int]:
        def function(x: int) -> int:
            if x == 7 and not path.exists():
                path.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return x + 1

        return function

    for policy in ("restart", "drop"):
        found = sorted(applied(dies_once(tmp_path / policy), range(12), on_failure=policy))
        assert found == [(i, i + 1) for i in range(12)]
    with pytest.raises(WorkerDied):
        list(applied(dies_once(tmp_path / "raise"), range(12)))
