"""The report of `treadle info` on a machine: installed packages, the kernel's limits, and causes of trouble.

`seen` collects the facts; `remarks`, a pure function, decides about them. Neither names a person, a host or a user's
file.
"""

from __future__ import annotations

import multiprocessing
import os
import platform
import re
import sys
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from types import SimpleNamespace
from typing import Any

from treadle import __version__
from treadle.memory.arena import memory_available
from treadle.pool.processor import Usage, shown, used
from treadle.testing.verdict import WARNING, Report
from treadle.vector.shares import GRAPHICS
from treadle.wire.bell import quota
from treadle.worker import forkserver
from treadle.worker.options import MOST_WORKERS

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "OMP_WAIT_POLICY")
PACKAGES = ("numpy", "gymnasium", "cloudpickle", "torch", "threadpoolctl")  # besides those of extras
LOOK = 0.25  # seconds in which the cores' use by other programs is measured
FILES = 6  # descriptors that a worker takes
SMALL_SHM, SMALL_MEMORY = 2**28, 2**30  # bytes
OTHERS = 0.25  # cores used by other programs, from which the report mentions them
REQUIREMENT = re.compile(r"""([\w.-]+).*\bextra == ["']([\w.-]+)["']""")


def machine() -> Report:
    """Return a report on this machine. Its findings are causes of slow or unsafe runs; `details` are the facts."""
    found = seen()
    report = Report(f"treadle {__version__} on {found['system']}", details=found)
    for about, what, advice in remarks(found):
        report.add(WARNING, about, what, advice)
    report.facts = in_words(found)
    return report


def seen() -> dict[str, Any]:
    """Return all facts as values for JSON. None: missing, unknown or without a limit."""
    from resource import RLIM_INFINITY, RLIMIT_NOFILE, getrlimit

    files = [None if limit == RLIM_INFINITY else limit for limit in getrlimit(RLIMIT_NOFILE)]
    return {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "packages": {name: _version(name) for name in PACKAGES},
        "extras": _extras(),
        "cores": {
            "of_the_machine": os.cpu_count(),
            "usable": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "quota": quota(),
            "used_by_others": _others(),
        },
        "memory_available": memory_available(),
        "shared_memory": _shm(),
        "descriptors": dict(zip(("soft", "hard"), files)),
        "start_methods": [*(["forkserver"] if forkserver.works() else []), "spawn", "fork"]
        if "fork" in multiprocessing.get_all_start_methods()
        else ["spawn"],
        "memory_files": hasattr(os, "memfd_create"),
        "scheduler_statistics": os.path.exists("/proc/self/schedstat"),
        "threads": {name: os.environ.get(name) for name in THREADS},
        "graphics": any(map(os.path.exists, GRAPHICS)),
        "traced": sys.flags.dev_mode or sys.gettrace() is not None or hasattr(sys, "gettotalrefcount"),
    }


def remarks(found: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield ("slow" or "unsafe", the cause, its remedy) for the facts of `seen`. Pure."""
    cores, threads, files = found["cores"], found["threads"], found["descriptors"]["soft"]
    mine = min(cores["usable"], cores["quota"] or cores["usable"])
    if "forkserver" not in found["start_methods"] or not found["memory_files"]:
        yield (
            "unsafe",
            "no fork server or no memory files: Treadle is tested on Linux alone",
            "use a Linux container",
        )
    if files is not None and files < FILES * MOST_WORKERS:
        most = f"{files} files may be open, enough for about {files // (2 * FILES)} workers beside your program"
        yield "unsafe", most, f"ulimit -n {FILES * MOST_WORKERS * 4}"
    if found["memory_available"] is not None and found["memory_available"] < SMALL_MEMORY:
        left = f"{shown(found['memory_available'])} of memory are left, and a worker takes 30 MB and its environment"
        yield "unsafe", left, "use fewer workers, or WorkerOptions(recycle_after='2GB')"
    if (shm := found["shared_memory"]) is None or shm["size"] < SMALL_SHM:
        what = "there is no /dev/shm" if shm is None else f"/dev/shm has {shown(shm['size'])}"
        others = "Treadle does without it; torch's loaders and Gymnasium's AsyncVectorEnv fail there"
        yield "unsafe", f"{what}. {others}", "docker run --shm-size=2g"
    if mine == 1:
        yield "slow", "one core: workers only help environments that wait", "keep workers='auto', or get more cores"
    if mine < cores["usable"]:
        what = f"the control group grants {mine} of {cores['usable']} cores; libraries start a thread for each of them"
        yield "slow", what, f"export OMP_NUM_THREADS={mine}, or grant more (docker run --cpus)"
    if (cores["used_by_others"] or 0) >= OTHERS:
        what = f"other programs use {cores['used_by_others']:.1f} of {cores['usable']} cores"
        yield "slow", what, "end them, or wait; the slowest worker decides how long a step takes"
    given = [f"{name}={value}" for name, value in threads.items() if (value or "").isdigit() and int(value) > mine]
    if given:
        yield "slow", f"{', '.join(given)}, and {mine} cores to run them on", f"set them to {mine} at most"
    waits = (threads["OMP_WAIT_POLICY"] or "").lower() == "passive" or threads["OMP_NUM_THREADS"] == "1"
    if found["packages"]["torch"] and mine > 1 and not waits and not found["graphics"]:
        what = "a policy of torch in your program takes the workers' cores: its threads go on looking for work"
        yield "slow", what, "torch.set_num_threads(1) for a small network, or export OMP_WAIT_POLICY=passive"
    if not found["scheduler_statistics"]:
        yield "slow", "no /proc/self/schedstat: a busy machine is not recognised", "give workers= and inline= yourself"
    if found["traced"]:
        yield "slow", "Python runs in its development mode, traced or as a debug build", "use a plain interpreter"


def in_words(found: dict[str, Any]) -> dict[str, str]:
    """Return the facts of `seen` as text for people. Pure."""
    cores, files, shm = found["cores"], found["descriptors"], found["shared_memory"]
    grants = f"{cores['quota']} by the control group's quota" if cores["quota"] else "no quota"
    memory, packages = found["memory_available"], found["packages"]
    forked = "are limited in forked workers, too" if packages["threadpoolctl"] else (
        "keep their number under start_method='fork' (pip install threadpoolctl limits them)"
    )  # fmt: skip
    given = [f"{name}={value}" for name, value in found["threads"].items() if value is not None]
    missing = {
        extra: [name for name, there in names.items() if there is None] for extra, names in found["extras"].items()
    }
    return {
        "python": found["python"],
        "packages": ", ".join(f"{name} {there}" for name, there in packages.items() if there),
        "cores": f"{cores['usable']} usable of {cores['of_the_machine']}, {grants}"
        + ("" if cores["used_by_others"] is None else f"; others use {cores['used_by_others']:.1f}"),
        "memory": "unknown" if memory is None else f"{shown(memory)} available",
        "/dev/shm": "missing" if shm is None else f"{shown(shm['free'])} free of {shown(shm['size'])}",
        "descriptors": f"{files['soft'] or 'no limit'} (hard limit {files['hard'] or 'none'})",
        "start methods": ", ".join(found["start_methods"]),
        "threads": f"{', '.join(given) or 'no variable is set'}; libraries' threads {forked}",
        "extras": ", ".join(extra for extra, names in missing.items() if not names) or "none",
        "not there": ", ".join(f"{extra} ({', '.join(names)})" for extra, names in missing.items() if names) or "none",
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _extras() -> dict[str, dict[str, str | None]]:
    """Return extra -> its packages with their versions; None: not installed."""
    found: dict[str, dict[str, str | None]] = {}
    for line in (_version("treadle") and requires("treadle")) or []:
        if (asked := REQUIREMENT.match(line)) and asked[1] != "treadle":
            name = asked[1].partition("[")[0]
            found.setdefault(asked[2], {})[name] = _version(name)
    return found


def _shm() -> dict[str, int] | None:
    try:
        about = os.statvfs("/dev/shm")
    except OSError:
        return None
    return {"size": about.f_blocks * about.f_frsize, "free": about.f_bavail * about.f_frsize}


def _others() -> float | None:
    """Return the cores that other programs use now, of those that this process may use; None: unknown."""
    if used() is None:
        return None
    usage = Usage(SimpleNamespace(workers=()))
    time.sleep(LOOK)
    return round(usage.since().others, 2)
