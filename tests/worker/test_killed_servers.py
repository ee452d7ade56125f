"""Fork servers that are killed, at whatever moment: another one is started, or the error says what has happened."""

import os
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import treadle
from pool.kit import Pool, until
from treadle.errors import StartupFailed
from treadle.worker import forkserver
from treadle.worker.forkserver import ForkServer
from zoo.faults import Sound
from zoo.programs import gym_env

PRELOADED = "MiniGrid-Empty-5x5-v0"  # for which there is a server of its own


class Named(Sound):
    def pid(self) -> int:
        return os.getpid()


def kill(server: ForkServer) -> None:
    os.kill(server.pid, signal.SIGKILL)
    until(lambda: not server.running())


@pytest.fixture
def fated(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[int]]:
    """Kills the server that is asked for a worker, where `fate` says so of how many have been asked for before.
    `forks`: when it has forked the worker, and has not told of it."""

    def set_up(fate: Callable[[int], bool], forks: bool) -> list[int]:
        asked: list[int] = []
        fork, receive = ForkServer.fork, ForkServer._receive

        def killed_before(self: ForkServer, *args: Any) -> Any:
            asked.append(self.pid)
            if fate(len(asked) - 1):
                kill(self)
            return fork(self, *args)

        def killed_after(self: ForkServer, wanted: Any, timeout: float) -> Any:
            found = receive(self, wanted, timeout)
            if wanted in ("fork", "server"):
                asked.append(self.pid)
                if fate(len(asked) - 1):
                    kill(self)
                    for fd in found[1]:
                        os.close(fd)
                    return receive(self, wanted, timeout)  # which finds it dead
            return found

        monkeypatch.setattr(ForkServer, *(("_receive", killed_after) if forks else ("fork", killed_before)))
        return asked

    return set_up


def rewards(pool: Pool) -> list[float]:
    return pool.step([0] * pool.n).rewards.tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("forks", [False, True])
@pytest.mark.parametrize("times", [1, 3])
def test_another_is_started_in_the_place_of_one_that_is_killed_during_a_start(
    fated: Any, forks: bool, times: int
) -> None:
    asked = fated(lambda k: 1 <= k <= times, forks)
    with Pool([gym_env(Named)] * 4, workers=4) as pool:
        pool.reset()
        assert rewards(pool) == [1] * 4
        assert len(set(asked)) > times
        pids = [worker.pid for worker in pool.workers]
        assert pool.lockstep.call("pid") == pids, "each has its own channel"


@pytest.mark.parametrize("env", ["CartPole-v1", PRELOADED])
def test_servers_that_die_one_after_the_other_are_told_by_name(fated: Any, env: str) -> None:
    asked = fated(lambda k: True, False)
    with pytest.raises(StartupFailed, match=r"5 fork servers in a row have died.*start_method='spawn'"):
        treadle.VectorEnv(env, 2, workers=2, inline=0)
    assert len(asked) == forkserver.TRIES


@pytest.mark.parametrize("forks", [False, True])
def test_killed_while_workers_are_restarted(fated: Any, forks: bool) -> None:
    with Pool([gym_env(Named)] * 2, workers=2, on_failure="restart") as pool:
        pool.reset()
        assert rewards(pool) == [1] * 2
        fated(lambda k: k < 2, forks)
        pid = pool.workers[1].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        while pool.workers[1].pid == pid:
            rewards(pool)
        assert len(set(pool.lockstep.call("pid"))) == 2


@pytest.mark.parametrize("env", ["CartPole-v1", PRELOADED])
def test_killed_between_two_vectors(env: str) -> None:
    for _ in range(2):
        envs = treadle.VectorEnv(env, 2, workers=2, inline=0)
        try:
            envs.reset(seed=1)
            envs.step(np.zeros(2, np.int64))
        finally:
            envs.close()
        for server in forkserver.servers()[::-1]:
            kill(server)
    forkserver.stop()  # the handles of dead ones, until somebody looks for them


def test_a_run_is_the_same_though_servers_are_killed_in_it(fated: Any) -> None:
    def made(**options: Any) -> list[Any]:
        run = treadle.collect("CartPole-v1", episodes=12, seed=3, **options)
        return [(each.index, each.observations.tobytes()) for each in run]

    plain = made(worker_options=treadle.WorkerOptions(backend="serial"))
    asked = fated(lambda k: k % 3 == 1, True)
    assert made(workers=2, worker_options=treadle.WorkerOptions(recycle_after=3)) == plain
    assert len(asked) > 4
