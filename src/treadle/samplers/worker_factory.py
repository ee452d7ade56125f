"""The factory that makes a sampler's workers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any

from treadle.checks import check_seed, check_whole
from treadle.errors import UsageError
from treadle.samplers.adapt import as_update
from treadle.samplers.agents import as_agent, is_parameters, set_parameters
from treadle.samplers.worker import DefaultWorker, Worker
from treadle.wire import bell


def identity_function(value: Any) -> Any:
    """Return the value."""
    return value


def check_arguments(n_workers: Any, max_episode_length: Any, seed: Any, worker_class: Any, worker_args: Any) -> None:
    """Raise UsageError for arguments that a `WorkerFactory` cannot use."""
    if not (isinstance(n_workers, float) and n_workers.is_integer() and n_workers >= 1):
        check_whole(n_workers=n_workers)
    if not isinstance(max_episode_length, Real) or not float(max_episode_length) >= 1:
        raise UsageError(f"max_episode_length must be at least 1, got {max_episode_length!r}")
    if seed is not None and not (isinstance(seed, Real) and math.isfinite(seed)):
        raise UsageError(f"seed is a whole number or None, got {seed!r}")
    check_seed(seed)
    if not callable(worker_class):
        raise UsageError(f"worker_class makes workers when it is called, and a {worker_class!r} cannot be")
    if worker_args and not isinstance(worker_args, Mapping):
        raise UsageError(f"worker_args is a dict of the worker's further arguments, got {worker_args!r}")


class WorkerFactory:
    """Makes the workers of a sampler; called with a worker's number.

    Args:
        max_episode_length: steps after which an episode is cut; may be infinite.
        is_tf_worker: refused: put the session into a worker class of your own.
        seed: see `Worker`.
        n_workers: the number of workers; None: the number of cores that this process may use when the factory is made.
            With None, a sampler may add workers if their number does not change the result (`docs/sampling.md`).
        worker_class: called with seed, max_episode_length, worker_number and `worker_args`, all by keyword.
        worker_args: more arguments for the class.

    Attributes:
        given: True if `n_workers` was given.

    Raises:
        UsageError: an argument is invalid, or `is_tf_worker` is True.
    """

    def __init__(
        self,
        *,
        max_episode_length: int | float,
        is_tf_worker: bool = False,
        seed: int | None = None,
        n_workers: int | None = None,
        worker_class: Callable[..., Worker] = DefaultWorker,
        worker_args: dict[str, Any] | None = None,
    ) -> None:
        if is_tf_worker:
            raise UsageError("is_tf_worker is not supported: open the TensorFlow session in a worker_class of your own")
        check_arguments(n_workers, max_episode_length, seed, worker_class, worker_args)
        self.n_workers = bell.cores() if n_workers is None else int(n_workers)
        self.given = n_workers is not None
        self._seed = seed
        self._max_episode_length = max_episode_length
        self._worker_class = worker_class
        self._worker_args = dict(worker_args or {})

    def prepare_worker_messages(self, objs: Any, preprocess: Callable[[Any], Any] = identity_function) -> list[Any]:
        """Return one object for each worker: those of a list, or the same for all, each passed through `preprocess`.

        Raises ValueError for a list of another length.
        """
        if isinstance(objs, list):
            if len(objs) != self.n_workers:
                raise ValueError(
                    f"Length of list doesn't match number of workers: {len(objs)} against {self.n_workers}"
                )
            return [preprocess(each) for each in objs]
        return [preprocess(objs) for _ in range(self.n_workers)]

    def check_first(self, agent: Any, env: Any) -> None:
        """Raise TypeError for an agent or environment that a worker cannot begin with, before a worker is made.

        A worker class with its own `update_agent` or `update_env` may accept any object. So that argument is not
        checked.
        """
        if _ours(self._worker_class, "update_agent"):
            if is_parameters(agent):
                set_parameters(None, agent)
            as_agent(agent)
        if _ours(self._worker_class, "update_env"):
            for each in env if isinstance(env, list) else [env]:
                as_update(each)

    def __call__(self, worker_number: int) -> Worker:
        """Make the worker of that number. Raises ValueError if the number is too large."""
        if worker_number >= self.n_workers:
            raise ValueError("Worker number is too big")
        return self._worker_class(
            worker_number=worker_number,
            seed=self._seed,
            max_episode_length=self._max_episode_length,
            **self._worker_args,
        )


def _ours(worker_class: Any, name: str) -> bool:
    return getattr(getattr(worker_class, name, None), "__module__", "").startswith("treadle.")
