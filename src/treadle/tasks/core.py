"""Tasks: goals set in an environment, one at a time, drawn from a sampler; and sensors, which show an agent of both.

A *task* is one episode: an environment that is ready to go, sensors that say what the agent sees, a limit of steps and
a goal. It is stepped until it is done and never reset. A *sampler* is a stream of tasks; `None` says that the stream
is exhausted, which is a value and no error.
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
CALLBACK_KEY = "__AFTER_TASK_CALLBACK__"  # in the same info: what callback sensors showed then


class RLStepResult(NamedTuple):
    """The result of a step.

    Attributes:
        observation: of the state reached; from a vector, on the step that ends a task, of the next task (None: there
            is none).
        reward: a number, or a list with one an agent.
        done: is the task over?
        info: anything else; None is an empty one.
    """

    observation: Any | None
    reward: Any | None
    done: bool | None
    info: dict[str, Any] | None

    def clone(self, new_info: dict[str, Any]) -> RLStepResult:
        """The same with the fields that `new_info` names replaced; other keys of it are ignored."""
        return self._replace(**{name: new_info[name] for name in self._fields if name in new_info})

    def merge(self, other: RLStepResult) -> RLStepResult:
        """`other`'s fields where they are not None, and both infos in one, `other`'s entries winning."""
        return RLStepResult(
            self.observation if other.observation is None else other.observation,
            self.reward if other.reward is None else other.reward,
            self.done if other.done is None else other.done,
            {**(self.info or {}), **(other.info or {})},
        )


class Sensor(Generic[EnvType, SubTaskType]):
    """One named part of the observations. A subclass overrides `get_observation`.

    `Sensor[Env, Task]` says which environment and which task it looks at; `Sensor[Env]` is a sensor for any task.

    Args:
        uuid: its name, the key of its observations.
        observation_space: what its observations are in. Observations that are arrays of exactly the space's dtype and
            shape travel through shared memory; anything else is sent as it is, which costs more.
        kwargs: for subclasses that pass all their arguments on; not used here.
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
        """Return the sensor's present observation. `task`: None where the environment alone is looked at."""
        raise NotImplementedError(f"{type(self).__name__} does not say what it shows: override get_observation")


class SensorSuite(Generic[EnvType]):
    """Sensors with names of their own.

    Args:
        sensors: in the order in which they are to be asked.

    Attributes:
        sensors: uuid -> sensor.
        observation_spaces: a Dict space with one entry a sensor, in the same order; of the older `gym` where the
            sensors' spaces are.

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
        """The sensor of that name. Raises KeyError."""
        return self.sensors[uuid]

    def get_observations(self, env: EnvType, task: Task[EnvType] | None, **kwargs: Any) -> dict[str, Any]:
        """uuid -> what that sensor shows now. `kwargs` are given to every sensor."""
        return {uuid: sensor.get_observation(env=env, task=task, **kwargs) for uuid, sensor in self.sensors.items()}


def dict_space(spaces: OrderedDict[str, gym.Space[Any]]) -> gym.spaces.Dict:
    """A Dict space of these, of the library that they are of. Raises UsageError for what is no space."""
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
    """One goal in one environment. Subclasses override `_step`, `reached_terminal_state`, `action_space`, `render`,
    `close`, and mostly `metrics`.

    Args:
        env: the environment, in the state in which the task begins.
        sensors: what the agent sees: a suite, or a sequence of which one is made.
        task_info: what defines the goal, and anything else worth knowing.
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
        self._total_reward: Any = 0.0  # a list with one an agent once a step has brought one

    # -- what a subclass says ----------------------------------------------------------------------------------------

    @property
    def action_space(self) -> gym.Space[Any]:
        """The space of actions."""
        raise self._missing("action_space")

    def _step(self, action: Any) -> RLStepResult:
        """Act, and say what came of it. `step` does the bookkeeping around it; `num_steps_taken` does not count this
        step yet. A `done` of True here ends nothing by itself: `is_done` decides."""
        raise self._missing("_step")

    def reached_terminal_state(self) -> bool:
        """Is the goal reached, or out of reach? The limit of steps is not meant."""
        raise self._missing("reached_terminal_state")

    def render(self, mode: str = "rgb", *args: Any, **kwargs: Any) -> np.ndarray:
        """A picture of the present state; mode "rgb" is uint8[height, width, 3]."""
        raise self._missing("render")

    def close(self) -> None:
        """Give back what the task holds."""
        raise self._missing("close")

    def _missing(self, name: str) -> NotImplementedError:
        return NotImplementedError(f"{type(self).__name__} has no {name}: a task class defines its own")

    @classmethod
    def class_action_names(cls, **kwargs: Any) -> tuple[str, ...]:
        """Names of the actions, so that `task.step(i)` does what `class_action_names()[i]` says.

        Raises NotImplementedError in a task class that names none.
        """
        raise NotImplementedError(f"{cls.__name__} names no actions: override class_action_names")

    def query_expert(self, **kwargs: Any) -> tuple[Any, bool]:
        """(an expert's action or policy, does the expert know one?). Here there is no expert: (None, False)."""
        return None, False

    def metrics(self) -> dict[str, Any]:
        """Name -> value, asked for when the task is done: a vector puts them into that step's info."""
        return {
            "ep_length": self.num_steps_taken(),
            "reward": self.cumulative_reward,
            "task_info": self.task_info,
        }

    # -- what it does with that --------------------------------------------------------------------------------------

    def get_observations(self, **kwargs: Any) -> Any:
        """Return the present observations of all sensors; `kwargs` are given to each."""
        return self.sensor_suite.get_observations(env=self.env, task=self, **kwargs)

    def step(self, action: Any) -> RLStepResult:
        """Act once. Override `_step` rather than this.

        Args:
            action: of the action space; with several agents, whatever the task takes for all of them.

        Returns:
            what `_step` returned, `done` also where the task is over.

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
        """Return True if it is over: the goal decided, or all steps used up."""
        return self.reached_terminal_state() or self.reached_max_steps()

    def is_truncated(self) -> bool:
        """Was it cut short: is it over, with its steps used up and the goal undecided? Override it where something else
        cuts tasks short; a vector asks on the step after which the task is done."""
        return self.reached_max_steps() and not self.reached_terminal_state()

    @property
    def cumulative_reward(self) -> float:
        """The sum of rewards so far; with several agents the mean of theirs."""
        total = self._total_reward
        return float(np.mean(total)) if isinstance(total, list) else total

    # -- names of actions --------------------------------------------------------------------------------------------

    def action_names(self) -> tuple[str, ...]:
        """Names of this task's actions; override it where `class_action_names` needs arguments."""
        return self.class_action_names()

    @property
    def total_actions(self) -> int:
        """How many actions an agent has."""
        return len(self.action_names())

    def index_to_action(self, index: int) -> str:
        """The name of an action. Raises AssertionError for a number that is not in 0..total_actions - 1."""
        if not 0 <= index < self.total_actions:
            raise AssertionError(f"action {index} is not in 0..{self.total_actions - 1}")
        return self.action_names()[index]


class TaskSampler(abc.ABC):
    """A stream of tasks."""

    @property
    @abc.abstractmethod
    def length(self) -> int | float:
        """How many tasks can still be sampled; float("inf") for a stream without end."""

    @property
    def total_unique(self) -> int | float | None:
        """How many different tasks there are, may be float("inf"); None where that is unknown."""
        return None

    @property
    @abc.abstractmethod
    def last_sampled_task(self) -> Task[Any] | None:
        """The task that was sampled last; None before the first."""

    @abc.abstractmethod
    def next_task(self, force_advance_scene: bool = False) -> Task[Any] | None:
        """The next task, None when the stream is exhausted.

        `force_advance_scene`: move on to another scene, for samplers that stay in one for a while.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Give back environments and whatever else is open; the sampler is not used after it."""

    @property
    @abc.abstractmethod
    def all_observation_spaces_equal(self) -> bool:
        """Whether all its tasks have the same observation space."""

    @abc.abstractmethod
    def reset(self) -> None:
        """Back to the beginning of the stream; the seed stays."""

    @abc.abstractmethod
    def set_seed(self, seed: int) -> None:
        """Set the seed that tasks are drawn with from now on."""


def ends_of(task: Any, over: bool) -> tuple[bool, bool]:
    """(terminated, truncated) of a step after which the task is `over`, or not.

    Both are the task's word, by its methods. A task of another make, without `is_truncated`, is truncated by its limit
    of steps without a terminal state.
    """
    if not over:
        return False, False
    terminated = bool(task.reached_terminal_state())
    cut = getattr(task, "is_truncated", None)
    return terminated, bool(cut()) if cut is not None else not terminated and bool(task.reached_max_steps())
