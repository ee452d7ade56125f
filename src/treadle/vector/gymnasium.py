"""`VectorEnv`: many environments, stepped at once by a few workers, behind Gymnasium's vector interface.

The pool does the work; this file speaks Gymnasium: spaces, seeds, options and masks on the way in, infos on the way
out, and which call may follow which. `step` is one closure, bound once: with eight CartPoles a batch takes 25 us, and
what this face adds to a batch without infos is a fraction of one.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any, Unpack

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode
from gymnasium.vector.async_vector_env import AsyncState

from treadle.errors import BadAction, ClosedPool, LayoutsDiffer, UsageError, WorkerError
from treadle.pool import bell
from treadle.pool.batch import Batch
from treadle.pool.options import PoolOptions, StartKeywords
from treadle.pool.pool import Pool
from treadle.program.step import OnEnd
from treadle.vector.actions import Mender
from treadle.vector.calls import SlotCalls
from treadle.vector.env_slot import Ask, EnvLike, slots_of
from treadle.vector.groups import GroupsFace, check_count
from treadle.vector.infos import InfoStyle, batcher
from treadle.vector.orders import Options, Orders, Seeds, chosen_slots, orders_of_all, orders_of_some
from treadle.vector.owned import OwnedVectors, mode_of_all
from treadle.vector.partial import PartialFace
from treadle.vector.probe import measure, policy_threads, tell
from treadle.vector.refusals import SpacesDiffer
from treadle.vector.rollout import RolloutFace
from treadle.vector.shares import Why, choose_shares, matters, worth_using
from treadle.vector.snapshots import SnapshotFace
from treadle.vector.spaces import ObservationMode, check_mode, vector_spaces
from treadle.vector.stats import VectorStats, busy_shares
from treadle.vector.turns import A_STEP, IDLE, Turns, one_at_a_time

log = logging.getLogger("treadle")

Five = tuple[Any, np.ndarray, np.ndarray, np.ndarray, Any]


class VectorEnv(RolloutFace, GroupsFace, PartialFace, SnapshotFace, SlotCalls, gym.vector.VectorEnv):
    """Steps n environments at once. Use it from one thread at a time: calls that overlap are refused (AlreadyPending).

    Args:
        envs: a sequence of callables that return an environment (or of ids, or EnvSpecs), or one of them and
            `num_envs`. They are built in their workers and nowhere else; callables travel by cloudpickle. Or
            `OwnedVectors` and `num_envs`: each worker has one vectorised environment for all its slots; the autoreset
            mode is theirs, and `kwargs`, `wrappers` and `imports` are given there.
        num_envs: how many, when `envs` is a single one.
        workers: how many, the caller not counted; "auto": one a core, the caller's own share counted, for environments
            that compute, one a slot for environments that wait (a socket, a simulator in its own process), and none
            where they would slow the caller down: all slots are the caller's then. Which it is, is measured, see
            `treadle.vector.shares`, and said through the `treadle` logger (INFO).
        inline: how many slots (the first ones) the caller steps itself while its workers step theirs. "auto": an
            equal share, where the workers are processes and leave it a core, and none when `step_timeout`, `on_failure`
            or `groups` is given or the environments wait. An environment that crashes or hangs there takes the caller
            with it.
        groups: in how many groups `groups()` steps the slots, so that a policy works on one of them while the others
            are stepped; sizes differ by one at most.
        autoreset_mode: Gymnasium's AutoresetMode or its value. None: NEXT_STEP; SAME_STEP with infos="legacy".
        copy: True: every batch is the caller's to keep. False: all batches lie in the same memory.
        infos: "gymnasium", "legacy" or "list"; see `treadle.vector.infos`. "legacy" goes with SAME_STEP only.
        observation_mode: "same", "different" or (batched space, single space), as in Gymnasium.
        kwargs, wrappers, imports: for building every environment: keyword arguments, wrappers to apply in order,
            modules to import first.
        backend: "process", "thread" or "serial" (all in the caller).
        on_failure: what a worker's death (or a missed `step_timeout`) leads to; None: "raise". "restart": its slots'
            episodes are cut and new ones begin in fresh environments. "drop": they are cut, and the slots are out of
            use. Either way the row is truncated, not `valid`, and "aborted" is in the info of the cut episode;
            "restarted" is in the info of a fresh environment's first observation, "dropped" in that of a dropped
            slot. Other slots never notice.
        blocks: batches that the caller may hold before they are copied.
        **options: start_method, preload, start_timeout, step_timeout, close_timeout, max_restarts, worker_output: see
            `treadle.pool.options.PoolOptions`.

    Raises:
        SpacesDiffer (a RuntimeError too), StartupFailed, UsageError, ArenaError; nothing is left running.
    """

    def __init__(
        self,
        envs: EnvLike | Sequence[EnvLike] | OwnedVectors,
        num_envs: int | None = None,
        *,
        workers: int | str | None = "auto",
        inline: int | str = "auto",
        groups: int = 1,
        autoreset_mode: AutoresetMode | str | None = None,
        copy: bool = True,
        infos: str = "gymnasium",
        observation_mode: ObservationMode = "same",
        kwargs: dict[str, Any] | None = None,
        wrappers: Sequence[Callable[[gym.Env], gym.Env]] = (),
        imports: Sequence[str] = (),
        backend: str = "process",
        on_failure: str | None = None,
        blocks: int = 6,
        **options: Unpack[StartKeywords],
    ) -> None:
        pool = PoolOptions(backend=backend, on_failure="raise" if on_failure is None else on_failure, **options)
        style = InfoStyle.of(infos)
        self.autoreset_mode = _mode(autoreset_mode, style)
        check_mode(observation_mode)
        # with groups the caller has a policy to ask meanwhile
        guarded = pool.step_timeout is not None or on_failure is not None or groups != 1 or pool.wears
        cores = bell.cores()

        def shares(n: int, waits: bool = False, using: int | None = None) -> tuple[int | None, int]:
            return choose_shares(n, backend, workers, inline, guarded=guarded, cores=cores, waits=waits, using=using)

        if isinstance(envs, OwnedVectors):
            envs.check(kwargs or wrappers or imports, on_failure)
            slots: Any = envs.slots(num_envs, shares, backend)
        else:
            slots = slots_of(
                envs, num_envs, OnEnd(self.autoreset_mode.value), kwargs=kwargs, wrappers=wrappers, imports=imports
            )
        self.num_envs = n = len(slots)
        self._groups = check_count(groups, n)
        if not isinstance(envs, OwnedVectors) and matters(n, backend, workers, inline, cores, guarded):
            found, threads = measure(slots[0], n, pool), policy_threads()
            using, why = worth_using(n, cores, found, threads)
            workers, inline = shares(n, why is Why.WAIT, using)
            tell(found, n, workers, inline, why, threads)
        else:
            workers, inline = shares(n)
            if inline:
                text = "slots 0 to %d of %d are stepped in the caller's own process (inline=%d)"
                log.info(text, inline - 1, n, inline)
        self._pool = _start(slots, workers=workers, inline=inline, copy=copy, blocks=blocks, options=pool)
        try:
            self._lockstep = self._pool.lockstep
            spaces = vector_spaces(self._pool.descriptions, observation_mode)
            if isinstance(envs, OwnedVectors):
                self.autoreset_mode = mode_of_all(self._pool.descriptions, autoreset_mode)
                _mode(self.autoreset_mode, style)
        except BaseException:
            self._pool.close(0.0)
            raise
        # Gymnasium's vectors leave it to the environments to refuse a step before the first reset
        self._lockstep.waive_reset()
        self.single_observation_space = spaces.single_observation_space
        self.observation_space = spaces.observation_space
        self.single_action_space, self.action_space = spaces.single_action_space, spaces.action_space
        about = self._pool.descriptions[0].metadata
        self.metadata = {**about["metadata"], "autoreset_mode": self.autoreset_mode}
        self.render_mode = about["render_mode"]
        self.spec = _spec(envs, about["spec"])
        self._turns = Turns(self._pool, self._lockstep, type(self).__name__)
        self._began, self._calls, self._group_steps = monotonic(), 0, np.zeros(n, np.int64)
        self._resets = np.zeros(n, np.int64)
        self._infos = batcher(style, n, on_failure not in (None, "raise"))
        self._no_infos: Callable[[], Any] = dict if style is not InfoStyle.LIST else lambda: self._infos({}, {})
        self._mender = Mender(self.single_action_space, n, self._ignoring)
        self._step = self._bind()
        if type(self).step is VectorEnv.step:  # a subclass that overrides it must be asked
            self.step = self._step  # type: ignore[method-assign, assignment]

    # -- step --------------------------------------------------------------------------------------------------------

    def _bind(self) -> Callable[[Any], Five]:
        advance, handed = self._lockstep.step, self._handed
        turns, mender = self._turns, self._mender
        loose, in_list = bool(self._lockstep.observations.loose), self._no_infos is not dict

        def step(actions: Any) -> Five:
            if turns.state is not IDLE:
                turns.check_free("step_async")
            before = turns.owner
            if before is not None:
                turns.check()
            turns.owner = A_STEP
            try:
                try:
                    batch = advance(actions)
                except BadAction:
                    mended = mender.mend(actions)
                    if mended is None:
                        raise
                    batch = advance(mended)
            except ClosedPool as error:
                raise turns.closed() from error
            except WorkerError as error:
                self._keep_partial(error)
                raise
            finally:
                turns.owner = before
            self._calls += 1
            observations, rewards, terminated, truncated, infos, finals, news = batch
            if infos or finals or loose or in_list or news:
                return handed(batch)
            return observations, rewards, terminated, truncated, {}

        return step

    def step(self, actions: Any) -> Five:
        """Step every slot.

        Args:
            actions: a batch of the action space: an array [n, ...], a sequence of n actions, a dict or tuple of
                batches; see `treadle.spaces.Layout.batch_writer`.

        Returns:
            observations ([n, ...] arrays in the space's nesting), rewards float64[n], terminations bool[n],
            truncations bool[n], infos.

        Raises:
            BadAction: they do not fit; nothing was sent.
            WorkerError: an environment raised (TaskRaised, and of the original's type), a worker died or was late.
                `partial` has what the other slots returned, in the same five parts.
            UsageError: as its subclasses say; or slots must be reset first, after an error.
        """
        return self._step(actions)

    @one_at_a_time
    def step_async(self, actions: Any) -> None:
        """Begin a step; `step_wait` returns its result. Raises AlreadyPending, BadAction, ClosedVector."""
        self._turns.check_free("step_async")
        self._mender.given(self._lockstep.post_step, actions)
        self._turns.state = AsyncState.WAITING_STEP

    @one_at_a_time
    def step_wait(self, timeout: float | None = None) -> Five:
        """The result of `step_async`; `timeout` in seconds, None: for ever.

        Raises WaitTimeout (the step is still pending then), NothingPending, and what `step` raises.
        """
        batch = self._waited(AsyncState.WAITING_STEP, timeout)
        self._calls += 1
        return self._handed(batch)

    # -- reset -------------------------------------------------------------------------------------------------------

    @one_at_a_time
    def reset(self, *, seed: Seeds = None, options: Options | None = None) -> tuple[Any, Any]:
        """Reset all slots, or those that options["reset_mask"] (bool[n]) chooses; the others keep their observation.

        Args:
            seed: slot i gets seed + i; or one for each slot.
            options: a dict is given to every environment. A sequence has a dict or None for each, and what a slot got
                this way also serves its autoresets, until it is reset with anything else. No dict is changed.

        Returns:
            observations and infos.
        """
        self._turns.check_free("reset_async")
        return self._reset(orders_of_all(self.num_envs, seed, options, self._lockstep.gone))

    @one_at_a_time
    def reset_async(self, seed: Seeds = None, options: Options | None = None) -> None:
        """Begin a `reset`; `reset_wait` returns its result."""
        self._turns.check_free("reset_async")
        self._lockstep.post_reset(*self._ordered(orders_of_all(self.num_envs, seed, options, self._lockstep.gone)))
        self._turns.state = AsyncState.WAITING_RESET

    @one_at_a_time
    def reset_wait(self, timeout: float | None = None) -> tuple[Any, Any]:
        """The result of `reset_async`; as `step_wait`."""
        return self._reset_result(self._waited(AsyncState.WAITING_RESET, timeout))

    @one_at_a_time
    def reset_at(
        self, slots: int | Sequence[int], *, seed: Seeds = None, options: Options | None = None
    ) -> tuple[Any, Any]:
        """Reset one slot or some. Returns what `reset` with a mask returns: whole batches.

        Args:
            slots: which.
            seed: for one slot; or for each of `slots`; an int for several is the first one's, the next gets seed + 1.
            options: a dict for all of them, or a dict or None for each, kept for autoresets as in `reset`.
        """
        self._turns.check_free("reset_async")
        return self._reset(orders_of_some(chosen_slots(slots, self.num_envs), seed, options))

    def _ordered(self, orders: Orders) -> Orders:
        """The same orders, checked and counted."""
        if orders.slots is not None and not (self._calls or self._resets.any()):
            raise UsageError("the first reset() must be of all slots: the others have no observation to keep")
        self._resets[slice(None) if orders.slots is None else orders.slots] += 1
        return orders

    def _reset(self, orders: Orders) -> tuple[Any, Any]:
        try:
            return self._reset_result(self._lockstep.reset(*self._ordered(orders)))
        except WorkerError as error:
            self._keep_partial(error)
            raise

    # -- about it ----------------------------------------------------------------------------------------------------

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]  # as Gymnasium's own vectors
        """The seed of every environment's generator."""
        return self.get_attr("np_random_seed")

    @property  # type: ignore[misc]  # nothing can be set from here: the generators are the environments' own
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        """Copies of every environment's generator."""
        return self.get_attr("np_random")

    @property
    def valid(self) -> np.ndarray:
        """bool[n]: which rows of the last batch are transitions. False after a reset, NEXT_STEP's own included."""
        self._turns.check_open()
        if not (self._calls or self._resets.any()):
            return np.zeros(self.num_envs, np.bool_)
        return self._lockstep.valid

    def stats(self) -> VectorStats:
        """What it has done since it was made."""
        self._turns.check_open()
        elapsed, episodes = monotonic() - self._began, self._lockstep.episodes
        steps = self._calls + self._group_steps - self._lockstep.missed
        if self.autoreset_mode is AutoresetMode.NEXT_STEP:
            steps -= np.maximum(0, episodes - self._resets)
        restarts = np.array(self._pool.restarts, np.int64)
        return VectorStats(steps, episodes, restarts, busy_shares(self._pool, elapsed), elapsed)

    # -- the end -----------------------------------------------------------------------------------------------------

    def close_extras(self, timeout: float | None = None, terminate: bool = False, **_: Any) -> None:
        """End all workers, within `timeout` (None: `close_timeout`) + 1 s; `terminate`: at once.

        A call that is still pending is dropped, with a warning.
        """
        turns = self._turns
        if turns.state is not IDLE and not turns.overdue and not self._pool.closed:
            text = f"Calling `close` while waiting for a pending call to `{turns.state.value}` to complete."
            warnings.warn(text, UserWarning, stacklevel=3)
        turns.done()
        self._pool.close(0.0 if terminate else timeout)

    # -- helpers -----------------------------------------------------------------------------------------------------

    @property
    def _ignores_after_ends(self) -> bool:
        """Does a slot ignore its action in the step after an end?"""
        return self.autoreset_mode is AutoresetMode.NEXT_STEP

    def _ignoring(self) -> Sequence[bool]:
        return self._lockstep.call(Ask.OVER) if self._ignores_after_ends else ()

    def _waited(self, state: AsyncState, timeout: float | None) -> Batch:
        try:
            return self._turns.wait(state, timeout)
        except WorkerError as error:
            self._keep_partial(error)
            raise

    def _handed(self, batch: Batch) -> Five:
        observations = batch.observations
        if self._lockstep.observations.loose:
            observations = _lists_as_tuples(observations)
        some = batch.infos or batch.finals or batch.news
        infos = self._infos(batch.infos, batch.finals, batch.news) if some else self._no_infos()
        return observations, batch.rewards, batch.terminated, batch.truncated, infos

    def _reset_result(self, batch: Batch) -> tuple[Any, Any]:
        observations, _, _, _, infos = self._handed(batch)
        return observations, infos

    def _keep_partial(self, error: BaseException) -> None:
        partial = getattr(error, "partial", None)
        if isinstance(partial, Batch):
            error.partial = self._handed(partial)  # type: ignore[attr-defined]  # it has one: a line above


def _mode(mode: AutoresetMode | str | None, style: InfoStyle) -> AutoresetMode:
    if mode is None:
        return AutoresetMode.SAME_STEP if style is InfoStyle.LEGACY else AutoresetMode.NEXT_STEP
    mode = AutoresetMode(mode)
    if style is InfoStyle.LEGACY and mode is not AutoresetMode.SAME_STEP:
        raise UsageError("infos='legacy' tells of final observations, which only autoreset_mode=SAME_STEP has")
    return mode


def _start(slots: Sequence[Callable[[], Any]], **options: Any) -> Pool:
    try:
        return Pool(slots, **options)
    except LayoutsDiffer as error:
        raise SpacesDiffer(str(error)) from error


def _spec(envs: Any, text: str | None) -> EnvSpec | None:
    """The spec of vectors that are made of one id; Gymnasium's have none when they are made of callables."""
    return EnvSpec.from_json(text) if isinstance(envs, str | EnvSpec) and text is not None else None


def _lists_as_tuples(tree: Any) -> Any:
    """Leaves without a fixed shape come as lists; Gymnasium batches them as tuples."""
    if isinstance(tree, dict):
        return {key: _lists_as_tuples(part) for key, part in tree.items()}
    if type(tree) is tuple:
        return tuple(_lists_as_tuples(part) for part in tree)
    return tuple(tree) if isinstance(tree, list) else tree
