"""Several tasks in one slot: an environment that is another one from episode to episode, built when it is needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym

from treadle.errors import UsageError
from treadle.program.gym_env import EnvRecipe, close_env

TASK = "task"  # the key of a reset's options, and of its info, that names the task


@dataclass(frozen=True)
class Suite:
    """Makes a `SuiteEnv` where it is called.

    Attributes:
        tasks: name -> how its environment is built. A slot has one of them built at a time.
    """

    tasks: Mapping[str, EnvRecipe]

    def __call__(self) -> gym.Env:
        return SuiteEnv(self)


class SuiteEnv(gym.Env):
    """Reset with options {"task": name, "options": those of the task's own reset, or None}."""

    def __init__(self, suite: Suite) -> None:
        self._suite = suite
        self._first = next(iter(suite.tasks))
        self._built: dict[str, Any] = {}  # the one that is played, by its name
        self._now = self._of(self._first)
        self.observation_space, self.action_space = self._now.observation_space, self._now.action_space
        self.spec = getattr(self._now, "spec", None)

    def check(self) -> None:
        """Build every task once, so that what cannot be built, or has other spaces, is told before any is played.
        Raises UsageError, and what building raises."""
        for recipe in self._suite.tasks.values():  # the quick ones first
            recipe.check_id()
        for task in [*self._suite.tasks][1:]:
            self._of(task)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        task = self._first if options is None else options[TASK]
        own = None if options is None else options["options"]
        self._now = self._of(task)
        observation, info = self._now.reset(seed=seed, **({} if own is None else {"options": own}))
        return observation, {**info, TASK: task}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        return self._now.step(action)  # type: ignore[no-any-return]

    def close(self) -> None:
        while self._built:
            close_env(self._built.popitem()[1])

    def _of(self, task: str) -> Any:
        if task in self._built:
            return self._built[task]
        self.close()
        env = self._suite.tasks[task].build()
        for name in ("observation_space", "action_space") if task != self._first else ():
            got, expected = getattr(env, name), getattr(self, name)
            if got != expected:
                close_env(env)
                raise UsageError(f"tasks of one run have one {name}: {task} has {got}, {self._first} has {expected}")
        self._built[task] = env
        return env
