"""Environments and agents for the tests of samplers: in a module of their own, so that workers import them too."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import gymnasium as gym
import numpy as np

from treadle.samplers import EnvSpec, EnvStep, StepType

MAPS = {"4x4": ["SFFF", "FHFH", "FFFH", "HFFG"]}
MOVES = [(0, -1), (1, 0), (0, 1), (-1, 0)]  # left, down, right, up
TO_THE_GOAL = [2, 2, 1, 0, 3, 1, 1, 1, 2, 2, 1, 1, 1, 2, 2, 1]  # an action for each cell of the 4x4 map


class GridWorld:
    """An environment with the sampler's own interface: letters on a grid, holes and a goal."""

    def __init__(self, desc: Any = "4x4", max_episode_length: int | None = None) -> None:
        self.rows = MAPS[desc] if isinstance(desc, str) else desc
        self.width = len(self.rows[0])
        self.observation_space = gym.spaces.Discrete(len(self.rows) * self.width)
        self.action_space = gym.spaces.Discrete(4)
        self.spec = EnvSpec(self.observation_space, self.action_space, max_episode_length)
        self.closed = False
        self._steps: int | None = None

    def reset(self) -> tuple[int, dict[str, Any]]:
        self.state = max("".join(self.rows).find("S"), 0)
        self._steps = 0
        return self.state, {}

    def step(self, action: int) -> EnvStep:
        if self._steps is None:
            raise RuntimeError("reset() must be called before step()!")
        self._steps += 1
        down, right = MOVES[action]
        row, column = divmod(self.state, self.width)
        row, column = min(max(row + down, 0), len(self.rows) - 1), min(max(column + right, 0), self.width - 1)
        self.state = row * self.width + column
        cell = self.rows[row][column]
        kind = StepType.get_step_type(self._steps, self.spec.max_episode_length, cell in "HG")
        if kind in (StepType.TERMINAL, StepType.TIMEOUT):
            self._steps = None
        return EnvStep(self.spec, action, float(cell == "G"), self.state, {}, kind)

    def close(self) -> None:
        self.closed = True


class Point:
    """A point that walks to a goal, which is its task."""

    def __init__(self, goal: Any = (1.0, 1.0), max_episode_length: int | None = None) -> None:
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = gym.spaces.Box(-0.1, 0.1, (2,), np.float32)
        self.spec = EnvSpec(self.observation_space, self.action_space, max_episode_length)
        self.set_task({"goal": np.array(goal, np.float32)})
        self._point = np.zeros(2, np.float32)
        self._steps: int | None = None

    def set_task(self, task: dict[str, Any]) -> None:
        self._task, self._goal = task, task["goal"]

    def reset(self) -> tuple[np.ndarray, dict[str, Any]]:
        self._point[:] = 0  # the same array for ever: whoever keeps it without copying it has lost
        self._steps = 0
        return self._point, {"goal": self._goal}

    def step(self, action: np.ndarray) -> EnvStep:
        if self._steps is None:
            raise RuntimeError("reset() must be called before step()!")
        self._steps += 1
        self._point += np.clip(action, -0.1, 0.1)
        distance = float(np.linalg.norm(self._point - self._goal))
        kind = StepType.get_step_type(self._steps, self.spec.max_episode_length, distance < 0.15)
        if kind in (StepType.TERMINAL, StepType.TIMEOUT):
            self._steps = None
        return EnvStep(self.spec, action, -distance, self._point, {"task": self._task}, kind)

    def close(self) -> None:
        """Nothing is held."""


class Noisy:
    """An environment with a generator of its own, which its copies copy: episodes of 2 to 9 steps."""

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float64)
        self.action_space = gym.spaces.Discrete(2)
        self.spec = EnvSpec(self.observation_space, self.action_space)
        self._rng = np.random.default_rng(7)

    def reset(self) -> tuple[np.ndarray, dict[str, Any]]:
        self._end, self._steps = int(self._rng.integers(2, 10)), 0
        return self._rng.random(1), {}

    def step(self, action: int) -> EnvStep:
        self._steps += 1
        kind = StepType.get_step_type(self._steps, None, self._steps >= self._end)
        return EnvStep(self.spec, action, 1.0, self._rng.random(1), {}, kind)

    def close(self) -> None:
        """Nothing is held."""


class Walk(gym.Env[np.ndarray, int]):
    """A `gymnasium.Env` with random lengths and random step times; every observation is the same array again."""

    observation_space = gym.spaces.Box(-1e9, 1e9, (2,), np.float64)
    action_space = gym.spaces.Discrete(3)
    sleep = 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t, self.end = 0, int(self.np_random.integers(1, 12))
        self.seen = np.zeros(2)
        return self._look(), {"end": self.end}

    def _look(self) -> np.ndarray:
        self.seen[:] = self.t, self.np_random.random()
        return self.seen

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        if self.sleep:
            time.sleep(np.random.default_rng().exponential(self.sleep))
        over = self.t >= self.end
        info = {"t": self.t, "hit": True} if action == 2 else {"t": self.t}  # not every step says everything
        return self._look(), float(action), over and self.end % 2 == 0, over and self.end % 2 == 1, info


class SlowWalk(Walk):
    sleep = 0.0005


class Dicts(gym.Env[dict[str, Any], int]):
    """Dict observations, one of them an array in a dict."""

    observation_space = gym.spaces.Dict(
        {"x": gym.spaces.Box(-9, 9, (2,), np.float32), "in": gym.spaces.Dict({"n": gym.spaces.Discrete(50)})}
    )
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self._look(), {}

    def _look(self) -> dict[str, Any]:
        return {"x": np.full(2, self.t, np.float32), "in": {"n": self.t}}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return self._look(), 1.0, self.t >= 4, False, {}


class Odd(gym.Env[Any, int]):
    """Episodes of five steps. Once, in step `at` (0: the reset) of its third episode, it observes `bad`."""

    observation_space: Any = gym.spaces.Box(-9, 9, (2,), np.float32)
    action_space = gym.spaces.Discrete(3)

    def __init__(self, bad: Any, at: int = 3) -> None:
        self.bad, self.at, self.episode = bad, at, -1

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t, self.episode = 0, self.episode + 1
        return self._look(), {}

    def _look(self) -> Any:
        return self.bad if (self.episode, self.t) == (2, self.at) else np.full(2, self.t, np.float32)

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return self._look(), 1.0, self.t >= 5, False, {}


class OwnInterface:
    """An environment with the sampler's own interface, around one of Gymnasium's."""

    def __init__(self, env: Any) -> None:
        self.env, self.observation_space, self.action_space = env, env.observation_space, env.action_space
        self.spec = EnvSpec(self.observation_space, self.action_space, 5)

    def reset(self) -> tuple[Any, dict[str, Any]]:
        self._steps = 0
        return self.env.reset()

    def step(self, action: Any) -> EnvStep:
        observation, reward, terminated, _, info = self.env.step(action)
        self._steps += 1
        kind = StepType.get_step_type(self._steps, None, terminated)
        return EnvStep(self.spec, action, reward, observation, info, kind)

    def close(self) -> None:
        self.env.close()


class Scripted:
    """An action for each observation."""

    def __init__(self, actions: Any) -> None:
        self.actions = actions

    def reset(self, do_resets: Any = None) -> None:
        """Nothing is remembered."""

    def get_param_values(self) -> list[Any]:
        return []

    def set_param_values(self, values: Any) -> None:
        """There are none."""

    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        return self.actions[observation], {}

    def get_actions(self, observations: Any) -> tuple[Any, dict[str, Any]]:
        return [self.actions[observation] for observation in observations], {}


class Fixed:
    """The actions of a list, one after the other, in every row."""

    def __init__(self, actions: Any) -> None:
        self.actions = actions
        self.at = [0]
        self.gain = np.ones(1)

    def reset(self, do_resets: Any = None) -> None:
        do_resets = [True] if do_resets is None else do_resets
        self.at = [0] * len(do_resets) if len(self.at) != len(do_resets) else self.at
        self.at = [0 if again else at for again, at in zip(do_resets, self.at, strict=True)]

    def get_param_values(self) -> dict[str, np.ndarray]:
        return {"gain": self.gain}

    def set_param_values(self, values: Any) -> None:
        if isinstance(values, dict):
            self.gain = values["gain"]

    def _act(self, row: int) -> Any:
        action = self.actions[self.at[row] % len(self.actions)]
        self.at[row] += 1
        return action

    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        return self._act(0), {"gain": float(self.gain[0]), "pid": os.getpid()}

    def get_actions(self, observations: Any) -> tuple[Any, dict[str, Any]]:
        rows = len(observations)
        return [self._act(row) for row in range(rows)], {"gain": [float(self.gain[0])] * rows}


class Coin:
    """A stochastic policy on the process's own generator."""

    def __init__(self, sides: int = 3) -> None:
        self.sides = sides

    def reset(self, do_resets: Any = None) -> None:
        """Nothing is remembered."""

    def get_action(self, observation: Any) -> tuple[int, dict[str, Any]]:
        draw = np.random.random()
        return int(draw * self.sides), {"draw": draw}

    def get_actions(self, observations: Any) -> tuple[list[int], dict[str, Any]]:
        draws = np.random.random(len(observations))
        return [int(draw * self.sides) for draw in draws], {"draw": draws}


class Crashing:
    """Cannot even be reset."""

    def reset(self, **kwargs: Any) -> None:
        raise Exception("Intentional subprocess crash")


class Deadly(Coin):
    """Kills its process at the step that it is told to (or exits)."""

    def __init__(self, at: int, how: str = "kill") -> None:
        super().__init__()
        self.left, self.how = at, how

    def get_action(self, observation: Any) -> tuple[int, dict[str, Any]]:
        self.left -= 1
        if self.left < 0:
            if self.how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.how == "raise":
                raise ValueError("the agent had enough")
            os._exit(3)
        return super().get_action(observation)


class Once(Coin):
    """As `Deadly`, but only where nobody has died before: a file remembers."""

    def __init__(self, file: str, how: str = "kill") -> None:
        super().__init__()
        self.file, self.how, self.steps = file, how, 0

    def get_action(self, observation: Any) -> tuple[int, dict[str, Any]]:
        self.steps += 1
        if self.steps == 20:
            try:
                os.close(os.open(self.file, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return super().get_action(observation)
            if self.how == "raise":
                raise ValueError("only once")
            while self.how == "hang":
                signal.pause()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().get_action(observation)
