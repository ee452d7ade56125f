"""The states of random generators: NumPy's own, and the ones that a whole process shares.

Reading and writing a PCG64's state through its dict of large integers takes 5 us, as long as a step of CartPole, so it
is read and written where it lies: NumPy shows the address (`bit_generator.ctypes.state_address`). What lies there is no
promise of NumPy's, so it is compared with the dict each time that a generator is met first, and where the two do not
agree, the dict is used. Either way a state is the same 40 bytes.
"""

from __future__ import annotations

import ctypes
import random
from typing import Any

import numpy as np

HEAD, BODY = 8, 32  # bytes: a kept half of the last draw, with its flag; state and increment


class Pcg:
    """Reads and writes the state of one generator of type PCG64."""

    def __init__(self, generator: np.random.Generator) -> None:
        self.generator = generator  # keeps the memory
        self._windows = _windows(generator)

    def get(self) -> bytes:
        """The state: 40 bytes, numbers in little-endian order."""
        if self._windows is None:
            return _bytes_of(self.generator)
        head, body = self._windows
        return head.tobytes() + body.tobytes()

    def set(self, state: bytes) -> None:
        """Put it back."""
        if self._windows is None:
            _put(self.generator, state)
            return
        head, body = self._windows
        head[:], body[:] = state[:HEAD], state[HEAD:]


def _windows(generator: np.random.Generator) -> tuple[memoryview, memoryview] | None:
    """Views of the two places where the state lies; None where they are not as expected."""
    try:
        address = generator.bit_generator.ctypes.state_address
        inner = ctypes.c_void_p.from_address(address).value
        if not inner or ctypes.sizeof(ctypes.c_void_p) != 8:
            return None
        head = memoryview((ctypes.c_char * HEAD).from_address(address + 8)).cast("B")
        body = memoryview((ctypes.c_char * BODY).from_address(inner)).cast("B")
    except (AttributeError, TypeError, ValueError):
        return None
    return (head, body) if head.tobytes() + body.tobytes() == _bytes_of(generator) else None


def _bytes_of(generator: np.random.Generator) -> bytes:
    state: Any = generator.bit_generator.state
    inner = state["state"]
    numbers = (state["has_uint32"], 4), (state["uinteger"], 4), (inner["state"], 16), (inner["inc"], 16)
    return b"".join(int(number).to_bytes(size, "little") for number, size in numbers)


def _put(generator: np.random.Generator, data: bytes) -> None:
    flag, half, state, inc = (int.from_bytes(data[a:b], "little") for a, b in ((0, 4), (4, 8), (8, 24), (24, 40)))
    inner = {"state": state, "inc": inc}
    generator.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": inner,
        "has_uint32": flag,
        "uinteger": half,
    }


class Other:
    """The same for a generator of another type, by its dict."""

    def __init__(self, generator: np.random.Generator) -> None:
        self.generator = generator

    def get(self) -> Any:
        """The state."""
        return self.generator.bit_generator.state

    def set(self, state: Any) -> None:
        """Put it back."""
        self.generator.bit_generator.state = state


def access(generator: np.random.Generator) -> Pcg | Other:
    """How to read and write a generator's state."""
    return Pcg(generator) if type(generator.bit_generator) is np.random.PCG64 else Other(generator)


def made_for(state: Any) -> np.random.Generator:
    """A new generator of the type that the state is of."""
    kind = "PCG64" if isinstance(state, bytes) else state["bit_generator"]
    return np.random.Generator(getattr(np.random, kind)(0))


def get_globals() -> tuple[Any, ...]:
    """The states of `random` and of NumPy's legacy generator."""
    return random.getstate(), np.random.get_state()


def set_globals(states: tuple[Any, ...]) -> None:
    """Put them back."""
    python, legacy = states
    random.setstate(python)
    np.random.set_state(legacy)
