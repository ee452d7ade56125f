"""`treadle eval`."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from typing import Any

from treadle.cli import failures
from treadle.cli.options import Eval
from treadle.cli.process import load_files, own_stdout
from treadle.cli.report import beside
from treadle.errors import UsageError
from treadle.evaluation.evaluate import Scored
from treadle.progress import print_table, printable
from treadle.record.making import Interrupted
from treadle.record.summary import as_json, asked
from treadle.sample.failed import CollectionFailed
from treadle.sample.scores import SCORE_HEADER, Comparison, Evaluation, compare
from treadle.sample.skipping import grouped, named

SHOWN = 50  # episodes in the table; --json has all


def run(options: Eval) -> int:
    """Evaluate, print what came of it, and return the exit code."""
    options.arguments()
    if options.against is not None and options.out is not None:
        raise UsageError("--out keeps the evaluation of one policy: give --against its own command, with another --out")
    if options.report and options.out is None:
        raise UsageError("--report is about what --out keeps: give --out, too")
    command = shlex.join(["treadle", *options.words])
    with own_stdout(options.json) as out:
        load_files(options.words)
        try:
            first = _play(options, options.policy, command)
            second = None if options.against is None else _play(options, options.against, command, control=True)
        except CollectionFailed as error:
            failures.tell(error, debug=options.debug)
            _show_part(options, error.stored)
            return failures.FAILED
        except Interrupted as interrupt:
            failures.say("interrupted")
            _show_part(options, interrupt.stored)
            return failures.CTRL_C
        if options.success_key is not None and first.success is None:
            failures.say(f"no episode's last info has {options.success_key!r} (--success-key): no rate of success")
        if options.report and options.out:
            beside(options.out)
        compared = compare(first, second, options.seed) if second is not None else None
        if options.json:
            print(as_json(_without_timings(asdict(compared or first))), file=out)
        elif compared is None:
            _show(first, options.quiet)
        else:
            _show_pair(compared, options.quiet)
    return failures.OK


def _play(options: Eval, policy: str, command: str, control: bool = False) -> Evaluation:
    arguments = {**options.arguments(), "policy": policy}
    kept = {name: arguments.pop(name) for name in ("out", "resume", "verify")}
    if control and policy == "random":  # random actions are drawn in the workers
        arguments |= {"inference": "auto", "num_envs": None}
    return Scored.of(**arguments).evaluation(command=command, progress=not options.quiet, **kept)


def _without_timings(told: dict[str, Any]) -> dict[str, Any]:
    """Return what the command alone decides, which is the same every time."""
    kept = {name: value for name, value in told.items() if name not in ("inference", "verdict")}
    return {name: _without_timings(value) if isinstance(value, dict) else value for name, value in kept.items()}


def _show_part(options: Eval, result: Evaluation | None) -> None:
    """Print the finished part of a run that was ended, and how to continue it."""
    if options.report and options.out and result is not None:
        beside(options.out)
    if options.json:
        return
    if result is None:
        print("no episode was finished")
        return
    _show(result, options.quiet)
    kept = f" and are kept in {options.out}; the same command with --resume continues" if options.out else ""
    print(printable(f"{len(result.scores):,} of {options.episodes:,} episodes were finished{kept}"))


def _show(result: Evaluation, quiet: bool) -> None:
    if not quiet:
        print_table([score.cells for score in result.scores[:SHOWN]], SCORE_HEADER)
        _rest(result)
    for task, each in result.tasks.items():
        print(f"{task}: {each}")
    _asked(result, quiet)
    for line in grouped(result.left_out):
        print(f"left out: {printable(line)}")
    for remark in result.remarks:
        print(f"note: {remark.text}{f' ({named(remark.episodes)})' if remark.episodes else ''}")
    print(result)


def _asked(result: Evaluation, quiet: bool) -> None:
    """How its policy was asked in the caller, and why it was not faster."""
    if said := asked(result.inference):
        print(f"{result.policy} was {said}")
    if result.verdict and not (quiet or result.verdict.startswith("unsure")):
        print(result.verdict)


def _show_pair(result: Comparison, quiet: bool) -> None:
    others = {score.index: score for score in result.second.scores}
    pairs = [(score, others[score.index]) for score in result.first.scores if score.index in others]
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
    if not quiet:
        print_table(rows, ("episode", one, two, "difference", "seed"))
        _rest(result.first)
    for each in (result.first, result.second):
        _asked(each, quiet)
    for task, first in result.first.tasks.items():
        print(f"{task}: {compare(first, result.second.tasks[task])}")
    print(result.first)
    print(result.second)
    print(result)


def _rest(result: Evaluation) -> None:
    if len(result.scores) > SHOWN:
        print(f"... and {len(result.scores) - SHOWN:,} more (--json prints all)")
