"""Workers that are worn out: replaced between two episodes, with nothing lost and no restart in the books; and killed
when they take far too much, with a line that names what each episode added."""

import logging
import os
import re
from collections.abc import Callable
from contextlib import closing
from itertools import groupby
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from scripts import Script

from treadle import DefaultWorker, MultiprocessingSampler, VectorEnv, WorkerFactory, collect, evaluate
from treadle.errors import UsageError, WorkerDied
from treadle.pool.life import ALIVE
from treadle.pool.options import PoolOptions
from treadle.pool.wear import Wear, as_bytes, limits_of, private_memory
from treadle.testing.faults import Leaks, Outcome, Sound, WearsOut

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="memory is told by Linux's /proc")
ROOM = 200_000_000  # more than a worker has before it leaks


class TellsPid(Sound):
    """Its infos tell its process."""

    def step(self, action: Any) -> Outcome:
        return *super().step(action)[:4], {"pid": os.getpid()}


class LeaksInOne(Sound):
    """Takes two megabytes with each step."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[bytes] = []

    def step(self, action: Any) -> Outcome:
        self.kept.append(os.urandom(2**20) * 2)
        return super().step(action)


@pytest.mark.parametrize(
    ("given", "size"),
    [(1000, 1000), ("1000", 1000), ("2GB", 2 * 10**9), ("1.5 GiB", 3 * 2**29), ("500mb", 5 * 10**8), ("1K", 1000)],
)
def test_sizes(given: Any, size: int) -> None:
    assert as_bytes(given) == size
    assert limits_of(given) == (size, 2 * size)
    assert limits_of((given, size + 5)) == (size, size + 5)


@pytest.mark.parametrize("given", [0, -1, True, "", "two", "2 XB", 1.5, (2, 1), (1, 2, 3), [None, 1], float("nan")])
def test_what_is_no_size_is_refused(given: Any) -> None:
    with pytest.raises(UsageError, match="memory_limit"):
        PoolOptions(memory_limit=given)


def test_options_that_nobody_can_honour_are_refused() -> None:
    for given in (0, True, 2.0):
        with pytest.raises(UsageError, match="max_episodes_per_worker"):
            PoolOptions(max_episodes_per_worker=given)  # type: ignore[arg-type]
    for backend in ("serial", "thread"):
        with pytest.raises(UsageError, match="for processes"):
            PoolOptions(backend=backend, max_episodes_per_worker=3)


def test_private_memory_is_neither_shared_nor_a_files() -> None:
    script = Script("""
        from treadle.pool.wear import private_memory
        before = private_memory(os.getpid())
        kept = os.urandom(2**20) * 64
        say(more=private_memory(os.getpid()) - before)
    """)  # a process in which nothing else comes and goes
    assert 60 * 2**20 < script.hear()["more"] < 80 * 2**20
    assert script.end()[0] == 0
    assert private_memory(2**22 + 1) is None


@pytest.mark.parametrize("how", [{}, {"envs_per_worker": 2}, {"inference": "caller", "num_envs": 4}])
def test_collecting_replaces_workers_after_so_many_episodes(how: dict[str, Any]) -> None:
    """The simulator fails in its fourth episode, and nobody ever sees that."""
    policy = Forward() if how.get("inference") else None
    found = list(collect(WearsOut, policy, episodes=14, workers=2, max_episodes_per_worker=3, **how))
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


def test_each_process_plays_no_more_than_it_may() -> None:
    pids: dict[int, int] = {}
    for episode in collect(TellsPid, episodes=12, workers=2, max_episodes_per_worker=2):
        assert episode.infos is not None
        pid = episode.infos[-1]["pid"]
        pids[pid] = pids.get(pid, 0) + 1
    assert sum(pids.values()) == 12
    assert max(pids.values()) <= 2


def test_collecting_replaces_what_leaks(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "treadle"):
        found = list(collect(Leaks, episodes=60, workers=1, memory_limit=(ROOM, "8GB"), env_kwargs={"megabytes": 16}))
    assert [each.index for each in found] == list(range(60))
    lines = [record.getMessage() for record in caplog.records]
    assert lines
    for line in lines:  # nothing else was said
        said = re.fullmatch(
            r"worker 0 is recycled: it has (\d+) MB of private memory \(memory_limit 200 MB\)"
            r"(, [\d.]+ (bytes|kB|MB) more with each of \d+ episodes)?",  # not told where it was looked at only once
            line,
        )
        assert said, line
        assert int(said[1]) > 200


def test_growth_is_of_the_episodes_between_the_first_look_and_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([120_000_000, 270_000_000, 270_000_000])
    monkeypatch.setattr("treadle.pool.wear.private_memory", lambda pid: next(looks))
    wear, worker = (
        Wear(PoolOptions(memory_limit="200MB")),
        SimpleNamespace(pid=7, state=next(iter(ALIVE)), stalled=None),
    )
    played = 3
    wear.played = lambda worker: played
    assert wear.look([worker], now=0.0) == []  # type: ignore[list-item]
    assert wear.worn(worker) == ""  # type: ignore[arg-type]
    played = 8
    wear.look([worker], now=1.0)  # type: ignore[list-item]
    said = "it has 270 MB of private memory (memory_limit 200 MB)"
    assert wear.worn(worker) == f"{said}, 30 MB more with each of 5 episodes"  # type: ignore[arg-type]
    late = Wear(PoolOptions(memory_limit="200MB"))
    late.played = wear.played
    late.look([worker], now=0.0)  # type: ignore[list-item]
    assert late.worn(worker) == said  # type: ignore[arg-type]


def test_a_worker_is_given_what_it_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, played = {7: 50_000_000, 8: 80_000_000}, {7: 0, 8: 0}
    monkeypatch.setattr("treadle.pool.wear.private_memory", memory.get)
    wear = Wear(PoolOptions(memory_limit="100MB"))
    wear.played = lambda worker: played[worker.pid or 0]
    first, second = (SimpleNamespace(pid=pid, state=next(iter(ALIVE)), stalled=None) for pid in (7, 8))

    def left(worker: Any, *ahead: int) -> int:
        return wear.left(worker, *ahead)

    assert left(first) == left(second) > 10**9  # nothing is known yet
    memory[7], played[7] = 74_000_000, 4  # seen without a look that was due: it has ended episodes
    assert [left(first, ahead) for ahead in (0, 4, 5, 50)] == [5, 1, 0, 0]  # 6 MB each, 26 MB of room
    assert left(second) == 4  # as the other is
    memory[8], played[8] = 80_000_000, 5
    assert left(second) > 10**9  # it is not
    memory[7], played[7] = 99_000_000, 8
    assert left(first) == 1  # what has nothing to do and is not worn out gets one
    memory[7], played[7] = 101_000_000, 9
    assert left(first) == 0


def test_nobody_is_killed_for_what_it_was_given_in_advance(caplog: pytest.LogCaptureFixture) -> None:
    """Workers that take eight megabytes with each short episode, and between whose looks many would pass."""
    leaks = {"workers": 1, "memory_limit": "100MB", "env_kwargs": {"megabytes": 8}}
    with caplog.at_level(logging.WARNING, "treadle"):
        found = list(collect(Leaks, episodes=100, **leaks))
    assert [each.index for each in found] == list(range(100))
    said = [int(of[1]) for each in caplog.messages if (of := re.match(r"worker 0 is recycled: it has (\d+) MB", each))]
    assert len(said) == len(caplog.messages) >= 5
    assert max(said) <= 120


def test_over_the_hard_limit_the_episode_is_made_again(caplog: pytest.LogCaptureFixture) -> None:
    """An episode of 20 steps that takes more than it may is to blame for it, in the end."""
    from treadle.sample.failed import CollectionFailed

    with caplog.at_level(logging.WARNING, "treadle"), pytest.raises(CollectionFailed) as caught:
        slow = {"max_deaths": 2, "workers": 1, "memory_limit": (ROOM // 4, ROOM // 4)}
        list(collect(LeaksForEver, episodes=1, **slow))
    assert isinstance(caught.value.__cause__, WorkerDied)
    assert caught.value.__cause__.out_of_memory
    assert "hard limit is 50 MB" in str(caught.value.__cause__)
    assert any("worker 0 is replaced" in each and "the hard limit is 50 MB" in each for each in caplog.messages)


class LeaksForEver(LeaksInOne):
    """Its episode never ends, and takes more and more."""

    def step(self, action: Any) -> Outcome:
        outcome = super().step(action)
        return *outcome[:2], False, False, outcome[4]


def test_a_limit_that_a_worker_is_over_before_it_plays_is_refused_at_once() -> None:
    with pytest.raises(UsageError, match=r"memory_limit \(--memory-limit\) of 1 MB is less than worker 0 has before"):
        evaluate(Sound, None, episodes=9, workers=2, memory_limit="1 MB")


def test_evaluating() -> None:
    mine = evaluate(WearsOut, None, episodes=9, workers=2, max_episodes_per_worker=2)
    assert mine == evaluate(Sound, None, episodes=9, workers=1)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_a_vector_replaces_workers_in_a_reset_of_all_their_slots(mode: AutoresetMode) -> None:
    """With a seed nothing differs."""
    with (
        closing(VectorEnv([Sound] * 3, workers=3, autoreset_mode=mode, max_episodes_per_worker=1)) as mine,
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
    options = {"max_episodes_per_worker": 2, "on_failure": on_failure}
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
    with closing(VectorEnv([WearsOut] * 2, workers=2, max_episodes_per_worker=3)) as vector:
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


def test_a_vectors_worker_that_takes_far_too_much_is_killed() -> None:
    with closing(VectorEnv([Sound, LeaksForEver], workers=2, memory_limit=(ROOM // 4, ROOM // 2))) as vector:
        vector.reset()
        with pytest.raises(WorkerDied, match=r"^slot 1 .*the worker was killed: .* the hard limit is 100 MB"):
            for _ in range(1000):
                vector.step([0, 0])


def test_workers_auto_keeps_processes_that_can_be_replaced() -> None:
    with closing(VectorEnv("CartPole-v1", 2, memory_limit="2GB")) as vector:
        vector.reset()
        assert all(worker.pid is not None for worker in vector._pool.workers)


def test_samplers() -> None:
    class Still:
        def reset(self, do_resets: Any = None) -> None:
            return

        def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
            return 0, {}

    factory: Callable[..., Any] = WorkerFactory(seed=1, max_episode_length=20, n_workers=2, worker_class=DefaultWorker)  # type: ignore[assignment]
    with MultiprocessingSampler(factory, Still(), TellsPid(), max_episodes_per_worker=1) as sampler:
        pids = [set(sampler.obtain_samples(k, 40, None).env_infos["pid"].tolist()) for k in range(3)]
    assert not pids[0] & pids[1]
    assert not pids[1] & pids[2]
