"""`BatchEnv`, which sends a batch to a pool in chunks and joins the results.

The items of a batch may go to any slot, because their states travel with them. While chunks are left, every slot has
one at work and one waiting. A slot that is done gets the next chunk, so a slow item or a busy core delays only its own
chunk. If a worker dies, another one gets its chunk. Items without states continue each other, so then every slot has
one chunk.

A chunk should take some milliseconds: smaller chunks cost more in messages than they save in waiting. The number of
chunks therefore follows from the time that earlier items took.

`futures.py` has the pool, with a worker for each slot, and a future for the answer to every request.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from treadle.errors import UsageError, WorkerDied, WorkerTimeout
from treadle.memory.lent import ArenaBuffer, BufferPool, Region
from treadle.plan.external import ExternalProcess
from treadle.plan.futures import TAKING, Future, Workers
from treadle.plan.items import (
    ALIGN,
    MOST,
    Items,
    LaidRows,
    LaidStates,
    PlanOp,
    StateBatch,
    Work,
    WorkDone,
    balanced_chunks,
    columns,
    even_chunks,
    items_of,
    joined,
    lay,
    lift,
    state_batch,
)
from treadle.plan.work import stacked
from treadle.pool.pool import Pool
from treadle.pool.spent import Spent
from treadle.worker.life import RestartPolicy, State

OBSERVATIONS = (None, "last", "all")

MOST_BYTES = 256 * 2**20  # of all buffers together
MOST_BUFFERS = 32  # each is one mapping
LEAST_BYTES = 256 * 2**10  # of one buffer
LENT = 16 * 2**10  # bytes from which a chunk's observations are handed out without a copy
SPARE = 1.25  # factor for room, as states vary in size


class Span:
    """The requests that are sent between construction and `end`: those that may write to a buffer.

    The pool's record of open requests decides, because Ctrl-C may interrupt the sender at any moment.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._after, self._upto = pool.calls.last_id, sys.maxsize

    def end(self) -> None:
        """Close the span: later requests do not belong to it."""
        self._upto = self._pool.calls.last_id

    def over(self) -> bool:
        """Return True if every request, given up or not, has been answered or its worker's death handled."""
        for worker in self._pool.workers:
            for owed in worker.owed:
                if self._after < owed.request.id <= self._upto:
                    return False
        return True


@dataclass(frozen=True)
class RolloutBatch:
    """n sequences of actions, each played from its state until the sequence or the episode ended.

    Attributes:
        rewards: float64[n, T], where T is the length of the longest sequence; 0 after the end.
        lengths: int64[n], the number of actions that were applied.
        terminated, truncated: bool[n], how the episode ended; both False if the actions ran out first.
        states: n states at the end; None unless they were requested.
        observations: None unless they were requested. With `"last"`, n observations at the end, one array if they have
            the same dtype and shape. With `"all"`, one array (or list) of `lengths[i]` observations for each item.
    """

    rewards: np.ndarray
    lengths: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    states: list[Any] | None = None
    observations: Any = None

    @property
    def returns(self) -> np.ndarray:
        """float64[n]: the sum of each item's rewards."""
        return self.rewards.sum(axis=1)

    def __len__(self) -> int:
        return len(self.lengths)


class BatchEnv:
    """Several external processes as one environment that steps batches.

    Args:
        envs: the processes.
        blocking: let only one process work at a time.

    Raises UsageError (a ValueError) if the processes' observation or action spaces differ.
    """

    def __init__(self, envs: Sequence[ExternalProcess], blocking: bool = False) -> None:
        self._envs = list(envs)
        if not self._envs:
            raise UsageError("a batch environment needs at least one process")
        self._blocking = blocking
        for what in ("observation_space", "action_space"):
            first = getattr(self._envs[0], what)
            for index, env in enumerate(self._envs):
                if (other := getattr(env, what)) != first:
                    raise UsageError(f"process {index} has the {what} {other}, process 0 has {first}: they must agree")
        self._lanes: list[tuple[Workers, int]] = [(env._workers, env._slot) for env in self._envs]
        self._pools = list(dict.fromkeys(workers for workers, _ in self._lanes))
        self._seconds: dict[str, float] = {}  # "steps" or "rollouts" -> seconds that an item took lately
        self._room: dict[Any, float] = {}  # bytes of a region that an item took lately
        self._buffers: BufferPool | None = None
        pool = self._pools[0].pool
        self.spent = Spent(pool)
        self.spent.leave()
        # only processes of this machine see the arena; with workers in the caller there is nothing to share
        if len(self._pools) == 1 and pool.options.backend == "process":
            self._buffers = BufferPool(pool.memory.arena, least=LEAST_BYTES, most=MOST_BYTES, count=MOST_BUFFERS)

    def __len__(self) -> int:
        return len(self._envs)

    def __getitem__(self, index: int) -> ExternalProcess:
        return self._envs[index]

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the first environment."""
        if name.startswith("_") or "_envs" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._envs[0], name)

    # -- batches -----------------------------------------------------------------------------------------------------

    def make_transitions(
        self, actions: Any, states: Any = None, dt: Any = 1, return_state: bool | None = None, repeat: int = 1
    ) -> tuple[Any, ...]:
        """Step a batch; see `VectorizedEnv.step_batch`."""
        items = items_of(actions, states, dt, return_state, repeat)
        return columns(self._run(items, None), items.return_state)

    def rollouts(self, items: Items, observations: str | None) -> RolloutBatch:
        """Play a batch of rollouts; `items.actions` has a sequence for each. See `ParallelEnv.rollout_batch`."""
        if observations not in OBSERVATIONS:
            raise UsageError(f"observations must be None, 'last' or 'all', got {observations!r}")
        if items.states is None:
            raise UsageError("rollouts begin in states: give one for each item")
        dones = self._run(items, observations or "none")
        longest = max(done.rewards.shape[1] for done in dones)
        rewards = np.concatenate([np.pad(d.rewards, ((0, 0), (0, longest - d.rewards.shape[1]))) for d in dones])
        seen: Any = None
        if observations is not None:
            seen = joined(dones, "observations")
            seen = stacked(seen) if observations == "last" else seen
        states = joined(dones, "states") if items.return_state else None
        lengths, terminated, truncated = (np.array(joined(dones, p)) for p in ("lengths", "terminals", "truncateds"))
        return RolloutBatch(rewards, lengths, terminated, truncated, states, seen)

    def _run(self, items: Items, rollout: str | None) -> list[WorkDone]:
        """Run the items in chunks and return the chunks' results, in order."""
        n, slots, given = len(items.dts), len(self._lanes), items.states is not None
        self.spent.enter()
        what = "steps" if rollout is None else "rollouts"
        chunks = balanced_chunks(n, slots, self._seconds.get(what)) if given else even_chunks(n, slots)
        works: list[Work] = []
        k = items.repeat
        for lo, hi in chunks:
            work = Work(lo, items.actions[lo:hi], items.dts[lo:hi], None, items.return_state, k, lo // k)
            if items.states is not None:
                work.states = state_batch(items.states[work.base : (hi - 1) // k + 1])
            work.rollout = rollout
            works.append(work)
        each = (what, items.return_state)
        buffer = self._laid(works, self._room.get(each, 0)) if rollout is None else None

        span = Span(self._pools[0].pool)
        if buffer is not None:
            buffer.written = span.over
        try:
            answers = self._scatter(works, given)
        finally:
            span.end()
        took, room, dones = 0.0, 0.0, []
        for future, work in zip(answers, works, strict=True):
            done = future.value
            if done.failed is not None:
                item, raised = done.failed
                future.workers.raise_failed(future.slot, item, raised, n)
            if buffer is not None:
                _take_out(buffer, done)
            dones.append(done)
            took, room = took + done.seconds, max(room, done.room / len(work.actions))
        self._room[each] = room
        self._seconds[what] = 0.5 * (self._seconds.get(what, took / n) + took / n)
        self.spent.leave()
        return dones

    def _laid(self, works: list[Work], each: float) -> ArenaBuffer | None:
        """Give each chunk a region of a buffer, and put its states there. Return None without memory for a buffer.

        `each`: bytes for the result of an item.
        """
        if self._buffers is None:
            return None
        regions, at = [], 0
        for work in works:
            start = at + sum(map(len, work.states.data)) if isinstance(work.states, StateBatch) else at
            end = start + int(each * len(work.actions) * SPARE) + ALIGN
            regions.append((at, start, end))
            at = end
        buffer = self._buffers.take(at)
        if buffer is not None:
            for work, (at, start, end) in zip(works, regions, strict=True):
                if start > at:
                    work.states = lay(buffer.memory, at, work.states)
                work.region = Region(buffer.segment, buffer.segments, start, end)
        return buffer

    def _scatter(self, works: list[Work], given: bool) -> list[Future]:
        """Send the chunks to slots and return their answers, in order.

        `given`: True: items have states, so any slot may do any chunk. False: chunk i goes to slot i.
        Raises WorkerError if a worker fails, once all other answers have come.
        """
        todo, load = deque(range(len(works))), [0] * len(self._lanes)
        out: dict[int, tuple[Future, int]] = {}  # chunk -> its future, and the index of its lane
        answered: dict[int, Future] = {}
        error: BaseException | None = None
        while out or (todo and error is None):
            while todo and error is None and not (self._blocking and out):
                index = todo[0]
                at = self._next_lane(load, bool(out)) if given else index
                if at is None:
                    break
                workers, slot = self._lanes[at]
                try:
                    out[index] = workers.ask(slot, PlanOp.WORK, (works[index],)), at
                except Exception as raised:  # noqa: BLE001 - raised again once all answers have come
                    if not given or workers.by_slot[slot].state is not State.GONE:  # GONE: dropped during the wait
                        error = raised
                    continue
                todo.popleft()
                load[at] += 1
            if not out:
                continue
            index, future, at = _first_settled(out)
            del out[index]
            load[at] -= 1
            if future.error is None:
                answered[index] = future
            elif given and _can_go_on(future.error, future.workers):
                work = works[index]
                if work.region is not None:  # the result goes by message: the old worker may still write there
                    work.region = work.region._replace(start=work.region.end)
                todo.appendleft(index)
            elif error is None:
                error = future.error
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback refers to this frame: the cycle would keep the batch and its states
        return list(map(answered.__getitem__, range(len(works))))

    def _next_lane(self, load: list[int], waiting: bool) -> int | None:
        """Return the lane with the least work that takes requests; None if all have enough.

        A lane whose worker is still to restart counts only if no answers are `waiting`.
        """
        most = 2 if len(self._pools) == 1 else MOST * len(load)  # lanes of several pools get all chunks at once
        best: int | None = None
        for able in (TAKING, ALL_BUT_GONE):
            for at, (workers, slot) in enumerate(self._lanes):
                if load[at] < most and (best is None or load[at] < load[best]) and workers.by_slot[slot].state in able:
                    best = at
            if best is not None or waiting:
                return best
        for workers in self._pools:
            workers.pool.check()
        raise UsageError("all workers were dropped when they died")

    # -- all environments --------------------------------------------------------------------------------------------

    def sync_states(self, state: Any, blocking: bool = True) -> None:
        """Put every environment into one state, and return once all have it. `blocking`: one after the other."""
        _results([env.set_state(state, blocking=blocking) for env in self._envs])

    def reset(self, indices: Iterable[int] | None = None, return_states: bool = True) -> tuple[np.ndarray, ...]:
        """Reset all environments, or those of the indices.

        Returns arrays with an entry for each environment: (states,) observations [k, ...], infos object[k].
        """
        chosen = range(len(self._envs)) if indices is None else [int(index) for index in indices]
        if not chosen:
            raise UsageError("no environment to reset: give at least one index")
        for index in chosen:
            if not -len(self._envs) <= index < len(self._envs):
                raise IndexError(f"process {index} cannot be reset: there are {len(self._envs)} processes")
        results = _results([self._envs[i].reset(return_states=return_states, blocking=self._blocking) for i in chosen])
        *states, observations, infos = zip(*results, strict=True)
        return *(_array(list(column)) for column in states), np.stack(observations), _array(list(infos), loose=True)

    def close(self) -> None:
        """End all processes. Observations that the caller holds stay valid. Idempotent."""
        self._buffers = None
        self.spent.tell()
        for env in self._envs:
            env.close()


ALL_BUT_GONE = frozenset(State) - {State.GONE}


def _first_settled(out: dict[int, tuple[Future, int]]) -> tuple[int, Future, int]:
    """Wait for an answer and return (chunk, its future, its lane).

    Each `ExternalProcess` made by itself has its own pool; the wait is then for the oldest chunk's pool.
    """
    while True:
        for index, (future, at) in out.items():
            if future.settled:
                return index, future, at
        next(iter(out.values()))[0].workers.pump(None)


def _can_go_on(error: BaseException, workers: Workers) -> bool:
    """Return True if the worker failed and others can do its chunk."""
    calls = workers.pool.calls
    ours = isinstance(error, WorkerDied | WorkerTimeout)
    return ours and calls.policy is not RestartPolicy.RAISE and calls.broken is None


def _take_out(buffer: ArenaBuffer, done: WorkDone) -> None:
    """Take a chunk's results out of the buffer. Large observations stay there as long as an array refers to them."""
    if isinstance(done.states, LaidStates):
        done.states = lift(buffer.memory, done.states)
    if isinstance(done.observations, LaidRows):
        dtype, shape, at = done.observations
        done.observations = buffer.array(shape, dtype, at, LENT)


def _results(answers: list[Any]) -> list[Any]:
    """Return all answers, waiting for those that are futures. Raises the first error once all have come."""
    for answer in answers:
        if isinstance(answer, Future):
            answer.exception()
    return [answer.result() if isinstance(answer, Future) else answer for answer in answers]


def _array(values: list[Any], *, loose: bool = False) -> np.ndarray:
    """Return one array: arrays are stacked, other values become an array of objects."""
    if not loose and isinstance(values[0], np.ndarray):
        return np.stack(values)
    return np.fromiter(values, object, len(values))
