"""`summary.json`: what a run was, what came of it and where its time went."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import math
import platform
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from treadle.play.recipe import Shares
from treadle.record.journal import EpisodeNote
from treadle.sample.skipping import Skipped
from treadle.whole_file import read_json, written


@dataclass(frozen=True, repr=False)
class Summary:
    """A finished (or interrupted) run.

    Attributes:
        command: what was typed, or the call that stands for it.
        versions: version by package, as `versions()` gives them.
        env_id: of the environment.
        policy: name of the policy.
        seed: the run's seed.
        episodes: how many are stored.
        steps: of all of them.
        returns: undiscounted return by episode, in order; as `lengths`, `seeds` and `digests`.
        lengths: steps by episode.
        seeds: what each episode's reset was given.
        digests: of each episode, as in its `EpisodeNote`.
        hash: of the digests in order, as in `MergeReport`.
        terminated: how many episodes ended by termination.
        truncated: how many ended by truncation.
        before: episodes that were there when the run was last resumed: all times, shares and rates are of the part of
            the run that made the others.
        seconds: wall time, without `start_seconds`.
        start_seconds: until Ray and the first of the run's nodes had started; 0.0 without nodes.
        steps_per_second: stored steps over wall time.
        raw_bytes: of the arrays before compression.
        disk_bytes: of the dataset.
        time_shares: share of the busy time by what it went to: "step", "policy", "encode", "merge"; 0 to 1, and 1
            together. The policy's is estimated from some of its calls. Empty, as the next, for a run that was stopped.
        worker_shares: share of the wall time each worker was busy; 0 to 1, by worker.
        restarts: workers that were replaced.
        added: workers that were added while it went on, as environments waited (`workers="auto"`).
        speculative: episodes that were begun and not kept.
        skipped: episodes that failed and were left out: the fields of each `treadle.sample.skipping.Skipped`.
        warnings: what a person was told.
        dataset: where it is, from the directory of the summary.
        data_bytes: size of its data file, by which a damaged one is known; 0 when nobody noted it.
        inference: how the policy was asked in the caller (`treadle.sample.orders.Collection.stats`); empty: it was
            asked in the workers.
        successes: was each episode a success, as its last info says (`treadle.play.episode.success_of`); empty when
            none says.
        verified: the indices of the "episodes" that were made again and compared, and of those that came out "unequal";
            empty: none was.
        checks: digests of what `merge_shards` takes of other files, by file (`treadle.record.shards.checks`).
        missing: of a run that was put together without all of its shards: "shard", "episodes" (how many of it are
            missing) and "cause" of each; `hash` ends with "-incomplete" then.
        recoverable: can the dataset's `recover_environment()` make the environment? An environment of one's own has no
            spec, nor has one in a wrapper that does not record its arguments.

    In the file a number that JSON does not have (NaN, infinity) is null; read again it is NaN.
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
    successes: list[bool | None] = field(default_factory=list)
    verified: dict[str, list[int]] = field(default_factory=dict)
    before: int = 0
    start_seconds: float = 0.0
    checks: dict[str, str] = field(default_factory=dict)
    missing: list[dict[str, Any]] = field(default_factory=list)

    @property
    def in_short(self) -> str:
        """Such as "100 episodes of CartPole-v1 by random, 2,214 steps, mean return 22.14"."""
        mean = sum(self.returns) / self.episodes
        count = f"{self.episodes:,} episode{'' if self.episodes == 1 else 's'}"
        return f"{count} of {self.env_id} by {self.policy}, {self.steps:,} steps, mean return {mean:,.2f}"

    def __repr__(self) -> str:
        return f"<Summary: {self.in_short}, hash {self.hash}>"


def about_episodes(notes: Sequence[EpisodeNote]) -> dict[str, Any]:
    """What a `Summary` says of its episodes alone."""
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


def versions(*packages: str) -> dict[str, str]:
    """Versions of Python, Treadle, Gymnasium, NumPy, Minari and `packages`; what is not installed is left out."""
    found = {"python": platform.python_version()}
    for name in dict.fromkeys(("treadle", "gymnasium", "numpy", "minari", *packages)):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def write_summary(path: str | Path, summary: Summary) -> None:
    """Write the summary as JSON, `sealed`. Whoever reads `path` sees the old file or the new one, never a part of it.

    Raises:
        OSError: when it cannot be written, with the path; an older file is still there.
    """
    try:
        write_text(Path(path), summary_json(summary) + "\n")
    except OSError as error:
        raise OSError(error.errno, f"cannot write the summary: {error.strerror}", str(path)) from error


def summary_json(summary: Summary) -> str:
    """What `write_summary` writes, for a program to read."""
    return json.dumps(sealed(_finite(vars(summary))), indent=1)


def write_text(path: Path, text: str) -> None:
    """Whoever reads `path` sees the old file or the new one. Raises OSError with the path."""
    with written(path) as file:
        file.write(text.encode())


def read_summary(path: str | Path) -> Summary:
    """What `write_summary` wrote. Raises ValueError, TypeError, KeyError or AttributeError when it is damaged."""
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
    """What `sealed` was given; also what a version that wrote no digest has written. Raises ValueError: a digit or a
    letter has changed since."""
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
