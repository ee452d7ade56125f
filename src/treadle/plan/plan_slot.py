"""What runs in a slot of planning: one environment that carries its state, and chunks of work for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from treadle.plan.store import StoreMap
from treadle.plan.trays import Laid, Room, Tray, lift
from treadle.plan.work import Done, Work, do_rollouts, do_steps
from treadle.pool.arena import Arena
from treadle.pool.line import ITEM
from treadle.program.base import Description, Program
from treadle.program.registered import register_missing


class Ask:
    """Operations of the slot. The names are no identifiers, so no method of an environment is hidden.

    No enum: one of these is in every request, and a member takes several times as long as text to pickle.
    """

    GET = "treadle: get attribute"
    CALL = "treadle: call method"
    WORK = "treadle: work"


class Method:
    """In the place of an attribute that can be called: it stays where it is."""


class PlanSlot(Program):
    """Runs one environment with the interface of `PlanEnv`.

    Args:
        constructor: makes it.
        registrations: of the caller, from `own_registrations`.
    """

    def __init__(self, constructor: Callable[[], Any], registrations: bytes | None = None) -> None:
        register_missing(registrations)
        self.env = constructor()
        self.env.reset()
        self._arena: Arena | None = None
        self._words: Any = [0] * (ITEM + 1)  # where nobody can die alone, nobody reads it
        self._stores: dict[Any, StoreMap] = {}
        self._blocks: dict[int, Any] = {}

    def describe(self) -> Description:
        return Description()

    def share(self, arena: Arena, words: Any) -> None:
        """The pool's memory, as this process maps it, and this worker's words in it."""
        self._arena, self._words = arena, words

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if name == Ask.WORK:
            return self._work(args[0])
        attribute, *rest = args
        found = getattr(self.env, attribute)
        if name == Ask.GET:
            return Method() if callable(found) and not isinstance(found, type) else found
        return found(*rest, **kwargs)

    def _work(self, work: Work) -> Done:
        if work.store is not None:
            known = self._stores.get(work.store.where)
            if known is None:
                known = self._stores[work.store.where] = work.store.opened(self._arena)
            work.store = known
        room = None
        if work.tray is not None:
            memory = self._memory(work.tray)
            room = Room(memory, work.tray)
            if isinstance(work.states, Laid):
                work.states = lift(memory, work.states)
        words = self._words
        words[ITEM] = work.first + 1
        try:
            if work.rollout is None:
                return do_steps(self.env, work, room, words)
            return do_rollouts(self.env, work, words)
        finally:
            words[ITEM] = 0

    def _memory(self, tray: Tray) -> Any:
        """The block of a tray."""
        known = self._blocks.get(tray.segment)
        if known is None:
            assert self._arena is not None
            known = self._blocks[tray.segment] = tray.opened(self._arena)
        return known

    def close(self) -> None:
        close = getattr(self.env, "close", None)
        if callable(close):
            close()
