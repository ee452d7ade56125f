"""Coroutines that block the event loop, or go on when they are cancelled: whose affair that is, and what is left."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from kit import until, within

import treadle
from treadle import coroutines
from treadle.errors import TaskRaised, UsageError

LIMIT = 0.3  # seconds of a step
LONGER = 1.0  # of a step where others block the loop: they must not be late on a busy machine
N = 8
ZEROS = np.zeros(N, np.int64)


def block() -> None:
    """Block the loop until whoever does so is given up, and then for so long that all others would be late."""
    owner, end = asyncio.current_task().owner, time.monotonic() + 60  # type: ignore[union-attr]
    while not owner.over and time.monotonic() < end:
        time.sleep(0.01)
    time.sleep(LONGER)


class Walk(gym.Env):
    """Episodes of 2 to 13 steps, of some awaits each."""

    observation_space = gym.spaces.Box(-1e9, 1e9, (2,), np.float64)
    action_space = gym.spaces.Discrete(5)

    async def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:  # type: ignore[override]
        super().reset(seed=seed)
        self.t, self.end = 0, int(self.np_random.integers(2, 14))
        return np.array([0, self.end], np.float64), {}

    async def step(self, action: Any) -> Any:  # type: ignore[override]
        self.t += 1
        await self.bad()
        for _ in range(3):
            await asyncio.sleep(0.005)
        return np.array([self.t, self.end], np.float64), float(action), self.t >= self.end, False, {}

    async def bad(self) -> None:
        """What makes it one that others must not suffer from."""


class Blocks(Walk):
    """Blocks the loop in the second step of every episode of 7, but no more than `most` times."""

    def __init__(self, blocked: list[int], most: int = 10**6) -> None:
        self.blocked, self.most = blocked, most

    async def bad(self) -> None:
        if self.end == 7 and self.t == 2 and len(self.blocked) < self.most:
            self.blocked.append(self.np_random_seed)
            block()


def made(env: Any, **options: Any) -> dict[int, Any]:
    run = treadle.collect(env, episodes=30, seed=3, **options)
    return {each.index: (each.seed, each.observations.tobytes(), each.actions.tobytes()) for each in run}


@pytest.fixture(scope="module")
def plain() -> dict[int, Any]:
    return made(Walk, worker_options=treadle.WorkerOptions(backend="serial"))


def said(caplog: pytest.LogCaptureFixture, what: str) -> list[str]:
    return [text for text in caplog.messages if what in text]


def test_only_the_episode_that_blocks_the_loop_is_left_out(
    plain: dict[int, Any], caplog: pytest.LogCaptureFixture
) -> None:
    blocked: list[int] = []
    with caplog.at_level(logging.WARNING, "treadle"):
        limited: dict[str, Any] = {
            "worker_options": treadle.WorkerOptions(backend="thread"),
            "step_timeout": LONGER,
            "on_error": "skip",
            "max_skipped": 30,
        }
        found = made(partial(Blocks, blocked), workers=N, **limited)
    guilty = {index for index, (seed, *_) in plain.items() if seed in blocked}
    assert guilty
    assert set(plain) - set(found) == guilty
    assert all(found[index] == plain[index] for index in found)
    told = said(caplog, "is replaced")
    places = tuple(f"in step 2 of episode {index}, at test_event_loop.py" for index in guilty)
    assert told
    assert all(any(place in text for place in places) for text in told), told


def test_an_episode_that_blocked_the_loop_once_is_made_again(
    plain: dict[int, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "treadle"):
        assert (
            made(
                partial(Blocks, [], 1),
                workers=N,
                worker_options=treadle.WorkerOptions(backend="thread"),
                step_timeout=LONGER,
            )
            == plain
        )
    assert len(said(caplog, "is replaced")) == 1


class Fated(Walk):
    """Does `what` in its second step, where it is `fated`."""

    def __init__(self, what: Callable[[], Any], fated: bool) -> None:
        self.what, self.fated = what, fated

    async def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:  # type: ignore[override]
        observation, info = await super().reset(seed=seed)
        self.end = 100
        return observation, info

    async def bad(self) -> None:
        if self.fated and self.t == 2:
            await self.what()


def vector(what: Callable[[], Any], fated: set[int], **options: Any) -> Any:
    envs = [partial(Fated, what, slot in fated) for slot in range(N)]
    options = {"step_timeout": LIMIT, "on_failure": "restart", **options}
    threads = treadle.WorkerOptions(backend="thread")
    return treadle.VectorEnv(envs, worker_options=threads, workers=N, **options)


async def blocks() -> None:
    block()


async def blocks_below() -> None:
    await asyncio.wait_for(asyncio.ensure_future(blocks()), 60)


async def blocks_again_and_again() -> None:
    while True:
        time.sleep(LONGER / 2)
        await asyncio.sleep(0)


@pytest.mark.parametrize("what", [blocks, blocks_below, blocks_again_and_again])
def test_only_the_slot_that_blocks_the_loop_is_late(what: Any) -> None:
    envs = vector(what, {5}, step_timeout=LONGER)
    try:
        envs.reset(seed=1)
        envs.step(ZEROS)
        observations, *_, infos = envs.step(ZEROS)
        assert np.flatnonzero(infos["aborted"]).tolist() == [5]
        assert observations[:, 0].tolist() == [2] * 5 + [1] + [2] * 2
        envs.step(ZEROS)
        assert envs.step(ZEROS)[0][:, 0].tolist() == [4] * 5 + [1] + [4] * 2
    finally:
        envs.close()


def test_where_time_is_measured_only_that_of_the_one_that_blocks_counts(caplog: pytest.LogCaptureFixture) -> None:
    limit = 2.0  # so long that nothing else is late on a busy machine

    async def blocks_for_long() -> None:
        time.sleep(2 * limit)

    envs = vector(blocks_for_long, {5}, on_failure="raise", step_timeout=limit)
    try:
        envs.reset(seed=1)
        for t in (1, 2):
            with caplog.at_level(logging.WARNING, "treadle"):
                assert envs.step(ZEROS)[0][:, 0].tolist() == [t] * N
        (line,) = said(caplog, "the limit is")
        assert line.startswith("slot 5 ")
        assert envs._pool.calls.overruns == 1
    finally:
        envs.close()


def test_each_gets_the_time_that_all_of_them_block_in_turn() -> None:
    """Many short blocks make a long one, of which nobody has more than a little."""
    limit = 2.0

    async def computes() -> None:
        time.sleep(2 * limit / N)

    envs = vector(computes, set(range(N)), step_timeout=limit)
    try:
        envs.reset(seed=1)
        for t in (1, 2, 3):
            assert envs.step(ZEROS)[0][:, 0].tolist() == [t] * N
    finally:
        envs.close()


class Opened(threading.Event):
    """Whoever blocks goes on once it is set. `gate`: to block in C."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = queue.SimpleQueue[None]()

    def set(self) -> None:
        super().set()
        self.gate.put(None)


@pytest.fixture
def opened() -> Iterator[Opened]:
    found = Opened()
    yield found
    found.set()
    until(lambda: not [each for each in threading.enumerate() if each.name == "treadle-event-loop"])


def test_a_loop_that_is_blocked_for_good_is_told(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coroutines, "STUCK", 2 * LIMIT)

    async def blocks_for_good() -> None:
        opened.wait(60)

    envs = vector(blocks_for_good, {5})
    try:
        envs.reset(seed=1)
        envs.step(ZEROS)
        with pytest.raises(
            UsageError, match=r"^Walk\.step of treadle-worker-5 was given up, and has blocked .*asyncio\.to_thread"
        ):
            envs.step(ZEROS)
    finally:
        with within(1.5 + 0.5):
            envs.close(timeout=0.5)


async def blocks_by_a_callback(opened: Opened) -> None:
    asyncio.get_running_loop().call_soon(opened.wait, 60)
    await asyncio.sleep(0.02)


async def blocks_by_a_callback_in_c(opened: Opened) -> None:
    asyncio.get_running_loop().call_soon(opened.gate.get, True, 60)
    await asyncio.sleep(0.02)


async def blocks_in_a_context_of_its_own(opened: Opened) -> None:
    async def below() -> None:
        opened.wait(60)

    await asyncio.create_task(below(), context=contextvars.Context())


@pytest.mark.parametrize(
    ("what", "told"),
    [
        (
            blocks_by_a_callback,
            r"^a callback of the event loop's has blocked .* at .*threading\.py:\d+ in wait: no other",
        ),
        (
            blocks_by_a_callback_in_c,
            r"^a callback of the event loop's has blocked .* in <Handle SimpleQueue\.get\(True, 60\)>: no other",
        ),
        (
            blocks_in_a_context_of_its_own,
            r"below of treadle-worker-5 was given up, and has blocked .*threading\.py:\d+",
        ),
    ],
)
def test_a_loop_that_is_blocked_for_good_by_nobody_in_particular_is_told(
    opened: Opened, what: Any, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coroutines, "STUCK", 2 * LIMIT)
    envs = vector(partial(what, opened), {5})
    try:
        envs.reset(seed=1)
        envs.step(ZEROS)
        with within(10), pytest.raises(UsageError, match=told):
            envs.step(ZEROS)
    finally:
        with within(1.5 + 0.5):
            envs.close(timeout=0.5)


def test_a_task_that_nobody_waits_for_is_told_when_it_blocks_the_loop_for_good(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its worker is not late: it has answered. That it was stopped at the end is logged once, by us."""
    monkeypatch.setattr(coroutines, "STUCK", 2 * LIMIT)
    begun: list[asyncio.Task[None]] = []
    received, blocked = threading.Event(), threading.Event()

    async def below() -> None:
        while not received.is_set():
            await asyncio.sleep(0.01)
        blocked.set()
        opened.wait(60)

    async def leaves_one() -> None:
        begun.append(asyncio.create_task(below()))

    envs = vector(leaves_one, {5})
    try:
        envs.async_reset(seed=1)
        envs.recv(min=N)
        for _ in range(2):
            envs.send(ZEROS)
            envs.recv(min=N)
        received.set()
        assert blocked.wait(10)
        envs.send(ZEROS[:1], [0])
        with within(10), pytest.raises(UsageError, match=r"below of treadle-worker-5 has blocked .*threading\.py"):
            envs.recv(min=1)
    finally:
        with within(1.5 + 0.5), pytest.warns(UserWarning, match="recv"):
            envs.close(timeout=0.5)
    opened.set()
    until(lambda: begun[0].done() and not loops())
    begun.clear()
    gc.collect()
    assert not [each for each in caplog.messages if "never retrieved" in each]


# -- stopping the loop, and cancelling what others have begun --------------------------------------------------------


async def stops_the_loop() -> None:
    asyncio.get_running_loop().stop()


async def cancels_all_others() -> None:
    for task in asyncio.all_tasks():
        if task is not asyncio.current_task():
            task.cancel()


@pytest.mark.parametrize("what", [stops_the_loop, cancels_all_others])
def test_nobody_stops_the_loop_or_cancels_what_others_have_begun(what: Any) -> None:
    envs = vector(what, {5}, step_timeout=60.0)
    try:
        envs.reset(seed=1)
        for t in (1, 2, 3):
            assert envs.step(ZEROS)[0][:, 0].tolist() == [t] * N
    finally:
        envs.close()


class StopsTheLoop(Walk):
    async def bad(self) -> None:
        if self.t == 2:
            asyncio.get_running_loop().stop()


def test_episodes_that_stop_the_loop_are_as_others(plain: dict[int, Any]) -> None:
    assert (
        made(StopsTheLoop, workers=N, worker_options=treadle.WorkerOptions(backend="thread"), step_timeout=60.0)
        == plain
    )


async def cancels_itself() -> None:
    asyncio.current_task().cancel()  # type: ignore[union-attr]
    await asyncio.sleep(1)


async def waits_for_what_is_cancelled() -> None:
    below = asyncio.create_task(asyncio.sleep(1))
    below.cancel()
    await below


@pytest.mark.parametrize("what", [cancels_itself, waits_for_what_is_cancelled])
def test_a_cancellation_of_its_own_is_the_failure_of_that_step(what: Any) -> None:
    envs = vector(what, {5}, step_timeout=60.0)
    try:
        envs.reset(seed=1)
        envs.step(ZEROS)
        with pytest.raises(
            TaskRaised, match=r"^slot 5 .*CancelledError: not by its pool: .*call reset_at\(\[5\]\) to carry on"
        ):
            envs.step(ZEROS)
        envs.reset_at([5])
        assert envs.step(ZEROS)[0][:, 0].tolist() == [3] * 5 + [1] + [3] * 2
    finally:
        envs.close()


# -- cancelled, and going on -----------------------------------------------------------------------------------------


async def waits() -> None:
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(1000)


async def spins() -> None:
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0)


async def catches_everything() -> None:
    while True:
        with contextlib.suppress(BaseException):
            await asyncio.sleep(0)


async def catches_everything_and_waits() -> None:
    """Where no loop runs `sleep` raises at once: it would spin."""
    while True:
        with contextlib.suppress(BaseException):
            await asyncio.sleep(1)


async def computes_for_ever() -> None:
    while True:
        pass


def loops() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "treadle-event-loop"]


@pytest.mark.parametrize("what", [waits, spins, catches_everything, catches_everything_and_waits, computes_for_ever])
def test_what_goes_on_when_it_is_cancelled_ends_with_its_pool(
    what: Any, caplog: pytest.LogCaptureFixture, recwarn: pytest.WarningsRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told of in one line; nothing is told of it as garbage."""
    last = 0.5 if what is computes_for_ever else 2.0  # it alone has none to end in time
    monkeypatch.setattr(coroutines, "LAST_SECONDS", last)
    envs = vector(what, {2}, step_timeout=60.0)
    with caplog.at_level(logging.WARNING):
        envs.reset(seed=1)
        envs.step(ZEROS)
        envs.step_async(ZEROS)
        with pytest.raises(TimeoutError):
            envs.step_wait(timeout=LIMIT / 2)
        with within(3 * last + 0.5):
            envs.close(timeout=0.5)
        until(lambda: not loops())
        del envs
        gc.collect()
    (line,) = caplog.messages
    assert "Walk.step of treadle-worker-2" in line
    if what not in (catches_everything, catches_everything_and_waits):  # that Python itself tells of
        assert recwarn.list == []


class Deaf(Walk):
    """Its step itself catches everything: no other closes it when it is closed."""

    async def step(self, action: Any) -> Any:  # type: ignore[override]
        while True:
            with contextlib.suppress(BaseException):
                await asyncio.sleep(1)


def test_steps_that_catch_everything_do_not_spin_when_their_pool_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    """Several of them, restarted: one line tells of all, and no other worker is blamed."""
    made_of = [Deaf if slot in (2, 5) else Walk for slot in range(N)]
    limits: dict[str, Any] = {
        "step_timeout": LIMIT,
        "worker_options": treadle.WorkerOptions(backend="thread"),
        "on_failure": "restart",
    }
    envs = treadle.VectorEnv(made_of, workers=N, **limits)
    with caplog.at_level(logging.WARNING):
        envs.reset(seed=1)
        for _ in range(2):
            envs.step(ZEROS)
        caplog.clear()
        with within(1.5 + 0.5):
            envs.close(timeout=0.5)
        until(lambda: not loops())
        del envs
        gc.collect()
        before = time.process_time()
        time.sleep(0.5)
        assert time.process_time() - before < 0.25
    (line,) = caplog.messages
    assert "Deaf.step of treadle-worker-2" in line
    assert "Deaf.step of treadle-worker-5" in line


def test_what_goes_on_when_it_is_cancelled_does_not_outlive_its_time_in_a_loop_that_others_have(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(coroutines, "CLEAN_UP", 0.2)
    ended = threading.Event()

    async def goes_on() -> None:
        try:
            await spins()
        finally:
            ended.set()

    other = vector(waits, set(), step_timeout=60.0)
    try:
        other.reset(seed=1)
        envs = vector(goes_on, {2})
        try:
            envs.reset(seed=1)
            envs.step(ZEROS)
            assert np.flatnonzero(envs.step(ZEROS)[4]["aborted"]).tolist() == [2]
        finally:
            envs.close()
        assert ended.wait(10)
        assert other.step(ZEROS)[0][:, 0].tolist() == [1] * N
    finally:
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            other.close()
    (line,) = caplog.messages
    assert "Walk.step of treadle-worker-2" in line
