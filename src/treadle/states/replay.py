"""Keeps an environment that cannot be taken apart, by the seed of its episode and the actions since.

Putting such a state back takes as long as playing the episode up to there, unless the environment already stands on the
way to it. Then only the rest is played. The environment must do the same for the same seed and actions.
"""

from __future__ import annotations

import copy
from typing import Any

import gymnasium as gym
import numpy as np

from treadle import trees
from treadle.errors import StateError


class Replayed(gym.Wrapper):
    """Remembers the episode's seed, options and actions, and replays them to get back to a state.

    A reset without a seed draws one from a generator of its own, so that the episode can be made again.
    """

    state_is_all = True

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self._seeds = np.random.default_rng()
        self._seed: int | None = None  # None: never reset
        self._options: dict[str, Any] | None = None
        self._actions: list[Any] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment.

        Args:
            seed: seed of this reset; it also seeds the later resets that come without a seed. None: one is drawn.
            options: options of the environment's own `reset`.
        """
        if seed is not None:
            self._seeds = np.random.default_rng(seed)
        self._seed = int(self._seeds.integers(2**31)) if seed is None else seed
        self._options, self._actions = copy.deepcopy(options), []
        return self.env.reset(seed=self._seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment. Raises StateError before the first reset."""
        if self._seed is None:
            raise StateError("a Replayed environment is stepped before its first reset")
        self._actions.append(copy.deepcopy(action))
        return self.env.step(action)

    def get_state(self) -> Any:
        """Return the episode so far, picklable: the generator of seeds, the seed, the options and the actions."""
        return self._seeds.bit_generator.state, self._seed, self._options, list(self._actions)

    def set_state(self, state: Any) -> None:
        """Play the episode again up to a state of `get_state`. A state from before the first reset plays nothing."""
        generator, seed, options, actions = state
        self._seeds.bit_generator.state = generator
        done = len(self._actions)
        on_the_way = (
            self._seed == seed
            and seed is not None
            and trees.equal([self._options, *self._actions], [options, *actions[:done]])
        )
        self._seed, self._options, self._actions = seed, copy.deepcopy(options), list(actions)
        if seed is None:
            return
        if not on_the_way:
            self.env.reset(seed=seed, options=copy.deepcopy(options))
            done = 0
        for action in actions[done:]:
            self.env.step(copy.deepcopy(action))
