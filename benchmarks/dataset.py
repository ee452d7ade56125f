"""A dataset of which nothing is made again, so that a rate is of its episodes alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from treadle.progress import Shows
from treadle.record.dataset import collect_dataset, store
from treadle.record.making import Stored
from treadle.sample.run import Run, StoredKeywords


def dataset(env: Any, out: str | Path, *, progress: Shows = False, **run: Any) -> Stored:
    """As `treadle.collect_dataset`; what an earlier run left in `out` is replaced."""
    made = Run.of(collect_dataset, StoredKeywords, env, **run)
    return store(made, out, "benchmarks", verify=0, resume="replace", progress=progress)
