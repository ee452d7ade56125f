"""A PettingZoo environment in a slot, as one Gymnasium environment, and the layout that both forms of vectors read.

A slot's observation is a Dict that has the same outline whichever agents are present:

- `observation`: a Dict by agent, or one batch [agents, ...] if all agents have equal spaces. A vector's batch is
  [n, agents, ...]; the rows [n * agents, ...] and each agent's [n, ...] are views of it. An absent agent has zeros, or
  None if its space has no fixed shape.
- `alive`: flags of the agents that act next. In turn games that is one agent.
- `acted`: flags of the agents whose action this step took; all zero in a reset.
- `rewards`, `terminations`, `truncations`: of this step, zero for agents without any.

So all that a vector does with observations (shared memory, partial batches, rollouts, restarts, datasets) also works
for agents.
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
from treadle.errors import StateError, UsageError
from treadle.spaces import Layout

KEY = "treadle agents"  # the layout's key in an environment's metadata


class Outcome(NamedTuple):
    """The agents' results of a step, arrays [n, agents]; of a rollout, arrays [T, n, agents].

    Attributes:
        rewards: float64.
        terminations, truncations: bool.
        acted: bool, True for agents whose action was taken: their rows are transitions.
        alive: bool, True for agents that act next.
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
        """Make an outcome of a batch of slots' observations.

        Args:
            batch: observations as a vector returns them.
            finals: slot (or (t, slot)) -> last observation of an episode whose row already shows the next episode.
            ended: bool[n], or [T, n]: True where an episode has ended.
            valid: returns the vector's own `valid`; called only if an episode has ended. An end by a worker's death is
                not a transition, and truncates every agent.
            fill: True: an environment's end also truncates agents that ended before it.
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
    """The agents, and their places in a slot's observation and action.

    Attributes:
        agents: all possible agents, in the environment's order.
        observation_spaces, action_spaces: by agent.
        stacked: True if all agents have equal spaces of a fixed shape, which are then batched.
    """

    agents: tuple[Any, ...]
    observation_spaces: dict[Any, gym.Space]
    action_spaces: dict[Any, gym.Space]
    stacked: bool

    @classmethod
    def of(cls, env: Any) -> AgentsLayout:
        """Make the layout of a PettingZoo environment. Raises UsageError without `possible_agents`."""
        agents = tuple(getattr(env, "possible_agents", ()))
        if not agents:
            raise UsageError(
                f"{env} does not say in possible_agents who its agents may be, so nothing can be laid out: set it"
            )
        seen = {agent: env.observation_space(agent) for agent in agents}
        done = {agent: env.action_space(agent) for agent in agents}
        stacked = all(_equal_and_fixed(list(spaces.values())) for spaces in (seen, done))
        return cls(agents, seen, done, stacked)

    @cached_property
    def observation_space(self) -> gs.Dict:
        """The observation space of a slot."""
        k = len(self.agents)
        flags = {name: gs.MultiBinary(k) for name in ("alive", "acted", "terminations", "truncations")}
        rewards = gs.Box(-np.inf, np.inf, (k,), np.float64)
        return gs.Dict({"observation": self._joined(self.observation_spaces), "rewards": rewards, **flags})

    @cached_property
    def action_space(self) -> gym.Space:
        """The action space of a slot."""
        return self._joined(self.action_spaces)

    def _joined(self, spaces: dict[Any, gym.Space]) -> gym.Space:
        if self.stacked:
            return batch_space(spaces[self.agents[0]], len(self.agents))
        return gs.Dict(spaces)

    @cached_property
    def nothing(self) -> dict[Any, Any]:
        """The observations of absent agents, by agent."""
        return {agent: _zeros(space) for agent, space in self.observation_spaces.items()}

    def observation(self, observations: Mapping[Any, Any]) -> Any:
        """Return a slot's `observation` from the observations of the present agents."""
        each = {agent: observations.get(agent, self.nothing[agent]) for agent in self.agents}
        if not self.stacked:
            return each
        values = list(each.values())  # another dtype or shape does not fit the row, whose writer raises
        return trees.map(lambda *each: np.array(each), *values)

    def actions(self, actions: Any) -> dict[Any, Any]:
        """Return each agent's action from a slot's action."""
        return dict(self.by_agent(actions, 0)) if self.stacked else actions

    def by_agent(self, tree: Any, axis: int) -> dict[Any, Any]:
        """Return agent -> views of its part of an array, or of a tree of arrays; `axis` is the agents' axis.

        If agents are not stacked, a dict is already by agent and is returned unchanged.
        """
        if not self.stacked and isinstance(tree, dict):
            return tree
        before = (slice(None),) * axis
        return {agent: trees.map(lambda leaf, i=i: leaf[(*before, i)], tree) for i, agent in enumerate(self.agents)}

    def joined_actions(self, actions: Mapping[Any, Any], alive: np.ndarray) -> Any:
        """Return the actions of n slots from {agent: [n, ...]}.

        `alive` (bool[n, agents]): True for agents that act. An agent that acts in none of the slots may be missing.

        Raises UsageError for an unknown agent and a missing agent, and for stacked agents' actions of unequal shapes.
        """
        unknown = [agent for agent in actions if agent not in self.action_spaces]
        if unknown:
            raise UsageError(f"{unknown[0]!r} is not an agent; the agents are {', '.join(map(str, self.agents))}")
        missing = [
            agent for agent, acts in zip(self.agents, np.any(alive, axis=0).tolist()) if acts and agent not in actions
        ]
        if missing:
            raise UsageError(f"agent {missing[0]!r} acts, but its actions are missing")
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
    """Return n valid actions of an agent that acts in none of the slots."""
    layout = Layout.of(space)
    values = []
    for leaf in layout.leaves:
        start = np.asarray(getattr(leaf.space, "start", 0), leaf.dtype)
        fixed = leaf.fixed and np.broadcast_to(start, (n, *(leaf.shape or ()))).copy()
        values.append(fixed if leaf.fixed else [leaf.space.sample()] * n)
    return layout.unflatten(values)


class AgentsEnv(gym.Env):
    """One environment of several agents; the module `treadle.pettingzoo.env` describes its observations.

    `reset` and `step` are Gymnasium's. An action has one part for each agent; the parts of agents that do not act are
    ignored. The reward is the sum of the agents' rewards. `render` raises UsageError with render_mode=None.

    An episode ends when no agent is left. It is truncated if an agent was truncated in the last step, else terminated.
    `info` has the agents' infos by name, without empty ones. In the step that ends an agent's own episode, the agent's
    info has `{"episode": {"r": its return, "l": the number of its actions}}`.

    Args:
        make: returns a `pettingzoo.ParallelEnv`; with `turns`, a `pettingzoo.AECEnv`.
        turns: True if agents take turns (AEC).
        **kwargs: for `make`.

    Attributes:
        env: the PettingZoo environment.
        layout: the `AgentsLayout` of its agents.

    Raises:
        UsageError: the environment is of the other kind than `turns` says, or has no `possible_agents`.
    """

    state_is_all = True  # `treadle.states` then does not look below this environment

    def __init__(self, make: Callable[..., Any], *, turns: bool = False, **kwargs: Any) -> None:
        env = make(**kwargs)
        if hasattr(env, "agent_iter") != turns:
            kind, other = ("a parallel", False) if turns else ("an AEC", True)
            hint = "" if turns else ", or give its parallel_env (pettingzoo.utils.aec_to_parallel)"
            raise UsageError(f"{type(env).__name__} is {kind} environment: say turns={other}{hint}")
        self.env = env
        self._source: Any = TurnsEnv(env) if turns else env
        self.layout = layout = AgentsLayout.of(env)
        self.observation_space, self.action_space = layout.observation_space, layout.action_space
        self.metadata = {**(getattr(env, "metadata", None) or {}), KEY: layout}
        self.render_mode = getattr(env, "render_mode", None)
        self._index = {agent: i for i, agent in enumerate(layout.agents)}
        self._acting: tuple[Any, ...] = ()
        self._there: set[Any] = set()
        self._returns, self._lengths = dict.fromkeys(layout.agents, 0.0), dict.fromkeys(layout.agents, 0)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observations, infos = self._source.reset(seed=seed, options=options)
        self._there = set()
        return self._row(observations, (), {}, {}, {}), _agent_infos(infos or {})

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        acting, given = self._acting, self.layout.actions(action)
        observations, rewards, terminations, truncations, infos = self._source.step(
            {agent: given[agent] for agent in acting}
        )
        present = set(getattr(self._source, "present", self._source.agents))
        told = _agent_infos(infos)
        truncations = {agent: bool(truncations.get(agent)) for agent in self._there}
        for agent in self._there:
            self._returns[agent] += rewards.get(agent, 0.0)
            self._lengths[agent] += agent in acting
            terminated = bool(terminations.get(agent))
            truncations[agent] |= agent not in present and not terminated  # it left without either flag
            if terminated or truncations[agent]:
                told.setdefault(agent, {})["episode"] = {"r": self._returns[agent], "l": self._lengths[agent]}
        terminations = {agent: bool(terminations.get(agent)) for agent in self._there}
        row = self._row(observations, acting, rewards, terminations, truncations)
        over, cut = not present, any(truncations.values())
        return row, float(row["rewards"].sum()), over and not cut, over and cut, told

    def render(self) -> Any:
        if self.render_mode is None:
            raise UsageError('the environment was made with render_mode=None: give render_mode="rgb_array" for images')
        return self.env.render()

    def close(self) -> None:
        self.env.close()

    def get_state(self) -> Any:
        """Raise StateError: PettingZoo's environments copy and pickle only their constructor's arguments."""
        raise StateError("the state of a PettingZoo environment cannot be taken: it pickles as what it was built with")

    def set_state(self, state: Any) -> None:
        """Raise StateError, as `get_state` does."""
        self.get_state()

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the inner environment (such as `state`), for `call` and `get_attr` of a vector."""
        if name.startswith("_") or name == "env":
            raise AttributeError(name)
        return getattr(self.env, name)

    def _row(self, observations: Any, acted: Any, rewards: Any, terminations: Any, truncations: Any) -> dict[str, Any]:
        """Return the slot's observation, and update the acting and the present agents."""
        self._acting = tuple(agent for agent in self._source.agents if agent in self._index)
        there = {agent for agent in getattr(self._source, "present", self._acting) if agent in self._index}
        for agent in there - self._there:
            self._returns[agent], self._lengths[agent] = 0.0, 0
        self._there = there
        got = np.zeros(len(self._index), np.float64)
        for agent, reward in rewards.items():
            if agent in self._index:
                got[self._index[agent]] = reward
        return {
            "observation": self.layout.observation(observations),
            "rewards": got,
            "alive": self._flags(self._acting),
            "acted": self._flags(acted),
            "terminations": self._flags(agent for agent, ended in terminations.items() if ended),
            "truncations": self._flags(agent for agent, ended in truncations.items() if ended),
        }

    def _flags(self, agents: Any) -> np.ndarray:
        flags = np.zeros(len(self._index), np.int8)
        for agent in agents:
            flags[self._index[agent]] = 1
        return flags


class TurnsEnv:
    """An AEC environment as a parallel one, in which only the agent whose turn it is acts.

    Attributes:
        agents: a list of the agent whose turn it is; empty when the game is over.
        present: the agents in the game.
    """

    def __init__(self, env: Any) -> None:
        self.env = env
        self.agents: list[Any] = []
        self.present: list[Any] = []

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        self.env.reset(seed=seed, options=options)
        self._turn()
        return {agent: self.env.observe(agent) for agent in self.agents}, dict(self.env.infos)

    def step(self, actions: dict[Any, Any]) -> tuple[Any, ...]:
        env: Any = self.env
        env.step(*actions.values())
        rewards, infos = dict(env.rewards), dict(env.infos)
        terminations, truncations = dict(env.terminations), dict(env.truncations)
        over = [agent for agent in self.present if terminations.get(agent) or truncations.get(agent)]
        observations = {agent: env.observe(agent) for agent in over}
        while env.agents and (env.terminations[env.agent_selection] or env.truncations[env.agent_selection]):
            env.step(None)
        self._turn()
        observations |= {agent: env.observe(agent) for agent in self.agents}
        return observations, rewards, terminations, truncations, infos

    def _turn(self) -> None:
        env: Any = self.env
        self.present = [each for each in env.agents if not (env.terminations[each] or env.truncations[each])]
        self.agents = [env.agent_selection] if self.present else []


def _agent_infos(infos: Any) -> dict[Any, Any]:
    """Return infos by agent without the empty ones, as copies that the caller may change."""
    return {agent: dict(info) if isinstance(info, dict) else info for agent, info in infos.items() if info}
