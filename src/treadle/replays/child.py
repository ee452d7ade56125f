"""A replay in a process of its own: for what kills its process, or holds the interpreter so that nobody can look.

The child says its step after each (a word in a file), and its stack comes from faulthandler: at the moment of its
death, or when a step takes longer than the limit.
"""

from __future__ import annotations

import faulthandler
import itertools
import json
import os
import signal
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from treadle.errors import UsageError
from treadle.replays.result import Difference, Replay, users_stack
from treadle.repro import Repro

TOLD = ("steps", "total_reward", "stack", "compared", "died", "asking", "stopped", "episode")
AT = struct.Struct("<II")  # episode and step
GRACE = 1.0  # seconds after the limit in which Python code that hangs ends by itself


def in_child(repro: Repro, limit: float | None, **options: Any) -> Replay:
    """Play it in a child process and say how that ended. `options`: of `treadle.replays.replay.replay`, as JSON."""
    with tempfile.TemporaryDirectory(prefix="treadle-replay-") as place:
        kept, told, file = repro.path, Path(place) / "told", Path(place) / "this.repro"
        repro.save(file)
        repro.path = kept
        told.write_bytes(bytes(8))
        order = json.dumps({"file": str(file), "told": str(told), "limit": limit, "options": options})
        done = subprocess.run(
            # -P: nothing comes from the current folder unless it does here
            [sys.executable, "-P", "-c", "from treadle.replays.child import main; main()", order],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            check=False,
        )
        said = told.read_bytes()
    found = Replay(repro)
    found.episode, found.steps = AT.unpack(said[:8])
    if len(said) > 8:
        result = json.loads(said[8:])
        if "refused" in result:
            raise UsageError(result["refused"])
        for name in TOLD:
            setattr(found, name, result[name])
        if result["error"] is not None:
            found.error = type(result["error"][0], (Exception,), {})(result["error"][1])
        if result["difference"] is not None:
            found.difference = Difference(*result["difference"])
        return found
    head, _, stack = done.stderr.partition("most recent call first):\n")
    found.stack = users_stack(_first_block(stack)) if stack else done.stderr
    if "Timeout (" in head:
        found.died = f"no step came to its end for {limit:g} s"
    elif done.returncode < 0:
        found.died = f"the process was ended by {signal.Signals(-done.returncode).name}"
    else:
        found.died = f"the process exited with code {done.returncode}"
    return found


def _first_block(stack: str) -> str:
    """The frames of the thread that was told of first."""
    return "\n".join(itertools.takewhile(lambda line: line.startswith("  File"), stack.splitlines()))


def main() -> None:
    """The child's own side."""
    from treadle.replays.replay import replay

    order = json.loads(sys.argv[1])
    faulthandler.enable()
    fd = os.open(order["told"], os.O_WRONLY)
    limit: float | None = order["limit"]

    def tick(episode: int, step: int) -> None:
        os.pwrite(fd, AT.pack(episode, step), 0)
        if limit is not None:  # for C code that holds the interpreter
            faulthandler.dump_traceback_later(limit + GRACE, exit=True)

    try:
        result = replay(order["file"], timeout=limit, here=True, tick=tick, **order["options"])
    except UsageError as refused:
        os.pwrite(fd, json.dumps({"refused": str(refused)}).encode(), 8)
        return
    faulthandler.cancel_dump_traceback_later()
    error = None if result.error is None else (type(result.error).__name__, str(result.error))
    difference = None if result.difference is None else result.difference.plain()
    told = {name: getattr(result, name) for name in TOLD}
    os.pwrite(fd, json.dumps({**told, "error": error, "difference": difference}).encode(), 8)
