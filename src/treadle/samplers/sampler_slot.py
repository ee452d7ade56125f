"""The program that hosts a sampler's worker: it applies updates, plays rollouts and streams them.

There are two ways to stream. *Arriving*: rollouts are played until the order's number is reached or the caller stops
the stream; a stop interrupts an episode at its next step. *By index*: the rollouts of an order's indices are played.
Each has its own seeds, so a rollout does not depend on the worker that makes it.

If no method of a `DefaultWorker` is overridden and its environment is a `gymnasium.Env`, `DirectRollouts` plays in its
place. Results are the same, and the cost is lower. The loop of `treadle.collect` writes episodes one after the other
into the same arrays, and makes no `EnvStep` objects.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial, reduce
from time import perf_counter
from typing import Any

import numpy as np

from treadle import seeding
from treadle.errors import UsageError, attributes_of
from treadle.play.columns import ColumnsBuffer
from treadle.play.contract import BadStep, in_step
from treadle.play.player import Player
from treadle.play.recorder import misshapen
from treadle.play.rounds import EpisodeSlot, Globals
from treadle.program.base import StreamControl
from treadle.program.ids import register_missing
from treadle.samplers.adapt import GymEnv
from treadle.samplers.agents import action_of, reset_agent
from treadle.samplers.episode_batch import EpisodeBatch
from treadle.samplers.steps import StepType
from treadle.samplers.trajectories import Trajectories, trajectories_of
from treadle.samplers.worker import GLOBALS, DefaultWorker
from treadle.spaces import Layout
from treadle.wire.broadcast import Broadcast
from treadle.wire.messages import Raised

log = logging.getLogger("treadle")

# Small rollouts share a message. It is sent with BATCH rollouts, BATCH_BYTES bytes or after BATCH_SECONDS.
BATCH, BATCH_SECONDS, BATCH_BYTES = 64, 0.05, 1 << 20
ORDINARY = ("rollout", "start_episode", "step_episode", "collect_episode", "seed_episode")
Broadcasts = tuple[Broadcast, ...]
PARTS = 4  # the fewest messages that answer an order for several rollouts


@dataclass(frozen=True)
class SlotRecipe:
    """The arguments that set a worker up.

    Attributes:
        factory: called with the worker's number.
        agent, env: the first updates.
        root: the seed that is used if the sampler has no seed; None if it has one.
        registrations: the caller's Gymnasium registry, see `program.ids`.
    """

    factory: Any
    agent: Any
    env: Any
    root: int | None
    registrations: bytes | None


@dataclass(frozen=True)
class Updates:
    """Updates of an agent and of an environment."""

    agent: Broadcasts = ()
    env: Broadcasts = ()

    def and_then(self, more: Updates) -> Updates:
        """Return the updates that bring a new worker to the state of one that had these, then `more`.

        Parameters follow the agent that they are for; a broadcast's note says whether it holds parameters.
        """
        agent = more.agent or self.agent
        if more.agent and self.agent and more.agent[0].note and not self.agent[0].note:
            agent = self.agent[0], more.agent[-1]
        return Updates(agent, more.env or self.env)


def joined(updates: tuple[Updates, ...]) -> Updates:
    """Return the updates for a worker that has had none of these."""
    return Updates(reduce(Updates.and_then, updates, Updates()).agent, sum((each.env for each in updates), ()))


@dataclass(frozen=True)
class SamplerOrder:
    """A request to a worker.

    Attributes:
        updates: updates to apply first, one after the other; of each the agent's before the environment's.
        most: rollouts to make; None: until stopped.
        steps: a message is sent at this many steps, even if it could hold more.
        indices: None, or the indices of the rollouts to make.
        root: the seed of rollouts with indices.
        aside: restore the worker's own random generators afterwards (for an evaluation between two samplings).
        incarnation: how often the worker was replaced.
        rebuilds: how often a worker that raises is rebuilt before its error counts as a failure.
    """

    updates: tuple[Updates, ...] = ()
    most: int | None = None
    steps: int = 1 << 40
    indices: tuple[int, ...] | None = None
    root: int = 0
    aside: bool = False
    incarnation: int = 0
    rebuilds: int = 0


@dataclass(frozen=True)
class Mishap:
    """A worker raised and was rebuilt. `text`: the exception in one line; `raised`: the exception and its place."""

    text: str
    raised: Raised


class Interrupted(BaseException):
    """Raised between two steps when the caller has stopped the stream; a worker's `except Exception` lets it pass."""


class DirectRollouts(Player):
    """Plays for one worker and one environment; see `direct_rollouts`.

    Attributes:
        adapted: the worker's environment, with its adapter.
        record: the recorded steps.
    """

    def __init__(self, worker: DefaultWorker) -> None:
        self._worker = worker
        self.adapted: GymEnv = worker.env
        env = self.adapted.env
        self.record = ColumnsBuffer(Layout.of(env.observation_space), env.action_space.shape)
        super().__init__(env, self.record, worker._max_episode_length)

    def rollout(self, stopped: Callable[[], bool]) -> bool:
        """Play one episode. Return True if it is recorded, False if it was stopped; its steps are then discarded.

        Raises errors of the environment and the agent, and `spaces.Mismatch` for an observation that does not fit its
        space. An error also discards the episode's steps.
        """
        record, agent, start = self.record, self._worker.agent, self.adapted.begins()
        observation, episode_info = self.adapted.reset()
        record.begin(observation, episode_info)
        reset_agent(agent)
        self.alone = getattr(agent, "get_action", None) or partial(action_of, agent), stopped
        self._most = self._worker._max_episode_length
        try:
            self.play(observation)
            return False
        except StopIteration as end:
            record.finish_episode(end.value)
            return True
        except Exception as error:
            told = error if record.asking else misshapen(error)
            in_step(told, record.length + 1)
            if not record.asking and start != (None, None) and (trail := record.trail(True)):
                attributes_of(told)["treadle_trail"] = {**trail, "start": start}
            if told is error:
                raise
            raise told from None

    def batch(self, *, copy: bool) -> Trajectories:
        """Return the steps recorded so far; see `ColumnsBuffer.columns`."""
        record, columns = self.record, self.record.columns(copy=copy)
        lengths = columns["lengths"]
        ends = np.cumsum(lengths)
        codes = np.full(record.rows, int(StepType.MID), np.uint8)
        codes[ends - lengths] = StepType.FIRST
        codes[ends - 1] = [
            StepType.get_step_type(length, length if truncated else None, terminated)
            for length, (terminated, truncated) in zip(record.lengths, record.ends, strict=True)
        ]
        return Trajectories(self.adapted.spec, columns, codes, np.ones(len(lengths), np.int64))


def direct_rollouts(worker: Any) -> DirectRollouts | None:
    """Return the `DirectRollouts` of a worker, or None if it would not play as the worker itself does."""
    kind, env = type(worker), worker.env
    if not isinstance(worker, DefaultWorker) or not isinstance(env, GymEnv) or not env.plain:
        return None
    if any(getattr(kind, name) is not getattr(DefaultWorker, name) for name in ORDINARY):
        return None
    try:
        return DirectRollouts(worker) if not Layout.of(env.observation_space).loose else None
    except (TypeError, ValueError):  # a space of the user's own
        return None


class Rollouts:
    """Makes one worker's rollouts, and keeps them until they are sent.

    Args:
        worker: has `rollout`; see `treadle.samplers.worker.Worker` for its optional methods.

    Attributes:
        made: rollouts that are kept.
        begun: episodes that were begun before the present rollout, completed or not.
    """

    def __init__(self, worker: Any) -> None:
        self.worker = worker
        self._step = getattr(worker, "step_episode", None)
        self._interruptible = self._step is not None and bool(getattr(worker, "interruptible", False))
        self._direct: DirectRollouts | None = None
        self._finished: list[EpisodeBatch] = []
        self._steps = self.made = self.begun = 0
        self._since = perf_counter()

    def guard(self, stopped: Callable[[], bool]) -> None:
        """Check `stopped` between any two steps, also in a user's own `rollout`."""
        self._stopped = stopped
        step, worker = self._step, self.worker
        if step is None or not self._interruptible:
            return
        one = getattr(worker, "by_index", False)  # one episode at a time, whose length is `_eps_length`

        def step_episode() -> bool:
            if stopped():
                raise Interrupted
            try:
                return step()
            except Exception as error:
                if one:
                    episode = self.begun + len(getattr(worker, "_lengths", ()))
                    in_step(error, getattr(worker, "_eps_length", 0) + 1, episode)
                raise

        worker.step_episode = step_episode

    def play(self) -> bool:
        """Make one rollout. Return False if it was stopped and discarded. Raises what the worker raises."""
        try:
            direct = self._direct_rollouts()
            result: Any = self.worker.rollout() if direct is None else direct.rollout(self._stopped)
        except Interrupted:
            self.worker.discard_episode()
            self.begun += 1
            return False
        except BaseException as error:
            in_step(error, None, self.begun)
            self.begun += 1
            if self._interruptible:  # another worker begins anew in its own way
                self.worker.discard_episode()
            raise
        self.begun += len(result.lengths) if isinstance(result, EpisodeBatch) else 1
        if direct is None:
            if not isinstance(result, EpisodeBatch):
                raise TypeError(f"a worker's rollout returns an EpisodeBatch, this one's a {type(result).__name__}")
            self._finished.append(result)
        elif not result:
            return False
        if not self.made:
            self._since = perf_counter()
        self.made += 1
        self._steps += len(result) if direct is None else direct.record.length
        return True

    def _direct_rollouts(self) -> DirectRollouts | None:
        direct, env = self._direct, getattr(self.worker, "env", None)
        if direct is not None and direct.adapted is env:
            return direct
        if self.made:  # rollouts that are kept must be sent first
            return None
        self._direct = direct_rollouts(self.worker)
        return self._direct

    def due(self, steps: int, rollouts: int = BATCH) -> bool:
        """Return True if the kept rollouts should be sent: by these limits, or by their age or size."""
        direct = self._direct
        return (
            self._steps >= steps
            or self.made >= rollouts
            or perf_counter() - self._since > BATCH_SECONDS
            or (direct is not None and direct.record.nbytes > BATCH_BYTES)
        )

    def batches(self, *, copy: bool) -> list[Trajectories]:
        """Return all kept rollouts, in order. Without `copy` the arrays are valid until `clear`."""
        batches = []
        if self._direct is not None and self._direct.record.lengths:
            batches.append(self._direct.batch(copy=copy))
        if self._finished:
            batches.append(trajectories_of(self._finished))
        return batches

    def clear(self) -> None:
        """Forget the kept rollouts once they are sent."""
        self._finished = []
        self._steps = self.made = 0
        if self._direct is not None:
            self._direct.record.clear()


class SamplerSlot(EpisodeSlot):
    """The slot of one worker.

    Args:
        recipe: of the worker.
        number: the worker's.
        shared: True if the worker is in the caller's own process, whose random generators it must not change.
    """

    def __init__(self, recipe: SlotRecipe, number: int, shared: bool) -> None:
        self._recipe, self._number, self._shared = recipe, number, shared
        self._incarnation = 0
        self._updates = Updates()  # updates since the recipe's, for a worker that is rebuilt
        super().__init__(Globals.SWAP if shared else Globals.SEED)

    def _build(self) -> None:
        recipe = self._recipe
        register_missing(recipe.registrations)
        worker = recipe.factory(self._number)
        self._seed(worker)
        worker.update_agent(recipe.agent)
        worker.update_env(recipe.env)
        self._tell(worker, self._updates)
        self._rollouts = Rollouts(worker)

    def _tell(self, worker: Any, updates: Updates) -> None:
        for broadcast in updates.agent:
            worker.update_agent(broadcast.open())
        self._updates = self._updates.and_then(Updates(updates.agent))
        for broadcast in updates.env:
            worker.update_env(broadcast.open())
        self._updates = self._updates.and_then(updates)

    def _seed(self, worker: Any) -> None:
        """Seed a worker if the sampler has no seed, or if the worker replaces another."""
        root = self._recipe.root
        if root is None and self._incarnation == 0:
            return
        root = getattr(worker, "_root", 0) if root is None else root
        if hasattr(worker, "reseed"):
            worker.reseed(root, self._incarnation)
        seeding.seed_globals(seeding.derive(root, GLOBALS, self._number, self._incarnation))

    @property
    def _worker(self) -> Any:
        return self._rollouts.worker

    def _play(self, order: SamplerOrder, control: StreamControl) -> Iterator[Trajectories | Mishap]:
        """Yield batches until the order is done or stopped."""
        self._prepare(order)
        rollouts = self._rollouts
        rollouts.guard(control.stopped)
        rollouts.clear()  # rollouts that the order before could not send
        before = seeding.GlobalState() if order.aside else None
        indices = order.indices
        most = order.most if indices is None else len(indices)
        played, left, self._spec = 0, order.rebuilds, None
        # a worker that dies loses only the rollouts that it keeps; by index they are made again
        together = BATCH if order.most is None else min(BATCH, max(1, -(-order.most // PARTS)))
        while (most is None or played < most) and not control.stopped():
            index = None if indices is None else indices[played]
            try:
                if index is not None:
                    self._begin(order.root, index)
                if not rollouts.play():
                    break
            except BaseException as error:  # noqa: BLE001 - raised again, with its place
                yield from self._sent(rollouts, indices, played)
                if not isinstance(error, Exception) or left <= 0:
                    raise _placed(error, order, index) from None
                left -= 1
                yield Mishap(f"{type(error).__name__}: {error}", _raised(error, order, index))
                self._rebuild()
                rollouts = self._rollouts
                rollouts.guard(control.stopped)
                continue
            played, left = played + 1, order.rebuilds
            if self._shared or rollouts.due(order.steps, together) or played == most:
                yield from self._sent(rollouts, indices, played)
        rollouts.clear()
        if before is not None:
            before.restore()
            self._worker.seed_episode(self._worker.next_env_seed())

    def _sent(self, rollouts: Rollouts, indices: tuple[int, ...] | None, played: int) -> Iterator[Trajectories]:
        """Yield the kept batches, then clear them. Spaces travel only if they differ from those of the last batch."""
        try:
            batches = rollouts.batches(copy=self._shared)
        except BadStep as error:
            raise _placed(error, SamplerOrder(), None) from None
        at = played - rollouts.made
        for batch in batches:
            count, spec = len(batch.rollouts), batch.env_spec
            batch.indices = list(indices[at : at + count]) if indices is not None else []
            batch.env_spec = None if spec is self._spec else spec
            at, self._spec = at + count, spec
            yield batch
        rollouts.clear()

    def _prepare(self, order: SamplerOrder) -> None:
        """Apply updates. Their errors reach the caller, whatever `on_failure` says."""
        worker = self._worker
        try:
            if order.incarnation != self._incarnation:
                self._incarnation = order.incarnation
                self._seed(worker)
                if getattr(worker, "by_index", False):
                    worker.seed_episode(worker.next_env_seed())
            if order.indices is not None and not getattr(worker, "by_index", False):
                raise UsageError(
                    f"a {type(worker).__name__} cannot play single episodes by index, so neither "
                    "ordered=True nor evaluate works with it; a DefaultWorker can"
                )
            if order.indices is None and not any(each.agent for each in order.updates):
                worker.update_agent(None)  # no change, but a new request: a rollout must not span two requests
            for updates in order.updates:
                self._tell(worker, updates)
        except BaseException as error:
            attributes_of(error)["treadle_phase"] = "update"
            raise

    def _rebuild(self) -> None:
        """Replace the worker by a new one with the same agent and environment, and other seeds."""
        self._incarnation += 1
        try:
            self._worker.shutdown()
        except Exception as error:  # noqa: BLE001 - it is being replaced because it raises
            log.warning("worker %d, which is replaced: its shutdown raised %r", self._number, error)
        self._build()

    def _begin(self, root: int, index: int) -> None:
        """Seed everything, so that the next rollout depends on nothing but the root and its index."""
        worker, env_seed = self._worker, seeding.episode_env_seed(root, index)
        policy_seed = seeding.episode_policy_seed(root, index)
        seeding.seed_globals(policy_seed)
        worker.seed_episode(env_seed)
        seed = getattr(worker.agent, "seed", None)
        if callable(seed):
            seed(policy_seed)

    def close(self) -> None:
        self._worker.shutdown()


def _raised(error: BaseException, order: SamplerOrder, index: int | None) -> Raised:
    placed = attributes_of(_placed(error, order, index))
    return Raised.of(error, placed["treadle_phase"], trail=placed.get("treadle_trail"), **placed["treadle_where"])


def _placed(error: BaseException, order: SamplerOrder, index: int | None) -> BaseException:
    """Return the same exception with its episode, and its step if the worker knew it."""
    seed = None if index is None else seeding.episode_env_seed(order.root, index)
    if type(error) is BadStep:
        in_step(error, None)
    placed = attributes_of(error)
    step = placed.get("treadle_step")
    episode = placed.get("treadle_episode") if index is None else index
    phase = "reset" if step == 0 else "rollout"
    placed.update(treadle_phase=phase, treadle_where={"episode": episode, "seed": seed, "step": step or None})
    return error
