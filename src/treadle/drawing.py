"""Figures as text and pictures as SVG, for pages, whose style gives them colours by class, and for notebooks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

BINS = 32  # of a histogram
STEP = 10  # units of a strip from one cell to the next; a cell is two less
NARROW = "\u202f"  # a thin space that does not break, between a number and its unit

# how an episode came out -> the sign in words, what it is called, its cell as an SVG path that begins at a corner
OUTCOMES = {
    "success": ("●", "success", "h8v8h-8z"),
    "failure": ("○", "no success", "h8v8h-8zm2 2v4h4v-4z"),
    "terminated": ("■", "terminated", "h8v8h-8z"),
    "truncated": ("◧", "cut", "h8v8h-8zm4 1v6h3v-6z"),
    "error": ("✕", "left out", "m0 1 3 3-3 3 1 1 3-3 3 3 1-1-3-3 3-3-1-1-3 3-3-3z"),
    "more": ("▲", "more", "m0 8h8l-4-8z"),
    "less": ("▽", "less", "h8l-4 8zm2 1h4l-2 4z"),
    "equal": ("＝", "equal", "m0 1h8v2h-8zm0 4h8v2h-8z"),
    "pending": ("·", "not there yet", "m3 3h2v2h-2z"),
}


def number(value: float | None, digits: int = 0, sign: bool = False) -> str:
    """Such as "1,234.5", with a minus as wide as a plus, and none before a zero; "–": there is none."""
    if value is None:
        return "–"
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "∞" if value > 0 else "−∞"
    shown = f"{abs(value):,.{digits}f}"
    zero = not shown.strip("0.,")
    return f"{'' if zero else '−' if value < 0 else '+' if sign else ''}{shown}"


def counted(episodes: int) -> str:
    """Such as "1,234 episodes"."""
    return f"{episodes:,} episode{'' if episodes == 1 else 's'}"


def digits_of(values: Sequence[float | None]) -> int:
    """The decimals that distinguish such numbers: none of whole ones, else three figures or so."""
    finite = [abs(value) for value in values if value is not None and math.isfinite(value)]
    if all(value == int(value) for value in finite):
        return 0
    most = max(finite)
    return 1 if most >= 100 else 2 if most >= 1 else min(6, 2 - math.floor(math.log10(most)))


def percent(share: float) -> str:
    """Such as "36 %"; a tenth where whole ones would say all or nothing."""
    rough = 0 < share < 0.01 or 0.99 < share < 1
    return f"{100 * share:.{int(rough)}f}{NARROW}%"


def strip(outcomes: Sequence[str], shades: Sequence[int]) -> str:
    """A cell an episode, row by row, drawn as one path for each way to come out and each shade (0: full, 1, 2, 3)."""
    columns = columns_of(len(outcomes))
    paths: dict[tuple[str, int], list[str]] = {}
    for i, (outcome, shade) in enumerate(zip(outcomes, shades, strict=True)):
        at = f"M{i % columns * STEP} {i // columns * STEP}{OUTCOMES[outcome][2]}"
        paths.setdefault((outcome, shade), []).append(at)
    rows = -(-len(outcomes) // columns)
    told = ", ".join(f"{outcomes.count(each):,} {OUTCOMES[each][1]}" for each in dict.fromkeys(outcomes))
    drawn = "".join(
        f'<path class="{name} s{shade}" fill-rule="evenodd" d="{"".join(each)}"/>'
        for (name, shade), each in paths.items()
    )
    wide = columns * (22 if len(outcomes) <= 60 else 18)  # as far as the page has room
    return (
        f'<svg id="strip" class="strip" fill="currentColor" width="{wide}" role="img" aria-label="{escape(told)}" '
        f'viewBox="0 0 {columns * STEP - 2} {rows * STEP - 2}">{drawn}</svg>'
    )


def columns_of(count: int) -> int:
    """Cells in a row of a strip."""
    return max(1, min(count, 25 if count <= 60 else 60 if count <= 1_000 else 200))


def bar(value: float | None, low: float, high: float) -> str:
    """Of a table's cell: from 0, or from the end that is nearer to it."""
    if value is None or not math.isfinite(value) or high <= low:
        return ""
    zero, at = (100 * (min(high, max(low, each)) - low) / (high - low) for each in (0.0, value))
    return (
        '<svg class="bar" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect x="{round(min(zero, at))}" width="{max(1, round(abs(at - zero)))}" height="8"/></svg>'
    )


def histogram(bins: Sequence[int]) -> str:
    """Bars side by side, as wide as the page gives them room."""
    most, width = max(bins), 1_000 / len(bins)
    bars = "".join(
        f'<rect x="{i * width:.1f}" y="{100 - 100 * each / most:.1f}" width="{max(2.0, width - 3):.1f}" '
        f'height="{100 * each / most:.1f}"/>'
        for i, each in enumerate(bins)
        if each
    )
    return (
        '<svg class="histogram" width="440" height="88" fill="currentColor" viewBox="0 0 1000 100" '
        f'preserveAspectRatio="none" aria-hidden="true">{bars}</svg>'
    )


def in_notebook(sentence: str, returns: Sequence[float], successes: Sequence[bool | None]) -> str:
    """HTML: the sentence, a cell for each episode where any says whether it succeeded, and a histogram of returns."""
    finite = [each for each in returns if math.isfinite(each)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    bins = [0] * BINS
    for each in finite if high > low else ():
        bins[min(BINS - 1, int((each - low) / (high - low) * BINS))] += 1
    known = any(each is not None for each in successes)
    drawn = strip(["success" if each else "failure" for each in successes], [0] * len(successes)) if known else ""
    scale = f"<p><small>returns from {number(low, 2)} to {number(high, 2)}</small></p>"
    return f"<p>{escape(sentence)}</p>{drawn}{f'{histogram(bins)}{scale}' if any(bins) else ''}"
