"""Checking an environment before a run: `check_env`, and `treadle check` on the command line.

The environment is built and played in worker processes of a pool (see `env_probe.py`), so one that hangs or ends its
process is a finding like any other, with the place.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec

from treadle.errors import TaskRaised, TreadleError, UsageError, WorkerDied, WorkerError, WorkerTimeout
from treadle.pool import failure
from treadle.pool.calls import Done, Event, Lost
from treadle.pool.carried import CannotTravel
from treadle.pool.messages import Op
from treadle.pool.pool import Pool
from treadle.pool.wear import shown
from treadle.program.gym_env import EnvRecipe
from treadle.sample.failed import user_frame
from treadle.sample.named import env_name, env_of
from treadle.testing.env_probe import PARTS, EnvProbe, Left, Walk
from treadle.testing.processes import runs
from treadle.testing.verdict import FAULT, WARNING, Report

TRACE = 300  # steps that are compared
RESETS = 100
LEAK = 64_000  # bytes an episode
MANY_STEPS = {"gymnasium": 200, "state": 200}  # parts that cannot say that they get on: steps that they take at most
SLOW_CLOSE = 5.0
GONE = 1.0  # seconds that processes have to be gone after they were killed
MANY_LINES = 40  # of stdout and stderr
# what Gymnasium's checker says that is a matter of taste, or of how it was called
TASTE = (
    "infinity",
    "symmetric and normalized",
    "different from the unwrapped",
    "render modes",
    "render_mode",
    "render_fps",
)
SAME_SEED = "Deterministic step", "non-deterministic", "although similar"  # of another episode under the same seed
FRESH = "after other episodes", "reset must put back all that an episode changes (or: collect --fresh-env)"
TWIN = "in a second environment of the same process", "keep nothing that steps change in the class or the module"
ELSEWHERE = (
    "in another process",
    "draw from self.np_random alone; times, pids, hash() of texts and the order of sets differ between processes",
)
CUT = "after an exception in a step", "reset must put back all that a step changes, also one that was cut short"
GLOBAL = "draw from self.np_random, which reset(seed=...) seeds, and not from the global generators"
ADVICE = {
    "pickle": "give a function that makes it, with what it needs inside",
    "build": "the constructor must return in a process of its own",
    "prints": "use the logging module: with many workers nobody can read it",
    "hangs": "find out what it waits for; step_timeout= ends such a worker",
    "dies": "run it under gdb, or with faulthandler; on_failure='restart' goes on without it",
    "raises": "an environment may raise for a wrong action alone",
    "interface": "see gymnasium.Env.reset and gymnasium.Env.step",
    "space": "return what observation_space says, or say what is returned; wrappers.DtypeObservation can cast",
    "bounds": "widen the bounds in observation_space, or clip; networks that scale by the bounds get wrong numbers",
    "nan": "find the division or the physics that blows up; one NaN makes a whole batch of gradients NaN",
    "reused": "return a copy: who keeps observations finds the last one in all of them (Treadle copies by itself)",
    "randomness": GLOBAL,
    "memory": "find what keeps it (tracemalloc); memory_limit= replaces workers that have too much",
    "state": "planning and snapshots need it: see treadle.plan.check_state",
    "gymnasium": "what Gymnasium's own checker says: gymnasium.utils.env_checker",
    "close": "closing must work, quickly, and twice; close_timeout= (5 s) ends workers that take longer",
    "threads": "end and join them in close",
    "children": "end and wait for them in close, and leave them in the worker's process group, which Treadle ends",
}
LEVELS = {"bounds": WARNING, "reused": WARNING}


class Stopped(Exception):
    """The worker is gone; what else was to be checked cannot be."""


def check_env(
    env: str | EnvSpec | Callable[..., gym.Env],
    *,
    steps: int = 1000,
    seed: int = 0,
    seconds: float = 10.0,
    timeout: float = 30.0,
    env_kwargs: dict[str, Any] | None = None,
    wrappers: Sequence[Callable[[gym.Env], gym.Env]] = (),
    imports: Sequence[str] = (),
    told: Callable[[str], None] = lambda doing: None,
) -> Report:
    """Play an environment in worker processes, and say what is not as it should be.

    Spaces and dtypes at reset and in `steps` random steps; the same episode under the same seed (in another process,
    beside a second environment, after other episodes); global generators; observations that are written over; what it
    prints; threads and children that it leaves; memory that grows; how long steps and resets take; whether its state
    can be taken and put back; what Gymnasium's own checker says; and drills: it raises, and its process is killed.

    Args:
        env: an id, "module:make_env", an EnvSpec, or a callable that returns an environment.
        steps: random steps; fewer where they take longer than `seconds`.
        seed: of everything.
        seconds: that the random steps may take; other parts take a share of it.
        timeout: seconds after which a step or a reset that does not return is killed and told as a hang. (Gymnasium's
            checker, and taking and putting back states, have so many seconds for all of theirs beside what they take.)
        env_kwargs, wrappers, imports: as of `treadle.collect`.
        told: called with a few words for each part before it begins.

    Returns:
        The report: `ok` when there is no fault; `print` it.

    Raises:
        UsageError: it names no environment.
    """
    recipe = EnvRecipe.of(env_of(env), env_kwargs, wrappers, imports)
    report = Report(env_name(recipe.env), ADVICE)
    check = Check(report, recipe, steps, seed, seconds, timeout, told)
    with contextlib.suppress(Stopped):
        check.run()
    check.conclude()
    return report


class Check:
    def __init__(
        self, report: Report, recipe: EnvRecipe, steps: int, seed: int, seconds: float, timeout: float, told: Any
    ) -> None:
        self.report, self._recipe, self._steps, self._seed = report, recipe, steps, seed
        self._seconds, self._timeout, self._told = seconds, timeout, told
        self._unlike: dict[str, tuple[str, str, str, str]] = {}  # where -> level, what differs, since when, advice
        self._also: dict[str, None] = {}  # what follows from that, and is no finding of its own

    def run(self) -> None:
        with self._worker("forkserver") as pool:
            first = self._same(pool)
            self._spaces(pool, first)
            self._memory(pool)
            self._state(pool)
            self._gymnasium(pool)
            self._raise_drill(pool, first)
            self._close(pool)
        with self._worker("spawn") as pool:
            self._elsewhere(pool, first)
            self._kill_drill(pool)

    @contextlib.contextmanager
    def _worker(self, start_method: str) -> Iterator[Pool]:
        """A pool of one worker that has built the environment. Raises Stopped."""
        report = self.report
        try:
            pool = Pool(
                [partial(EnvProbe, self._recipe)],
                workers=1,
                rows=False,
                start_method=start_method,
                worker_output="keep",
                step_timeout=self._timeout,
            )
        except CannotTravel as error:
            report.fault("pickle", f"it cannot be sent to a worker process: {error.reason}")
            raise Stopped from error
        except UsageError:
            raise
        except WorkerError as error:
            report.fault("build", _first_line(error))
            raise Stopped from error
        try:
            yield pool
        finally:
            pool.close()
            said = pool.workers[0].report.stderr
            if said:
                report.facts["prints"] = f"{len(said)} lines, the last: {said[-1].strip()!r}"
            if len(said) >= MANY_LINES:
                report.warning("prints", f"{MANY_LINES} lines and more, the last: {said[-1].strip()!r}")

    def _ask(self, pool: Pool, doing: str, name: str, *args: Any) -> Any:
        """Have the probe do something. Raises TaskRaised, or notes a death or a hang and raises Stopped."""
        self._told(doing)
        heard: list[Event] = []
        (worker,) = pool.workers
        found: Any = None
        steps = MANY_STEPS.get(name, 0)
        pool.calls.step_timeout = self._timeout + (steps and steps * float(np.median(self._long.seconds or [0.0])))
        pool.calls.submit(worker, Op.STREAM, {0: (name, args)}, (0,), name)
        while not heard or (isinstance(heard[-1], Done) and not heard[-1].reply.last):
            pool.calls.poll(None, heard.append)
        for event in heard:
            if isinstance(event, Done) and event.reply.extras is not None:
                for slot, raised in event.reply.extras.raised.items():
                    raise failure.task_error(raised, slot, worker)
                found = event.reply.extras.infos[0]
        if not isinstance(event, Lost):
            return found
        error = event.error
        what = f"{doing}: {failure.reason(error)}"
        if isinstance(error, WorkerTimeout):
            stack = f"; its stack: {_innermost(error.stack)}" if error.stack else ""
            self.report.fault("hangs", what + stack)
        else:
            assert isinstance(error, WorkerDied)
            stack = f", at {_innermost(error.stack)}" if error.stack else ""
            said = f"; it said: {error.stderr[-1].strip()}" if error.stderr else ""
            self.report.fault("dies", what + stack + said)
        raise Stopped

    def _walk(self, pool: Pool, doing: str, name: str, *args: Any) -> Walk:
        """A walk; what the environment raises in it is a fault, and the end."""
        try:
            walk: Walk = self._ask(pool, doing, name, *args)
        except TaskRaised as error:
            if error.error_type.endswith(("BadStep", "UsageError")):  # our words, raised by our lines
                self.report.fault("interface", f"{doing}: {error.error_message}")
            else:
                what = f"{doing}: {error.error_type}: {error.error_message}"
                self.report.fault("raises", f"{what}, in {_innermost(error.remote_traceback, first=False)}")
            raise Stopped from error
        for kind, text in walk.oddities.items():
            self.report.add(LEVELS.get(kind, FAULT), kind, text)
        return walk

    # -- the parts ---------------------------------------------------------------------------------------------------

    def _same(self, pool: Pool) -> Walk:
        """The same seed, the same episode: after other episodes, and beside another environment."""
        self._loose = pool.descriptions[0].metadata["nondeterministic"]
        if refused := pool.descriptions[0].metadata["refused"]:
            self.report.fault("interface", refused)
            raise Stopped
        self.report.facts["built in"] = f"{pool.descriptions[0].metadata['build_seconds']:.2f} s"
        trace, seconds, seed = min(TRACE, self._steps), self._seconds / 5, self._seed
        first = self._walk(pool, "its first steps", "walk", seed, trace, seconds, 1)
        self._globals = first.globals
        self._long = self._walk(pool, "further steps", "walk", seed + 1, self._steps, self._seconds, 2)
        self._compare(first, self._walk(pool, "the same steps again", "walk", seed, trace, seconds, 3), FRESH)
        self._compare(first, self._walk(pool, "beside a second one", "twin", seed, trace, seconds), TWIN)
        return first

    def _elsewhere(self, pool: Pool, first: Walk) -> None:
        """The same in a process that was spawned."""
        trace, seconds = min(TRACE, self._steps), self._seconds / 5
        there = self._walk(pool, "in a spawned process", "walk", self._seed, trace, seconds, 4)
        self._compare(first, there, ELSEWHERE)
        if not self._unlike:
            if self._globals:
                self.report.warning("randomness", f"it draws from global generators: {', '.join(self._globals)}")
            self.report.passed.append(
                "the same seed, the same episode (in another process, beside others, after others)"
            )

    def _compare(self, first: Walk, again: Walk, against: tuple[str, str]) -> None:
        where, advice = against
        for at, (a, b) in enumerate(zip(first.records, again.records, strict=False)):
            if a == b:
                continue
            part = next(part for part, x, y in zip(PARTS, a, b, strict=True) if x != y)
            advice = GLOBAL if self._globals and part != "info" else advice
            level = WARNING if part == "info" or self._loose else FAULT
            self._unlike[where] = level, part, f"first at record {at} of {len(first.records)}", advice
            return

    def conclude(self) -> None:
        """Another episode under the same seed is one finding, wherever it was seen; where it was says what to do."""
        if not self._unlike:
            return
        since: dict[str, list[str]] = {}  # what differs, and since when -> where
        for where, (_, part, when, _) in self._unlike.items():
            since.setdefault(f"another {part} {{}}, {when}", []).append(where)
        told = "; ".join([*(text.format(", ".join(places)) for text, places in since.items()), *self._also])
        noted = " (its registration says so: nondeterministic=True)" if self._loose else ""
        levels = [level for level, *_ in self._unlike.values()]
        *_, (*_, advice) = self._unlike.values()
        level = FAULT if FAULT in levels else WARNING
        self.report.add(level, "determinism", f"the same seed and actions give {told}{noted}", advice)

    def _spaces(self, pool: Pool, first: Walk) -> None:
        walk, report = self._long, self.report
        steps, resets = np.array(walk.seconds or [0.0]), np.array(walk.resets)
        if not any(report.found(kind) for kind in ("space", "bounds", "nan")):
            report.passed.append(f"spaces, exactly, in {len(walk.seconds) + len(first.seconds):,} steps")
        quantiles = np.quantile(steps, [0.5, 0.9, 0.99, 1.0]) * 1e6
        report.facts["a step takes"] = "{:,.0f} us (median), {:,.0f} (90 %), {:,.0f} (99 %), {:,.0f} (most)".format(
            *quantiles
        )
        median, longest = float(np.median(resets)), float(resets.max())
        report.facts["a reset takes"] = (
            f"{median * 1e3:,.2f} ms (median), {longest * 1e3:,.2f} ms (most of {len(resets)})"
        )
        share = min(1.0, walk.busy / max(1e-9, float(steps.sum())))  # its clock also counts what is between steps
        doing = "computing" if share > 0.7 else "waiting" if share < 0.3 else "computing and waiting"
        report.facts["that time is"] = f"{doing} ({share:.0%} of it on a processor)"

    def _memory(self, pool: Pool) -> None:
        told = self._ask(pool, "many short episodes", "growth", RESETS, self._seconds / 2)
        if len(told) < 4 or told[-1][0] <= told[0][0]:
            return
        grown = [(b[1] - a[1]) / max(1, b[0] - a[0]) for a, b in pairwise(told)]
        each = (told[-1][1] - told[0][1]) / (told[-1][0] - told[0][0])
        self.report.facts["memory"] = f"{shown(told[-1][1])}, {shown(max(0.0, each))} more with each short episode"
        if min(grown) > LEAK and min(grown) > 0.3 * max(grown):
            self.report.warning("memory", f"it grows by {shown(each)} with each episode, as long as was looked")
        else:
            self.report.passed.append("memory")

    def _state(self, pool: Pool) -> None:
        try:
            why = self._ask(pool, "taking and putting back its state", "state", 20)
        except TaskRaised as error:
            why = f"{error.error_type}: {error.error_message}"
        if "state is incomplete" in why and TWIN[0] in self._unlike:
            self._also["so its state cannot be put back either"] = None
        elif why:
            self.report.warning("state", why)
        else:
            self.report.passed.append("its state can be taken and put back")

    def _gymnasium(self, pool: Pool) -> None:
        try:
            said = self._ask(pool, "Gymnasium's own checker", "gymnasium")
        except TaskRaised as error:
            said = [("error", f"{error.error_type}: {error.error_message}")]
        kept = [(level, text) for level, text in said if not any(word in text for word in TASTE)]
        for level, text in kept:
            if self._unlike and any(word in text for word in SAME_SEED):
                self._also["Gymnasium's own checker says so, too"] = None
                continue
            shared = "share an object" in text
            self.report.add(WARNING if shared or level == "warning" or self._loose else FAULT, "gymnasium", text)
        if not kept:
            self.report.passed.append("Gymnasium's own checker")

    def _raise_drill(self, pool: Pool, first: Walk) -> None:
        """An exception in a step, then a reset: the environment must go on."""
        with contextlib.suppress(TaskRaised):
            self._ask(pool, "an exception in a step", "raises", self._seed)
        again = self._walk(pool, "after an exception", "walk", self._seed, 50, self._seconds / 5, 5)
        if not self._unlike:
            self._compare(first, again, CUT)

    def _close(self, pool: Pool) -> None:
        left: Left = self._ask(pool, "closing it", "shut")
        report = self.report
        if left.raised:
            report.fault("close", left.raised)
        if left.seconds > SLOW_CLOSE:
            report.warning("close", f"it takes {left.seconds:.1f} s")
        if left.threads:
            report.warning("threads", f"left running by close: {', '.join(left.threads)}")
        if left.children:
            report.warning("children", f"{len(left.children)} processes still there after close")
        if not any(report.found(word) for word in ("close", "threads", "children")):
            report.passed.append("close")

    def _kill_drill(self, pool: Pool) -> None:
        """Its process is killed: the pool must name that, and nothing may be left."""
        children: list[int] = self._ask(pool, "asking for its children", "living")
        (worker,) = pool.workers
        heard: list[Event] = []
        pool.calls.submit(worker, Op.STREAM, {0: ("walk", (self._seed, 10**9, 3600.0, 6))}, (0,), "walk")
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGKILL)
        start = time.monotonic()
        while not heard:
            pool.calls.poll(None, heard.append)
        took = time.monotonic() - start
        pool.close()
        end = time.monotonic() + GONE
        while (left := [pid for pid in children if runs(pid)]) and time.monotonic() < end:
            time.sleep(0.01)
        if left:
            self.report.warning("children", f"{len(left)} processes outlive a worker that is killed")
        self.report.facts["killed"] = f"its worker's death is known after {took * 1e3:,.0f} ms"
        self.report.passed.append("drills (an exception, a kill)")


def _first_line(error: TreadleError) -> str:
    return str(error).partition("\n")[0].removesuffix(". Traceback in .remote_traceback")


def _innermost(stack: str, first: bool = True) -> str:
    """The innermost line of the user's own code in a stack, else of any. `first`: it comes first (faulthandler)."""
    if place := user_frame(stack, innermost_first=first):
        return place
    lines = [line.strip() for line in stack.splitlines() if line.strip().startswith("File ")]
    return (lines[0] if first else lines[-1]) if lines else "an unknown place"
