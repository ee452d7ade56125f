"""What the recorder keeps is bounded, whichever way slots are stepped, and all that it keeps counts."""

import gc
import itertools
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import treadle
from treadle.lockstep import history

N, MOST, CHUNK = 4, 1 << 18, 1 << 14


class Counts(gym.Env):
    """Fails at action 3."""

    observation_space: gym.Space = gym.spaces.Discrete(2)
    action_space: gym.Space = gym.spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return 0, {}

    def step(self, action: Any) -> Any:
        if action == 3 or str(action).startswith("3"):
            raise ZeroDivisionError
        return 0, 0.0, False, False, {}


class Told(Counts):
    action_space: gym.Space = gym.spaces.Text(2000)


def texts(k: int) -> list[str]:
    return [f"{k:06}" * 150] * N  # 900 bytes


def lockstep(envs: Any) -> Iterator[Any]:
    envs.reset(seed=1)
    actions = np.zeros(N, np.int64)
    for _ in itertools.count():
        yield envs.step(actions)


def sent(envs: Any) -> Iterator[Any]:
    envs.async_reset(seed=1)
    for _ in itertools.count():
        slots = envs.recv(min=1, max=1)[4]["env_id"]
        yield envs.send(np.zeros(len(slots), np.int64), slots)


def sent_texts(envs: Any) -> Iterator[Any]:
    envs.async_reset(seed=1)
    for k in itertools.count():
        slots = envs.recv(min=1, max=1)[4]["env_id"]
        yield envs.send(texts(k)[: len(slots)], slots)


def stepped_texts(envs: Any) -> Iterator[Any]:
    envs.reset(seed=1)
    for k in itertools.count():
        yield envs.step([f"{i}{text}" for i, text in enumerate(texts(k)[:3])] + ["0"])


def reset_often(envs: Any) -> Iterator[Any]:
    """With options of their own, and without seeds."""
    envs.reset(seed=1)
    for k in itertools.count():
        envs.reset(options={"map": np.full(100, k), "names": [f"{k}", f"{k + 1}"]})
        yield envs.step(np.zeros(N, np.int64))


WAYS: dict[str, tuple[type, Callable[..., Iterator[Any]], int]] = {
    "lockstep": (Counts, lockstep, 10_000),
    "sent": (Counts, sent, 6_000),
    "sent texts": (Told, sent_texts, 1_000),
    "stepped texts": (Told, stepped_texts, 500),
    "reset often": (Counts, reset_often, 1_000),
}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MOST_BYTES", MOST)
    monkeypatch.setattr(history, "CHUNK_BYTES", CHUNK)


@pytest.mark.parametrize("recorder", [True, "full"])
@pytest.mark.parametrize("way", WAYS)
def test_memory_is_bounded(way: str, recorder: Any) -> None:
    env, drive, rows = WAYS[way]
    with closing(
        treadle.VectorEnv(env, N, worker_options=treadle.WorkerOptions(backend="serial", recorder=recorder))
    ) as envs:
        steps = drive(envs)
        for _ in range(100):
            next(steps)
        gc.collect()
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            for _ in range(rows):
                next(steps)
            gc.collect()
            grown = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
        kept = envs._lockstep.history._chunks
        assert len(kept) > 2, "it was filled"
        assert kept[0].first > 0, "and written over"
        assert grown < 1.3 * MOST, f"{grown:,} bytes, {grown / rows:.0f} a row"
        steps.close()
        if way.startswith("sent"):
            envs.recv(min=N)


@pytest.mark.parametrize("way", ["lockstep", "sent"])
def test_what_was_done_by_message_is_replayed(way: str) -> None:
    """Over several chunks; some of them have begun before their rows were full."""
    with closing(treadle.VectorEnv(Told, N, worker_options=treadle.WorkerOptions(backend="serial"))) as envs:
        steps = 15
        with pytest.raises(ZeroDivisionError) as failed:
            if way == "lockstep":
                envs.reset(seed=1)
                for k in range(steps):
                    envs.step(texts(k))
                envs.step(["0", "0", "3", "0"])
            else:
                envs.async_reset(seed=1)
                envs.recv(min=N)
                for k in range(steps):
                    for slots in ([0, 2], [1, 3]):
                        envs.send(texts(k)[:2], slots)
                        envs.recv(min=2)
                envs.send(["3"], [2])
                envs.recv(min=1)
        history = envs._lockstep.history
        assert len(history._chunks) > 2
    result = treadle.replay(failed.value)
    assert (result.as_recorded, result.steps) == (True, steps + 1), str(result)
    assert failed.value.repro.about["lost"] == 0
