"""The page: one HTML file with its style, script and data inside, which requests nothing.

Its Content-Security-Policy allows that one style and that one script, by their hashes. Films may also come from files
beside the page. Up to `ROWS` rows are in the HTML. Of more rows the script makes those that are looked at, from the
same data. So a column says what it holds and how it is written: `_cell` here and `cell` in `page.js` follow it alike.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from treadle.drawing import NARROW, OUTCOMES, bar, columns_of, digits_of, number, strip
from treadle.reports.run import ROWS

PENDING = 10_000  # cells of episodes that are not there yet, at most
FILMS = "img-src data: 'self' file:; media-src data: 'self' file:; "  # what a page with films may show besides


@dataclass(frozen=True)
class Column:
    """A column of the table.

    Attributes:
        name: its heading.
        kind: "id": numbers of episodes; "number"; "bar": numbers that are also drawn; "mark": names of `OUTCOMES`;
            "text".
        values: one a row; None: a number is unknown.
        unit: of the numbers, in the heading; "": none.
        wide: the least width of the page at which the column is shown: 0 (any), 1 (a tablet), 2 (a desk).
        sign: True: numbers above 0 have a sign.
    """

    name: str
    kind: str
    values: Sequence[Any]
    unit: str = ""
    wide: int = 0
    sign: bool = False

    @cached_property
    def digits(self) -> int:
        """The number of decimals that its numbers are shown with."""
        return digits_of(self.values) if self.kind in ("number", "bar") else 0

    @cached_property
    def ends(self) -> tuple[float, float]:
        """The numbers at the two ends of the scale of bars; 0 is between them."""
        values = self.values if self.kind == "bar" else ()
        finite = [0.0, *(each for each in values if each is not None and math.isfinite(each))]
        return min(finite), max(finite)

    def as_json(self) -> dict[str, Any]:
        """Return the column as a dict for the script.

        Texts are indices into "words". NaN and infinities are null in "values", and texts by row in "odd".
        """
        about: dict[str, Any] = {key: getattr(self, key) for key in ("name", "kind", "unit", "digits", "wide", "sign")}
        if self.kind in ("mark", "text"):
            words = {word: i for i, word in enumerate(dict.fromkeys(self.values))}
            return {**about, "words": list(words), "values": [words[each] for each in self.values]}
        reals = {i: each for i, each in enumerate(self.values) if isinstance(each, float)}
        odd = {i: number(each) for i, each in reals.items() if not math.isfinite(each)}
        few = {i: None if i in odd else round(each, self.digits + 2) for i, each in reals.items()}
        return {
            **about,
            "values": [few.get(i, each) for i, each in enumerate(self.values)],
            "odd": odd,
            "ends": self.ends,
        }


@dataclass(frozen=True)
class Table:
    """The table of episodes, or of pairs of episodes, and the strip of its rows.

    Attributes:
        columns: the first one is of kind "id".
        marks: the name in `OUTCOMES` of each row.
        shades: of each row, 0 (full) to 3.
        filters: name -> numbers of the rows that it shows.
        note: text below the table's heading.
        pending: number of rows that are still to come.
    """

    columns: Sequence[Column]
    marks: Sequence[str]
    shades: Sequence[int]
    filters: Mapping[str, Iterable[int]]
    note: str
    pending: int = 0

    def strip(self) -> str:
        """Return the HTML of the strip, a cell for each row; "" without rows."""
        more = min(self.pending, PENDING)
        marks, shades = [*self.marks, *["pending"] * more], [*self.shades, *[0] * more]
        if not marks:
            return ""
        counts = {each: self.pending if each == "pending" else marks.count(each) for each in OUTCOMES if each in marks}
        legend = "".join(
            f'<li><svg viewBox="0 0 8 8" aria-hidden="true"><path class="{each}" d="M0 0{OUTCOMES[each][2]}"/></svg>'
            f"{OUTCOMES[each][1]} <b>{count:,}</b></li>"
            for each, count in counts.items()
        )
        drawn = f'{strip(marks, shades)}<ul class="legend">{legend}</ul><p id="hover" class="note"></p>'
        note = "The stronger the colour, the higher the return; each shade is a quarter." if any(shades) else ""
        return section("all", "Every episode", drawn, note)

    def html(self) -> str:
        """Return the HTML of the table, with its rows if there are at most `ROWS`; "" without rows."""
        count = len(self.marks)
        heads = "".join(
            f'<th scope="col" class="{each.kind} w{each.wide}">{escape(each.name)}'
            f"{f' <small>{each.unit}</small>' if each.unit else ''}</th>"
            for each in self.columns
        )
        rows = "\n".join(
            f'<tr id="e{self.columns[0].values[i]}">{"".join(_cell(each, i) for each in self.columns)}</tr>'
            for i in range(count if count <= ROWS else 0)
        )
        without = f"<noscript><p>The rows of {count:,} episodes are made by the script.</p></noscript>" * (count > ROWS)
        two = ' class="two"' * (sum(each.kind == "mark" and not each.wide for each in self.columns) > 1)
        table = f'<table{two}><thead><tr>{heads}</tr></thead><tbody id="rows">{rows}</tbody></table>'
        return section("table", "Episodes", f'{without}<div id="frame">{table}</div>', self.note) if count else ""

    def as_json(self) -> dict[str, Any]:
        """Return the table as a dict for the script."""
        return {
            "columns": [each.as_json() for each in self.columns],
            "filters": [[name, rows] for name, each in self.filters.items() if (rows := list(each))],
            "outcomes": {name: [sign, word] for name, (sign, word, _) in OUTCOMES.items()},
            "across": columns_of(len(self.marks) + min(self.pending, PENDING)),
            "inHtml": ROWS,
            "unit": NARROW,
        }


def render(title: str, lead: str, before: Iterable[str], table: Table, after: Iterable[str], sides: list[Any]) -> str:
    """Return the HTML of the whole file.

    Args:
        title: the page's title, a text.
        lead: HTML above the strip.
        before, after: HTML of the sections before the table (after the strip), and after the table.
        table: of episodes.
        sides: a dict of each run for the script: name, command, episodes by row, and by episode curves, films and
            errors.
    """
    style, script, page = (
        files(__package__).joinpath(f"page.{each}").read_text(encoding="utf-8") for each in ("css", "js", "html")
    )
    return Template(page).substitute(
        title=escape(title),
        lead=lead,
        before=table.strip() + "".join(before),
        table=table.html(),
        after="".join(after),
        data=inside_script({**table.as_json(), "sides": sides}),
        style=style,
        script=script,
        style_hash=_hash(style),
        script_hash=_hash(script),
        films=FILMS if any(side["films"] for side in sides) else "",
    )


def section(name: str, title: str, content: str, note: str = "") -> str:
    """Return the HTML of a section. `name` (its id) and `content` are HTML; `title` and `note` are texts."""
    said = f'<p class="note">{escape(note)}</p>' if note else ""
    return f'<section aria-labelledby="{name}"><h2 id="{name}">{escape(title)}</h2>{said}{content}</section>\n'


def link(index: int) -> str:
    """Return the HTML of an episode's number, a link to the episode's row."""
    return f'<a href="#e{index}">{index}</a>'


def inside_script(content: Any) -> str:
    """Return JSON that ends no script and begins no markup. Raises ValueError for NaN or an infinity in `content`."""
    text = json.dumps(content, allow_nan=False, ensure_ascii=True, separators=(",", ":"))
    for each in "<>&":
        text = text.replace(each, f"\\u{ord(each):04x}")
    return text


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _cell(column: Column, i: int) -> str:
    value, kind = column.values[i], column.kind
    if kind == "id":
        inside = link(value)
    elif kind == "mark":
        sign, word, _ = OUTCOMES[value]
        inside = f'<i aria-hidden="true">{sign}</i> {word}'
    elif kind == "text":
        inside = escape(value)
    else:
        drawn = bar(value, *column.ends) if kind == "bar" else ""
        inside = f"{drawn}{number(value, column.digits, column.sign)}"
    return f'<td class="{kind} w{column.wide}">{inside}</td>'
