"""The common parts of a vector: its engine, its counts, and the order of its calls.

Calls come one at a time: each is begun and waited for, and none follows the end. Calls that overlap, from several
threads, are refused: rows of different steps would be mixed in one batch. A thread's claim is one attribute. The test
and the assignment of it have no call between them, so neither another thread nor a signal's handler comes in there. A
`finally` begins by releasing it, so Ctrl-C leaves no claim behind.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import wraps
from threading import get_ident
from time import monotonic
from typing import Any, TypeVar, cast

import gymnasium as gym
import numpy as np
from gymnasium import spaces as gs
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError
from gymnasium.vector import AutoresetMode
from gymnasium.vector.async_vector_env import AsyncState

from treadle.errors import BadAction, ClosedPool, TreadleError, UsageError, WorkerTimeout
from treadle.lockstep.lockstep import Lockstep
from treadle.lockstep.measured import CALLS, Measured
from treadle.pool.pool import Pool
from treadle.vector.env_slot import EnvOp
from treadle.vector.infos import BatchForm
from treadle.verdict import Verdict, verdict
from treadle.wire.line import BUSY_NS

IDLE = AsyncState.DEFAULT
A_STEP = 0  # no thread's number: nothing may begin within a step, from whatever thread
Method = TypeVar("Method", bound=Callable[..., Any])
T = TypeVar("T")


# -- errors: each is ours and Gymnasium's at once, so that `except` clauses of either kind work ------------------------


class ClosedVector(ClosedPool, ClosedEnvironmentError):
    """Used after close()."""


class AlreadyPending(UsageError, AlreadyPendingCallError):
    """A call was begun while another is pending (`name`: reset, step or call), or another thread's is under way."""

    def __init__(self, message: str = "", name: str = "", **fields: Any) -> None:
        UsageError.__init__(self, message, name=name, **fields)


class NothingPending(UsageError, NoAsyncCallError):
    """A wait without the call it belongs to. `name`: reset, step or call."""

    __init__ = AlreadyPending.__init__  # type: ignore[assignment]


class WaitTimeout(TreadleError, multiprocessing.TimeoutError, TimeoutError):
    """The caller's patience ran out; nothing is lost: the call is still pending, and the next wait returns its result.

    Attributes:
        limit: seconds waited.
    """

    limit: float = 0.0


class SpacesDiffer(UsageError, RuntimeError, TypeError):
    """Environments of one vector have spaces that cannot be batched. Gymnasium raises one of these, by the mode."""


class WrongType(UsageError, TypeError):
    """An argument of a wrong type."""


# -- the parts of a vector ---------------------------------------------------------------------------------------------


class Mender:
    """Mends a batch of actions that the pool has refused, where Gymnasium's vectors accept it although it is not in the
    action space. Right actions cost nothing more.

    In NEXT_STEP mode the action of a slot whose episode has ended is ignored, so it may be anything.

    Args:
        core: of the vector.
    """

    def __init__(self, core: Core) -> None:
        self._space, self._n, self._lockstep = core.single_action_space, core.pool.n, core.lockstep
        self._skips = core.mode is AutoresetMode.NEXT_STEP  # then a slot ignores its action in the step after an end

    def given(self, take: Callable[[Any], T], actions: Any) -> T:
        """Return `take` of the actions, or of mended ones where it refuses them. Raises BadAction, and as `take`."""
        try:
            return take(actions)
        except BadAction:
            mended = self.mend(actions)
            if mended is None:
                raise
            return take(mended)

    def mend(self, actions: Any) -> Any | None:
        """Actions to try instead; None when there is nothing to mend."""
        if not self._skips or not isinstance(self._space, gs.Discrete | gs.MultiDiscrete | gs.MultiBinary | gs.Box):
            return None
        if not isinstance(actions, list | tuple | np.ndarray) or not np.iterable(actions) or len(actions) != self._n:
            return None
        ignored = self._lockstep.call(EnvOp.OVER)
        if not any(ignored):
            return None
        return [self._any() if skip else action for action, skip in zip(actions, ignored, strict=True)]

    def _any(self) -> np.ndarray:
        space = self._space
        start = space.start if isinstance(space, gs.Discrete | gs.MultiDiscrete) else 0
        return np.full(space.shape or (), start, space.dtype)


@dataclass(eq=False)
class Core:
    """Attributes:
    pool, lockstep: the workers, and how they are stepped.
    turns: which call may follow which.
    form: how batches are handed out.
    counts: of what was asked for.
    measured: how its time goes by.
    mode: when a slot moves on after an episode.
    single_action_space: of one slot.
    partly: has it been used for partial batches? Their rows are in no batch of all slots.
    """

    pool: Pool
    lockstep: Lockstep
    turns: Turns
    form: BatchForm
    counts: Counts
    measured: Measured
    mode: AutoresetMode
    single_action_space: gym.Space
    partly: bool = False

    def check_all_slots(self) -> None:
        """Raise UsageError without a last batch of all slots, from which rollouts go on."""
        if self.partly:
            raise UsageError("rollouts go on from the last batch of all slots: use another vector for partial batches")


@dataclass(frozen=True, repr=False)
class VectorStats:
    """Attributes:
    steps: int64[n], transitions of each slot; rows that are resets are not counted.
    episodes: int64[n], episodes begun in each slot.
    restarts: int64[n], number of restarts of each slot's worker.
    busy: worker's index -> share of `elapsed` that the worker was at work, 0 to 1. The caller is not among them: it is
        busy with its own slots whenever it steps.
    elapsed: seconds since the vector was made.
    verdict: the bottleneck of the vector, and what to change; see `docs/performance.md`.
    chosen: the choice of `workers="auto"`, and its reason; "": the user chose, or it measured nothing.
    """

    steps: np.ndarray
    episodes: np.ndarray
    restarts: np.ndarray
    busy: dict[int, float]
    elapsed: float
    verdict: Verdict
    chosen: str = ""

    def __repr__(self) -> str:
        busy = ", ".join(f"{share:.0%}" for share in self.busy.values()) or "none"
        counts = f"{self.steps.sum():,} steps, {self.episodes.sum():,} episodes, {self.restarts.sum():,} restarts"
        lines = [f"<VectorStats {counts} in {self.elapsed:.1f} s; workers busy: {busy}", str(self.verdict), self.chosen]
        return "\n  ".join(line for line in lines if line) + ">"


class Counts:
    """Counts of a vector's calls.

    Args:
        n: slots.
        measured: counts steps of all slots.
        fixed: True if the user chose the number of workers.
        chosen: see `VectorStats`.

    Attributes:
        singles: of each slot in partial batches.
        resets: int64[n].
    """

    def __init__(self, n: int, measured: Measured, fixed: bool = True, chosen: str = "") -> None:
        self._since, self._measured, self._fixed, self._chosen = monotonic(), measured, fixed, chosen
        self.resets = np.zeros(n, np.int64)
        self.singles = [0] * n

    @property
    def calls(self) -> int:
        """Steps of all slots."""
        return self._measured.marks[CALLS]

    @property
    def begun(self) -> bool:
        """Return True if a call was made."""
        return bool(self.calls or self.resets.any())

    def note_resets(self, slots: list[int] | None) -> None:
        """Resets of these slots (None: all) are asked for. Raises UsageError for some, before any of all."""
        if slots is not None and not self.begun:
            raise UsageError("the first reset() must be of all slots: the others have no observation to keep")
        self.resets[slice(None) if slots is None else slots] += 1

    def stats(self, pool: Pool, lockstep: Lockstep, next_step: bool) -> VectorStats:
        """Return the statistics. `next_step`: True if a slot's step after an episode's end is a reset."""
        elapsed, episodes = monotonic() - self._since, lockstep.episodes
        steps = self.calls + np.array(self.singles) - lockstep.missed
        if next_step:
            steps -= np.maximum(0, episodes - self.resets)
        lines = {worker.index: worker.line for worker in pool.workers if worker.line is not None}
        busy = {index: min(1.0, line.words[BUSY_NS] * 1e-9 / elapsed) for index, line in lines.items()}
        found = verdict(self._measured.judged(int(steps.sum()), self._fixed))
        return VectorStats(steps, episodes, np.array(pool.restarts, np.int64), busy, elapsed, found, self._chosen)


class Claim:
    """Attributes:
    owner: the thread whose call is under way, or A_STEP; None: there is none.
    """

    def __init__(self) -> None:
        self.owner: int | None = None

    def check(self) -> None:
        """Raises AlreadyPending unless the call under way is of this thread (a rollout that asks its policy)."""
        if self.owner != get_ident():
            raise AlreadyPending(
                "another call of this vector is under way: calls from several threads must not overlap. Nothing was "
                "sent; let one thread make them all, or let them take turns (threading.Lock)"
            )


def one_at_a_time(method: Method) -> Method:
    """A method of an object with a `Claim` as `_turns` that is refused while one of another thread is under way."""

    @wraps(method)
    def alone(self: Any, *args: Any, **kwargs: Any) -> Any:
        claim: Claim = self._turns
        me = get_ident()
        if claim.owner is not None:
            claim.check()
            return method(self, *args, **kwargs)
        claim.owner = me
        try:
            return method(self, *args, **kwargs)
        finally:
            claim.owner = None

    return cast(Method, alone)


class Turns(Claim):
    """The pending call of a vector.

    Attributes:
        state: the kind of the pending call; IDLE without one.
        overdue: True if a wait for it ran out of time.
    """

    def __init__(self, pool: Pool, lockstep: Lockstep, name: str) -> None:
        super().__init__()
        self._pool, self._lockstep, self._name = pool, lockstep, name
        self.state: Enum = IDLE
        self.overdue = False

    def check_open(self) -> None:
        """Raises ClosedVector after the end."""
        if self._pool.closed:
            raise self.closed()

    def check_free(self, name: str) -> None:
        """Raises ClosedVector or AlreadyPending unless a call may begin; `name` is its name in the message."""
        self.check_open()
        if self.state is not IDLE:
            pending = self.state.value
            if pending == "recv":
                text = f"Calling `{name}` while slots are in flight or ready. Nothing was sent; `recv` them all first"
                raise AlreadyPending(text, pending)
            raise AlreadyPending(
                f"Calling `{name}` while waiting for a pending call to `{pending}` to complete. Nothing was sent; "
                f"call `{pending}_wait` first",
                pending,
            )

    def closed(self) -> ClosedVector:
        """The error of a use after the end."""
        return ClosedVector(f"Trying to operate on `{self._name}`, after a call to `close()`.")

    def wait(self, state: AsyncState, timeout: float | None) -> Any:
        """Return the result of the pending call. Raises ClosedVector, NothingPending, WaitTimeout, and as the call."""
        self.check_open()
        name = state.value
        if self.state is not state:
            raise NothingPending(f"Calling `{name}_wait` without any prior call to `{name}_async`.", name)
        try:
            result = self._lockstep.wait(timeout)
        except WorkerTimeout:  # an environment's deadline, not the caller's: the call is over
            self.done()
            raise
        except TimeoutError:
            self.overdue = True
            raise WaitTimeout(
                f"The call to `{name}_wait` has timed out after {timeout} second(s). Nothing is lost: it is still "
                f"pending, and the next `{name}_wait` returns its result",
                limit=timeout,
            ) from None
        except Exception:
            self.done()
            raise
        self.done()
        return result

    def done(self) -> None:
        """Nothing is pending any more."""
        self.state, self.overdue = IDLE, False
