"""Treadle's entries: the pool in lockstep, with everything on (checks, flags, infos, safe batches, death watch)."""

from typing import Any

from benchmarks.contestants import VectorSession
from benchmarks.workloads import SEED, Workload
from treadle.pool.pool import Pool
from treadle.program.gym_env import gym_env
from treadle.program.step import OnEnd


class Treadle:
    """A pool with SAME_STEP ends, so that every row of every batch is a step.

    inline: the caller steps one share of the slots itself, with one worker less than cores; else workers only.
    copy: safe batches (leases) or plain views.
    """

    def __init__(self, name: str, *, inline: bool, copy: bool = True) -> None:
        self.name, self._inline, self._copy = name, inline, copy

    def refusal(self, workload: Workload) -> str | None:
        return None

    def setup(self, workload: Workload, n_envs: int, workers: int) -> VectorSession:
        inline = -(-n_envs // workers) if self._inline else 0
        pool = Pool(
            [gym_env(workload.make, on_end=OnEnd.SAME_STEP)] * n_envs,
            workers=max(1, workers - 1) if self._inline else workers,
            inline=inline,
            copy=self._copy,
        )
        pool.reset(seeds=list(range(SEED, SEED + n_envs)))
        step = pool.step

        def five(actions: Any) -> tuple[Any, Any, Any, Any, Any]:
            return step(actions)[:5]

        pids = [m.worker.pid for m in pool.members if m.worker.pid]
        return VectorSession(five, workload, n_envs, close=pool.close, reset_rows=False, pids=pids)


def contestants() -> list[Treadle]:
    return [Treadle("Treadle inline", inline=True), Treadle("Treadle workers only", inline=False)]
