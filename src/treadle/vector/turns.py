"""Which call of a vector may follow which: one at a time, begun and waited for, and none after the end.

Calls that overlap, from several threads, are refused: rows of different steps would be mixed in one batch. A thread's
claim is one attribute. Testing and setting it lie side by side, with no call between them, so neither another thread
nor a signal's handler comes in there; and a `finally` begins with giving it back, so Ctrl-C leaves no claim behind.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import wraps
from threading import get_ident
from typing import Any, TypeVar, cast

from gymnasium.vector.async_vector_env import AsyncState

from treadle.errors import WorkerTimeout
from treadle.lockstep.lockstep import Lockstep
from treadle.pool.pool import Pool
from treadle.vector.refusals import AlreadyPending, ClosedVector, NothingPending, WaitTimeout

IDLE = AsyncState.DEFAULT
A_STEP = 0  # no thread's number: nothing may begin within a step, from whatever thread
Method = TypeVar("Method", bound=Callable[..., Any])


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
    """Attributes:
    state: what is pending; IDLE when nothing is.
    overdue: did a wait for it run out of time?
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
        """What the pending call brings. Raises ClosedVector, NothingPending, WaitTimeout, and what the call raises."""
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
