"""One environment in a worker process, with PettingZoo's own interface."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from treadle import trees
from treadle.errors import needed
from treadle.pettingzoo.env import AgentsEnv
from treadle.pettingzoo.faces import AgentsVector, slots_of
from treadle.vector.infos import rows_of_infos

with needed("this needs PettingZoo", "pettingzoo"):
    import pettingzoo


class ParallelEnv(pettingzoo.ParallelEnv):
    """A `pettingzoo.ParallelEnv` that runs in a worker.

    A crash or a hang (`step_timeout`) of the environment becomes an error in the caller, with its place.

    Args:
        env: as for `make_vec`.
        **options: as for `make_vec`, except `form`, `workers`, `inline` and `autoreset_mode`, which are fixed.

    Attributes:
        vector: the `AgentsVector` of one environment.
        agents: the agents that act next; [] before the first reset.
    """

    def __init__(self, env: Callable[..., Any], **options: Any) -> None:
        alone: dict[str, Any] = {"workers": 1, "inline": 0, "autoreset_mode": "Disabled"}
        self.vector = vector = AgentsVector(slots_of(type(self).__name__, AgentsEnv, env, 1, **alone, **options))
        self.metadata, self.render_mode = vector.metadata, vector.render_mode
        self.possible_agents = list(vector.possible_agents)
        self.agents: list[Any] = []

    def observation_space(self, agent: Any) -> Any:
        return self.vector.single_observation_space(agent)

    def action_space(self, agent: Any) -> Any:
        return self.vector.single_action_space(agent)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        observations, infos = self.vector.reset(seed=seed, options=options)
        self._see()
        return self._of(self.agents, observations), self._agent_infos(self.agents, infos)

    def step(self, actions: dict[Any, Any]) -> tuple[Any, Any, Any, Any, Any]:
        """Step as PettingZoo's `step` does. Without agents left, it does nothing and returns empty dicts."""
        if not self.agents:
            return {}, {}, {}, {}, {}
        batch = {agent: [action] for agent, action in actions.items() if agent in self.agents}
        observations, rewards, terminations, truncations, infos = self.vector.step(batch)
        there = list(self.agents)
        self._see()
        there += [agent for agent in self.agents if agent not in there]
        ends, cuts = ({agent: bool(each[agent][0]) for agent in there} for each in (terminations, truncations))
        paid = {agent: float(rewards[agent][0]) for agent in there}
        return self._of(there, observations), paid, ends, cuts, self._agent_infos(there, infos)

    def render(self) -> Any:
        return self.vector.render()[0]

    def state(self) -> Any:
        return self.vector.call("state")[0]

    def close(self) -> None:
        self.vector.close()

    def _see(self) -> None:
        self.agents = [agent for agent, alive in zip(self.possible_agents, self.vector.alive[0]) if alive]

    def _of(self, agents: list[Any], batch: Any) -> dict[Any, Any]:
        return {agent: trees.row(batch[agent], 0) for agent in agents}

    def _agent_infos(self, agents: list[Any], infos: Any) -> dict[Any, Any]:
        told = rows_of_infos(infos, 1).get(0, {})
        return {agent: told.get(agent, {}) for agent in agents}
