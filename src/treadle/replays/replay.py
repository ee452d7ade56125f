"""`treadle.replay`: a failure, or any episode of a run, played again in this process.

A failure that kills its process, or holds its interpreter, is played in a child process. The child writes the number
of each step into a file before it. The child's stack comes from faulthandler: at its death, or when a step exceeds the
limit.
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
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from treadle import errors, seeding
from treadle.checks import check_seconds, check_whole, suggests
from treadle.errors import TreadleError, UsageError
from treadle.program.gym_env import close_env
from treadle.program.offscreen import off_screen
from treadle.progress import printable
from treadle.replays.opening import add_stored, kept_out, open_repro
from treadle.replays.pictures import film_of, modes_of
from treadle.replays.playing import Player, limited, recipe_from, script_of_episode, script_of_slot, task_env
from treadle.replays.result import Difference, Replay, check_spaces, users_stack
from treadle.repro import Repro

TOLD = ("steps", "total_reward", "stack", "compared", "died", "asking", "stopped", "episode")
AT = struct.Struct("<II")  # episode and step
GRACE = 1.0  # seconds after the limit in which Python code that hangs ends by itself


@suggests
def replay(
    source: Any,
    episode: int | None = None,
    *,
    env: Any = None,
    policy: Any = None,
    step: int | None = None,
    pdb: bool = False,
    render: str | Path | None = None,
    plain: bool = False,
    trust: bool = False,
    timeout: float | None = None,
    here: bool = False,
    tick: Callable[[int, int], None] = lambda episode, step: None,
) -> Replay:
    """Play a recorded failure, or an episode of a run, again: the same environment, seeds and actions.

    The result holds the exception of the environment, with the environment's own frames in the traceback. Rewards, ends
    and observations are compared with the recorded ones; the result holds the first difference.

    Args:
        source: a file (`DIR/failures/episode-5.repro`), the directory of a run, an error that Treadle raised,
            or the result of `treadle.last_failure()`.
        episode: index of an episode of the run, if `source` is a directory; None: the latest failure of the run.
        env: the environment, in the place of the recorded one: an id, "module:make", a callable. A file that is
            not trusted needs `env` if the recorded environment was a lambda or a closure. A wrong environment is
            refused before any step, by its spaces and its first observation. None: the recorded environment.
        policy: True: ask the episode's own policy, with its own generator, although its actions were recorded; or
            another policy, to be asked in its place. None: play the recorded actions; without any, ask the own policy.
        step: number of the step to stop after, in the last episode of the recording; None: stop at its end.
        pdb: True: stop in a debugger, in the user's code at the line that raised. With `step` the debugger stops before
            that step. For a worker's death it stops before the step in which the worker died. If nothing fails but a
            value differs from the recorded one, the episode is played once more. Then the debugger stops before the
            step that first differed.
        render: path of a video to write (.mp4, .png): a picture of the reset and of each step. A line under each shows
            step, reward and return; it is red from the first difference on. None: no video.
        plain: True: leave out the line under each picture of the video.
        trust: follow all names in the file, and open its pickles: that runs code of the file. False: names are followed
            in objects in memory, and in files that this user's own runs have written. Of other files only installed
            environments with plain arguments are built (docs/security.md).
        timeout: seconds that a step may take. None: the limit of the recorded run if the failure ended its process,
            else no limit.
        here: True: play a failure that ended its process in this process, which it may end. False: play it in a child
            process, except with `pdb`, `render`, or an object as `env` or `policy`.
        tick: called before each reset and step with (episode, step); step is 0 for resets. A replay in a child process
            does not call it.

    Raises:
        UsageError: the source is not there, cannot be built or is not trusted, or `env` is not the recorded one. Or the
            environment gives no pictures for `render`.
        MissingExtra: a package is missing for the environment, the dataset or the video.
    """
    check_seconds("timeout", timeout, none=True)
    check_whole(0, step=step)
    repro = open_repro(source, episode)
    with kept_out(repro, env=env, policy=policy, trust=trust):
        recorded = repro.about.get("failed") or {}
        ended = recorded.get("kind") in ("died", "late")
        limit = timeout if timeout is not None else recorded.get("limit") if ended else None
        if pdb and recorded.get("kind") == "died" and step is None:
            step = recorded.get("step")
        named = all(isinstance(each, str | bool | None) for each in (env, policy))  # so that a child can be told
        if ended and named and not pdb and not here and render is None:
            return in_child(repro, limit, env=env, policy=policy, step=step, trust=trust or repro.made_here)
        # steps are counted over all that is played, and `step` in the last episode of it
        before = max(0, repro.about.get("steps", 0) - (recorded.get("step") or 0))
        until = None if step is None else step + before
        filmed = None if render is None else partial(film_of, path=Path(render), plain=plain)
        play = partial(_play, repro, env=env, policy=policy, trust=trust, clock=(limit, tick))
        with nullcontext() if render is None or here else off_screen():
            player = play(until=until, pdb=pdb, filmed=filmed)
        result, found = player.result, player.result.difference
        if pdb and step is None and result.error is None and found is not None:
            print(printable(f"it first differs from what was recorded in {found}; once more, to there:"))
            result = play(until=player.checks.at, pdb=True).result
            result.difference = result.difference or found  # who leaves the debugger does not see it made
        return result


def _play(
    repro: Repro,
    *,
    env: Any,
    policy: Any,
    trust: bool,
    clock: tuple[float | None, Callable[[int, int], None]],
    until: int | None,
    pdb: bool,
    filmed: Callable[[Any], Any] | None = None,
) -> Player:
    """Build the environment and play; see `replay`, and `Player` for `until`.

    `clock`: the seconds that a step may take, and `tick`. `filmed`: makes the film of an environment; None: no film.
    """
    limit, tick = clock
    with seeding.keep_globals(), limited(limit) as ring:

        def begin(episode: int, step: int) -> None:
            tick(episode, step)
            ring()

        face, tasks = repro.about["face"], "make" in repro.about
        built: Any = task_env(repro, trust) if tasks else _built(repro, env, trust, filmed is not None)
        try:
            if face == "episode":
                add_stored(repro, built.observation_space, built.action_space)
            if env is not None and "spaces" in repro.about:
                check_spaces(repro, built)
            with nullcontext() if filmed is None else filmed(built) as picture:
                player = Player(
                    repro, built, until=until, debug=pdb, tick=begin, picture=picture, other=env is not None
                )
                if face == "slot":
                    script = script_of_slot(repro, built, trust)
                else:
                    script = script_of_episode(repro, built, policy, trust)
                player.run(script, pdb)
        finally:
            close_env(built)
    return player


def _built(repro: Repro, env: Any, trust: bool, pictures: bool) -> Any:
    try:
        return recipe_from(repro, env, trust, pictures).build()
    except TypeError as error:
        if pictures:
            close_env(bare := _built(repro, env, trust, False))  # raises if something else is wrong
            text = "a film (--render) wants an environment that takes render_mode='rgb_array'"
            raise UsageError(f"{text}; {modes_of(bare)} ({error})") from error
        if env is not None:
            raise UsageError(f"env (--env) is not what was played: building it raised a TypeError: {error}") from error
        raise


def in_child(repro: Repro, limit: float | None, **options: Any) -> Replay:
    """Play a recording in a child process and return the result, which has no traceback and no observation.

    `limit`: seconds that a step may take; None: no limit. `options`: of `replay`, values for JSON.

    Raises the error of this package that ends the child's replay; TreadleError, with its name, for another error.
    """
    with tempfile.TemporaryDirectory(prefix="treadle-replay-") as place:
        kept, told, file = repro.path, Path(place) / "told", Path(place) / "this.repro"
        if repro.stored is None:
            repro.save(file)
            repro.path = kept
        else:  # what is stored of it is there
            file, options["episode"] = repro.stored, repro.about["index"]
        told.write_bytes(bytes(8))
        order = json.dumps({"file": str(file), "told": str(told), "limit": limit, "options": options})
        done = subprocess.run(
            # -P: nothing comes from the current folder unless it does here
            [sys.executable, "-P", "-c", "from treadle.replays.replay import main; main()", order],
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
            kind, text = result["refused"]
            raise getattr(errors, kind, UsageError)(text)
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
    """Return the frames of the first thread of a stack."""
    return "\n".join(itertools.takewhile(lambda line: line.startswith("  File"), stack.splitlines()))


def main() -> None:
    """Run `replay` in the child, and write its result into the file."""
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
    except Exception as raised:  # noqa: BLE001 - `in_child` raises it
        kind, text = type(raised).__name__, str(raised)
        if not isinstance(raised, TreadleError):  # such as an OSError of a constructor
            kind, text = "TreadleError", f"{kind}: {text}"
        os.pwrite(fd, json.dumps({"refused": (kind, text)}).encode(), 8)
        return
    faulthandler.cancel_dump_traceback_later()
    error = None if result.error is None else (type(result.error).__name__, str(result.error))
    difference = None if result.difference is None else result.difference.plain()
    told = {name: getattr(result, name) for name in TOLD}
    os.pwrite(fd, json.dumps({**told, "error": error, "difference": difference}).encode(), 8)
