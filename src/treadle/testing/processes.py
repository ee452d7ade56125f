"""The processes that `/proc` lists."""

from __future__ import annotations

import os
from pathlib import Path


def children_of(pid: int) -> list[int]:
    """Processes whose parent it is, ended ones included; [] where there is no /proc."""
    return [child for each in Path("/proc").glob("[0-9]*") if parent_of(child := int(each.name)) == pid]


def parent_of(pid: int) -> int:
    """Its parent; 0: it has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def runs(pid: int) -> bool:
    """Is there such a process, that has not ended? One that has, and that nobody has waited for, does not run."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "XZ"
    except OSError:
        return not Path("/proc/self").exists()
