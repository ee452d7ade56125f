"""The page: one HTML file with its style, script and data inside, which asks nobody for anything.

Its Content-Security-Policy allows that one style and that one script, by their hashes, and nothing from elsewhere. All
rows are in the HTML up to `ROWS`; of more the script makes those that are looked at, from the same data. So a column
says what it holds, and how it is written: `_cell` here and `cell` in `page.js` follow it alike.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from typing import Any

from treadle.reports.drawing import NARROW, OUTCOMES, bar, columns_of, number, strip
from treadle.reports.model import ROWS, Curve

PENDING = 10_000  # cells of episodes that are not there yet, at most


@dataclass(frozen=True)
class Column:
    """Of the table.

    Attributes:
        kind: "id": numbers of episodes; "number", and "bar", which is drawn besides; "mark": names of `OUTCOMES`;
            "text".
        wide: from which width of the page on it is shown: 0 (always), 1 (a tablet), 2 (a desk).
    """

    name: str
    kind: str
    values: Sequence[Any]
    unit: str = ""
    digits: int = 0
    wide: int = 0
    sign: bool = False

    @property
    def ends(self) -> tuple[float, float]:
        """From where to where bars go."""
        finite = (
            [each for each in self.values if each is not None and math.isfinite(each)] if self.kind == "bar" else []
        )
        return min([0.0, *finite]), max([0.0, *finite])

    def as_json(self) -> dict[str, Any]:
        """For the script: a text by its place among all; what is no number of JSON's is null, and named in "odd"."""
        about: dict[str, Any] = {key: getattr(self, key) for key in ("name", "kind", "unit", "digits", "wide", "sign")}
        values = list(self.values)
        if self.kind in ("mark", "text"):
            words = list(dict.fromkeys(values))
            place = {word: i for i, word in enumerate(words)}
            return {**about, "words": words, "values": [place[each] for each in values]}
        odd = {i: number(each) for i, each in enumerate(values) if isinstance(each, float) and not math.isfinite(each)}
        values = [None if i in odd else _short(each, self.digits) for i, each in enumerate(values)]
        return {**about, "values": values, "odd": odd, "ends": self.ends}


@dataclass(frozen=True)
class Side:
    """One run of those that a page is about. `films`: by episode, an URI each; `names`: how its episodes are numbered,
    row by row; `errors`: by episode."""

    name: str
    replay: str
    names: Sequence[int]
    curves: dict[int, Curve]
    films: dict[int, str]
    errors: dict[int, str]


@dataclass(frozen=True)
class Page:
    """What is shown. Texts are HTML where it is said; else they are escaped here.

    Attributes:
        lead: HTML: eyebrow, sentence and what belongs to it.
        outcomes: of each row the name in `OUTCOMES`, for the strip; `pending`: how many are still to come. `shades`: of
            each row, 0 (full) to 3; (): all are full.
        after_strip, after_table: HTML of whole sections.
        columns: of the table, the first one of kind "id".
        filters: (name, rows by number).
        note: below the table's heading.
    """

    title: str
    lead: str
    outcomes: Sequence[str]
    pending: int
    columns: Sequence[Column]
    filters: Sequence[tuple[str, Sequence[int]]]
    sides: Sequence[Side]
    note: str = ""
    shades: Sequence[int] = ()
    after_strip: Sequence[str] = ()
    after_table: Sequence[str] = field(default=())


def render(page: Page) -> str:
    """The whole file."""
    style, script = (files(__package__).joinpath(f"page.{each}").read_text(encoding="utf-8") for each in ("css", "js"))
    films = any(side.films for side in page.sides)
    allowed = [
        "default-src 'none'",
        f"style-src 'sha256-{_hash(style)}'",
        f"script-src 'sha256-{_hash(script)}'",
        *(["img-src data: 'self' file:", "media-src data: 'self' file:"] if films else []),
        "base-uri 'none'",
        "form-action 'none'",
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{"; ".join(allowed)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(page.title)}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        f'<a class="skip" href="#table">To the episodes</a>\n<main>\n<header>{page.lead}</header>\n{_strip(page)}\n'
        f"{''.join(page.after_strip)}\n{_table(page)}\n{''.join(page.after_table)}\n</main>\n"
        '<dialog id="detail" aria-labelledby="which"></dialog>\n'
        f'<script type="application/json" id="data">{_data(page)}</script>\n<script>{script}</script>\n'
        "</body>\n</html>\n"
    )


def section(name: str, title: str, content: str, note: str = "") -> str:
    """HTML of a section. `content` is HTML; the others are not."""
    said = f'<p class="note">{escape(note)}</p>' if note else ""
    return f'<section aria-labelledby="{name}"><h2 id="{name}">{escape(title)}</h2>{said}{content}</section>\n'


def code(command: str) -> str:
    """HTML of a command, which the script gives a button that copies it."""
    return f'<p class="command"><code>{escape(command)}</code></p>'


def link(index: int) -> str:
    """HTML of an episode's number, which leads to it."""
    return f'<a href="#e{index}">{index}</a>'


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _short(value: Any, digits: int) -> Any:
    """A number as the script needs it: with two decimals more than it shows."""
    return round(value, digits + 2) if isinstance(value, float) else value


def _strip(page: Page) -> str:
    more = min(page.pending, PENDING)
    outcomes, shades = [*page.outcomes, *["pending"] * more], [*(page.shades or [0] * len(page.outcomes)), *[0] * more]
    if not outcomes:
        return ""
    legend = "".join(
        f'<li><svg viewBox="0 0 8 8" aria-hidden="true"><path class="{each}" d="M0 0{path}"/></svg>{escape(word)} '
        f"<b>{(page.pending if each == 'pending' else outcomes.count(each)):,}</b></li>"
        for each, (_, word, path) in OUTCOMES.items()
        if each in outcomes
    )
    return section(
        "all",
        "Every episode",
        f'{strip(outcomes, shades)}<ul class="legend">{legend}</ul><p id="hover" class="note"></p>',
        "The stronger the colour, the higher the return; each shade is a quarter." if any(shades) else "",
    )


def _table(page: Page) -> str:
    count = len(page.outcomes)
    heads = "".join(
        f'<th scope="col" class="{each.kind} w{each.wide}">{escape(each.name)}'
        f"{f' <small>{escape(each.unit)}</small>' if each.unit else ''}</th>"
        for each in page.columns
    )
    rows = [
        f'<tr id="e{page.columns[0].values[i]}">{"".join(_cell(each, i) for each in page.columns)}</tr>'
        for i in range(count if count <= ROWS else 0)
    ]
    body = "\n".join(rows)
    without = f"<noscript><p>The rows of {count:,} episodes are made by the script.</p></noscript>" * (count > ROWS)
    table = f'<table><thead><tr>{heads}</tr></thead><tbody id="rows">{body}</tbody></table>'
    return section("table", "Episodes", f'{without}<div id="frame">{table}</div>', page.note) if count else ""


def _cell(column: Column, i: int) -> str:
    value, kind = column.values[i], column.kind
    if kind == "id":
        inside = link(value)
    elif kind == "mark":
        sign, word, _ = OUTCOMES[value]
        inside = f'<i aria-hidden="true">{sign}</i> {escape(word)}'
    elif kind == "text":
        inside = escape(value)
    else:
        drawn = bar(value, *column.ends) if kind == "bar" else ""
        inside = f"{drawn}{number(value, column.digits, column.sign)}"
    return f'<td class="{kind} w{column.wide}">{inside}</td>'


def _data(page: Page) -> str:
    sides = [
        {
            "name": side.name,
            "replay": side.replay,
            "names": list(side.names),
            "films": side.films,
            "errors": side.errors,
            "curves": {
                index: [base64.b64encode(each.points).decode(), number(each.low, 2), number(each.high, 2)]
                for index, each in side.curves.items()
            },
        }
        for side in page.sides
    ]
    content = {
        "columns": [each.as_json() for each in page.columns],
        "filters": [[name, list(rows)] for name, rows in page.filters],
        "sides": sides,
        "outcomes": {name: [sign, word] for name, (sign, word, _) in OUTCOMES.items()},
        "across": columns_of(len(page.outcomes) + min(page.pending, PENDING)),
        "inHtml": ROWS,
        "unit": NARROW,
    }
    return inside_script(content)


def inside_script(content: Any) -> str:
    """JSON that ends no script and begins no markup. Raises ValueError: a number in it is none of JSON's."""
    text = json.dumps(content, allow_nan=False, ensure_ascii=True, separators=(",", ":"))
    for each in "<>&\u2028\u2029":
        text = text.replace(each, f"\\u{ord(each):04x}")
    return text
