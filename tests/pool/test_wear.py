"""Workers that are worn out: replaced between two episodes, with nothing lost and no restart in the books."""

import logging
import os
import re
from collections.abc import Callable
from contextlib import closing
from itertools import groupby
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from scripts import Script

from treadle import DefaultWorker, MultiprocessingSampler, VectorEnv, WorkerFactory, collect, evaluate
from treadle.checks import as_bytes
from treadle.errors import UsageError
from treadle.pool.processor import private_memory
from treadle.worker.options import PoolOptions, WorkerOptions
from zoo.faults import Leaks, Outcome, Sound, WearsOut

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="memory is told by Linux's /proc")
ROOM = "200 MB"  # more than a worker has before it leaks


class TellsPid(Sound):
    """Its infos tell its process."""

    def step(self, action: Any) -> Outcome:
        return *super().step(action)[:4], {"pid": os.getpid()}


@pytest.mark.parametrize(
    ("given", "size"),
    [("1000", 1000), ("2GB", 2 * 10**9), ("1.5 GiB", 3 * 2**29), ("500mb", 5 * 10**8), ("1K", 1000)],
)
def test_sizes(given: Any, size: int) -> None:
    assert as_bytes(given) == size


@pytest.mark.parametrize(
    "given", [0, -1, True, "", "0", "two", "2 XB", 1.5, (1, 2), ("2GB", "1GB"), (0, "2GB"), [None, 1], float("nan")]
)
def test_what_is_no_size_is_refused(given: Any) -> None:
    with pytest.raises(UsageError, match="recycle_after"):
        PoolOptions(recycle_after=given)


def test_options_that_nobody_can_honour_are_refused() -> None:
    for given in (0, True, 2.0):
        with pytest.raises(UsageError, match="recycle_after"):
            PoolOptions(recycle_after=given)  # type: ignore[arg-type]
    for backend in ("serial", "thread"):
        with pytest.raises(UsageError, match="for processes"):
            PoolOptions(backend=backend, recycle_after=3)


def test_private_memory_is_neither_shared_nor_a_files() -> None:
    script = Script("""
        from treadle.pool.processor import private_memory
        before = private_memory(os.getpid())
        kept = os.urandom(2**20) * 64
        say(more=private_memory(os.getpid()) - before)
    """)  # a process in which nothing else comes and goes
    assert 60 * 2**20 < script.hear()["more"] < 80 * 2**20
    assert script.end()[0] == 0
    assert private_memory(2**22 + 1) is None


@pytest.mark.parametrize("how", [{}, {"num_envs": 4}, {"inference": "caller", "num_envs": 4}])
def test_collecting_replaces_workers_after_so_many_episodes(how: dict[str, Any]) -> None:
    """The simulator fails in its fourth episode, and nobody ever sees that."""
    policy = Forward() if how.get("inference") else None
    found = list(
        collect(WearsOut, policy, episodes=14, workers=2, worker_options=WorkerOptions(recycle_after=3), **how)
    )
    plain = list(collect(Sound, policy, episodes=14, workers=1, **how))
    assert [each.index for each in found] == list(range(14))
    for mine, theirs in zip(found, plain, strict=True):  # but for which of its environment's episodes it is
        assert mine.observations[:, [0, 2, 3]].tobytes() == theirs.observations[:, [0, 2, 3]].tobytes()
        assert mine.rewards.tobytes() == theirs.rewards.tobytes()


class Forward:
    """A policy in the caller that always does the same."""

    batched = True

    def __call__(self, observations: Any) -> Any:
        return np.ones(len(observations), np.int64)


@pytest.mark.parametrize("after", [2, (2, "20GB")])
def test_each_process_plays_no_more_than_it_may(after: Any) -> None:
    pids: dict[int, int] = {}
    for episode in collect(TellsPid, episodes=12, workers=2, worker_options=WorkerOptions(recycle_after=after)):
        assert episode.infos is not None
        pid = episode.infos[-1]["pid"]
        pids[pid] = pids.get(pid, 0) + 1
    assert sum(pids.values()) == 12
    assert max(pids.values()) <= 2


@pytest.mark.parametrize("after", [ROOM, (1000, ROOM)])
def test_collecting_replaces_what_leaks(after: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "treadle"):
        found = list(
            collect(
                Leaks,
                episodes=60,
                workers=1,
                worker_options=WorkerOptions(recycle_after=after),
                env_kwargs={"megabytes": 16},
            )
        )
    assert [each.index for each in found] == list(range(60))
    lines = [record.getMessage() for record in caplog.records]
    assert lines
    for line in lines:  # nothing else was said
        said = re.fullmatch(r"worker 0 is recycled: it has (\d+) MB of private memory \(recycle_after 200 MB\)", line)
        assert said, line
        assert int(said[1]) > 200


@pytest.mark.parametrize("rows", [1, 2])
def test_a_worker_with_a_limit_is_given_little_in_advance(rows: int, caplog: pytest.LogCaptureFixture) -> None:
    """It takes eight megabytes with each of its short episodes, and plays no more than two of them over its limit."""
    leaks = {
        "workers": 1,
        "worker_options": WorkerOptions(recycle_after="100MB"),
        "env_kwargs": {"megabytes": 8 // rows},
    }
    with caplog.at_level(logging.WARNING, "treadle"):
        found = list(collect(Leaks, episodes=100 * rows, num_envs=rows, **leaks))
    assert [each.index for each in found] == list(range(100 * rows))
    said = [int(of[1]) for each in caplog.messages if (of := re.match(r"worker 0 is recycled: it has (\d+) MB", each))]
    assert len(said) == len(caplog.messages) >= 5
    assert max(said) <= 120


def test_a_limit_that_a_worker_is_over_before_it_plays_is_refused_at_once() -> None:
    with pytest.raises(UsageError, match=r"recycle_after of 1 MB is less than worker 0 has before"):
        evaluate(Sound, None, episodes=9, workers=2, worker_options=WorkerOptions(recycle_after="1 MB"))


def test_evaluating() -> None:
    mine = evaluate(WearsOut, None, episodes=9, workers=2, worker_options=WorkerOptions(recycle_after=2))
    assert mine == evaluate(Sound, None, episodes=9, workers=1)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_a_vector_replaces_workers_in_a_reset_of_all_their_slots(mode: AutoresetMode) -> None:
    """With a seed nothing differs."""
    with (
        closing(
            VectorEnv([Sound] * 3, workers=3, autoreset_mode=mode, worker_options=WorkerOptions(recycle_after=1))
        ) as mine,
        closing(VectorEnv([Sound] * 3, workers=1, autoreset_mode=mode)) as plain,
    ):
        for seed in range(3):
            for a, b in zip(mine.reset(seed=seed)[0][:, [0, 2, 3]], plain.reset(seed=seed)[0][:, [0, 2, 3]]):
                assert a.tobytes() == b.tobytes()
            for _ in range(5):
                mine.step([1, 2, 3])
                plain.step([1, 2, 3])
        assert mine.stats().restarts.tolist() == [0, 0, 0]
        assert mine.stats().episodes.tolist() == [3, 3, 3]
        assert mine.stats().steps.tolist() == [15, 15, 15]


@pytest.mark.parametrize("on_failure", ["raise", "restart"])
def test_partial_batches_replace_workers_in_a_reset_of_all_their_slots(on_failure: str) -> None:
    options = {"worker_options": WorkerOptions(recycle_after=2), "on_failure": on_failure}
    with closing(VectorEnv([TellsPid] * 2, workers=2, autoreset_mode=AutoresetMode.DISABLED, **options)) as vector:
        vector.batch_size = 1
        vector.async_reset(seed=3)
        pids: list[list[int]] = [[], []]
        resets, episodes = [1, 1], [0, 0]
        while min(episodes) < 6:
            _, _, terminated, truncated, infos = vector.recv()
            for row, slot in enumerate(infos["env_id"].tolist()):
                if "pid" in infos and infos["_pid"][row]:
                    pids[slot].append(int(infos["pid"][row]))
                if terminated[row] or truncated[row]:
                    episodes[slot] += 1
                    resets[slot] += 1
                    vector.async_reset(env_id=[slot])
                else:
                    vector.send(np.array([1]), [slot])
        while vector._turns.state.value == "recv":
            vector.recv()
        assert vector.stats().restarts.tolist() == [0, 0]
        assert vector.stats().episodes.tolist() == resets
    for slot, of in enumerate(pids):
        lives = [sum(1 for _ in same) for _, same in groupby(of)]
        assert len(lives) == len(set(of)) in (episodes[slot] // 2, episodes[slot] // 2 + 1)
        assert max(lives) <= 2 * 20


def test_a_vector_replaces_workers_between_two_episodes() -> None:
    """The simulator fails in its fourth episode; an episode has 20 steps."""
    with closing(VectorEnv([WearsOut] * 2, workers=2, worker_options=WorkerOptions(recycle_after=3))) as vector:
        vector.reset(seed=5)
        seeds, ends = set(), 0
        for _ in range(21 * 10):
            observations, _, terminated, _, infos = vector.step([1, 1])
            seeds.add(float(observations[0, 0]))
            ends += int(terminated[0])
            assert set(infos) <= {"restarted", "_restarted"}
        assert ends == 10
        assert len(seeds) == 4  # each environment was seeded anew
        assert vector.stats().restarts.tolist() == [0, 0]
        assert vector.stats().episodes.tolist() == [11, 11]


def test_workers_auto_keeps_processes_that_can_be_replaced() -> None:
    with closing(VectorEnv("CartPole-v1", 2, worker_options=WorkerOptions(recycle_after="2GB"))) as vector:
        vector.reset()
        assert all(worker.pid is not None for worker in vector._pool.workers)


def test_samplers() -> None:
    class Still:
        def reset(self, do_resets: Any = None) -> None:
            return

        def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
            return 0, {}

    factory: Callable[..., Any] = WorkerFactory(seed=1, max_episode_length=20, n_workers=2, worker_class=DefaultWorker)  # type: ignore[assignment]
    with MultiprocessingSampler(factory, Still(), TellsPid(), worker_options=WorkerOptions(recycle_after=1)) as sampler:
        pids = [set(sampler.obtain_samples(k, 40, None).env_infos["pid"].tolist()) for k in range(3)]
    assert not pids[0] & pids[1]
    assert not pids[1] & pids[2]
