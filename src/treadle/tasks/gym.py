"""The bridge of tasks and Gymnasium: environments as streams of tasks, and streams of tasks as environments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec

from treadle.checks import check_seed, check_whole
from treadle.errors import UsageError
from treadle.program.base import own_names
from treadle.program.gym_env import EnvRecipe
from treadle.tasks.core import METRICS_KEY, RLStepResult, Sensor, SensorSuite, Task, TaskSampler, ends_of

OWN = frozenset({"rewards", METRICS_KEY})  # keys that `TaskEnv` itself adds to a step's info
NO_LIMIT = 2**31 - 1  # max_steps of a task whose environment sets its own limit


class GymObservation(Sensor[gym.Env]):
    """Returns the environment's own latest observation, or a part of it.

    Args:
        space: the observation space of the environment, or the space of the part.
        key: the key of the part in a Dict observation; None: the whole observation.
        uuid: the sensor's name.
    """

    def __init__(self, space: gym.Space[Any], key: str | None = None, uuid: str = "observation") -> None:
        super().__init__(uuid, space)
        self._key = key

    def get_observation(self, env: gym.Env, task: Any, *args: Any, **kwargs: Any) -> Any:
        return task.observation if self._key is None else task.observation[self._key]


class GymTask(Task[gym.Env]):
    """One episode of a Gymnasium environment.

    Args:
        env: the environment, just reset.
        sensors: sensors of the agent's observations. None: sensors of the environment's observations, with one sensor
            for each key of a Dict space, or one sensor named "observation" for any other space.
        task_info: see `Task`.
        max_steps: steps after which the task is over, besides the environment's own limit; None: only that limit.
        observation, info: the values that the reset returned.

    Attributes:
        observation: the environment's latest observation, for sensors.
    """

    def __init__(
        self,
        env: gym.Env,
        sensors: SensorSuite[gym.Env] | Sequence[Sensor[gym.Env]] | None = None,
        task_info: dict[str, Any] | None = None,
        max_steps: int | None = None,
        *,
        observation: Any = None,
        info: dict[str, Any] | None = None,
    ) -> None:
        suite = sensors_of(env) if sensors is None else sensors
        super().__init__(
            env, suite, {} if task_info is None else task_info, NO_LIMIT if max_steps is None else max_steps
        )
        self.observation, self.info = observation, {} if info is None else info
        self._terminated = self._truncated = False

    @property
    def action_space(self) -> gym.Space[Any]:
        return self.env.action_space

    def _step(self, action: Any) -> RLStepResult:
        self.observation, reward, self._terminated, self._truncated, self.info = self.env.step(action)
        done = self._terminated or self._truncated
        return RLStepResult(self.get_observations(), float(reward), done, dict(self.info))

    def reached_terminal_state(self) -> bool:
        return bool(self._terminated)

    def is_done(self) -> bool:
        """Return True if the environment or the limit of steps has ended the task."""
        return bool(self._truncated) or super().is_done()

    def is_truncated(self) -> bool:
        """Return True if the environment's truncation or the limit of steps has ended the task."""
        return bool(self._truncated) or super().is_truncated()

    def render(self, mode: str = "rgb", *args: Any, **kwargs: Any) -> np.ndarray:
        """Return the environment's picture. Raises UsageError unless it was made with a render_mode."""
        picture: Any = self.env.render()
        if picture is None:
            raise UsageError("the environment renders nothing: make it with render_mode='rgb_array'")
        return picture

    @classmethod
    def class_action_names(cls, **kwargs: Any) -> tuple[str, ...]:
        """Raise UsageError: the names depend on the environment, see `action_names`."""
        raise UsageError("the actions of a GymTask depend on its environment: ask a task for action_names()")

    def action_names(self) -> tuple[str, ...]:
        """Return the names in the environment's `actions` enum (MiniGrid), or "0", "1", ... without an enum.

        Raises UsageError unless the action space is Discrete.
        """
        space = self.action_space
        if not isinstance(space, gym.spaces.Discrete):
            raise UsageError(f"only actions of a Discrete space have names, not those of {space}")
        named = getattr(self.env.unwrapped, "actions", None)
        try:
            names = tuple(action.name for action in named)  # type: ignore[union-attr]  # None is caught below
        except (TypeError, AttributeError):
            names = ()
        return names if len(names) == space.n else tuple(str(i) for i in range(int(space.n)))

    def close(self) -> None:
        """Do nothing: the sampler owns and closes the environment."""


def sensors_of(env: gym.Env) -> SensorSuite[gym.Env]:
    """Return sensors of the environment's own observations."""
    space = env.observation_space
    if isinstance(space, gym.spaces.Dict):
        return SensorSuite([GymObservation(part, key, str(key)) for key, part in space.spaces.items()])
    return SensorSuite([GymObservation(space)])


class GymTaskSampler(TaskSampler):
    """Episodes of one Gymnasium environment, as tasks.

    Args:
        env: an id, an EnvSpec or a callable that returns an environment; built at once.
        sensors: see `GymTask`; made once for all tasks. A callable gets the environment and returns the sensors.
        max_steps: see `GymTask`.
        seeds: seeds of the tasks' resets; there is one task for each, in this order. None: tasks without end.
        seed: seed of the first reset, for tasks without end; later resets continue the environment's random state.
        options: options of every reset.
        task_info: information for every task; "seed" is added if the task has one.
        env_kwargs, wrappers: for building the environment, as for `VectorEnv`.
        mp_ctx: ignored; it allows the class to be the `make_sampler_fn` of a vector.
    """

    def __init__(
        self,
        env: str | EnvSpec | Callable[..., gym.Env],
        sensors: SensorSuite[gym.Env] | Sequence[Sensor[gym.Env]] | Callable[[gym.Env], Any] | None = None,
        *,
        max_steps: int | None = None,
        seeds: Sequence[int] | None = None,
        seed: int | None = None,
        options: dict[str, Any] | None = None,
        task_info: dict[str, Any] | None = None,
        env_kwargs: dict[str, Any] | None = None,
        wrappers: Sequence[Callable[[gym.Env], gym.Env]] = (),
        mp_ctx: Any = None,
    ) -> None:
        check_whole(max_steps=max_steps)
        if not isinstance(seeds, Iterable | None):
            raise UsageError(f"seeds is a sequence of whole numbers, or None, got {seeds!r}")
        self._seeds = None if seeds is None else list(seeds)
        for each in (seed, *(self._seeds or ())):
            check_seed(each)
        self.env = EnvRecipe.of(env, env_kwargs, wrappers).build()
        made = sensors(self.env) if callable(sensors) else sensors
        made = sensors_of(self.env) if made is None else made
        self._suite = made if isinstance(made, SensorSuite) else SensorSuite(made)
        self._max_steps, self._options, self._info = max_steps, options, dict(task_info or {})
        self._seed, self._unused_seed = seed, seed
        self._next = 0
        self._last: GymTask | None = None

    @property
    def length(self) -> int | float:
        return float("inf") if self._seeds is None else len(self._seeds) - self._next

    @property
    def total_unique(self) -> int | float | None:
        return float("inf") if self._seeds is None else len(set(self._seeds))

    @property
    def last_sampled_task(self) -> GymTask | None:
        return self._last

    @property
    def all_observation_spaces_equal(self) -> bool:
        return True

    def next_task(self, force_advance_scene: bool = False) -> GymTask | None:
        """Return the next episode. `force_advance_scene` has no effect: an environment has no scenes."""
        if self._seeds is None:
            seed, self._unused_seed = self._unused_seed, None
        elif self._next >= len(self._seeds):
            return None
        else:
            seed = self._seeds[self._next]
        self._next += 1
        observation, info = self.env.reset(seed=seed, options=self._options)
        task_info = dict(self._info) if seed is None else {**self._info, "seed": seed}
        self._last = GymTask(self.env, self._suite, task_info, self._max_steps, observation=observation, info=info)
        return self._last

    def reset(self) -> None:
        """Go back to the first seed; a stream without end begins again with its `seed`, if it has one."""
        self._next, self._unused_seed, self._last = 0, self._seed, None

    def set_seed(self, seed: int) -> None:
        """Use this seed for the next task's reset, in a stream without end. A sampler with `seeds` ignores it."""
        self._seed = self._unused_seed = int(seed)

    def close(self) -> None:
        self.env.close()


class TaskEnv(gym.Env[Any, Any]):
    """A stream of tasks as a Gymnasium environment: every reset takes the next task.

    The step that ends a task has the task's metrics in its info, under "__AFTER_TASK_METRICS__".

    Args:
        sampler: the stream, or a callable that returns it. Its first task is taken at once for the spaces. The first
            reset begins this task, unless that reset has a seed.
        on_exhausted: "reset": the stream begins again; "raise": a reset raises UsageError if the stream is exhausted.
        render_mode: "rgb_array", or None for an environment that is never rendered.

    Raises:
        UsageError: the stream has no first task.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"]}  # type: ignore[misc]  # as Gymnasium's own

    def __init__(
        self,
        sampler: TaskSampler | Callable[[], TaskSampler],
        on_exhausted: str = "reset",
        render_mode: str | None = None,
    ) -> None:
        if on_exhausted not in ("reset", "raise"):
            raise UsageError(f"on_exhausted must be 'reset' or 'raise', got {on_exhausted!r}")
        if render_mode not in (None, "rgb_array"):
            raise UsageError(f"render_mode must be 'rgb_array' or None, got {render_mode!r}")
        self.render_mode = render_mode
        self.sampler: TaskSampler = sampler() if callable(sampler) else sampler
        self._on_exhausted = on_exhausted
        self._task = self._waiting = self.sampler.next_task()
        if self._task is None:
            raise UsageError("the sampler has no first task")
        self.observation_space = self._task.observation_space
        self.action_space = self._task.action_space

    @property
    def task(self) -> Task[Any]:
        """The present task, or the last one."""
        assert self._task is not None
        return self._task

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin the next task. A `seed` goes to the sampler first; `options` are keywords of its `next_task`."""
        super().reset(seed=seed)
        if seed is not None:
            self.sampler.set_seed(seed)
            self._waiting = None
        task, self._waiting = self._waiting, None
        if task is None:
            task = self.sampler.next_task(**(options or {}))
        if task is None and self._on_exhausted == "reset":
            self.sampler.reset()
            task = self.sampler.next_task()
        if task is None:
            raise UsageError("the sampler is exhausted")
        self._task = task
        return task.get_observations(), {"task_info": task.task_info}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step the task. With several agents, the reward is the mean of their rewards, and info["rewards"] holds them.

        terminated is the task's `reached_terminal_state`, truncated its `is_truncated`. A task that ends in neither way
        counts as truncated. A task's own info under "rewards" or "__AFTER_TASK_METRICS__" is kept as "task_" + name.
        """
        task = self.task
        result = task.step(action)
        info = own_names(result.info or {}, OWN, "task")
        over = task.is_done()
        terminated, truncated = ends_of(task, over or bool(result.done))
        if (over or result.done) and not (terminated or truncated):
            truncated = True  # the task ended in neither way, which Gymnasium does not allow
        reward: Any = result.reward
        if np.ndim(reward):
            info["rewards"] = reward
            reward = float(np.mean(reward))
        if over:
            info[METRICS_KEY] = task.metrics()
        return result.observation, float(reward), terminated, truncated, info

    def render(self) -> Any:
        """Return a picture of the task with render_mode "rgb_array", else None."""
        return self.task.render("rgb") if self.render_mode == "rgb_array" else None

    def close(self) -> None:
        self.sampler.close()
