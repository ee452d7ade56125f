"""What a task vector does to single slots, or to all, besides stepping: calls, attributes, AllenAct's string commands.

The strings are known here and nowhere else: `command` and `command_at` turn them into calls of the vector's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from treadle.errors import UsageError
from treadle.tasks.orders import Ask, NextTask, ResetSampler
from treadle.tasks.refusals import NotSupported
from treadle.tasks.tiling import show, tile
from treadle.tasks.vector import TaskVector
from treadle.vector.turns import one_at_a_time

if TYPE_CHECKING:
    from treadle.pool.slotwise import Order

# commands that change nothing in the books: what each asks of a slot, from its data
CALLS: dict[str, Callable[[Any], Order]] = {
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


class SampledCommands(TaskVector):
    """The part of `SampledTasks` that the module tells of. Every method raises TaskRaised (of the original's type as
    well) for what a task raises, with the other slots' results in `.partial`; nothing dies of it."""

    @one_at_a_time
    def call(self, function_names: str | list[str], function_args_list: list[Any] | None = None) -> list[Any]:
        """Call a function of every unpaused slot's present task; one result a slot.

        Args:
            function_names: one for all, or one for each.
            function_args_list: a list of positional arguments (or None) for each; None: no arguments.
        """
        self._begin("call")
        names = self._each("call", function_names, "function names")
        args = self._each("call", function_args_list, "argument lists")
        return self._ask(
            {
                slot: (Ask.TASK_CALL, _call_arguments((name, each)), {})
                for slot, name, each in zip(self._live, names, args)
            }
        )

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
        orders = list(zip(self._live, each, data))
        kinds = set(each)
        if kinds <= CALLS.keys():
            on_task = not kinds <= {"call_sampler", "sampler_attr"}
            return self._ask({slot: CALLS[name](given) for slot, name, given in orders}, task=on_task)
        if len(kinds) == 1:
            return self._same(each[0], dict(zip(self._live, data)))
        return [self._same(name, {slot: given})[0] for slot, name, given in orders]

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
            on_task = command not in ("call_sampler", "sampler_attr")
            return self._ask({slot: CALLS[command](given) for slot, given in data.items()}, task=on_task)
        return [DONE] * len(data)

    @one_at_a_time
    def render(self, mode: str = "human", *args: Any, **kwargs: Any) -> np.ndarray | list[np.ndarray] | None:
        """Pictures of all unpaused slots' tasks.

        Args:
            mode: "rgb_array": one tiled image, see `treadle.tasks.tiling.tile`; "raw_rgb_list": a list of images;
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

    # -- the end -----------------------------------------------------------------------------------------------------


__all__ = ["COMMANDS", "SampledCommands"]
