"""What binds a run, from its numbers alone."""

import re
from dataclasses import replace

import pytest

from treadle.verdict import Figures, Kind, shares, verdict

# ten seconds of eight slots in eight workers on two cores, whose environments wait: 1,000 batches of 10 ms
EVEN = Figures(
    elapsed=10.0, away=0.2, calls=1000, busy=(9.5,) * 8, slowest=9.6, ran=2.0, slots=8, cores=2, each=(9.5e-3,) * 8,
    batches=((9.6e-3,) * 8,) * 50, steps=8000,
)  # fmt: skip
SLOW = [5e-3] * 5 + [15.5e-3] + [5e-3] * 2
ONE_SLOW = replace(
    EVEN, elapsed=16.0, busy=tuple(1000 * each for each in SLOW), slowest=15.5, each=tuple(SLOW), batches=(tuple(SLOW),)
)
# one core each for two workers, which compute
TWO = Figures(elapsed=10.0, calls=1000, busy=(9.5, 9.5), slowest=9.6, ran=19.0, slots=8, cores=2, each=(2.4e-3,) * 8)
# episodes in two workers, whose resets wait
STREAM = Figures(
    elapsed=10.0, busy=(9.8, 9.8), slowest=9.8, resets=9.0, resetting=18.0, ran=0.4, slots=16, cores=2, steps=900
)

CASES: dict[str, tuple[Figures, Kind, str]] = {
    "all at work": (TWO, Kind.ENV, ""),
    "all wait, a worker each": (EVEN, Kind.ENV, ""),
    "waiting in turns": (replace(EVEN, busy=(9.5,), batches=((9.5e-3,),)), Kind.ENV, "workers=8"),
    "waiting in turns in the caller": (
        replace(EVEN, busy=(9.5,), batches=((9.5e-3,),), own=8, fixed=False), Kind.ENV, "workers=8",
    ),
    "waiting in turns, nearly": (replace(EVEN, busy=(9.5,) * 7, batches=((9.5e-3,) * 7,)), Kind.ENV, ""),
    "in turns, and nothing known": (replace(EVEN, busy=(9.5,), ran=0.0), Kind.UNSURE, ""),
    "one worker, two cores": (replace(TWO, busy=(9.5,), ran=9.4), Kind.ENV, "workers=2"),
    "one worker, a neighbour": (replace(TWO, busy=(9.5,), ran=9.4, others=0.9), Kind.ENV, ""),
    "a slow policy": (replace(EVEN, away=9.0, busy=(0.9,) * 8, slowest=0.95), Kind.POLICY, ""),
    "a policy that likes many rows": (
        replace(EVEN, away=9.0, busy=(0.9,) * 8, slowest=0.95, asked=(4e-3, 1e-5, 8000)), Kind.POLICY, "batch_size=8",
    ),
    "a policy in the workers": (replace(TWO, policy=8.0), Kind.POLICY, ""),
    "one slow slot": (ONE_SLOW, Kind.STRAGGLER, "recv(min=7)"),
    "one slow slot of the caller's": (replace(ONE_SLOW, own=1), Kind.STRAGGLER, ""),
    "resets in turn": (
        replace(
            EVEN, elapsed=102.0, busy=(13.4,) * 8, slowest=100.0, resets=99.0, resetting=99.0,
            batches=tuple(tuple(0.1 if at == slot else 1e-3 for at in range(8)) for slot in range(8)),
        ), Kind.RESET, "recv(min=2)",
    ),
    "resets at once": (
        replace(EVEN, resets=8.0, resetting=64.0, batches=(*((1e-3,) * 8,) * 9, (0.1,) * 8)), Kind.RESET, "",
    ),
    "resets at once of two": (
        Figures(
            elapsed=0.83, calls=12, busy=(0.82, 0.82), slowest=0.82, resets=0.8, resetting=1.6, ran=0.02, slots=2,
            cores=2, each=(2e-3, 2e-3), batches=(*((2e-3, 2e-3),) * 2, (0.2, 0.2)) * 4, steps=24,
        ), Kind.RESET, "",
    ),
    "small steps in processes": (
        Figures(elapsed=10.0, calls=100_000, busy=(0.4,) * 8, slowest=2.0, ran=3.2, slots=8, cores=2), Kind.TRANSPORT,
        "inline=8",
    ),
    "large observations": (replace(TWO, moving=6.0), Kind.TRANSPORT, ""),
    "more threads than cores": (replace(TWO, threads=4, ran=10.0, stood=30.0), Kind.OVERSUBSCRIBED, ""),
    "more workers than cores": (
        replace(TWO, busy=(9.5,) * 16, slots=16, ran=10.0, stood=130.0), Kind.OVERSUBSCRIBED, "workers=2",
    ),
    "a neighbour": (replace(TWO, ran=9.0, stood=10.0, others=1.2), Kind.OVERSUBSCRIBED, ""),
    "no memory": (replace(TWO, stalled=7.0), Kind.MEMORY, ""),
    "imports": (replace(TWO, start=30.0), Kind.START, ""),
    "waiting resets, workers that start at once": (replace(STREAM, birth=0.05), Kind.RESET, "workers=16"),
    "waiting resets, workers that take long to start": (replace(STREAM, birth=1.5), Kind.RESET, ""),
    "storing": (replace(TWO, encode=7.0), Kind.ENCODE, ""),
    "a moment": (replace(TWO, elapsed=0.05, busy=(0.04, 0.04), slowest=0.04, ran=0.08), Kind.UNSURE, ""),
    "a moment after a long start": (
        replace(TWO, start=0.4, elapsed=0.05, busy=(0.04, 0.04), slowest=0.04, ran=0.08), Kind.START, "",
    ),
    "a moment after a short start": (
        replace(TWO, start=0.1, elapsed=0.05, busy=(0.04, 0.04), slowest=0.04, ran=0.08), Kind.UNSURE, "",
    ),
    "not looked at": (replace(TWO, slowest=0.0), Kind.UNSURE, ""),
    "a little of everything": (
        replace(TWO, away=2.5, slowest=5.0, busy=(3.8, 3.8), resets=1.2, resetting=2.0), Kind.UNSURE, "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_run_is_judged(name: str) -> None:
    figures, kind, change = CASES[name]
    found = verdict(figures)
    assert (found.kind, found.change) == (kind, change), str(found)
    assert found.gain >= 1.2 if change else found.gain == 1.0
    assert str(found).startswith(kind.value)
    if kind is not Kind.UNSURE:
        assert found.share >= 0.3
        assert f" {100 * found.share:.0f} %: " in str(found)


def test_a_run_that_has_done_nothing_is_unsure_however_long_its_start_took() -> None:
    nothing = Figures(elapsed=0.0, busy=(0.0, 0.0), start=9.0, slots=2, cores=2)
    assert verdict(nothing).kind is Kind.UNSURE
    assert verdict(replace(nothing, elapsed=0.01, away=0.01)).kind is Kind.START  # its caller is at work


@pytest.mark.parametrize("name", CASES)
def test_shares_are_one_together(name: str) -> None:
    figures = CASES[name][0]
    parts = shares(figures)
    assert sum(parts.values()) == pytest.approx(1.0)
    assert all(0 <= each <= 1 for each in parts.values())


def test_what_waits_in_turns_is_not_all_that_can_be_had() -> None:
    found = str(verdict(CASES["waiting in turns, nearly"][0]))
    assert found.endswith("7 of 8 at a time; more workers or threads may help")


@pytest.mark.parametrize("name", CASES)
def test_programs_that_take_cores_are_named_whatever_binds(name: str) -> None:
    found = verdict(replace(CASES[name][0], others=0.9))
    assert found.kind is Kind.UNSURE or "; other programs compute: 2 cores, 1.1 of them yours" in str(found)


def test_a_promise_keeps_what_stays() -> None:
    alone = verdict(ONE_SLOW)
    thinking = verdict(replace(ONE_SLOW, elapsed=20.0, away=4.2))  # 4 ms more of each batch are the caller's
    computing = verdict(replace(ONE_SLOW, ran=20.0))  # on two cores they take ten of sixteen seconds at least
    assert alone.gain > 2
    assert thinking.gain < alone.gain
    assert computing.gain == pytest.approx(1.6, rel=0.02)


def test_a_text_has_kind_share_change_and_gain() -> None:
    assert str(verdict(ONE_SLOW)).startswith("straggler-bound 57 %: slot 5 takes 3.1 times the others; recv(min=7) -> ")
    assert str(verdict(ONE_SLOW)).endswith(" times (from 1,000 steps of this run)")
    said = "env-bound 95 %: all workers at work, evenly; only a faster step (2.38 ms) or more cores (2 of 2 used) help"
    assert str(verdict(TWO)) == f"{said}; nothing to gain, 0.95 of what this machine can do"
    policy = "policy-bound 90 %: your code takes 9 ms a step, the vector 1 ms; only a faster policy helps"
    assert str(verdict(CASES["a slow policy"][0])) == policy


@pytest.mark.parametrize("name", CASES)
def test_a_run_whose_steps_nobody_counts_is_judged_too(name: str) -> None:
    figures = replace(CASES[name][0], calls=0, steps=0)
    found = verdict(replace(figures, slowest=sum(figures.busy) / len(figures.busy)))
    assert not re.search(r"\d [mu]?s a step|\d [mu]?s\)|from 0", str(found)), str(found)


@pytest.mark.parametrize("name", CASES)
def test_a_vector_without_workers_is_not_told_of_them(name: str) -> None:
    figures = CASES[name][0]
    found = verdict(replace(figures, busy=figures.busy[:1], slots=1, own=1, each=(), batches=(), policy=0.0))
    assert found.kind in (Kind.MEMORY, Kind.ENCODE) or "worker" not in str(found), str(found)


def test_a_promise_of_the_callers_process_is_of_warm_steps_there() -> None:
    """A step of FrozenLake in a worker takes 43 us after a sleep, and 20 us in a tenth of all batches."""
    cold = Figures(
        elapsed=2.5, away=0.5, calls=6000, busy=(0.26,) * 4, slowest=0.4, ran=1.7, slots=4, cores=2,
        batches=((43e-6,) * 4,) * 8 + ((20e-6,) * 4,) * 2,
    )  # fmt: skip
    found = verdict(cold)
    assert found.change == "inline=4"
    assert found.gain == pytest.approx(2.5 / (0.5 + 1.1 * 6000 * 4 * 20e-6), rel=1e-3)
    # two kinds of steps, which are no matter of sleep: at most 25 us of each are taken for cold
    mixed = replace(cold, batches=((200e-6,) * 4,) * 8 + ((1e-6,) * 4,) * 2)
    assert verdict(mixed).gain == pytest.approx(2.5 / (0.5 + 1.1 * 4 * (0.26 - 6000 * 25e-6)), rel=1e-3)
    # a caller with slots of its own does not sleep
    shared = replace(cold, busy=(0.26,) * 2, own=2, batches=((43e-6,) * 2,) * 8 + ((20e-6,) * 2,) * 2)
    assert verdict(shared).gain == pytest.approx(2.5 / (0.5 + 1.1 * (0.26 + 6000 * 20e-6)), rel=1e-3)
