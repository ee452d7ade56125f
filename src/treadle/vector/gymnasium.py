"""`VectorEnv`: many environments, stepped at once by a few workers, behind Gymnasium's vector interface.

The pool does the work. This file is Gymnasium's interface: spaces, seeds, options and masks on the way in, infos on the
way out, and the order of calls. `step` is one closure, bound once. With eight CartPoles a batch takes 25 us; this
interface takes less than one of them where the batch has no infos.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter_ns
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode
from gymnasium.vector.async_vector_env import AsyncState

from treadle.checks import check_names, check_whole
from treadle.errors import BadAction, ClosedPool, LayoutsDiffer, UsageError, WorkerError
from treadle.lockstep.lockstep import Lockstep
from treadle.lockstep.measured import AWAY, CALLS, DUE, LEFT, Measured
from treadle.pool.pool import Pool
from treadle.program.base import OnEnd
from treadle.program.gym_env import of_coroutines
from treadle.repro import Repro, recipe_of, spaces_of
from treadle.vector.calls import SlotCalls
from treadle.vector.core import A_STEP, IDLE, Core, Counts, Mender, SpacesDiffer, Turns, VectorStats, one_at_a_time
from treadle.vector.env_slot import EnvLike, EnvSlot, slots_of
from treadle.vector.infos import BatchForm, Five, InfoStyle
from treadle.vector.orders import Options, Orders, Seeds, chosen_slots, orders_of_all, orders_of_some
from treadle.vector.partial import PartialBatches, Partly
from treadle.vector.rollout import Act, Rollout, RolloutMaker
from treadle.vector.shares import shares_of
from treadle.vector.spaces import ObservationMode, VectorSpaces, check_mode, vector_spaces
from treadle.worker.backends import default_backend
from treadle.worker.options import PoolOptions, WorkerOptions, chosen

log = logging.getLogger("treadle")

AGAIN, AGAIN_IN_PARTS = "reset_at({slots})", "async_reset(env_id={slots})"  # see `Calls.again`


class VectorEnv(SlotCalls):
    """Steps n environments at once. Use it from one thread at a time: calls that overlap are refused (AlreadyPending).

    Args:
        envs: a sequence of callables that return an environment (or of ids, or EnvSpecs), or one of them and
            `num_envs`. They are built in their workers and nowhere else; callables travel by cloudpickle.
        num_envs: number of environments, when `envs` is a single one.
        workers: number of workers, the caller not counted. None: one a core, at most one a slot. With "auto" it is one
            a core for environments that compute, the caller's own share included. For environments that wait (for a
            socket, or for a simulator in its own process) it is one a slot, up to 128 processes. If workers would slow
            the caller down, "auto" starts no workers, and the caller steps all slots. Measurements decide, see
            `treadle.vector.shares`; the `treadle` logger names them (INFO). With threads "auto" is always one a slot.
        inline: number of slots (the first ones) that the caller steps while its workers step theirs. With "auto" it is
            an equal share if the workers are processes and leave the caller a core. But it is 0 with `step_timeout`,
            `on_failure` or `recycle_after`, and if the environments wait. An environment that crashes or hangs in one
            of these slots takes the caller with it.
        autoreset_mode: Gymnasium's AutoresetMode or its value. None: NEXT_STEP; SAME_STEP with infos="legacy".
        infos: "gymnasium" or "legacy"; see `treadle.vector.infos`. "legacy" goes with SAME_STEP only.
        observation_mode: "same", "different" or (batched space, single space), as in Gymnasium.
        env_kwargs, wrappers: for building every environment: keyword arguments, and wrappers to apply in order.
        step_timeout: seconds for one request of a worker, after which it counts as dead; None: no limit.
        on_failure: what happens when a worker dies or misses `step_timeout`. With "raise" (also None) an error is
            raised. With "restart" its slots' episodes are cut, and new ones begin in fresh environments. With "drop"
            the episodes are cut, and the slots are out of use. The row of a cut episode is truncated and not `valid`,
            and its info has "aborted". The info of a fresh environment's first observation has "restarted"; the info of
            a dropped slot has "dropped". Other slots are unaffected.
        worker_options: a `treadle.WorkerOptions`: how workers are run.
        **unknown: refused; the error names the nearest keyword.

    Raises:
        SpacesDiffer (a RuntimeError and a TypeError too), StartupFailed, UsageError, ArenaError: the vector cannot be
            made, and nothing is left.
    """

    def __init__(
        self,
        envs: EnvLike | Sequence[EnvLike],
        num_envs: int | None = None,
        *,
        workers: int | str | None = "auto",
        inline: int | str = "auto",
        autoreset_mode: AutoresetMode | str | None = None,
        infos: str = "gymnasium",
        observation_mode: ObservationMode = "same",
        env_kwargs: dict[str, Any] | None = None,
        wrappers: Sequence[Callable[[gym.Env], gym.Env]] = (),
        step_timeout: float | None = None,
        on_failure: str | None = None,
        worker_options: WorkerOptions | None = None,
        **unknown: Any,
    ) -> None:
        check_names(type(self), unknown)
        given = chosen(worker_options)
        if "backend" not in given:
            each = envs if isinstance(envs, Sequence) and not isinstance(envs, str) else [envs]
            given["backend"] = default_backend(given, coroutines=all(map(of_coroutines, each)))
        pool = PoolOptions(on_failure="raise" if on_failure is None else on_failure, step_timeout=step_timeout, **given)
        style = InfoStyle.of(infos)
        self.autoreset_mode = _mode(autoreset_mode, style)
        check_mode(observation_mode)
        on_end = OnEnd(self.autoreset_mode.value)
        slots = slots_of(envs, num_envs, on_end, env_kwargs=env_kwargs, wrappers=wrappers)
        guarded = pool.step_timeout is not None or on_failure is not None or pool.recycle_after is not None
        shares, chosen_why = shares_of(slots, pool, workers, inline, guarded)
        engine, lockstep, spaces = _start(slots, shares, pool, observation_mode)
        self.single_observation_space = spaces.single_observation_space
        self.observation_space = spaces.observation_space
        self.single_action_space, self.action_space = spaces.single_action_space, spaces.action_space
        about = engine.descriptions[0].metadata
        self.metadata = {**about["metadata"], "autoreset_mode": self.autoreset_mode}
        self.render_mode = about["render_mode"]
        self.spec = _spec(envs, about["spec"])
        n = engine.n
        form = BatchForm(style, n, bool(lockstep.observations.loose), on_failure not in (None, "raise"))
        turns = Turns(engine, lockstep, type(self).__name__)
        measured = Measured(lockstep)
        counts = Counts(n, measured, workers != "auto", chosen_why)
        mode, space = self.autoreset_mode, self.single_action_space
        super().__init__(Core(engine, lockstep, turns, form, counts, measured, mode, space))
        self._mender = Mender(self._core)
        self._partial: PartialBatches | None = None
        self._rollouts: RolloutMaker | None
        self._rebind()

    # -- step --------------------------------------------------------------------------------------------------------

    def _bind(self) -> Callable[[Any], Five]:
        advance, form, measured = self._lockstep.step, self._core.form, self._core.measured
        marks, look, leave, clock = measured.marks, measured.look, measured.leave, perf_counter_ns
        turns, mender = self._turns, self._mender
        loose, in_list = bool(self._lockstep.observations.loose), form.empty is not dict

        def step(actions: Any) -> Five:
            if turns.state is not IDLE:
                turns.check_free("step_async")
            before = turns.owner
            if before is not None:
                turns.check()
            turns.owner = A_STEP
            try:
                marks[AWAY] += clock() - marks[LEFT]
                try:
                    batch = advance(actions) if marks[CALLS] < marks[DUE] else look(advance, actions)
                except BadAction:
                    mended = mender.mend(actions)
                    if mended is None:
                        raise
                    batch = advance(mended)
            except BaseException as error:
                leave()
                if isinstance(error, ClosedPool):
                    raise turns.closed() from error
                if isinstance(error, WorkerError):
                    form.keep_partial(error)
                raise
            finally:
                turns.owner = before
            marks[CALLS] += 1
            observations, rewards, terminated, truncated, infos, finals, news = batch
            if infos or finals or loose or in_list or news:
                five = form.five(batch)
                marks[LEFT] = clock()
                return five
            marks[LEFT] = clock()
            return observations, rewards, terminated, truncated, {}

        return step

    def _rebind(self) -> None:
        """Make all closures anew, of what stands now for the parts of a step."""
        self._lockstep.rebind()
        self._step, self._rollouts = self._bind(), None
        if type(self).step is VectorEnv.step:  # a subclass that overrides it must be asked
            self.step = self._step  # type: ignore[method-assign, assignment]

    def step(self, actions: Any) -> Five:
        """Step every slot.

        Args:
            actions: a batch of the action space: an array [n, ...], a sequence of n actions, a dict or tuple of
                batches; see `treadle.spaces.Layout.batch_writer`.

        Returns:
            observations ([n, ...] arrays in the space's nesting), rewards float64[n], terminations bool[n],
            truncations bool[n], infos.

        Raises:
            BadAction: the actions do not fit; nothing was sent.
            WorkerError: an environment raised (a TaskRaised that is also of the original's type), or a worker died or
                was late. `partial` has what the other slots returned, in the same five parts.
            UsageError: the vector is closed (ClosedVector), a call is pending (AlreadyPending), or slots must be reset
                first, after an error.
        """
        return self._step(actions)

    @one_at_a_time
    def step_async(self, actions: Any) -> None:
        """Begin a step; `step_wait` returns its result. Raises AlreadyPending, BadAction, ClosedVector."""
        self._turns.check_free("step_async")
        measured = self._core.measured
        with measured:
            if measured.marks[CALLS] >= measured.marks[DUE]:
                measured.before()
            self._mender.given(self._lockstep.post_step, actions)
            self._turns.state = AsyncState.WAITING_STEP

    @one_at_a_time
    def step_wait(self, timeout: float | None = None) -> Five:
        """The result of `step_async`; `timeout` in seconds, None: for ever.

        Raises WaitTimeout (the step is still pending then), NothingPending, and what `step` raises.
        """
        measured = self._core.measured
        with measured:
            found = self._five(self._turns.wait, AsyncState.WAITING_STEP, timeout)
            measured.after()
            measured.marks[CALLS] += 1
        return found

    # -- reset -------------------------------------------------------------------------------------------------------

    @one_at_a_time
    def reset(self, *, seed: Seeds = None, options: Options | None = None) -> tuple[Any, Any]:
        """Reset all slots, or those that options["reset_mask"] (bool[n]) chooses; the others keep their observation.

        Args:
            seed: an int, of which slot i gets seed + i; or a sequence with an int or None for each slot. None: no seed.
            options: a dict for every environment, which serves this reset only. Or a sequence with a dict or None for
                each: a slot's autoresets use its dict, too, until its next reset by the caller. No dict is changed.

        Returns:
            observations and infos.
        """
        self._turns.check_free("reset_async")
        return self._reset(orders_of_all(self.num_envs, seed, options, self._lockstep.life.gone))

    @one_at_a_time
    def reset_async(self, seed: Seeds = None, options: Options | None = None) -> None:
        """Begin a `reset`; `reset_wait` returns its result."""
        self._turns.check_free("reset_async")
        self._lockstep.post_reset(*self._ordered(orders_of_all(self.num_envs, seed, options, self._lockstep.life.gone)))
        self._turns.state = AsyncState.WAITING_RESET

    @one_at_a_time
    def reset_wait(self, timeout: float | None = None) -> tuple[Any, Any]:
        """Return the result of `reset_async`. `timeout` and errors are as for `step_wait`."""
        with self._core.measured.reset():
            return _reset_parts(self._five(self._turns.wait, AsyncState.WAITING_RESET, timeout))

    @one_at_a_time
    def reset_at(
        self, slots: int | Sequence[int], *, seed: Seeds = None, options: Options | None = None
    ) -> tuple[Any, Any]:
        """Reset one slot or some. Returns what `reset` with a mask returns: whole batches.

        Args:
            slots: numbers of the slots to reset, distinct.
            seed: an int, which the first of `slots` gets; the next one gets seed + 1, and so on. Or a sequence with an
                int or None for each of `slots`. None: no seed.
            options: a dict for all of them, or a sequence with a dict or None for each. The sequence's dicts are kept
                for autoresets as in `reset`.
        """
        self._turns.check_free("reset_async")
        return self._reset(orders_of_some(chosen_slots(slots, self.num_envs), seed, options))

    def _ordered(self, orders: Orders) -> Orders:
        """The same orders, checked and counted."""
        self._core.counts.note_resets(orders.slots)
        return orders

    def _reset(self, orders: Orders) -> tuple[Any, Any]:
        with self._core.measured.reset():
            return _reset_parts(self._five(self._lockstep.reset, *self._ordered(orders)))

    # -- several steps, or some slots ----------------------------------------------------------------------------------

    @one_at_a_time
    def rollout(self, policy: Act | None = None, *, steps: int) -> Rollout:
        """Take `steps` steps from the vector's present state, and keep them all. The first call resets a new vector.

        Steps of `step` and rollouts may follow one another in any order. The caller may keep a rollout: the next one
        uses other memory while an array of it is referenced.

        In DISABLED mode slots whose episode has ended are reset before the next step, without seeds and options. The
        infos of these resets are not kept.

        Args:
            policy: a function that takes a batch of observations (as `step` returns it) and returns a batch of actions.
                The arrays that it sees are the rollout's own: it must not write to them. None: random actions, sampled
                from `action_space` with that space's seed.
            steps: number of steps, T.

        Raises:
            ArenaError: the rollout's memory cannot be allocated.
            UsageError: `steps` is below 1, or this vector has been used for partial batches.
            TreadleError: the errors of `step`. After these, or an error of the policy, the steps so far are lost, and
                the vector goes on from there.
        """
        self._turns.check_free("rollout")
        check_whole(none=False, steps=steps)
        if policy is not None and not callable(policy):
            raise UsageError(f"policy is called with observations, and a {type(policy).__name__} cannot be called")
        self._core.check_all_slots()
        if not self._core.counts.begun:
            self.reset()
        if self._rollouts is None:
            self._rollouts = RolloutMaker(self._core, self._step, self.reset, lambda _: self.action_space.sample())
        return self._rollouts.make(policy, steps)

    @one_at_a_time
    def async_reset(self, *, seed: Any = None, options: Any = None, env_id: Any = None) -> None:
        """Ask for a reset of every slot, or of the slots `env_id` (int[m]; seeds and options as in `reset_at`). `recv`
        returns the first observations in order of arrival."""
        if env_id is None:
            orders = orders_of_all(self.num_envs, seed, options, self._lockstep.life.gone)
        else:
            orders = orders_of_some(chosen_slots(env_id, self.num_envs), seed, options)
        slots = list(range(self.num_envs)) if orders.slots is None else orders.slots
        self._opened("async_reset").reset(orders.seeds, orders.options, slots)
        self._settle_turn()

    @one_at_a_time
    def send(self, actions: Any, env_id: Any = None) -> None:
        """Ask for a step of the slots `env_id` (int[m], None: all), with m actions.

        Raises BadAction, and UsageError for slots that are in flight, not yet received, or in need of a reset; then
        nothing was sent.
        """
        with self._core.measured:
            self._opened("send").send(actions, env_id)
            self._settle_turn()

    @one_at_a_time
    def recv(self, *, min: int | None = None, max: int | None = None, timeout: float | None = None) -> Five:
        """Return the rows of the slots that are ready first, in order of arrival.

        Args:
            min: number of rows to wait for (None: `batch_size`); fewer are returned if fewer slots have a request.
            max: largest number of rows (None: `min`).
            timeout: seconds for the whole call; None: no limit.

        Returns:
            observations [m, ...], rewards float64[m], terminated and truncated bool[m], infos: columns of m rows. Infos
            always have "env_id" (int64[m]: the slots) and "valid" (bool[m]). The latter is False on rows that are not
            transitions: resets, and rows about a worker's death. With on_failure="restart" or "drop" the rows about a
            death have the infos of `step` ("aborted", "restarted", "dropped"). A dropped slot's row is its last: `send`
            leaves it out.

        Raises:
            NothingPending: no slot has a request.
            WaitTimeout: too few rows came in time; nothing is lost.
            WorkerError: the error of each slot that failed, once.
        """
        partial = self._opened("recv")
        with self._core.measured:
            try:
                return partial.recv(min, max, timeout)
            finally:
                self._settle_turn()

    @property
    def batch_size(self) -> int:
        """Number of slots that `recv` waits for by default: half of all, at least one, until it is set."""
        return self._opened("batch_size").batch_size

    @batch_size.setter
    def batch_size(self, size: int) -> None:
        if not 1 <= size <= self.num_envs:
            raise UsageError(f"batch_size must be in 1..{self.num_envs}, got {size}")
        self._opened("batch_size").batch_size = size

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
        """bool[n]: True for rows of the last batch that are transitions; False for resets, also NEXT_STEP's own."""
        self._turns.check_open()
        if not self._core.counts.begun:
            return np.zeros(self.num_envs, np.bool_)
        return self._lockstep.valid

    def stats(self) -> VectorStats:
        """Return the statistics since the vector was made."""
        self._turns.check_open()
        return self._core.counts.stats(self._pool, self._lockstep, self.autoreset_mode is AutoresetMode.NEXT_STEP)

    # -- the end -----------------------------------------------------------------------------------------------------

    def close_extras(self, timeout: float | None = None, terminate: bool = False, **_: Any) -> None:
        """End all workers, within `timeout` (None: 5) + 1 s; `terminate`: at once.

        A call that is still pending is dropped, with a warning.
        """
        turns = self._turns
        self._core.measured.tell(lambda: VectorEnv.stats(self).verdict)
        if turns.state is not IDLE and not turns.overdue and not self._pool.closed:
            text = f"Calling `close` while waiting for a pending call to `{turns.state.value}` to complete."
            warnings.warn(text, UserWarning, stacklevel=3)
        turns.done()
        self._pool.close(0.0 if terminate else timeout)

    # -- helpers -----------------------------------------------------------------------------------------------------

    def _five(self, bring: Callable[..., Any], *args: Any) -> Five:
        form = self._core.form
        try:
            return form.five(bring(*args))
        except WorkerError as error:
            form.keep_partial(error)
            raise

    def _opened(self, name: str) -> PartialBatches:
        """For the method `name`. Raises ClosedVector, AlreadyPending; then what is pending stays so."""
        if self._turns.state is not Partly.OPEN:
            self._turns.check_free(name)
        if self._partial is None:
            self._partial = PartialBatches(self._core, max(1, self.num_envs // 2))
            if self._pool.calls.again == AGAIN:  # and not the call of a face that is made of this vector
                self._pool.calls.again = AGAIN_IN_PARTS
            self._core.measured.go_on_alone()
        return self._partial

    def _settle_turn(self) -> None:
        self._turns.state = Partly.OPEN if self._partial is not None and self._partial.open else IDLE


def _reset_parts(five: Five) -> tuple[Any, Any]:
    return five[0], five[4]


def _mode(mode: AutoresetMode | str | None, style: InfoStyle) -> AutoresetMode:
    if mode is None:
        return AutoresetMode.SAME_STEP if style is InfoStyle.LEGACY else AutoresetMode.NEXT_STEP
    try:
        mode = AutoresetMode(mode)
    except ValueError as error:
        raise UsageError(f"autoreset_mode: {error}: choose {', '.join(each.value for each in AutoresetMode)}") from None
    if style is InfoStyle.LEGACY and mode is not AutoresetMode.SAME_STEP:
        raise UsageError("infos='legacy' adds final observations, which only autoreset_mode=SAME_STEP has")
    return mode


def _start(
    slots: Sequence[partial[EnvSlot]], shares: tuple[int | None, int], options: PoolOptions, mode: ObservationMode
) -> tuple[Pool, Lockstep, VectorSpaces]:
    """The engine of a vector. Raises what `VectorEnv` does; then nothing is left."""
    try:
        pool = Pool(slots, workers=shares[0], inline=shares[1], options=options)
    except LayoutsDiffer as error:
        raise SpacesDiffer(str(error)) from error
    try:
        spaces, lockstep = vector_spaces(pool.descriptions, mode), Lockstep(pool)
        if options.recorder:
            lockstep.record(partial(_repro_of, slots, spaces), full=options.recorder == "full")
    except BaseException:
        pool.close(0.0)
        raise
    pool.calls.again = AGAIN
    return pool, lockstep, spaces


def _repro_of(slots: Sequence[partial[EnvSlot]], spaces: Any, slot: int) -> Repro:
    """Return the repro of a slot's failure, with its environment."""
    recipe, on_end = slots[slot].args[:2]
    name = getattr(recipe.env, "__name__", recipe.env)
    repro = Repro({"face": "slot", "title": f"slot {slot} ({name})", "slot": slot, "autoreset": on_end.value})
    repro.about["spaces"] = spaces_of([spaces.single_observation_space, spaces.single_action_space])
    recipe_of(repro, recipe)
    return repro


def _spec(envs: Any, text: str | None) -> EnvSpec | None:
    """The spec of vectors that are made of one id; Gymnasium's have none when they are made of callables."""
    return EnvSpec.from_json(text) if isinstance(envs, str | EnvSpec) and text is not None else None
