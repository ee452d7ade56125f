"""`treadle replay`."""

from __future__ import annotations

from typing import Any

from treadle.cli import failures
from treadle.cli.options import Replay, option_name
from treadle.cli.process import names_code, own_stdout, search_here
from treadle.errors import UsageError
from treadle.progress import printable
from treadle.record.summary import as_json
from treadle.replays.film import film
from treadle.replays.opening import open_repro
from treadle.replays.replay import replay
from treadle.repro import Repro

CHOICE = ("best", "worst", "failed", "episodes")
SHARED = ("plain", "env", "trust", "timeout")
ALONE = ("pdb", "step", "policy", "other_policy")  # options of a replay in this process


def run(options: Replay) -> int:
    """Play, show what came of it, and return the exit code: 0 when all was as recorded."""
    arguments = options.arguments()
    choice = {name: arguments.pop(name) for name in CHOICE}
    render = options.render
    if any(choice.values()) or (render is not None and (render.is_dir() or not render.suffix)):
        return _films(options, arguments, choice)
    with own_stdout(options.json) as out:
        repro = open_repro(arguments.pop("source"), arguments.pop("episode"))
        _search(options, repro)
        result = replay(repro, **{**arguments, "policy": options.other_policy or options.policy or None})
        if options.json:
            print(as_json(result.as_dict()), file=out)
        else:
            if result.stack and not (options.pdb and result.error is not None):
                print(printable(result.stack), end="")
            if result.stopped:
                print(printable(f"observation: {result.observation}"))
            print(_said(result))
            if render is not None and render.exists():
                print(f"pictures in {render}")
    return failures.OK if result.as_recorded else failures.FAILED


def _films(options: Replay, arguments: dict[str, Any], choice: dict[str, Any]) -> int:
    """Film what was chosen; the exit code: 0 when all of it was as recorded and has a film."""
    source, render = arguments["source"], options.render
    if unfit := [name for name in ALONE if getattr(options, name) not in (None, False)]:
        raise UsageError(f"{option_name(unfit[0])} is of one replay in this process, and films are made in others")
    if render is not None and render.suffix in (".mp4", ".png"):
        raise UsageError(f"--render is a folder where episodes are chosen, got {render}")
    if options.episode is not None:
        choice["episodes"] = (options.episode, *choice["episodes"])
    with own_stdout(options.json) as out:
        _search(options, open_repro(source, 0 if source.is_dir() and any(choice.values()) else None))
        films = film(source, **choice, **{name: arguments[name] for name in SHARED}, out=render)
        told = [{"film": each.path and str(each.path), **each.replay.as_dict()} for each in films]
        lines = [f"{_said(each.replay)}\n  {each.path or 'no picture of it could be made'}" for each in films]
        print(as_json(told) if options.json else printable("\n".join(lines)), file=out)
    return failures.OK if all(each.path and each.replay.as_recorded for each in films) else failures.FAILED


def _search(options: Replay, repro: Repro) -> None:
    """Find modules in the current folder, where the user's own words or files name code."""
    own = not repro.doubt and repro.names_code
    if options.trust or own or names_code([options.env or "", options.other_policy or ""]):
        search_here()


def _said(result: Any) -> str:
    return printable(f"{result.repro.about['title']}, seed {result.repro.about.get('seed')}: {result}")
