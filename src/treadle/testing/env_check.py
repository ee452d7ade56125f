"""The check of an environment before a run: `check_env`, and `treadle check` on the command line.

The environment is built and played in worker processes of a pool (see `env_probe.py`). So an environment that raises,
hangs or ends its process becomes a finding with its place, and the check goes on. After an exception the check
continues with another seed, and after the first lost worker with a new worker and the next part.

The workers of the fork server come first. An environment that ends its parent process then ends the fork server, and is
not started as a child of the caller.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec

from treadle.checks import suggests
from treadle.errors import TaskRaised, UsageError, WorkerError, WorkerTimeout
from treadle.pool import failure
from treadle.pool.events import Done, Lost
from treadle.pool.pool import Pool
from treadle.pool.processor import shown
from treadle.program.gym_env import EnvRecipe
from treadle.sample.failed import reason_of
from treadle.sample.named import env_name, env_of
from treadle.testing.env_probe import PARTS, Cause, EnvProbe, Left, Walk, children_of, parent_of, place_of, runs
from treadle.testing.verdict import FAULT, WARNING, Report, short
from treadle.trees import first_difference
from treadle.wire.carried import CannotTravel
from treadle.wire.messages import Op
from treadle.worker import forkserver

TRACE = 300  # steps to compare
RESETS = 100
LEAK = 64_000  # bytes an episode
MANY_STEPS = {"gymnasium": 200, "state": 200}  # parts that cannot report progress -> their most steps
MANY_STARTS = 5  # constructors and resets of these parts, without those after an episode's end
SLOW_CLOSE = 5.0  # seconds
GONE = 1.0  # seconds in which killed processes must end
MANY_LINES = 40  # of stdout and stderr
EXCERPT = 80  # characters of a line
LIVES = 2  # workers that may be lost
ENDLESS = 10_000  # steps
# words of findings by Gymnasium's checker that are a matter of taste, or of how it was called
TASTE = (
    "infinity",
    "symmetric and normalized",
    "different from the unwrapped",
    "render modes",
    "render_mode",
    "render_fps",
)
SAME_SEED = "Deterministic step", "non-deterministic", "although similar"  # of findings about a repeated episode
FRESH = "after other episodes", "reset must put back all that an episode changes (or: collect --fresh-env)"
TWIN = "in a second environment of the same process", "keep nothing that steps change in the class or the module"
ELSEWHERE = (
    "in another process",
    "draw from self.np_random alone; times, pids, hash() of texts and the order of sets differ between processes",
)
CUT = "after an exception in a step", "reset must put back all that a step changes, also one that was cut short"
GLOBAL = "draw from self.np_random, which reset(seed=...) seeds, and not from the global generators"
PARENT = "send signals to processes that it has started, by their pid; its parent may be the process that runs it"
ADVICE = {  # in the order of findings: faults that make others pointless come first
    "pickle": "give a function that makes it, with what it needs inside",
    "build": "mend the constructor, or what it imports: it must return in any process",
    "interface": "see gymnasium.Env.reset and gymnasium.Env.step",
    "raises": "mend that line; action_space.seed(S) and env.reset(seed=S), with the S above, come there again",
    "dies": "run it under gdb, or with faulthandler; on_failure='restart' goes on without it",
    "hangs": "find out what it waits for; step_timeout= ends such a worker",
    "space": "return what observation_space says, or say what is returned; wrappers.DtypeObservation can cast",
    "nan": "find the division or the physics that blows up; one NaN makes a whole batch of gradients NaN",
    "info": "keep what cannot be pickled (locks, handles, generators), and what holds itself, in the environment",
    "determinism": GLOBAL,
    "gymnasium": "what Gymnasium's own checker says: gymnasium.utils.env_checker",
    "close": "closing must work, quickly, and twice; workers that take more than 5 s are ended",
    "bounds": "widen the bounds in observation_space, or clip; networks that scale by the bounds get wrong numbers",
    "reused": "return a copy: who keeps observations finds the last one in all of them (Treadle copies by itself)",
    "randomness": GLOBAL,
    "process": "leave it as it was: all environments of a worker share it",
    "memory": "find what keeps it (tracemalloc); WorkerOptions(recycle_after='2GB') replaces workers",
    "files": "close them in reset and close; a process may have 1,024 open (ulimit -n)",
    "threads": "end and join them in close",
    "children": "end and wait for them in close, and leave them in the worker's process group, which Treadle ends",
    "endless": "a poor policy may play for ever: return truncated, or cut by max_episode_steps= (--max-episode-steps)",
    "prints": "use the logging module: with many workers the output is unreadable",
    "state": "planning needs it: see treadle.plan.check_state",
}
LEVELS = {"bounds": WARNING, "reused": WARNING, "process": WARNING}


class Stopped(Exception):
    """The rest of the check cannot be done."""


class Gone(Exception):
    """The worker is gone."""


@suggests
def check_env(
    env: str | EnvSpec | Callable[..., gym.Env],
    *,
    steps: int = 1000,
    seed: int = 0,
    seconds: float = 10.0,
    timeout: float = 30.0,
    env_kwargs: dict[str, Any] | None = None,
    wrappers: Sequence[Callable[[gym.Env], gym.Env]] = (),
    progress: Callable[[str], None] = lambda doing: None,
) -> Report:
    """Play an environment in worker processes, and report its faults.

    The checks are:

    - spaces and dtypes at reset and in `steps` random steps;
    - the same episode under the same seed: in another process, beside a second environment, after other episodes;
    - draws from global generators, and observations that later steps overwrite;
    - output; threads, child processes and open files that are left; memory that grows;
    - the current directory and signal handlers, which must stay;
    - whether an episode ends;
    - the time of steps and resets;
    - taking the state and putting it back;
    - Gymnasium's own checker;
    - drills: a step raises, and the worker's process is killed.

    Args:
        env: an id, "module:make_env", an EnvSpec, or a callable that returns an environment.
        steps: number of random steps; fewer if they take longer than `seconds`.
        seed: seed of environments and actions.
        seconds: time limit of the random steps; other parts take as long, or a share of it.
        timeout: seconds after which a constructor, a step or a reset counts as hanging and is killed. Gymnasium's
            checker, and the check of states, get so many seconds in addition to their expected time.
        env_kwargs, wrappers: as for `treadle.collect`.
        progress: called with a few words for each part before it begins.

    Returns:
        The report, to be printed. Its `ok` is True if no fault was found. Faults come first, the worst one at the top.

    Raises:
        UsageError: `env` does not name an environment, or its constructor takes other arguments. A fault of the
            environment is not raised: see `Report.raise_for_faults`.
    """
    recipe = EnvRecipe.of(env_of(env), env_kwargs, wrappers)
    report = Report(env_name(recipe.env), ADVICE)
    check = Check(report, recipe, steps, seed, seconds, timeout, progress)
    try:
        check.run()
    except Stopped:
        report.facts["stopped"] = "not all of it was checked: mend that first, then check again"
    finally:
        check.clear()
    check.conclude()
    return report


class Check:
    """The check of one environment: runs all parts, and adds their findings to `report`. See `check_env`."""

    def __init__(
        self, report: Report, recipe: EnvRecipe, steps: int, seed: int, seconds: float, timeout: float, told: Any
    ) -> None:
        self.report, self._recipe, self._steps, self._seed = report, recipe, steps, seed
        self._seconds, self._timeout, self._told = seconds, timeout, told
        self._unlike: dict[str, tuple[str, str, str, str]] = {}  # where -> level, part, first record, advice
        self._also: dict[str, None] = {}  # consequences of these differences, which are not findings
        self._raised: dict[Cause, tuple[str, int]] = {}  # cause -> text of the first error, number of errors
        self._children: set[int] = set()  # pids of the environment's child processes
        self._first, self._long = Walk(), Walk()
        self._lines, self._said = 0, ""  # number of lines that the workers wrote, and the last line
        self._lives, self._safe = LIVES, True

    def run(self) -> None:
        """Run all parts. Raises Stopped if the rest cannot be done."""
        first = self._begin, self._further, self._again, self._spaces, self._memory, self._state
        self._run("forkserver", *first, self._gymnasium, self._raise_drill, self._close)
        if not self._safe:
            raise Stopped
        self._run("spawn", self._elsewhere, self._kill_drill)

    def _run(self, start_method: str, *parts: Callable[[Pool], None]) -> None:
        """Run these parts, with a new worker after a lost one."""
        left = deque(parts)
        while left:
            try:
                with self._worker(start_method) as pool:
                    while left:
                        left.popleft()(pool)
            except Gone as gone:
                self._lives -= 1
                if not self._first.resets or not self._lives:
                    raise Stopped from gone
            except TaskRaised as error:  # the environment has removed its directory or used all descriptors, say
                self.report.fault("process", f"the check itself fails in it: {reason_of(error)}")
                raise Stopped from error

    @contextlib.contextmanager
    def _worker(self, start_method: str) -> Iterator[Pool]:
        """Yield a pool of one worker that has built the environment. Raises Stopped and Gone."""
        report = self.report
        try:
            pool = Pool(
                [partial(EnvProbe, self._recipe)],
                workers=1,
                rows=False,
                start_method=start_method,
                preload=(),  # the worker imports the environment's modules itself, under the time limit of a step
                worker_output="keep",
                step_timeout=self._timeout,
            )
        except CannotTravel as error:
            report.fault("pickle", f"it cannot be sent to a worker process: {error.reason}")
            raise Stopped from error
        except UsageError:
            raise
        except WorkerError as error:
            report.fault("build", reason_of((getattr(error, "failures", ()) or (error,))[0]))
            raise Stopped from error
        try:
            self._server = parent_of(pool.workers[0].pid or 0) if start_method == "forkserver" else None
            self._build(pool)
            yield pool
        finally:
            pool.close()
            said = pool.workers[0].report
            self._lines, self._said = self._lines + said.lines, "".join(said.stderr[-1:]) or self._said

    def _build(self, pool: Pool) -> None:
        try:
            self._built, refused, self._loose = self._ask(pool, "its constructor", "build")
        except TaskRaised as error:
            if isinstance(error, UsageError):  # a wrong id, or arguments
                raise UsageError(error.error_message) from error
            self.report.fault("build", reason_of(error))
            raise Stopped from error
        self.report.facts.setdefault("built in", f"{self._built:.2f} s")
        if refused:
            self.report.fault("interface", refused)
            raise Stopped

    def _ask(self, pool: Pool, doing: str, name: str, *args: Any) -> Any:
        """Run an operation of the probe. Raises TaskRaised; for a death or a hang, adds a finding and raises Gone."""
        self._told(doing)
        (worker,) = pool.workers
        found: Any = None
        pool.calls.step_timeout = self._timeout
        if name in MANY_STEPS:
            played, resets = self._long.seconds or [0.0], self._long.resets or [0.0]
            a_step, a_start = (sum(played) + sum(resets)) / len(played), self._built + max(resets)
            pool.calls.step_timeout += round(MANY_STEPS[name] * a_step + MANY_STARTS * a_start, 1)
        pool.calls.submit(worker, Op.STREAM, {0: (name, args)}, (0,), name)
        heard = pool.answers(name)
        if self._server is not None and self._safe and not _serves(self._server):
            self._safe = False
            self.report.add(FAULT, "dies", f"{doing}: it ends the process that has started it (os.getppid())", PARENT)
        for event in heard:
            if isinstance(event, Done) and event.reply.extras is not None:
                for slot, raised in event.reply.extras.raised.items():
                    raise failure.task_error(raised, worker.at(slot))
                found = event.reply.extras.infos[0]
        if not isinstance(event, Lost):
            return found
        error: Any = event.error
        about = "build" if name == "build" else "hangs" if isinstance(error, WorkerTimeout) else "dies"
        if not self.report.found(about):  # the next part may have met the same line
            where = f", at {place_of(error.stack)}" if error.stack else ""
            said = f"; the last it said: {short(error.stderr[-1])}" if getattr(error, "stderr", ()) else ""
            self.report.fault(about, f"{doing}: {failure.reason(error)}{where}{said}")
        raise Gone

    def _walk(self, pool: Pool, doing: str, name: str, *args: Any) -> Walk:
        """Run a walk and return it, with errors of resets and steps recorded. Treadle's own errors raise Stopped."""
        try:
            walk: Walk = self._ask(pool, doing, name, *args)
        except TaskRaised as error:
            if not error.error_type.endswith(("BadStep", "UsageError")):  # Treadle's own errors
                raise
            about = "process" if self.report.found("process") else "interface"  # a relative name in another directory
            self.report.fault(about, f"{doing}: {error.error_message}")
            raise Stopped from error
        for cause, (words, times) in walk.raised.items():
            first, before = self._raised.get(cause, (words, 0))
            self._raised[cause] = first, before + times
        for kind, text in walk.oddities.items():
            self.report.add(LEVELS.get(kind, FAULT), kind, text)
        return walk

    def _known(self, error: TaskRaised) -> bool:
        """Return True if resets or steps have raised at the same line, perhaps another type."""
        return place_of(error.remote_traceback) in [place for _, place in self._raised]

    # -- the parts ---------------------------------------------------------------------------------------------------

    def _begin(self, pool: Pool) -> None:
        self._trace = min(TRACE, self._steps), self._seconds / 5
        self._first = self._walk(pool, "its first steps", "walk", self._seed, *self._trace, 1)
        if not self._first.resets:
            raise Stopped

    def _further(self, pool: Pool) -> None:
        self._long = self._walk(pool, "further steps", "walk", self._seed + 1, self._steps, self._seconds, 2)
        if self._long.ended or self._raised:
            return
        more = self._walk(pool, "until an episode ends", "walk", self._seed + 2, ENDLESS, self._seconds, 2, True)
        if not more.ended and len(more.seconds) == ENDLESS:
            self.report.warning("endless", f"no episode ends within {ENDLESS:,} random steps")

    def _again(self, pool: Pool) -> None:
        """Compare the same seed's episode after other episodes, and beside another environment."""
        self._compare(self._walk(pool, "the same steps again", "walk", self._seed, *self._trace, 3), FRESH)
        self._compare(self._walk(pool, "beside a second one", "twin", self._seed, *self._trace), TWIN)

    def _elsewhere(self, pool: Pool) -> None:
        """Compare the same seed's episode in a spawned process."""
        self._compare(self._walk(pool, "in a spawned process", "walk", self._seed, *self._trace, 4), ELSEWHERE)
        if not self._unlike:
            if drawn := ", ".join(self._first.globals):
                self.report.warning("randomness", f"it draws from, or seeds, global generators: {drawn}")
            if not self._raised:
                self.report.passed.append(
                    "the same seed, the same episode (in another process, beside others, after others)"
                )

    def _compare(self, again: Walk, against: tuple[str, str]) -> None:
        first, (where, advice) = self._first, against
        length = min(len(first.records), len(again.records))  # records that both have
        a, b = (dict(zip(PARTS, zip(*each.records[:length]))) for each in (first, again))
        found = first_difference(a, b)
        if found is None or found[1] == PARTS[0]:  # an exception is a finding by itself
            return
        at, part = found
        advice = GLOBAL if first.globals and part != "info" else advice
        level = WARNING if part == "info" or self._loose else FAULT
        self._unlike[where] = level, part, f"first at record {at} of {len(first.records)}", advice

    def clear(self) -> None:
        """End child processes of the environment that left their worker's process group."""
        for pid in filter(runs, self._children):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def conclude(self) -> None:
        """Add the findings of all parts together, and sort them."""
        report = self.report
        for words, times in self._raised.values():
            report.fault("raises", words + (f" ({times} times)" if times > 1 else ""))
        said = f"{self._lines:,} lines, the last: {short(self._said, EXCERPT)!r}"
        if self._lines >= MANY_LINES:
            report.warning("prints", said)
        elif self._lines:
            report.facts["prints"] = said
        self._conclude_unlike()
        report.findings.sort(key=lambda each: (each.level != FAULT, list(ADVICE).index(each.about)))

    def _conclude_unlike(self) -> None:
        """Add one finding for all differing episodes under the same seed. The last place decides the advice."""
        if not self._unlike:
            return
        since: dict[str, list[str]] = {}  # text of a difference and its first record -> places
        for where, (_, part, when, _) in self._unlike.items():
            since.setdefault(f"another {part} {{}}, {when}", []).append(where)
        told = "; ".join([*(text.format(", ".join(places)) for text, places in since.items()), *self._also])
        noted = " (its registration says so: nondeterministic=True)" if self._loose else ""
        levels = [level for level, *_ in self._unlike.values()]
        *_, (*_, advice) = self._unlike.values()
        level = FAULT if FAULT in levels else WARNING
        self.report.add(level, "determinism", f"the same seed and actions give {told}{noted}", advice)

    def _spaces(self, pool: Pool) -> None:
        walk, report = self._long, self.report
        if not walk.seconds:
            return
        steps, resets = np.array(walk.seconds), np.array(walk.resets)
        if not any(report.found(kind) for kind in ("space", "bounds", "nan")):
            report.passed.append(f"spaces, exactly, in {len(walk.seconds) + len(self._first.seconds):,} steps")
        quantiles = np.quantile(steps, [0.5, 0.9, 0.99, 1.0]) * 1e6
        report.facts["a step takes"] = "{:,.0f} us (median), {:,.0f} (90 %), {:,.0f} (99 %), {:,.0f} (most)".format(
            *quantiles
        )
        median, longest = float(np.median(resets)), float(resets.max())
        report.facts["a reset takes"] = (
            f"{median * 1e3:,.2f} ms (median), {longest * 1e3:,.2f} ms (most of {len(resets)})"
        )
        share = min(1.0, walk.busy / max(1e-9, float(steps.sum())))  # `busy` also counts some time between steps
        doing = "computing" if share > 0.7 else "waiting" if share < 0.3 else "computing and waiting"
        report.facts["that time is"] = f"{doing} ({share:.0%} of it on a processor)"

    def _memory(self, pool: Pool) -> None:
        grown = self._walk(pool, "many short episodes", "growth", self._seed + 3, RESETS, self._seconds / 2)
        files, told, episodes = grown.files, grown.memory, len(grown.resets)
        if len(files) > episodes / 2:
            self.report.warning(
                "files", f"{len(files)} more are open after {episodes} episodes, one of them {files[0]}"
            )
        if len(told) < 4 or told[-1][0] <= told[0][0]:
            return
        grew = [(b[1] - a[1]) / max(1, b[0] - a[0]) for a, b in pairwise(told)]
        each = (told[-1][1] - told[0][1]) / (told[-1][0] - told[0][0])
        self.report.facts["memory"] = f"{shown(told[-1][1])}, {shown(max(0.0, each))} more with each short episode"
        if min(grew) > LEAK and min(grew) > 0.3 * max(grew):
            self.report.warning("memory", f"it grows by {shown(each)} with each episode, as long as was looked")
        else:
            self.report.passed.append("memory")

    def _state(self, pool: Pool) -> None:
        try:
            why = self._ask(pool, "taking and putting back its state", "state", 20)
        except TaskRaised as error:
            if self._known(error) or ", in close\n" in error.remote_traceback:  # `_close` reports the second
                return
            why = reason_of(error)
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
            if self._known(error):
                return
            said = [("error", reason_of(error))]
        kept = [(level, text) for level, text in said if not any(word in text for word in TASTE)]
        for level, text in kept:
            if self._unlike and any(word in text for word in SAME_SEED):
                self._also["Gymnasium's own checker says so, too"] = None
                continue
            shared = "share an object" in text
            if shared and self.report.found("reused"):
                continue
            self.report.add(WARNING if shared or level == "warning" or self._loose else FAULT, "gymnasium", text)
        if not kept:
            self.report.passed.append("Gymnasium's own checker")

    def _raise_drill(self, pool: Pool) -> None:
        """Raise in a step, then reset: the environment must go on."""
        with contextlib.suppress(TaskRaised):
            self._ask(pool, "an exception in a step", "raises", self._seed)
        again = self._walk(pool, "after an exception", "walk", self._seed, 50, self._seconds / 5, 5)
        if not self._unlike:
            self._compare(again, CUT)

    def _close(self, pool: Pool) -> None:
        left: Left = self._ask(pool, "closing it", "shut")
        report = self.report
        self._children |= set(left.children)
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
        """Kill the worker: the pool must notice the death, and all child processes must end."""
        (worker,) = pool.workers
        children = children_of(worker.pid or 0)
        pool.calls.submit(worker, Op.STREAM, {0: ("walk", (self._seed, 10**9, 3600.0, 6))}, (0,), "walk")
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGKILL)
        start = time.monotonic()
        pool.answers("walk")
        took = time.monotonic() - start
        pool.close()
        self._children |= set(children)
        end = time.monotonic() + GONE
        while (left := [pid for pid in children if runs(pid)]) and time.monotonic() < end:
            time.sleep(0.01)
        if left:
            self.report.warning("children", f"{len(left)} processes outlive a worker that is killed")
        self.report.facts["killed"] = f"its worker's death is known after {took * 1e3:,.0f} ms"
        self.report.passed.append("drills (an exception, a kill)")


def _serves(pid: int) -> bool:
    """Return True if this fork server answers: one that was just killed may still be listed."""
    try:
        return any(each.pid == pid and each.ask("modules") for each in forkserver.servers())
    except OSError:
        return False
