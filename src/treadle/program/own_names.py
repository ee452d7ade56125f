"""Infos of programs beside what Treadle itself tells in the same dict.

What Treadle tells of a step is kept apart until the caller gets it, so no word of a program's own is ever taken for it.
Then both share one dict: ours stand under the documented names, and what a program has under one of them is moved.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def own_names(info: Mapping[str, Any], own: frozenset[str], whose: str) -> dict[str, Any]:
    """A copy of a program's info without our `own` names: a value under NAME is kept as `whose`_NAME."""
    out = dict(info)
    if not own.isdisjoint(out):
        for name in own.intersection(out):
            kept = kept_as(name, whose, out)
            out[kept] = out.pop(name)
    return out


def kept_as(name: str, whose: str, taken: Mapping[str, Any]) -> str:
    """The name under which a program's value is kept: `whose`_NAME, once more where that is taken as well."""
    while name in taken:
        name = f"{whose}_{name}"
    return name
