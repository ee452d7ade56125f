"""Checking anybody's vector of environments: `check_vector_env`.

The vector is made of environments that know the truth (`faults.Truthful`), and each drill (`vector_drills.py`) runs in
a process of its own: one that never returns is killed, and what it has left behind is looked for.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cloudpickle

from benchmarks.vector_drills import FAULTS, Make
from treadle.errors import UsageError
from treadle.sample.named import Named, env_name
from treadle.testing.env_probe import runs
from treadle.testing.verdict import FAULT, WARNING, Report

MARK = "TREADLE_DRILL"  # an environment variable: processes that have it were started in a drill
LIMIT = 20.0  # seconds of each phase of a drill
START = 120.0  # seconds in which a vector must be made once before it
SETTLE = 2.0  # seconds that what a drill started gets to end
HANGS = ("close", "second close", "next step")  # phases that must end by themselves, whatever went wrong before

ADVICE = {
    "making": "what makes it is given a list of functions, each of which makes an environment, and returns the vector",
    "spaces": "a batch has the environments' dtype, one row each",
    "order": "row i is environment i's",
    "seeds": "environment i is seeded with seed + i",
    "ends": "hand on what the environments say",
    "rows": "whoever learns from these rows learns nonsense",
    "autoreset": "see gymnasium.vector.AutoresetMode, and what metadata['autoreset_mode'] says",
    "finals": "without the last observation no value can be bootstrapped where an episode is cut",
    "masks": "options={'reset_mask': mask} resets those environments and no others",
    "aliasing": "copy what you keep, or ask the vector to",
    "stale": "after a caught timeout throw the vector away: its results belong to earlier actions",
    "hangs": "have it run under a time limit of your own",
    "errors": "catch everything, and look into the workers' output for what happened",
    "silent": "check observations before they are written into a batch",
    "residue": "look for processes and shared memory after a run",
}
TITLES = {  # of the drills, in their order
    "contract": "nothing goes wrong",
    "caught timeout": "a timeout is caught, and the next step",
    **{name: fault.title for name, fault in FAULTS.items()},
    "orphaned": "the caller is killed",
}


@dataclass
class Drill:
    """How one drill went.

    Attributes:
        name: of the drill.
        told: what it said, by name; see `vector_drills.py`.
        odd: (level, about, text) of what was not as it should be.
        hung: the phase in which it was ended for want of time; "": it ended by itself.
        left: processes that were still there some time after its end.
        shm: names in /dev/shm, likewise.
    """

    name: str
    told: dict[str, Any] = field(default_factory=dict)
    odd: list[tuple[str, str, str]] = field(default_factory=list)
    hung: str = ""
    left: int = 0
    shm: int = 0

    @property
    def seen(self) -> str:
        """What the caller saw, in a few words."""
        if "passed" in self.told:
            return f"silently {self.told['passed']}"
        if "raised" in self.told:
            return str(self.told["raised"])
        if "ended" in self.told:
            return "the caller has ended"
        return "waits for ever" if self.hung else "nothing"


def check_vector_env(
    make: str | Make,
    *,
    drills: Iterable[str] | None = None,
    limit: float = LIMIT,
    python: str = sys.executable,
    told: Callable[[str], None] = lambda doing: None,
) -> Report:
    """Try a vector of environments out, ours or anybody's, and say what is not as it should be.

    Spaces and dtypes, seeds, what follows an episode's end, final observations and infos, resets of some, whether
    arrays that were returned are written over; what a caught timeout does to the next results; and what the caller sees
    when an environment raises, ends its process, hangs or returns what its space does not allow: which error, does it
    name the environment and its cause, can the vector be closed, and what is left behind.

    Args:
        make: makes the vector of a list of functions that make environments, or names ("module:make") what does. Its
            vector has `reset`, `step` and `close` as Gymnasium's; and `step_async` and `step_wait`, if it can.
        drills: which; None: all.
        limit: seconds of each phase of a drill (until the error, and until it is closed); then it is killed.
        python: the interpreter that runs the drills.
        told: called with a few words for each drill before it begins.

    Returns:
        The report; `details` has a `Drill` by name.

    Raises:
        UsageError: no such drill; there is nothing of that name; or `make` cannot be sent to another process.
    """
    if limit <= 0:
        raise UsageError(f"a drill's limit is more than 0 seconds, got {limit:g}")
    chosen = list(TITLES if drills is None else drills)
    if unknown := sorted(set(chosen) - set(TITLES)):
        raise UsageError(f"no drill {unknown[0]!r}; there are {', '.join(TITLES)}")
    report = Report(env_name(make), ADVICE)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "make")
        try:
            file.write_bytes(cloudpickle.dumps(Named(make) if isinstance(make, str) else make))
        except Exception as error:
            raise UsageError(f"make cannot be pickled: {error}") from error
        for name in chosen:
            told(TITLES[name])
            drill = report.details[name] = _run(file, Path(folder, f"{name}.told"), name, limit, python)
            kind, why = drill.told.get("unmade", ("", ""))
            if kind == UsageError.__name__ and isinstance(make, str):
                raise UsageError(why)
            if kind:  # all other drills would say the same
                report.add(FAULT, "making", f"it cannot be made, reset and closed: {kind}: {why}")
                break
            _judge(report, drill)
    return report


def _run(file: Path, out: Path, name: str, limit: float, python: str) -> Drill:
    mark, shm, looks = uuid.uuid4().hex, set[str](), 0
    command = [python, "-m", "benchmarks.vector_drills", str(file), name, str(out)]
    environ = {**os.environ, MARK: mark, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with Path(f"{out}.log").open("wb") as log:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environ)
    drill = Drill(name)
    end, phases = time.monotonic() + START, 0
    while child.poll() is None and time.monotonic() < end:
        time.sleep(0.02)
        looks += 1
        if looks % 10 == 1:
            shm |= _shm(_marked(mark))
        said = _read(out)
        if (begun := said.count('"ready"') + said.count('"begins"')) != phases:
            end, phases = time.monotonic() + limit, begun
        if name == "orphaned" and "kill me" in said:
            break
    hung = child.poll() is None
    child.kill()
    child.wait()
    for line in _read(out).splitlines():
        what, value = json.loads(line)
        if what == "odd":
            drill.odd.append(tuple(value))
        else:
            drill.told[what] = value
    if hung and name != "orphaned":
        drill.hung = drill.told.get("begins", "its first steps")
    elif "done" not in drill.told and name != "orphaned":
        drill.told["ended"] = child.returncode
        drill.told["log"] = Path(f"{out}.log").read_text(errors="replace")[-400:]
    until = time.monotonic() + SETTLE
    while ((left := _marked(mark)) or _kept(shm)) and time.monotonic() < until:
        time.sleep(0.05)
    if name == "orphaned" or not hung:  # else it was killed in the midst of it
        drill.left, drill.shm = len(left), len(_kept(shm))
    for pid in left:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return drill


def _judge(report: Report, drill: Drill) -> None:
    """Findings of a drill."""
    name, told = drill.name, drill.told
    for level, about, text in drill.odd:
        report.add(level, about, text)
    if name == "contract" and ("mode" in told or drill.hung):
        report.facts["autoreset"] = " or ".join(told.get("mode", [None, ["nothing"]])[1]) or "no end was seen"
    elif name == "contract":
        report.add(FAULT, "errors", f"it cannot be made or stepped: {told.get('log', '')}")
    if drill.hung in HANGS or (drill.hung and name in ("contract", "raise", "reset", "init")):
        report.add(FAULT, "hangs", f"{TITLES[name]}: {drill.hung} does not return")
    elif drill.hung and name == "hang":
        report.facts["a step that never returns"] = "is waited for"
    elif drill.hung:
        report.add(FAULT, "hangs", f"{TITLES[name]}: the caller waits for ever")
    if told.get("stale steps"):
        late = f"{told['stale steps']} of the next steps return the result of an earlier one"
        report.add(FAULT, "stale", f"after a caught {told['timeout']} {late}")
    if "passed" in told:
        report.add(FAULT, "silent", f"{TITLES[name]}: the row says {told['passed']}, and nobody is told")
    if "no error" in told and FAULTS[name].raises:
        report.add(FAULT, "silent", f"{TITLES[name]}: the steps go on, and nobody is told")
    if "ended" in told and name in FAULTS:
        report.add(WARNING, "errors", f"{TITLES[name]}: so does the caller")
    if "raised" in told and name in FAULTS:
        lacks = [what for what, key in (("which environment it was", "names"), ("why", "cause")) if not told[key]]
        if "why" in lacks and not FAULTS[name].raises:
            lacks.remove("why")
        if lacks:
            report.add(WARNING, "errors", f"{TITLES[name]}: {told['raised']} does not say {' nor '.join(lacks)}")
    if drill.left or drill.shm:
        what = " and ".join(
            f"{n} {word}" for n, word in ((drill.left, "processes"), (drill.shm, "files in /dev/shm")) if n
        )
        report.add(FAULT, "residue", f"{TITLES[name]}: {what} left behind")


def _marked(mark: str) -> list[int]:
    """Live processes that a drill has started."""
    found, wanted = [], f"{MARK}={mark}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (folder / "environ").read_bytes() and runs(int(folder.name)):
                found.append(int(folder.name))
        except OSError:
            continue  # it has ended, or is somebody else's
    return found


def _shm(pids: Iterable[int | str]) -> set[str]:
    """Names in /dev/shm that these processes map."""
    found: set[str] = set()
    for pid in pids:
        try:
            found |= set(re.findall(r"/dev/shm/(\S+)$", Path(f"/proc/{pid}/maps").read_text(errors="replace"), re.M))
        except OSError:
            continue  # it has ended, or is somebody else's
    return found


def _kept(names: set[str]) -> set[str]:
    """Which of them are still there, although no process maps them."""
    there = {name for name in names if os.path.exists(f"/dev/shm/{name}")}
    return there - _shm(each.name for each in Path("/proc").glob("[0-9]*")) if there else there


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""
