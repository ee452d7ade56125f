"""A state: everything that decides what an environment does next, as a value."""

from __future__ import annotations

from typing import Any


class EnvState:
    """The complete state of one environment at one moment. A value: it never changes, compares by content, pickles.

    Attributes:
        kind: what it is a state of (id and wrappers); only environments of the same kind take it.
        data: the state itself, opaque bytes.
    """

    __slots__ = ("data", "kind")

    def __init__(self, kind: str, data: bytes) -> None:
        self.kind, self.data = kind, data

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        return len(self.data)

    def copy(self) -> EnvState:
        """Itself: it cannot change."""
        return self

    def __deepcopy__(self, memo: Any) -> EnvState:
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EnvState) and self.kind == other.kind and self.data == other.data

    def __hash__(self) -> int:
        return hash(self.data)

    def __repr__(self) -> str:
        return f"EnvState({self.kind!r}, {len(self.data)} bytes)"

    def __reduce__(self) -> tuple[Any, ...]:
        return EnvState, (self.kind, self.data)
