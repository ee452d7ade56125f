"""close: twice, from two threads, in the middle of a step, with whatever hangs; and what limits there are."""

import errno
import gc
import os
import resource
import signal
import sys
import threading
import warnings
import weakref
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces as gs
from kit import (
    ACTIONS,
    EVERYWHERE,
    LOCAL,
    PROCESS,
    Pool,
    show,
    sound_rows,
    until,
    warm,
    with_fault,
    within,
)
from scripts import Script, alive, descendants

from conftest import own_shm
from treadle.errors import ClosedPool, StartupFailed, UsageError
from zoo import faults
from zoo.faults import Sound
from zoo.programs import gym_env


@pytest.mark.parametrize("setup", EVERYWHERE, ids=show)
def test_close_twice(setup: dict[str, Any]) -> None:
    pool = Pool(with_fault(Sound), **setup)
    batch = warm(pool, 2)
    with within(3.0):
        pool.close()
        pool.close()
    assert pool.closed
    assert batch.observations.tobytes() == sound_rows([0, 1, 2, 3], [2] * 4).tobytes(), "batches outlive the pool"


@pytest.mark.parametrize("backend", ["process", "serial"])
def test_what_lies_in_the_pools_memory_is_gone_with_it(backend: str) -> None:
    pool = Pool([gym_env(Sound)] * 2, workers=2, backend=backend)
    warm(pool, 1)
    pool.close()
    for ask in (lambda: pool.lockstep.valid, lambda: pool.lockstep.episodes, lambda: pool.step([0, 1]), pool.reset):
        with pytest.raises(ClosedPool, match="the pool is closed"):
            ask()


def test_environments_are_closed(tmp_path: Path) -> None:
    with Pool([lambda i=i: Closing(tmp_path / str(i)) for i in range(4)], workers=1, inline=2):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "2", "3"]


def Closing(path: Path) -> Any:
    class ClosingEnv(Sound):
        def close(self) -> None:
            path.write_text("closed")

    return gym_env(ClosingEnv)()


@pytest.mark.parametrize("setup", [PROCESS[0], LOCAL[1]], ids=show)
def test_close_from_two_threads_in_the_middle_of_a_step(setup: dict[str, Any]) -> None:
    """Both return, and the thread that was stepping is told that the pool is closed (or gets its step)."""
    pool = Pool(with_fault(faults.SlowOnce, seconds=0.5), close_timeout=20.0, **setup)
    warm(pool, 2)
    outcome: list[Any] = []

    def step() -> None:
        try:
            outcome.append(pool.step(ACTIONS))
        except UsageError as error:
            outcome.append(error)

    stepper = threading.Thread(target=step)
    stepper.start()
    until(lambda: outcome or pool.lockstep._pending or any(m.owed for m in pool.workers))
    closers = [threading.Thread(target=pool.close) for _ in range(2)]
    with within(4.0):
        for thread in closers:
            thread.start()
        for thread in (*closers, stepper):
            thread.join()
    (only,) = outcome
    assert "closed" in str(only) or only.rewards.tolist() == [3] * 4


@pytest.mark.parametrize("fault", [faults.Hangs, faults.HangsInC, faults.StopsItself], ids=lambda kind: kind.__name__)
def test_close_in_the_middle_of_a_step_that_hangs(fault: type[Sound]) -> None:
    pool = Pool(with_fault(fault), workers=2, close_timeout=0.3)
    warm(pool, 2)
    outcome: list[BaseException] = []

    def step() -> None:
        try:
            pool.step(ACTIONS)
        except UsageError as error:
            outcome.append(error)

    stepper = threading.Thread(target=step)
    stepper.start()
    until(lambda: any(m.owed for m in pool.workers))
    with within(0.3 + 1.0 + 0.5):
        pool.close()
        stepper.join()
    assert "closed" in str(outcome[0])


def test_close_of_environments_that_hang_in_close() -> None:
    pool = Pool([gym_env(faults.HangsInClose)] * 4, workers=4, close_timeout=0.5)
    warm(pool, 1)
    with within(0.5 + 1.0 + 0.3):
        pool.close()


def test_a_dropped_pool_warns_and_ends_its_workers() -> None:
    pool = Pool(with_fault(Sound), workers=2)
    warm(pool, 1)
    pids = [worker.pid for worker in pool.workers]
    held = [pool]
    del pool

    def drop() -> None:
        held.clear()  # garbage from here on, and any collection may find it
        gc.collect()

    with pytest.warns(ResourceWarning, match="without close"):
        drop()
    until(lambda: not any(alive(pid) for pid in pids))


class Collects(Sound):
    """Its step waits until nobody knows the pool, and collects the garbage."""

    alone, done = threading.Event(), threading.Event()

    def step(self, action: Any) -> Any:
        if self.alone.wait(20):
            gc.collect()
            self.done.set()
        return super().step(action)


def test_a_pool_that_is_dropped_and_collected_in_its_own_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    unraisable: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    Collects.alone.clear()
    Collects.done.clear()
    gc.disable()  # nobody else is to find it
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            pool = Pool([gym_env(Collects)], backend="thread", workers=1)
            pool.reset()
            pool.lockstep.post_step([0])
            known = weakref.ref(pool)
            del pool
            Collects.alone.set()
            assert Collects.done.wait(20)
    finally:
        gc.enable()
    assert known() is None
    assert unraisable == []


def test_a_constructor_that_fails_leaves_nothing() -> None:
    """Worker k of n; the fixture looks for what is left."""
    for k in range(3):
        with pytest.raises(StartupFailed):
            Pool([gym_env(faults.InitOsExits if i == k else faults.HasChildren) for i in range(3)], workers=3)


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("backend", ["process", "thread"])
def test_what_was_built_is_closed_when_a_constructor_fails(
    backend: str, workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failing worker's own slots, and its siblings'."""
    monkeypatch.setattr("treadle.pool.pool.FAREWELL", 30.0)  # all of them close at once, so nothing waits for its end
    makers: list[Any] = [lambda i=i: Closing(tmp_path / str(i)) for i in range(2)]
    with pytest.raises(StartupFailed):
        Pool([*makers, gym_env(faults.InitRaises)], workers=workers, backend=backend, close_timeout=30.0)
    until(lambda: len(list(tmp_path.iterdir())) == 2)


def test_a_sibling_that_hangs_in_close_does_not_keep_the_error() -> None:
    with within(10.0), pytest.raises(StartupFailed):
        Pool([gym_env(faults.HangsInClose), gym_env(faults.InitRaises)], workers=2, close_timeout=60.0)


def test_an_interrupt_while_constructing_leaves_nothing() -> None:
    script = Script("""
        threading.Thread(target=lambda: (sys.stdin.readline(),), daemon=True)
        say(ready=True)
        try:
            Pool([gym_env(Sound), gym_env(faults.HangsInInit)], workers=2)
        except KeyboardInterrupt:
            say(interrupted=True)
        os._exit(0)
    """)
    script.hear()
    until(lambda: len(descendants(script.process.pid)) >= 3)  # the fork server and two workers
    below = descendants(script.process.pid)
    server = min(below)
    script.process.send_signal(signal.SIGINT)
    assert script.hear() == {"interrupted": True}
    code, _ = script.end()
    assert code == 0
    until(lambda: not any(alive(pid) for pid in below - {server}))
    until(lambda: not alive(server))


def test_few_descriptors() -> None:
    """64 are enough for four workers; 20 are not, and what is said then names that limit, with nothing left."""
    script = Script("""
        import resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        with Pool([gym_env(Sound)] * 4, workers=4) as pool:
            pool.reset()
            say(rewards=pool.step([0] * 4).rewards.tolist(), used=len(os.listdir("/proc/self/fd")))
        before = len(os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (20, 64))
        try:
            Pool([gym_env(Sound)] * 4, workers=4)
        except OSError as error:
            resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
            kind, left = type(error).__name__, len(os.listdir("/proc/self/fd")) - before
            say(kind=kind, error=str(error), limit=error.limit, errno=error.errno, left=left)
    """)
    said = script.hear()
    assert said["rewards"] == [1] * 4
    assert said["used"] <= 40
    said = script.hear()
    assert (said["kind"], said["limit"], said["errno"]) == ("TooManyFiles", 20, errno.EMFILE)
    assert "Too many open files: this process may have 20 (ulimit -n)" in said["error"]
    assert said["left"] == 0
    assert script.end() == (0, "")


def test_no_descriptor_for_a_large_hello() -> None:
    """What a worker says of its spaces is lost with the descriptor that it comes by, and that is what is told."""
    script = Script("""
        import resource
        import gymnasium as gym
        import numpy as np
        from treadle.pool.group import WorkerGroup
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
        class Wide(Sound):
            observation_space = gym.spaces.Box(np.zeros(100_000), np.arange(1.0, 100_001.0), dtype=np.float64)
        begin = WorkerGroup.start
        def filled(group):
            with no_descriptor_left():
                return begin(group)
        WorkerGroup.start = filled
        try:
            Pool([gym_env(Wide)], workers=1)
        except OSError as error:
            say(kind=type(error).__name__, error=str(error))
    """)
    said = script.hear()
    assert said["kind"] == "TooManyFiles"
    assert "may have 200" in said["error"]
    assert script.end()[0] == 0


def test_no_more_descriptors_while_it_runs() -> None:
    """A request, an answer and a fresh worker that would need some are refused or told so, and all goes on after."""
    script = Script("""
        import resource
        import numpy as np
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
        class Mine(Sound):
            def give(self, given=0):
                return np.zeros(100_000)
            def die(self):
                os._exit(3)
        def told(ask):
            with no_descriptor_left():
                try:
                    ask()
                except Exception as error:
                    where = getattr(error, "where", None)
                    kinds = [kind.__name__ for kind in type(error).__mro__]
                    say(kind=kinds, slot=where and where.slot, error=str(error))
                else:
                    say(error=None)
        with Pool([gym_env(Mine)] * 2, workers=2, on_failure="restart") as pool:
            pool.reset()
            told(lambda: pool.lockstep.call("give"))
            told(lambda: pool.lockstep.call("give", np.zeros(100_000)))
            say(rewards=pool.step([0] * 2).rewards.tolist())
            told(lambda: pool.lockstep.call("die", slots=[1]))
            pool.reset()
            say(rewards=pool.step([0] * 2).rewards.tolist(), restarts=pool.restarts)
    """)
    answer, request = script.hear(), script.hear()
    assert answer["slot"] in (0, 1)
    assert {"TaskRaised", "TooManyFiles", "OSError"} <= set(answer["kind"])
    assert request["kind"][0] == "TooManyFiles"
    assert script.hear() == {"rewards": [1, 1]}
    fresh = script.hear()
    assert fresh["kind"][0] == "TooManyFiles"
    assert all("may have 200" in said["error"] for said in (answer, request, fresh))
    assert script.hear() == {"rewards": [1, 1], "restarts": [0, 1]}
    assert script.end()[0] == 0


class Huge(gym.Env):
    """Observes 100 MB."""

    observation_space = gs.Box(0, 255, (100 * 2**20,), np.uint8)
    action_space = gs.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.screen = np.full(self.observation_space.shape, 1, np.uint8)
        return self.screen, {}

    def step(self, action: Any) -> Any:
        self.screen += 1
        return self.screen, 1.0, False, False, {}


def test_an_observation_of_100_megabytes() -> None:
    before = own_shm()
    with Pool([gym_env(Huge)], workers=1, blocks=1) as pool:
        pool.reset()
        for t in range(2, 4):
            batch = pool.step([0])
            assert batch.observations.shape == (1, 100 * 2**20)
            assert (batch.observations[0, :: 2**20] == t).all()
            assert batch.observations[0, -1] == t
        until(lambda: own_shm() <= before)  # that of another session beside this one goes
        with pytest.raises(MemoryError):
            Pool([gym_env(Huge)], workers=1, blocks=10**4)


def test_warnings_are_left_alone() -> None:
    """A pool that is used as it should be warns of nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with Pool(with_fault(Sound), workers=2) as pool:
            warm(pool, 2)
        gc.collect()


def test_descriptors_of_the_caller_are_all_still_there() -> None:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)

    def use() -> None:
        with Pool(with_fault(Sound), workers=2) as pool:
            warm(pool, 1)

    use()  # the process's fork server, which outlives its pools, has descriptors of its own
    before = set(os.listdir("/proc/self/fd"))
    for _ in range(3):
        use()
    gc.collect()
    assert set(os.listdir("/proc/self/fd")) == before
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == limit
