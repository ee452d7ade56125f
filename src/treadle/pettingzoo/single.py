"""One environment in a worker process, with PettingZoo's own interface."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from treadle import trees
from treadle.errors import needed
from treadle.pettingzoo.env import KEY, one_of_either, spaces_of
from treadle.pettingzoo.faces import AgentsVector, slots_of
from treadle.vector.infos import rows_of_infos

with needed("this needs PettingZoo", "pettingzoo"):
    import pettingzoo


class ParallelEnv(pettingzoo.ParallelEnv):
    """A `pettingzoo.ParallelEnv` that runs in a worker.

    A crash or a hang (`step_timeout`) of the environment becomes an error in the caller, with its place.

    If the environment has no `possible_agents`, because agents appear during an episode, this object has none either.
    Its results then go by message, unchanged.

    Args:
        env: as for `make_vec`.
        **options: as for `make_vec`; `workers` is 1 and `inline` is 0.
    """

    def __init__(self, env: Callable[..., Any], **options: Any) -> None:
        alone: dict[str, Any] = {"workers": 1, "inline": 0, "autoreset_mode": "Disabled"}
        slots = slots_of(type(self).__name__, one_of_either, env, 1, **alone, **options)
        slots._pool.calls.again = "reset()"
        self.vector: Any = slots
        self.metadata, self.render_mode = slots.metadata, slots.render_mode
        self._open = KEY not in slots.metadata  # True: the environment has no `possible_agents`
        if not self._open:
            self.vector = AgentsVector(slots)
            self.possible_agents = list(self.vector.possible_agents)
        self.agents: list[Any] = []
        self._spaces: dict[Any, tuple[Any, Any]] = {}  # spaces by agent, for an environment without `possible_agents`
        self._asked: set[Any] = set()  # agents whose spaces were requested since the last reset

    def observation_space(self, agent: Any) -> Any:
        return self._spaces_of(agent)[0] if self._open else self.vector.single_observation_space(agent)

    def action_space(self, agent: Any) -> Any:
        return self._spaces_of(agent)[1] if self._open else self.vector.single_action_space(agent)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        observations, infos = self.vector.reset(seed=seed, options=options)
        if self._open:
            self._asked.clear()
            self.agents, *told = observations[0]
            return tuple(told)  # type: ignore[return-value]  # two
        self._see()
        return self._of(self.agents, observations), self._told(self.agents, infos)

    def step(self, actions: dict[Any, Any]) -> tuple[Any, Any, Any, Any, Any]:
        """Step as PettingZoo's `step` does. Without agents left, it does nothing and returns empty dicts."""
        if not self.agents:
            return {}, {}, {}, {}, {}
        if self._open:
            return self._step(actions)
        batch = {agent: [action] for agent, action in actions.items() if agent in self.agents}
        observations, rewards, terminations, truncations, infos = self.vector.step(batch)
        there = list(self.agents)
        self._see()
        there += [agent for agent in self.agents if agent not in there]
        ends, cuts = ({agent: bool(each[agent][0]) for agent in there} for each in (terminations, truncations))
        paid = {agent: float(rewards[agent][0]) for agent in there}
        return self._of(there, observations), paid, ends, cuts, self._told(there, infos)

    def render(self) -> Any:
        return self.vector.render()[0]

    def state(self) -> Any:
        return self.vector.call("state")[0]

    def close(self) -> None:
        self.vector.close()

    def _step(self, actions: dict[Any, Any]) -> tuple[Any, Any, Any, Any, Any]:
        observations, *_ = self.vector.step([actions])
        agents, *told = observations[0]
        if not self.vector.valid[0]:  # its worker died, and the row repeats the last one
            agents, cut = [], dict.fromkeys(self.agents, True)
            seen, none = {a: told[0][a] for a in cut if a in told[0]}, dict.fromkeys(cut, False)
            told = [seen, dict.fromkeys(cut, 0.0), none, cut, {agent: {} for agent in cut}]
        self.agents = agents
        return tuple(told)  # type: ignore[return-value]  # five

    def _spaces_of(self, agent: Any) -> tuple[Any, Any]:
        """Return an agent's two spaces, the same objects as long as they are equal. A reset may change them."""
        if agent not in self._asked:
            found = self.vector.call(spaces_of, agent)[0]
            if self._spaces.get(agent) != found:
                self._spaces[agent] = found
            self._asked.add(agent)
        return self._spaces[agent]

    def _see(self) -> None:
        self.agents = [agent for agent, alive in zip(self.possible_agents, self.vector.alive[0]) if alive]

    def _of(self, agents: list[Any], batch: Any) -> dict[Any, Any]:
        return {agent: trees.row(batch[agent], 0) for agent in agents}

    def _told(self, agents: list[Any], infos: Any) -> dict[Any, Any]:
        told = rows_of_infos(infos, 1).get(0, {})
        return {agent: told.get(agent, {}) for agent in agents}
