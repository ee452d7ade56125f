"""Which episodes a run consists of: pure decisions, no processes.

Episodes have indices; episode i is made from (root seed, i) alone. `--episodes N` wants 0..N-1; `--steps N` wants the
shortest prefix 0..k whose lengths add up to at least N, so that short episodes are not over-represented: an episode
counts because of its index, never because it was ready first.
"""

from __future__ import annotations

import math
from collections import deque

from treadle.progress import Standing

# how far a run may be ahead of its first unfinished episode: as many tickets have a place of their own in pool.tickets
WINDOW = 8192


class Schedule:
    """Hands out indices, and knows when the run is complete.

    Args:
        episodes: how many; None when `steps` decides, or for ever.
        steps: at least so many steps in all.
        have: index -> length of episodes that exist already (a resumed run).
    """

    def __init__(self, episodes: int | None = None, steps: int | None = None, have: dict[int, int] | None = None):
        self._episodes, self._steps = episodes, steps
        self.lengths: dict[int, int] = dict(have or {})
        self._next = 0
        self._again: deque[int] = deque()
        self.issued: set[int] = set()  # handed out and not finished
        self._prefix = 0  # episodes 0.._prefix-1 are all finished
        self.prefix_steps = 0
        self.end: int | None = episodes  # the run is 0..end-1, as soon as that is known
        self._advance()

    def take(self) -> int | None:
        """The next index to make; None: nothing more is needed, as far as is known now."""
        if self._again:
            index = self._again.popleft()
        else:
            while self._next in self.lengths:
                self._next += 1
            if self.end is not None and self._next >= self.end:
                return None
            if self._next - self._prefix >= WINDOW:
                return None  # until the one that lags is finished
            index = self._next
            self._next += 1
        self.issued.add(index)
        return index

    def to_hand_out(self, mean: float) -> float:
        """About how many indices are still to be taken, if episodes are `mean` steps long; may be negative."""
        if self.end is not None:
            return self.end - self._next + len(self._again)
        if self._steps is None:
            return math.inf
        return (self._steps - self.prefix_steps) / mean - (self._next - self._prefix)

    def finish(self, index: int, length: int) -> bool:
        """Note a finished episode. False: it was finished before (made twice after a death) and is to be ignored."""
        self.issued.discard(index)
        if index in self.lengths:
            return False
        self.lengths[index] = length
        self._advance()
        return True

    def lose(self, index: int) -> None:
        """An episode that was handed out will not come: it is made again."""
        if index in self.issued:
            self.issued.discard(index)
            self._again.append(index)

    def standing(self) -> Standing:
        """How far it is."""
        lengths = self.lengths
        return Standing(self._episodes, self._steps, episodes=len(lengths), steps=sum(lengths.values()))

    @property
    def complete(self) -> bool:
        return self.end is not None and self._prefix >= self.end

    @property
    def speculative(self) -> list[int]:
        """Indices that were finished but turned out not to belong to the run."""
        return [] if self.end is None else sorted(i for i in self.lengths if i >= self.end)

    def _advance(self) -> None:
        while self._prefix in self.lengths and (self.end is None or self._prefix < self.end):
            self.prefix_steps += self.lengths[self._prefix]
            self._prefix += 1
            if self._steps is not None and self.prefix_steps >= self._steps:
                self.end = self._prefix
