"""A checkpoint: where a lockstep is, apart from its environments: counters and the last batch, to be put back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from treadle.errors import UsageError
from treadle.pool.lockstep import Lockstep
from treadle.pool.worker import Worker


@dataclass(frozen=True)
class Checkpoint:
    """Attributes:
    episode, seed: int64[n], as the rows have them.
    steps: int64[n], of each slot's episode.
    observations: the last batch's arrays, by leaf; None: there was no batch.
    valid: bool[n] of the last batch.
    loose: slot -> leaves of the last batch without a fixed shape.
    recovery: notes of a pool that goes on after a death.
    """

    episode: np.ndarray
    seed: np.ndarray
    steps: np.ndarray
    observations: list[np.ndarray | None] | None
    valid: np.ndarray | None
    loose: dict[int, list[Any]]
    recovery: dict[str, Any] | None


def take(lockstep: Lockstep) -> Checkpoint:
    """Where it stands. Raises UsageError when something is pending, or slots wait for a fresh worker or a reset."""
    lockstep._settle()
    recovery = lockstep.recovery
    if lockstep._stale or (recovery is not None and (recovery.due or recovery.gone)):
        raise UsageError("slots have lost their episode and wait for a reset, or were dropped: reset them first")
    memory, batches = lockstep.memory, lockstep._batches
    fields = memory.fields
    observations = None
    if batches.block >= 0:
        block = fields.blocks[batches.block]
        observations = [None if field is None else memory.array(field).copy() for field in block.observations]
    began = memory.array(fields.began)
    steps = np.array([_now(lockstep, worker, slot) for slot, worker in _workers(lockstep)], np.int64) - began
    notes = None
    if recovery is not None:
        notes = {"root": recovery._root, "lasting": dict(recovery._lasting), "earlier": recovery._earlier.copy()}
    return Checkpoint(
        memory.array(fields.episode).copy(),
        memory.array(fields.seed).copy(),
        steps,
        observations,
        batches.valid if batches.block >= 0 else None,
        dict(batches._last_loose),
        notes,
    )


def put(lockstep: Lockstep, checkpoint: Checkpoint) -> None:
    """Stand there again. The environments must have been put back already."""
    lockstep._settle()
    memory, batches = lockstep.memory, lockstep._batches
    fields = memory.fields
    memory.array(fields.episode)[:] = checkpoint.episode
    memory.array(fields.seed)[:] = checkpoint.seed
    began = memory.array(fields.began)
    for slot, worker in _workers(lockstep):
        began[slot] = _now(lockstep, worker, slot) - checkpoint.steps[slot]
    batches._last_loose = dict(checkpoint.loose)
    if checkpoint.observations is not None:
        number = lockstep._buffers.take()
        block = fields.blocks[number]
        for field, array in zip(block.observations, checkpoint.observations, strict=True):
            if field is not None and array is not None:
                memory.array(field)[:] = array
        memory.array(block.valid)[:] = checkpoint.valid
        for field in (block.rewards, block.terminated, block.truncated):
            memory.array(field)[:] = 0
        batches.block, batches._lost = number, set()
        batches.hand_out(number)
    recovery = lockstep.recovery
    if recovery is not None and checkpoint.recovery is not None:
        recovery._root = checkpoint.recovery["root"]
        recovery._lasting = dict(checkpoint.recovery["lasting"])
        recovery._earlier[:] = checkpoint.recovery["earlier"]
        recovery.due.clear()
        recovery._fresh.clear()
    lockstep._must_reset = False
    lockstep._stale.clear()


def _workers(lockstep: Lockstep) -> list[tuple[int, Worker]]:
    return [(slot, worker) for worker in lockstep.pool.in_slot_order() for slot in worker.slots]


def _now(lockstep: Lockstep, worker: Worker, slot: int) -> int:
    """Steps that the slot has taken since its worker started."""
    own = int(lockstep.memory.array(lockstep.memory.fields.own)[slot])
    together = worker.server._ticks if worker.line is None else worker.line.posted - worker.asides
    return int(together) + own
