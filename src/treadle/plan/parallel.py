"""`VectorizedEnv`, a `PlanEnv` that steps batches on copies of an environment, and `ParallelEnv`, with processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, ClassVar, TypeVar

import gymnasium as gym
import numpy as np

from treadle import gone
from treadle.checks import check_not_ours
from treadle.errors import ClosedPool, UsageError
from treadle.nodes import backend as nodes_backend
from treadle.nodes.placing import ALL, Cluster, Placement
from treadle.plan.batch import BatchEnv, RolloutBatch
from treadle.plan.env import PlanEnv
from treadle.plan.external import ExternalProcess
from treadle.plan.futures import Workers
from treadle.plan.gym_plan_env import GymPlanEnv
from treadle.plan.items import as_items, even_chunks, items_of, whole
from treadle.verdict import Verdict
from treadle.wire import bell
from treadle.worker.backends import default_backend
from treadle.worker.options import WorkerOptions, chosen

T = TypeVar("T")

FLAGS = (
    "SINGLETON",
    "STATE_IS_ARRAY",
    "OBS_IS_ARRAY",
    "AVAILABLE_OBS_TYPES",
    "AVAILABLE_RENDER_MODES",
    "DEFAULT_OBS_TYPE",
)


OURS = frozenset(("n_workers", "blocking", "step_timeout", "on_failure", "cluster", "worker_options"))


def refuse_misspelt(face: str, env_class: Callable[..., Any], kwargs: Iterable[str]) -> None:
    """Raise UsageError, which names `face`, for an environment's argument that is almost the name of one of ours.

    Fields of our objects and names of earlier versions are refused, too, all before anything is started. Arguments that
    the environment's class names itself are not refused.
    """
    own = " (one of the environment's own goes into env_kwargs)" if env_class is GymPlanEnv else ""
    check_not_ours(face, env_class, kwargs, OURS, own)


class VectorizedEnv(PlanEnv):
    """A `PlanEnv` whose batches run in copies of the environment; a local environment does everything else.

    Subclasses decide where the copies are. `reset` and `set_state` put the copies into the local environment's state;
    `step` does not.

    Args:
        env_class: class of the environment: `GymPlanEnv`, the user's own `PlanEnv`, or one of plangym's.
        name, frameskip, autoreset, delay_setup: arguments of the environment, see `PlanEnv`.
        n_workers: the number of copies.
        **kwargs: for the environment.
    """

    # class attributes of plangym's environments; an object takes those of its `env_class`
    AVAILABLE_OBS_TYPES: ClassVar[Any] = GymPlanEnv.AVAILABLE_OBS_TYPES
    AVAILABLE_RENDER_MODES: ClassVar[Any] = GymPlanEnv.AVAILABLE_RENDER_MODES
    DEFAULT_OBS_TYPE: ClassVar[str] = GymPlanEnv.DEFAULT_OBS_TYPE

    def __init__(
        self,
        env_class: Callable[..., Any],
        name: str,
        frameskip: int = 1,
        autoreset: bool = True,
        delay_setup: bool = False,
        n_workers: int = 8,
        **kwargs: Any,
    ) -> None:
        refuse_misspelt(type(self).__name__, env_class, kwargs)
        self._env_class, self.n_workers, self._env_kwargs = env_class, whole(n_workers, "n_workers"), kwargs
        self._plan_env: Any = None
        self._closed = False  # True: only `setup` starts workers again, so that other calls cannot do so by mistake
        self._named = name
        self._take_flags(env_class)
        text = name if isinstance(name, str) else getattr(name, "id", getattr(name, "__qualname__", str(name)))
        super().__init__(text, frameskip, autoreset, delay_setup)

    # -- methods for subclasses --------------------------------------------------------------------------------------

    def make_transitions(
        self, actions: Any, states: Any = None, dt: Any = 1, return_state: bool | None = None, repeat: int = 1
    ) -> tuple[Any, ...]:
        """Step a batch; see `step_batch`."""
        raise NotImplementedError(f"{type(self).__name__} does not say how to step a batch")

    def sync_states(self, state: Any = None) -> None:
        """Put the copies into a state; None: the local environment's state."""
        raise NotImplementedError(f"{type(self).__name__} does not say how to reach its copies")

    # -- batches -----------------------------------------------------------------------------------------------------

    def step_batch(  # type: ignore[override]  # the default of return_state is another one, as in plangym
        self, actions: Any, states: Any = None, dt: Any = 1, return_state: bool | None = None, repeat: int = 1
    ) -> tuple[Any, ...]:
        """Step many items.

        Args:
            actions: one for each of n items.
            states: one for each item. None: each copy gets a run of consecutive items, and within a run each item
                continues the one before.
            dt: one for all items, or one for each.
            return_state: return the states after the items; None: only if states are given.
            repeat: with states, the number of consecutive items that begin in the same state. Then there are n / repeat
                states.

        Returns:
            Lists of n, in the order of the items: (states,) observations, rewards, terminals, truncateds, infos.

        Raises:
            UsageError: the arguments are wrong; the error names the item. Nothing was sent.
            TaskRaised (of the original's type as well): an environment raised. The error names the item, also in
                `item`, and the slot. The workers go on, and all other answers have been read.
            WorkerDied, WorkerTimeout: a worker died or was late at the item `where.item`.
            BrokenPool: a worker died earlier with on_failure="raise".
            ClosedPool: the environment was closed.
        """
        if self._plan_env is None:
            items_of(actions, states, dt, return_state, repeat)  # check the arguments before anything is started
            self._ready()
        # plangym's method has no `repeat`: an override without it must work as it does there
        more = {} if repeat == 1 else {"repeat": repeat}
        return self.make_transitions(actions, states, dt, return_state=return_state, **more)

    @staticmethod
    def split_similar_chunks(vector: Any, n_chunks: int) -> list[Any]:
        """Return at most n_chunks consecutive parts of a sequence, all of one length but for the last."""
        return [vector[start:end] for start, end in even_chunks(len(vector), n_chunks)]

    @classmethod
    def batch_step_data(
        cls, actions: Any, states: Any, dt: Any, batch_size: int
    ) -> tuple[list[Any], list[Any], list[np.ndarray]]:
        """Cut a batch into at most `batch_size` chunks, for a user's own `make_transitions`.

        Returns (chunks of states, chunks of actions, chunks of dts). Chunks of missing states are lists of None; dts
        are int64[k]. Raises UsageError that names the wrong item.
        """
        items = items_of(actions, states, dt, None)
        given = [None] * len(items) if items.states is None else items.states
        columns = (given, items.actions, np.array(items.dts))
        first, second, third = (cls.split_similar_chunks(column, whole(batch_size, "batch_size")) for column in columns)
        return first, second, third

    @staticmethod
    def unpack_transitions(results: Iterable[tuple[Any, ...]], return_states: bool) -> tuple[list[Any], ...]:
        """Join the chunks' results, each a tuple of lists as `step_batch` returns it.

        `return_states`: True if the tuples begin with states. Raises UsageError for a result of another length.
        """
        parts: tuple[list[Any], ...] = tuple([] for _ in range(6 if return_states else 5))
        for index, result in enumerate(results):
            if len(result) != len(parts):
                raise UsageError(f"result {index} has {len(result)} parts, {len(parts)} are due: see return_states")
            for part, more in zip(parts, result, strict=True):
                part.extend(more)
        return parts

    # -- the local environment ---------------------------------------------------------------------------------------

    def create_env_callable(self, **kwargs: Any) -> Callable[[], Any]:
        """Return a function that makes a copy of the environment; `kwargs` replace some of its arguments."""
        arguments = {
            "name": self._named,
            "frameskip": self.frameskip,
            "autoreset": self.autoreset,
            "delay_setup": False,
            **self._env_kwargs,
            **kwargs,
        }
        return partial(self._env_class, **arguments)

    def setup(self) -> None:
        """Make the local environment."""
        self._plan_env = self.create_env_callable(delay_setup=bool(getattr(self._env_class, "SINGLETON", False)))()
        if getattr(self._env_class, "SINGLETON", False):
            self._plan_env.setup()
        self._take_flags(self._plan_env)  # some flags depend on the arguments

    def _take_flags(self, source: Any) -> None:
        for flag in FLAGS:
            setattr(self, flag, getattr(source, flag, getattr(VectorizedEnv, flag)))

    def _ready(self) -> None:
        self._refuse_closed()
        if self._plan_env is None:
            self.setup()

    def _refuse_closed(self) -> None:
        if self._closed:
            raise ClosedPool(f"{self.name} is closed: setup() begins anew")

    @property
    def plan_env(self) -> Any:
        """The local environment; None before `setup`."""
        return self._plan_env

    def _local(self) -> Any:
        return self._set_up(self._plan_env)

    def _set_up(self, made: T | None) -> T:
        self._refuse_closed()
        if made is None:
            raise UsageError(f"{self.name} is not set up yet (delay_setup=True): call setup() or reset() first")
        return made

    @property
    def gym_env(self) -> Any:
        """The local environment's Gymnasium environment; None if it has none."""
        return getattr(self._plan_env, "gym_env", None)

    @property
    def observation_space(self) -> gym.Space:
        return self._local().observation_space

    @property
    def action_space(self) -> gym.Space:
        return self._local().action_space

    @property
    def obs_shape(self) -> tuple[int, ...] | None:
        return self._local().obs_shape

    @property
    def action_shape(self) -> tuple[int, ...] | None:
        return self._local().action_shape

    @property
    def return_image(self) -> bool:
        return bool(getattr(self._plan_env, "return_image", False))

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the local environment."""
        local = self.__dict__.get("_plan_env")
        if (said := gone.instead(name)) and not hasattr(local, name):
            raise AttributeError(said)
        if local is None or name.startswith("__"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(local, name)

    def seed(self, seed: int | None = None) -> None:
        """Use this seed in the local environment's next reset, whose state the copies take over."""
        self._local().seed(seed)

    def reset(self, return_state: bool = True) -> Any:
        """Reset the local environment and put the copies into its state."""
        self._ready()
        state, obs, info = self._plan_env.reset(return_state=True)
        self.sync_states(state)
        return (state, obs, info) if return_state else (obs, info)

    def get_state(self) -> Any:
        """Return the local environment's state."""
        return self._local().get_state()

    def set_state(self, state: Any) -> None:
        """Put the local environment and the copies into a state."""
        self._local().set_state(state)
        self.sync_states(state)

    def step(self, action: Any, state: Any = None, dt: int = 1, return_state: bool | None = None) -> tuple[Any, ...]:
        """Step the local environment only."""
        self._ready()
        return self._plan_env.step(action=action, state=state, dt=dt, return_state=return_state)

    def step_with_dt(self, action: Any, dt: int = 1) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Call the local environment's `step_with_dt`."""
        return self._local().step_with_dt(action=action, dt=dt)

    def sample_action(self) -> Any:
        """Return a valid random action."""
        return self._local().sample_action()

    def get_image(self) -> np.ndarray | None:
        """Return a picture of the local environment."""
        return self._local().get_image()

    def render(self, mode: str = "human") -> Any:
        """Call the local environment's `render`. `mode` is ignored: the environment renders as it was made to."""
        return self._local().render()


class ParallelEnv(VectorizedEnv):
    """A `VectorizedEnv` whose copies are worker processes. Use it from one thread.

    Args:
        env_class, name, frameskip, autoreset, delay_setup, n_workers: see `VectorizedEnv`.
        blocking: let only one worker work at a time.
        step_timeout: seconds that one chunk of a batch may take, else WorkerTimeout; None: no limit.
        on_failure: the reaction to a worker's death. `"raise"`: raise the error; later calls raise BrokenPool.
            `"restart"`: start another worker. A batch with states goes on, a batch without states raises. `"drop"`: as
            "restart", with one worker less.
        cluster: a `treadle.Cluster`: run the workers on the nodes of a Ray cluster (see `docs/scaling.md`). A worker
            gets one chunk of a batch at a time, with its states.
        worker_options: a `treadle.WorkerOptions`.
        **kwargs: for the environment.
    """

    def __init__(
        self,
        env_class: Callable[..., Any],
        name: str,
        frameskip: int = 1,
        autoreset: bool = True,
        delay_setup: bool = False,
        n_workers: int = 8,
        blocking: bool = False,
        *,
        step_timeout: float | None = None,
        on_failure: str = "raise",
        cluster: Cluster | None = None,
        worker_options: WorkerOptions | None = None,
        **kwargs: Any,
    ) -> None:
        self.blocking = blocking
        self._batch_env: BatchEnv | None = None
        self._workers: Workers | None = None
        given = chosen(worker_options)
        if cluster is not None:
            if (backend := given.get("backend", "process")) != "process":
                raise UsageError(f"backend={backend!r} is for one machine: with cluster= the workers are processes")
            given |= {"backend": nodes_backend(), "placement": Placement.of(cluster, shared=True)}
        elif "backend" not in given:
            given["backend"] = default_backend(given)
        self._pool_options = {"step_timeout": step_timeout, "on_failure": on_failure, **given}
        super().__init__(env_class, name, frameskip, autoreset, delay_setup, n_workers, **kwargs)

    def setup(self) -> None:
        """Start the workers, then make the local environment. Earlier workers are ended.

        Raises StartupFailed if a worker cannot build its environment; all workers are then ended.
        """
        self.close()
        self._workers = workers = Workers(self.create_env_callable(), self.n_workers, **self._pool_options)
        try:
            envs = [ExternalProcess.of(workers, slot) for slot in range(self.n_workers)]
            self._batch_env = BatchEnv(envs, blocking=self.blocking)
            super().setup()
            self._closed = False
        except BaseException:
            self.close()
            raise

    def make_transitions(
        self, actions: Any, states: Any = None, dt: Any = 1, return_state: bool | None = None, repeat: int = 1
    ) -> tuple[Any, ...]:
        """Step a batch; see `step_batch`."""
        return self._set_up(self._batch_env).make_transitions(actions, states, dt, return_state, repeat)

    def rollout_batch(
        self,
        states: Any,
        action_sequences: Any,
        dt: Any = 1,
        return_state: bool = False,
        observations: str | None = None,
        repeat: int = 1,
    ) -> RolloutBatch:
        """Play a sequence of actions from each state, in one round trip.

        Args:
            states: one state for each of n items; with `repeat`, one for each `repeat` consecutive items.
            action_sequences: one for each item: an array [n, T, ...], or n sequences of any lengths.
            dt: as in `step_batch`.
            return_state: return the states at the end.
            observations: None, "last" or "all": the observations to return.
            repeat: the number of consecutive items that begin in the same state.

        Raises: the errors of `step_batch`.
        """
        sequences = as_items(action_sequences, "action_sequences")
        for item, sequence in enumerate(sequences):
            if len(as_items(sequence, f"the actions of item {item}", "step")) == 0:
                raise UsageError(f"item {item} has no actions")
        items = items_of(sequences, states, dt, False if return_state is None else return_state, repeat)
        self._ready()
        return self._set_up(self._batch_env).rollouts(items, observations)

    def sync_states(self, state: Any = None) -> None:
        """Put all workers' environments into a state; None: the local environment's state."""
        self._set_up(self._batch_env).sync_states(self.get_state() if state is None else state, blocking=self.blocking)

    @property
    def verdict(self) -> Verdict:
        """The verdict on all batches: see `treadle.verdict`."""
        return self._set_up(self._batch_env).spent.verdict()

    def close(self) -> None:
        """End the workers and close the local environment. Idempotent.

        `setup` starts workers again; all other calls then raise ClosedPool.
        """
        self._closed = True
        batch, self._batch_env = self.__dict__.get("_batch_env"), None
        workers, self._workers = self.__dict__.get("_workers"), None
        local, self._plan_env = self.__dict__.get("_plan_env"), None
        try:
            if batch is not None:
                batch.close()
        finally:
            if workers is not None:
                workers.close()
            if local is not None:
                local.close()

    def __getstate__(self) -> dict[str, Any]:
        if self._workers is not None:
            raise TypeError("a ParallelEnv with workers cannot be copied or pickled: use clone(), or delay_setup=True")
        return dict(self.__dict__)


def make(id: Any, n_workers: int | str | None = None, *, ray: bool = False, **kwargs: Any) -> PlanEnv:
    """Make a planning environment.

    Args:
        id: the `name` of the `GymPlanEnv`.
        n_workers: None: a `GymPlanEnv` in this process. A number: a `ParallelEnv` with so many workers. "auto": one
            worker a core.
        ray: run the workers on all nodes of a Ray cluster; `cluster` of `ParallelEnv` limits the nodes.
        **kwargs: for `ParallelEnv` and the `GymPlanEnv`.
    """
    if n_workers is None:
        for name in kwargs.keys() & OURS or ("ray",) * ray:
            raise UsageError(f"{name}= goes with n_workers=")
        refuse_misspelt("make", GymPlanEnv, kwargs)  # as a ParallelEnv does itself
        return GymPlanEnv(id, **kwargs)
    if isinstance(n_workers, str):
        if n_workers != "auto":
            raise UsageError(f"n_workers is a number, 'auto' or None, got {n_workers!r}")
        n_workers = bell.cores()
    if ray:
        kwargs.setdefault("cluster", Cluster(ALL))
    return ParallelEnv(GymPlanEnv, id, n_workers=n_workers, **kwargs)
