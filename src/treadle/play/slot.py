"""What programs that play whole episodes have in common: seeds by index, and what becomes of global generators."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from contextlib import nullcontext
from enum import Enum
from typing import Any

from treadle import seeding
from treadle.program.base import Program, StreamControl


class Globals(Enum):
    """What to do with the process's global random generators (random, numpy, torch) at an episode's start."""

    SEED = "seed"  # the worker's own process: seed them, for envs and policies that use them
    SWAP = "swap"  # the caller's own thread: the same, but the caller gets its own back
    LEAVE = "leave"  # threads share them with everybody: hands off


class EpisodeSlot(Program):
    """A subclass builds in `_build` what it plays with, and plays in `_play`, which yields what is to be told."""

    def __init__(self, globals: Globals) -> None:
        self._globals = globals
        self._own: seeding.OwnGlobals | None = None
        with seeding.keep_globals() if globals is Globals.SWAP else nullcontext():  # building may seed them, too
            self._build()
            if globals is Globals.SWAP:
                self._own = seeding.OwnGlobals(seeding.GlobalState())
        torch: Any = sys.modules.get("torch")
        if globals is Globals.SEED and torch is not None:  # there are as many workers as cores
            torch.set_num_threads(1)

    def _build(self) -> None:
        raise NotImplementedError

    def stream(self, order: Any, control: StreamControl) -> Generator[Any, None, Any]:
        """What `_play` yields and returns."""
        playing = self._play(order, control)
        try:
            return (yield from playing if self._own is None else self._own.run(playing))
        except BaseException:
            self._clear()
            raise

    def _play(self, order: Any, control: StreamControl) -> Iterator[Any]:
        raise NotImplementedError

    def _clear(self) -> None:
        """What is being played is given up."""
