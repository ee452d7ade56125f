"""`treadle replay`."""

from __future__ import annotations

from treadle.cli import failures
from treadle.cli.options import Replay
from treadle.cli.process import names_code, own_stdout, search_here
from treadle.progress import printable
from treadle.record.summary import as_json
from treadle.replays.opening import open_repro
from treadle.replays.replay import replay


def run(options: Replay) -> int:
    """Play, show what came of it, and return the exit code: 0 when all was as recorded."""
    arguments = options.arguments()
    with own_stdout(options.json) as out:
        repro = open_repro(arguments.pop("source"), arguments.pop("episode"))
        own = not repro.doubt and repro.names_code
        if arguments["trust"] or own or names_code([options.env or "", options.other_policy or ""]):
            search_here()
        result = replay(repro, **{**arguments, "policy": options.other_policy or options.policy or None})
        if options.json:
            print(as_json(result.as_dict()), file=out)
        else:
            if result.stack and not (options.pdb and result.error is not None):
                print(printable(result.stack), end="")
            if result.stopped:
                print(printable(f"observation: {result.observation}"))
            said = f"{result.repro.about['title']}, seed {result.repro.about.get('seed')}: {result}"
            print(printable(said))
            if options.render is not None:
                print(f"pictures in {options.render}")
    return failures.OK if result.as_recorded else failures.FAILED
