"""The public vectors of tasks, and their calls, attributes and AllenAct's string commands.

Only this module knows the strings: `command` and `command_at` turn them into the vector's own calls. `tile` makes one
picture of many for `render`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING, Any

import numpy as np

from treadle.checks import check_names
from treadle.errors import MissingExtra, UsageError
from treadle.tasks import arguments
from treadle.tasks.arguments import NotSupported
from treadle.tasks.core import CALLBACK_KEY, METRICS_KEY, RLStepResult, Sensor, SensorSuite, TaskSampler
from treadle.tasks.orders import NextTask, ResetSampler, TaskOp
from treadle.tasks.vector import TaskVector
from treadle.vector.core import one_at_a_time
from treadle.worker.backends import default_backend
from treadle.worker.options import WorkerOptions, chosen

if TYPE_CHECKING:
    from treadle.lockstep.lockstep import Operation

COMPLETE_TASK_METRICS_KEY, COMPLETE_TASK_CALLBACK_KEY = METRICS_KEY, CALLBACK_KEY  # as AllenAct's module has them
# commands that do not change the recorded states: name -> function from the command's data to a slot's operation
CALLS: dict[str, Callable[[Any], Operation]] = {
    "render": lambda data: (TaskOp.RENDER, *_render_arguments(data)),
    "observation_space": lambda data: (TaskOp.TASK_ATTR, ("observation_space",), {}),
    "action_space": lambda data: (TaskOp.TASK_ATTR, ("action_space",), {}),
    "call": lambda data: (TaskOp.TASK_CALL, _call_arguments(data), {}),
    "call_sampler": lambda data: (TaskOp.SAMPLER_CALL, _call_arguments(data), {}),
    "attr": lambda data: (TaskOp.TASK_ATTR, (data,), {}),
    "sampler_attr": lambda data: (TaskOp.SAMPLER_ATTR, (data,), {}),
}
COMMANDS = ("step", "next_task", "reset", "seed", *CALLS)
DONE = "done"  # the result of commands that return nothing else


def _call_arguments(data: Any) -> tuple[Any, ...]:
    name, args = _pair(data, "a function's name and its list of arguments, or None")
    try:
        return name, *(args or ())
    except TypeError:
        raise UsageError(
            f"a function is called with a list of arguments (or None), got {type(args).__name__}. Nothing was sent"
        ) from None


def _render_arguments(data: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    args, kwargs = _pair(data, "arguments and keyword arguments") if data is not None else ((), {})
    return tuple(args), {"mode": "rgb", **kwargs}


def _pair(data: Any, what: str) -> tuple[Any, Any]:
    if not isinstance(data, tuple | list) or len(data) != 2:
        raise UsageError(f"the data of this command is a pair ({what}), got {data!r}. Nothing was sent")
    return data[0], data[1]


def checked(command: str) -> str:
    """Return the command. Raises NotSupported (a NotImplementedError) for an unknown one."""
    if command not in COMMANDS:
        raise NotSupported(f"{command!r} is not a command; there are {', '.join(COMMANDS)}")
    return command


class SampledTasks(TaskVector):
    """Task samplers, one a slot, stepped together. Made by `VectorSampledTasks` and `SingleProcessVectorSampledTasks`.

    Slots are counted from 0 in the order of the samplers' arguments. An *index* counts the slots that are not paused,
    so the two are equal until the first `pause_at`. Errors name the slot. Use a vector from one thread at a time: calls
    that overlap are refused.

    Every step's info has `terminated` (the task's `reached_terminal_state()`) and `truncated` (its `is_truncated()`).
    Both are False while the task goes on. The task's own info is never changed; a value under one of the vector's keys
    is kept as "task_" + key. The step that ends a task also has:

    - "__AFTER_TASK_METRICS__": the task's metrics, if it has any.
    - "__AFTER_TASK_CALLBACK__": the observations of the callback sensors.
    - "final_observation": the task's last observation, since `observation` is the next task's first one, or None if
      the sampler is exhausted.

    If a task raises, the method raises TaskRaised (of the original's type as well), with the other slots' results in
    `.partial`. No worker dies of it.

    Attributes:
        observation_space: the observation space, equal for all tasks.
        action_spaces: list of one action space for each slot.
        metrics_out_queue: as given, or a queue of this process that keeps the latest 10,000 metrics.
        should_log, max_processes, read_timeout: as given.
    """

    @one_at_a_time
    def call(self, function_names: str | list[str], function_args_list: list[Any] | None = None) -> list[Any]:
        """Call a function of every unpaused slot's present task; returns one result a slot.

        Args:
            function_names: one for all slots, or a list with one for each.
            function_args_list: a list of positional arguments (or None) for each slot; None: no arguments.
        """
        names = self._each("call", function_names, "function names")
        return self.command("call", list(zip(names, self._each("call", function_args_list, "argument lists"))))

    @one_at_a_time
    def call_at(self, sampler_index: int, function_name: str, function_args: list[Any] | None = None) -> Any:
        """Call a function of one slot's present task with positional arguments; returns its result."""
        return self.command_at(sampler_index, "call", (function_name, function_args))

    @one_at_a_time
    def attr(self, attr_names: list[str] | str) -> list[Any]:
        """Return an attribute of every unpaused slot's present task: one name for all, or one for each."""
        return self.command("attr", list(self._each("attr", attr_names, "attribute names")))

    @one_at_a_time
    def attr_at(self, sampler_index: int, attr_name: str) -> Any:
        """Return an attribute of one slot's present task."""
        return self.command_at(sampler_index, "attr", attr_name)

    @one_at_a_time
    def get_observations(self) -> list[Any]:
        """Return the present observation of every unpaused slot's task."""
        return self.call("get_observations")

    # -- string commands ---------------------------------------------------------------------------------------------

    @one_at_a_time
    def command(self, commands: list[str] | str, data_list: list[Any] | None = None) -> list[Any]:
        """Run AllenAct's commands, the same one in all unpaused slots or one for each; returns one result a slot.

        | command | data | result |
        |---|---|---|
        | step | the action | an RLStepResult |
        | next_task | keyword arguments, or None | the first observation |
        | render | (arguments, keyword arguments) | a picture |
        | observation_space, action_space | | the present task's |
        | call, call_sampler | (name, arguments or None) | the result of the task's, or the sampler's, function |
        | attr, sampler_attr | name | the task's, or the sampler's, attribute |
        | reset | | "done": the sampler is reset, and its first task taken |
        | seed | a seed | "done" |

        Raises NotSupported (a NotImplementedError) for an unknown command; nothing was sent.
        """
        self._begin("command")
        each = [checked(name) for name in self._each("command", commands, "commands")]
        data = self._each("command", data_list, "data")
        if set(each) <= CALLS.keys():
            return self._called(each, dict(zip(self._live, data)))
        if len(set(each)) == 1:
            return self._same(each[0], dict(zip(self._live, data)))
        return [self._same(name, {slot: given})[0] for slot, name, given in zip(self._live, each, data)]

    @one_at_a_time
    def command_at(self, sampler_index: int, command: str, data: Any | None = None) -> Any:
        """Run a command in one slot; see `command`."""
        self._begin("command_at")
        return self._same(checked(command), {self._slot(sampler_index): data})[0]

    def _same(self, command: str, data: dict[int, Any]) -> list[Any]:
        """Run one command in some slots."""
        if command == "step":
            return self._advance(list(data), list(data.values()))
        if command == "next_task":
            return self._observe({slot: NextTask(dict(given or {})) for slot, given in data.items()})
        if command == "reset":
            self._observe(dict.fromkeys(data, ResetSampler()))
        elif command == "seed":
            self._seed(data)
        else:
            return self._called([command] * len(data), data)
        return [DONE] * len(data)

    def _called(self, commands: list[str], data: dict[int, Any]) -> list[Any]:
        """Run commands that are calls of the slots' tasks or samplers, one a slot."""
        on_task = not {"call_sampler", "sampler_attr"}.issuperset(commands)
        return self._ask({slot: CALLS[name](data[slot]) for slot, name in zip(data, commands)}, task=on_task)

    @one_at_a_time
    def render(self, mode: str = "human", *args: Any, **kwargs: Any) -> np.ndarray | list[np.ndarray] | None:
        """Render all unpaused slots' tasks.

        Args:
            mode: "rgb_array": one tiled image, see `treadle.tasks.vectors.tile`; "raw_rgb_list": a list of images;
                "human": show the tiled image in a window and return None (needs OpenCV).
            args, kwargs: arguments of every task's `render`, besides its `mode`, which is "rgb".

        Raises:
            NotSupported (a NotImplementedError): any other mode.
        """
        if mode not in ("human", "rgb_array", "raw_rgb_list"):
            raise NotSupported(f"render mode must be 'human', 'rgb_array' or 'raw_rgb_list', got {mode!r}")
        pictures = self.command("render", [(args, kwargs)] * len(self._live))
        if mode == "raw_rgb_list":
            return pictures
        image = tile(pictures)
        if mode == "rgb_array":
            return image
        show(image)
        return None


def tile(images: Sequence[Any]) -> np.ndarray:
    """Return one image of many, row by row from the top left. It has as many columns as rows, or one column fewer.

    Args:
        images: at least one, [height, width, channels]; [height, width] is grey and gets three channels. Images smaller
            than the largest, and places without an image, are padded with zeros (black).

    Returns:
        [rows * height, columns * width, channels] of the images' dtype.

    Raises:
        UsageError: the list is empty, an entry is not an image, or images have different numbers of channels.
    """
    if not images:
        raise UsageError("nothing to render: all slots are paused")
    pictures = [_with_channels(np.asarray(image), i) for i, image in enumerate(images)]
    channels = pictures[0].shape[2]
    for i, picture in enumerate(pictures):
        if picture.shape[2] != channels:
            raise UsageError(f"picture {i} has {picture.shape[2]} channels, picture 0 has {channels}")
    rows = math.ceil(math.sqrt(len(pictures)))
    columns = math.ceil(len(pictures) / rows)
    height, width = (max(picture.shape[axis] for picture in pictures) for axis in (0, 1))
    out = np.zeros((rows * height, columns * width, channels), np.result_type(*pictures))
    for i, picture in enumerate(pictures):
        y, x = i // columns * height, i % columns * width
        out[y : y + picture.shape[0], x : x + picture.shape[1]] = picture
    return out


def _with_channels(image: np.ndarray, i: int) -> np.ndarray:
    if image.ndim == 2:
        image = np.repeat(image[:, :, None], 3, axis=2)
    if image.ndim != 3 or image.dtype.kind not in "uifb":
        raise UsageError(f"picture {i} is {image.dtype}{list(image.shape)}, not [height, width, channels]")
    return image


def show(image: np.ndarray, title: str = "vectask") -> None:
    """Show an RGB image in a window and return at once. Raises MissingExtra without OpenCV."""
    try:
        import cv2
    except ImportError as error:
        raise MissingExtra("render('human') needs OpenCV: pip install opencv-python") from error
    cv2.imshow(title, image[:, :, ::-1])
    cv2.waitKey(1)


class VectorSampledTasks(SampledTasks):
    """Streams of tasks in worker processes, stepped together. The base class `SampledTasks` describes the results.

    Args:
        make_sampler_fn: makes one sampler. It is called in the worker with a dict of `sampler_fn_args`, and with
            `mp_ctx` if it has this argument. It travels by cloudpickle: lambdas and closures are fine.
        sampler_fn_args: one dict a sampler; the dicts are not changed.
        positional: the arguments below by position, as older scripts give them, in either of AllenAct's two orders.
        callback_sensors: called when a task is done; see `SampledTasks`.
        auto_resample_when_done: True: a slot moves on when its task is done. False: it waits until the tasks of all
            unpaused slots are done, and takes None as its action until then.
        multiprocessing_start_method: "forkserver", "spawn" or "fork".
        mp_ctx: a multiprocessing context that gives the start method instead. Both arguments at once are refused.
        metrics_out_queue: an object with `put_nowait`, which also gets the metrics. A full queue is left unchanged.
            None: a `queue.Queue` of this process, which keeps the latest 10,000.
        should_log: log to "treadle" each sampler's arguments (level INFO).
        max_processes: the most workers; None: one a sampler. Workers have contiguous shares of the samplers; if the
            division leaves a remainder, the first workers have one more.
        read_timeout: seconds for one call, after which it raises WorkerTimeout (a TimeoutError); late answers are
            dropped. None: no limit.
        on_failure: the reaction to a worker's death or a missed `read_timeout`. `"raise"`: raise the error.
            `"restart"`: cut the present tasks of its slots (done, truncated, info["aborted"]) and make new samplers.
            Samplers of a finite length are brought to the old ones' place. The first observation has
            info["restarted"]. `"drop"`: cut the tasks; the slots have no task any more (info["dropped"], observation
            None).
        worker_options: a `treadle.WorkerOptions`. Its `start_method` is refused: `multiprocessing_start_method` or
            `mp_ctx` gives it. Its `start_timeout` counts as at least five times `read_timeout`. In the caller, and
            with threads under on_failure="raise", `read_timeout` ends no call, and only causes a warning.
        **unknown: refused; the error names the nearest argument.

    Raises:
        StartupFailed: a sampler could not be made, or has no first task (then it is a RuntimeError too). All workers
            are ended.
        NotSupported (a NotImplementedError): the samplers' observation spaces are not equal.
        UsageError: an argument is unknown or invalid.
    """

    @arguments.in_either_order(arguments.OLDER, arguments.NEWER)
    def __init__(
        self,
        make_sampler_fn: Callable[..., TaskSampler],
        sampler_fn_args: Sequence[dict[str, Any]] | None = None,
        *positional: Any,
        callback_sensors: Sequence[Sensor[Any]] | SensorSuite[Any] | None = None,
        auto_resample_when_done: bool = True,
        multiprocessing_start_method: str | None = arguments.DEFAULT_METHOD,
        mp_ctx: BaseContext | None = None,
        metrics_out_queue: Any = None,
        should_log: bool = True,
        max_processes: int | None = None,
        read_timeout: float | None = 60,
        on_failure: str = "raise",
        worker_options: WorkerOptions | None = None,
        **unknown: Any,
    ) -> None:
        check_names(type(self), unknown)
        given = chosen(worker_options, start_method="multiprocessing_start_method= or mp_ctx= says it")
        start = arguments.starting(multiprocessing_start_method, mp_ctx)
        if "backend" not in given:
            asked = mp_ctx is not None or multiprocessing_start_method is not arguments.DEFAULT_METHOD
            given["backend"] = default_backend({"start_method": start.method if asked else None, **given})
        given["start_timeout"] = arguments.start_limit(given.get("start_timeout"), read_timeout)
        super().__init__(
            make_sampler_fn,
            sampler_fn_args,
            callbacks=callback_sensors,
            resample=auto_resample_when_done,
            start=start,
            metrics_out_queue=metrics_out_queue,
            should_log=should_log,
            max_processes=max_processes,
            step_timeout=read_timeout,
            start_method=start.method if given["backend"] == "process" else None,
            on_failure=on_failure,
            **given,
        )


class SingleProcessVectorSampledTasks(SampledTasks):
    """A `VectorSampledTasks` in the caller, without workers and time limits.

    Args:
        sampler_fn_args_list: as `sampler_fn_args` there. `mp_ctx` is None for samplers whose dict does not have it.
        callback_sensor_suite: as `callback_sensors` there.
    """

    @arguments.in_either_order(arguments.OLDER_SINGLE, arguments.NEWER_SINGLE)
    def __init__(
        self,
        make_sampler_fn: Callable[..., TaskSampler],
        sampler_fn_args_list: Sequence[dict[str, Any]] | None = None,
        *positional: Any,
        callback_sensor_suite: SensorSuite[Any] | Sequence[Sensor[Any]] | None = None,
        auto_resample_when_done: bool = True,
        should_log: bool = True,
        metrics_out_queue: Any = None,
    ) -> None:
        super().__init__(
            make_sampler_fn,
            sampler_fn_args_list,
            callbacks=callback_sensor_suite,
            resample=auto_resample_when_done,
            metrics_out_queue=metrics_out_queue,
            should_log=should_log,
            backend="serial",
        )

    # AllenAct's two classes name this argument differently

    def step_at(self, index_process: int, action: Any) -> list[RLStepResult]:
        """See `VectorSampledTasks.step_at`."""
        return super().step_at(index_process, action)

    def next_task_at(self, index_process: int) -> list[Any]:
        """See `VectorSampledTasks.next_task_at`."""
        return super().next_task_at(index_process)
