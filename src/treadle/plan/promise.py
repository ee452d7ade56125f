"""A promise: the answer to one request, whenever it comes."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from treadle.plan.exchange import Exchange


class Promise:
    """Bound to its own request: promises may be asked in any order, many times, or never.

    A callable without arguments, as plangym's are, with the waiting methods of `concurrent.futures.Future`.
    """

    def __init__(self, exchange: Exchange, then: Callable[[Any], Any] | None = None) -> None:
        self._exchange = exchange
        self._then = then
        self._done = False
        self._value: Any = None
        self._error: BaseException | None = None

    def __call__(self) -> Any:
        """Wait for the answer and return it, or raise what went wrong."""
        return self.result()

    def result(self, timeout: float | None = None) -> Any:
        """The same, waiting at most `timeout` seconds (None: for ever).

        Raises TimeoutError then, and the answer still comes; and WorkerError.
        """
        error = self.exception(timeout)
        if error is not None:
            raise error
        return self._value

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait as `result` does; what went wrong, None when nothing did."""
        deadline = None if timeout is None else monotonic() + timeout
        while not self._done:
            left = None if deadline is None else deadline - monotonic()
            if left is not None and left <= 0:
                raise TimeoutError(f"no answer within {timeout:g} s; it is still awaited")
            self._exchange.pump(left)
        return self._error

    def done(self) -> bool:
        """Is the answer here? Never waits."""
        if not self._done:
            self._exchange.pump(0.0)
        return self._done

    def settle(self, value: Any = None, error: BaseException | None = None) -> None:
        """Called by the exchange, once."""
        if error is None and self._then is not None:
            try:
                value = self._then(value)
            except Exception as raised:  # noqa: BLE001 - told to whoever asks for the answer
                value, error = None, raised
        self._value, self._error, self._done = value, error, True


__all__ = ["Promise"]
