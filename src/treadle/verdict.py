"""Why a run is not faster: what binds it, and the one change that is worth making. Pure.

`Figures` are a run's own numbers. `verdict` divides the time among the kinds and names the largest. It promises a gain
only where these figures allow to play the change. A promise keeps the caller's own time, the transport, and the work of
all slots on the cores.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from operator import truediv

LEAST, ENOUGH = 0.3, 1.2  # share from which a kind is named; gain from which a change is
OBSERVED = 0.1  # seconds below which nothing is said
WAITS = 0.5  # of a worker's time at work without a core: from here on environments wait
ROW, BATCH = 20e-6, 50e-6  # seconds of the caller for a row that is sent by itself, and for each `recv`
WAKE = 50e-6  # seconds to wake a worker
COLD = 25e-6  # seconds that a batch takes a worker longer, at most, because it has slept: its caches are cold
SPREAD = 1.1  # times that work takes longer than its even share
CROWD = 0.5  # cores that other programs use, from which on no gain of cores is promised
STARTS = 1.5  # times as long as all their work, from which on the workers' start is counted
TIMES_OTHERS = 1.5  # from which a slot is said to be slow
ROUNDS = 40  # batches that are played again


class Kind(Enum):
    """Of what binds a run."""

    ENV = "env"
    RESET = "reset"
    POLICY = "policy"
    STRAGGLER = "straggler"
    TRANSPORT = "transport"
    OVERSUBSCRIBED = "oversubscribed"
    MEMORY = "memory"
    START = "start"
    ENCODE = "encode"
    UNSURE = "unsure"


@dataclass(frozen=True, kw_only=True)
class Figures:
    """How a stretch of a run was spent, in seconds unless said otherwise.

    Where all slots make one batch, `slowest`, `resets` and `moving` are those of the slowest worker of each batch. In
    streams and partial batches each slot goes on by itself, and they are means over the workers.

    Attributes:
        elapsed: of wall time.
        away: of it, the caller was elsewhere: in its policy, in its training.
        calls: batches of all slots; 0: each slot goes on by itself.
        busy: of each worker, at work; the caller's own slots are one worker, the first.
        slowest: of `elapsed`, until a batch was whole.
        resets, moving: of `slowest`, spent on resets, and on writing observations.
        resetting: spent on resets, the sum over all slots.
        policy, encode: spent by workers on policies and on storing, as means over them.
        ran, stood: on cores, and in line for one; sums over the workers' threads.
        threads: that compute in a worker.
        start: before `elapsed`, until all workers were ready.
        birth: of a processor, for the start of a worker, in the mean.
        stalled: in which the system looked for memory.
        others: cores that other programs used, in the mean.
        slots, own, cores: how many; `own` slots are the caller's.
        each: a step of each slot.
        batches: of each worker in some batches, one tuple a batch.
        asked: of a policy in the caller, where it was asked about different numbers of rows: (a call, a row, all rows).
        fixed: did the user choose the number of workers?
        steps: how many were made.
    """

    elapsed: float
    away: float = 0.0
    calls: int = 0
    busy: tuple[float, ...] = ()
    slowest: float = 0.0
    resets: float = 0.0
    resetting: float = 0.0
    moving: float = 0.0
    policy: float = 0.0
    encode: float = 0.0
    ran: float = 0.0
    stood: float = 0.0
    threads: int = 1
    start: float = 0.0
    birth: float = 0.0
    stalled: float = 0.0
    others: float = 0.0
    slots: int = 1
    own: int = 0
    cores: int = 1
    each: tuple[float, ...] = ()
    batches: tuple[tuple[float, ...], ...] = ()
    asked: tuple[float, float, int] | None = None
    fixed: bool = True
    steps: int = 0

    @property
    def counted(self) -> int:
        """Batches, or steps where each slot goes on by itself; 0: not counted."""
        return self.calls or self.steps

    @property
    def inside(self) -> float:
        """Time that is not the caller's."""
        return max(0.0, self.elapsed - self.away)

    @property
    def waiting(self) -> float:
        """Which part of their time at work the workers neither ran nor stood in line, 0 to 1."""
        total = sum(self.busy)
        return max(0.0, 1 - (self.ran + self.stood) / total) if total else 0.0


@dataclass(frozen=True)
class Verdict:
    """Attributes:
    kind: what binds.
    share: how much of the time, 0 to 1.
    says: what was seen.
    change: one change, as code; "": none is worth it, or known to be.
    gain: how many times faster the run is expected to be with it.
    known: how that is known.
    """

    kind: Kind
    share: float
    says: str
    change: str = ""
    gain: float = 1.0
    known: str = ""

    def __str__(self) -> str:
        name = self.kind.value if self.kind in {Kind.OVERSUBSCRIBED, Kind.UNSURE} else f"{self.kind.value}-bound"
        share = "" if self.kind is Kind.UNSURE else f" {100 * self.share:.0f} %"
        promise = f"; {self.change} -> about {self.gain:.1f} times ({self.known})" if self.change else ""
        return f"{name}{share}: {self.says}{promise}"


def verdict(found: Figures) -> Verdict:
    """The verdict on a run with these figures."""
    worked, started = any((*found.busy, found.away)), found.start > STARTS * max(found.elapsed, OBSERVED)
    if found.elapsed < OBSERVED and worked and started:
        share = found.start / (found.start + found.elapsed)
        return Verdict(Kind.START, share, _says(found, Kind.START, share, last=True))
    if found.elapsed < OBSERVED or not worked:
        return Verdict(Kind.UNSURE, 0.0, f"{found.elapsed:.2g} s of steps say too little")
    if found.calls and not found.slowest:
        return Verdict(Kind.UNSURE, 0.0, "no batch was looked at")
    parts = shares(found)
    kind = max(parts, key=parts.__getitem__)
    share = parts[kind]
    if share < LEAST:
        told = (f"{each.value} {100 * parts[each]:.0f} %" for each in heapq.nlargest(3, parts, parts.__getitem__))
        return Verdict(Kind.UNSURE, share, f"nothing stands out: {', '.join(told)}")
    if kind is Kind.ENV and not found.ran and _in_turns(found):
        return Verdict(Kind.UNSURE, share, "the system does not say whether environments wait or compute")
    change, after = min(changes(found, kind), key=lambda each: each[1], default=("", found.elapsed))
    gain = found.elapsed / max(after, 1e-9)
    if gain < ENOUGH:
        return Verdict(kind, share, _says(found, kind, share, last=True))
    known = f"from {found.counted:,} steps of this run" if found.counted else "from this run"
    return Verdict(kind, share, _says(found, kind, share, last=False), change, gain, known)


def shares(found: Figures) -> dict[Kind, float]:
    """The time by kinds, 0 to 1 each, 1 together."""
    start = found.start if found.start > STARTS * found.elapsed else 0.0
    work = min(found.slowest, found.inside)
    resets = min(found.resets, work)
    steps = (sum(found.busy) - found.resetting) / max(1, len(found.busy))
    excess = max(0.0, work - resets - max(0.0, steps)) if found.calls and len(found.busy) > 1 else 0.0
    left = work - resets - excess
    policy, encode, moving = (min(each, left) for each in (found.policy, found.encode, found.moving))
    left = max(0.0, left - policy - encode - moving)
    over = left * _in_line(found)
    parts = {
        Kind.POLICY: found.away + policy, Kind.TRANSPORT: found.inside - work + moving, Kind.RESET: resets,
        Kind.STRAGGLER: excess, Kind.ENCODE: encode, Kind.OVERSUBSCRIBED: over, Kind.ENV: left - over,
        Kind.START: start,
    }  # fmt: skip
    stalled = min(found.stalled, found.elapsed)
    parts = {kind: seconds * (1 - stalled / found.elapsed) for kind, seconds in parts.items()}
    parts[Kind.MEMORY] = stalled
    total = max(sum(parts.values()), 1e-9)
    return {kind: seconds / total for kind, seconds in parts.items()}


def _in_line(found: Figures) -> float:
    """Which part of their time at work the workers stood in line for a core, 0 to 1."""
    total = found.ran + found.stood if found.threads > 1 else max(sum(found.busy), found.ran + found.stood)
    return found.stood / total if total else 0.0


def changes(found: Figures, kind: Kind) -> Iterator[tuple[str, float]]:
    """Changes that may help where `kind` binds, as code, and seconds that the same stretch would take with each."""
    workers, n, total = len(found.busy), found.slots, sum(found.busy)
    work = min(found.slowest, found.inside)
    moved, free = found.inside - work, max(1.0, found.cores - found.others)
    if kind is Kind.POLICY and found.asked is not None:
        call, row, rows = found.asked
        yield f"batch_size={n}", found.elapsed - found.away + min(found.away, rows / n * (call + row * n))
    if not found.ran or kind in (Kind.START, Kind.MEMORY, Kind.ENCODE):
        return  # what there is to gain is not in these figures
    computes, at_work = found.waiting < WAITS, kind in (Kind.ENV, Kind.STRAGGLER, Kind.RESET)
    if computes and found.others > CROWD:
        return  # what cores will be had is not known
    if at_work and not computes and workers < n and (found.fixed or found.calls):
        alone = [max(map(truediv, batch, _slots_of(found))) for batch in found.batches]
        longest = found.calls * sum(alone) / len(alone) if alone else 0.0
        more = (found.calls * WAKE if found.calls else found.birth) * (n - workers) / found.cores
        yield f"workers={n}", found.away + moved + more + max(longest, found.ran / free, total / n)
    if kind is Kind.OVERSUBSCRIBED and found.threads == 1 and workers > found.cores:
        yield f"workers={found.cores}", found.away + moved * found.cores / workers + SPREAD * found.ran / free
    most = min(found.cores, n)
    looked = found.calls or not found.own  # what waking another worker costs is known
    if looked and (at_work or found.policy) and computes and found.threads == 1 and workers < most and free > workers:
        share = workers / min(most, free)
        yield f"workers={most}", found.away + moved + found.calls * WAKE + SPREAD * work * share
    if kind is Kind.TRANSPORT and found.calls and found.own < n and computes:
        yield f"inline={n}", found.away + SPREAD * _warm(found)
    if kind in (Kind.STRAGGLER, Kind.RESET) and found.calls and not found.own and found.batches and n > 1:
        least, rows = (found.ran + found.away) / free, found.calls * n
        sizes = sorted({n - 1, 3 * n // 4, n // 2, max(min(2, n - 1), n // 4)}, reverse=True)
        played = [(size, max(least, rows * _partial(found, size))) for size in sizes]
        best = min(seconds for _, seconds in played)
        size, seconds = next(each for each in played if each[1] <= SPREAD * best)  # the largest that is as good
        yield f"recv(min={size})", seconds


def _warm(found: Figures) -> float:
    """Seconds of the same batches in one process that does not sleep, as the caller with slots of its own does not. A
    worker's quickest tenth of batches is warm."""
    quick = [sorted(each)[len(each) // 10] for each in zip(*found.batches, strict=True)]
    means = [busy / found.calls for busy in found.busy]
    cold = [0.0] * bool(found.own) + [COLD] * (len(means) - bool(found.own))
    return found.calls * sum(
        max(mean - less, min(mean, least)) for mean, least, less in zip(means, quick or means, cold, strict=True)
    )


def _slots_of(found: Figures) -> list[int]:
    """How many slots each worker has."""
    workers, rest = len(found.busy) - bool(found.own), found.slots - found.own
    shared = [rest // workers + (at < rest % workers) for at in range(workers)] if workers else []
    return [found.own, *shared] if found.own else shared


def _partial(found: Figures, least: int) -> float:
    """Seconds a row of the same steps in partial batches of `least` rows. Each worker's own times are played again, in
    their order."""
    n, batches, owner = found.slots, found.batches, list[int]()
    for worker, count in enumerate(_slots_of(found)):
        owner += [worker] * count
    each = found.each if len(found.each) == n and min(found.each) > 0 else (1.0,) * n
    of_worker = [0.0] * len(found.busy)
    for slot, worker in enumerate(owner):
        of_worker[worker] += each[slot]
    part = [each[slot] / of_worker[owner[slot]] for slot in range(n)]
    per_call = found.away / found.calls + BATCH + least * ROW
    lag = max(0.0, found.inside - found.slowest) / found.calls  # of waking workers and the caller
    free, turns, now, made, began, first = [0.0] * len(found.busy), [7 * slot for slot in range(n)], 0.0, 0, 0.0, 0
    out: list[tuple[float, int]] = []

    def send(slot: int) -> None:
        worker = owner[slot]
        seconds = batches[turns[slot] % len(batches)][worker] * part[slot]
        turns[slot] += 1
        free[worker] = max(free[worker], now) + seconds + lag
        heapq.heappush(out, (free[worker], slot))

    for slot in range(n):
        send(slot)
    rounds = max(ROUNDS * n, min(len(batches), 100) * n)
    while made < rounds:
        ready = [heapq.heappop(out) for _ in range(least)]
        now = (now if ready[-1][0] <= now else ready[-1][0] + lag) + per_call
        for _, slot in ready:
            send(slot)
        made += least
        if not first and made >= rounds // 4:  # until then they were in step
            first, began = made, now
    return (now - began) / (made - first)


def _says(found: Figures, kind: Kind, share: float, last: bool) -> str:
    """Describe the kind in words; `last`: no change follows."""
    said, helps = SAID[kind](found)
    if kind is Kind.ENV and last and share >= 0.9 and not _in_turns(found):
        said += f"; nothing to gain, {share:.2f} of what this machine can do"
    if found.others > CROWD:
        yours = max(0.0, found.cores - found.others)
        said += f"; other programs compute: {found.cores} cores, {yours:.1f} of them yours"
    return f"{said}; {helps}" if last and helps else said


def _policy(found: Figures) -> tuple[str, str]:
    if found.policy > found.away:
        helps = "a faster policy helps, or one call for many environments (inference='caller')"
        return f"the policy takes {_each(found, found.policy * len(found.busy))} in the workers", helps
    ours = _time(found.inside / (found.counted or 1))
    return f"your code takes {_each(found, found.away)}, the vector {ours}", "only a faster policy helps"


def _straggler(found: Figures) -> tuple[str, str]:
    slow = max(range(len(found.each)), key=found.each.__getitem__, default=0)
    others = (sum(found.each) - found.each[slow]) / (len(found.each) - 1) if len(found.each) > 1 else 0.0
    if others and found.each[slow] >= TIMES_OTHERS * others:
        return f"slot {slow} takes {found.each[slow] / others:.1f} times the others", "only a faster one helps"
    mean, batch = (_time(each / found.calls) for each in (sum(found.busy) / len(found.busy), found.slowest))
    return f"the slowest of a batch takes {batch}, the mean {mean}", "steps that take equally long help"


def _reset(found: Figures) -> tuple[str, str]:
    said = f"resets take {_time(found.resets / (found.counted or 1))} of the {_each(found, found.elapsed)}"
    return said, "only faster resets or longer episodes help"


def _transport(found: Figures) -> tuple[str, str]:
    work, alone = min(found.slowest, found.inside), found.own == found.slots
    moved = found.inside - work + found.moving
    said = "moving data takes" if alone else "waking workers and moving data take"
    said += f" {_each(found, moved)}, environments {_time(max(0.0, work - found.moving) / (found.counted or 1))}"
    return said, "smaller observations help" if found.moving > moved / 2 else "" if alone else "fewer workers help"


def _oversubscribed(found: Figures) -> tuple[str, str]:
    workers, line = len(found.busy), f"stand in line {_in_line(found):.0%} of their time"
    alone = found.own == found.slots
    if alone or found.others > CROWD:
        return ("your program's environments" if alone else "workers") + f" {line} for {found.cores} cores", ""
    if found.threads > 1:
        each = max(1, found.cores // workers)
        helps = f"OMP_NUM_THREADS={each} in worker_environ may help"
        return f"{workers} workers with {found.threads} threads each {line} for {found.cores} cores", helps
    return f"{workers} workers {line} for {found.cores} cores", "fewer workers cost less"


def _in_turns(found: Figures) -> bool:
    """Return True when environments wait one after the other."""
    return found.waiting >= WAITS and len(found.busy) < found.slots


def _env(found: Figures) -> tuple[str, str]:
    workers, cores = len(found.busy), found.cores
    seconds = sum(found.busy) / (found.slots if found.calls else 1) / (found.counted or 1)
    step = f" ({_time(seconds)})" if found.counted else ""
    if found.waiting >= WAITS:
        said = f"environments wait {found.waiting:.0%} of a step{step}, {workers} of {found.slots} at a time"
        return said, "more workers or threads may help" if _in_turns(found) else "only a faster step helps"
    if workers == 1:
        return f"all steps are made on 1 of {cores} cores", f"only a faster step{step} helps"
    said = f"all workers at work, evenly; only a faster step{step} or more cores"
    return f"{said} ({min(workers, cores)} of {cores} used) help", ""


def _start(found: Figures) -> tuple[str, str]:
    said = f"the start took {found.start:.1f} s, all that followed {found.elapsed:.1f} s"
    preload = "" if found.own == found.slots else ' (WorkerOptions(preload=["..."]))'
    return said, f"longer runs or fewer imports{preload} help"


SAID: dict[Kind, Callable[[Figures], tuple[str, str]]] = {  # what is seen; what helps where no change is promised
    Kind.ENV: _env,
    Kind.RESET: _reset,
    Kind.POLICY: _policy,
    Kind.STRAGGLER: _straggler,
    Kind.TRANSPORT: _transport,
    Kind.OVERSUBSCRIBED: _oversubscribed,
    Kind.MEMORY: lambda _: ("the system looks for memory", "fewer workers, or recycle_after='2GB', help"),
    Kind.START: _start,
    Kind.ENCODE: lambda _: ("workers store episodes", "fewer keys or less compression help"),
}


def _each(found: Figures, seconds: float) -> str:
    """Such as "20 ms a step"; in all, where steps are not counted."""
    return f"{_time(seconds / found.counted)} a step" if found.counted else f"{_time(seconds)} in all"


def _time(seconds: float) -> str:
    """Such as "20 ms" or "35 us"."""
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"
