"""How many workers a run should have: the decision that `workers="auto"` takes again and again while it goes on. Pure.

A run begins with a worker a core, which is right where environments compute. An environment that waits (for a server, a
simulator elsewhere, a device) leaves its core idle, so the cores are enough for more workers: for as many as fill them,
and for `DEMAND` times as many, as they do not take turns evenly.

No workers are added where something else sets the pace: where the run fills the cores, where workers have nothing to do
(a policy in the caller takes all the time), or where the caller is busy with the episodes that it got. Not many are
added at a time, as only then it shows what they take; and only as many as there are where others fill the cores, as it
may be what environments have started. None are added any more once some have brought nothing.

Workers take time to start. With W workers and so many seconds left, k of them end the run after left * W / k seconds
and what starting the other k - W takes, so that k = W * sqrt(left / starting W) is best, and more only cost.
"""

from __future__ import annotations

import math
from typing import NamedTuple

WAITS = 0.2  # of a worker's time: what is to be gained by adding workers is no more than that
FULL = 0.8  # of the cores
GAIN = 1.2  # times as many steps, at least, after workers were added: else no more are
AWAY = 0.5  # of the caller's time, from which on the caller sets the pace
DEMAND = 2.0
AT_ONCE = 16  # workers that there may be after one decision, where cores are idle, or twice as many as there were
LEAST = 0.01  # of the cores: so much is used, whatever was measured


class Load(NamedTuple):
    """How a stretch of a run was spent.

    Attributes:
        workers: that played.
        waits: which part of the time a worker, on average, had something to do and neither ran nor stood in line for a
            core, 0 to 1.
        own: which part of the cores workers and caller used, 0 to 1.
        used: which part was in use, by whatever program, 0 to 1.
        away: which part of the time the caller spent elsewhere than on this run, 0 to 1.
    """

    workers: int
    waits: float
    own: float
    used: float = 0.0
    away: float = 0.0


def worth_having(load: Load, most: float, left: float = math.inf, starting: float = 0.0) -> int:
    """How many workers there should be; never fewer than there are.

    Args:
        most: that there may be.
        left: seconds that the run goes on with those that there are; inf: nobody knows, or for ever.
        starting: seconds that starting as many workers as there are takes.
    """
    have = load.workers
    if load.waits < WAITS or load.own > FULL or load.away > AWAY:
        return have
    fill, at_once = DEMAND * have / max(load.own, LEAST), 2 * have if load.used > FULL else max(2 * have, AT_ONCE)
    pays = have * math.sqrt(left / starting) if starting > 0 else math.inf
    return max(have, int(min(fill, pays, at_once, most)))
