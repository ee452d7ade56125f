"""`summary.json`: a run, its result and its use of time; and its table, with the same rows below a command and in a
notebook.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from treadle.drawing import counted
from treadle.play.recipe import Shares
from treadle.pool.processor import shown
from treadle.progress import duration
from treadle.record.journal import EpisodeNote
from treadle.sample.skipping import Skipped, grouped
from treadle.whole_file import read_json, written

EACH = 8  # workers up to which each is named


@dataclass(frozen=True, repr=False)
class Summary:
    """A finished (or interrupted) run.

    Attributes:
        command: the command line, or the call that stands for it.
        versions: version by package, as `treadle.repro.versions` gives them.
        env_id: id of the environment.
        policy: name of the policy.
        seed: the run's seed.
        episodes: number of stored episodes.
        steps: number of steps of all stored episodes.
        returns: undiscounted return of each episode, in order; `lengths`, `seeds` and `digests` have the same order.
        lengths: number of steps of each episode.
        seeds: seed of each episode's reset.
        digests: digest of each episode, as in its `EpisodeNote`.
        hash: hash of the digests in order, as in `MergeReport`.
        terminated: number of episodes that ended by termination.
        truncated: number of episodes that ended by truncation.
        before: episodes that were there when the run was last resumed. All times, shares and rates are of the part of
            the run that made the others.
        seconds: wall time, without `start_seconds`.
        start_seconds: until Ray and the first of the run's nodes had started; 0.0 without nodes.
        steps_per_second: stored steps over wall time.
        raw_bytes: size of the arrays before compression, in bytes.
        disk_bytes: size of the dataset on disk, in bytes.
        time_shares: share of the busy time by activity: "step", "policy", "encode", "merge"; 0 to 1, and 1 together.
            The policy's share is estimated from some of its calls. Empty for a run that was stopped, and from
            `merge_shards`.
        worker_shares: share of the wall time that each worker was busy, 0 to 1, by worker. Empty for a run that was
            stopped, and from `merge_shards`.
        restarts: number of workers that were replaced.
        added: number of workers that were added during the run because environments waited (`workers="auto"`).
        speculative: number of episodes that were begun and not kept.
        skipped: episodes that failed and were left out: the fields of each `treadle.sample.skipping.Skipped`.
        warnings: those that were logged.
        dataset: its path, from the directory of the summary.
        data_bytes: size of its data file, which shows a damaged one; 0 when unknown.
        verdict: why it was not faster, and the change that helps (`treadle.verdict`).
        inference: how the policy was asked in the caller (`treadle.sample.collection.Collection.stats`); empty: it was
            asked in the workers.
        successes: whether each episode was a success, by its last info (`treadle.play.episode.success_of`); empty when
            no episode says.
        verified: the indices of the "episodes" that were made again and compared, and of the "unequal" ones; empty
            without any.
        checks: digests of the other files that `merge_shards` reads, by file (`treadle.record.merge.checks`).
        missing: an entry for each missing or unfinished shard, if the run was put together without some episodes. It
            has "shard", "episodes" (number of the shard's missing episodes) and "cause". Then `hash` ends with
            "-incomplete".
        unfit: number of episodes that were tried and not kept, by reason; they are not stored.
        remarks: remarks on an evaluation: each has a "text" and its "episodes".
        recoverable: True if the dataset's `recover_environment()` makes the environment. A user's own environment has
            no spec, nor has one in a wrapper that does not record its arguments.

    NaN and infinities, which JSON lacks, are null in the file, and NaN when it is read.
    """

    command: str
    versions: dict[str, str]
    env_id: str
    policy: str
    seed: int
    episodes: int
    steps: int
    returns: list[float]
    lengths: list[int]
    seeds: list[int]
    digests: list[str]
    hash: str
    terminated: int
    truncated: int
    seconds: float
    steps_per_second: float
    raw_bytes: int
    disk_bytes: int
    time_shares: dict[str, float] = field(default_factory=dict)
    worker_shares: list[float] = field(default_factory=list)
    restarts: int = 0
    added: int = 0
    speculative: int = 0
    skipped: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    dataset: str = ""
    data_bytes: int = 0
    recoverable: bool = True
    inference: dict[str, Any] = field(default_factory=dict)
    verdict: str = ""
    successes: list[bool | None] = field(default_factory=list)
    verified: dict[str, list[int]] = field(default_factory=dict)
    before: int = 0
    start_seconds: float = 0.0
    checks: dict[str, str] = field(default_factory=dict)
    missing: list[dict[str, Any]] = field(default_factory=list)
    remarks: list[dict[str, Any]] = field(default_factory=list)
    unfit: dict[str, int] = field(default_factory=dict)

    @property
    def in_short(self) -> str:
        """Such as "100 episodes of CartPole-v1 by random, 2,214 steps, mean return 22.14"."""
        mean = sum(self.returns) / self.episodes
        return (
            f"{counted(self.episodes)} of {self.env_id} by {self.policy}, {self.steps:,} steps, mean return {mean:,.2f}"
        )

    def __repr__(self) -> str:
        return f"<Summary: {self.in_short}, hash {self.hash}>"


def about_episodes(notes: Sequence[EpisodeNote]) -> dict[str, Any]:
    """Return a `Summary`'s fields of episodes."""
    return {
        "episodes": len(notes),
        "steps": sum(note.length for note in notes),
        "returns": [note.total_reward for note in notes],
        "lengths": [note.length for note in notes],
        "seeds": [note.seed for note in notes],
        "digests": [note.digest for note in notes],
        "terminated": sum(note.terminated for note in notes),
        "truncated": sum(note.truncated for note in notes),
        "raw_bytes": sum(note.nbytes for note in notes),
        "successes": [note.success for note in notes] if any(note.success is not None for note in notes) else [],
    }


def time_shares(workers: Collection[Shares], merging: float) -> dict[str, float]:
    """`Summary.time_shares` of what workers spent, and of so many seconds of merging. {}: workers were not asked."""
    spent = {
        "step": sum(share.step + share.reset for share in workers),
        "policy": sum(share.policy for share in workers),
        "encode": sum(share.encode for share in workers),
        "merge": merging,
    }
    total = sum(spent.values())
    return {name: value / total for name, value in spent.items()} if workers and total > 0 else {}


def write_summary(path: str | Path, summary: Summary) -> None:
    """Write the summary as JSON, `sealed`. A reader of `path` sees the old file or the new one, never a part of it.

    Raises:
        OSError: when it cannot be written, with the path; an older file stays.
    """
    with written(Path(path), 0o600) as file:  # the command may hold a token
        file.write(summary_json(summary).encode() + b"\n")


def summary_json(summary: Summary) -> str:
    """Return the JSON that `write_summary` writes."""
    return json.dumps(sealed(_finite(vars(summary))), indent=1)


def read_summary(path: str | Path) -> Summary:
    """Read the file of `write_summary`. Raises ValueError, TypeError, KeyError or AttributeError when it is damaged."""
    content = unsealed(read_json(path))
    content["skipped"] = [vars(each) for each in skipped_of(content.get("skipped", []))]
    content["returns"] = [math.nan if value is None else value for value in content["returns"]]
    return Summary(**content)


def digest_of(content: bytes) -> str:
    """blake2b-128, 32 hexadecimal digits."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def sealed(content: dict[str, Any]) -> dict[str, Any]:
    """It with a "digest" of all else, for a JSON file."""
    return {**content, "digest": digest_of(json.dumps(content).encode())}


def unsealed(content: dict[str, Any]) -> dict[str, Any]:
    """Return the argument of `sealed`, also from a version that wrote no digest. Raises ValueError when a character has
    changed since."""
    rest = {name: value for name, value in content.items() if name != "digest"}
    if content.get("digest", digest := sealed(rest)["digest"]) != digest:
        raise ValueError("its digest is not that of its content")
    return rest


def skipped_of(content: Any) -> list[Skipped]:
    """Episodes that were left out, from JSON. Raises ValueError, TypeError or AttributeError when it is damaged."""

    def checked(name: str, value: Any) -> Any:
        number = name in ("index", "seed", "step", "line")
        return value if value is None and name in ("step", "line") else (int if number else str)(value)

    return [Skipped(**{name: checked(name, value) for name, value in each.items()}) for each in content]


def as_json(content: Any) -> str:
    """JSON of dicts, lists and plain values; a float that JSON does not have (NaN, infinity) becomes null."""
    return json.dumps(_finite(content), indent=1, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


# -- what a person is told --------------------------------------------------------------------------------------------


def summary_rows(summary: Summary, *, before: int = 0, wanted: int | None = None) -> list[tuple[str, str]]:
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
    rows.append(("verdict", summary.verdict))
    if summary.restarts or summary.speculative:
        workers = f"{summary.restarts} worker{'' if summary.restarts == 1 else 's'} replaced"
        episodes = f"{summary.speculative} episode{'' if summary.speculative == 1 else 's'} begun and not needed"
        rows.append(("besides", f"{workers}, {episodes}"))
    partly = ("busy", "spent", "besides") if summary.before else ()
    rows = [(name, f"{text} (of the last part of the run)" if name in partly else text) for name, text in rows if text]
    rows += [("" if i else "left out", line) for i, line in enumerate(grouped(skipped_of(summary.skipped)))]
    if summary.unfit:
        reasons = ", ".join(f"{count:,} x {why}" for why, count in summary.unfit.items())
        rows.append(("not kept", f"{sum(summary.unfit.values()):,} of {n + sum(summary.unfit.values()):,}: {reasons}"))
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
    waits = f"waits for {stats['size']:.0f} ready, {until}" if stats["size"] > 1 else "asked as soon as one is ready"
    return (
        f"asked here {stats['batches']:,.0f} times, {stats['rows_per_batch']:.1f} rows each; at work "
        f"{stats['policy_busy']:.0%} of the time, a slot waits {1e3 * stats['slot_waited']:.2g} ms; {waits}"
    )


def _besides(before: int, missing: int) -> str:
    """Return the remark beside the number of episodes."""
    said = [f"{before:,} from before"] * bool(before) + [f"{missing:,} left out"] * bool(missing)
    return f" ({', '.join(said)})" if said else ""


def success(summary: Summary) -> str:
    """Return the rate of success; "" where environments do not say."""
    if not summary.successes:
        return ""
    from treadle.sample.scores import CONFIDENCE, success_rate  # the statistics that it needs take 10 ms

    share, low, high = (f"{each:.1%}" for each in success_rate(summary.successes) or (0.0, 0.0, 0.0))
    return f"{share}, {CONFIDENCE:.0%} interval [{low}, {high}]"


def verified(summary: Summary) -> str:
    """Which episodes were made again, and what came of that; "": none was."""
    again, unequal = (summary.verified.get(name, []) for name in ("episodes", "unequal"))
    if not again:
        return ""
    result = f"not equal: {', '.join(map(str, unequal))}" if unequal else "equal"
    return f"{len(again):,} of {counted(summary.episodes)} made again: {result}"


def on_disk(summary: Summary) -> str:
    """The dataset's size, and what of it the arrays are."""
    raw, more = shown(summary.raw_bytes), summary.disk_bytes - summary.raw_bytes
    about = f"{raw} before compression"
    if more > 0:  # small arrays are not compressed, and each has a header
        about = f"{raw} of arrays, and {shown(more / summary.episodes)} an episode for the format"
    return f"{shown(summary.disk_bytes)} ({about})"


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
