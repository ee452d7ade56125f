"""What a person is told of a stored run: the same rows below a command, in a notebook and nowhere else."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from treadle.progress import duration
from treadle.record.summary import Summary, skipped_of
from treadle.sample.skipping import grouped

MUCH, SLOW = 0.5, 0.0005  # share of the workers' time, and seconds a step, from which on a policy is worth a word
EACH = 8  # workers up to which each is named


def rows_of(summary: Summary, *, before: int = 0, wanted: int | None = None) -> list[tuple[str, str]]:
    """(what, value) of a run.

    Args:
        summary: of it.
        before: how many of its episodes were there already when it was resumed.
        wanted: steps that were asked for; None: it was asked for episodes.
    """
    n, lengths, returns = summary.episodes, summary.lengths, summary.returns
    mean = sum(returns) / n
    std = (sum((value - mean) ** 2 for value in returns) / n) ** 0.5
    over = f" ({summary.steps - wanted:,} more than asked: whole episodes)" if wanted else ""
    made = f" (the last part of the run: {n - summary.before:,} of {n:,} episodes)" if summary.before else ""
    rows = [
        ("episodes", f"{n:,}{_besides(before, len(summary.skipped))}"),
        ("steps", f"{summary.steps:,}{over}"),
        ("return", f"mean {mean:,.2f}  std {std:,.2f}  min {min(returns):,.2f}  max {max(returns):,.2f}"),
        ("length", f"mean {summary.steps / n:,.1f}  min {min(lengths):,}  max {max(lengths):,}"),
        ("ended", f"{summary.terminated:,} terminated, {summary.truncated:,} truncated"),
        ("success", success(summary)),
        ("start", f"{duration(summary.start_seconds)} for Ray and the first node" if summary.start_seconds else ""),
        ("time", f"{duration(summary.seconds)}, {summary.steps_per_second:,.0f} steps/s{made}"),
        ("on disk", on_disk(summary)),
        ("workers", f"{summary.added} were added, as environments wait" if summary.added else ""),
        ("busy", busy(summary.worker_shares)),
        ("spent", "  ".join(f"{name} {share:.0%}" for name, share in summary.time_shares.items())),
    ]
    rows.append(("policy", asked(summary.inference)))
    rows.append(("advice", slow_policy(summary)))
    if summary.restarts or summary.speculative:
        workers = f"{summary.restarts} worker{'' if summary.restarts == 1 else 's'} replaced"
        episodes = f"{summary.speculative} episode{'' if summary.speculative == 1 else 's'} begun and not needed"
        rows.append(("besides", f"{workers}, {episodes}"))
    partly = ("busy", "spent", "besides") if summary.before else ()
    rows = [(name, f"{text} (of the last part of the run)" if name in partly else text) for name, text in rows if text]
    rows += [("" if i else "left out", line) for i, line in enumerate(grouped(skipped_of(summary.skipped)))]
    if again := verified(summary):
        rows.append(("verified", again))
    rows += [("" if i else "missing", line) for i, line in enumerate(missing(summary))]
    if not summary.recoverable:
        rows.append(("note", "recover_environment() cannot make this environment: it or its wrapper has no spec"))
    rows.append(("hash", summary.hash))
    return rows


def asked(stats: Mapping[str, Any]) -> str:
    """How a policy was asked in the caller; "": it was not."""
    if not stats:
        return ""
    patience = stats["patience"]
    until = "however long" if patience is None or math.isinf(patience) else f"at most {1e3 * patience:.3g} ms"
    waits = (
        f"waits for {stats['size']:.0f} ready, {until}" if stats["size"] > 1 else "asked as soon as anybody is ready"
    )
    return (
        f"asked here {stats['batches']:,.0f} times, {stats['rows_per_batch']:.1f} rows each; at work "
        f"{stats['policy_busy']:.0%} of the time, a slot waits {1e3 * stats['slot_waited']:.2g} ms; {waits}"
    )


def slow_policy(summary: Summary) -> str:
    """What to try where a policy in the workers takes most of their time, and not little of it; else ""."""
    share = summary.time_shares.get("policy", 0.0)
    each = share * sum(summary.worker_shares) * summary.seconds / summary.steps  # seconds a step
    if summary.inference or share < MUCH or each < SLOW:
        return ""
    return (
        f"the policy takes {share:.0%} of the workers' time, {1e3 * each:.2g} ms a step: asked in the caller about "
        "many environments at once (inference='caller') it takes less, if a call for many costs little more than one"
    )


def _besides(before: int, missing: int) -> str:
    """What else there is to say of the number of episodes."""
    said = [f"{before:,} from before"] * bool(before) + [f"{missing:,} left out"] * bool(missing)
    return f" ({', '.join(said)})" if said else ""


def success(summary: Summary) -> str:
    """The rate of success; "": environments do not tell of it."""
    if not summary.successes:
        return ""
    from treadle.sample.evaluate import CONFIDENCE, success_rate  # the statistics that it needs take 10 ms

    share, low, high = (f"{each:.1%}" for each in success_rate(summary.successes) or (0.0, 0.0, 0.0))
    return f"{share}, {CONFIDENCE:.0%} interval [{low}, {high}]"


def verified(summary: Summary) -> str:
    """Which episodes were made again, and what came of that; "": none was."""
    again, unequal = (summary.verified.get(name, []) for name in ("episodes", "unequal"))
    if not again:
        return ""
    count = f"{summary.episodes:,} episode{'' if summary.episodes == 1 else 's'}"
    result = f"not equal: {', '.join(map(str, unequal))}" if unequal else "equal"
    return f"{len(again):,} of {count} made again: {result}"


def on_disk(summary: Summary) -> str:
    """The dataset's size, and what of it the arrays are."""
    raw, more = size(summary.raw_bytes), summary.disk_bytes - summary.raw_bytes
    about = f"{raw} before compression"
    if more > 0:  # small arrays are not compressed, and each has a header
        about = f"{raw} of arrays, and {size(more / summary.episodes)} an episode for the format"
    return f"{size(summary.disk_bytes)} ({about})"


def missing(summary: Summary) -> list[str]:
    """A line for each of the first shards that a run was put together without, or without a part of them."""
    lines = [
        f"shard {each['shard']}, {each['episodes']:,} episodes: {each['cause']}" for each in summary.missing[:EACH]
    ]
    more = len(summary.missing) - len(lines)
    return [*lines, f"and {more:,} more; all are in summary.json"] if more else lines


def busy(shares: Sequence[float]) -> str:
    """Shares of the time, by worker; of many workers what they have in common."""
    if not shares:
        return ""
    if len(shares) <= EACH:
        return "  ".join(f"{share:.0%}" for share in shares) + "  of the time, by worker"
    mean = sum(shares) / len(shares)
    return f"mean {mean:.0%}  min {min(shares):.0%}  max {max(shares):.0%}  of the time, {len(shares)} workers"


def size(count: float) -> str:
    """Bytes as people read them: "12.3 MB"."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} bytes" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
