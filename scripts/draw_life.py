"""Draw docs/worker-life.svg and docs/slot-life.svg from the tables of lives in worker/life.py and lockstep/slots.py.

The places of the states are given here, everything else comes from the tables. An event that leads to one state from
four states or more is a line in that state's box and no arrow. So is an event that leaves a state as it is.

usage: python scripts/draw_life.py
"""

from collections import defaultdict
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from treadle.lockstep import slots
from treadle.worker import life

DOCS = Path(__file__).parent.parent / "docs"
WORKER = {  # state -> its column and row
    "STARTING": (0, 0), "IDLE": (1, 0), "BUSY": (2, 0), "LATE": (3, 0),
    "DEAD": (0, 1), "RETIRING": (1, 1), "CLOSING": (2, 1), "CLOSED": (3, 1),
    "GONE": (0, 2),
}  # fmt: skip
SLOT = {
    "GONE": (0, 0), "VOID": (1, 0), "STALE": (2, 0),
    "LAST": (0, 1), "RUNNING": (1, 1), "OVER": (2, 1),
    "CUT": (0, 2), "NEW": (1, 2), "WAITS": (2, 2),
}  # fmt: skip
MANY = 4  # states from which an event leads to one state
WIDE, TALL, STEP_X, STEP_Y, LINE = 170, 74, 296, 138, 13
Edges = dict[tuple[str, str], list[str]]


def edges_of(table: Mapping[Any, Any], ways: type[Enum] | None) -> Edges:
    """(state, state then) -> the events, with the ways of going on where these differ."""
    found: Edges = defaultdict(list)
    for (state, event), then in table.items():
        if not isinstance(then, tuple):
            found[state.name, then.name].append(event.value)
            continue
        for each in dict.fromkeys(then):
            names = [way.name for way, one in zip(ways or (), then) if one is each]
            found[state.name, each.name].append(
                event.value if len(names) == len(then) else f"{event.value} ({', '.join(names)})"
            )
    return found


def drawn(places: Mapping[str, tuple[int, int]], edges: Edges, title: str) -> str:
    """The picture as SVG. Raises KeyError for a state that has no place."""
    sources: dict[tuple[str, str], set[str]] = defaultdict(set)  # (event, state then) -> the states before
    for (state, then), events in edges.items():
        for event in events:
            if state != then:
                sources[event, then].add(state)
    wide = STEP_X * max(x for x, _ in places.values()) + WIDE + 40
    tall = STEP_Y * max(y for _, y in places.values()) + TALL + 70
    lines, boxes = [], []
    for (state, then), events in sorted(edges.items()):
        shown = sorted(event for event in events if len(sources[event, then]) < MANY)
        if state != then and shown:
            lines.append(_arrow(places[state], places[then], "; ".join(shown), both=(then, state) in edges))
    for state, place in places.items():
        said = [f"stays on {', '.join(sorted(edges[state, state]))}"] if (state, state) in edges else []
        said += [
            f"{event}, from {len(before)} states"
            for (event, then), before in sorted(sources.items())
            if then == state and len(before) >= MANY
        ]
        boxes.append(_box(place, state, said))
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {tall}" font-family="sans-serif" font-size="11">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0,0 L8,4 L0,8 z" fill="#52606d"/></marker></defs>',
        f'<rect width="{wide}" height="{tall}" fill="#ffffff"/>',
        f'<text x="20" y="24" font-size="14" fill="#1f2933">{title}</text>',
        *lines, *boxes, "</svg>\n",
    ])  # fmt: skip


def _middle(place: tuple[int, int]) -> tuple[float, float]:
    return 20 + place[0] * STEP_X + WIDE / 2, 42 + place[1] * STEP_Y + TALL / 2


def _arrow(start: tuple[int, int], end: tuple[int, int], text: str, *, both: bool) -> str:
    """An arrow between two boxes; beside its counterpart where there are both, and bent around a box in its way."""
    (x, y), (to_x, to_y) = _middle(start), _middle(end)
    columns, rows = end[0] - start[0], end[1] - start[1]
    far = abs(columns) > 1 and not rows
    if rows and not columns:  # up or down
        side = 22 if both else 0
        x = to_x = x + (side if rows > 0 else -side)
        y, to_y = y + TALL / 2 * (1 if rows > 0 else -1), to_y - TALL / 2 * (1 if rows > 0 else -1)
    elif columns and not rows:
        side = 11 if both else 0
        y = to_y = y + (-side if columns > 0 else side)
        x, to_x = x + WIDE / 2 * (1 if columns > 0 else -1), to_x - WIDE / 2 * (1 if columns > 0 else -1)
        if far:
            x, to_x = _middle(start)[0], _middle(end)[0]
            y = to_y = _middle(start)[1] + TALL / 2
    else:
        x, to_x = x + WIDE / 4 * (1 if columns > 0 else -1), to_x - WIDE / 4 * (1 if columns > 0 else -1)
        y, to_y = y + TALL / 2 * (1 if rows > 0 else -1), to_y - TALL / 2 * (1 if rows > 0 else -1)
    bend = 52 if far else 0
    at_x, at_y = (x + to_x) / 2, (y + to_y) / 2 + bend
    label_y = at_y - bend / 2 - 4 if bend else at_y + (4 if rows else -4 if columns > 0 or not both else 12)
    anchor = "start" if rows and not columns else "middle"
    return (
        f'<path d="M{x:g},{y:g} Q{at_x:g},{at_y:g} {to_x:g},{to_y:g}" fill="none" stroke="#52606d" '
        f'marker-end="url(#tip)"/>'
        f'<text x="{at_x + (5 if anchor == "start" else 0):g}" y="{label_y:g}" fill="#1f2933" text-anchor="{anchor}" '
        f'stroke="#ffffff" stroke-width="4" paint-order="stroke">{text}</text>'
    )


def _box(place: tuple[int, int], state: str, said: list[str]) -> str:
    x, y = _middle(place)
    below = _wrapped(said)
    first = y - LINE * len(below) / 2 + 4
    texts = [f'<text x="{x:g}" y="{first:g}" font-size="13" font-weight="bold" fill="#1f2933">{state}</text>']
    texts += [
        f'<text x="{x:g}" y="{first + LINE * (1 + number):g}" fill="#52606d" font-size="10">{line}</text>'
        for number, line in enumerate(below)
    ]
    return (
        f'<g text-anchor="middle"><rect x="{x - WIDE / 2:g}" y="{y - TALL / 2:g}" width="{WIDE}" height="{TALL}" '
        f'rx="6" fill="#eef4f8" stroke="#2f6f9f"/>{"".join(texts)}</g>'
    )


def _wrapped(said: list[str]) -> list[str]:
    """Lines of at most 34 characters."""
    found = []
    for each in said:
        line = ""
        for word in each.split():
            if line and len(line) + 1 + len(word) > 34:
                found.append(line)
                line = ""
            line = f"{line} {word}".strip()
        found.append(line)
    return found


def worker_life() -> str:
    return drawn(WORKER, edges_of(life.TABLE, None), "A worker's life: state, event, next state")


def slot_life() -> str:
    return drawn(SLOT, edges_of(slots.TABLE, slots.Way), "A slot's life: state, event, next state")


if __name__ == "__main__":
    (DOCS / "worker-life.svg").write_text(worker_life(), encoding="utf-8")
    (DOCS / "slot-life.svg").write_text(slot_life(), encoding="utf-8")
