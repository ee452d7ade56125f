"""`treadle dataset`."""

from __future__ import annotations

from pathlib import Path

from treadle.cli import failures
from treadle.errors import UsageError
from treadle.record.lerobot import export_lerobot


def export(source: Path, out: Path, format: str, fps: int, task: str | None) -> int:
    """Write a dataset in another format, say what was written, and return the exit code."""
    if format != "lerobot":
        raise UsageError(f"--format: only lerobot can be written, got {format!r}")
    told = export_lerobot(source, out, fps=fps, task=task)
    print(f"{told.path}: {told.episodes:,} episodes, {told.frames:,} frames")
    for name in told.left_out:
        failures.say(f"{name} was left out: it has no fixed shape, and LeRobot's format no place for that")
    return failures.OK


__all__ = ["export"]
