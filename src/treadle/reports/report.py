"""`treadle.report`: what came of a run, or of two that began from the same seeds, as one HTML file to hand on."""

from __future__ import annotations

import base64
import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path
from urllib.parse import quote

from treadle.checks import path_of
from treadle.reports.drawing import NARROW, digits_of, gauge, histogram, number, percent
from treadle.reports.model import EXTREME, POINTS, ROWS, Model, Pairs, Share, Spread, gap, model_of, paired
from treadle.reports.page import Column, Page, Side, code, link, render, section
from treadle.reports.reading import ENDS, Played
from treadle.whole_file import written

INLINE = 8 << 20  # bytes of films in the page; those beyond it are named by their path
NAMED = 12  # episodes of one cause, or of one remark, that are links
METHOD = (
    "Intervals are at 95 %: of a share Wilson's score interval (Wilson 1927), of a mean a percentile bootstrap of "
    "10,000 samples (Efron 1979). Standard deviations are the population's."
)


def report(directory: str | Path, other: str | Path | None = None, *, out: str | Path | None = None) -> Path:
    """Write what came of a run as one HTML file, which needs no server, no network and no other file.

    It reads what is in the directory, also while the run goes on, after a kill, and of datasets of earlier versions. It
    names no user, host or path outside the run, hides values of arguments whose key is that of a secret, and runs,
    imports and unpickles nothing that lies there. Films in `directory/films` are put in, up to 8 MB.

    Args:
        directory: what was `out` of the run.
        other: of a second run: their episodes are compared in pairs of the same seed.
        out: the file; None: `report.html` in `directory`, with `other` `report-NAME.html`.

    Returns:
        The file.

    Raises:
        UsageError: there is no run in a directory, or two runs share no seed.
        OSError: the file cannot be written.
    """
    first = path_of("directory", directory)
    if other is None:
        model, name = model_of(first), "report.html"
        target = first / name if out is None else path_of("out", out)
        page = _of_one(model, first, target)
    else:
        second = path_of("other", other)
        pairs, name = paired(model_of(first), model_of(second)), f"report-{second.resolve().name}.html"
        target = first / name if out is None else path_of("out", out)
        page = _of_two(pairs, (first, second), target)
    with written(target) as file:
        file.write(render(page).encode())
    return target


def _of_one(model: Model, directory: Path, target: Path) -> Page:
    episodes, rows = model.episodes, {each.index: i for i, each in enumerate(model.episodes)}
    pending = max(0, (model.wanted or 0) - len(episodes)) if not model.over else 0
    side, left_out = _side(model, target), _films_note(model, target)
    best, extreme = model.best, min(EXTREME, len(model.best) // 2)
    remarked = sorted({index for each in model.remarks for index in each.episodes if index in rows})
    filters = {
        "all": list(rows),
        "no success": model.failed,
        "left out": model.left_out,
        "best": best[:extreme],
        "worst": best[-extreme:][::-1] if extreme else [],
        "remarked": remarked,
    }
    return Page(
        title=f"{model.policy} in {model.env}: report",
        lead=_lead(f"Report · {model.name}", _sentence(model), [*_besides(model), left_out], _gauge(model), [model]),
        outcomes=[_outcome(each, model) for each in episodes],
        pending=pending,
        columns=_columns(model),
        filters=[(name, [rows[index] for index in indices]) for name, indices in filters.items() if indices],
        sides=[side],
        note=_sampled(model),
        shades=_shades(model),
        after_strip=[*_remarks([model]), *_failures(model, side)],
        after_table=[*_spreads([model]), *_tasks(model), _end([model])],
    )


def _of_two(pairs: Pairs, directories: tuple[Path, Path], target: Path) -> Page:
    models, gaps = (pairs.first, pairs.second), [gap(*pair) for pair in pairs.pairs]
    names = _names(*models)
    told = any(a.success is not None or b.success is not None for a, b in pairs.pairs)
    every = range(len(gaps))
    apart = [i for i, (a, b) in enumerate(pairs.pairs) if a.success != b.success]
    order = sorted(every, key=lambda i: (i not in set(apart), -abs(gaps[i] or 0.0), i))
    chosen = [pairs.pairs[i] for i in order]
    steps = [gaps[i] for i in order]
    columns = [
        Column("episode", "id", [a.index for a, _ in chosen]),
        Column("seed", "text", [str(a.seed) for a, _ in chosen], wide=2),
    ]
    for name, side in zip(names, zip(*chosen, strict=True), strict=True):
        values = [each.returns for each in side]
        columns.append(Column(f"return, {name}", "number", values, digits=digits_of(values), wide=1))
    columns.append(Column("difference", "bar", steps, digits=digits_of(steps), sign=True))
    for name, model, side in zip(names, models, zip(*chosen, strict=True), strict=True):
        columns.append(Column(name, "mark", [_outcome(each, model) for each in side], wide=1 - told))
    better = [i for i, each in enumerate(steps) if each is not None and each > 0]
    worse = [i for i, each in enumerate(steps) if each is not None and each < 0]
    filters = [
        ("all", list(every)),
        ("one alone succeeds", list(range(len(apart)))),
        (f"{names[0]} is better", better),
        (f"{names[1]} is better", worse),
        ("equal", [i for i, each in enumerate(steps) if each == 0]),
    ]
    outcomes = ["error" if each is None else "more" if each > 0 else "less" if each < 0 else "equal" for each in steps]
    sides = [
        _side(model, target, name, [each.index for each in side])
        for model, name, side in zip(models, names, zip(*chosen, strict=True), strict=True)
    ]
    besides = [*_besides_of_two(pairs, names), *(_films_note(model, target) for model in models)]
    return Page(
        title=f"{names[0]} and {names[1]}, compared",
        lead=_lead(
            f"Report · {names[0]} against {names[1]}",
            _sentence_of_two(pairs, names),
            besides,
            _gauge_of(pairs.difference, sign=True),
            models,
        ),
        outcomes=outcomes,
        pending=0,
        columns=columns,
        filters=[(name, rows) for name, rows in filters if rows],
        sides=sides,
        note=f"Up: {names[0]} has the higher return; down: {names[1]}. Pairs in which one alone succeeds come first.",
        after_strip=_remarks(models),
        after_table=[*_spreads(models), _end(models)],
    )


# -- what is said ------------------------------------------------------------------------------------------------------


def _lead(eyebrow: str, sentence: str, besides: Iterable[str], gauge: str, models: Sequence[Model]) -> str:
    told = "".join(f'<p class="besides">{each}</p>' for each in besides if each)
    about = "".join(
        f"<div><dt>{what}{escape(f' of {model.name}' if len(models) > 1 else '')}</dt><dd>{escape(value)}</dd></div>"
        for model in models
        for what, value in (("policy", model.policy), ("environment", model.env), ("seed", model.seed))
    )
    return f'<p class="eyebrow">{escape(eyebrow)}</p><h1>{sentence}</h1>{gauge}{told}<dl class="about">{about}</dl>'


def _sentence(model: Model) -> str:
    """HTML: how good, and how sure that is."""
    so_far = ""
    if not model.over:
        so_far = f"{len(model.episodes):,} of {model.wanted:,} so far: " if model.wanted else "So far: "
    if model.success is not None:
        count = f"{model.success.count:,}" if model.success.count else "None"
        return f"{so_far}{count} of the {_count(model.success.of)} played succeeded: {_rate(model.success)}."
    if model.returns is None:
        return f"{so_far}No episode was played to its end."
    digits = digits_of([model.returns.mean])
    over, mean = _count(model.returns.count), number(model.returns.mean, digits)
    return f"{so_far}Mean return <b>{mean}</b> over {over} {_within(model.returns)}."


def _rate(share: Share, level: str = f"95{NARROW}%: ") -> str:
    interval = f"{level}{100 * share.low:.0f} to {100 * share.high:.0f}"
    return f"<b>{percent(share.count / share.of)}</b> <small>({interval})</small>"


def _within(spread: Spread) -> str:
    digits = digits_of([spread.mean])
    return f"<small>(95{NARROW}%: {number(spread.low, digits)} to {number(spread.high, digits)})</small>"


def _count(count: int) -> str:
    return f"{count:,} episode{'' if count == 1 else 's'}"


def _besides(model: Model) -> Iterator[str]:
    """HTML: what belongs to the sentence, a paragraph each."""
    lacks, more = len(model.left_out), ""
    if lacks:
        if model.counted is not None:
            more = f"; if they count as failures: {_rate(model.counted, '')}"
        asked = f"{model.wanted:,} were asked for; " if model.wanted and model.over else ""
        yield f"{asked}{lacks:,} could not be played{more}."
    elif model.over and model.wanted and model.wanted > len(model.episodes):
        yield f"{model.wanted:,} were asked for; {model.wanted - len(model.episodes):,} are missing."
    if model.success is not None and model.returns is not None:
        digits = digits_of([model.returns.mean])
        yield f"Mean return {number(model.returns.mean, digits)} {_within(model.returns)}."
    if model.odd:
        yield f"{len(model.odd):,} returns are no finite numbers, and in no mean: {_links(model.odd)}."
    again, unequal = model.replayed
    if again:
        result = f"{unequal:,} not equal" if unequal else "equal"
        yield f"{again:,} of {_count(len(model.played))} played again: {result}."


def _sentence_of_two(pairs: Pairs, names: Sequence[str]) -> str:
    first, second = (escape(name) for name in names)
    return (
        f"From {len(pairs.pairs):,} equal starts {first} has the higher return in <b>{pairs.wins:,}</b>, {second} in "
        f"<b>{pairs.losses:,}</b>; {pairs.ties:,} are ties."
    )


def _besides_of_two(pairs: Pairs, names: Sequence[str]) -> Iterator[str]:
    """HTML, as `_besides`."""
    first, second = (escape(name) for name in names)
    if (mean := pairs.difference) is not None:
        shown = number(mean.mean, digits_of([mean.mean]), True)
        yield f"The mean return of {first} differs from that of {second} by <b>{shown}</b> {_within(mean)}."
    if pairs.only_first or pairs.only_second:
        alone = f"{first} in {pairs.only_first:,}, {second} in {pairs.only_second:,}"
        yield f"One alone succeeds in {pairs.only_first + pairs.only_second:,}: {alone}."


def _gauge(model: Model) -> str:
    if model.success is not None:
        rate = model.success.count / model.success.of
        return _scaled(gauge(model.success.low, rate, model.success.high, 0, 1), percent(0), percent(1))
    return _gauge_of(model.returns)


def _gauge_of(spread: Spread | None, sign: bool = False) -> str:
    if spread is None or spread.least == spread.most:
        return ""
    digits = digits_of([spread.least, spread.most])
    drawn = gauge(spread.low, spread.mean, spread.high, spread.least, spread.most)
    ends = (number(each, digits, sign) for each in (spread.least, spread.most))
    return _scaled(drawn, *(f"{name} {each}" for name, each in zip(("lowest", "highest"), ends, strict=True)))


def _scaled(drawn: str, *labels: str) -> str:
    """A picture above what stands at its left end, between, and at its right end."""
    return f'<div class="scaled">{drawn}<p class="scale">{"".join(f"<span>{each}</span>" for each in labels)}</p></div>'


def _links(indices: Sequence[int]) -> str:
    more = f" and {len(indices) - NAMED:,} more" if len(indices) > NAMED else ""
    return ", ".join(map(link, indices[:NAMED])) + more


def _remarks(models: Sequence[Model]) -> list[str]:
    said = [
        f"<li>{escape(f'{model.name}: ' if len(models) > 1 else '')}{escape(each.text)}"
        f"{f' <span>Episodes {_links(each.episodes)}</span>' if each.episodes else ''}</li>"
        for model in models
        for each in model.remarks
    ]
    return [section("remarks", "To be kept in mind", f'<ul class="remarks">{"".join(said)}</ul>')] if said else []


def _failures(model: Model, side: Side) -> list[str]:
    """Those that could not be played, by cause; and the first of those that were no success."""
    items = []
    for each in model.groups:
        film = next((index for index in each.episodes if index in side.films), None)
        shown = f' <a class="film" href="#e{film}">▶ film of episode {film}</a>' if film is not None else ""
        items.append(
            f"<li><p><b>{len(each.episodes):,} ×</b> <code>{escape(str(each.cause))}</code></p>"
            f'<p class="note">{"Episode" if len(each.episodes) == 1 else "Episodes"} {_links(each.episodes)}{shown}</p>'
            f"{code(f'{model.replay} {each.episodes[0]}')}</li>"
        )
    if model.failed:
        items.append(
            f"<li><p><b>{len(model.failed):,} ×</b> no success at the end</p>"
            f'<p class="note">{"Episode" if len(model.failed) == 1 else "Episodes"} {_links(model.failed)}</p>'
            f"{code(f'{model.replay} {model.failed[0]}')}</li>"
        )
    where = f"Commands are for the folder that holds {model.name}."
    return [section("failures", "Failures", f'<ol class="groups">{"".join(items)}</ol>', where)] if items else []


def _spreads(models: Sequence[Model]) -> list[str]:
    drawn = []
    for name, unit in (("returns", ""), ("lengths", f"{NARROW}steps")):
        for model in models:
            found: Spread | None = getattr(model, name)
            if found is None:
                continue
            digits = digits_of([found.least, found.most])
            ends = [f"{number(each, digits)}{unit}" for each in (found.least, found.most)]
            labels = (ends[0], f"median {number(found.median, max(digits, digits_of([found.median])))}", ends[1])
            few = max(1, digits_of([found.mean]))
            said = f"mean {number(found.mean, few)}, standard deviation {number(found.std, few)}, {_count(found.count)}"
            whose = f" of {escape(model.name)}" if len(models) > 1 else ""
            drawn.append(
                f'<figure><figcaption><b>{name.capitalize()}</b>{whose} <span class="note">{said}</span></figcaption>'
                f"{_scaled(histogram(found.bins), *labels)}</figure>"
            )
    return [section("spread", "Distribution", f'<div class="figures">{"".join(drawn)}</div>')] if drawn else []


def _tasks(model: Model) -> list[str]:
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{_rate(rate) if rate else "–"}</td>'
        f"<td>{f'{number(found.mean, 2)} {_within(found)}' if found else '–'}</td>"
        f"<td>{found.count if found else 0:,}</td></tr>"
        for name, rate, found in model.tasks
    )
    head = "".join(f'<th scope="col">{each}</th>' for each in ("task", "success", "mean return", "episodes"))
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    frame = f'<div class="wide" tabindex="0" role="region" aria-labelledby="tasks">{table}</div>'
    return [section("tasks", "By task", frame)] if rows else []


def _end(models: Sequence[Model]) -> str:
    """What repeats it, and what it was made with; folded."""
    parts = []
    for model in models:
        facts = "".join(f"<div><dt>{escape(what)}</dt><dd>{escape(value)}</dd></div>" for what, value in model.facts)
        repeat = f"<p>This repeats it:</p>{code(model.command)}" if model.command else ""
        parts.append(f"<details><summary>How {escape(model.name)} was made</summary>{repeat}<dl>{facts}</dl></details>")
    return f'<footer>{"".join(parts)}<p class="note">{escape(METHOD)}</p></footer>'


# -- what is shown of each episode -------------------------------------------------------------------------------------


def _outcome(each: Played, model: Model) -> str:
    if each.end == ENDS[2] or model.success is None:
        return each.end
    return "success" if each.success else "failure"


def _shades(model: Model) -> list[int]:
    """Where nobody says what is a success: of each episode the quarter that its return is in, the highest one full."""
    known = {each.index: float(each.returns or 0) for each in model.episodes if model.success is None}
    known = {index: known[index] for index in reversed(model.best) if index in known}
    cuts = [list(known.values())[len(known) * i // 4] for i in (1, 2, 3)] if known else []
    return [3 - bisect_right(cuts, known[each.index]) if each.index in known else 0 for each in model.episodes]


def _columns(model: Model) -> list[Column]:
    episodes = model.episodes
    returns, seconds = ([getattr(each, name) for each in episodes] for name in ("returns", "seconds"))
    columns = [
        Column("episode", "id", [each.index for each in episodes]),
        Column("seed", "text", ["–" if each.seed is None else str(each.seed) for each in episodes], wide=2),
        Column("return", "bar", returns, digits=digits_of(returns)),
        Column("length", "number", [each.length for each in episodes], "steps", wide=1),
        Column("end", "mark", [each.end for each in episodes], wide=0 if model.success is None else 2),
    ]
    if model.success is not None:
        columns.append(Column("success", "mark", [_outcome(each, model) for each in episodes]))
    if any(each is not None for each in seconds):
        columns.append(Column("time", "number", seconds, "s", digits_of(seconds), wide=1))
    if any(each.task for each in episodes):
        columns.append(Column("task", "text", [each.task for each in episodes], wide=1))
    if model.groups:
        causes = ["" if each.cause is None else f"{each.cause.kind} {each.cause.place}".strip() for each in episodes]
        columns.append(Column("cause", "text", causes, wide=1))
    return columns


def _side(model: Model, target: Path, name: str = "", names: Sequence[int] | None = None) -> Side:
    errors = {each.index: str(each.cause) for each in model.episodes if each.cause is not None}
    names = [each.index for each in model.episodes] if names is None else names
    return Side(name, model.replay, names, model.curves, dict(_films(model, target)), errors)


def _films(model: Model, target: Path) -> Iterator[tuple[int, str]]:
    """By episode, those of failures first: a film as an URI; beyond `INLINE` bytes its path, as seen from the page."""
    room, first = INLINE, {*model.left_out, *model.failed}
    for index in sorted(model.films, key=lambda index: (index not in first, index)):
        path = model.films[index]
        nbytes = path.stat().st_size
        if nbytes <= room:
            room -= nbytes
            kind = "video/mp4" if path.suffix == ".mp4" else "image/png"
            yield index, f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"
        else:
            yield index, quote(os.path.relpath(path.resolve(), target.parent.resolve()))


def _films_note(model: Model, target: Path) -> str:
    outside = [index for index, uri in _films(model, target) if not uri.startswith("data:")]
    return f"Films of {_links(outside)} are not in this file: they lie in <code>films/</code>." if outside else ""


def _sampled(model: Model) -> str:
    opened = f"Each opens: its return step by step (at most {POINTS} points), and the command that plays it again."
    if len(model.played) <= ROWS:
        return opened
    return f"{opened} Of more than {ROWS:,} only some have a curve: failed, remarked, best, worst, and a sample."


def _names(first: Model, second: Model) -> tuple[str, str]:
    return first.name, second.name if second.name != first.name else f"{second.name} (second)"
