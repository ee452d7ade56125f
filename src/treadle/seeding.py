"""Seeds: one formula derives every seed from a root and a path.

``derive(root, *path)`` hashes the root and the path with NumPy's ``SeedSequence``, whose documentation guarantees the
same words on every platform and version. So an episode's seed depends on its index alone. It does not depend on the
worker, the order of episodes, or the number of tries. The first number of a path is the purpose of the seed:

| what | path |
|---|---|
| the reset of episode i | (0, i) |
| the policy's randomness in episode i | (1, i) |
| a restarted slot | (2, slot, incarnation) |
"""

from __future__ import annotations

import random
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")


def _index(value: Any, what: str) -> int:
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
        raise ValueError(f"{what} must be a non-negative integer, got {value!r}")
    if value < 0:
        raise ValueError(f"{what} must not be negative, got {value}")
    return int(value)


def derive(root: int, *path: int) -> int:
    """Return the seed of ``path`` below ``root``: an int in [0, 2**63).

    ``SeedSequence(root, spawn_key=path).generate_state(2, uint32)``, first word high, top bit cleared.

    Raises:
        ValueError: ``root`` or an entry of ``path`` is negative or not an integer, or an entry of ``path`` is 2**32 or
            more. NumPy's integers are allowed, bools are not.
    """
    root = _index(root, "a seed")
    key = tuple(_index(entry, "an entry of a seed's path") for entry in path)
    # SeedSequence cuts larger entries into 32-bit words, so (2**32,) would give the seed of (0, 1)
    if any(entry >= 2**32 for entry in key):
        raise ValueError(f"an entry of a seed's path must be below 2**32, got {key}")
    if root < 2**128:  # the same words as SeedSequence(root, spawn_key=key), in less time: two a played episode
        words = root & 0xFFFFFFFF, root >> 32 & 0xFFFFFFFF, root >> 64 & 0xFFFFFFFF, root >> 96
        sequence = np.random.SeedSequence(np.array((*words, *key), np.uint32))
    else:
        sequence = np.random.SeedSequence(root, spawn_key=key)
    high, low = sequence.generate_state(2, np.uint32).tolist()
    return (high << 32 | low) & (2**63 - 1)


def episode_env_seed(root: int, i: int) -> int:
    """Return the seed of the environment's reset of episode ``i``."""
    return derive(root, 0, i)


def episode_policy_seed(root: int, i: int) -> int:
    """Return the seed of the policy's randomness in episode ``i``."""
    return derive(root, 1, i)


def restart_seed(root: int, slot: int, incarnation: int) -> int:
    """Return the seed of a slot at its ``incarnation``-th restart (from 1)."""
    return derive(root, 2, slot, incarnation)


def seed_globals(seed: int) -> None:
    """Seed the global generators, which user code can use at any time.

    These are ``random``, NumPy's legacy global generator and, if it is imported already, torch. Torch's are the CPU's
    generator and, once CUDA is initialised, those of the GPUs.

    Raises:
        ValueError: ``seed`` is negative, not an integer, or 2**63 or more.
    """
    seed = _index(seed, "a seed")
    if seed >= 2**63:
        raise ValueError(f"a seed must be below 2**63, got {seed}")
    random.seed(seed)
    np.random.seed((seed ^ seed >> 32) & 0xFFFFFFFF)  # one 32-bit word: an array of two takes five times as long
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        # not torch.manual_seed: before CUDA is initialised, it queues a seed for later that cannot be cancelled
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(seed)


class GlobalState:
    """The states of the generators that `seed_globals` seeds, at the time of construction.

    Torch's states are included only if torch is imported, its GPUs' only if CUDA is initialised.
    """

    def __init__(self) -> None:
        self._python = random.getstate()
        self._legacy: Any = np.random.get_state()
        torch: Any = sys.modules.get("torch")
        self._cpu = torch.get_rng_state() if torch is not None else None
        self._gpus = torch.cuda.get_rng_state_all() if torch is not None and torch.cuda.is_initialized() else None

    def same(self, other: GlobalState) -> bool:
        """Return True if both states of the CPU's generators are equal: nothing was drawn between them."""
        mine, theirs = (
            (state._python, state._legacy[0], state._legacy[1].tobytes(), *state._legacy[2:]) for state in (self, other)
        )
        torch: Any = sys.modules.get("torch")
        tensors = self._cpu is not None and other._cpu is not None
        return mine == theirs and (not tensors or bool(torch.equal(self._cpu, other._cpu)))

    def restore(self) -> None:
        """Put the generators back into these states."""
        random.setstate(self._python)
        np.random.set_state(self._legacy)
        torch: Any = sys.modules.get("torch")
        if self._cpu is not None:
            torch.set_rng_state(self._cpu)
        if self._gpus is not None:
            torch.cuda.set_rng_state_all(self._gpus)


class OwnGlobals:
    """Separate states of the global generators for code that takes turns with the caller in one process.

    Args:
        state: the first state; None: the caller's state at the first turn.
    """

    def __init__(self, state: GlobalState | None = None) -> None:
        self.state = state

    def run(self, items: Iterator[T]) -> Generator[T, None, Any]:
        """Yield the items and return the iterator's value. Between items, the caller's generators are restored."""
        while True:
            with self.turn():
                try:
                    item = next(items)
                except StopIteration as end:
                    return end.value
            yield item

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Run the block with these states, then restore the caller's."""
        with keep_globals():
            if self.state is not None:
                self.state.restore()
            try:
                yield
            finally:
                self.state = GlobalState()


LOOKS = 4  # first steps of an episode in which draws from global generators are detected


class Turns:
    """The states of the global generators for one of several environments in a process.

    If the first steps of an episode draw from them, all its steps run with the episode's own states.

    Attributes:
        own: the episode's states; None: it does not draw from them, or no episode has begun.
    """

    own: OwnGlobals | None = None

    def __init__(self) -> None:
        self._draws = False

    def begin(self) -> None:
        """Begin an episode after its reset, with the present states of the process's generators."""
        self._first = GlobalState()
        self.own = OwnGlobals(self._first)

    def look(self, steps: int) -> None:
        """After `steps` steps of the episode, decide whether it draws from the global generators."""
        if self.own is not None and not self._draws and steps >= LOOKS:
            assert self.own.state is not None
            self._draws = not self.own.state.same(self._first)
            self.own = self.own if self._draws else None  # None: a turn takes longer than a small environment's step


@contextmanager
def keep_globals() -> Iterator[None]:
    """Restore the generators that `seed_globals` seeds when the block ends, also if it raises."""
    state = GlobalState()
    try:
        yield
    finally:
        state.restore()
