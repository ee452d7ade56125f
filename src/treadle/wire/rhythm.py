"""The rhythm of a wait: how long to try before sleeping, learnt from how long has been waited so far. Pure.

Caller and worker wait for one another by turns, and a wait mostly lasts about as long as the ones before: the worker's
is what the caller does between two steps (its policy), the caller's is what its workers take longer than itself. Who
tries for somewhat longer than that is awake when it is over, and saves waking up (45 to 90 us here). Who would have to
try for longer than about a millisecond sleeps at once: waking up is a small part of that.

Trying pays only while there is a core for it. Two signs say that there is none. A turn in which the one that tries
does not run: somebody else has its core. And a wait that takes milliseconds longer than usual: the other side has none.
After a sign there is no trying for a while, after another one soon afterwards for four times as long.
"""

from __future__ import annotations

LONGEST = 1_000_000  # ns: waits that usually take longer are slept through
MARGIN = 50_000  # ns to try beyond one and a half times the usual
FIRST = 100_000  # ns: the usual wait before anything is known
OVERDUE = 2_000_000  # ns beyond the usual: a scheduler's turn is 3 to 4 ms, a reset or a collection of garbage less
HELD_UP = 1_000_000  # ns at once that others have had the core: the other side's share is shorter, or long anyway
SHORT_REST, LONG_REST = 2_000_000, 512_000_000  # ns without trying, after a first sign and after many
SOON = 40_000_000  # ns besides four times the rest, in which strangers have had their turn again


class Rhythm:
    """Args:
    longest: ns; waits that usually take longer are slept through. 0: all are.

    Attributes:
        budget: ns to try in the next wait; 0: sleep at once.
    """

    __slots__ = ("_longest", "_rest", "_until", "_usual", "budget")

    def __init__(self, longest: int = LONGEST) -> None:
        self._longest = longest
        self._usual = min(FIRST, longest)
        self.budget = 2 * self._usual
        self._rest = SHORT_REST
        self._until = 0  # when trying begins again

    def note(self, now: int, waited: int, tried: int, held_up: int) -> None:
        """A wait that has ended.

        Args:
            now: ns on any clock, not before the last note's.
            waited: ns that it took.
            tried: ns of it, from its beginning, that were spent trying.
            held_up: the longest time of those in which somebody else had the core, in ns.
        """
        longest, usual = self._longest, self._usual
        if not longest:
            return
        self._usual = usual = usual + ((min(waited, 2 * longest) - usual) >> 3)
        if tried and (held_up > HELD_UP or (tried < waited and waited > usual + OVERDUE)):
            soon = now - self._until < 4 * self._rest + SOON
            self._rest = min(4 * self._rest, LONG_REST) if soon else SHORT_REST
            self._until = now + self._rest
        resting = now < self._until or usual > longest
        self.budget = 0 if resting else usual + (usual >> 1) + MARGIN
