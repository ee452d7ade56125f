"""The end of a run by a failure: the error, its cause in one line, and the recording to replay its episode from.

A run that goes well records nothing for that. When an environment raises, its worker sends the actions of that
episode, which it has anyway. When a worker dies, a replay asks the policy again.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from time import monotonic
from typing import Any

from treadle import seeding
from treadle.errors import BadObservation, TreadleError, Where, WorkerDied, WorkerError, WorkerTimeout
from treadle.play.recipe import SKIPPED, RolloutRecipe, options_of
from treadle.pool.failure import caster, how_it_ended, of_memory
from treadle.program.policies import OF_BATCHES
from treadle.repro import Repro, failure_of, recipe_of
from treadle.sample.named import env_name
from treadle.sample.skipping import HANG, Cause, Skipped, grouped

log = logging.getLogger("treadle")

APART = 1.0  # seconds between two lines about failures of one cause

_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_OURS = f"{_HERE}{os.sep}", "<"
_LIBRARY = re.compile(r"/(site-packages|dist-packages|lib/py(thon|py)[\d.]*t?)/")
_POLICIES = os.path.join(_HERE, "program", "policies.py")
# what a function of one observation raises when it is given a batch of them
_OF_SHAPE = ("IndexError", "ValueError", "TypeError", "AxisError")
_FRAME = re.compile(r'  File "(?P<file>[^"]+)", line (?P<line>\d+)(?:,? in (?P<function>.+))?')


class CollectionFailed(WorkerError):
    """A run was ended by a failure.

    Attributes:
        where: the place; `where.episode` and `where.seed` say which episode it was, where that is known.
        remote_traceback: traceback in the worker as text; "" where there is none.
        reason: the cause in one line, such as "ValueError: boom".
        cause: the cause by which failures are grouped, a `treadle.sample.skipping.Cause`.
        finished: number of episodes that were finished before the failure.
        resumed: the option, besides --resume, with which the run can go on; "": none is known.
        stored: the finished episodes: for `collect_dataset` a `treadle.record.dataset.Stored`, for `evaluate` an
            `Evaluation` or None, for `collect` None.
    """

    reason: str = ""
    cause: Cause = Cause("")
    finished: int = 0
    resumed: str = ""
    stored: Any = None


def raised(error: WorkerError, root: int, finished: int) -> CollectionFailed:
    """The end of a run because an environment, a policy or the disk raised."""
    where = _seeded(error.where, root)
    reason = reason_of(error)
    return _made(error, f"{_place(where)}: {reason}{_of_batches(error)}", where, reason, finished)


def _of_batches(error: WorkerError) -> str:
    """Return a note on a policy's arguments, for code of the caller that fails at its first observations."""
    first = error.where.phase == "policy" and error.where.step == 1
    if not (first and getattr(error, "error_type", "") in _OF_SHAPE and user_frame(error.remote_traceback)):
        return ""
    if "must be Tensor, not numpy" in getattr(error, "error_message", ""):
        return "; observations are NumPy arrays: treadle.torch_policy(module) makes a policy of a module of torch's"
    return OF_BATCHES


def died(
    error: WorkerError, index: int | None, root: int, deaths: int, finished: int, *, fresh: bool = True
) -> CollectionFailed:
    """Return the error of a run that ended because workers died or were killed.

    `deaths` of them died on episode `index` (None: it is unknown). `fresh`: whether they were fresh workers.
    """
    at = error.where
    if index is None:
        where, reason = _seeded(at, root), reason_of(error)
        return _made(error, f"{_place(where)}: {reason}", where, reason, finished)
    seed = seeding.episode_env_seed(root, index)
    known = at.episode == index
    doing = (at.phase, at.step) if known else ("stream", None)
    where = Where(at.slot, at.worker, at.pid, *doing, index, seed, node=at.node)
    reason = reason_of(error, _doing(where) if known else "")
    kind = "fresh worker" if fresh else "worker"
    workers = f"{deaths} {kind}s their lives; the last time" if deaths > 1 else f"a {kind} its life:"
    return _made(error, f"episode {index} (seed {seed}) has cost {workers} {reason}", where, reason, finished)


def too_many(last: CollectionFailed, why: str, resumed: str) -> CollectionFailed:
    """The end of a run that may not go on without more episodes. `resumed`: see there."""
    error = _made(last, f"{why}; the last: {last}", last.where, last.reason, last.finished)
    error.resumed = resumed
    return error


def cause_of(error: WorkerError) -> Cause:
    """Return the cause of a failure, by which failures are grouped."""
    if isinstance(error, CollectionFailed):
        return error.cause
    message = getattr(error, "error_message", "")
    kind = getattr(error, "error_type", "") or type(error).__name__
    if isinstance(error, WorkerTimeout):
        kind = HANG
    elif isinstance(error, WorkerDied):
        kind = error.signal or ("died" if error.exit_code is None else f"exit code {error.exit_code}")
        message = of_memory(error) if error.out_of_memory else ""
    file, line, function = innermost(getattr(error, "stack", "") or error.remote_traceback)
    return Cause(kind, file, line, " ".join(message.split()), function)


def innermost(stack: str) -> tuple[str, int | None, str]:
    """Return file, line and function of the innermost frame of the user's own code, else of a library's. The line
    is None without frames."""
    return min(_frames(stack), key=lambda frame: bool(_LIBRARY.search(frame[0])), default=("", None, ""))


def crash_of(error: WorkerError, index: int) -> Any:
    """Return line and step of episode `index` where a fault's signal ended a worker; None: no such fault is known."""
    at, cause = error.where, cause_of(error)
    crashed = isinstance(error, WorkerDied) and error.signal and cause.file
    return (cause, at.phase, at.step) if crashed and at.episode == index and at.phase in SKIPPED else None


def in_policy(error: WorkerError) -> bool:
    """Return True if the stack shows that a worker was asking its policy when it died or was killed."""
    return isinstance(error, WorkerDied | WorkerTimeout) and f'"{_POLICIES}"' in error.stack


def _seeded(where: Where, root: int) -> Where:
    """The seed follows from the episode."""
    if where.episode is None or where.seed is not None:
        return where
    return replace(where, seed=seeding.episode_env_seed(root, where.episode))


def _made(error: WorkerError, message: str, where: Where, reason: str, finished: int) -> CollectionFailed:
    failed = CollectionFailed(
        message, where=where, remote_traceback=error.remote_traceback, reason=reason, cause=cause_of(error),
        finished=finished,
    )  # fmt: skip
    failed.__cause__ = error
    return failed


def _place(where: Where) -> str:
    worker = f"slot {where.slot}" if where.slot is not None else "a worker"
    if where.episode is None or where.seed is None:
        return f"{worker}, {where.phase or 'running'}"
    doing = f"step {where.step}" if where.phase == "step" and where.step is not None else where.phase
    if where.phase == "stream":
        doing = "at its end"
    if where.phase == "policy" and where.step is not None:
        doing = f"policy before step {where.step}"
    return f"episode {where.episode} (seed {where.seed}, {worker}), {doing}"


def happened(error: WorkerError) -> str:
    """As `reason_of`, with the step and the episode where they are known."""
    where = error.where
    return reason_of(error, "" if where.episode is None else f"{_doing(where)} of episode {where.episode}")


def _doing(where: Where) -> str:
    return f" in step {where.step}" if where.step is not None else f" in its {where.phase}"


def reason_of(error: WorkerError, doing: str = "") -> str:
    """Return the failure in one line: the exception, or the end of the worker.

    Of an exception the line has type, text and the line of the user's code that raised it. `doing`: the worker's call
    at that moment.
    """
    if isinstance(error, WorkerTimeout):
        place = user_frame(error.stack)
        reason = f"no step came to its end for {error.elapsed:.1f} s (the limit is {error.limit:g} s){doing}"
        return f"{reason}, at {place}" if place else reason
    if isinstance(error, WorkerDied):
        reason = how_it_ended(error, doing)
        if place := user_frame(error.stack):
            reason += f", at {place}"
        return f"{reason}; the last it said: {error.stderr[-1].strip()}" if error.stderr else reason
    kind, said = getattr(error, "error_type", ""), " ".join(getattr(error, "error_message", "").split())
    if not kind:
        lines = error.remote_traceback.strip().splitlines()
        text = lines[-1] if lines else str(error)
    else:
        if isinstance(error, BadObservation):
            casts = (found := caster(error.expected, error.got)) and f"; {found}"
            return f"{said}: the environment's observation does not fit its own observation_space{casts}"
        ours = isinstance(error.__cause__, TreadleError) and not isinstance(error.__cause__, WorkerError)
        if ours and said:  # our own words need no type before them; those of a pool within it do
            return said
        text = f"{kind}: {said}" if said else kind
    place = user_frame(error.remote_traceback)
    return f"{text} ({place})" if place else text


def user_frame(traceback: str) -> str:
    """ "file.py:12" of the innermost frame that is neither ours nor an installed library's; "" when there is none."""
    file, line, _ = innermost(traceback)
    return f"{os.path.basename(file)}:{line}" if file and not _LIBRARY.search(file) else ""


def _frames(stack: str) -> list[tuple[str, int, str]]:
    """File, line and function of all frames that are not ours, the innermost first; of several threads' the current
    one's are before the others."""
    innermost_first = "(most recent call first)" in stack
    at = max(0, stack.find("Current thread")) if innermost_first else 0
    frames = [
        (match["file"], int(match["line"]), match["function"] or "")
        for match in _FRAME.finditer(stack[at:] + stack[:at])
    ]
    return [frame for frame in (frames if innermost_first else frames[::-1]) if not frame[0].startswith(_OURS)]


class Failures:
    """The failures of a run. Each is logged, but of one cause at most one line in `APART` seconds.

    Args:
        left_out: episodes that an earlier part of the run went on without.
        note: called after each new failure.

    Attributes:
        left_out: episodes that the run goes on without, by index.
    """

    def __init__(self, left_out: Iterable[Skipped] = (), note: Callable[[Failures], None] | None = None) -> None:
        self.left_out, self._note = {each.index: each for each in left_out}, note or (lambda failures: None)
        self._unsaid = False
        self._due: dict[Any, float] = {}  # kind of line, cause -> when the next may come

    def __str__(self) -> str:
        """The episodes that were left out, by cause."""
        return "; ".join(grouped(self.left_out.values())) or "none"

    def warn(self, what: str, error: WorkerError, text: str) -> None:
        """Log a failure. `what` separates lines of different kinds about one cause."""
        key, now = (what, cause_of(error)), monotonic()
        if now < self._due.get(key, 0.0):
            self._unsaid = True
            return
        self._due[key] = now + APART
        log.warning("%s", text)

    def leave_out(self, index: int, error: CollectionFailed) -> None:
        """Note an episode that is left out. Its recording is already written, as DIR/failures/NAME."""
        at: Any = error.where
        path = getattr(error.repro, "path", None)
        repro = "/".join(path.parts[-2:]) if path else ""
        self.left_out[index] = Skipped(index, at.seed, error.reason, step=at.step, repro=repro, **vars(error.cause))
        self._note(self)
        self.warn("left out", error, f"{error}; it is left out")

    def close(self, restarts: int) -> None:
        """The run has ended, having replaced so many workers: log what was not."""
        if self._unsaid:
            log.warning("workers replaced in all: %d; episodes left out: %s", restarts, self)


def about_episode(root: int, index: int, env: str, max_steps: int | None) -> dict[str, Any]:
    """Return what a `Repro` says of episode `index` of a run from the seed `root`."""
    return {
        "face": "episode",
        "title": f"episode {index} of {env}",
        "seed": seeding.episode_env_seed(root, index),
        "policy_seed": seeding.episode_policy_seed(root, index),
        "index": index,
        "root": root,
        "max_steps": max_steps,
    }


def repro_of(recipe: RolloutRecipe, root: int, index: int, error: CollectionFailed | None = None) -> Repro:
    """How to play episode `index` of a run again, and what it failed of (`error`)."""
    asking = recipe.asking
    repro = Repro(about_episode(root, index, env_name(recipe.env.env), recipe.max_steps))
    if recipe.deterministic:
        repro.about["deterministic"] = True
    if asking is not None:  # the policy is asked in the caller
        repro.about["asking"] = {"pad_to": asking.pad_to, "n_action_steps": asking.n_action_steps}
    recipe_of(repro, recipe.env)
    repro.put("policy", recipe.policy if asking is None else asking.policy)
    repro.put("options", options_of(recipe.reset_options, index))
    if error is not None:
        cause: Any = error.__cause__
        if isinstance(cause, CollectionFailed):  # the last of too many
            cause = cause.__cause__
        repro.about["failed"] = {**failure_of(cause, error.reason), "episode": index}
        repro.arrays.update(cause.trail or {})
    return repro
