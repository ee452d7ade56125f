"""One episode in the making: what is kept is what was seen and done, whatever the environment does with it later."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces as gs

from treadle.play.recorder import MEET, EpisodeBuffer
from treadle.sample.collect import collect
from treadle.spaces import Layout
from treadle.worker.options import WorkerOptions


class Careless(gym.Env[Any, Any]):
    """Uses its arrays again, observations, infos and texts alike, and changes the actions it is given."""

    observation_space = gs.Dict({"box": gs.Box(0, 100, (2,), np.float64), "seq": gs.Sequence(gs.Discrete(100))})
    action_space = gs.Box(0, 1, (2,), np.float32)

    def __init__(self) -> None:
        self._box, self._list, self._array, self._t = np.zeros(2), [0], np.zeros(1), 0

    def _seen(self) -> Any:
        self._box[:] = self._list[0] = self._array[0] = self._t
        return {"box": self._box, "seq": self._list}, {"list": self._list, "array": self._array, "t": self._t}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._t = 0
        return self._seen()

    def step(self, action: Any) -> Any:
        action *= 1000
        self._t += 1
        observation, info = self._seen()
        return observation, 0.0, self._t == 5, False, info


@pytest.mark.parametrize("backend", ["serial", "thread", "process"])
def test_what_an_environment_uses_again_is_kept_as_it_was(backend: str) -> None:
    (episode,) = collect(Careless, episodes=1, worker_options=WorkerOptions(backend=backend), workers=1)
    steps = list(range(6))
    assert episode.observations["box"][:, 0].tolist() == steps
    assert [value[0] for value in episode.observations["seq"]] == steps
    assert [info["list"][0] for info in episode.infos] == steps
    assert [info["array"][0] for info in episode.infos] == steps
    assert episode.actions.shape == (5, 2)
    assert (episode.actions <= 1).all(), "the action that the policy chose, not what the environment made of it"


class Endless(gym.Env[Any, Any]):
    """Shows the number of the step; truncates nothing."""

    observation_space = gs.Box(0, 1000, (1,), np.float64)
    action_space = gs.Discrete(1000)
    t = 0

    def step(self, action: int) -> Any:
        self.t += 1
        return np.array([float(self.t)]), float(action), False, False, {}


def driven(ask: Any, index: int, most: int, stopped: Any = bool) -> tuple[EpisodeBuffer, list[int]]:
    """An episode that is played alone, and at which lengths it was met; actions from outside are 999."""
    env = Endless()
    buffer = EpisodeBuffer(Layout.of(env.observation_space), Layout.of(env.action_space), infos=False)
    buffer.begin(index, 0, np.zeros(1), {})
    playing, met = buffer.play(env.step, np.zeros(1), most, (ask, stopped)), []
    try:
        next(playing)
        while not stopped():
            met.append(buffer.length)
            playing.send((999, None))
        met.append(buffer.length)
    except StopIteration:
        return buffer, met
    return buffer, met


@pytest.mark.parametrize("index", [0, 5, MEET - 1])
def test_an_episode_alone_asks_by_itself_but_for_the_first_step_and_one_in_so_many(index: int) -> None:
    buffer, met = driven(lambda observation: (int(observation[0]), None), index, 100)
    assert met[0] == 0
    assert np.diff(met[1:]).tolist() == [MEET] * (len(met) - 2)
    assert met[1] == 1 + index % MEET
    expected = [999 if i in met else i for i in range(100)]
    assert buffer.episode(False, True, copy=False).actions.tolist() == expected


def never(action: int) -> Any:
    raise ArithmeticError


@pytest.mark.parametrize("policy_raises", [True, False])
def test_what_asks_alone_and_raises_is_known_from_what_steps_and_raises(policy_raises: bool) -> None:
    def ask(observation: Any) -> Any:
        if observation[0] == 7:
            raise LookupError
        return 3, None

    env = Endless()
    buffer = EpisodeBuffer(Layout.of(env.observation_space), Layout.of(env.action_space), infos=False)
    buffer.begin(0, 0, np.zeros(1), {})
    playing = buffer.play(env.step if policy_raises else never, np.zeros(1), 100, (ask, bool))
    next(playing)
    with pytest.raises(LookupError if policy_raises else ArithmeticError):
        for _ in range(3):
            playing.send((999, None))
    assert (buffer.asking, buffer.action) == (policy_raises, 3 if policy_raises else 999)


def test_an_episode_alone_that_is_stopped_asks_nobody() -> None:
    asked: list[int] = []

    def ask(observation: Any) -> Any:
        asked.append(int(observation[0]))
        return 1, None

    buffer, met = driven(ask, 0, 100, lambda: len(asked) >= 5)
    assert len(asked) == 5
    assert met[-1] == buffer.length < 10
