"""The other constructors of vectors: `make_vec` takes an id; `register_all` makes `gymnasium.make_vec` use it; and
`AsyncVectorEnv` has Gymnasium's arguments, for scripts that change one import.

Gymnasium calls a vector entry point without the id that it belongs to, and wants one that JSON can hold: text such as
"module:name". So this module has a name for each id: `treadle.vector.make_vec:CartPole-v1`. An id's earlier
entry point is kept with the text in the spec itself, so it goes wherever the spec goes, to workers as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces as gs
from gymnasium.vector import AutoresetMode

from treadle.checks import check_not_ours
from treadle.errors import UsageError
from treadle.program.gym_env import recipe_parts
from treadle.program.ids import spec_of
from treadle.vector.env_slot import EnvLike
from treadle.vector.gymnasium import VectorEnv
from treadle.vector.spaces import ObservationMode
from treadle.worker.options import WorkerOptions, started_by

OPTIONS = frozenset(VectorEnv.__init__.__kwdefaults__ or ())  # of a vector, by name
KNOWN = (gs.Box, gs.Discrete, gs.MultiDiscrete, gs.MultiBinary, gs.Text, gs.Graph, gs.Sequence, gs.OneOf)


def make_vec(env: EnvLike, num_envs: int = 1, **kwargs: Any) -> VectorEnv:
    """Make a vector of `num_envs` environments.

    Args:
        env: a registered id ("CartPole-v1"; "ALE/Pong-v5", whose package is imported automatically; "module:Id"), an
            EnvSpec, or a callable that returns an environment.
        num_envs: number of environments.
        **kwargs: the options of `VectorEnv` by name (workers="auto", inline="auto", autoreset_mode=None,
            infos="gymnasium", wrappers=(), step_timeout=None, worker_options=None, ...). Other names go to the
            environment's constructor. If the constructor has an argument with an option's name, or with a similar
            name, pass it in env_kwargs={...}. A similar name is accepted if a callable `env` has it as an argument.

    Raises:
        UsageError: a name is similar to an option's. Or it is the name of a field of `worker_options`, or of an option
            of an earlier version. None of these is refused if a callable `env` has an argument of that name. Nothing
            was started.
        TreadleError: the errors of `VectorEnv`.
    """
    return vector_of("make_vec", env, num_envs, **kwargs)


def vector_of(face: str, env: EnvLike, num_envs: int, /, **kwargs: Any) -> VectorEnv:
    """`make_vec` for `face`, the function or class that the user has called: it is what errors name."""
    for name in kwargs.keys() & {"vectorization_mode", "vector_kwargs"}:
        raise UsageError(
            f"{name}= is of gymnasium.make_vec. Here workers=, inline= and worker_options= say who steps environments, "
            "and options are given by name"
        )
    own = {name: value for name, value in kwargs.items() if name not in OPTIONS}
    check_not_ours(face, env, own, OPTIONS | {"num_envs"}, " (an argument of the constructor's: env_kwargs={...})")
    options = {name: value for name, value in kwargs.items() if name in OPTIONS}
    options["env_kwargs"] = {**own, **recipe_parts(options.get("env_kwargs"), ())[0]}
    return VectorEnv(env, num_envs, **options)


def vector_entry_point(env: EnvLike) -> Callable[..., VectorEnv]:
    """Return an entry point for `gymnasium.register(..., vector_entry_point=...)` and `EnvSpec.vector_entry_point`.

    `gymnasium.make_vec` calls an entry point without the id, so it must be made for one environment:

        gymnasium.register("treadle/CartPole-v1", vector_entry_point=treadle.vector_entry_point("CartPole-v1"))
        gymnasium.make_vec("treadle/CartPole-v1", num_envs=4, workers=2)

    Args:
        env: as for `make_vec`.

    Returns:
        A callable `(num_envs=1, **kwargs)`, where kwargs are as for `make_vec`.
    """
    return partial(make_vec, env)


class EntryPoint(str):
    """Text of ours as the vector entry point of an id.

    Attributes:
        theirs: what was there before.
    """

    theirs: Any

    def __new__(cls, env_id: str, theirs: Any) -> EntryPoint:
        text = super().__new__(cls, f"{__name__}:{env_id}")
        text.theirs = theirs
        return text

    def __getnewargs__(self) -> tuple[str, Any]:  # type: ignore[override]  # those of our own `__new__`
        return self.rpartition(":")[2], self.theirs


def register_all(ids: Iterable[str] | None = None) -> list[str]:
    """Set the `vector_entry_point` of the given ids, so that `gymnasium.make_vec` makes Treadle's vectors of them.

    It holds until `unregister_all`, or until the id is registered anew. A second call changes nothing. An id that has a
    vectorised form of its own gets Treadle's in its place.

    Args:
        ids: environments ("ALE/Pong-v5", whose package is imported automatically); None: all that are registered.

    Returns:
        The ids with Treadle's entry point.

    Raises:
        UsageError: an id is unknown; nothing was changed.
    """
    if ids is None:
        specs = [spec for spec in gym.registry.values() if spec.entry_point is not None]
    else:
        specs = [spec_of(env_id) for env_id in ([ids] if isinstance(ids, str) else ids)]
    for spec in specs:
        if not isinstance(spec.vector_entry_point, EntryPoint):
            spec.vector_entry_point = EntryPoint(spec.id, spec.vector_entry_point)
    return [spec.id for spec in gym.registry.values() if isinstance(spec.vector_entry_point, EntryPoint)]


def unregister_all() -> None:
    """Undo `register_all`: every id makes the vectors that it made before."""
    for spec in gym.registry.values():
        if isinstance(spec.vector_entry_point, EntryPoint):
            spec.vector_entry_point = spec.vector_entry_point.theirs


def __getattr__(env_id: str) -> Callable[..., Any]:
    if env_id not in gym.registry:
        raise AttributeError(f"module {__name__!r} has no attribute {env_id!r}")
    return vector_entry_point(env_id)


class AsyncVectorEnv(VectorEnv):
    """`VectorEnv` with Gymnasium's arguments. No environment runs in the caller.

    Args:
        env_fns: callables that return an environment.
        shared_memory: fixed-shape numbers always travel through shared memory; True refuses spaces of your own
            (ValueError), as Gymnasium does.
        copy: accepted; the caller may always keep a batch.
        context: a start method, "forkserver", "spawn" or "fork"; None: the default.
        daemon: accepted. Workers may always have children, and never outlive the caller.
        worker: must be None: Treadle has no pipe for a worker function of your own.
        observation_mode, autoreset_mode: as in Gymnasium.
        max_concurrency: largest number of environments at work at once, which is the number of workers; None: `workers`
            decides.
        workers: number of workers if `max_concurrency` is None. "auto": one a core for environments that compute, one a
            slot for those that wait; see `VectorEnv`.
        worker_options, **options: see `VectorEnv`; the start method is the `context`.

    Raises:
        UsageError (a ValueError): `worker` is not None, or `context`, `max_concurrency` or `shared_memory` is wrong.
            Other errors are those of `VectorEnv`.
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
        worker_options: WorkerOptions | None = None,
        **options: Any,
    ) -> None:
        if worker is not None:
            raise UsageError(
                "A custom `worker` must accept 8 arguments of Gymnasium's own worker protocol, which Treadle lacks. "
                "Leave worker=None, and do its work in a wrapper of the environment"
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
            observation_mode=observation_mode,
            worker_options=started_by(worker_options, context, "context"),
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
