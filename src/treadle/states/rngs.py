"""The states of random generators: NumPy's own, and the ones that a whole process shares."""

from __future__ import annotations

import random
from typing import Any

import numpy as np


def get_rng(generator: np.random.Generator) -> tuple[Any, ...]:
    """The state of a generator, to be pickled. PCG64, which Gymnasium uses, is spelled out: it is small that way."""
    state: Any = generator.bit_generator.state
    if state["bit_generator"] == "PCG64":
        inner = state["state"]
        return inner["state"], inner["inc"], state["has_uint32"], state["uinteger"]
    return (state,)


def set_rng(generator: np.random.Generator | None, state: tuple[Any, ...]) -> np.random.Generator:
    """Put a generator into a state, in place where it is of that kind; returns it, or a new one in its place."""
    if len(state) == 1:
        full = state[0]
    else:
        full = {
            "bit_generator": "PCG64",
            "state": {"state": state[0], "inc": state[1]},
            "has_uint32": state[2],
            "uinteger": state[3],
        }
    name = full["bit_generator"]
    if generator is None or type(generator.bit_generator).__name__ != name:
        generator = np.random.Generator(getattr(np.random, name)())
    generator.bit_generator.state = full
    return generator


def get_globals() -> tuple[Any, ...]:
    """The states of `random` and of NumPy's legacy generator."""
    return random.getstate(), np.random.get_state()


def set_globals(states: tuple[Any, ...]) -> None:
    """Put them back."""
    python, legacy = states
    random.setstate(python)
    np.random.set_state(legacy)
