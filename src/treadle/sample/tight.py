"""The tight loop: episodes of a `gymnasium.Env` straight into arrays.

A `DefaultWorker` of which nothing is overridden, with an environment whose observations have fixed shapes, does the
same whichever way it is driven. So it is driven in the cheapest: no `EnvStep` objects, observations written to rows
that are used again, several episodes one after the other in the same rows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from treadle.pool.file_buffers import Lender
from treadle.pool.serve import snapshot
from treadle.sample.adapt import GymEnv, type_of
from treadle.sample.agents import action_of, reset_agent
from treadle.sample.buffer import Columns
from treadle.sample.contract import BadStep, flag, in_step, numbers
from treadle.sample.default_worker import DefaultWorker
from treadle.sample.haul import Haul
from treadle.sample.info_columns import columns_of, kept
from treadle.sample.padding import array_of, stacked
from treadle.sample.step_type import StepType
from treadle.spaces import Layout, Mismatch

NOTHING: dict[str, Any] = {}
ORDINARY = ("rollout", "start_episode", "step_episode", "collect_episode", "seed_episode")


class TightLoop:
    """Plays for one worker and one environment; see `tight_loop`.

    Attributes:
        env: the environment.
        episodes, rows: what was played since `clear`; rows are steps.
        latest: steps of the latest episode.
    """

    def __init__(self, worker: DefaultWorker, lender: Lender | None = None) -> None:
        self._worker = worker
        self.env: GymEnv = worker.env
        layout = Layout.of(self.env.observation_space)
        self._columns, self._row_bytes = Columns(layout), layout.row_nbytes
        self._columns.lend(lender)
        self.clear()

    @property
    def nbytes(self) -> int:
        """Bytes of the observations since `clear`."""
        return self.rows * self._row_bytes

    def clear(self) -> None:
        """Forget what was played; its arrays are written again from now on, or when the caller has let them go."""
        self._column = self._columns.free()
        self.rows = self.episodes = self.latest = 0
        self._lengths: list[int] = []
        self._ends: list[int] = []
        self._lasts: list[Any] = []
        self._actions: list[Any] = []
        self._rewards: list[Any] = []
        self._env_infos: list[dict[str, Any]] = []  # empty until the environment says something; so with the agent's
        self._agent_infos: list[dict[str, Any]] = []
        self._episode_infos: list[dict[str, Any]] = []

    def play(self, stopped: Callable[[], bool]) -> bool:
        """One episode. True: it is among what `haul` returns. False: it was stopped, and is forgotten.

        Raises what environment and agent raise, and `spaces.Mismatch` for an observation that does not fit its space;
        then it is forgotten, too.
        """
        worker, env, column, agent = self._worker, self.env, self._column, self._worker.agent
        observation, episode_info = env.reset()
        row = base = self.rows
        self._room(base + 1)
        column.writes[base](observation)
        if episode_info:
            episode_info = kept(episode_info)
        reset_agent(agent)
        get_action = getattr(agent, "get_action", None) or partial(action_of, agent)
        step, writes = env.env.step, column.writes
        room, end = len(writes), base + worker._max_episode_length
        actions: list[Any] = []
        rewards: list[Any] = []
        env_infos: list[dict[str, Any]] = []
        agent_infos: list[dict[str, Any]] = []
        while True:  # what stands here is paid at every step
            if stopped():
                return False
            try:
                action, agent_info = get_action(observation)
            except Exception as error:
                in_step(error, row - base + 1)
                raise
            if type(action) is not int:  # before the environment has it: some change what they are given
                action = snapshot(action)
            try:
                observation, reward, terminated, truncated, info = step(action)
            except Exception as error:
                told = _misshapen(error, row - base + 1)
                if told is error:
                    raise
                raise told from None
            row += 1
            if row >= room:
                self._room(row + 1)
                room = len(writes)
            actions.append(action)
            rewards.append(reward)
            if info or agent_info:  # most say nothing, and nothing is kept of it
                silent = [NOTHING] * (row - base - 1 - len(env_infos))
                env_infos += [*silent, kept(info)]
                agent_infos += [*silent, dict(agent_info)]
            try:
                writes[row](observation)
            except Mismatch as error:
                in_step(error, row - base)
                raise
            if terminated or truncated or row >= end:
                break
        length = row - base
        kind = type_of(length, flag("terminated", terminated, length), flag("truncated", truncated, length))
        self._lengths.append(length)
        self._ends.append(kind)
        self._lasts.append(snapshot(observation))
        self._actions += actions
        self._rewards += rewards
        if env_infos or self._env_infos:
            before, after = [NOTHING] * (self.rows - len(self._env_infos)), [NOTHING] * (length - len(env_infos))
            self._env_infos += [*before, *env_infos, *after]
            self._agent_infos += [*before, *agent_infos, *after]
        self._episode_infos.append(episode_info)
        self.rows, self.episodes, self.latest = row, self.episodes + 1, length
        return True

    def haul(self, *, copy: bool) -> Haul:
        """What was played since `clear`. Without `copy` its arrays are good until then.

        Raises `BadStep` for a reward that is no real number, ValueError for agents' infos whose keys come and go.
        """
        lengths = np.array(self._lengths, np.int64)
        ends = np.cumsum(lengths)
        codes = np.full(self.rows, int(StepType.MID), np.uint8)
        codes[ends - lengths] = StepType.FIRST
        codes[ends - 1] = self._ends
        columns = {
            "episode_infos": columns_of(self._episode_infos),
            "observations": self._column.tree(self.rows, copy),
            "last_observations": stacked(self._lasts),
            "actions": stacked(self._actions),
            "rewards": self._numbers(ends),
            "env_infos": columns_of(self._env_infos),
            "agent_infos": _strict(self._agent_infos),
            "lengths": lengths,
        }
        return Haul(self.env.spec, columns, codes, np.ones(len(lengths), np.int64))

    def _numbers(self, ends: np.ndarray) -> np.ndarray:
        try:
            return numbers(self._rewards)
        except BadStep as error:
            step = error.step or 1  # of all episodes together
            error.step = step - int(max(ends[ends < step], default=0))
            raise

    def _room(self, rows: int) -> None:
        while len(self._column.writes) < rows:
            self._column.more()


def tight_loop(worker: Any, lender: Lender | None = None) -> TightLoop | None:
    """The tight loop of a worker, None where it would not do the same as the worker does by itself."""
    kind, env = type(worker), worker.env
    if not isinstance(worker, DefaultWorker) or not isinstance(env, GymEnv) or not env.plain:
        return None
    if any(getattr(kind, name) is not getattr(DefaultWorker, name) for name in ORDINARY):
        return None
    try:
        return TightLoop(worker, lender) if not Layout.of(env.observation_space).loose else None
    except (TypeError, ValueError):  # a space of the user's own
        return None


def _misshapen(error: Exception, step: int) -> Exception:
    """What was raised where a step was unpacked: the environment's own error, or that there was nothing to unpack."""
    frames = vars(BaseException)["__traceback__"].__get__(error)  # its class may make more of reading it
    inside = frames is not None and frames.tb_next is not None
    if not inside and issubclass(type(error), TypeError | ValueError):
        error = BadStep(f"step must return five values: {error}")
    in_step(error, step)
    return error


def _strict(infos: list[dict[str, Any]]) -> dict[str, Any]:
    """As the worker stacks its agent's infos: every step has every key."""
    keys = infos[0].keys() if infos else {}.keys()
    if any(info.keys() != keys for info in infos):
        raise ValueError("the agent's infos have different keys on different steps")
    return {key: array_of([info[key] for info in infos]) for key in keys}
