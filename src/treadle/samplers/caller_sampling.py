"""Sampling with the agent in the caller: workers play environments, and the agent is asked here for all that are ready.

A sampling is a run in environments that stay. By index its episodes are those that workers make
that ask by themselves; in order of arrival they count as they come.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from treadle import trees
from treadle.errors import UsageError
from treadle.play.episode import Episode
from treadle.play.recipe import Asking, RolloutRecipe
from treadle.program.gym_env import EnvRecipe
from treadle.program.own_names import own_names
from treadle.program.policies import asker_of, policy_name
from treadle.sample.by_index import ByIndex
from treadle.sample.collection import Collection, run_here
from treadle.sample.schedule import Schedule
from treadle.samplers.agents import actions_of, is_parameters, set_parameters
from treadle.samplers.episode_batch import EpisodeBatch
from treadle.samplers.gathering import LAST_VERSION, VERSION
from treadle.samplers.steps import EnvSpec
from treadle.samplers.updates import environment
from treadle.stream.watch import Watch

OWN = frozenset({VERSION, LAST_VERSION})


class CallerSampling:
    """Args:
    agent: the caller's own object; None: none yet.
    env: as samplers take it, one for all.
    asking: how the agent is asked.
    workers: processes; None: as many as suit the environments.
    limit: steps of the longest episode.
    stale: are episodes handed out that agents of earlier samplings have begun?
    options: of the collection.
    """

    def __init__(
        self, agent: Any, env: Any, asking: Asking, *, workers: int | None, limit: float, stale: bool, **options: Any
    ) -> None:
        self._agent, self._envs, self._asking, self._stale = agent, [env], asking, stale
        self._limit = None if math.isinf(limit) else int(limit)
        self._options = {"workers": workers, **options}
        self._endless: Iterator[tuple[int, int, Any]] | None = None  # episodes in order of arrival, to go on with
        self._version, self._arrivals = 0, Schedule()
        # episode -> the agent's version at its first step, and at its last, of those that nobody has taken
        self._versions: dict[int, tuple[int, int]] = {}
        self._run = self._built()

    def _built(self) -> Collection:
        recipe = RolloutRecipe(
            EnvRecipe(partial(environment, list(self._envs))),
            max_steps=self._limit,
            marks_cuts=False,
            asking=replace(self._asking, policy=askable(self._agent)),
        )
        run = run_here(recipe, ByIndex(Schedule(), 0), **self._options)
        assert run.rows is not None
        self.spec, self._rows = EnvSpec(*run.spaces, self._limit), run.rows
        self._rows.acting = self._acting
        return run

    def _acting(self, index: int, steps: int) -> None:
        first = self._version if steps == 0 else self._versions[index][0]
        self._versions[index] = first, self._version

    def _again(self, schedule: Schedule, root: int, watch: Watch) -> None:
        self._run.again(schedule, root, watch)
        self._versions.clear()

    @property
    def upcoming(self) -> int:
        """The first index that no episode in order of arrival has had."""
        return self._arrivals.upcoming

    @property
    def closed(self) -> bool:
        return self._run.pool.closed

    def update(self, agent: Any, env: Any) -> None:
        """Of the agent (None, its parameters, or another), and of the environments (which are built anew)."""
        self._version += 1
        if is_parameters(agent):
            set_parameters(self._agent, agent)
        elif agent is not None:
            self._agent = agent
            self._rows.policy.ask_from_now(askable(agent), policy_name(agent))
        if env is not None:
            self._envs.append(env)
            try:
                run = self._built()
            except BaseException:  # those that are there go on
                self._envs.pop()
                raise
            self._run.close()
            self._endless, self._run = None, run

    def by_index(self, schedule: Schedule, root: int, watch: Watch) -> list[Episode]:
        """The episodes of a schedule, in order of index."""
        self._endless = None
        self._again(schedule, root, watch)
        found = {index: episode for index, _, episode in self._run}
        self._run.warn()
        end = schedule.end
        return [self._stamped(found[index]) for index in sorted(found) if end is None or index < end]

    def arriving(self, steps: int, root: int, watch: Watch, first: int) -> list[Episode]:
        """Episodes as they come, until they have so many steps; those that begin now have indices from `first` on."""
        if self._endless is None or not self._stale:
            self._arrivals = Schedule(first=first)
            self._again(self._arrivals, root, watch)
            self._endless = iter(self._run)
        found: list[Episode] = []
        try:
            while steps > 0:
                _, length, episode = next(self._endless)
                steps -= length
                found.append(self._stamped(episode))
        except BaseException:
            self._endless = None
            raise
        return found

    def _stamped(self, episode: Episode) -> Episode:
        first, last = self._versions.pop(episode.index)
        if not self._stale:
            return episode
        info = {**own_names(episode.infos[0], OWN, "env"), VERSION: first, LAST_VERSION: last}
        return replace(episode, infos=(info, *episode.infos[1:]))

    def batch(self, episodes: list[Episode]) -> EpisodeBatch:
        """Them as one."""
        return EpisodeBatch.from_episodes(self.spec, episodes)

    def close(self) -> None:
        self._run.close()


def askable(agent: Any) -> Any:
    """The agent as a policy in the caller takes it: itself, or one that asks it row by row."""
    if asker_of(agent) is not None or callable(getattr(agent, "initial_state", None)):
        return agent
    if not callable(getattr(agent, "get_action", None)):
        raise UsageError(f"a {type(agent).__name__} is no agent: it has neither get_action nor get_actions")
    return _RowByRow(agent)


class _RowByRow:
    def __init__(self, agent: Any) -> None:
        self._agent = agent

    def get_actions(self, observations: Any) -> Any:
        rows = len(trees.leaves(observations)[0])
        actions, infos = actions_of(self._agent, trees.split(observations, rows))
        return actions, {key: np.asarray(values) for key, values in infos.items()}
