"""`python -m benchmarks.waiting`: what it brings that both sides try for a while before they sleep.

Eight CartPoles, stepped by a worker and the caller or by two workers, with policies of several lengths between the
steps (plain Python, or a torch MLP with one and two threads), on this machine as it is and with a stranger on one core.
Each time two vectors take turns: one as it is, one whose sides sleep at once, whatever they wait for.
"""

import argparse
import datetime
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any
from unittest import mock

import treadle
from benchmarks.policies import parse_policy
from benchmarks.real import a_stranger
from benchmarks.report import Spread, figure, machine, progress, publish
from benchmarks.workloads import WORKLOADS

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
BEGIN, END = "<!-- waiting:begin -->", "<!-- waiting:end -->"
N = 8
POLICIES = {
    "burn0.05": "0.05 ms of Python",
    "burn0.2": "0.2 ms of Python",
    "burn1": "1 ms of Python",
    "burn10": "10 ms of Python",
    "mlp": "a torch MLP, one thread",
    "mlp@2": "a torch MLP, two threads",
}
WORKERS = {"1 + 4": {"workers": 1, "inline": 4}, "2 workers": {"workers": 2, "inline": 0}}
MACHINES = {"idle": False, "a stranger on one core": True}


def vectors(stack: ExitStack, options: dict[str, Any]) -> list[Any]:
    """One that sleeps at once, and one as it is."""
    with mock.patch("treadle.wire.bell.who_tries", return_value=(0, 0)):
        found = [treadle.VectorEnv("CartPole-v1", N, **options)]
    found.append(treadle.VectorEnv("CartPole-v1", N, **options))
    for vector in found:
        stack.callback(vector.close)
    return found


def rate(vector: Any, act: Callable[[Any, Any], Any], seconds: float) -> float:
    """Environment steps a second."""
    observations, batches, begun = vector.reset(seed=0)[0], 0, perf_counter()
    while (spent := perf_counter() - begun) < seconds:
        observations = vector.step(act(observations, None))[0]
        batches += 1
    return N * batches / spent


def compared(pair: list[Any], act: Callable[[Any, Any], Any], rounds: int, seconds: float) -> str:
    """Cells: steps a second asleep, as it is, and the quotients of the rounds."""
    found = []
    for turn in range(rounds + 1):
        order = pair if turn % 2 else pair[::-1]
        rates = {id(vector): rate(vector, act, seconds) for vector in order}
        found.append([rates[id(vector)] for vector in pair])
    asleep, tried = zip(*found[1:], strict=True)  # the first round warms up
    share = Spread.of([b / a for a, b in zip(asleep, tried, strict=True)])
    quotient = f"{share.median:.2f} ({share.low:.2f} to {share.high:.2f})"
    return f"{figure(median(asleep))} | {figure(median(tried))} | {quotient}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.3, help="of a turn")
    parser.add_argument("--write", action="store_true", help=f"put the table into docs/{PAGE.name}")
    options = parser.parse_args()
    facts = machine()
    titles = [f"{name}, {what}" for name in WORKERS for what in ("asleep at once", "as it is", "x")]
    lines = [
        "| policy in the caller | machine | " + " | ".join(titles) + " |",
        "|---|---|" + "---:|" * len(titles),
    ]
    with ExitStack() as stack:
        pairs = {name: vectors(stack, given) for name, given in WORKERS.items()}
        for policy, named in POLICIES.items():
            parsed = parse_policy(policy)
            parsed.set_threads()
            act = parsed.make(WORKLOADS["cartpole"], N)
            for where, busy in MACHINES.items():
                with a_stranger(busy):
                    cells = [compared(pair, act, options.rounds, options.seconds) for pair in pairs.values()]
                lines.append(f"| {named} | {where} | {' | '.join(cells)} |")
                progress(lines[-1])
    about = f"{facts['cores']} cores ({facts['cpu']}), Python {facts['versions']['python']}"
    lines += [
        "",
        f"(Env steps/s; {options.rounds} rounds of {options.seconds:g} s in turns, medians, lowest to highest in "
        f"brackets; {about}, load average at the start {facts['load_at_start']:g}, {datetime.date.today()}.)",
    ]
    publish("\n".join(lines), PAGE if options.write else None, BEGIN, END)


if __name__ == "__main__":
    main()
