"""Sensors: what an agent is shown of an environment and a task. A suite of them makes a task's observations."""

from __future__ import annotations

import importlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import gymnasium as gym

from treadle.errors import UsageError

if TYPE_CHECKING:
    from typing_extensions import TypeVar as WithDefault

    from treadle.tasks.core import Task

    SubTaskType = WithDefault("SubTaskType", default=Any)
else:
    SubTaskType = TypeVar("SubTaskType")

EnvType = TypeVar("EnvType")


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
        """What the sensor shows now. `task`: None where the environment alone is looked at."""
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
