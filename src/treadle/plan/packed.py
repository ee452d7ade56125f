"""States of one kind as they travel: most of what is sent of them would be the kind, again and again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from treadle.states.state import EnvState


@dataclass(frozen=True)
class Packed:
    """States of one kind as they travel: the kind once, and the bytes."""

    kind: str
    data: list[bytes]

    def __getitem__(self, index: int) -> EnvState:
        return EnvState(self.kind, self.data[index])

    def __len__(self) -> int:
        return len(self.data)

    def __iter__(self) -> Iterator[EnvState]:
        return (EnvState(self.kind, data) for data in self.data)


def packed(states: list[Any]) -> Any:
    """States as they travel best."""
    if set(map(type, states)) != {EnvState}:
        return states
    kinds = set(map(_kind_of, states))
    return Packed(kinds.pop(), list(map(_data_of, states))) if len(kinds) == 1 else states


_kind_of, _data_of = attrgetter("kind"), attrgetter("data")
