"""How to add a face: a schedule of one's own over the book of calls, in sixty lines, and what it has for nothing."""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from treadle.errors import TreadleError, WorkerDied
from treadle.pool import failure
from treadle.pool.events import Done, Event, Lost
from treadle.pool.pool import Pool
from treadle.program.base import Program
from treadle.wire.messages import Op
from treadle.worker.life import RestartPolicy
from treadle.worker.worker import Worker

AHEAD = 2  # items that a worker has at a time, so that it never waits for us


class Applies(Program):
    """What runs in a slot: a function of the user's."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function

    def apply(self, item: Any) -> Any:
        return self.function(item)


def mapped(function: Callable[[Any], Any], items: Sequence[Any], **options: Any) -> Iterator[Any]:
    """`map` over processes: results in the order of the items, whoever made them; what a dead worker had is made again
    where `on_failure` says so. `options`: of a pool."""
    todo = deque(range(len(items)))
    results: dict[int, Any] = {}
    with Pool([lambda: Applies(function)] * options.pop("workers", 2), rows=False, **options) as pool:

        def hear(event: Event) -> None:
            if isinstance(event, Lost):  # the only decision that is a face's own: what a lost tag means
                if event.verdict is RestartPolicy.RAISE:
                    raise event.error
                todo.extendleft(event.tags)
            elif isinstance(event, Done):
                extras, worker = event.reply.extras, event.worker
                assert extras is not None
                for slot, raised in extras.raised.items():
                    raise failure.task_error(raised, worker.at(slot))
                results.update((event.tag, result) for result in extras.infos.values())

        def deal(worker: Worker) -> None:
            while todo and len(worker.owed) < AHEAD and worker.state.value in ("idle", "busy"):
                item = todo.popleft()
                call = {slot: ("apply", (items[item],), {}) for slot in worker.slots}
                pool.calls.submit(worker, Op.CALL, call, worker.slots, item)

        following = 0
        while following < len(items):
            for worker in pool.workers:
                deal(worker)
            pool.calls.poll(None, hear)
            while following in results:
                yield results.pop(following)
                following += 1


# --- and what it has for nothing ----------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["process", "thread", "serial"])
def test_results_come_in_order_from_every_backend(backend: str) -> None:
    assert list(mapped(lambda x: x * x, range(20), backend=backend)) == [x * x for x in range(20)]


def test_what_the_function_raises_names_its_slot() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        list(mapped(lambda x: 1 // x, [2, 1, 0]))
    assert isinstance(caught.value, TreadleError)


def dies_once(path: Path) -> Callable[[int], int]:
    def function(x: int) -> int:
        if x == 7 and not path.exists():
            path.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return x + 1

    return function


def test_a_death_is_told_or_made_good(tmp_path: Path) -> None:
    with pytest.raises(WorkerDied):
        list(mapped(dies_once(tmp_path / "first"), range(12)))
    for policy in ("restart", "drop"):
        assert list(mapped(dies_once(tmp_path / policy), range(12), on_failure=policy)) == list(range(1, 13))


def test_a_deadline_is_kept(tmp_path: Path) -> None:
    import threading

    def hangs_once(x: int) -> int:
        if x == 3 and not (tmp_path / "hung").exists():
            (tmp_path / "hung").touch()
            threading.Event().wait()
        return x

    found = mapped(hangs_once, range(6), on_failure="restart", step_timeout=0.5)
    assert list(found) == list(range(6))
