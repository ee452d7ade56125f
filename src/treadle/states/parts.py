"""Objects pickled by value, except for those that stay where they are.

The attributes of an environment are part of its state; the environment itself, its wrappers, its spaces, its emulator
and its window are not: they exist once on each side. So whoever pickles names the objects that stay (`Fixed`), and a
reference to one of them travels as its name and becomes the receiver's own object of that name. Copying environments
instead would not do: Gymnasium's pickle as the arguments they were built with, and forget what they were doing.
"""

from __future__ import annotations

import io
import pickle
from types import FunctionType, ModuleType
from typing import Any

import gymnasium as gym

from treadle import pickling

Name = tuple[Any, ...]


class Fixed:
    """The objects that stay, by name, on one side."""

    def __init__(self, named: dict[Name, Any] | None = None) -> None:
        self.named: dict[Name, Any] = {}
        self._names: dict[int, Name] = {}
        for name, value in (named or {}).items():
            self.add(name, value)

    def add(self, name: Name, value: Any) -> None:
        """`value` stays, and is called `name`."""
        self.named[name] = value
        self._names[id(value)] = name

    def name_of(self, value: Any) -> Name | None:
        """Its name; None for what travels. Raises TypeError for an environment that nobody named."""
        name = self._names.get(id(value))
        if name is None and isinstance(value, gym.Env):
            raise TypeError(
                f"a {type(value).__name__} inside another environment has a state of its own that cannot be captured"
            )
        return name


def dump(value: Any, fixed: Fixed) -> bytes:
    """Pickle `value`. Raises what pickling raises, and TypeError for a nested environment."""
    stream = io.BytesIO()
    try:
        _Pickler(stream, fixed).dump(value)
    except (pickle.PicklingError, AttributeError):  # lambdas and local classes
        stream = io.BytesIO()
        _CloudPickler(stream, fixed).dump(value)
    return stream.getvalue()


def load(data: bytes, fixed: Fixed) -> Any:
    """The value again, with this side's own objects in the place of those that stayed."""
    return _Unpickler(io.BytesIO(data), fixed).load()


class _Pickler(pickle.Pickler):
    def __init__(self, stream: io.BytesIO, fixed: Fixed) -> None:
        super().__init__(stream, 5)
        self.persistent_id = fixed.name_of  # type: ignore[method-assign]


class _CloudPickler(pickling.Pickler):
    def __init__(self, stream: io.BytesIO, fixed: Fixed) -> None:
        super().__init__(stream, 5)
        self.persistent_id = fixed.name_of


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, fixed: Fixed) -> None:
        super().__init__(stream)
        self._fixed = fixed

    def persistent_load(self, name: Name) -> Any:
        return self._fixed.named[name]


# windows, surfaces, renderers: what is seen of an environment does not decide what it does
_SHOWN = ("pygame", "pyglet", "OpenGL", "moviepy", "matplotlib", "cv2", "gymnasium.envs.mujoco.mujoco_rendering")


def stays(value: Any) -> bool:
    """Is an attribute's value machinery that every environment has of its own?"""
    if isinstance(value, gym.Space | gym.envs.registration.EnvSpec | ModuleType):
        return True
    if isinstance(value, FunctionType):  # one that has no name to be found by
        return "<" in value.__qualname__
    return type(value).__module__.startswith(_SHOWN)
