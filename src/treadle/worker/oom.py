"""Has the kernel killed somebody for want of memory? Its counters, to be read before and after a death.

A worker that the out-of-memory killer ends is gone by SIGKILL, like one that somebody kills by hand; nothing of its
own can tell. But the kernel counts: for a control group (`memory.events` or, of version 1, `memory.oom_control`) and
for the machine (`/proc/vmstat`); and it counts before it sends the signal.
"""

from __future__ import annotations

from pathlib import Path

from treadle.memory.arena import text_of

OWN, CGROUP, VMSTAT = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"), Path("/proc/vmstat")

Kills = dict[str, int]  # file -> how many processes were killed, as it says; files that say nothing are not there


def kills() -> Kills:
    """The counters as they are now."""
    found = {}
    for path in (*_group_files(), VMSTAT):
        count = _count(path)
        if count is not None:
            found[str(path)] = count
    return found


def risen(before: Kills, now: Kills) -> str:
    """The first counter that has risen, in words; "" when none has."""
    for path, count in now.items():
        if count > before.get(path, count):
            return f"the kernel counts {count} out-of-memory kills in {path}, before it started {before[path]}"
    return ""


def _group_files() -> list[Path]:
    """This process's groups: where they are named, and where a container shows its own as the root."""
    files = []
    for line in text_of(OWN).splitlines():
        _, controllers, name = line.split(":", 2)
        if not controllers:
            folders, file = (CGROUP / name.lstrip("/"), CGROUP), "memory.events"
        elif "memory" in controllers.split(","):
            folders, file = (CGROUP / "memory" / name.lstrip("/"), CGROUP / "memory"), "memory.oom_control"
        else:
            continue
        files.append(next((folder / file for folder in folders if (folder / file).exists()), folders[0] / file))
    return files


def _count(path: Path) -> int | None:
    for line in text_of(path).splitlines():
        name, _, value = line.partition(" ")
        if name == "oom_kill" and value.strip().isdigit():
            return int(value)
    return None
