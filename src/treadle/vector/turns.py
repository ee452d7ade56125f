"""Which call of a vector may follow which: one at a time, begun and waited for, and none after the end."""

from __future__ import annotations

from typing import Any

from gymnasium.vector.async_vector_env import AsyncState

from treadle.errors import WorkerTimeout
from treadle.pool.lockstep import Lockstep
from treadle.pool.pool import Pool
from treadle.vector.refusals import AlreadyPending, ClosedVector, NothingPending, WaitTimeout

IDLE = AsyncState.DEFAULT


class Turns:
    """Attributes:
    state: what is pending; IDLE when nothing is.
    overdue: did a wait for it run out of time?
    """

    def __init__(self, pool: Pool, lockstep: Lockstep, name: str) -> None:
        self._pool, self._lockstep, self._name = pool, lockstep, name
        self.state, self.overdue = IDLE, False

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
