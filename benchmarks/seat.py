"""`python -m benchmarks.seat JSON`: one contestant on one row, in a process of its own.

So a contestant finds a process in which nobody else has imported, forked, or left threads, the time that its library
takes to be imported can be had (before anything else here is imported), and two source trees can be compared. Once it
is set up it waits for its turns; what waits takes no processor time. It speaks JSON on stdout, a line for each on
stdin: first what its start cost, then for each number of seconds what `run` measured, or {"error": what was raised}. An
empty line ends it.
"""

import contextlib
import importlib
import json
import os
import sys
from time import perf_counter
from typing import Any

WARMUP = 0.3  # seconds stepped before anything is reported


def main() -> None:
    """Reads {"row", "contestant", "library", "workers"} from its argument."""
    asked = json.loads(sys.argv[1])
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what environments print is not for the one who listens
    try:
        serve(asked, out)
    except Exception as error:
        tell(out, {"error": repr(error)[:300]})
        raise


def serve(asked: dict[str, Any], out: Any) -> None:
    """Sets the contestant up, and runs it until an empty line."""
    began = perf_counter()
    if asked["library"]:
        importlib.import_module(asked["library"])
    imported = perf_counter() - began

    from benchmarks.field import everyone
    from benchmarks.rows import parse_row

    row = parse_row(asked["row"])
    (contestant,) = [one for one in everyone() if one.name == asked["contestant"]]
    if row.policy is not None:
        row.policy.set_threads()  # and torch imported: that is not a part of the vector's start

    row.workload.make().close()  # nor are the environments' own modules
    began = perf_counter()
    session = contestant.setup(row, asked["workers"])
    with contextlib.closing(session):
        session.run(0.0)
        first = perf_counter() - began
        tell(out, start(session, imported, first))
        for line in sys.stdin:
            if not line.strip():
                break
            tell(out, session.run(json.loads(line)).__dict__)


def start(session: Any, imported: float, first: float) -> dict[str, Any]:
    """Warms up, and looks at the processes that work meanwhile."""
    from benchmarks.measure import cpu_by_pid, private_mib, ran

    before = {pid: ran(pid) for pid in cpu_by_pid()}
    session.run(WARMUP)
    at_work = [pid for pid, seconds in before.items() if ran(pid) > seconds]
    library = sys.modules.get("treadle")
    return {
        "import_s": imported,
        "first_batch_s": first,
        "workers": len(at_work),
        "worker_mib": sum(map(private_mib, at_work)) / len(at_work) if at_work else None,
        "treadle": str(library.__file__) if library else None,
    }


def tell(out: Any, what: Any) -> None:
    print(json.dumps(what), file=out, flush=True)


if __name__ == "__main__":
    main()
