"""Draw docs/house.svg, the rooms of src/treadle: who imports whom, in the rows of docs/architecture.md.

An arrow is an import that does not follow from others: where `cli` imports `replays`, and `replays` imports `record`,
there is none from `cli` to `record`. The last rows are files that any room may import, and have no arrows.
`tests/test_house.py` compares the rows with its table, and the picture with what this returns.

usage: python scripts/draw_house.py
"""

from pathlib import Path

import weight

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "treadle"
ROW, BOX, TALL, LEFT, MIDDLE, TEXT = 54, 84, 26, 20, 390, 790  # pixels
SHIFT = {  # pixels to the right, so that arrows pass beside boxes
    "record": -150, "testing": 230, "tasks": -80, "samplers": 90, "vector": -120, "plan": 250, "sample": 20,
    "task": -250, "play": -60, "program": 130, "nodes": 40, "lockstep": -160, "stream": -20, "pool": -40,
    "worker": -40, "wire": -40, "memory": -40, "spaces": 70, "states": 160,
}  # fmt: skip


def rows_of(page: str) -> list[tuple[list[str], str]]:
    """The rows of the table under "Rooms", from the top: (rooms, what they are)."""
    text = page.partition("## Rooms")[2].partition("```text\n")[2].partition("```")[0]
    found = []
    for line in text.splitlines():
        rooms, _, about = line.partition("  ")
        found.append((rooms.split(), about.strip().replace("`", "").replace(">", "&gt;")))
    return found


def imports_of_rooms(root: Path = PACKAGE) -> dict[str, set[str]]:
    """Room -> the rooms that it imports."""
    known = weight.modules(root)
    found: dict[str, set[str]] = {}
    for name, path in known.items():
        room = name.partition(".")[2].partition(".")[0]
        if room:
            others = weight.imported(name, path, known, types=True, functions=True)
            found.setdefault(room, set()).update(other.partition(".")[2].partition(".")[0] for other in others)
    return {room: others - {room, ""} for room, others in found.items()}


def direct(edges: dict[str, set[str]]) -> dict[str, set[str]]:
    """Room -> those that it imports, without what one of them imports, directly or by way of others."""

    def below(room: str) -> set[str]:
        return edges.get(room, set()).union(*(below(other) for other in edges.get(room, set())))

    return {room: {other for other in others if all(other not in below(one) for one in others)}
            for room, others in edges.items()}  # fmt: skip


def drawn(page: str, edges: dict[str, set[str]]) -> str:
    """The picture as SVG, of the text of docs/architecture.md and of `imports_of_rooms`."""
    rows = rows_of(page)
    places: dict[str, tuple[float, float]] = {}
    boxes, texts = [], []
    for number, (rooms, about) in enumerate(rows):
        y = 50 + number * ROW
        files = all((PACKAGE / f"{room}.py").is_file() for room in rooms)
        texts.append(f'<text x="{TEXT}" y="{y + 4}" fill="#52606d" font-size="11">{about}</text>')
        if files:
            names = " · ".join(rooms)
            boxes.append(f'<text x="{MIDDLE}" y="{y + 4}" fill="#52606d" text-anchor="middle">{names}</text>')
            continue
        for place, room in enumerate(rooms):
            x = MIDDLE + (place - (len(rooms) - 1) / 2) * (BOX + 10) + SHIFT.get(room, 0)
            places[room] = x, y
            boxes.append(
                f'<rect x="{x - BOX / 2:g}" y="{y - TALL / 2:g}" width="{BOX}" height="{TALL}" rx="5" fill="#eef4f8" '
                f'stroke="#2f6f9f"/><text x="{x:g}" y="{y + 4}" fill="#1f2933" text-anchor="middle">{room}</text>'
            )
    lines = []
    for room, others in sorted(direct({room: each & set(places) for room, each in edges.items()}).items()):
        for other in sorted(others if room in places else ()):
            (x, y), (to_x, to_y) = places[room], places[other]
            y, to_y = y + TALL / 2, to_y - TALL / 2
            lines.append(
                f'<path d="M{x:g},{y:g} C{x:g},{y + 24:g} {to_x:g},{to_y - 24:g} {to_x:g},{to_y:g}" fill="none" '
                f'stroke="#9aa5b1" marker-end="url(#tip)"/>'
            )
    tall = 50 + len(rows) * ROW
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1180 {tall}" font-family="sans-serif" font-size="12">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0,0 L8,4 L0,8 z" fill="#9aa5b1"/></marker></defs>',
        f'<rect width="1180" height="{tall}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="22" font-size="14" fill="#1f2933">Rooms of src/treadle: imports only point down</text>',
        *lines, *boxes, *texts, "</svg>\n",
    ])  # fmt: skip


def house() -> str:
    """The picture of the package as it is."""
    return drawn((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"), imports_of_rooms())


if __name__ == "__main__":
    (ROOT / "docs" / "house.svg").write_text(house(), encoding="utf-8")
