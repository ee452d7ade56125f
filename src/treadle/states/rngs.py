"""The states of random generators: NumPy's own, and the ones that a whole process shares."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from treadle.states.encoding import decode, encode

PCG64 = "PCG64"  # what Gymnasium's environments have: four numbers


def get_state(generator: np.random.Generator) -> Any:
    """A generator's state as plain data."""
    state: Any = generator.bit_generator.state
    if state["bit_generator"] != PCG64:
        return encode(state)
    inner = state["state"]
    return inner["state"], inner["inc"], state["has_uint32"], state["uinteger"]


def put_state(generator: np.random.Generator | None, state: Any) -> np.random.Generator:
    """The generator, in that state; a new one where it is not of the type that the state is of."""
    if type(state) is tuple:
        number, inc, flag, half = state
        inner = {"state": number, "inc": inc}
        state = {"bit_generator": PCG64, "state": inner, "has_uint32": flag, "uinteger": half}
    else:
        state = decode(state)
    kind = getattr(np.random, state["bit_generator"])
    if generator is None or type(generator.bit_generator) is not kind:
        generator = np.random.Generator(kind(0))
    generator.bit_generator.state = state
    return generator


def get_globals() -> tuple[Any, ...]:
    """The states of `random` and of NumPy's legacy generator."""
    return random.getstate(), np.random.get_state()


def set_globals(states: tuple[Any, ...]) -> None:
    """Put them back."""
    python, legacy = states
    random.setstate(python)
    np.random.set_state(legacy)
