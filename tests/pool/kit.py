"""What the tests of the pool have in common."""

import itertools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from treadle.errors import WorkerError
from treadle.lockstep.batch import Batch
from treadle.lockstep.lockstep import Lockstep
from treadle.pool.pool import Pool as AnyPool
from treadle.program.base import OnEnd
from zoo.faults import Sound
from zoo.programs import gym_env

LOCAL: list[dict[str, Any]] = [{"backend": "serial"}, {"backend": "thread", "workers": 2}]
PROCESS: list[dict[str, Any]] = [
    {"backend": "process", "workers": 2},
    {"backend": "process", "workers": 2, "start_method": "spawn"},
]


class Gated(Sound):
    """Its step `at` goes on once the file `gate` is there."""

    gate = ""

    def at_step(self, sound: Any) -> None:
        until(lambda: os.path.exists(self.gate), 60.0)


class Pool(AnyPool):
    """A pool whose slots step together."""

    @cached_property
    def lockstep(self) -> Lockstep:
        return Lockstep(self)

    @property
    def step(self) -> Callable[[Any], Batch]:
        return self.lockstep.step

    def reset(self, *args: Any, **kwargs: Any) -> Batch:
        return self.lockstep.reset(*args, **kwargs)

    def step_without(self, late: int, limit: float) -> Batch:
        """A step that worker `late` alone can be too slow for: it is waited for once all others have answered."""
        limit_next(self.workers[late], limit)
        self.lockstep.post_step(ACTIONS)
        until(lambda: all(answered(worker) for worker in self.workers if worker.index != late))
        return self.lockstep.wait()


def show(setup: Any) -> str:
    """A test id."""
    return "-".join(str(value) for value in setup.values()) if isinstance(setup, dict) else str(setup)


def with_fault(fault: Callable[..., Any], n: int = 4, slot: int = 1, **kwargs: Any) -> list[Any]:
    """n slots, one of them faulty; moving on within the step."""
    good = Sound
    if fault.__name__ == "MissingKey":  # all slots share one layout
        good = fault
        kwargs, others = kwargs, {"at": -1}
    else:
        others = {}
    return [
        gym_env(fault, kwargs=kwargs, on_end=OnEnd.SAME_STEP)
        if i == slot
        else gym_env(good, kwargs=others, on_end=OnEnd.SAME_STEP)
        for i in range(n)
    ]


def until(condition: Callable[[], Any], seconds: float = 30.0, what: str = "") -> Any:
    """Wait until `condition()` is true; fail when it is not within `seconds`."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {what or condition}"
        time.sleep(0.005)
    return found


def limit_next(worker: Any, seconds: float) -> None:
    """Give the worker's next request alone a limit: so a short one cuts no healthy worker of a busy machine."""
    owe = worker.owe

    def once(request: Any, slots: Any, _: Any) -> None:
        del worker.owe
        owe(request, slots, seconds)

    worker.owe = once


def answered(worker: Any) -> bool:
    """Return True if the worker has answered all requests, whether or not the caller has looked."""
    return bool(worker.line.told[0] == worker.line.posted)


def start_ends_with(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time that workers have to start is over once `file` is there, however long they take to make it."""
    calls = itertools.count()  # the first one is for the deadline

    def clock() -> float:
        return time.monotonic() + 3600 * (next(calls) > 0 and file.exists())

    monkeypatch.setattr("treadle.pool.group.monotonic", clock)


ROOM = 4.0  # seconds that a busy machine may lose anywhere; what is waited for in vain takes longer


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Assert that the block does not wait for anything that takes longer: it has so long, and `ROOM` besides."""
    start = time.monotonic()
    yield
    took = time.monotonic() - start
    assert took <= seconds + ROOM, f"took {took:.2f} s, at most {seconds} s (and {ROOM} s) were allowed"


def sound_rows(slots: list[int], steps: list[int], seed: int = 7, episode: int = 0) -> np.ndarray:
    """What `Sound` slots show after so many steps of their first episode with actions that equal their slot."""
    return np.array([[seed + s, episode, t, s if t else 0] for s, t in zip(slots, steps)], np.float32)


def warm(pool: Pool, steps: int) -> Any:
    """Reset with seeds 7, 8, ... and step so many times; slot i's action is i (mod 4)."""
    batch = pool.reset(seeds=range(7, 7 + pool.n))
    for _ in range(steps):
        batch = pool.step([i % 4 for i in range(pool.n)])
    return batch


EVERYWHERE = [*LOCAL, PROCESS[0], {"backend": "process", "workers": 2, "inline": 2}]
ACTIONS = [0, 1, 2, 3]
FAULTY = 1


def check_where(error: WorkerError, phase: str, *, process: bool, step: int | None = 3) -> None:
    """The error names the faulty slot, worker 0, its pid, the phase and the step, in fields and in words."""
    where = error.where
    assert (where.slot, where.phase) == (FAULTY, phase)
    assert f"slot {FAULTY} (" in str(error)
    if process:
        assert where.worker == 0
        assert where.pid not in (None, os.getpid())
        assert f"worker 0, pid {where.pid}" in str(error)
    if phase == "step":
        assert (where.step, where.seed, where.episode, where.last_action) == (step, 8, 0, 1)
        assert f"step {step} of episode 0" in str(error)


def is_remote(setup: dict[str, Any]) -> bool:
    """Is the faulty slot in a process of its own?"""
    return setup["backend"] == "process" and not setup.get("inline")
