"""A picture of a search: the tree that a planner looked at, as SVG.

Depth goes from left to right. Every branch is a line; the more often it was visited the wider, and its colour says its
value, from blue (the lowest) to red (the highest). The way that the search thinks best is drawn in black on top.
"""

from __future__ import annotations

from xml.sax.saxutils import escape

from search import Branch, Decision

WIDTH, HEIGHT, EDGE, HEAD = 960, 600, 20, 40
MOST = 4000  # branches drawn; the most visited ones


def search_picture(decision: Decision, title: str = "") -> str:
    """The SVG text of one decision's search."""
    kept, path = _most_visited(decision.branches, decision.path)
    places, deepest = _places(kept)
    values = [branch.value for branch in kept] or [0.0]
    low, span = min(values), (max(values) - min(values)) or 1.0
    most = max((branch.visits for branch in kept), default=1)

    def at(index: int) -> tuple[float, float]:
        depth, height = places[index] if index >= 0 else (0, 0.5)
        x = EDGE + (WIDTH - 2 * EDGE) * depth / max(1, deepest)
        return x, HEAD + (HEIGHT - HEAD - EDGE) * height

    def line(index: int, colour: str, width: float) -> str:
        (x1, y1), (x2, y2) = at(kept[index].parent), at(index)
        style = f'stroke="{colour}" stroke-width="{width:.2f}"'
        return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" {style}/>'

    lines = [line(i, _colour((b.value - low) / span), 0.5 + 5 * b.visits / most) for i, b in enumerate(kept)]
    lines += [line(index, "black", 1.5) for index in path]
    left = len(decision.branches) - len(kept)
    words = f"{title}: action {decision.action}, value {decision.value:.2f}, {len(decision.branches):,} branches"
    words += f" ({left:,} not drawn)" if left else ""
    words += f", depth {deepest}, values {low:.2f} (blue) to {low + span:.2f} (red)"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">\n'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>\n'
        f'<text x="{EDGE}" y="{HEAD * 0.6:.0f}" font-size="14">{escape(words)}</text>\n'
        '<g stroke-linecap="round" stroke-opacity="0.8">\n' + "\n".join(lines) + "\n</g>\n</svg>\n"
    )


def _most_visited(branches: list[Branch], path: list[int]) -> tuple[list[Branch], list[int]]:
    """At most MOST of them, parents included (a branch is never visited more often than its parent), and the path."""
    if len(branches) <= MOST:
        return branches, path
    chosen = sorted(sorted(range(len(branches)), key=lambda i: (-branches[i].visits, i))[:MOST])
    number = {old: new for new, old in enumerate(chosen)}
    kept = [branches[i]._replace(parent=number.get(branches[i].parent, -1)) for i in chosen]
    return kept, [number[i] for i in path if i in number]


def _places(branches: list[Branch]) -> tuple[list[tuple[int, float]], int]:
    """Depth and height (0..1) of the end of each branch; every branch gets a share of its parent's height, by the
    number of ends in it."""
    children: dict[int, list[int]] = {}
    ends = [0] * len(branches)
    for index, branch in enumerate(branches):
        children.setdefault(branch.parent, []).append(index)
    for index in range(len(branches) - 1, -1, -1):  # children come after their parents
        ends[index] = max(1, sum(ends[child] for child in children.get(index, ())))
    depth = [0] * len(branches)
    spans: dict[int, tuple[float, float]] = {-1: (0.0, 1.0)}
    for parent in range(-1, len(branches)):
        low, high = spans[parent]
        mine = children.get(parent, ())
        whole = sum(ends[child] for child in mine)
        for child in mine:
            top = low + (high - low) * ends[child] / whole if whole else high
            spans[child], low, whole = (low, top), top, whole - ends[child]
            depth[child] = 1 + (depth[parent] if parent >= 0 else 0)
    places = [(depth[i], sum(spans[i]) / 2) for i in range(len(branches))]
    return places, max(depth, default=0)


def _colour(share: float) -> str:
    """From blue over grey to red."""
    red, blue = int(40 + 190 * share), int(230 - 190 * share)
    return f"rgb({red},{int(90 + 60 * (1 - abs(2 * share - 1)))},{blue})"
