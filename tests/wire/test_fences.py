"""Processors that do not keep the order of writes and reads: a model of them for lines, and fences forced here."""

import random
import socket
from typing import Any, TypeVar

import gymnasium as gym
import numpy as np
import pytest

import treadle
from treadle.memory import fences
from treadle.memory.arena import Arena
from treadle.plan import GymPlanEnv, ParallelEnv
from treadle.trees import equal
from treadle.wire import line as lines
from treadle.wire.bell import LocalBell
from treadle.wire.channel import Channel
from treadle.wire.line import Line, LineEnd, LineFields, WorkerLine
from treadle.wire.messages import Extras
from zoo.faults import Sound

E = TypeVar("E", bound=LineEnd)


@pytest.mark.parametrize(
    ("machine", "needed"),
    [("x86_64", False), ("AMD64", False), ("i686", False), ("aarch64", True), ("arm64", True), ("riscv64", True)],
)
def test_where_fences_are_needed(machine: str, needed: bool) -> None:
    assert fences.needed(machine) is needed


# -- a model of weak order ---------------------------------------------------------------------------------------------


class Weak:
    """One side's sight of shared memory: its writes arrive at any time and in any order, though those to one place in
    theirs; a read may have been made long before, though of one place never before an earlier one."""

    def __init__(self, shared: Any, rng: random.Random) -> None:
        self._shared, self._rng = shared, rng
        self._written: list[tuple[int, Any]] = []
        self._read: dict[int, Any] = {}
        self._near: set[int] = set()  # what was ever read

    def __len__(self) -> int:
        return len(self._shared)

    def __setitem__(self, at: Any, value: Any) -> None:
        if isinstance(at, slice):
            self._written += zip(range(*at.indices(len(self))), value, strict=True)
        else:
            self._written.append((at, value))
        self.wander()

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(len(self)))]
        own = [value for place, value in self._written if place == at]
        if own:
            return own[-1]
        if at not in self._read or self._rng.random() < 0.5:
            self._read[at] = self._shared[at]
            self._near.add(at)
        return self._read[at]

    def wander(self) -> None:
        """Some writes arrive, and some reads are made before they are asked for."""
        for _ in range(self._rng.randrange(3)):
            if self._written:
                chosen = self._rng.choice(self._written)[0]
                first = next(i for i, (place, _) in enumerate(self._written) if place == chosen)
                place, value = self._written.pop(first)
                self._shared[place] = value
        if self._rng.random() < 0.2:
            for at in self._near:
                self._read.setdefault(at, self._shared[at])

    def fence(self) -> None:
        for place, value in self._written:
            self._shared[place] = value
        self._written, self._read = [], {}


class Sides:
    """Both ends of a line, each with a weak sight of its memory."""

    def __init__(self, seed: int, fenced: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        self._rng = random.Random(seed)
        arena = Arena(shared=False)
        plan = arena.plan()
        fields = LineFields.plan(plan, 2, fenced)
        arena.grow(plan)
        a, b = socket.socketpair()
        self.channels = Channel(a), Channel(b)
        bells = LocalBell(), LocalBell()
        self.caller = Line(arena, fields, *bells, self.channels[0], (0, 1))
        self.worker = WorkerLine(arena, fields, *bells, self.channels[1])
        self._now: LineEnd = self.caller
        monkeypatch.setattr(lines, "fence", lambda: [weak.fence() for weak in self._weak(self._now)])
        for side in (self.caller, self.worker):
            for name in ("requests", "orders", "answers", "box", "words"):
                setattr(side, name, Weak(getattr(side, name), self._rng))

    def as_(self, side: E) -> E:
        """What comes next is done by this side; meanwhile memory does what it does."""
        self._now = side
        for each in (self.caller, self.worker):
            for weak in self._weak(each):
                weak.wander()
        return side

    @staticmethod
    def _weak(side: LineEnd) -> list[Weak]:
        return [side.requests, side.orders, side.answers, side.box, side.words]

    def close(self) -> None:
        for channel in self.channels:
            channel.close()


def exchange(seed: int, fenced: bool, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Fifty requests and answers, up to three on their way at a time. Did each side read what the other had written?"""
    sides, rng = Sides(seed, fenced, monkeypatch), random.Random(seed)
    count, posted, answered, taken = 50, 0, 0, 0
    try:
        while taken < count:
            if posted < count and posted - taken < 3:
                posted += 1
                caller = sides.as_(sides.caller)
                caller.post(posted, 3, posted % 7, caller.channel.pack([posted] * 5) if posted % 2 else None)
            worker = sides.as_(sides.worker)
            if worker.requests[worker.taken % worker.depth * 4] == worker.taken + 1:
                answered += 1
                if worker.next() != (answered, 3, answered % 7, [answered] * 5 if answered % 2 else None):
                    return False
                sides.as_(worker).answer(answered, Extras({0: answered}, {}, {}, {}) if rng.random() < 0.5 else None)
            reply = sides.as_(sides.caller).take(0.0)
            if reply is not None:
                taken += 1
                if reply.id != taken or (reply.extras is not None and reply.extras.infos != {0: taken}):
                    return False
        return True
    except Exception:  # noqa: BLE001 - half of something cannot be read, in whatever way
        return False
    finally:
        sides.close()


def test_entries_are_whole_however_weak_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(exchange(seed, True, monkeypatch) for seed in range(8))


def test_without_fences_the_model_breaks_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the test above would show little."""
    assert not all(exchange(seed, False, monkeypatch) for seed in range(8))


# -- forced on this machine --------------------------------------------------------------------------------------------


@pytest.fixture(params=[False, True], ids=["as it is", "fenced"])
def fenced(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(fences, "FENCED", request.param)
    return request.param


class Told(Sound):
    """A step that says something."""

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, _ = super().step(action)
        return observation, reward, terminated, truncated, {"reward was": reward}


class Shades(gym.Env[Any, Any]):
    """Large observations, all of one number: the step's."""

    observation_space = gym.spaces.Box(0, 255, (200, 200), np.uint8)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t, self.end = 0, 3 + int(self.np_random.integers(5))
        return np.zeros((200, 200), np.uint8), {}

    def step(self, action: int) -> Any:
        self.t += 1
        return np.full((200, 200), self.t, np.uint8), 1.0, self.t == self.end, False, {}


@pytest.fixture
def lines_made(monkeypatch: pytest.MonkeyPatch) -> list[LineEnd]:
    made: list[LineEnd] = []
    first = LineEnd.__init__

    def note(self: LineEnd, *args: Any, **kwargs: Any) -> None:
        first(self, *args, **kwargs)
        made.append(self)

    monkeypatch.setattr(LineEnd, "__init__", note)
    return made


def test_steps_episodes_and_plans_are_the_same(fenced: bool, lines_made: list[LineEnd]) -> None:
    with_infos = treadle.VectorEnv([Told] * 4, workers=2, inline=1)
    with_infos.reset(seed=7)
    for t in range(1, 20):
        observations, rewards, _, _, infos = with_infos.step(np.arange(4))
        assert rewards.tolist() == infos["reward was"].tolist() == [t] * 4
        assert observations[:, 2].tolist() == [t] * 4
    with_infos.close()

    for episode in treadle.collect(Shades, episodes=40, workers=2):
        assert (episode.observations == np.arange(len(episode.rewards) + 1)[:, None, None]).all()

    with ParallelEnv(GymPlanEnv, "CartPole-v1", n_workers=2) as env:
        state, *_ = env.reset()
        batches = [env.step_batch([0, 1, 1, 0] * 5, [state] * 20) for _ in range(5)]
        assert all(equal(batch[:2], batches[0][:2]) for batch in batches)

    assert lines_made
    assert all(line.fenced is fenced for line in lines_made)
