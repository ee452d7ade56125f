"""Tasks, the samplers that yield them, and sensors, which make an agent's observations of environment and task.

A *task* is one episode: an environment in its first state, sensors for the agent's observations, a limit of steps and
a goal. A task is stepped until it is done, and never reset. A *sampler* is a stream of tasks. `None` in place of a task
means that the stream is exhausted, which is not an error.
"""

from __future__ import annotations

import abc
import importlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import gymnasium as gym
import numpy as np

from treadle.errors import UsageError

if TYPE_CHECKING:
    from typing_extensions import TypeVar as WithDefault

    SubTaskType = WithDefault("SubTaskType", default=Any)
else:
    SubTaskType = TypeVar("SubTaskType")

EnvType = TypeVar("EnvType")

METRICS_KEY = "__AFTER_TASK_METRICS__"  # in the info of the step that ends a task: its metrics
CALLBACK_KEY = "__AFTER_TASK_CALLBACK__"  # in the same info: observations of the callback sensors


class RLStepResult(NamedTuple):
    """The result of a step.

    Attributes:
        observation: observation of the new state. In a vector, the step that ends a task holds the next task's first
            observation (None: the sampler is exhausted).
        reward: a number, or a list with one number for each agent.
        done: True if the task is over.
        info: further information; None counts as empty.
    """

    observation: Any | None
    reward: Any | None
    done: bool | None
    info: dict[str, Any] | None

    def clone(self, new_info: dict[str, Any]) -> RLStepResult:
        """Return a copy in which `new_info` replaces the fields that it names; its other keys are ignored."""
        return self._replace(**{name: new_info[name] for name in self._fields if name in new_info})

    def merge(self, other: RLStepResult) -> RLStepResult:
        """Return a copy with the fields of `other` that are not None. Infos are merged; `other`'s entries win."""
        return RLStepResult(
            self.observation if other.observation is None else other.observation,
            self.reward if other.reward is None else other.reward,
            self.done if other.done is None else other.done,
            {**(self.info or {}), **(other.info or {})},
        )


class Sensor(Generic[EnvType, SubTaskType]):
    """One named part of the observations. A subclass overrides `get_observation`.

    `Sensor[Env, Task]` names the types of environment and task that the sensor reads; `Sensor[Env]` reads any task.

    Args:
        uuid: the sensor's name, the key of its observations.
        observation_space: the space of its observations. Arrays of exactly the space's dtype and shape travel through
            shared memory; other values are sent as messages, which costs more.
        kwargs: ignored; for subclasses that pass all their arguments on.
    """

    uuid: str
    observation_space: gym.Space[Any]

    def __init__(self, uuid: str, observation_space: gym.Space[Any], **kwargs: Any) -> None:
        self.uuid, self.observation_space = uuid, observation_space

    def __class_getitem__(cls, of: Any) -> Any:
        of = of if isinstance(of, tuple) else (of,)
        rest = (Any,) * (len(cls.__parameters__) - len(of))  # type: ignore[attr-defined]  # every generic class has it
        return super().__class_getitem__((*of, *rest))  # type: ignore[misc]  # and this

    def get_observation(self, env: EnvType, task: SubTaskType | None, *args: Any, **kwargs: Any) -> Any:
        """Return the sensor's present observation. `task`: None if the sensor reads the environment alone."""
        raise NotImplementedError(f"{type(self).__name__} has no observation: override get_observation")


class SensorSuite(Generic[EnvType]):
    """Sensors with different names.

    Args:
        sensors: in the order in which they are called.

    Attributes:
        sensors: uuid -> sensor.
        observation_spaces: a Dict space with one entry a sensor, in the same order. It is a space of the older `gym`
            if the sensors' spaces are.

    Raises:
        UsageError: two sensors have the same uuid.
    """

    sensors: dict[str, Sensor[EnvType]]
    observation_spaces: gym.spaces.Dict

    def __init__(self, sensors: Sequence[Sensor[EnvType]]) -> None:
        self.sensors = {}
        spaces: OrderedDict[str, gym.Space[Any]] = OrderedDict()  # Gymnasium sorts the keys of a plain dict
        each = list(sensors) if isinstance(sensors, Iterable) else [sensors]
        if not all(hasattr(sensor, "uuid") for sensor in each):
            raise UsageError(f"sensors is a list of sensors, got {sensors!r}")
        for sensor in each:
            if sensor.uuid in self.sensors:
                raise UsageError(f"two sensors have the uuid {sensor.uuid!r}")
            self.sensors[sensor.uuid] = sensor
            spaces[sensor.uuid] = sensor.observation_space
        self.observation_spaces = dict_space(spaces)

    def __iter__(self) -> Iterator[Sensor[EnvType]]:
        return iter(self.sensors.values())

    def __len__(self) -> int:
        return len(self.sensors)

    def get(self, uuid: str) -> Sensor[EnvType]:
        """Return the sensor of that name. Raises KeyError for an unknown name."""
        return self.sensors[uuid]

    def get_observations(self, env: EnvType, task: Task[EnvType] | None, **kwargs: Any) -> dict[str, Any]:
        """Return uuid -> the sensor's present observation. `kwargs` are passed to every sensor."""
        return {uuid: sensor.get_observation(env=env, task=task, **kwargs) for uuid, sensor in self.sensors.items()}


def dict_space(spaces: OrderedDict[str, gym.Space[Any]]) -> gym.spaces.Dict:
    """Return a Dict space of the library that the spaces are from.

    Raises UsageError for an object that is not a space, and for spaces of two libraries.
    """
    foreign = {name: space for name, space in spaces.items() if not isinstance(space, gym.Space)}
    for name, space in foreign.items():
        base = next((kind for kind in type(space).__mro__ if kind.__name__ == "Space"), None)
        if base is None:
            raise UsageError(f"the sensor {name!r} has no observation space, but {space!r}")
        package = base.__module__.partition(".")[0]
        if len(foreign) < len(spaces):
            raise UsageError(f"the sensor {name!r} has a space of {package}, others have Gymnasium's: use one library")
        kind: type[gym.spaces.Dict] = importlib.import_module(f"{package}.spaces").Dict
        return kind(spaces)
    return gym.spaces.Dict(spaces)


class Task(Generic[EnvType]):
    """One goal in one environment.

    Subclasses override `_step`, `reached_terminal_state`, `action_space`, `render`, `close`, and usually `metrics`.

    Args:
        env: the environment, in the task's first state.
        sensors: sensors of the agent's observations: a suite, or a sequence.
        task_info: the definition of the goal, and further information.
        max_steps: steps after which the task is over.

    Attributes:
        env, sensor_suite, task_info, max_steps: as given.
        observation_space: the suite's.
    """

    env: EnvType
    sensor_suite: SensorSuite[EnvType]
    task_info: dict[str, Any]
    max_steps: int
    observation_space: gym.Space[Any]

    def __init__(
        self,
        env: EnvType,
        sensors: SensorSuite[EnvType] | Sequence[Sensor[EnvType]],
        task_info: dict[str, Any],
        max_steps: int,
        **kwargs: Any,
    ) -> None:
        self.env = env
        self.sensor_suite = sensors if isinstance(sensors, SensorSuite) else SensorSuite(sensors)
        self.task_info = task_info
        self.max_steps = max_steps
        self.observation_space = self.sensor_suite.observation_spaces
        self._num_steps_taken = 0
        self._total_reward: Any = 0.0  # a list with one sum an agent, after a step with a list of rewards

    # -- methods for subclasses --------------------------------------------------------------------------------------

    @property
    def action_space(self) -> gym.Space[Any]:
        """The space of actions."""
        raise self._missing("action_space")

    def _step(self, action: Any) -> RLStepResult:
        """Take the action and return the result.

        `step` does the bookkeeping; `num_steps_taken` does not count this step yet. `done` in the result does not end
        the task: `is_done` decides.
        """
        raise self._missing("_step")

    def reached_terminal_state(self) -> bool:
        """Return True if the goal is reached or out of reach, whatever the limit of steps."""
        raise self._missing("reached_terminal_state")

    def render(self, mode: str = "rgb", *args: Any, **kwargs: Any) -> np.ndarray:
        """Return a picture of the present state; mode "rgb" is uint8[height, width, 3]."""
        raise self._missing("render")

    def close(self) -> None:
        """Release the task's resources."""
        raise self._missing("close")

    def _missing(self, name: str) -> NotImplementedError:
        return NotImplementedError(f"{type(self).__name__} has no {name}: a task class defines its own")

    @classmethod
    def class_action_names(cls, **kwargs: Any) -> tuple[str, ...]:
        """Return the names of the actions: `task.step(i)` takes the action `class_action_names()[i]`.

        Raises NotImplementedError unless a subclass overrides it.
        """
        raise NotImplementedError(f"{cls.__name__} does not name its actions: override class_action_names")

    def query_expert(self, **kwargs: Any) -> tuple[Any, bool]:
        """Return (an expert's action or policy, True if the expert has one); here, without an expert, (None, False)."""
        return None, False

    def metrics(self) -> dict[str, Any]:
        """Return the metrics, name -> value. A vector puts them into the info of the step that ends the task."""
        return {
            "ep_length": self.num_steps_taken(),
            "reward": self.cumulative_reward,
            "task_info": self.task_info,
        }

    # -- stepping ----------------------------------------------------------------------------------------------------

    def get_observations(self, **kwargs: Any) -> Any:
        """Return the present observations of all sensors; `kwargs` are passed to each."""
        return self.sensor_suite.get_observations(env=self.env, task=self, **kwargs)

    def step(self, action: Any) -> RLStepResult:
        """Take one step. Override `_step` rather than this method.

        Args:
            action: action of the action space; with several agents, an object that the task accepts for all of them.

        Returns:
            The result of `_step`, with `done` True if `is_done` is.

        Raises:
            UsageError: the task is over already.
        """
        if self.is_done():
            raise UsageError("this task is done: it takes no more steps")
        observation, reward, done, info = self._step(action)
        self._add(reward)
        self._increment_num_steps_taken()
        return RLStepResult(observation, reward, done or self.is_done(), info)

    def _add(self, reward: Any) -> None:
        if isinstance(reward, int | float) or not isinstance(reward, Sequence | np.ndarray) or np.ndim(reward) == 0:
            self._total_reward += float(reward)
            return
        each = [float(part) for part in reward]
        if isinstance(self._total_reward, list):
            each = [before + now for before, now in zip(self._total_reward, each, strict=True)]
        self._total_reward = each

    def _increment_num_steps_taken(self) -> None:
        self._num_steps_taken += 1

    def num_steps_taken(self) -> int:
        """Steps taken so far."""
        return self._num_steps_taken

    def reached_max_steps(self) -> bool:
        """Return True if all steps are used up."""
        return self.num_steps_taken() >= self.max_steps

    def is_done(self) -> bool:
        """Return True if the task is over: in a terminal state, or with all steps used up."""
        return self.reached_terminal_state() or self.reached_max_steps()

    def is_truncated(self) -> bool:
        """Return True if the limit of steps, and not a terminal state, has ended the task.

        Override it if anything else cuts tasks short. A vector calls it on the step after which the task is done.
        """
        return self.reached_max_steps() and not self.reached_terminal_state()

    @property
    def cumulative_reward(self) -> float:
        """The sum of rewards so far; with several agents, the mean of their sums."""
        total = self._total_reward
        return float(np.mean(total)) if isinstance(total, list) else total

    # -- names of actions --------------------------------------------------------------------------------------------

    def action_names(self) -> tuple[str, ...]:
        """Return the names of this task's actions; override it if `class_action_names` needs arguments."""
        return self.class_action_names()

    @property
    def total_actions(self) -> int:
        """The number of actions of an agent."""
        return len(self.action_names())

    def index_to_action(self, index: int) -> str:
        """Return the name of an action. Raises AssertionError unless `index` is in 0..total_actions - 1."""
        if not 0 <= index < self.total_actions:
            raise AssertionError(f"action {index} is not in 0..{self.total_actions - 1}")
        return self.action_names()[index]


class TaskSampler(abc.ABC):
    """A stream of tasks."""

    @property
    @abc.abstractmethod
    def length(self) -> int | float:
        """The number of tasks that can still be sampled; float("inf") for a stream without end."""

    @property
    def total_unique(self) -> int | float | None:
        """The number of different tasks, which may be float("inf"); None: unknown."""
        return None

    @property
    @abc.abstractmethod
    def last_sampled_task(self) -> Task[Any] | None:
        """The task that was sampled last; None before the first."""

    @abc.abstractmethod
    def next_task(self, force_advance_scene: bool = False) -> Task[Any] | None:
        """Return the next task, None if the stream is exhausted.

        `force_advance_scene`: move on to another scene, for samplers that draw several tasks from one scene.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Close environments and other resources; the sampler is not used afterwards."""

    @property
    @abc.abstractmethod
    def all_observation_spaces_equal(self) -> bool:
        """True if all tasks have the same observation space."""

    @abc.abstractmethod
    def reset(self) -> None:
        """Go back to the beginning of the stream; the seed stays."""

    @abc.abstractmethod
    def set_seed(self, seed: int) -> None:
        """Set the seed that later tasks are drawn with."""


def ends_of(task: Any, over: bool) -> tuple[bool, bool]:
    """Return (terminated, truncated) of a step; `over`: True if the task is over after it.

    The task's methods decide both. A task without `is_truncated`, such as AllenAct's own, counts as truncated if it
    has reached its limit of steps without a terminal state.
    """
    if not over:
        return False, False
    terminated = bool(task.reached_terminal_state())
    cut = getattr(task, "is_truncated", None)
    return terminated, bool(cut()) if cut is not None else not terminated and bool(task.reached_max_steps())
