"""Episodes of a `gymnasium.Env` straight into arrays, for a `DefaultWorker` of which nothing is overridden.

It does the same whichever way it is driven. So it is driven in the cheapest: by the loop that collecting has, without
an `EnvStep` a step, several episodes one after the other in the same rows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from treadle.pool.file_buffers import Lender
from treadle.pool.serve import snapshot
from treadle.sample.buffer import Recorder, dense
from treadle.sample.contract import BadStep, in_step, numbers
from treadle.sample.samplers.adapt import GymEnv, type_of
from treadle.sample.samplers.agents import action_of, reset_agent
from treadle.sample.samplers.columns import array_of, columns_of, kept, stacked
from treadle.sample.samplers.default_worker import DefaultWorker
from treadle.sample.samplers.steps import StepType
from treadle.sample.samplers.trajectories import Trajectories
from treadle.spaces import Layout

ORDINARY = ("rollout", "start_episode", "step_episode", "collect_episode", "seed_episode")


class DirectRollouts(Recorder):
    """Plays for one worker and one environment; see `direct_rollouts`.

    Attributes:
        env: the environment.
        episodes, rows: what was played since `clear`; rows are steps.
    """

    def __init__(self, worker: DefaultWorker, lender: Lender | None = None) -> None:
        self._worker = worker
        self.env: GymEnv = worker.env
        layout = Layout.of(self.env.observation_space)
        super().__init__(layout, None, kept, dict)
        self._row_bytes = layout.row_nbytes
        self.lend(lender)
        self.clear()

    @property
    def rows(self) -> int:
        return self._base

    @property
    def episodes(self) -> int:
        return len(self._lengths)

    @property
    def nbytes(self) -> int:
        """Bytes of the observations since `clear`."""
        return self.rows * self._row_bytes

    def clear(self) -> None:
        """Forget what was played; its arrays are written again from now on, or when the caller has let them go."""
        self._clear()
        self._lengths: list[int] = []
        self._ends: list[int] = []
        self._lasts: list[Any] = []
        self._episode_infos: list[dict[str, Any]] = []

    def rollout(self, stopped: Callable[[], bool]) -> bool:
        """One episode. True: it is among what `batch` returns. False: it was stopped, and is forgotten.

        Raises what environment and agent raise, and `spaces.Mismatch` for an observation that does not fit its space;
        then it is forgotten, too.
        """
        worker, agent = self._worker, self._worker.agent
        observation, episode_info = self.env.reset()
        self._give_up()
        self._begin(observation)
        episode_info = kept(episode_info)
        reset_agent(agent)
        get_action = getattr(agent, "get_action", None) or partial(action_of, agent)
        try:
            next(self.play(self.env.env.step, observation, worker._max_episode_length, (get_action, stopped)))
            return False
        except StopIteration as end:
            terminated, truncated = end.value
        except Exception as error:
            told = error if self.asking else _misshapen(error)
            in_step(told, self.length + 1)
            if told is error:
                raise
            raise told from None
        length = self.length
        self._lengths.append(length)
        self._ends.append(type_of(length, terminated, truncated))
        self._lasts.append(snapshot(self.last))
        self._episode_infos.append(episode_info)
        self._base += length
        return True

    def batch(self, *, copy: bool) -> Trajectories:
        """What was played since `clear`. Without `copy` its arrays are good until then.

        Raises `BadStep` for a reward that is no real number, ValueError for agents' infos whose keys come and go.
        """
        self._give_up()
        lengths = np.array(self._lengths, np.int64)
        ends = np.cumsum(lengths)
        codes = np.full(self.rows, int(StepType.MID), np.uint8)
        codes[ends - lengths] = StepType.FIRST
        codes[ends - 1] = self._ends
        columns = {
            "episode_infos": columns_of(self._episode_infos),
            "observations": self._observations.tree(self.rows, copy),
            "last_observations": stacked(self._lasts),
            "actions": stacked(self._given),
            "rewards": self._numbers(ends),
            "env_infos": columns_of(dense(self._infos, self.rows)) if self._infos else {},
            "agent_infos": _strict(dense(self._policy_infos, self.rows)) if self._policy_infos else {},
            "lengths": lengths,
        }
        return Trajectories(self.env.spec, columns, codes, np.ones(len(lengths), np.int64))

    def _numbers(self, ends: np.ndarray) -> np.ndarray:
        try:
            return numbers(self._rewards)
        except BadStep as error:
            step = error.step or 1  # of all episodes together
            error.step = step - int(max(ends[ends < step], default=0))
            raise


def direct_rollouts(worker: Any, lender: Lender | None = None) -> DirectRollouts | None:
    """What plays for a worker, None where it would not do the same as the worker does by itself."""
    kind, env = type(worker), worker.env
    if not isinstance(worker, DefaultWorker) or not isinstance(env, GymEnv) or not env.plain:
        return None
    if any(getattr(kind, name) is not getattr(DefaultWorker, name) for name in ORDINARY):
        return None
    try:
        return DirectRollouts(worker, lender) if not Layout.of(env.observation_space).loose else None
    except (TypeError, ValueError):  # a space of the user's own
        return None


def _misshapen(error: Exception) -> Exception:
    """What was raised where a step was unpacked: the environment's own error, or that there was nothing to unpack."""
    frames = vars(BaseException)["__traceback__"].__get__(error)  # its class may make more of reading it
    inside = frames is not None and frames.tb_next is not None and frames.tb_next.tb_next is not None
    if not inside and type(error) is not BadStep and issubclass(type(error), TypeError | ValueError):
        return BadStep(f"step must return five values: {error}")
    return error


def _strict(infos: list[dict[str, Any]]) -> dict[str, Any]:
    """As the worker stacks its agent's infos: every step has every key."""
    keys = infos[0].keys() if infos else {}.keys()
    if any(info.keys() != keys for info in infos):
        raise ValueError("the agent's infos have different keys on different steps")
    return {key: array_of([info[key] for info in infos]) for key in keys}
