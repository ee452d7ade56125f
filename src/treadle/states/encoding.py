"""Values as plain data: what `marshal` writes quickly, and always as the same bytes.

Numbers, text, None and bytes are themselves; an array is a list of what it takes to make it again, and anything else
is pickled. A list is always one of those two: values that are lists are pickled.
"""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np

PLAIN = frozenset({int, float, bool, str, bytes, type(None), type(...)})
MISSING = ...  # in the place of an attribute that does not exist


def encode(value: Any) -> Any:
    """A value of a type that is not in PLAIN, as plain data. Raises what pickling raises."""
    if type(value) is np.ndarray and not value.dtype.hasobject and value.dtype.names is None:
        return [value.dtype.str, value.shape, value.tobytes()]
    return [pickle.dumps(value, 5)]


def decode(value: list[Any]) -> Any:
    """The value again; an array is a new one, that can be written."""
    if len(value) == 1:
        return pickle.loads(value[0])
    kind, shape, data = value
    array = np.frombuffer(bytearray(data), kind)
    return array if len(shape) == 1 else array.reshape(shape)
