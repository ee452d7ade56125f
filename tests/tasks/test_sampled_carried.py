"""Objects of multiprocessing among a sampler's arguments: carried to its worker, and to the one that follows it."""

from __future__ import annotations

import multiprocessing
import os
import threading
from contextlib import closing
from typing import Any

import gymnasium as gym
import pytest
from small_tasks import DIE, CountSampler, CountTask, samplers, vector

from treadle.errors import UsageError
from treadle.vector.gymnasium import VectorEnv

CONTEXTS = [
    ("forkserver", "forkserver"),
    ("forkserver", "spawn"),
    ("spawn", "spawn"),
    ("spawn", "forkserver"),
    ("fork", "fork"),
    ("fork", "spawn"),
]


class Telling(CountSampler):
    """Tells whenever it is asked for a task, by all that multiprocessing has."""

    def __init__(self, queue: Any, count: Any, lock: Any, pipe: Any, event: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.queue, self.count, self.lock, self.pipe = queue, count, lock, pipe
        event.set()

    def next_task(self, force_advance_scene: bool = False) -> CountTask | None:
        with self.lock, self.count.get_lock():
            self.count.value += 1
        self.pipe.send((self.slot, os.getpid()))
        if self.slot == 0:  # the other is going to die, perhaps while its queue holds a lock
            self.queue.put(self.slot)
        return super().next_task(force_advance_scene)

    def close(self) -> None:
        if self.slot == 0:
            self.queue.put("closed")


@pytest.mark.parametrize(("method", "kind"), CONTEXTS)
def test_what_multiprocessing_has_is_carried(method: str, kind: str) -> None:
    context = multiprocessing.get_context(kind)
    queue: Any = context.Queue()
    count, lock, event = context.Value("i", 0), context.Lock(), context.Event()
    ends = [context.Pipe(duplex=False) for _ in range(2)]
    shared = {"queue": queue, "count": count, "lock": lock, "event": event}
    args = samplers(n=2, steps=1, **shared, pipe=[end for _, end in ends])
    before = {tuple(each) for each in args}
    with vector(f"{method}-2", args, make=Telling, on_failure="restart") as tasks:
        assert event.is_set()
        tasks.step([1, 1])
        assert count.value == 4
        pids = [{end.recv()[1] for _ in range(2)} for end, _ in ends]
        assert [len(each) for each in pids] == [1, 1]
        tasks.step([1, DIE])  # a fresh worker has the same objects
        assert count.value == 6
        slot, pid = ends[1][0].recv()
        assert slot == 1
        assert {pid} != pids[1]
    assert [queue.get(timeout=20) for _ in range(4)] == [0, 0, 0, "closed"], "what is put into it last comes too"
    assert {tuple(each) for each in args} == before
    queue.close()
    queue.join_thread()
    for end in sum(ends, ()):
        end.close()


def test_no_descriptor_stays(no_residue: Any) -> None:
    context = multiprocessing.get_context("forkserver")
    here, there = context.Pipe()
    with vector("forkserver-2", samplers(n=40, there=[there] * 40), make=Carrying) as tasks:
        assert tasks.call_at(0, "num_steps_taken") == 0
        before = len(os.listdir("/proc/self/fd"))
    assert len(os.listdir("/proc/self/fd")) < before
    here.close()
    there.close()


class Carrying(CountSampler):
    """Holds something, and does nothing with it."""

    def __init__(self, there: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.there = there


def test_more_descriptors_than_one_message_takes() -> None:
    context = multiprocessing.get_context("forkserver")
    ends = [context.Pipe(duplex=False) for _ in range(30)]
    with vector("forkserver-1", samplers(n=30, there=[end for _, end in ends]), make=Carrying) as tasks:
        for slot in range(30):
            tasks.command_at(slot, "sampler_attr", "slot")
    for slot, (here, there) in enumerate(ends):
        assert not here.poll(), slot
        here.close()
        there.close()


def test_what_cannot_be_carried_is_named() -> None:
    forked = multiprocessing.get_context("fork")
    for what in (forked.Queue(), forked.Value("i", 0), forked.Lock(), forked.Event()):
        with pytest.raises(UsageError, match=r"slot 1: the argument 'there' .* fork context .*get_context\('spawn'\)"):
            vector("spawn-2", samplers(n=2, there=[None, what]), make=Carrying)
    with pytest.raises(TypeError, match=r"slot 1: the argument 'there' of its sampler cannot be sent.*lock"):
        vector("forkserver-2", samplers(n=2, there=[None, threading.Lock()]), make=Carrying)


class Posts(gym.Wrapper[Any, Any, Any, Any]):
    """Another face's program: it posts what it is asked to."""

    def __init__(self, env: Any, queue: Any) -> None:
        super().__init__(env)
        self.queue = queue

    def post(self, what: Any) -> None:
        self.queue.put(what)


def test_other_programs_carry_too() -> None:
    queue: Any = multiprocessing.get_context("forkserver").Queue()
    with closing(VectorEnv([lambda: Posts(gym.make("CartPole-v1"), queue)] * 2, workers=2, inline=0)) as envs:
        envs.call("post", 7)
        assert [queue.get(timeout=20) for _ in range(2)] == [7, 7]
    lock = threading.Lock()
    with pytest.raises(UsageError, match=r"slot 0: what it is made of cannot be sent to a worker process: .*lock"):
        VectorEnv(lambda: Posts(gym.make("CartPole-v1"), lock), 2, workers=1, inline=0)
    queue.close()
    queue.join_thread()
