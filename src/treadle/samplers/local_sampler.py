"""A sampler whose workers live in the caller."""

from __future__ import annotations

import copy
import pickle
from typing import Any

from treadle import pickling
from treadle.samplers.pool_sampler import PoolSampler


class LocalSampler(PoolSampler):
    """Plays in the caller's own thread: one rollout of each worker in turn.

    The same as `MultiprocessingSampler`, in the same loop, without processes: for debugging, and for environments that
    cannot leave the caller. The caller's `random`, `numpy.random` and torch generators are as they were after every
    call; each worker has states of its own. The agents are the caller's own objects (one for all workers, if no list
    is given); environments are copied.

    Args:
        agents, envs, worker_factory and those after it: as for `MultiprocessingSampler`.
        on_failure: as there, but "raise" (the default here) lets exceptions through.
    """

    backend = "serial"
    default_on_failure = "raise"

    def _own_copy(self, env: Any) -> Any:
        try:
            return copy.deepcopy(env)
        except Exception:  # noqa: BLE001 - whatever a foreign __deepcopy__ raises; cloudpickle knows more
            return pickle.loads(pickling.dumps(env))
