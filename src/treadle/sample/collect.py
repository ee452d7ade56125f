"""Collecting: whole episodes from many workers, the same bytes for any number of them.

`Collection` drives a pool of `RolloutSlot`s by a `Schedule`: it issues tickets, takes results as they come, replaces
workers that die, and stops when the schedule is complete. `collect` puts the results in order and yields episodes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from treadle import seeding
from treadle.pool import bell, calls, failure
from treadle.pool.member import Answered, Failed, Member, Started
from treadle.pool.messages import Op
from treadle.pool.pool import Pool
from treadle.pool.tickets import END
from treadle.program.gym_env import EnvRecipe
from treadle.progress import Progress, Standing
from treadle.sample import failed
from treadle.sample.arguments import check_amounts, check_options, check_seed
from treadle.sample.episode import Episode
from treadle.sample.failed import CollectionFailed
from treadle.sample.named import env_of
from treadle.sample.rollout_slot import (
    BATCH,
    SKIPPED,
    Globals,
    Remark,
    RolloutOrder,
    RolloutRecipe,
    RolloutSlot,
    Shares,
)
from treadle.sample.schedule import Schedule
from treadle.sample.skipping import DEATHS, HINT, Skipped, Skipping
from treadle.sample.watch import Watch

__all__ = ["Collection", "CollectionFailed", "Tally", "collect"]

log = logging.getLogger("treadle")

AHEAD = 2 * BATCH  # tickets a worker that may be out at once: it can run ahead while the caller is busy
DEFAULT_BUFFER = 1 << 30
SETTLE = 10.0  # seconds that episodes before a failing one get to end, so that the first failure is the one told


@dataclass
class Tally:
    """What a run has done so far."""

    steps: int = 0
    episodes: int = 0
    restarts: int = 0
    speculative: int = 0
    by_worker: dict[int, int] = field(default_factory=dict)  # worker -> steps


class Collection:
    """One run. Iterate it for (index, length, result) in order of arrival; then `shares()`, and `close()`.

    When an episode fails, those with lower indices that other workers are playing may end first (for `SETTLE` seconds
    at most), and the failure of the lowest index is raised: which episode is told of does not depend on who was faster.

    Args:
        recipe: what a worker plays.
        schedule: which episodes.
        root: the run's seed.
        workers: how many; None: as many as cores. No more than there are episodes to make.
        backend: "process", "serial" or "thread".
        room: asked before a ticket is issued beyond one a worker: may the caller take more results?
        tell: None, or called with the `Standing` while it goes on.
        skipping: what becomes of an episode that fails; None: it ends the run, and there is no other way.
        skip: called with each episode that the run goes on without.
        pool_options: for the pool, with on_failure "restart" if nothing else is said. A worker is replaced as often as
            that gets the run on; with max_restarts, as often as that in ten minutes. Under "drop" it is not replaced,
            and the others go on.
    """

    def __init__(
        self,
        recipe: RolloutRecipe,
        schedule: Schedule,
        *,
        root: int = 0,
        workers: int | None = None,
        backend: str = "process",
        room: Callable[[int], bool] | None = None,
        skipping: Skipping | None = None,
        skip: Callable[[Skipped], None] | None = None,
        tell: Callable[[Standing], None] | None = None,
        **pool_options: Any,
    ) -> None:
        self._recipe, self.schedule, self._root = recipe, schedule, root
        self._skipping, self._hint = skipping or Skipping(False), skipping is not None and not skipping.skip
        self._note_skipped = skip or (lambda skipped: None)
        self._room = room or (lambda outstanding: True)
        self.tally = Tally(by_worker={})
        self._watch = Watch(schedule.standing(), tell, recipe.rows)
        count = workers or bell.cores()
        if schedule.end is not None:  # whoever would find nothing to do need not start
            count = max(1, min(count, schedule.end - len(schedule.lengths) - len(schedule.skipped)))
        if backend == "serial":
            count = 1
        globals = {"process": Globals.SEED, "serial": Globals.SWAP, "thread": Globals.LEAVE}.get(backend, Globals.SEED)
        factories = [partial(RolloutSlot, recipe, slot, globals) for slot in range(count)]
        pool_options.setdefault("on_failure", "restart")
        pool_options.setdefault("worker_output", "label")
        pool_options.setdefault("max_restarts", None)
        self.pool = Pool(factories, backend=backend, workers=count, rows=False, **pool_options)
        self.workers = count
        self._deaths: dict[int, int] = {}  # episode -> fresh workers that it has cost
        self._fresh = set(range(count))  # workers whose process has told of no result yet
        self._first: dict[int, list[int]] = {}  # worker -> lost episodes that it (or its replacement) plays first
        self._issued: list[int] = []  # tickets out, in the order of the pipe
        self._suspect = False  # has a death left a ticket that nobody signed for?
        self._failure: tuple[int, CollectionFailed] | None = None  # the lowest index that has failed
        self._deadline = 0.0  # when the failure is raised at the latest
        self._lost: set[int] = set()  # workers whose stream has ended in a failure
        self.remarks: dict[str, tuple[int, str]] = {}  # kind -> lowest index, text

    def __iter__(self) -> Iterator[tuple[int, int, Any]]:
        for member in self.pool.members:
            self._order(member, BATCH)
        watch = self._watch
        watch.begin(self.pool)
        self._issue()
        while not self.schedule.complete:
            events = self.pool.poll(watch.patience(self._patience()))
            watch.look()
            if not events and self._suspect:
                self._find_lost()
            for event in events:
                if isinstance(event, Answered):
                    yield from self._answered(event)
                elif isinstance(event, Failed):
                    self._failed(event)
                elif isinstance(event, Started):
                    self._fresh.add(event.member.index)
                    self._order(event.member, 1)
            if self._failure is None:
                self._issue()
            elif not self._awaited() or time.monotonic() > self._deadline:
                break
        watch.end()
        if self._failure is not None:
            error = self._failure[1]
            error.finished = len(self.schedule.lengths)
            raise error
        self.tally.speculative = len(self.schedule.issued) + len(self.schedule.speculative)

    def _patience(self) -> float | None:
        """Seconds to wait for the next event at most."""
        if self._failure is not None:
            return max(0.0, self._deadline - time.monotonic())
        return 0.05 if self._suspect else None

    def _awaited(self) -> list[int]:
        """Episodes before the one that failed, which workers that have not failed are playing."""
        assert self._failure is not None
        owner, first = self.pool.tickets.owner, self._failure[0]
        return [i for i in self.schedule.issued if i < first and owner(i) not in (None, *self._lost)]

    def _order(self, member: Member, batch: int) -> None:
        first = tuple(self._first.get(member.index, ()))
        for index in first:
            self.pool.tickets.sign(index, None)
        order = RolloutOrder(self._root, batch, first, self._skipping.skip)
        self.pool.send(member, Op.STREAM, dict.fromkeys(member.slots, order))

    def _issue(self) -> None:
        """Keep enough tickets out that nobody waits for the caller."""
        least, most = self.workers * self._recipe.rows, self.workers * (AHEAD + self._recipe.rows)
        issued = self.schedule.issued
        while len(issued) < most and (len(issued) < least or self._room(len(issued))):
            index = self.schedule.take()
            if index is None:
                return
            self._issued.append(index)
            self.pool.tickets.issue(index)

    def _answered(self, event: Answered) -> Iterator[tuple[int, int, Any]]:
        extras = event.reply.extras
        if extras is None:
            return
        for slot, raised in sorted(extras.raised.items()):
            member = event.member
            error = failure.task_error(raised, slot, None if member.inline else member.index, member.worker.pid)
            self._raised(failed.raised(error, self._root, len(self.schedule.lengths)), member)
        for slot, ready in extras.infos.items():
            worker = event.member.index
            if ready:
                self._fresh.discard(worker)
            for index, length, result in ready:
                if isinstance(result, Remark):
                    self._remark(index, result)
                    continue
                if self._first and index in self._first.get(worker, ()):
                    self._first[worker].remove(index)
                if not length:
                    shown = None if event.member.inline else worker
                    error = failure.task_error(result.raised, slot, shown, event.member.worker.pid)
                    self._skip(index, failed.raised(error, self._root, len(self.schedule.lengths)))
                    continue
                if not self.schedule.finish(index, length):
                    continue
                self.tally.steps += length
                self.tally.episodes += 1
                by_worker = self.tally.by_worker
                by_worker[event.member.index] = by_worker.get(event.member.index, 0) + length
                self._watch.heard(event.member, 1, length, result.total_reward)
                yield index, length, result
        if len(self._issued) > 4096:
            self._issued = [index for index in self._issued if index in self.schedule.issued]

    def _raised(self, error: CollectionFailed, member: Member) -> None:
        """An environment, a policy or the disk raised. Raises it, or notes it while episodes before it are played."""
        index = error.where.episode
        if error.where.phase in SKIPPED:
            error = self._hinted(error)
        if index is None or error.where.phase not in ("init", "policy", *SKIPPED):
            raise error
        self._lost.add(member.index)
        if self._failure is None:
            self._deadline = time.monotonic() + SETTLE
        if self._failure is None or index < self._failure[0]:
            self._failure = index, error

    def _remark(self, index: int, remark: Remark) -> None:
        known = self.remarks.get(remark.kind)
        if known is None or index < known[0]:
            self.remarks[remark.kind] = index, remark.text
        if known is None and remark.kind == "endless":  # said at once: the run might never end
            log.warning("%s", remark.text)

    def _failed(self, event: Failed) -> None:
        """A worker died: what it had claimed is made again, by a new worker in its place."""
        if self._failure is not None:  # the run is over: nothing is made again
            self._lost.add(event.member.index)
            return
        member, finished = event.member, len(self.schedule.lengths)
        worker = member.index
        lost = sorted(i for i in self.schedule.issued if self.pool.tickets.owner(i) == worker)
        given = self._first.pop(worker, [])
        drop = self.pool.policy is failure.Policy.DROP
        self._issued = [index for index in self._issued if index not in lost]
        self._suspect = True
        # what a worn worker dies of may be its age: an episode is guilty when it is the first that a worker plays
        first = given[:1] if given else lost if len(lost) == 1 else []
        guilty = list(lost) if drop else [i for i in first if i in lost and worker in self._fresh]
        for index in guilty:
            deaths = self._deaths[index] = self._deaths.get(index, 0) + 1
            member.barren = 0  # it was the episode
            if deaths >= self._skipping.deaths:
                error = failed.died(event.error, index, self._root, deaths, finished, fresh=not drop)
                if not self._skipping.skip or failed.in_policy(event.error):
                    raise error if failed.in_policy(event.error) else self._hinted(error)
                lost.remove(index)
                given = [i for i in given if i != index]
                self._skip(index, error)
        verdict = calls.verdict_on(self.pool.calls, member)
        if verdict.act is failure.Policy.RAISE:
            raise failed.died(event.error, None, self._root, member.barren, finished)
        again = sorted({*given, *lost})
        told = f"; made again: episode {', '.join(map(str, again))}" if again else ""
        if drop:
            for index in again:
                self.schedule.lose(index)
            calls.carry_out(self.pool.calls, member, verdict)
            log.warning("worker %d is dropped: %s%s", worker, failed.reason_of(event.error), told)
            return
        self.tally.restarts += 1
        log.warning("worker %d is replaced: %s%s", worker, failed.happened(event.error), told)
        # what was claimed last was at work, most likely: it is the first to be tried by itself
        self._first[worker] = [*sorted(lost, reverse=True), *(index for index in given if index not in lost)]
        calls.carry_out(self.pool.calls, member, verdict)

    def _skip(self, index: int, error: CollectionFailed) -> None:
        """An episode has failed and is left out. Raises when that makes too many."""
        schedule = self.schedule
        if not schedule.skip(index):
            return
        skipped = Skipped(index, seeding.episode_env_seed(self._root, index), error.reason)
        self._note_skipped(skipped)
        log.warning("%s; it is left out", error)
        why = self._skipping.too_many(schedule.skipped, schedule.episodes, len(schedule.lengths))
        if why:
            raise failed.too_many(error, why)

    def _hinted(self, error: CollectionFailed) -> CollectionFailed:
        """The same failure, with the option that leaves such an episode out, where there is one."""
        if self._hint:
            error.args = (f"{error}; {HINT}",)
        return error

    def _find_lost(self) -> None:
        """After a death and a quiet moment: tickets that were read from the pipe and never signed for."""
        tickets = self.pool.tickets
        waiting = tickets.waiting()
        out = [i for i in self._issued if i in self.schedule.issued]
        unclaimed = [i for i in out if tickets.owner(i) is None]
        for index in unclaimed[: len(unclaimed) - waiting]:
            self.schedule.lose(index)
        self._issued = [index for index in out if index in self.schedule.issued]
        self._suspect = False

    def shares(self) -> dict[int, Shares]:
        """Seconds spent, per worker. Ends the run: workers are asked once their streams are over."""
        members = [m for m in self.pool.members if m.state.value in ("idle", "busy")]
        self.pool.calls.stop_streams()
        for _ in range(self.workers * self._recipe.rows + 1):
            self.pool.tickets.issue(END)
        found: dict[int, Shares] = {}
        ids = {m.index: self.pool.send(m, Op.CALL, {m.slots[0]: ("shares", (), {})}) for m in members}
        while any(m.owed for m in members):
            events = self.pool.poll(self.pool.close_timeout)
            if not events:
                break
            for event in events:
                if isinstance(event, Answered) and event.reply.id == ids.get(event.member.index) and event.reply.extras:
                    found[event.member.index] = next(iter(event.reply.extras.infos.values()))
                elif isinstance(event, Failed):
                    log.warning("%s", event.error)
        return found

    def warn(self) -> None:
        """Log the remarks that were not logged at once; for faces that do not tell of them in another way."""
        for text in self.notes():
            log.warning("%s", text)

    def notes(self) -> list[str]:
        """The remarks that were not logged at once."""
        return [text for kind, (_, text) in self.remarks.items() if kind != "endless"]

    def close(self) -> None:
        self.pool.close()

    def __enter__(self) -> Collection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def collect(
    env: str | EnvSpec | Callable[..., gym.Env],
    policy: Any = None,
    *,
    episodes: int | None = None,
    steps: int | None = None,
    seed: int = 0,
    workers: int | str = "auto",
    ordered: bool = True,
    max_buffered: int = DEFAULT_BUFFER,
    envs_per_worker: int = 1,
    max_episode_steps: int | None = None,
    env_kwargs: dict[str, Any] | None = None,
    wrappers: Sequence[Callable[[gym.Env], gym.Env]] = (),
    imports: Sequence[str] = (),
    infos: bool = True,
    fresh_env: bool = False,
    on_error: str = "stop",
    max_skipped: int | float | None = None,
    max_deaths: int = DEATHS,
    backend: str = "process",
    progress: bool | None = False,
    **pool_options: Any,
) -> Iterator[Episode]:
    """Play whole episodes in parallel and yield them.

    Episode i is made from (seed, i) alone, so what is yielded is the same bytes in the same order for any number of
    workers. Leaving the loop (or closing the generator) closes the workers.

    Args:
        env: a registered id, "module:Id", an EnvSpec, a callable that returns an environment, or "module:make_env" or
            "file.py:make_env", which name one.
        policy: None for random actions, or see `treadle.program.policies`.
        episodes: how many. With neither this nor `steps` it goes on for ever.
        steps: instead, the shortest prefix of episodes whose lengths add up to at least so many steps.
        seed: the run's root seed.
        workers: worker processes, or "auto": one a core. No more are started than there are episodes to make.
        ordered: yield in order of index; False: as they come.
        max_buffered: bytes of finished episodes that may wait for their turn; workers wait when there are more.
        envs_per_worker: environments each worker plays at once; the policy sees batches of exactly so many rows.
        max_episode_steps: cut longer episodes (truncated).
        env_kwargs: for `gymnasium.make`, or the callable.
        wrappers: applied to each environment, in order.
        imports: modules to import in the workers first.
        infos: keep step infos?
        fresh_env: build a new environment for every episode (for those that carry something over).
        on_error: "stop": an episode that fails ends the run. "skip": it is left out, with a warning, when it fails in
            its reset or step (after it was tried once more in a new environment), or costs `max_deaths` fresh workers
            their lives or their time. What a policy or a constructor raises always ends the run.
        max_skipped: with "skip": how many episodes may be left out, as a number or as a share (0.1) of them; None: 5 %,
            and at least 3 as for every share. More of them, or all of the first ten, end the run.
        max_deaths: how many fresh workers may die or be killed on one episode. Those that a dead worker had begun go
            first to a fresh one, which plays each by itself; the episode is to blame for what it does to such a one.
        backend: "process", "serial" (in this thread) or "thread".
        progress: True: show on stderr how far it is: a bar on a terminal, a line that is written over in a notebook, a
            line every ten seconds elsewhere. None: only on a terminal, where rich is installed.
        pool_options: further arguments of `treadle.pool.pool.Pool`, such as start_method or start_timeout. With
            step_timeout=SECONDS a worker process in which nothing comes to its end for so long (a step, a reset, an
            action of the policy) is killed and its episode made again by another. Dead workers are replaced as often
            as it takes; max_restarts=N allows N replacements a worker in ten minutes, on_failure="raise" none, and
            with on_failure="drop" the other workers go on without the dead one.

    Raises:
        UsageError: contradictory arguments. Also StartupFailed, and CollectionFailed when an environment or policy
            raises, too many episodes fail, workers die that may not be replaced, or `max_deaths` on one episode.
    """
    recipe = RolloutRecipe(
        EnvRecipe(env_of(env), dict(env_kwargs or {}), tuple(wrappers), tuple(imports)),
        policy,
        envs_per_worker,
        max_episode_steps,
        infos,
        fresh_env=fresh_env,
    )
    check_amounts(episodes, steps, workers, envs_per_worker, max_episode_steps)
    check_seed(seed)
    check_options(pool_options)
    options = {
        "root": seed,
        "workers": None if workers == "auto" else int(workers),
        "backend": backend,
        "skipping": Skipping.of(on_error, max_skipped, max_deaths),
        **pool_options,
    }
    return _collect(recipe, Schedule(episodes, steps), ordered, max_buffered, progress, options)


def _collect(
    recipe: RolloutRecipe,
    schedule: Schedule,
    ordered: bool,
    max_buffered: int,
    progress: bool | None,
    options: dict[str, Any],
) -> Iterator[Episode]:
    if schedule.complete:
        return
    waiting: dict[int, Episode] = {}
    held = largest = 0

    def room(outstanding: int) -> bool:
        return held + largest * outstanding <= max_buffered

    shown = Progress(progress)
    with Collection(recipe, schedule, room=room, tell=shown.tell, **options) as run, shown:
        following = 0
        try:
            for index, _, episode in run:
                if not ordered:
                    if schedule.end is None or index < schedule.end:
                        yield episode
                    continue
                waiting[index] = episode
                largest = max(largest, episode.nbytes)
                held += episode.nbytes
                while following in schedule.skipped or following in waiting:
                    if schedule.end is not None and following >= schedule.end:
                        break
                    next_one = waiting.pop(following, None)
                    following += 1
                    if next_one is not None:
                        held -= next_one.nbytes
                        yield next_one
            for index in sorted(waiting):  # the last that was missing is one that is left out
                if schedule.end is None or index < schedule.end:
                    yield waiting[index]
        finally:
            run.warn()
