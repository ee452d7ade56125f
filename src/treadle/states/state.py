"""A state, as a value: everything that decides what an environment does next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(slots=True, repr=False)
class EnvState:
    """The complete state of one environment at one moment. It is immutable, compared by content, and can be pickled.

    Attributes:
        kind: the environment's id (its class if it has no spec) and wrappers. Only an environment of the same kind
            takes the state.
        data: the state itself, opaque bytes.
    """

    kind: str
    data: bytes

    @property
    def nbytes(self) -> int:
        """The size of `data` in bytes."""
        return len(self.data)

    def copy(self) -> EnvState:
        """Return the state itself, as it cannot change."""
        return self

    def __deepcopy__(self, memo: Any) -> EnvState:
        return self

    def __hash__(self) -> int:
        return hash(self.data)

    def __repr__(self) -> str:
        return f"EnvState({self.kind!r}, {len(self.data)} bytes)"

    def __reduce__(self) -> tuple[Any, ...]:
        return EnvState, (self.kind, self.data)
