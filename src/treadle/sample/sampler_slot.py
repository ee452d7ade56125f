"""The program that hosts a sampler's worker: applies updates, plays rollouts, streams them until it is told to stop.

Two ways to stream. *Arriving*: rollout after rollout until the order's number is made or the caller stops it; a stop
interrupts an episode at its next step. *By index*: the rollouts of an order's indices, each from seeds of its own, so
that a rollout does not depend on who makes it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from treadle import seeding
from treadle.errors import UsageError
from treadle.pool.file_buffers import Lender
from treadle.pool.original import attributes_of
from treadle.pool.parcel import Parcel
from treadle.program.base import Program, StreamControl
from treadle.program.registered import register_missing
from treadle.sample import cores
from treadle.sample.bench import BATCH, Bench
from treadle.sample.contract import BadStep, in_step
from treadle.sample.haul import Haul
from treadle.sample.worker import GLOBALS

log = logging.getLogger("treadle")

PARTS = 4  # messages at least that an order for several rollouts is answered with


@dataclass(frozen=True)
class SlotRecipe:
    """How to set a worker up.

    Attributes:
        factory: called with the worker's number.
        agent, env: for its first updates.
        root: the seed to derive from where the sampler has none; else None.
        registrations: the caller's Gymnasium registry, see `program.registered`.
    """

    factory: Any
    agent: Any
    env: Any
    root: int | None
    registrations: bytes | None


@dataclass(frozen=True)
class Order:
    """What a worker is asked to do.

    Attributes:
        agent, env: updates to apply first, in this order.
        most: rollouts to make; None: until stopped.
        steps: so many steps are worth a message, also where there could be more in it.
        indices: None, or which rollouts to make.
        root: the seed of rollouts with indices.
        aside: leave the worker's own randomness as it was (for an evaluation between two samplings).
        incarnation: how often the worker was replaced.
        rebuilds: how often a worker that raises is built anew before that is told as its failure.
    """

    agent: tuple[Parcel, ...] = ()
    env: tuple[Parcel, ...] = ()
    most: int | None = None
    steps: int = 1 << 40
    indices: tuple[int, ...] | None = None
    root: int = 0
    aside: bool = False
    incarnation: int = 0
    rebuilds: int = 0


@dataclass(frozen=True)
class Mishap:
    """A worker raised and was built anew. `text`: what it raised, in a line."""

    text: str


class SamplerSlot(Program):
    """Args:
    recipe: how to set the worker up.
    number: the worker's.
    shared: does it live in the caller's own process, whose random generators are none of its business?
    """

    def __init__(self, recipe: SlotRecipe, number: int, shared: bool) -> None:
        self._recipe, self._number, self._shared = recipe, number, shared
        self._incarnation = 0
        self._agent: tuple[Parcel, ...] = ()  # what it was told since, for a worker that is built anew
        self._env: tuple[Parcel, ...] = ()
        self._lender: Lender | None = None
        self._bench: Bench | None = None
        self._root: int | None = None  # of the seeds by index
        with seeding.keep_globals() if shared else nullcontext():
            self._build()
            self._own = seeding.OwnGlobals(seeding.GlobalState()) if shared else None
        if not shared:
            cores.take_one()

    def lend(self, lender: Lender) -> None:
        self._lender, self._bench = lender, Bench(self._worker, lender)

    def _build(self) -> None:
        recipe = self._recipe
        register_missing(recipe.registrations)
        worker = recipe.factory(self._number)
        self._seed(worker)
        worker.update_agent(recipe.agent)
        worker.update_env(recipe.env)
        for parcel in self._agent:
            worker.update_agent(parcel.open())
        for parcel in self._env:
            worker.update_env(parcel.open())
        self._bench = Bench(worker, self._lender)

    def _seed(self, worker: Any) -> None:
        """Where the sampler has no seed, and for a worker that stands in for another: seeds of its own."""
        root = self._recipe.root
        if root is None and self._incarnation == 0:
            return
        root = getattr(worker, "_root", 0) if root is None else root
        if hasattr(worker, "reseed"):
            worker.reseed(root, self._incarnation)
        seeding.seed_globals(seeding.derive(root, GLOBALS, self._number, self._incarnation))

    @property
    def _worker(self) -> Any:
        return self._bench.worker if self._bench is not None else None

    def _at_work(self) -> Bench:
        assert self._bench is not None
        return self._bench

    def stream(self, order: Order, control: StreamControl) -> Iterator[Haul | Mishap]:
        """Yield hauls until the order is done or stopped."""
        playing = self._play(order, control)
        yield from playing if self._own is None else self._own.run(playing)

    def _play(self, order: Order, control: StreamControl) -> Iterator[Haul | Mishap]:
        self._prepare(order)
        bench = self._at_work()
        bench.guard(control.stopped)
        bench.clear()  # of what the order before could not send
        before = seeding.GlobalState() if order.aside else None
        indices = order.indices
        most = order.most if indices is None else len(indices)
        played, told, left = 0, None, order.rebuilds
        # who dies loses no more than what lies here; by index it is made again
        batch = BATCH if order.most is None else min(BATCH, max(1, -(-order.most // PARTS)))
        while (most is None or played < most) and not control.stopped():
            try:
                if indices is not None:
                    self._begin(order.root, indices[played])
                if not bench.play():
                    break
            except BaseException as error:  # noqa: BLE001 - raised on, with its place
                yield from self._sent(bench, indices, played)
                bench.clear()
                if not isinstance(error, Exception) or left <= 0:
                    raise _placed(error, order, None if indices is None else indices[played]) from None
                left -= 1
                yield Mishap(f"{type(error).__name__}: {error}")
                self._rebuild()
                bench, told = self._at_work(), None
                bench.guard(control.stopped)
                continue
            played, left = played + 1, order.rebuilds
            if self._shared or bench.due(order.steps, batch) or played == most:
                for haul in self._sent(bench, indices, played):
                    spec = haul.env_spec
                    haul.env_spec = None if spec is told else spec
                    told = spec
                    yield haul
                bench.clear()
        bench.clear()
        if before is not None:
            before.restore()
            self._worker.seed_episode(self._worker.next_env_seed())

    def _sent(self, bench: Bench, indices: tuple[int, ...] | None, played: int) -> list[Haul]:
        """What lies on the bench, ready to go."""
        try:
            hauls = bench.hauls(copy=self._shared)
        except BadStep as error:
            raise _placed(error, Order(), None) from None
        at = played - bench.made
        for haul in hauls:
            count = len(haul.rollouts)
            haul.indices = list(indices[at : at + count]) if indices is not None else []
            at += count
        return hauls

    def _prepare(self, order: Order) -> None:
        """Apply updates. What they raise is the caller's to know, whatever is to become of workers that fail."""
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
                    "schedule='deterministic' nor evaluate works with it; a DefaultWorker can"
                )
            for parcel in order.agent:
                worker.update_agent(parcel.open())
            self._agent = latest(self._agent, order.agent)
            if not order.agent and order.indices is None:
                worker.update_agent(None)  # no change, but a new request: no rollout spans two of them
            for parcel in order.env:
                worker.update_env(parcel.open())
            self._env = order.env or self._env
        except BaseException as error:
            attributes_of(error)["treadle_phase"] = "update"
            raise

    def _rebuild(self) -> None:
        """A new worker with the same agent and environment, and other seeds."""
        self._incarnation += 1
        try:
            self._worker.shutdown()
        except Exception as error:  # noqa: BLE001 - it is being replaced because it raises
            log.warning("worker %d, which is replaced: its shutdown raised %r", self._number, error)
        self._build()

    def _begin(self, root: int, index: int) -> None:
        """Make the next rollout depend on nothing but the root and its index."""
        if self._root != root:
            self._root, self._env_seeds = root, seeding.SeedStream(root, 0)
            self._policy_seeds = seeding.SeedStream(root, 1)
        worker, policy_seed = self._worker, self._policy_seeds(index)
        seeding.seed_globals(policy_seed)
        worker.seed_episode(self._env_seeds(index))
        seed = getattr(worker.agent, "seed", None)
        if callable(seed):
            seed(policy_seed)

    def close(self) -> None:
        if self._bench is not None:
            self._worker.shutdown()


def latest(told: tuple[Parcel, ...], update: tuple[Parcel, ...]) -> tuple[Parcel, ...]:
    """What brings a new worker's agent to where it is after an update: parameters go on top of the agent they are for.

    A parcel's note says whether it holds parameters.
    """
    if update and told and update[0].note and not told[0].note:
        return told[0], update[-1]
    return update or told


def _placed(error: BaseException, order: Order, index: int | None) -> BaseException:
    """The same exception, knowing in which episode it happened, and in which step if its worker could tell."""
    seed = None if index is None else seeding.episode_env_seed(order.root, index)
    if type(error) is BadStep:
        in_step(error, None)
    placed = attributes_of(error)
    step = placed.get("treadle_step")
    episode = placed.get("treadle_episode") if index is None else index
    phase = "reset" if step == 0 else "rollout"
    placed.update(treadle_phase=phase, treadle_where={"episode": episode, "seed": seed, "step": step or None})
    return error
