"""What `treadle collect` does with options that `collect_dataset` has not: --verify and --shard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from treadle.record.dataset import collect_dataset, store
from treadle.record.making import Stored
from treadle.sample.run import Run, StoredKeywords

# what a summary says of the machine and the hour
TIMES = {
    "seconds",
    "steps_per_second",
    "time_shares",
    "worker_shares",
    "command",
    "speculative",
    "restarts",
    "digest",
    "verdict",
}
STORES = ("name", "resume", "progress", "log")


def collected(
    env: Any, policy: Any = None, *, out: Path, verify: int = 0, shard: str | None = None, **run: Any
) -> Stored:
    """As `collect_dataset`; nothing is made again unless `verify` says so."""
    stores = {name: run.pop(name) for name in STORES if name in run}
    made = Run.of(collect_dataset, StoredKeywords, env, policy, **run)
    return store(made, out, "treadle collect", verify=verify, shard=shard, **stores)
