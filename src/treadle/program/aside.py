"""Environments that are called elsewhere than in the thread that wants to know: those of coroutines on an event loop,
and in a worker that is a thread with a time limit all others in a thread of their own, which can be left behind.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

import gymnasium as gym

from treadle.errors import UsageError
from treadle.pool.aside import OwnThread, Patience, Settled

CALLS = ("reset", "step", "close")


def of_coroutines(env: Any) -> bool:
    """Has it `async def reset` or `async def step`?"""
    return any(inspect.iscoroutinefunction(getattr(env, name, None)) for name in CALLS)


class Awaited(gym.Wrapper):
    """Gymnasium's face of an environment whose `reset` and `step` (and `close`, as it likes) are coroutines. While one
    waits, others of the same process go on.

    Raises UsageError for what is no `gymnasium.Env`.
    """

    def __init__(self, env: Any) -> None:
        if not isinstance(env, gym.Env):
            raise UsageError(f"an environment of coroutines derives from gymnasium.Env; {type(env).__name__} does not")
        super().__init__(env)
        self._settled = Settled()
        self.reset = self._waiting(env.reset)  # type: ignore[method-assign]
        self.step = self._waiting(env.step)  # type: ignore[method-assign]

    def _waiting(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            return self._settled(method(*args, **kwargs))

        return call

    def close(self) -> None:
        try:
            patience = Patience.mine()
            end = self._settled if patience is None or not patience.over else self._settled.begin
            end(self.env.close())  # type: ignore[func-returns-value]
        finally:
            self._settled.close()


class Aside:
    """An environment that lives in a thread of its own: what is called of it is called there."""

    def __init__(self, env: Any, thread: OwnThread, patience: Patience) -> None:
        self._env, self._thread, self._patience = env, thread, patience

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = getattr(self._env, name)
        if not callable(found) or isinstance(found, type | gym.Env):
            return found

        @wraps(found)
        def call(*args: Any, **kwargs: Any) -> Any:
            return self._patience.wait(self._thread.submit(lambda: found(*args, **kwargs)))

        return call

    def close(self) -> None:
        ending = self._thread.submit(getattr(self._env, "close", lambda: None))
        self._thread.end()
        if not self._patience.over:
            ending.result()


def built(build: Callable[[], Any]) -> Any:
    """The environment that `build` returns, in a thread of its own where that may have to be left."""
    patience = Patience.mine()
    if patience is None or not patience.limited:
        return build()
    thread = OwnThread("treadle-environment")
    try:
        env = patience.wait(thread.submit(build))
        layer = env
        while isinstance(layer, gym.Wrapper) and not isinstance(layer, Awaited):
            layer = layer.env
        if not isinstance(layer, Awaited):  # which is given up by cancelling what it waits for
            return Aside(env, thread, patience)
    except BaseException:
        thread.end()
        raise
    thread.end()
    return env
