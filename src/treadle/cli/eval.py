"""`treadle eval`."""

from __future__ import annotations

from dataclasses import asdict

from treadle.cli import failures
from treadle.cli.options import EvalOptions
from treadle.cli.output import own_stdout
from treadle.progress import print_table
from treadle.record.summary import as_json
from treadle.sample.evaluate import CONFIDENCE, Comparison, Evaluation, Score, compare, evaluate
from treadle.sample.failed import CollectionFailed

SHOWN = 50  # episodes in the table; --json has all


def run(options: EvalOptions) -> int:
    """Evaluate, print what came of it, and return the exit code."""
    options.arguments()
    with own_stdout(options.json) as out:
        try:
            first = _play(options, options.policy)
            second = _play(options, options.against) if options.against is not None else None
        except CollectionFailed as error:
            failures.tell(error, debug=options.debug)
            return failures.FAILED
        compared = compare(first, second, options.seed) if second is not None else None
        if options.json:
            print(as_json(asdict(compared or first)), file=out)
        elif compared is None:
            _show(first)
        else:
            _show_pair(compared)
    return failures.OK


def _play(options: EvalOptions, policy: str) -> Evaluation:
    return evaluate(policy=policy, progress=not options.quiet, **options.arguments())


def _show(result: Evaluation) -> None:
    rows = [
        (str(s.index), f"{s.total_reward:,.2f}", f"{s.length:,}", _end(s), str(s.seed)) for s in result.scores[:SHOWN]
    ]
    print_table(rows, ("episode", "return", "steps", "end", "seed"))
    _rest(result)
    print(_line(result))


def _show_pair(result: Comparison) -> None:
    pairs = list(zip(result.first.scores, result.second.scores, strict=True))
    rows = [
        (
            str(a.index),
            f"{a.total_reward:,.2f}",
            f"{b.total_reward:,.2f}",
            f"{a.total_reward - b.total_reward:+,.2f}",
            str(a.seed),
        )
        for a, b in pairs[:SHOWN]
    ]
    one, two = (f"return of {each.policy}" for each in (result.first, result.second))
    print_table(rows, ("episode", one, two, "difference", "seed"))
    _rest(result.first)
    print(_line(result.first))
    print(_line(result.second))
    interval = f", {CONFIDENCE:.0%} interval [{result.low:+,.2f}, {result.high:+,.2f}]" if len(pairs) > 1 else ""
    print(
        f"difference: {result.difference:+,.2f}{interval}; "
        f"better in {result.wins}, equal in {result.ties}, worse in {result.losses} of {_episodes(len(pairs))}"
    )


def _rest(result: Evaluation) -> None:
    if len(result.scores) > SHOWN:
        print(f"... and {len(result.scores) - SHOWN} more (--json prints all)")


def _line(result: Evaluation) -> str:
    if len(result.scores) == 1:  # one says nothing of the spread
        return f"{result.policy}: return {result.mean:,.2f}, 1 episode"
    return (
        f"{result.policy}: mean return {result.mean:,.2f}, {CONFIDENCE:.0%} interval [{result.low:,.2f}, "
        f"{result.high:,.2f}], std {result.std:,.2f}, {_episodes(len(result.scores))}"
    )


def _episodes(count: int) -> str:
    return f"{count:,} episode{'' if count == 1 else 's'}"


def _end(score: Score) -> str:
    return "terminated" if score.terminated else "truncated"
