"""The rhythm of a wait: how long to try before sleeping, learnt from how long it has been waited so far. Pure.

Caller and worker wait for one another by turns, and a wait lasts about as long as the last ones: the worker's is what
the caller does between two steps (its policy), the caller's is what its workers' shares take longer than its own. Who
tries for somewhat longer than that is not asleep when it is over, and saves waking up (45 to 90 us here); who would have
to try for longer than about a millisecond sleeps at once, as waking up is then a small part of it.

Trying helps only while whoever is awaited has a core of its own. Two signs say that it has not. Time that is missing
between two looks: somebody else had this core, who will want it again. And a wait that lasts milliseconds longer than
usual: the other side had none, perhaps because of this one's trying. After a sign nobody tries for a while, and for
twice as long after another one soon afterwards.
"""

from __future__ import annotations

import os

LONGEST = 1_000_000  # ns: waits that usually take longer are slept through
MARGIN = 50_000  # ns to try beyond one and a half times the usual
FIRST = 200_000  # ns to try before anything is known
HOLE = 20_000  # ns between two looks (about 2 us) from which on the core was somebody else's
LONG_HOLE = 500_000
OVERDUE = 2_000_000  # ns beyond the usual: a scheduler's turn is 3 to 4 ms, a garbage collection or a reset often less
SHORT_REST, LONG_REST = 2_000_000, 500_000_000  # ns without trying, after a first sign and after many

if "X_LONGEST" in os.environ:
    LONGEST = int(os.environ["X_LONGEST"])
if "X_OVERDUE" in os.environ:
    OVERDUE = int(os.environ["X_OVERDUE"])


class Rhythm:
    """Attributes:
    budget: ns to try in the next wait; 0: sleep at once.
    """

    __slots__ = ("_may_try", "_rest", "_until", "_usual", "budget")

    def __init__(self, may_try: bool) -> None:
        self._may_try = may_try
        self.budget = FIRST if may_try else 0
        self._usual = FIRST // 2
        self._rest = SHORT_REST
        self._until = 0  # when trying begins again

    def note(self, now: int, waited: int, tried: int, held: int) -> None:
        """A wait that has ended.

        Args:
            now: ns on any clock; later than in the note before.
            waited: ns that it took.
            tried: ns of it, from its beginning, that were spent trying.
            held: ns of those that are missing between two looks.
        """
        if not self._may_try:
            return
        usual = self._usual
        self._usual = usual + ((min(waited, 2 * LONGEST) - usual) >> 3)
        if tried and (held > LONG_HOLE or (usual <= LONGEST and waited > usual + OVERDUE)):
            soon = now - self._until < 16 * self._rest
            self._rest = min(LONG_REST, self._rest * 2) if soon else max(SHORT_REST, self._rest // 2)
            self._until = now + self._rest
        if now < self._until or self._usual > LONGEST:
            self.budget = 0
        else:
            self.budget = self._usual + (self._usual >> 1) + MARGIN
