"""Small environments of several agents, written against PettingZoo's interfaces without importing it."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces as gs


class Crowd:
    """Agents that come late, die, come back, and see random numbers. Duck-typed `pettingzoo.ParallelEnv`.

    `a` is there from the start to the end, `b` comes in step 2, dies in step 4 and is back in step 6, `c` is there from
    the start and dies in step 3. The end is at a random step from 8 on; `a` terminates, or is truncated.
    """

    metadata: ClassVar = {"name": "crowd"}
    possible_agents: ClassVar = ["a", "b", "c"]
    render_mode = None

    def __init__(self, differ: bool = False) -> None:
        self.differ = differ
        self.agents: list[str] = []
        sizes = {"a": 3, "b": 2, "c": 1} if differ else dict.fromkeys(self.possible_agents, 3)
        self._seen = {agent: gs.Box(-1, 1, (size,), np.float32) for agent, size in sizes.items()}
        self._done = {agent: gs.Discrete(4, start=1) for agent in self.possible_agents}
        self.rng = np.random.default_rng()

    def observation_space(self, agent: str) -> Any:
        return self._seen[agent]

    def action_space(self, agent: str) -> Any:
        return self._done[agent]

    def _observe(self) -> dict[str, Any]:
        return {a: self.rng.uniform(-1, 1, self._seen[a].shape).astype(np.float32) for a in self.agents}

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.t, self.agents, self.end = 0, ["a", "c"], int(self.rng.integers(8, 14))
        return self._observe(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        assert set(actions) == set(self.agents), (actions, self.agents)
        self.t += 1
        before = list(self.agents)
        self.agents = ["a"] + (["b"] if self.t in (2, 3, 4) or self.t >= 6 else []) + (["c"] if self.t <= 3 else [])
        observations = self._observe()
        rewards = {agent: float(actions.get(agent, 0)) + self.rng.random() for agent in before}
        over = self.t >= self.end
        terminated = {a: (a == "c" and self.t == 3) or (a == "b" and self.t == 4) or over for a in self.agents}
        truncated = {a: over and a == "b" for a in self.agents}
        infos = {a: {"t": self.t} if a == "a" else {} for a in self.agents}
        self.agents = [a for a in self.agents if not (terminated[a] or truncated[a])]
        return observations, rewards, terminated, truncated, infos

    def render(self) -> Any:
        return None

    def close(self) -> None:
        pass


class Countdown:
    """A game in turns: who takes the last of seven stones wins. Duck-typed `pettingzoo.AECEnv`."""

    metadata: ClassVar = {"name": "countdown"}
    possible_agents: ClassVar = ["first", "second"]
    render_mode = None

    def observation_space(self, agent: str) -> Any:
        return self._spaces[agent]

    def action_space(self, agent: str) -> Any:
        return self._moves[agent]

    def __init__(self) -> None:
        self._spaces = {agent: gs.Box(0, 7, (2,), np.float32) for agent in self.possible_agents}
        self._moves = {agent: gs.Discrete(3, start=1) for agent in self.possible_agents}

    def agent_iter(self) -> Any:
        raise NotImplementedError

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.agents = list(self.possible_agents)
        self.stones, self.agent_selection = 7, "first"
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations, self.truncations = (dict.fromkeys(self.agents, False) for _ in range(2))
        self.infos: dict[str, Any] = {agent: {} for agent in self.agents}

    def observe(self, agent: str) -> np.ndarray:
        return np.array([self.stones, self.possible_agents.index(agent)], np.float32)

    def step(self, action: Any) -> None:
        agent = self.agent_selection
        if self.terminations[agent]:
            assert action is None
            for book in (self.terminations, self.truncations, self.rewards, self.infos):
                del book[agent]
            self.agents.remove(agent)
            self.agent_selection = self.agents[0] if self.agents else agent
            self.rewards = dict.fromkeys(self.agents, 0.0)
            return
        other = self.possible_agents[1 - self.possible_agents.index(agent)]
        self.stones -= min(int(action), self.stones)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        if self.stones == 0:
            self.rewards = {agent: 1.0, other: -1.0}
            self.terminations = dict.fromkeys(self.agents, True)
        self.agent_selection = other

    def render(self) -> Any:
        return None

    def close(self) -> None:
        pass


class Dies(Crowd):
    """Ends its process when agent `a` does 4."""

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        if int(actions["a"]) == 4:
            import os

            os._exit(3)
        return super().step(actions)
