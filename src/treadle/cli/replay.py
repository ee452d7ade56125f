"""`treadle replay`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from treadle.cli import failures
from treadle.cli.output import own_stdout
from treadle.record.summary import as_json
from treadle.replays.replay import replay


@dataclass(frozen=True)
class ReplayOptions:
    """What was typed; see the command's help."""

    source: Path
    episode: int | None
    env: str | None
    policy: str | bool | None
    step: int | None
    pdb: bool
    render: Path | None
    trust: bool
    timeout: float | None
    json: bool


def run(options: ReplayOptions) -> int:
    """Play, show what came of it, and return the exit code: 0 when all was as recorded."""
    given = dict(vars(options))
    source, episode, alone = given.pop("source"), given.pop("episode"), given.pop("json")
    with own_stdout(alone) as out:
        result = replay(source, episode, **given)
        if alone:
            print(as_json(result.as_dict()), file=out)
        else:
            if result.stack and not (options.pdb and result.error is not None):
                print(result.stack, end="")
            if result.stopped:
                print(f"observation: {result.observation}")
            print(f"{result.repro.about['title']}, seed {result.repro.about.get('seed')}: {result}")
            if options.render is not None:
                print(f"pictures in {options.render}")
    return failures.OK if result.as_recorded else failures.FAILED
