"""Our vectors by way of `gymnasium.make_vec(id)`: `register_all` gives registered ids an entry point of ours.

Gymnasium calls a vector entry point without the id that it belongs to, and wants one that JSON can hold: text such as
"module:name". So this module has a name for each id: `treadle.vector.entry_points:CartPole-v1`. What an id had before
is kept with the text, in the spec itself, and so goes wherever the spec goes, to workers as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import gymnasium as gym

from treadle.program.ids import spec_of


class EntryPoint(str):
    """Text of ours as the vector entry point of an id.

    Attributes:
        theirs: what was there before.
    """

    theirs: Any

    def __new__(cls, env_id: str, theirs: Any) -> EntryPoint:
        text = super().__new__(cls, f"{__name__}:{env_id}")
        text.theirs = theirs
        return text

    def __getnewargs__(self) -> tuple[str, Any]:  # type: ignore[override]  # those of our own `__new__`
        return self.rpartition(":")[2], self.theirs


def register_all(ids: Iterable[str] | None = None) -> list[str]:
    """Let `gymnasium.make_vec` make our vectors of these ids, by their `vector_entry_point`.

    It is there until `unregister_all`, or until somebody registers the id anew; to do it twice changes nothing. An id
    that has a vectorised form of its own gets ours instead.

    Args:
        ids: which ("ALE/Pong-v5": the package is imported by itself); None: all that are registered now.

    Returns:
        The ids that have our entry point now.

    Raises:
        UsageError: there is no such environment; nothing was changed.
    """
    if ids is None:
        specs = [spec for spec in gym.registry.values() if spec.entry_point is not None]
    else:
        specs = [spec_of(env_id) for env_id in ([ids] if isinstance(ids, str) else ids)]
    for spec in specs:
        if not isinstance(spec.vector_entry_point, EntryPoint):
            spec.vector_entry_point = EntryPoint(spec.id, spec.vector_entry_point)
    return [spec.id for spec in gym.registry.values() if isinstance(spec.vector_entry_point, EntryPoint)]


def unregister_all() -> None:
    """Give every id back what it had before `register_all`."""
    for spec in gym.registry.values():
        if isinstance(spec.vector_entry_point, EntryPoint):
            spec.vector_entry_point = spec.vector_entry_point.theirs


def __getattr__(env_id: str) -> Callable[..., Any]:
    if env_id not in gym.registry:
        raise AttributeError(f"module {__name__!r} has no attribute {env_id!r}")
    from treadle.vector.make_vec import vector_entry_point

    return vector_entry_point(env_id)
