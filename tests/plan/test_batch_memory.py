"""Buffers and quick steps: whatever way a chunk takes, its results are those of a plain loop."""

import os
import platform
import resource
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces as gs
from plan_envs import same

from treadle.plan import ExternalProcess, GymPlanEnv, ParallelEnv
from treadle.plan.batch import LENT, MOST_BUFFERS
from treadle.plan.env import walking
from treadle.plan.items import Work, lay, lift, state_batch
from treadle.plan.work import do_work
from treadle.worker.options import WorkerOptions


class Painter(gym.Env[np.ndarray, int]):
    """Observes a sheet of one shade, in an array that it uses again; with `grows`, sheet and state grow."""

    action_space = gs.Discrete(5)

    def __init__(self, side: int = 100, grows: bool = False) -> None:
        self.observation_space = gs.Box(0, 255, (side, side), np.uint8)
        self.side, self.grows = side, grows
        self.shade, self.trail = 0, b""
        self.sheet = np.zeros((side, side), np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.shade, self.trail = 0, b""
        return self.sheet * 0, {}

    def step(self, action: int) -> Any:
        self.shade = (self.shade * 5 + int(action) + 1) % 251
        if self.grows:
            self.trail += bytes([self.shade]) * 400
            self.sheet = np.zeros((self.side + len(self.trail) // 800, self.side), np.uint8)
        self.sheet[:] = self.shade
        return self.sheet, float(self.shade), False, False, {}


def batches(env: ParallelEnv, count: int, items: int) -> list[Any]:
    """What `count` batches return that each go on from the one before; everything is kept."""
    states = [env.get_state()] * items
    found = []
    for number in range(count):
        found.append(env.step_batch([(number + i) % 5 for i in range(items)], states))
        states = found[-1][0]
    return found


@pytest.mark.parametrize("grows", [False, True], ids=["the same size", "growing"])
def test_what_is_kept_stays_as_it_was(grows: bool) -> None:
    """More batches than there are blocks, of observations that are handed out as they lie."""
    items = 4
    assert 100 * 100 * items // 2 > LENT
    count = 8 if grows else MOST_BUFFERS + 3
    with ParallelEnv(
        GymPlanEnv, Painter, n_workers=1, worker_options=WorkerOptions(backend="serial"), grows=grows
    ) as env:
        expected = batches(env, count, items)
    with ParallelEnv(GymPlanEnv, Painter, n_workers=2, grows=grows) as env:
        found = batches(env, count, items)
    same(found, expected)
    assert found[0][1][0].flags.writeable


def test_buffers_are_used_again() -> None:
    with ParallelEnv(GymPlanEnv, Painter, n_workers=2) as env:
        for found in (batches(env, 6, 4), batches(env, 6, 4)):
            assert len(found) == 6
            del found
        pool = env._batch_env._buffers
        before = len(pool.buffers)
        states = [env.get_state()] * 4
        for _ in range(10):
            states, *_ = env.step_batch([1] * 4, states)
        assert len(pool.buffers) == before
        with pytest.raises(ValueError, match="item 2"):
            env.step_batch([1, 1, "no", 1], states)
        assert all(buffer.written() for buffer in pool.buffers)


class Double(GymPlanEnv):
    def apply_action(self, action: Any) -> Any:
        obs, reward, *rest = super().apply_action(action)
        return obs, 2 * reward, *rest


@pytest.mark.parametrize("made", [GymPlanEnv, Double])
def test_quick_steps_are_steps(made: type[GymPlanEnv]) -> None:
    env = made("CartPole-v1", frameskip=2)
    state, *_ = env.reset()
    expected = [env.step(i % 2, state, dt=3, return_state=True) for i in range(5)]
    done = do_work(env, Work(0, [0, 1, 0, 1, 0], [3] * 5, state_batch([state] * 5), True))
    same([list(done.states), done.observations, done.rewards, done.infos], [list(x) for x in _parts(expected)])
    assert expected[0][2] == (12.0 if made is Double else 6.0)
    env.step = lambda **asked: "own"  # type: ignore[method-assign]
    assert list(walking(env, True)([0], [None], [1])) == ["own"]


def _parts(rows: list[Any]) -> Any:
    states, observations, rewards, _, _, infos = zip(*rows, strict=True)
    return states, np.stack(observations), rewards, infos


class Odd(gym.Env[Any, int]):
    """Observes how many steps it has taken, as an array of some kind that it uses again; ends after 6."""

    action_space = gs.Discrete(2)
    observation_space = gs.Box(-np.inf, np.inf, (), np.float64)

    def __init__(self, kind: str) -> None:
        self.kind, self.count = kind, 0
        self.seen: Any = {
            "fields": np.zeros(500, [("whole", "i4"), ("half", "f8")]),
            "no axis": np.zeros(()),
            "masked": np.ma.masked_equal(np.arange(9.0), 4.0),
            "dict": {"x": np.zeros(500)},
            "plain": np.zeros(500),
        }[kind]

    def _now(self) -> Any:
        if self.kind == "fields":
            self.seen["half"][:] = self.count / 2
        elif self.kind == "masked":
            self.seen[0] = self.count
        else:
            (self.seen["x"] if self.kind == "dict" else self.seen)[...] = self.count
        return self.seen

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return self._now(), {}

    def step(self, action: int) -> Any:
        self.count += 1 + int(action)
        return self._now(), 1.0, self.count >= 6, False, {}


@pytest.mark.parametrize("kind", ["fields", "no axis", "masked", "dict", "plain"])
@pytest.mark.parametrize("given", [True, False], ids=["from states", "going on"])
def test_observations_of_every_kind(kind: str, given: bool) -> None:
    """By message, in a buffer, and from one environment alone: with the same types, an episode's last ones too."""
    actions = [0, 1, 1, 1, 0, 1]
    one = GymPlanEnv(Odd, env_kwargs={"kind": kind})
    state = one.reset()[0]
    states = [state] * 6 if given else None
    with ParallelEnv(GymPlanEnv, Odd, n_workers=1, env_kwargs={"kind": kind}) as env:
        env.reset()
        for _ in range(3):
            found = env.step_batch(actions, states, dt=2, return_state=True)[1]
            expected = one.step_batch(actions, states, dt=2, return_state=True)[1]
            same(found, expected)
            assert [type(each) for each in found] == [type(each) for each in expected]
    first = [each["x"] if kind == "dict" else each["half"] * 2 if kind == "fields" else each for each in found]
    values = [float(np.ravel(each)[0]) for each in first]
    assert values == [2, 4, 4, 4, 2, 4] if given else 6 in values  # what ended an episode is no reset's


def test_states_go_through_memory_and_back() -> None:
    env = GymPlanEnv("CartPole-v1")
    states = [env.reset()[0] for _ in range(3)]
    memory = memoryview(bytearray(4096))
    lifted = lift(memory, lay(memory, 64, state_batch(states)))
    assert list(lifted) == states
    work = Work(0, [0, 1, 0], [1] * 3, lifted, True)
    same(list(do_work(env, work).states), [env.step(i % 2, state)[0] for i, state in enumerate(states)])


class Churn:
    """Takes and frees eight megabytes, again and again."""

    def reset(self) -> None:
        pass

    def faults(self) -> int:
        """First touches of pages in ten rounds, after one."""
        counts = []
        for _ in range(11):
            blocks = [bytes(200_000) for _ in range(40)]
            del blocks
            counts.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
        return counts[-1] - counts[0]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries are not told anything")
@pytest.mark.parametrize("told", [False, True], ids=["as it is", "told otherwise"])
def test_workers_keep_what_they_free(told: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("MALLOC_", "GLIBC_TUNABLES"))]:
        monkeypatch.delenv(name)
    if told:
        monkeypatch.setenv("MALLOC_PERTURB_", "0")
    with ExternalProcess(Churn) as process:
        assert (process.faults() > 5000) == told
