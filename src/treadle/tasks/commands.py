"""What a task vector does to single slots, or to all, besides stepping: calls, attributes, AllenAct's string commands,
and snapshots, which keep the complete state of every slot.

The strings are known here and nowhere else: `command` and `command_at` turn them into calls of the vector's own. What
`render` shows of many tasks in one picture is made by `tile`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from treadle.errors import MissingExtra, StateError, UsageError, WorkerError
from treadle.pool import checkpoint
from treadle.states import snapshot_file
from treadle.tasks.orders import Ask, NextTask, ResetSampler
from treadle.tasks.refusals import NotSupported
from treadle.tasks.results import SlotBooks
from treadle.tasks.state import TaskState
from treadle.tasks.vector import TaskVector
from treadle.vector.orders import states_by_slot
from treadle.vector.turns import one_at_a_time

if TYPE_CHECKING:
    from treadle.pool.lockstep import Operation

# commands that change nothing in the books: what each asks of a slot, from its data
CALLS: dict[str, Callable[[Any], Operation]] = {
    "render": lambda data: (Ask.RENDER, *_render_arguments(data)),
    "observation_space": lambda data: (Ask.TASK_ATTR, ("observation_space",), {}),
    "action_space": lambda data: (Ask.TASK_ATTR, ("action_space",), {}),
    "call": lambda data: (Ask.TASK_CALL, _call_arguments(data), {}),
    "call_sampler": lambda data: (Ask.SAMPLER_CALL, _call_arguments(data), {}),
    "attr": lambda data: (Ask.TASK_ATTR, (data,), {}),
    "sampler_attr": lambda data: (Ask.SAMPLER_ATTR, (data,), {}),
}
COMMANDS = ("step", "next_task", "reset", "seed", *CALLS)
DONE = "done"  # the result of commands that have none


FORMAT = "treadle task vector snapshot 2"


@dataclass(frozen=True)
class SampledState:
    """The state of one slot of a vector of tasks, to be kept and given back.

    Attributes:
        inside: of its sampler and its present task.
        books: what the vector knows of it.
    """

    inside: TaskState
    books: SlotBooks


def _refuse_dropped(slots: set[int]) -> None:
    if slots:
        raise UsageError(f"slots {sorted(slots)} were dropped when their worker died: nothing brings them back")


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
    """Raises NotSupported (a NotImplementedError) for what is no command."""
    if command not in COMMANDS:
        raise NotSupported(f"{command!r} is no command; there are {', '.join(COMMANDS)}")
    return command


class SampledTasks(TaskVector):
    """Task samplers, one a slot, stepped together. Made by `VectorSampledTasks` and `SingleProcessVectorSampledTasks`.

    Slots are counted from 0 in the order of the samplers' arguments; an *index* counts those that are not paused, so
    it is the same until the first `pause_at`. Errors name the slot. Use it from one thread at a time: calls
    that overlap are refused.

    Every step's info has `terminated` (the task's `reached_terminal_state()`) and `truncated` (its `is_truncated()`,
    which is that the limit of steps was reached without that), False while the task goes on. The task's own info is
    never changed; what it has under a name of the vector's is kept as "task_" + name. On the step that ends a task
    there is more:

    - "__AFTER_TASK_METRICS__": its metrics, if it has any; "__AFTER_TASK_CALLBACK__": what callback sensors showed;
    - "final_observation": its last observation, since `observation` is the next task's first (None: there is none).

    Every method raises TaskRaised (of the original's type as well) for what a task raises, with the other slots'
    results in `.partial`; nothing dies of it.

    Attributes:
        observation_space: that all tasks have in common.
        action_spaces: one a slot.
        metrics_out_queue: as given, or a queue of this process that keeps the latest 10,000 metrics.
        should_log, max_processes, read_timeout: as given.
    """

    @one_at_a_time
    def call(self, function_names: str | list[str], function_args_list: list[Any] | None = None) -> list[Any]:
        """Call a function of every unpaused slot's present task; one result a slot.

        Args:
            function_names: one for all, or one for each.
            function_args_list: a list of positional arguments (or None) for each; None: no arguments.
        """
        names = self._each("call", function_names, "function names")
        return self.command("call", list(zip(names, self._each("call", function_args_list, "argument lists"))))

    @one_at_a_time
    def call_at(self, sampler_index: int, function_name: str, function_args: list[Any] | None = None) -> Any:
        """Call a function of one slot's present task with positional arguments; returns its result."""
        return self.command_at(sampler_index, "call", (function_name, function_args))

    @one_at_a_time
    def attr(self, attr_names: list[str] | str) -> list[Any]:
        """An attribute of every unpaused slot's present task: one name for all, or one for each."""
        return self.command("attr", list(self._each("attr", attr_names, "attribute names")))

    @one_at_a_time
    def attr_at(self, sampler_index: int, attr_name: str) -> Any:
        """An attribute of one slot's present task."""
        return self.command_at(sampler_index, "attr", attr_name)

    @one_at_a_time
    def get_observations(self) -> list[Any]:
        """What every unpaused slot's present task shows now."""
        return self.call("get_observations")

    # -- string commands ---------------------------------------------------------------------------------------------

    @one_at_a_time
    def command(self, commands: list[str] | str, data_list: list[Any] | None = None) -> list[Any]:
        """Run AllenAct's commands, the same one in all unpaused slots or one for each; one result a slot.

        | command | data | result |
        |---|---|---|
        | step | the action | an RLStepResult |
        | next_task | keyword arguments, or None | the first observation |
        | render | (arguments, keyword arguments) | a picture |
        | observation_space, action_space | | the present task's |
        | call, call_sampler | (name, arguments or None) | what the task's, or the sampler's, function returns |
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
        """One command in some slots."""
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
        """Commands that are calls of the slots' tasks or samplers, one a slot."""
        on_task = not {"call_sampler", "sampler_attr"}.issuperset(commands)
        return self._ask({slot: CALLS[name](data[slot]) for slot, name in zip(data, commands)}, task=on_task)

    @one_at_a_time
    def render(self, mode: str = "human", *args: Any, **kwargs: Any) -> np.ndarray | list[np.ndarray] | None:
        """Pictures of all unpaused slots' tasks.

        Args:
            mode: "rgb_array": one tiled image, see `treadle.tasks.commands.tile`; "raw_rgb_list": a list of images;
                "human": the tiled image in a window (None is returned; needs OpenCV).
            args, kwargs: for every task's `render`, whose `mode` is "rgb" unless `kwargs` say otherwise.

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

    # -- states --------------------------------------------------------------------------------------------------------

    @one_at_a_time
    def get_states(self) -> tuple[SampledState, ...]:
        """The complete state of every slot, paused ones included, in the order of the slots: its sampler and its task
        with their generators and counters, the environment that they share, and whether the task waits for others or
        there is none. They pickle, and any slot of a vector with the same samplers takes them.

        An environment is kept as `VectorEnv` keeps one where it is the attribute `env` of the task, or the sampler,
        and Gymnasium's; anything else is pickled. Callback sensors are not in it.

        Raises StateError (as TaskRaised) for what cannot be captured, UsageError for slots that were dropped, or that
        moved on in a step that nobody saw the result of.
        """
        self._begin("get_states")
        books = self._results
        unclear = sorted(books.gone | books.lost | self._lockstep.stale)
        if unclear:
            raise UsageError(
                f"slots {unclear} were dropped, or moved on in a step that failed: they have no state to be kept "
                "(next_task_at and reset_all bring back those that were not dropped)"
            )
        inside = self._run(self._lockstep.call, Ask.GET_STATE)
        _refuse_dropped({slot for slot, each in enumerate(inside) if each is None})
        return tuple(SampledState(each, books.of_slot(slot)) for slot, each in enumerate(inside))

    @one_at_a_time
    def set_states(self, states: Sequence[SampledState], slots: Sequence[int] | None = None) -> None:
        """Put every slot into a state, or some slots; what is paused stays so, and counters of steps go on. The slots
        get new samplers, and those that they had are not closed, since the environment goes on in the new ones.

        Args:
            states: one for each of them.
            slots: which, by number (a paused one counts too); None: all.

        Raises UsageError for a wrong number of states, or while results of `async_step` wait for `wait_step`;
        StateError for a state of another kind of slot (slots that could take theirs have it).
        """
        given = states_by_slot(states, slots, self._n, SampledState)
        self._begin("set_states")
        self._check_seen("set_states")
        _refuse_dropped(self._results.gone & given.keys())
        done: list[Any] = []
        try:
            done = self._ask({slot: (Ask.SET_STATE, (state.inside,), {}) for slot, state in given.items()}, task=False)
        except WorkerError as error:
            done = error.partial or []
            raise
        finally:
            self._have_taken({slot: given[slot] for slot, fine in zip(given, done) if fine})
        _refuse_dropped({slot for slot, fine in zip(given, done) if not fine})

    def _have_taken(self, states: dict[int, SampledState]) -> None:
        for slot, state in states.items():
            self._results.put_slot(slot, state.books)
        self._lockstep.placed(states)

    @one_at_a_time
    def snapshot(self, path: str | os.PathLike[str]) -> None:
        """Write everything to a file: the slots' states, which are paused, their counters of tasks and steps, and the
        last observations. The file is there whole, or not at all. Raises what `get_states` raises, and UsageError
        while results of `async_step` wait for `wait_step`."""
        states = self.get_states()
        self._check_seen("snapshot")
        snapshot_file.write(
            path,
            FORMAT,
            states=states,
            checkpoint=checkpoint.take(self._lockstep),
            live=list(self._live),
            steps=self._results.steps.copy(),
            episodes=self._results.episodes.copy(),
            space=self.observation_space,
        )

    @one_at_a_time
    def restore(self, path: str | os.PathLike[str]) -> None:
        """Go on where a snapshot was taken, here or in another process. The vector must have been made the same way;
        backend and number of workers are free.

        The file is a pickle: read only what you trust.

        Raises UsageError for a file that is no snapshot of a vector of tasks, or has another number of slots;
        StateError for one of other tasks. And what `set_states` raises.
        """
        kept = snapshot_file.read(path, FORMAT, "a vector of tasks")
        if len(kept["states"]) != self._n:
            raise UsageError(f"{os.fspath(path)} has {len(kept['states'])} slots, this vector has {self._n}")
        if kept["space"] != self.observation_space:
            raise StateError(
                f"{os.fspath(path)} is of tasks that show {kept['space']}, these show {self.observation_space}"
            )
        self.set_states(kept["states"])
        checkpoint.put(self._lockstep, kept["checkpoint"])
        self._live = list(kept["live"])
        self._results.steps[:] = kept["steps"]
        self._results.episodes[:] = kept["episodes"]

    def _check_seen(self, name: str) -> None:
        if self._arrived:
            raise UsageError(f"{name}: results of async_step wait for wait_step: take them first")


def tile(images: Sequence[Any]) -> np.ndarray:
    """One image of many, row by row from the top left; as many rows as columns, or one column fewer.

    Args:
        images: at least one, [height, width, channels]; [height, width] is grey, shown in three channels. Smaller ones
            than the largest, and places without an image, are padded with zeros (black).

    Returns:
        [rows * height, columns * width, channels] of the images' dtype.

    Raises:
        UsageError: there is no image, something that is none, or images of different numbers of channels.
    """
    if not images:
        raise UsageError("there is no task to be rendered: all are paused")
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
