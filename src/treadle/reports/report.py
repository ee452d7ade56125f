"""`treadle.report`: the results of a run, or of two that began from the same seeds, as one HTML file to hand on."""

from __future__ import annotations

import base64
import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from treadle.checks import path_of, suggests
from treadle.drawing import NARROW, counted, digits_of, histogram, number, percent
from treadle.record.outcomes import Outcome
from treadle.reports.page import Column, Table, link, render, section
from treadle.reports.run import POINTS, ROWS, Run, Share, Spread, gap, paired, spread
from treadle.whole_file import written

INLINE = 8 << 20  # bytes of films in the page; those beyond it are named by their path
NAMED = 12  # episodes of one cause, or of one remark, that are links
EXTREME = 10  # episodes that are called the best, and the worst
METHOD = (
    "Intervals are at 95 %: of a share Wilson's score interval (Wilson 1927), of a mean a percentile bootstrap of "
    "10,000 samples (Efron 1979). Standard deviations are the population's."
)


@suggests
def report(directory: str | Path, other: str | Path | None = None, *, out: str | Path | None = None) -> Path:
    """Write a run's report as one HTML file, which needs no server, no network and no other file.

    The run may still be going on, may have been killed, or may be of an earlier version. The report names no user, host
    or path outside the run. It hides values of arguments whose names suggest a secret, such as "token" or "password".
    Nothing in the directory is run, imported or unpickled. The report holds films from `directory/films`, up to 8 MiB
    and those of failures first; it links the others.

    Args:
        directory: the `out` of the run.
        other: the `out` of a second run, whose episodes are compared with the first run's in pairs of the same seed.
            None: a report of one run.
        out: the file to write; None: `report.html` in `directory`, or with `other` `report-NAME.html` there, where NAME
            is the name of the directory `other`.

    Returns:
        The path of the file.

    Raises:
        UsageError: a directory holds no run, or two runs have no seed in common.
        OSError: the file cannot be written.
    """
    places = [path_of("directory", directory), *([] if other is None else [path_of("other", other)])]
    name = "report.html" if other is None else f"report-{places[1].resolve().name}.html"
    target = places[0] / name if out is None else path_of("out", out)
    page = (_of_one if other is None else _of_two)(target, *map(Run, places))
    with written(target) as file:
        file.write(page.encode())
    return target


def _of_one(target: Path, run: Run) -> str:
    found, rows = run.outcomes, {each.index: i for i, each in enumerate(run.outcomes)}
    best, extreme = run.best, min(EXTREME, len(run.best) // 2)
    remarked = {index for each in run.remarks for index in each.episodes}
    filters = {
        "all": list(rows),
        "no success": run.failed,
        "left out": run.left_out,
        "best": best[:extreme],
        "worst": best[-extreme:][::-1] if extreme else [],
        "remarked": sorted(remarked & {*rows}),
    }
    note = f"Each opens: its return step by step (at most {POINTS} points), and the command that plays it again."
    if len(run.played) > ROWS:
        note += f" Of more than {ROWS:,} only some have a curve: failed, remarked, best, worst, and a sample."
    table = Table(
        _columns(run),
        [_mark(each, run) for each in found],
        _shades(run),
        {name: [rows[index] for index in indices] for name, indices in filters.items()},
        note,
        max(0, (run.wanted or 0) - len(found)) if not run.over else 0,
    )
    said = f"Report · {run.name}", _sentence(run), [*_besides(run)]
    return _page(f"{run.policy} in {run.env}: report", said, table, target, [(run, "", found)])


def _of_two(target: Path, first: Run, second: Run) -> str:
    pairs = paired(first, second)
    names = first.name, second.name if second.name != first.name else f"{second.name} (second)"
    sides = [*zip((first, second), names, zip(*pairs, strict=True), strict=True)]
    gaps = [gap(*pair) for pair in pairs]
    told = any(each.success is not None for pair in pairs for each in pair)
    columns = [
        Column("episode", "id", [a.index for a, _ in pairs]),
        Column("seed", "text", [str(a.seed) for a, _ in pairs], wide=2),
        *(Column(f"return, {name}", "number", [e.total_reward for e in own], wide=1) for _, name, own in sides),
        Column("difference", "bar", gaps, sign=True),
        *(Column(name, "mark", [_mark(e, run) for e in own], wide=1 - told) for run, name, own in sides),
    ]
    marks = ["error" if each is None else "more" if each > 0 else "less" if each < 0 else "equal" for each in gaps]
    alone = [i for i, (a, b) in enumerate(pairs) if a.success != b.success]
    better, worse, same = ([i for i, each in enumerate(marks) if each == mark] for mark in ("more", "less", "equal"))
    filters = {
        "all": range(len(pairs)),
        "one alone succeeds": alone,
        f"{names[0]} is better": better,
        f"{names[1]} is better": worse,
        "equal": same,
    }
    note = f"Up: {names[0]} has the higher return; down: {names[1]}. Pairs in which one alone succeeds come first."
    table = Table(columns, marks, [0] * len(marks), filters, note)
    one, two = map(escape, names)
    sentence = (
        f"From {len(pairs):,} equal starts {one} has the higher return in <b>{len(better):,}</b>, {two} in "
        f"<b>{len(worse):,}</b>; {len(same):,} are ties."
    )
    besides = []
    if mean := spread(gaps):
        shown = number(mean.mean, digits_of([mean.mean]), True)
        besides.append(f"The mean return of {one} differs from that of {two} by <b>{shown}</b> {_within(mean)}.")
    won = [sum(pairs[i][side].success is True for i in alone) for side in (0, 1)]
    if any(won):
        besides.append(f"One alone succeeds in {sum(won):,}: {one} in {won[0]:,}, {two} in {won[1]:,}.")
    said = f"Report · {names[0]} against {names[1]}", sentence, besides
    return _page(f"{names[0]} and {names[1]}, compared", said, table, target, sides)


def _page(
    title: str,
    said: tuple[str, str, list[str]],
    table: Table,
    target: Path,
    sides: Sequence[tuple[Run, str, Sequence[Outcome]]],
) -> str:
    """Return the HTML of a page, of the parts that pages of one run and of two have in common.

    Args:
        said: the line above the heading, a text; then, in HTML, the sentence of the heading and those below it.
        target: the file.
        sides: of each run: itself, its name, and its episodes row by row.
    """
    runs = [run for run, *_ in sides]
    shown = [_side(*side, target) for side in sides]
    outside = [_outside(each) for each in shown]
    eyebrow, sentence, besides = said
    about = "".join(
        f"<div><dt>{what}{_of(run, runs)}</dt><dd>{escape(value)}</dd></div>"
        for run in runs
        for what, value in (("policy", run.policy), ("environment", run.env), ("seed", run.seed))
    )
    told = "".join(f'<p class="besides">{each}</p>' for each in [*besides, *outside] if each)
    lead = f'<p class="eyebrow">{escape(eyebrow)}</p><h1>{sentence}</h1>{told}<dl class="about">{about}</dl>'
    before, after = [_remarks(runs)], [_spreads(runs), _end(runs)]
    if len(runs) == 1:
        before.append(_failures(runs[0], shown[0]))
        after.insert(1, _tasks(runs[0]))
    return render(title, lead, before, table, after, shown)


def _of(run: Run, runs: Sequence[Run]) -> str:
    return f" of {escape(run.name)}" if len(runs) > 1 else ""


# -- what is said ------------------------------------------------------------------------------------------------------


def _sentence(run: Run) -> str:
    """Return the HTML of the heading: the rate of success or the mean return, with its interval."""
    so_far = ""
    if not run.over:
        so_far = f"{len(run.outcomes):,} of {run.wanted:,} so far: " if run.wanted else "So far: "
    if run.success is not None:
        count = f"{run.success.count:,}" if run.success.count else "None"
        return f"{so_far}{count} of the {counted(run.success.of)} played succeeded: {_rate(run.success)}."
    if run.returns is None:
        return f"{so_far}No episode was played to its end."
    over, mean = counted(run.returns.count), number(run.returns.mean, digits_of([run.returns.mean]))
    return f"{so_far}Mean return <b>{mean}</b> over {over} {_within(run.returns)}."


def _besides(run: Run) -> Iterator[str]:
    """Yield the HTML of each paragraph below the heading: missing episodes, the mean return, odd returns, replays."""
    lacks, wanted = len(run.left_out), run.wanted if run.over else None
    asked = f"{wanted:,} were asked for; " if wanted else ""
    if lacks:
        more = f"; if they count as failures: {_rate(run.counted, '')}" if run.counted else ""
        yield f"{asked}{lacks:,} could not be played{more}."
    elif wanted and wanted > len(run.outcomes):
        yield f"{asked}{wanted - len(run.outcomes):,} are missing."
    if run.success is not None and run.returns is not None:
        yield f"Mean return {number(run.returns.mean, digits_of([run.returns.mean]))} {_within(run.returns)}."
    if run.odd:
        yield f"{len(run.odd):,} returns are not finite, and left out of each mean: {_links(run.odd)}."
    again, unequal = run.replayed
    if again:
        result = f"{unequal:,} not equal" if unequal else "equal"
        yield f"{again:,} of {counted(len(run.played))} played again: {result}."


def _rate(share: Share, level: str = f"95{NARROW}%: ") -> str:
    interval = f"{level}{100 * share.low:.0f} to {100 * share.high:.0f}"
    return f"<b>{percent(share.count / share.of)}</b> <small>({interval})</small>"


def _within(spread: Spread) -> str:
    digits = digits_of([spread.mean])
    return f"<small>(95{NARROW}%: {number(spread.low, digits)} to {number(spread.high, digits)})</small>"


def _links(indices: Sequence[int]) -> str:
    more = f" and {len(indices) - NAMED:,} more" if len(indices) > NAMED else ""
    return ", ".join(map(link, indices[:NAMED])) + more


def _remarks(runs: Sequence[Run]) -> str:
    said = [
        f"<li>{escape(f'{run.name}: ' if len(runs) > 1 else '')}{escape(each.text)}"
        f"{f' <span>Episodes {_links(each.episodes)}</span>' if each.episodes else ''}</li>"
        for run in runs
        for each in run.remarks
    ]
    return section("remarks", "To be kept in mind", f'<ul class="remarks">{"".join(said)}</ul>') if said else ""


def _failures(run: Run, side: dict[str, Any]) -> str:
    """Return the HTML of the episodes that could not be played, by cause, and of those without success."""
    groups = [(f"<code>{escape(cause)}</code>", episodes) for cause, episodes in run.causes]
    items = []
    for cause, episodes in [*groups, *[("no success at the end", run.failed)] * bool(run.failed)]:
        film = next((index for index in episodes if index in side["films"]), None)
        shown = f' <a class="film" href="#e{film}">▶ film of episode {film}</a>' if film is not None else ""
        items.append(
            f"<li><p><b>{len(episodes):,} ×</b> {cause}</p>"
            f'<p class="note">{"Episode" if len(episodes) == 1 else "Episodes"} {_links(episodes)}{shown}</p>'
            f"{_code(f'{run.replay} {episodes[0]}')}</li>"
        )
    where = f"Commands are for the folder that holds {run.name}."
    return section("failures", "Failures", f'<ol class="groups">{"".join(items)}</ol>', where) if items else ""


def _code(command: str) -> str:
    """Return the HTML of a command. The script adds a button that copies the command."""
    return f'<p class="command"><code>{escape(command)}</code></p>'


def _spreads(runs: Sequence[Run]) -> str:
    drawn = []
    every = [(name, run, getattr(run, name.lower())) for name in ("Returns", "Lengths") for run in runs]
    for name, run, found in [each for each in every if each[2] is not None]:
        digits, few = digits_of([found.least, found.most]), max(1, digits_of([found.mean]))
        unit = f"{NARROW}steps" if name == "Lengths" else ""
        least, most = (f"{number(each, digits)}{unit}" for each in (found.least, found.most))
        median = f"median {number(found.median, max(digits, digits_of([found.median])))}"
        said = f"mean {number(found.mean, few)}, standard deviation {number(found.std, few)}, {counted(found.count)}"
        scale = "".join(f"<span>{each}</span>" for each in (least, median, most))
        drawn.append(
            f'<figure><figcaption><b>{name}</b>{_of(run, runs)} <span class="note">{said}</span></figcaption>'
            f'{histogram(found.bins)}<p class="scale">{scale}</p></figure>'
        )
    return section("spread", "Distribution", f'<div class="figures">{"".join(drawn)}</div>') if drawn else ""


def _tasks(run: Run) -> str:
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{_rate(rate) if rate else "–"}</td>'
        f"<td>{f'{number(found.mean, 2)} {_within(found)}' if found else '–'}</td>"
        f"<td>{found.count if found else 0:,}</td></tr>"
        for name, rate, found in run.by_task()
    )
    head = "".join(f'<th scope="col">{each}</th>' for each in ("task", "success", "mean return", "episodes"))
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    frame = f'<div class="wide" tabindex="0" role="region" aria-labelledby="tasks">{table}</div>'
    return section("tasks", "By task", frame) if rows else ""


def _end(runs: Sequence[Run]) -> str:
    """Return the HTML, folded, of the command that repeats each run, and of the versions that made it."""
    parts = []
    for run in runs:
        facts = "".join(f"<div><dt>{escape(what)}</dt><dd>{escape(value)}</dd></div>" for what, value in run.facts)
        repeat = f"<p>This repeats it:</p>{_code(run.command)}" if run.command else ""
        parts.append(f"<details><summary>How {escape(run.name)} was made</summary>{repeat}<dl>{facts}</dl></details>")
    return f'<footer>{"".join(parts)}<p class="note">{escape(METHOD)}</p></footer>'


# -- what is shown of each episode -------------------------------------------------------------------------------------


def _mark(each: Outcome, run: Run) -> str:
    if each.lost is not None or run.success is None:
        return each.end
    return "success" if each.success else "failure"


def _shades(run: Run) -> list[int]:
    """Return each episode's quarter by its return, 0 (the highest) to 3; all 0 if the infos have a success."""
    known = sorted(each.finite for each in run.played if run.success is None and each.finite is not None)
    cuts = [known[len(known) * i // 4] for i in (1, 2, 3)] if known else []
    return [3 - bisect_right(cuts, each.finite) if cuts and each.finite is not None else 0 for each in run.outcomes]


def _columns(run: Run) -> list[Column]:
    found = run.outcomes
    columns = [
        Column("episode", "id", [each.index for each in found]),
        Column("seed", "text", ["–" if each.seed is None else str(each.seed) for each in found], wide=2),
        Column("return", "bar", [each.total_reward for each in found]),
        Column("length", "number", [each.length for each in found], "steps", wide=1),
        Column("end", "mark", [each.end for each in found], wide=0 if run.success is None else 2),
    ]
    if run.success is not None:
        columns.append(Column("success", "mark", [_mark(each, run) for each in found]))
    if any(each.seconds is not None for each in found):
        columns.append(Column("time", "number", [each.seconds for each in found], "s", wide=1))
    if run.tasks:
        columns.append(Column("task", "text", [run.tasks[each.index] for each in found], wide=1))
    if run.causes:
        columns.append(Column("cause", "text", [run.cause(each) for each in found], wide=1))
    return columns


def _side(run: Run, name: str, episodes: Sequence[Outcome], target: Path) -> dict[str, Any]:
    """Return one run as a dict for the script."""
    return {
        "name": name,
        "replay": run.replay,
        "names": [each.index for each in episodes],
        "films": dict(_films(run, target)),
        "errors": {each.index: run.cause(each) for each in run.outcomes if each.lost is not None},
        "curves": {
            index: [base64.b64encode(each.points).decode(), number(each.low, 2), number(each.high, 2)]
            for index, each in run.curves.items()
        },
    }


def _films(run: Run, target: Path) -> Iterator[tuple[int, str]]:
    """Yield (episode, URI of its film), those of failures first.

    The URI holds the film itself while `INLINE` bytes are not used up, else its path relative to the page.
    """
    room, first = INLINE, {*run.left_out, *run.failed}
    for index in sorted(run.films, key=lambda index: (index not in first, index)):
        path = run.films[index]
        nbytes = path.stat().st_size
        if nbytes <= room:
            room -= nbytes
            kind = "video/mp4" if path.suffix == ".mp4" else "image/png"
            yield index, f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"
        else:
            yield index, quote(os.path.relpath(path.resolve(), target.parent.resolve()))


def _outside(side: dict[str, Any]) -> str:
    outside = [index for index, uri in side["films"].items() if not uri.startswith("data:")]
    return f"Films of {_links(outside)} are not in this file: they lie in <code>films/</code>." if outside else ""
