"""Where two values differ first, byte for byte."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class Difference(NamedTuple):
    """The field (such as "['a'][2]") and its two values."""

    field: str
    first: Any
    again: Any


def difference(first: Any, again: Any, field: str = "") -> Difference | None:
    """The first difference, None when there is none. Arrays are compared by dtype, shape and bytes; NaN equals NaN."""
    if isinstance(first, dict) and isinstance(again, dict):
        for key in [*first, *(key for key in again if key not in first)]:
            if key not in first or key not in again:
                return Difference(f"{field}[{key!r}]", first.get(key, "nothing"), again.get(key, "nothing"))
            if (found := difference(first[key], again[key], f"{field}[{key!r}]")) is not None:
                return found
        return None
    if isinstance(first, list | tuple) and isinstance(again, list | tuple) and len(first) == len(again):
        for index, (one, other) in enumerate(zip(first, again, strict=True)):
            if (found := difference(one, other, f"{field}[{index}]")) is not None:
                return found
        return None
    if isinstance(first, np.ndarray) or isinstance(again, np.ndarray):
        a, b = np.asarray(first), np.asarray(again)
        if a.dtype.hasobject or b.dtype.hasobject:
            return difference(a.tolist(), b.tolist(), field)
        same = (a.dtype, a.shape) == (b.dtype, b.shape) and a.tobytes() == b.tobytes()
        return None if same else Difference(field, first, again)
    try:
        same = bool(first == again) or (first != first and again != again)
    except Exception:  # noqa: BLE001 - a foreign __eq__ may raise, or return what has no truth
        same = first is again
    return None if same else Difference(field, first, again)


def element(found: Difference) -> Difference:
    """Of two arrays of one dtype and shape the first element that differs; of anything else the whole difference."""
    a, b = found.first, found.again
    if not (isinstance(a, np.ndarray) and isinstance(b, np.ndarray)) or (a.dtype, a.shape) != (b.dtype, b.shape):
        return found
    bytewise = np.frombuffer(a.tobytes(), np.uint8) != np.frombuffer(b.tobytes(), np.uint8)
    index = np.unravel_index(int(bytewise.argmax()) // a.itemsize, a.shape)
    where = f"[{', '.join(map(str, index))}]" if index else ""
    return Difference(f"{found.field}{where}", a[index], b[index])
