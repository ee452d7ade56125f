"""Libraries that are measured where they are installed: PufferLib, Tianshou, AllenAct.

plangym is not among them: it steps batches from given states, which `benchmarks/planning.py` measures.
"""

import importlib
from functools import partial
from typing import Any

import numpy as np

from benchmarks.contestants import Library, VectorSession
from benchmarks.rows import Row
from benchmarks.workloads import SEED


class PufferSerial(Library):
    """PufferLib's Serial: one process, one buffer that all environments write to, which is handed out as it is.

    The step after an end is a reset, as in Gymnasium. (Its parallel vectors are left out: their workers never sleep, so
    with the caller there are more busy processes than cores.)
    """

    name = "PufferLib Serial"
    library = "pufferlib.vector"

    def setup(self, row: Row, workers: int) -> VectorSession:
        """workers is ignored: all envs run in the caller. It seeds each env itself."""
        from pufferlib import vector
        from pufferlib.emulation import GymnasiumPufferEnv

        kwargs = {"env_creator": row.workload.make}
        envs = vector.make(GymnasiumPufferEnv, env_kwargs=kwargs, backend=vector.Serial, num_envs=row.n_envs)
        first = envs.reset(seed=SEED)[0]
        if not row.workload.seen:
            return VectorSession(envs.step, row, first, close=envs.close, reset_rows=True)
        # it hands out bytes; they are always the same ones
        fields = first.view(envs.emulated["emulated_observation_dtype"])
        seen = {row.workload.seen: fields[row.workload.seen][:, 0]}

        def step(actions: Any) -> tuple[Any, Any, Any, Any, Any]:
            _, rewards, terminated, truncated, infos = envs.step(actions)
            return seen, rewards, terminated, truncated, infos

        return VectorSession(step, row, seen, close=envs.close, reset_rows=True)


class TianshouDummy(Library):
    """Tianshou's vector in one process. Whoever steps it resets what has ended, as its Collector does."""

    name = "Tianshou Dummy"
    library = "tianshou.env"
    vector = "DummyVectorEnv"

    def setup(self, row: Row, workers: int) -> VectorSession:
        """workers is ignored: there is one process per env, or none."""
        assert self.library is not None
        envs = getattr(importlib.import_module(self.library), self.vector)([row.workload.make] * row.n_envs)
        envs.seed(SEED)
        first = envs.reset()[0]

        def step(actions: Any) -> tuple[Any, Any, Any, Any, Any]:
            observations, rewards, terminated, truncated, infos = envs.step(actions)
            over = np.flatnonzero(terminated | truncated)
            if len(over):
                observations[over] = envs.reset(over)[0]
            return observations, rewards, terminated, truncated, infos

        return VectorSession(step, row, first, close=envs.close, reset_rows=False)


class TianshouShmem(TianshouDummy):
    """Tianshou's vector with a process per environment and observations in shared memory."""

    name = "Tianshou Shmem"
    vector = "ShmemVectorEnv"


class AllenAct(Library):
    """AllenAct's vector of tasks, each an episode, with as many processes as cores.

    Its observations are lists of dicts, which are stacked for a policy. The tasks are Treadle's, which fit its vector.
    """

    name = "AllenAct"
    library = "allenact"

    def setup(self, row: Row, workers: int) -> VectorSession:
        from benchmarks.allenact import allenact_vectors, closed
        from treadle.tasks.gym import GymTaskSampler

        envs = allenact_vectors().VectorSampledTasks(
            GymTaskSampler,
            [{"env": row.workload.make, "seed": SEED + i} for i in range(row.n_envs)],
            multiprocessing_start_method="fork",
            max_processes=workers,
            should_log=False,
        )
        never, seen = np.zeros(row.n_envs, np.bool_), row.workload.seen
        policy = row.policy is not None and row.policy.kind in ("mlp", "cnn")

        def batch(observations: Any) -> Any:
            if not policy:
                return observations
            stacked = np.stack([one[seen or "observation"] for one in observations])
            return {seen: stacked} if seen else stacked

        def step(actions: Any) -> tuple[Any, Any, Any, Any, Any]:
            results = envs.step(list(actions))
            dones = np.array([result.done for result in results])
            return batch([r.observation for r in results]), [r.reward for r in results], dones, never, results

        return VectorSession(step, row, batch(envs.get_observations()), close=partial(closed, envs), reset_rows=False)
