"""Sampling with the agent in the caller: workers play environments, and the agent is asked here for all that are ready.

A sampling is a run of `CallerCollection` in environments that stay. By index its episodes are those that workers make
that ask by themselves; in order of arrival they count as they come.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
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
from treadle.sample.caller import CallerCollection
from treadle.sample.schedule import Schedule
from treadle.samplers.agents import actions_of, is_parameters, set_parameters
from treadle.samplers.episode_batch import EpisodeBatch
from treadle.samplers.gathering import LAST_VERSION, VERSION
from treadle.samplers.steps import EnvSpec
from treadle.samplers.updates import environment
from treadle.stream.watch import Watch

OWN = frozenset({VERSION, LAST_VERSION})


class Stamped(CallerCollection):
    """Knows which version of the agent acted at each episode's first step, and at its last.

    Attributes:
        version: the agent's, from now on.
        versions: episode -> (first, last), of those that are finished.
    """

    version = 0

    def __init__(self, *args: Any, **options: Any) -> None:
        self.versions: dict[int, tuple[int, int]] = {}
        self._acted: dict[int, tuple[int, int]] = {}
        super().__init__(*args, **options)

    def again(self, schedule: Schedule, root: int) -> None:
        """As the base's: what was finished and nobody took is forgotten."""
        super().again(schedule, root)
        self.versions.clear()

    def _left(self) -> float:
        return math.inf  # there are further samplings

    def watched(self, watch: Watch) -> None:
        """Tell this one of the next run."""
        self.stream.watch = watch

    def ask_from_now(self, agent: Any) -> None:
        """Ask another agent, also in what is under way."""
        self._policy.ask_from_now(askable(agent), policy_name(agent))

    def _ask(self, slots: list[int]) -> None:
        for slot in slots:
            first = self.version if self._steps[slot] == 0 else self._acted[slot][0]
            self._acted[slot] = first, self.version
        super()._ask(slots)

    def _results(self, ready: Sequence[tuple[int, int, Any]], worker: Any, slot: int) -> list[tuple[int, int, Any]]:
        found = super()._results(ready, worker, slot)
        for index, _, _ in found:
            self.versions[index] = self._acted[slot]
        return found


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
        self._run = self._built()

    def _built(self) -> Stamped:
        recipe = RolloutRecipe(
            EnvRecipe(partial(environment, list(self._envs))),
            max_steps=self._limit,
            marks_cuts=False,
            asking=replace(self._asking, policy=askable(self._agent)),
        )
        run = Stamped(recipe, Schedule(), **self._options)
        self.spec = EnvSpec(*run.spaces, self._limit)
        return run

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
            self._run.ask_from_now(agent)
        if env is not None:
            self._envs.append(env)
            try:
                run = self._built()
            except BaseException:  # those that are there go on
                self._envs.pop()
                raise
            self._run.close()
            self._endless, self._run = None, run
        self._run.version = self._version

    def by_index(self, schedule: Schedule, root: int, watch: Watch) -> list[Episode]:
        """The episodes of a schedule, in order of index."""
        self._endless = None
        self._run.again(schedule, root)
        self._run.watched(watch)
        found = {index: episode for index, _, episode in self._run}
        self._run.warn()
        end = schedule.end
        return [self._stamped(found[index]) for index in sorted(found) if end is None or index < end]

    def arriving(self, steps: int, root: int, watch: Watch, first: int) -> list[Episode]:
        """Episodes as they come, until they have so many steps; those that begin now have indices from `first` on."""
        if self._endless is None or not self._stale:
            self._arrivals = Schedule(first=first)
            self._run.again(self._arrivals, root)
            self._run.watched(watch)
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
        first, last = self._run.versions.pop(episode.index)
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
