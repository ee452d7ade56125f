"""One episode in the making: what is kept is what was seen and done, whatever the environment does with it later."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces as gs

from treadle.sample.collect import collect


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
    (episode,) = collect(Careless, episodes=1, backend=backend, workers=1)
    steps = list(range(6))
    assert episode.observations["box"][:, 0].tolist() == steps
    assert [value[0] for value in episode.observations["seq"]] == steps
    assert [info["list"][0] for info in episode.infos] == steps
    assert [info["array"][0] for info in episode.infos] == steps
    assert episode.actions.shape == (5, 2)
    assert (episode.actions <= 1).all(), "the action that the policy chose, not what the environment made of it"
