"""`AsyncVectorEnv`: the constructor of Gymnasium's, for scripts that change one import."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces as gs
from gymnasium.vector import AutoresetMode

from treadle.errors import UsageError
from treadle.vector.gymnasium import VectorEnv
from treadle.vector.spaces import ObservationMode

KNOWN = (gs.Box, gs.Discrete, gs.MultiDiscrete, gs.MultiBinary, gs.Text, gs.Graph, gs.Sequence, gs.OneOf)


class AsyncVectorEnv(VectorEnv):
    """`VectorEnv` with Gymnasium's arguments. No environment runs in the caller.

    Args:
        env_fns: callables that return an environment.
        shared_memory: fixed-shape numbers travel through shared memory either way; True refuses spaces of your own
            (ValueError), as Gymnasium does.
        copy: see `VectorEnv`.
        context: a start method, "forkserver", "spawn" or "fork"; None: the default.
        daemon: accepted. Workers may always have children, and never outlive the caller.
        worker: must be None: there is no pipe for a worker of your own to speak on.
        observation_mode, autoreset_mode: as in Gymnasium.
        max_concurrency: at most so many environments at work at once: the number of workers.
        workers: how many, where `max_concurrency` is None; "auto": one a core for environments that compute, one a
            slot for those that wait; see `VectorEnv`.
        **options: see `VectorEnv`.

    Raises:
        UsageError (a ValueError): for `worker`, `context`, a wrong `max_concurrency`; and as `VectorEnv`.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], gym.Env]],
        shared_memory: bool = True,
        copy: bool = True,
        context: str | None = None,
        daemon: bool = True,
        worker: Callable[..., None] | None = None,
        observation_mode: ObservationMode = "same",
        autoreset_mode: str | AutoresetMode | None = None,
        max_concurrency: int | None = None,
        *,
        workers: int | str = "auto",
        **options: Any,
    ) -> None:
        if worker is not None:
            raise UsageError(
                "A custom `worker` must accept 8 arguments of Gymnasium's own worker protocol, which is not spoken "
                "here: leave worker=None, and put what it does into a wrapper of the environment"
            )
        _check_concurrency(max_concurrency)
        self.env_fns, self.shared_memory, self.copy = env_fns, shared_memory, copy
        self.context, self.daemon, self.worker = context, daemon, worker
        self.observation_mode, self.max_concurrency = observation_mode, max_concurrency
        options.setdefault("inline", 0)
        super().__init__(
            env_fns,
            workers=workers if max_concurrency is None else int(max_concurrency),
            autoreset_mode=autoreset_mode,
            copy=copy,
            observation_mode=observation_mode,
            start_method=context,
            **options,
        )
        strange = [leaf.space for leaf in self._lockstep.observations.leaves if not isinstance(leaf.space, KNOWN)]
        if shared_memory and strange:
            self.close(terminate=True)
            raise UsageError(
                f"values of {strange[0]} cannot lie in shared memory: with shared_memory=False they go by message"
            )


def _check_concurrency(limit: Any) -> None:
    if limit is None:
        return
    if not isinstance(limit, int | np.integer):
        raise UsageError(f"`max_concurrency` must be an integer or None, got {type(limit)}.")
    if limit < 1:
        raise UsageError(f"`max_concurrency` must be a positive or None, got {limit}.")
