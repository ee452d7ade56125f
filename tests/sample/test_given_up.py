"""Environments and policies of coroutines, in threads at their deadline: what hangs is given up, the bytes are those of
workers that never hung."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import treadle
from treadle import coroutines
from treadle.errors import UsageError
from treadle.play.episode import Episode
from treadle.program.gym_env import EnvRecipe
from treadle.sample.failed import CollectionFailed
from typed_run import collected

LIMIT = 0.3


class Walk(gym.Env):
    """Episodes of 2 to 13 steps."""

    observation_space = gym.spaces.Box(-1e9, 1e9, (2,), np.float64)
    action_space = gym.spaces.Discrete(5)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.t, self.end = 0, int(self.np_random.integers(2, 14))
        return np.array([0, self.end], np.float64), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return np.array([self.t, self.end], np.float64), float(action), self.t >= self.end, False, {}


class Gate:
    """Whoever has hung once does not do it again."""

    def __init__(self) -> None:
        self.hung, self.closed = set[Any](), list[str]()
        self.lock = threading.Lock()  # it cannot be pickled: a run that is resumed does not compare it

    def hangs(self, env: Any) -> bool:
        if env.end != 7 or env.t != 2 or env.np_random_seed in self.hung:
            return False
        self.hung.add(env.np_random_seed)
        return True


@pytest.fixture
def gate() -> Gate:
    return Gate()


class Coroutines(Walk):
    async def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:  # type: ignore[override]
        await asyncio.sleep(0)
        return super().reset(seed=seed, options=options)

    async def step(self, action: Any) -> Any:  # type: ignore[override]
        await asyncio.sleep(0.0005)
        return super().step(action)


class HangingCoroutines(Coroutines):
    def __init__(self, gate: Gate) -> None:
        self.gate = gate

    async def step(self, action: Any) -> Any:  # type: ignore[override]
        if self.gate.hangs(self):
            await asyncio.sleep(1000)
        return await super().step(action)

    async def close(self) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        self.gate.closed.append(threading.current_thread().name)


def policy(observations: np.ndarray) -> np.ndarray:
    return (observations.sum(axis=1) % 5).astype(np.int64)


def zeros(observations: np.ndarray) -> np.ndarray:
    return np.zeros(len(observations), np.int64)


async def thinking(observations: np.ndarray) -> np.ndarray:
    await asyncio.sleep(0.0005)
    return policy(observations)


class OneByOne:
    async def get_action(self, observation: np.ndarray) -> Any:
        await asyncio.sleep(0.0005)
        return policy(observation[None])[0], {"value": 1.0}


def key(episode: Episode) -> tuple[Any, ...]:
    return episode.index, episode.seed, episode.observations.tobytes(), episode.actions.tobytes()


def made(env: Any, policy: Any = policy, **options: Any) -> list[Any]:
    return [key(each) for each in treadle.collect(env, policy, episodes=30, seed=3, **options)]


@pytest.fixture(scope="module")
def plain() -> list[Any]:
    return made(Walk, inference="worker", worker_options=treadle.WorkerOptions(backend="serial"))


WHERE = [
    {"inference": "worker", "workers": 4},
    {"inference": "caller", "num_envs": 6},
    {"inference": "caller", "num_envs": 6, "workers": 2},
]


@pytest.mark.parametrize("options", WHERE, ids=str)
def test_coroutines_at_their_deadline_are_cancelled(options: dict[str, Any], gate: Gate, plain: list[Any]) -> None:
    assert (
        made(
            lambda: HangingCoroutines(gate),
            worker_options=treadle.WorkerOptions(backend="thread"),
            step_timeout=LIMIT,
            **options,
        )
        == plain
    )
    assert len(gate.hung) == 1
    assert set(gate.closed) == {"treadle-event-loop"}


@pytest.mark.parametrize("backend", ["process", "thread", "serial"])
@pytest.mark.parametrize("inference", ["worker", "caller"])
@pytest.mark.parametrize("thought", [policy, thinking])
def test_coroutines_make_the_same_episodes_everywhere(
    thought: Any, inference: str, backend: str, plain: list[Any]
) -> None:
    assert (
        made(Coroutines, thought, inference=inference, worker_options=treadle.WorkerOptions(backend=backend)) == plain
    )


def test_a_policy_of_coroutines_may_be_asked_one_by_one(plain: list[Any]) -> None:
    assert (
        made(
            Coroutines,
            OneByOne(),
            inference="worker",
            worker_options=treadle.WorkerOptions(backend="thread"),
            workers=5,
        )
        == plain
    )


def test_wrappers_see_no_coroutines(plain: list[Any]) -> None:
    wrappers = [lambda env: gym.wrappers.TimeLimit(env, 50), gym.wrappers.RecordEpisodeStatistics]
    assert made(Coroutines, wrappers=wrappers, worker_options=treadle.WorkerOptions(backend="thread")) == plain


def test_vectors_step_coroutines_side_by_side() -> None:
    """All of them are in their steps at the same time, or none would come to its end."""
    n = 12
    inside = list[asyncio.Future[None]]()

    class Together(Coroutines):
        async def step(self, action: Any) -> Any:  # type: ignore[override]
            inside.append(asyncio.get_running_loop().create_future())
            if len(inside) == n:
                for each in inside:
                    each.set_result(None)
            await inside[len(inside) - 1]
            return await super().step(action)

    envs = treadle.make_vec(Together, n, workers=n, worker_options=treadle.WorkerOptions(backend="thread"))
    try:
        envs.reset(seed=1)
        assert envs.step(np.zeros(n, np.int64))[0][:, 0].tolist() == [1] * n
    finally:
        envs.close()


@pytest.mark.parametrize("among_others", [False, True])
def test_a_coroutine_that_exits_ends_no_other(among_others: bool) -> None:
    async def ends() -> None:
        raise SystemExit(3)

    class Exits(Coroutines):
        async def step(self, action: Any) -> Any:  # type: ignore[override]
            if action == 4:
                await (asyncio.gather(ends()) if among_others else ends())
            return await super().step(action)

    envs = treadle.make_vec(Exits, 3, workers=3, worker_options=treadle.WorkerOptions(backend="thread"))
    try:
        envs.reset(seed=1)
        with pytest.raises(treadle.WorkerError, match=r"slot 1.*SystemExit"):
            envs.step(np.array([0, 4, 0]))
        envs.reset(seed=1)
        assert envs.step(np.zeros(3, np.int64))[0][:, 0].tolist() == [1] * 3
    finally:
        envs.close()


def test_coroutines_run_in_the_context_of_who_begins_them() -> None:
    slot: contextvars.ContextVar[int] = contextvars.ContextVar("slot")

    class Marked(Coroutines):
        action_space = gym.spaces.Discrete(20)

        def step(self, action: Any) -> Any:
            slot.set(int(action))
            return self._told()

        async def _told(self) -> Any:
            observation, *rest = await Coroutines.step(self, 0)
            observation[1] = slot.get()
            return observation, *rest

    envs = treadle.make_vec(
        Marked, 20, workers=20, worker_options=treadle.WorkerOptions(backend="thread"), autoreset_mode="Disabled"
    )
    try:
        envs.reset(seed=1)
        assert envs.step(np.arange(20))[0][:, 1].tolist() == list(range(20))
    finally:
        envs.close()


def test_an_interrupt_while_a_coroutine_begins_stops_no_later_one() -> None:
    loop = coroutines.Loop()

    async def one() -> int:
        return 1

    class Interrupted(type(loop.loop)):  # type: ignore[misc]
        def call_soon_threadsafe(self, *args: Any, **kwargs: Any) -> Any:
            raise KeyboardInterrupt

    try:
        kind, loop.loop.__class__ = type(loop.loop), Interrupted
        coroutine = one()
        with pytest.raises(KeyboardInterrupt):
            loop.begin(coroutine)
        loop.loop.__class__ = kind
        assert loop.begin(one()).result() == 1
        assert coroutine.cr_frame is None, "it is closed"
    finally:
        loop.end()


def test_a_vector_goes_on_with_another_environment(gate: Gate) -> None:
    envs = treadle.make_vec(
        lambda: HangingCoroutines(gate),
        8,
        workers=8,
        worker_options=treadle.WorkerOptions(backend="thread"),
        step_timeout=1.0,  # no other may be cut, however busy the machine is
        on_failure="restart",
    )
    try:
        envs.reset(seed=11)
        cut = 0
        for _ in range(40):
            infos = envs.step(np.zeros(8, np.int64))[4]
            cut += int(np.sum(infos.get("aborted", False)))
        assert cut == len(gate.hung) >= 1
    finally:
        envs.close()


def test_closing_waits_for_nobody_who_hangs() -> None:
    inside = threading.Event()

    class Hangs(Coroutines):
        async def step(self, action: Any) -> Any:  # type: ignore[override]
            if action == 4:
                inside.set()
                await asyncio.sleep(1000)
            return await super().step(action)

    envs = treadle.make_vec(
        Hangs,
        4,
        workers=4,
        worker_options=treadle.WorkerOptions(backend="thread"),
        step_timeout=60.0,
        on_failure="restart",
    )
    envs.reset(seed=11)
    envs.step_async(np.array([4, 0, 0, 0]))
    assert inside.wait(60.0)
    began = time.monotonic()
    with pytest.warns(UserWarning, match="pending call to `step`"):
        envs.close(timeout=0.2)
    assert time.monotonic() - began < 20.0  # it hangs for 1000 seconds, and its limit is 60


def test_what_makes_coroutines_is_an_environment() -> None:
    class Other:
        observation_space, action_space = Walk.observation_space, Walk.action_space
        reset, step = Coroutines.reset, Coroutines.step

    with pytest.raises(UsageError, match="Other does not"):
        made(Other)


def test_in_a_large_pool_deadlines_are_looked_for_now_and_then(
    gate: Gate, plain: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("treadle.pool.calls.FEW", 0)
    options: dict[str, Any] = {"inference": "caller", "num_envs": 6, "step_timeout": LIMIT}
    assert (
        made(lambda: HangingCoroutines(gate), worker_options=treadle.WorkerOptions(backend="thread"), **options)
        == plain
    )
    assert len(gate.hung) == 1
    assert made(Coroutines, thinking, worker_options=treadle.WorkerOptions(backend="thread"), **options) == plain


def test_a_policy_of_coroutines_at_its_deadline_is_cancelled(plain: list[Any]) -> None:
    hung = list[int]()

    async def stalls(observations: np.ndarray) -> np.ndarray:
        if not hung and observations[0, 1] == 7 and observations[0, 0] == 2:
            hung.append(1)
            await asyncio.sleep(1000)
        return policy(observations)

    options: dict[str, Any] = {
        "inference": "worker",
        "workers": 3,
        "worker_options": treadle.WorkerOptions(backend="thread"),
        "step_timeout": LIMIT,
    }
    assert made(Coroutines, stalls, **options) == plain
    assert hung == [1]


class Nesting(Coroutines):
    """It has an environment of Treadle's making within it."""

    def __init__(self) -> None:
        self.inner = gym.wrappers.TimeLimit(EnvRecipe("CartPole-v1").build(), 5)  # wants a gymnasium.Env

    async def step(self, action: Any) -> Any:  # type: ignore[override]
        self.inner.reset(seed=1)
        self.inner.step(0)
        return await super().step(action)


def test_environments_within_environments_are_their_own(plain: list[Any]) -> None:
    assert made(Nesting, worker_options=treadle.WorkerOptions(backend="thread"), workers=2, step_timeout=LIMIT) == plain


@pytest.mark.parametrize("on_failure", ["raise", "restart"])
def test_a_time_limit_in_threads_is_for_coroutines_alone(on_failure: str) -> None:
    limited: dict[str, Any] = {
        "worker_options": treadle.WorkerOptions(backend="thread"),
        "step_timeout": LIMIT,
        "on_failure": on_failure,
    }
    refused = r"needs an environment with coroutines .*not Walk: .* Use backend='process'"
    with pytest.raises(UsageError, match=refused) as caught:
        treadle.make_vec(lambda: gym.wrappers.TimeLimit(Walk(), 5), 2, **limited)
    assert "\n" not in str(caught.value)
    with pytest.raises(UsageError, match=refused):
        made(Walk, **limited)


def test_what_a_thread_that_was_given_up_has_written_to_is_closed(gate: Gate, tmp_path: Path) -> None:
    """Its file is locked while anybody may write to it."""
    options: dict[str, Any] = {
        "seed": 3,
        "workers": 2,
        "worker_options": treadle.WorkerOptions(backend="thread"),
        "step_timeout": LIMIT,
    }
    options |= {"out": tmp_path, "inference": "worker"}
    hanging, stops = partial(HangingCoroutines, gate), [True]

    def acts(observations: np.ndarray) -> np.ndarray:
        if gate.hung and stops:
            raise RuntimeError("no more")
        return zeros(observations)

    with pytest.raises(CollectionFailed, match="no more"):
        collected(hanging, acts, episodes=30, **options)
    assert gate.hung
    stops.clear()
    assert collected(hanging, acts, episodes=30, resume=True, **options).complete
