"""Calls in two halves and their order, and the constructor that is Gymnasium's."""

import multiprocessing
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces as gs
from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from small_envs import Counter, Echo, Gated, Parrot, Picky, assert_same, of

from pool.kit import answered, limit_next, until
from treadle.errors import BrokenPool, TreadleError, UsageError, WorkerDied, WorkerTimeout
from treadle.vector.gymnasium import VectorEnv
from treadle.vector.make_vec import AsyncVectorEnv
from treadle.worker.options import WorkerOptions


@pytest.mark.parametrize("shared_memory", [True, False])
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, "SameStep"])
def test_pairs_equal_sync(shared_memory: bool, mode: Any) -> None:
    envs = [lambda: gym.make("CartPole-v1")] * 4
    ours, theirs = AsyncVectorEnv(envs, shared_memory, autoreset_mode=mode), SyncVectorEnv(envs, autoreset_mode=mode)
    try:
        ours.reset_async(seed=3)
        assert_same(ours.reset_wait(timeout=30), theirs.reset(seed=3))
        ours.action_space.seed(1)
        for t in range(40):
            actions = ours.action_space.sample()
            expected = theirs.step(actions)
            if t % 3:  # the pair and the whole may be mixed
                ours.step_async(actions)
                assert_same(ours.step_wait(), expected)
            else:
                assert_same(ours.step(actions), expected)
        ours.call_async("get_wrapper_attr", "gravity")
        assert ours.call_wait(timeout=30) == (9.8,) * 4
    finally:
        ours.close()


def pending(vector: VectorEnv, name: str) -> None:
    if name == "step":
        vector.step_async([0, 0])
    elif name == "call":
        vector.call_async("length")
    else:
        vector.reset_async()


@pytest.mark.parametrize("backend", ["serial", "process"])
@pytest.mark.parametrize("name", ["reset", "step", "call"])
def test_one_call_at_a_time(name: str, backend: str) -> None:
    vector = VectorEnv([Counter] * 2, worker_options=WorkerOptions(backend=backend), inline=0)
    vector.reset()
    for wait in (vector.reset_wait, vector.step_wait, vector.call_wait):
        with pytest.raises(
            NoAsyncCallError, match=r"Calling `\w+_wait` without any prior call to `\w+_async`\."
        ) as lone:
            wait()
        assert isinstance(lone.value, UsageError)
    pending(vector, name)
    uses: dict[str, list[Any]] = {
        "reset_async": [vector.reset, vector.reset_async, lambda: vector.reset_at(0)],
        "step_async": [lambda: vector.step([0, 0]), lambda: vector.step_async([0, 0])],
        "call_async": [lambda: vector.call("length"), lambda: vector.call_async("length"), vector.render],
        "set_attr": [lambda: vector.set_attr("length", 2)],
    }
    for asked, calls in uses.items():
        for use in calls:
            text = f"Calling `{asked}` while waiting for a pending call to `{name}` to complete"
            with pytest.raises(AlreadyPendingCallError, match=text) as caught:
                use()
            assert caught.value.name == name
    for other in {"reset", "step", "call"} - {name}:
        with pytest.raises(NoAsyncCallError):
            getattr(vector, f"{other}_wait")()
    result = getattr(vector, f"{name}_wait")()
    assert len(result) == {"reset": 2, "step": 5, "call": 2}[name]
    with pytest.raises(NoAsyncCallError):
        getattr(vector, f"{name}_wait")()
    vector.step([0, 0])
    vector.close()


def test_a_wait_that_runs_out_of_time_loses_nothing(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    vector = AsyncVectorEnv([of(Gated, str(gate))] * 2, workers=2)
    try:
        vector.reset()
        vector.step([0, 0])
        vector.step_async([1, 0])
        for _ in range(2):
            with pytest.raises(multiprocessing.TimeoutError, match=r"`step_wait` has timed out after 0.01") as caught:
                vector.step_wait(timeout=0.01)
            assert isinstance(caught.value, TreadleError)
            assert isinstance(caught.value, TimeoutError)
        with pytest.raises(AlreadyPendingCallError):
            vector.step_async([0, 0])
        gate.touch()
        assert vector.step_wait(timeout=30)[0].tolist() == [[2], [2]]
        assert vector.step([0, 0])[0].tolist() == [[3], [3]]
    finally:
        vector.close()


def test_resets_and_calls_that_run_out_of_time(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    vector = AsyncVectorEnv([of(Gated, str(gate), resets=True)] * 2, workers=2)
    try:
        vector.call_async("wait")
        with pytest.raises(multiprocessing.TimeoutError):
            vector.call_wait(timeout=0.01)
        gate.touch()
        assert vector.call_wait(timeout=30) == ("open", "open")
        gate.unlink()
        vector.reset_async()
        with pytest.raises(multiprocessing.TimeoutError):
            vector.reset_wait(timeout=0.01)
        gate.touch()
        assert vector.reset_wait(timeout=30)[0].tolist() == [[0], [0]]
    finally:
        vector.close()


def test_an_environments_deadline_is_another_matter(tmp_path: Path) -> None:
    """`step_timeout` says that the environment is late: the step is over, and its slot must be reset."""
    gate = tmp_path / "gate"
    vector = VectorEnv([of(Gated, str(gate))] * 2, workers=2, step_timeout=60)
    try:
        vector.reset()
        sound, late = (vector._pool.by_slot[slot] for slot in (0, 1))
        limit_next(late, 0.2)
        vector.step_async([0, 1])
        until(lambda: answered(sound), 60)  # answers are taken before limits are looked at
        with pytest.raises(WorkerTimeout, match="slot 1") as caught:
            vector.step_wait(timeout=30)
        assert caught.value.partial[0].tolist() == [[1], [0]]
        with pytest.raises(NoAsyncCallError):
            vector.step_wait()
        gate.touch()
        vector.reset_at(1)
        assert vector.step([0, 0])[0].tolist() == [[2], [2]]
    finally:
        vector.close()


def test_errors_come_with_the_wait() -> None:
    vector = AsyncVectorEnv([Picky] * 2)
    vector.reset()
    vector.step_async([0, 3])
    with pytest.raises(ValueError, match="no luck in step with 3") as caught:
        vector.step_wait()
    assert caught.value.partial[1].tolist() == [1, 0]  # type: ignore[attr-defined]
    vector.reset_async(seed=[13, 0])
    with pytest.raises(ValueError, match="no luck in reset"):
        vector.reset_wait()
    vector.call_async("nothing_like_it")
    with pytest.raises(AttributeError, match="nothing_like_it"):
        vector.call_wait()
    vector.reset()
    vector.step([0, 0])
    vector.close()


@pytest.mark.parametrize("name", ["reset", "step", "call"])
@pytest.mark.parametrize("terminate", [True, False])
def test_closing_with_a_call_pending(name: str, terminate: bool) -> None:
    vector = AsyncVectorEnv([Counter] * 2)
    vector.reset()
    pending(vector, name)
    text = f"Calling `close` while waiting for a pending call to `{name}` to complete."
    with pytest.warns(UserWarning, match=text):
        vector.close(terminate=terminate)
    assert vector.closed


def test_closing_what_never_answers(tmp_path: Path) -> None:
    vector = AsyncVectorEnv([of(Gated, str(tmp_path / "gate"))] * 2, workers=2)
    vector.reset()
    vector.step_async([1, 1])
    with pytest.raises(multiprocessing.TimeoutError):
        vector.step_wait(timeout=0.01)
    vector.close(timeout=0.1)
    assert vector.closed


def test_the_constructor_is_gymnasiums() -> None:
    vector = AsyncVectorEnv([of(Counter, 1)] * 2, True, True, "spawn", False, None, "same", "Disabled", 3)
    assert vector.metadata["autoreset_mode"] is vector.autoreset_mode is AutoresetMode.DISABLED
    assert (vector.num_envs, vector.max_concurrency, vector.context) == (2, 3, "spawn")
    assert repr(vector) == "AsyncVectorEnv(num_envs=2)"
    vector.reset(seed=1)
    assert vector.np_random_seed == (1, 2)
    vector.close()


def test_workers_of_ones_own_are_refused() -> None:
    with pytest.raises(ValueError, match="A custom `worker` must accept 8 arguments"):
        AsyncVectorEnv([Counter], worker=print)


@pytest.mark.parametrize("limit", [2.5, "2", 2.0])
def test_max_concurrency_must_be_an_integer(limit: Any) -> None:
    with pytest.raises(ValueError, match="`max_concurrency` must be an integer or None, got"):
        AsyncVectorEnv([Counter] * 2, max_concurrency=limit)


@pytest.mark.parametrize("limit", [0, -1])
def test_max_concurrency_must_be_positive(limit: int) -> None:
    with pytest.raises(ValueError, match="`max_concurrency` must be a positive or None, got"):
        AsyncVectorEnv([Counter] * 2, max_concurrency=limit)


@pytest.mark.parametrize("limit", [1, 2])
def test_max_concurrency_is_the_number_of_workers(limit: int) -> None:
    import os

    class Located(Counter):
        def pid(self) -> int:
            return os.getpid()

    vector = AsyncVectorEnv([Located] * 4, max_concurrency=limit)
    assert len(set(vector.call("pid"))) == limit
    vector.close()


def test_strange_spaces_and_shared_memory() -> None:
    with pytest.raises(ValueError, match="shared_memory=False"):
        AsyncVectorEnv([Parrot] * 2, shared_memory=True)
    vector = AsyncVectorEnv([Parrot] * 2, shared_memory=False)
    assert vector.reset()[0] == ("reset", "reset")
    vector.close()
    dynamic = AsyncVectorEnv([of(Echo, gs.Graph(gs.Box(0, 1, (2,)), None))] * 2, shared_memory=True)
    assert dynamic.reset()[0] in dynamic.observation_space
    dynamic.close()


def test_a_death_between_the_halves() -> None:
    class Mortal(Counter):
        def step(self, action: int) -> Any:
            if action == 4:
                import os

                os._exit(7)
            return super().step(action)

    vector = AsyncVectorEnv([Mortal] * 2, workers=2)
    vector.reset()
    vector.step_async(np.array([4, 1]))
    with pytest.raises(WorkerDied, match="slot 0"):
        vector.step_wait()
    with pytest.raises(BrokenPool, match="broken by: slot 0"):
        vector.step([0, 0])
    vector.close()


@pytest.mark.parametrize("wrapped", [False, True])
def test_in_the_place_of_gymnasiums(monkeypatch: pytest.MonkeyPatch, wrapped: bool) -> None:
    """`docs/conformance.md` points Gymnasium's tests at ours in this way."""
    monkeypatch.setattr(gym.vector, "AsyncVectorEnv", AsyncVectorEnv)
    vector = gym.make_vec(
        "CartPole-v1",
        num_envs=3,
        vectorization_mode="async",
        vector_kwargs={"autoreset_mode": "SameStep"},
        wrappers=[gym.wrappers.TimeAwareObservation] if wrapped else None,
        max_episode_steps=5,
    )
    assert isinstance(vector, AsyncVectorEnv)
    assert repr(vector) == "AsyncVectorEnv(CartPole-v1, num_envs=3)"
    assert vector.reset(seed=0)[0].shape == (3, 5 if wrapped else 4)
    for t in range(5):
        truncations = vector.step(np.full(3, t % 2))[3]
    assert truncations.all()
    vector.close()


MANAGED = """
import multiprocessing, sys
sys.path.insert(0, sys.argv[1])
from small_envs import Counter
import treadle

class Shared(Counter):
    def __init__(self, counts, lock):
        super().__init__(9)
        self.counts, self.lock = counts, lock
    def step(self, action):
        with self.lock:
            self.counts["steps"] += 1
        return super().step(action)

if __name__ == "__main__":
    with multiprocessing.Manager() as manager:
        counts, lock = manager.dict(steps=0), manager.Lock()
        for context in ("forkserver", "spawn", "fork"):
            with lock:
                counts["steps"] += 100
            vector = treadle.AsyncVectorEnv([lambda: Shared(counts, lock)] * 2, context=context, workers=2)
            vector.reset()
            vector.step([0, 0])
            vector.close()
        print(counts["steps"])
"""


def test_managers_proxies_work_however_workers_start(tmp_path: Path) -> None:
    """Also where the caller has used them, so that a fork copies its connections. A script: pytest has threads."""
    (tmp_path / "managed.py").write_text(MANAGED)
    command = [sys.executable, str(tmp_path / "managed.py"), str(Path(__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("306\n", 0), done.stderr
