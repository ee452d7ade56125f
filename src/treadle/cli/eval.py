"""`treadle eval`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from treadle.cli import failures
from treadle.cli.options import Eval
from treadle.cli.process import load_files, own_stdout
from treadle.progress import print_table
from treadle.record.summary import as_json, asked
from treadle.sample.evaluate import SCORE_HEADER, Comparison, Evaluation, compare, evaluate
from treadle.sample.failed import CollectionFailed

SHOWN = 50  # episodes in the table; --json has all


def run(options: Eval) -> int:
    """Evaluate, print what came of it, and return the exit code."""
    options.arguments()
    with own_stdout(options.json) as out:
        load_files(options.words)
        try:
            first = _play(options, options.policy)
            second = None if options.against is None else _play(options, options.against, control=True)
        except CollectionFailed as error:
            failures.tell(error, debug=options.debug)
            return failures.FAILED
        if options.success_key is not None and first.success is None:
            failures.say(f"no episode's last info has {options.success_key!r} (--success-key): no rate of success")
        compared = compare(first, second, options.seed) if second is not None else None
        if options.json:
            print(as_json(_without_timings(asdict(compared or first))), file=out)
        elif compared is None:
            _show(first)
        else:
            _show_pair(compared)
    return failures.OK


def _play(options: Eval, policy: str, control: bool = False) -> Evaluation:
    arguments = {**options.arguments(), "policy": policy}
    if control and policy == "random":  # random actions are drawn in the workers
        arguments |= {"inference": "auto", "num_envs": None}
    return evaluate(progress=not options.quiet, **arguments)


def _without_timings(told: dict[str, Any]) -> dict[str, Any]:
    """What follows from the command alone, and is the same every time."""
    kept = {name: value for name, value in told.items() if name != "inference"}
    return {name: _without_timings(value) if isinstance(value, dict) else value for name, value in kept.items()}


def _show(result: Evaluation) -> None:
    print_table([score.cells for score in result.scores[:SHOWN]], SCORE_HEADER)
    _rest(result)
    for task, each in result.tasks.items():
        print(f"{task}: {each}")
    _asked(result)
    print(result)


def _asked(result: Evaluation) -> None:
    """How its policy was asked in the caller."""
    if said := asked(result.inference):
        print(f"{result.policy} was {said}")


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
    for each in (result.first, result.second):
        _asked(each)
    for task, first in result.first.tasks.items():
        print(f"{task}: {compare(first, result.second.tasks[task])}")
    print(result.first)
    print(result.second)
    print(result)


def _rest(result: Evaluation) -> None:
    if len(result.scores) > SHOWN:
        print(f"... and {len(result.scores) - SHOWN} more (--json prints all)")
