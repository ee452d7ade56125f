"""The tables of lives (a worker's, a slot's) as Markdown: what `docs/life.md` shows of them."""

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any


def diagram(states: Iterable[Enum], table: Mapping[Any, Any]) -> str:
    """One line a state, of a table (state, event) -> the state then, or one for each way."""
    lines = ["| state | event that may come → the next state |", "|---|---|"]
    for state in states:
        arrows = [f"{event.value} → {_names(then)}" for (at, event), then in table.items() if at is state]
        lines.append(f"| {state.name} | {', '.join(sorted(arrows)) or 'nothing more'} |")
    return "\n".join(lines) + "\n"


def _names(then: Any) -> str:
    return " or ".join(dict.fromkeys(each.name for each in (then if isinstance(then, tuple) else (then,))))
