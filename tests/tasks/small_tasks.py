"""Small tasks that do one thing each, samplers of them, and the vectors that the scenarios run on."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces as gs

from treadle.tasks.core import RLStepResult, Sensor, Task, TaskSampler
from treadle.tasks.vectors import SampledTasks, SingleProcessVectorSampledTasks, VectorSampledTasks
from treadle.worker.options import WorkerOptions

RAISE, DIE, SLOW, LOCK, EXIT = 90, 91, 92, 93, 94  # actions that do harm
OWN_WORDS = {"aborted": 1, "dropped": 2, "restarted": 3, "terminated": 4, "truncated": True, "held": 5} | {
    "final_observation": 6,
    "__AFTER_TASK_METRICS__": 7,
    "__AFTER_TASK_CALLBACK__": 8,
    "task_held": 9,
}  # what a task may say in words that are also the vector's
NAP = 1.2  # seconds that SLOW takes
GATE = "TREADLE_TEST_GATE"  # environment variable: a file that SLOW waits for instead

# how a scenario's vector is made (see `vector`): a few ways always, all of them when there is time
QUICK = ["single", "thread-2", "forkserver-2"]
FULL = [f"{kind}-{count}" for kind in ("serial", "thread", "forkserver", "spawn", "fork") for count in ("1", "2", "n")]
LEFT = [pytest.param(how, marks=pytest.mark.slow) for how in FULL if how not in QUICK]

EVERY_WAY = [*QUICK, *LEFT]
every_way = pytest.mark.parametrize("how", EVERY_WAY)


class Where(Sensor[Any]):
    """[slot, number of the task, steps taken, seed of the sampler]: what every test can check a row by."""

    def __init__(self) -> None:
        super().__init__("where", gs.Box(-1, 2**31, (4,), np.int64))

    def get_observation(self, env: Any, task: Any, *args: Any, **kwargs: Any) -> Any:
        return np.array([env["slot"], task.task_info["number"], task.num_steps_taken(), task.task_info["seed"]])


class Nested(Sensor[Any]):
    """A Dict within the Dict: a picture, a number and a single float."""

    def __init__(self) -> None:
        space = gs.Dict(
            {
                "picture": gs.Box(0, 255, (4, 5, 3), np.uint8),
                "level": gs.Discrete(50),
                "share": gs.Box(0, 1, (), np.float32),
            }
        )
        super().__init__("nested", space)

    def get_observation(self, env: Any, task: Any, *args: Any, **kwargs: Any) -> Any:
        picture = env["picture"]
        picture[...] = 10 * env["slot"] + task.num_steps_taken()  # the same array for ever: results must be snapshots
        return {"picture": picture, "level": task.num_steps_taken(), "share": np.array(0.5, np.float32)}


class Mission(Sensor[Any]):
    """Text: it has no fixed shape."""

    def __init__(self) -> None:
        super().__init__("mission", gs.Text(100))

    def get_observation(self, env: Any, task: Any, *args: Any, **kwargs: Any) -> Any:
        return f"go to {task.task_info['number']}"


class Sloppy(Sensor[Any]):
    """Declares float32[2] and returns whatever it likes: the declared thing every second step only."""

    def __init__(self) -> None:
        super().__init__("sloppy", gs.Box(-1, 1, (2,), np.float32))

    def get_observation(self, env: Any, task: Any, *args: Any, **kwargs: Any) -> Any:
        t = task.num_steps_taken()
        return [np.zeros(2, np.float32), np.array([0.1, 1e300]), None, [1, "two"]][t % 4]


SENSORS: dict[str, Callable[[], Sensor[Any]]] = {
    "where": Where,
    "nested": Nested,
    "mission": Mission,
    "sloppy": Sloppy,
}


class CountTask(Task[Any]):
    """Ends by its limit of steps, or with action 7 in a terminal state. Its reward is the action.

    Action 8 is `done` without the task being done; 6 has an info of words that the vector uses too; 5 has an info.
    """

    own_info: dict[str, Any] = {"shared": 1}  # noqa: RUF012 - one for all, as careless tasks have it
    solved = False
    cut = False

    @property
    def action_space(self) -> Any:
        return gs.Discrete(100)

    def _step(self, action: Any) -> RLStepResult:
        self.harm(action)
        self._num_steps_taken += 1  # sensors are to count this step
        observation = self.get_observations()
        self._num_steps_taken -= 1
        rewards = self.task_info["agents"]
        value = float(action) if isinstance(action, int) else float(np.sum(action))
        reward: Any = [value + i for i in range(rewards)] if rewards else value
        self.solved = action == 7
        info = {6: OWN_WORDS, 5: self.own_info, 8: None}.get(action if isinstance(action, int) else 0, {})
        return RLStepResult(observation, reward, action == 8, info)

    def harm(self, action: Any) -> None:
        """What a bad action does."""
        if action is RAISE or action == RAISE:
            raise KeyError("no luck with this action")
        if action == DIE:
            os._exit(3)
        if action == SLOW:
            if gate := os.environ.get(GATE):
                while not os.path.exists(gate):
                    time.sleep(0.01)
            else:
                time.sleep(NAP)

    def reached_terminal_state(self) -> bool:
        return self.solved

    def render(self, mode: str = "rgb", *args: Any, **kwargs: Any) -> np.ndarray:
        assert mode == "rgb"
        return np.full((4, 5, 3), 1 + self.env["slot"] + kwargs.get("add", 0), np.uint8)

    def close(self) -> None:
        self.env["closed"] = True

    def lock(self) -> Any:
        """A result that cannot be pickled."""
        return {"fine": 1, "lock": threading.Lock()}

    def add(self, a: int, b: int = 0) -> int:
        """A call with arguments."""
        return 100 * self.env["slot"] + a + b

    def fail(self) -> None:
        """A call that raises, in slot 1."""
        if self.env["slot"] == 1:
            raise ValueError("slot 1 does not like to be called")


class Lengths(Sensor[Any]):
    """A callback sensor: how long the task took."""

    def __init__(self) -> None:
        super().__init__("lengths", gs.Discrete(1000))

    def get_observation(self, env: Any, task: Any, *args: Any, **kwargs: Any) -> Any:
        return {"slot": env["slot"], "length": task.num_steps_taken()}


class CountSampler(TaskSampler):
    """Args:
    slot: what its tasks tell.
    tasks: how many there are; None: no end.
    steps: how long each is; a list is gone through in turn.
    sensors: names in `SENSORS`.
    agents: that many rewards in a list; 0: one number.
    """

    def __init__(
        self,
        slot: int,
        tasks: int | None = None,
        steps: int | list[int] = 3,
        sensors: tuple[str, ...] = ("where",),
        agents: int = 0,
        mp_ctx: Any = None,
    ) -> None:
        self.slot, self.tasks, self.agents, self.mp_ctx = slot, tasks, agents, mp_ctx
        self.steps = [steps] if isinstance(steps, int) else steps
        self.sensors = [SENSORS[name]() for name in sensors]
        self.env = {"slot": slot, "picture": np.zeros((4, 5, 3), np.uint8)}
        self.seed, self.number = -1, 0
        self.last: CountTask | None = None

    @property
    def length(self) -> float:
        return float("inf") if self.tasks is None else self.tasks - self.number

    @property
    def total_unique(self) -> float | None:
        return self.tasks

    @property
    def last_sampled_task(self) -> CountTask | None:
        return self.last

    @property
    def all_observation_spaces_equal(self) -> bool:
        return True

    def next_task(self, force_advance_scene: bool = False) -> CountTask | None:
        if self.tasks is not None and self.number >= self.tasks:
            return None
        steps = self.steps[self.number % len(self.steps)]
        self.number += 1
        info = {"number": self.number, "seed": self.seed, "forced": force_advance_scene, "agents": self.agents}
        self.last = CountTask(self.env, self.sensors, info, steps)
        return self.last

    def reset(self) -> None:
        self.number = 0

    def set_seed(self, seed: int) -> None:
        self.seed = seed

    def close(self) -> None:
        self.env["closed"] = True

    def own_env(self) -> dict[str, Any]:
        """A call that returns an object which its owner goes on using."""
        return self.env

    def twice(self, x: int) -> int:
        """A call of the sampler's own."""
        return 2 * x


def samplers(n: int = 3, **kwargs: Any) -> list[dict[str, Any]]:
    """Arguments of n samplers; a list is dealt out to them."""
    dealt = {key: value if isinstance(value, list) else [value] * n for key, value in kwargs.items()}
    return [{"slot": slot, **{key: values[slot] for key, values in dealt.items()}} for slot in range(n)]


def vector(how: str, args: list[dict[str, Any]], make: Any = CountSampler, **options: Any) -> SampledTasks:
    """A vector of tasks; `how`: "single", or a backend or start method and how many workers ("fork-2", "thread-n")."""
    options.setdefault("should_log", False)
    if how == "single":
        if "callback_sensors" in options:
            options["callback_sensor_suite"] = options.pop("callback_sensors")
        return SingleProcessVectorSampledTasks(make, args, **options)
    kind, count = how.split("-")
    options["max_processes"] = None if count == "n" else int(count)
    if kind in ("thread", "serial"):
        options["worker_options"] = WorkerOptions(backend=kind)
    else:
        options["multiprocessing_start_method"] = kind
    return VectorSampledTasks(make, args, **options)


def where(observations: list[Any]) -> list[list[int] | None]:
    """What the `Where` sensor says in each observation."""
    return [None if each is None else each["where"].tolist() for each in observations]
