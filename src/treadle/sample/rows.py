"""The courier of slots whose policy is in the caller: workers step, and one call of the policy serves all ready slots.

The slots have no fixed groups. A slot whose step has arrived waits for the policy. The batch former (`batching.py`)
decides when the policy is asked, and for which slots; meanwhile the others step. A slot whose episode has ended begins
the next index at once. The index, its seeds, its own generators and state decide an episode, as in workers.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np

from treadle import seeding
from treadle.errors import BadAction, UsageError, Where, WorkerError
from treadle.lockstep.batch import SlotRows
from treadle.play.recipe import SKIPPED, Results, RolloutRecipe
from treadle.play.rounds import RESULTS, AskedSlot, Begin, Globals
from treadle.pool import failure, tracing
from treadle.pool.events import Done, Lost
from treadle.pool.pool import Pool
from treadle.program.asking import CallerPolicy
from treadle.program.gym_env import Suite
from treadle.program.policies import _mends, built_policy, casts, policy_name
from treadle.sample import failed
from treadle.sample.batching import BatchFormer
from treadle.sample.fate import ByIndexFate, spaces_played
from treadle.sample.inference import ENVS_PER_WORKER
from treadle.sample.schedule import ByIndex
from treadle.spaces import Layout, Mismatch
from treadle.wire.info_rows import InfoRows
from treadle.wire.line import BUSY_NS
from treadle.wire.messages import Op, Raised
from treadle.worker.recorder import WORKER, Recorder
from treadle.worker.worker import Worker

LONG_STEP = 1e-4  # seconds; steps that take longer travel alone, shorter ones of one worker together


class Rows:
    """A courier of indices, see `treadle.stream.stream`.

    Args:
        recipe: how an episode is played; with `asking`.
        pool, source, fate: as of `Orders`.

    Attributes:
        policy: gets the rows; it is closed with the pool.
        former: decides when it is asked.
        acting: None, or called with (index, steps so far) of each episode before the policy is asked for it.
    """

    acting: Callable[[int, int], None] | None = None

    def __init__(self, recipe: RolloutRecipe, pool: Pool, source: ByIndex, fate: ByIndexFate) -> None:
        assert recipe.asking is not None
        asking = self._asking = recipe.asking
        self._pool, self._calls, self._source, self._fate = pool, pool.calls, source, fate
        self._fresh_env = recipe.fresh_env
        fate.playing = self._playing_in
        self._seats = pool.n - pool.later  # episodes that are played at a time; who is added has a slot for one
        source.workers, source.least = len(pool.workers), self._seats
        self._check_alike()
        self._actions = Layout.of(spaces_played(pool.descriptions[0])[1])
        self.policy = CallerPolicy(
            built_policy(asking.policy, *spaces_played(pool.descriptions[0])),
            policy_name(asking.policy),
            pad_to=asking.pad_to,
            n_action_steps=asking.n_action_steps,
            deterministic=recipe.deterministic,
        )
        self.former = BatchFormer(self._seats, source.workers, asking.batch_size, asking.max_wait, asking.pad_to)
        assert pool.memory.rows is not None  # such a pool has rows
        self._rows = SlotRows(pool.memory.rows, pool.by_slot, cast=True)
        self._playing: dict[int, int] = {}
        self._steps = np.zeros(pool.n, np.int64)  # answered in the slot's episode
        self._since = np.zeros(pool.n)  # when its request was sent
        self._begun = np.zeros(pool.n, np.int64)  # episodes that its present environment has begun
        self._failed_envs: set[int] = set()  # slots whose environment has raised: the next episode has a new one
        self._moves: set[int] = set()  # slots whose episodes workers that were added are to play
        self._coming = 0  # slots whose requests are under way
        self._busy: dict[int, float] = {}  # worker -> seconds a step of its takes, as far as was seen
        self._counted: dict[int, tuple[int, int]] = {}  # worker -> steps not yet noted, its nanoseconds before them
        if tracing.current is not None:
            self._record(tracing.current.caller)

    def _record(self, recorder: Recorder) -> None:
        """A trace has when the policy was asked, and how long the first row of each batch had waited."""
        recorder.lanes[tracing.FORMER] = "batch former"
        recorder.swap(WORKER, "policy", self.policy, "ask")
        former, take, latest = self.former, self.former.take, 0.0

        def taken(now: float, coming: int) -> list[int]:
            nonlocal latest
            since = max(former.first or now, latest)  # who was left over has waited for longer
            if slots := take(now, coming):
                recorder.note((tracing.FORMER, f"{len(slots)} rows", int(since * 1e9), int(now * 1e9)))
                latest = now
            return slots

        recorder.put(former, "take", taken)

    @staticmethod
    def pool(
        recipe: RolloutRecipe, source: ByIndex, workers: int, most: float, globals: Globals, **options: Any
    ) -> Pool:
        """The workers, to which others may be added (`most` in all)."""
        asking, suite = recipe.asking, isinstance(recipe.env.env, Suite)
        assert asking is not None
        count = asking.num_envs or workers * ENVS_PER_WORKER
        asking.check_batch(count)
        count = source.bounded(count)
        workers = min(workers, count)
        later = 0 if suite else max(0, int(min(most, count) - workers))  # a suite's environments are counted
        recipe = dataclasses.replace(recipe, policy=None, rows=1, asking=None, packs=False)  # each with its last step
        n, shared = asking.n_action_steps, count > workers
        factories = [partial(AskedSlot, recipe, slot, globals, n, shared) for slot in range(count + later)]
        return Pool(factories, workers=workers, later=later, blocks=1, **options)

    def _check_alike(self) -> None:
        """Rows of one batch have one space; those of the user's own may not know that they are equal."""
        first_spaces = spaces_played(self._pool.descriptions[0])
        for slot, about in enumerate(self._pool.descriptions):
            for what, first, other in zip(("observation", "action"), first_spaces, spaces_played(about), strict=True):
                knows = type(other).__eq__ is not object.__eq__ or type(first) is not type(other)
                if knows and first != other:
                    raise UsageError(
                        f"all environments of one policy have one {what} space: that of slot {slot} is {other}, that "
                        f"of slot 0 {first}"
                    )

    def forget(self) -> None:
        """Nothing is under way any more, and what was being played is given up."""
        # who owes what the calls know: an interrupt may have lost what was told here, and the count with it
        self._coming = 0
        self._playing.clear()
        self.former.clear()

    # -- handing out -------------------------------------------------------------------------------------------------

    def give(self, held: int) -> None:
        """Begin episodes in slots that have none, and ask the policy for those that wait."""
        source, wear = self._source, self._calls.wear
        free: list[tuple[int, int, Worker]] = []  # in whose turn it is: first those of who plays least
        for worker in self._fate.able() if self._fate.failure is None and len(self._playing) < self._seats else ():
            mine = [slot for slot in worker.slots if slot not in self._playing]
            free += [(at, slot, worker) for at, slot in enumerate(mine, len(worker.slots) - len(mine))]
        enough: set[int] = set()
        for _, slot, worker in sorted(free, key=itemgetter(0)) if source.tally.added else free:
            if len(self._playing) < self._seats and worker.index not in enough:
                ahead = len(source.dealt[worker.index])
                wanted = int(ahead < len(worker.slots))
                if wanted and wear.able:
                    wanted = min(wanted, wear.left(worker, ahead, 1))
                if indices := source.take(worker.index, wanted, held):
                    self._begin(worker, slot, indices[0])
                else:
                    enough.add(worker.index)
        while slots := self.former.take(time.monotonic(), self._coming):
            self._ask(sorted(slots))

    def _begin(self, worker: Worker, slot: int, index: int, anew: bool = False) -> None:
        anew = anew or slot in self._failed_envs
        self._failed_envs.discard(slot)
        self._begun[slot] = 1 if anew or self._fresh_env else self._begun[slot] + 1
        self._playing[slot] = index
        self._source.deal(worker.index, [index])
        self._steps[slot] = 0
        self.policy.start(slot, seeding.episode_policy_seed(self._source.root, index))
        order = {slot: (seeding.episode_env_seed(self._source.root, index), Begin(index, self._source.root, anew))}
        self._submit(worker, Op.RESET, order, [slot])

    def _submit(self, worker: Worker, op: Op, payload: Any, slots: list[int]) -> None:
        self._calls.submit(worker, op, payload, slots, tuple(slots), self._rows.block)
        self._since[slots] = time.monotonic()
        self._coming += len(slots)

    # -- the policy --------------------------------------------------------------------------------------------------

    def _ask(self, slots: list[int]) -> None:
        """Ask the policy about these slots, and send them on their ways."""
        if self.acting is not None:
            for slot in slots:
                self.acting(self._playing[slot], int(self._steps[slot]))
        began = time.monotonic()
        try:
            actions, infos = self.policy.ask(self._rows.read(slots), slots)
            mailed = self._rows.write(actions, slots)
        except Exception as error:  # noqa: BLE001 - whatever the policy raises is placed
            self.former.policy += time.monotonic() - began
            blamed = self._blamed(error, slots)
            raise blamed from blamed.__cause__
        rows = {slot: row for row, slot in enumerate(slots)}
        for worker, mine in self._rows.by_worker(slots):
            if infos is not None:
                said: dict[int, Any] = {slot: ("note", (self._spread(infos[rows[slot]]),), {}) for slot in mine}
                self._calls.submit(worker, Op.CALL, said, mine, None)
            alone = self._busy.get(worker.index, 1.0) >= LONG_STEP
            for group in [[slot] for slot in mine] if alone else [mine]:
                self._submit(worker, Op.STEP, self._rows.step_payload(worker, group, mailed), group)
        now = time.monotonic()
        self.former.answered(len(slots), began, now)
        if self.former.batches == 1 and (cast := casts(actions, self._actions)):
            self.policy.told.append(cast)
        for told in self.policy.told:
            self._fate.remarks[told] = 0, told
        self.policy.told.clear()

    def _spread(self, info: dict[str, Any]) -> list[dict[str, Any]]:
        """The policy's info of one answer by steps: it belongs to the step it was asked at, or has one for each."""
        steps = self._asking.n_action_steps
        if steps is None:
            return [info]
        planned = {key: np.ndim(value) > 0 and len(value) >= steps for key, value in info.items()}
        told = []
        for step in range(steps):
            own = {key: value[step] for key, value in info.items() if planned[key]}
            first = {key: value for key, value in info.items() if not planned[key]}
            told.append({**own, **(first if step == 0 else {}), "asked": step == 0})
        return told

    def _blamed(self, error: Exception, slots: list[int]) -> Exception:
        """A policy's error, with the episodes of its batch."""
        row = error.row if type(error) is Mismatch and error.row is not None else None
        if row is None:
            row = min(range(len(slots)), key=lambda each: self._playing[slots[each]])
        index = self._playing[slots[row]]
        batch = f"batch {self.former.batches + 1} of {len(slots)} rows"
        if type(error) is Mismatch:
            hint = f"{error}{_mends(error)}"
            error = UsageError(f"row {row} of {batch}: the policy's actions do not fit the action space: {hint}")
        elif isinstance(error, BadAction):
            error = UsageError(f"{batch}: {error}")
        seed, step = seeding.episode_env_seed(self._source.root, index), int(self._steps[slots[row]]) + 1
        raised = Raised.of(error, "policy", step=step, episode=index, seed=seed)
        told = failure.task_error(raised, Where(slots[row]))
        found = failed.raised(told, self._source.root, self._source.schedule.finished)
        others = sorted(self._playing[slot] for slot in slots)
        found.add_note(f"the policy was asked in the caller, in {batch}, for episodes {', '.join(map(str, others))}")
        return found

    # -- taking ------------------------------------------------------------------------------------------------------

    def ready(self, worker: Worker) -> None:
        """A worker has begun: its slots have new environments, and perhaps there are more of them than there were."""
        self._fate.ready(worker)
        workers = self.former.workers = self._source.workers
        self._source.least = self._seats + self._source.tally.added
        if not self._calls.growing:
            self.former.choose()
            fair = -(-self._seats // workers)
            for each in self._pool.workers:
                mine = sorted(self._playing.keys() & each.slots, key=self._steps.__getitem__, reverse=True)
                self._moves.update(mine[fair:])
        self._begun[list(worker.slots)] = 0
        self._failed_envs.difference_update(worker.slots)

    def patience(self) -> float | None:
        """Until a failure is raised, or a batch is asked however few wait."""
        limits = [self._fate.patience(), self.former.wait(time.monotonic())]
        return min((limit for limit in limits if limit is not None), default=None)

    def answered(self, event: Done) -> Results:
        """The episodes that have ended with a step; slots that have not wait for the policy."""
        slots, worker, extras = event.tag, event.worker, event.reply.extras
        if type(slots) is not tuple:
            return []
        now = time.monotonic()
        self._coming -= len(slots)
        infos: Any = {}
        raised: dict[int, Raised] = {}
        if extras is not None:
            infos = extras.infos.rows() if type(extras.infos) is InfoRows else extras.infos
            raised = extras.raised
            self._rows.heard(extras)
        found: Results = []
        for slot in slots:
            if slot in raised:
                self._slot_raised(worker, slot, raised[slot])
                continue
            results = infos.get(slot, {}).get(RESULTS, ())
            if event.call.op is Op.STEP:
                self._steps[slot] += self._asking.n_action_steps or 1
            if results:
                found += self._fate.heard(worker, slot, results)
            if any(length for _, length, _ in results):  # its episode has ended; what else there is are remarks
                del self._playing[slot]
            elif slot in self._moves:  # another begins it again, sooner done than this one of many
                self._moves.remove(slot)
                self._source.lose(worker.index, self._playing.pop(slot))
            else:
                self.former.ready(slot, now)
        self._time(worker, len(slots), now - float(self._since[slots[0]]))
        return found

    def _time(self, worker: Worker, steps: int, passed: float) -> None:
        """Note what a step takes, by the worker's own account where it has one. passed: since it was sent."""
        index, line = worker.index, worker.line
        if line is not None:
            # answers come together: those of one round of its slots are counted together, too
            counted, before = self._counted.get(index, (0, 0))
            steps, spent = counted + steps, int(line.words[BUSY_NS])
            if steps < len(worker.slots):
                self._counted[index] = steps, before
                return
            self._counted[index] = 0, spent
            passed = max(spent - before, 0) * 1e-9
        seconds = passed / steps
        self.former.stepped(seconds)
        known = self._busy.get(index)
        self._busy[index] = seconds if known is None else 0.9 * known + 0.1 * seconds

    def _slot_raised(self, worker: Worker, slot: int, raised: Raised) -> None:
        """An environment has raised in its reset or step; in skipping it is tried once more in a new one."""
        index = self._playing.pop(slot)
        del self._source.dealt[worker.index][index]
        seed = seeding.episode_env_seed(self._source.root, index)
        step = None if raised.phase == "reset" else int(self._steps[slot]) + 1
        raised = dataclasses.replace(raised, episode=index, seed=seed, step=step)
        error = self._fate.error(raised, slot, worker)
        if self._fate.skips and raised.phase in SKIPPED and self._begun[slot] > 1:
            self._begin(worker, slot, index, anew=True)
            return
        self._failed_envs.add(slot)
        if self._fate.skips and raised.phase in SKIPPED:
            self._fate.skip(index, error)
            return
        self._fate.raised(error, None)

    def _playing_in(self, worker: Worker, error: WorkerError) -> tuple[list[int], bool]:
        slot = error.where.slot
        index = self._playing.get(slot) if slot is not None else None
        # the pool counts a slot's episodes; ours have the run's indices
        seed = None if index is None else seeding.episode_env_seed(self._source.root, index)
        step = int(self._steps[slot]) + 1 if index is not None and error.where.phase == "step" else None
        error.where = dataclasses.replace(error.where, episode=index, seed=seed, step=step)
        mine = list(self._source.dealt[worker.index])
        return [index] if index is not None else mine, len(mine) == 1

    def gone(self, event: Lost) -> None:
        """Note a worker's loss: its slots play nothing and do not wait."""
        worker = event.worker
        for tag in event.tags:
            self._coming -= len(tag) if type(tag) is tuple else 0
        self.former.gone(worker.slots)
        if event.verdict is None:  # nobody has asked yet what it was playing
            self._fate.blame(worker, event.error)
        for slot in worker.slots:
            self._playing.pop(slot, None)

    # -- workers that are added --------------------------------------------------------------------------------------

    def more(self) -> float:
        """For how many more workers there is something to do."""
        return min(self._seats - self._source.workers, self._source.unmade)

    def work(self, worker: Worker) -> tuple[float, int]:
        """See `Growth`: by its own account."""
        assert worker.line is not None
        return worker.line.words[BUSY_NS] * 1e-9, worker.line.taken
