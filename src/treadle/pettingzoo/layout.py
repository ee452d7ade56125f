"""What several agents of one environment are in a row of a vector: one layout, from which both forms are read.

A slot's observation is a Dict of fixed outline, whoever is there:

- `observation`: where all agents have equal spaces, one batch of them, [agents, ...] (a vector's is [n, agents, ...],
  of which the rows form [n * agents, ...] and each agent's [n, ...] are views); else a Dict by agent. Zeros of an agent
  that is not there; None where its space has no fixed shape.
- `alive`: who acts next. In turn games that is one agent.
- `acted`: whose action this step took; nobody's, in a reset.
- `rewards`, `terminations`, `truncations`: of this step, zero for who got none.

So everything that a vector does with observations (shared memory, partial batches, rollouts, restarts, datasets) it
does with agents too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces as gs
from gymnasium.vector.utils import batch_space

from treadle import trees
from treadle.errors import UsageError
from treadle.spaces import Layout


class Outcome(NamedTuple):
    """What a step brought the agents. Arrays [n, agents]; of a rollout [T, n, agents].

    Attributes:
        rewards: float64.
        terminations, truncations: bool.
        acted: bool, whose action was taken: which of the rows are transitions.
        alive: bool, who acts next.
    """

    rewards: np.ndarray
    terminations: np.ndarray
    truncations: np.ndarray
    acted: np.ndarray
    alive: np.ndarray

    @classmethod
    def of(
        cls, batch: Any, finals: Mapping[Any, Any], ended: np.ndarray, valid: Callable[[], np.ndarray], *, fill: bool
    ) -> Outcome:
        """From a batch of slots' observations.

        Args:
            batch: as a vector hands them out.
            finals: slot (or (t, slot)) -> last observation of an episode whose row shows the next one already.
            ended: bool[n], or [T, n]: where an episode has ended.
            valid: gives the vector's own `valid`, asked where an episode has ended only: after a worker's death an end
                is no transition, and every agent is truncated.
            fill: are agents truncated, too, whose own end came before their environment's?
        """
        columns = [batch["rewards"], *(batch[key].view(np.bool_) for key in ("terminations", "truncations", "acted"))]
        if ended.any():
            columns = [column.copy() for column in columns]
            for at, final in finals.items():
                for column, key in zip(columns, ("rewards", "terminations", "truncations", "acted"), strict=True):
                    column[at] = final[key]
            cut = ended & ~valid()
            for column in columns:
                column[cut] = 0
            columns[2] |= (ended if fill else cut)[..., None] & ~columns[1]
        rewards, terminations, truncations, acted = columns
        return cls(rewards, terminations, truncations, acted, batch["alive"].view(np.bool_))


@dataclass(frozen=True)
class AgentsLayout:
    """Who the agents are, and where they lie in a slot's observation and action.

    Attributes:
        agents: all that there may ever be, in the environment's order.
        observation_spaces, action_spaces: by agent.
        stacked: do they all have equal spaces of fixed shape, so that they are batched?
    """

    agents: tuple[Any, ...]
    observation_spaces: dict[Any, gym.Space]
    action_spaces: dict[Any, gym.Space]
    stacked: bool

    @classmethod
    def of(cls, env: Any) -> AgentsLayout:
        """Of a PettingZoo environment. Raises UsageError where it does not say who its agents may be."""
        agents = tuple(getattr(env, "possible_agents", ()))
        if not agents:
            raise UsageError(
                f"{env} does not say in possible_agents who its agents may be, so nothing can be laid out; one such "
                "environment runs in a worker as treadle.pettingzoo.ParallelEnv"
            )
        seen = {agent: env.observation_space(agent) for agent in agents}
        done = {agent: env.action_space(agent) for agent in agents}
        stacked = all(_equal_and_fixed(list(spaces.values())) for spaces in (seen, done))
        return cls(agents, seen, done, stacked)

    @cached_property
    def observation_space(self) -> gs.Dict:
        """Of a slot."""
        k = len(self.agents)
        flags = {name: gs.MultiBinary(k) for name in ("alive", "acted", "terminations", "truncations")}
        rewards = gs.Box(-np.inf, np.inf, (k,), np.float64)
        return gs.Dict({"observation": self._joined(self.observation_spaces), "rewards": rewards, **flags})

    @cached_property
    def action_space(self) -> gym.Space:
        """Of a slot."""
        return self._joined(self.action_spaces)

    def _joined(self, spaces: dict[Any, gym.Space]) -> gym.Space:
        if self.stacked:
            return batch_space(spaces[self.agents[0]], len(self.agents))
        return gs.Dict(spaces)

    @cached_property
    def nothing(self) -> dict[Any, Any]:
        """Observations of agents that are not there."""
        return {agent: _zeros(space) for agent, space in self.observation_spaces.items()}

    def observation(self, observations: Mapping[Any, Any]) -> Any:
        """`observation` of a slot, from those of the agents that are there."""
        each = {agent: observations.get(agent, self.nothing[agent]) for agent in self.agents}
        if not self.stacked:
            return each
        values = list(each.values())  # of another dtype or shape they do not fit the row, which is told
        return trees.map(lambda *each: np.array(each), *values)

    def actions(self, actions: Any) -> dict[Any, Any]:
        """Each agent's action, from a slot's."""
        return dict(self.by_agent(actions, 0)) if self.stacked else actions

    def by_agent(self, tree: Any, axis: int) -> dict[Any, Any]:
        """agent -> views of its part of an array or a tree of them; `axis` is the agents'. Where they are not stacked
        a tree is by agent already."""
        if not self.stacked and isinstance(tree, dict):
            return tree
        before = (slice(None),) * axis
        return {agent: trees.map(lambda leaf, i=i: leaf[(*before, i)], tree) for i, agent in enumerate(self.agents)}

    def joined_actions(self, actions: Mapping[Any, Any], alive: np.ndarray) -> Any:
        """Actions of n slots, from {agent: [n, ...]}.

        `alive` (bool[n, agents]): who acts. An agent that acts in none of the slots may be left out.

        Raises UsageError for a name that is no agent's, an agent that is missing, and actions of another number.
        """
        unknown = [agent for agent in actions if agent not in self.action_spaces]
        if unknown:
            raise UsageError(f"there is no agent {unknown[0]!r}; there are {', '.join(map(str, self.agents))}")
        missing = [
            agent for agent, acts in zip(self.agents, np.any(alive, axis=0).tolist()) if acts and agent not in actions
        ]
        if missing:
            raise UsageError(f"agent {missing[0]!r} acts, and there are no actions of it")
        each = {
            agent: actions[agent] if agent in actions else _idle(space, len(alive))
            for agent, space in self.action_spaces.items()
        }
        if not self.stacked:
            return each
        try:
            return trees.map(lambda *parts: np.stack(parts, 1), *each.values())
        except ValueError as error:
            raise UsageError(f"{len(alive)} slots want as many actions of each agent: {error}") from error


def _equal_and_fixed(spaces: Sequence[gym.Space]) -> bool:
    return not Layout.of(spaces[0]).loose and all(space == spaces[0] for space in spaces)


def _zeros(space: gym.Space) -> Any:
    layout = Layout.of(space)
    return layout.unflatten([np.zeros(leaf.shape, leaf.dtype) if leaf.fixed else None for leaf in layout.leaves])  # type: ignore[arg-type]  # a fixed leaf has a shape


def _idle(space: gym.Space, n: int) -> Any:
    """Allowed actions of an agent that acts nowhere."""
    layout = Layout.of(space)
    values = []
    for leaf in layout.leaves:
        start = np.asarray(getattr(leaf.space, "start", 0), leaf.dtype)
        fixed = leaf.fixed and np.broadcast_to(start, (n, *(leaf.shape or ()))).copy()
        values.append(fixed if leaf.fixed else [leaf.space.sample()] * n)
    return layout.unflatten(values)
