"""Values as plain data: what `marshal` writes quickly, and always as the same bytes.

Numbers, text, None and bytes are themselves. A short vector of float64 (the state of classic control) is a tuple of its
numbers: both ways that takes half as long as its bytes would. Any other array is a list of what it takes to make it
again, and anything else is pickled. A list is always one of those two, and values that are lists or tuples are pickled.
"""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np

PLAIN = frozenset({int, float, bool, str, bytes, type(None), type(...)})
MISSING = ...  # in the place of an attribute that does not exist
VALUES = PLAIN - {type(...)}  # what stands for itself
SHORT = 16  # numbers in a vector that is written as a tuple
_FLOAT64 = np.dtype(np.float64)


def encode(value: Any) -> Any:
    """A value of a type that is not in PLAIN, as plain data. Raises what pickling raises."""
    if type(value) is np.ndarray:
        if value.dtype is _FLOAT64 and value.ndim == 1 and len(value) <= SHORT:
            return tuple(value.tolist())
        if not value.dtype.hasobject and value.dtype.names is None:
            return [value.dtype.str, value.shape, value.tobytes()]
    return [pickle.dumps(value, 5)]


def decode(value: Any) -> Any:
    """The value again; an array is a new one, that can be written."""
    if type(value) is tuple:
        return np.array(value, _FLOAT64)
    if len(value) == 1:
        return pickle.loads(value[0])
    kind, shape, data = value
    array = np.frombuffer(bytearray(data), kind)
    return array if len(shape) == 1 else array.reshape(shape)
