"""A PettingZoo environment in a slot, as one Gymnasium environment, and its layout, from which both forms are read.

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
from treadle.errors import StateError, UsageError
from treadle.spaces import Layout
from treadle.tasks.rows import Anything

KEY = "treadle agents"  # of the layout, in an environment's metadata


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
                f"{env} does not say in possible_agents who its agents may be, so nothing can be laid out. One such "
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


class AgentsEnv(gym.Env):
    """One environment of several agents; what a row holds is in `treadle.pettingzoo.env`.

    `reset` and `step` are Gymnasium's. An action has one part for each agent, whoever acts: those of others are not
    looked at. The reward is the sum of the agents'. An episode ends when nobody is left: truncated where an agent was
    truncated in the last step, else terminated. `info` has the agents' infos by name (those that are not empty), and
    in the step in which an agent's own episode ends, there is `{"episode": {"r": its return, "l": its actions}}` in
    its info.

    Args:
        make: returns a `pettingzoo.ParallelEnv`; with `turns`, a `pettingzoo.AECEnv`.
        turns: do agents take turns (AEC)?
        **kwargs: for `make`.

    Raises:
        UsageError: it is one kind, and `turns` says the other.
    """

    state_is_all = True  # to `treadle.states`: nothing below it is looked at

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
        return self._row(observations, (), {}, {}, {}), _told(infos or {})

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        acting, given = self._acting, self.layout.actions(action)
        observations, rewards, terminations, truncations, infos = self._source.step(
            {agent: given[agent] for agent in acting}
        )
        present = set(getattr(self._source, "present", self._source.agents))
        told = _told(infos)
        truncations = {agent: bool(truncations.get(agent)) for agent in self._there}
        for agent in self._there:
            self._returns[agent] += rewards.get(agent, 0.0)
            self._lengths[agent] += agent in acting
            terminated = bool(terminations.get(agent))
            truncations[agent] |= agent not in present and not terminated  # it left without a word
            if terminated or truncations[agent]:
                told.setdefault(agent, {})["episode"] = {"r": self._returns[agent], "l": self._lengths[agent]}
        terminations = {agent: bool(terminations.get(agent)) for agent in self._there}
        row = self._row(observations, acting, rewards, terminations, truncations)
        over, cut = not present, any(truncations.values())
        return row, float(row["rewards"].sum()), over and not cut, over and cut, told

    def render(self) -> Any:
        if self.render_mode is None:
            raise UsageError('there are no images: it was made with render_mode=None: give render_mode="rgb_array"')
        return self.env.render()

    def close(self) -> None:
        self.env.close()

    def get_state(self) -> Any:
        """Not to be had: raises StateError. PettingZoo's environments copy and pickle as what they were built with."""
        raise StateError("the state of a PettingZoo environment cannot be taken: it pickles as what it was built with")

    def set_state(self, state: Any) -> None:
        """As `get_state`."""
        self.get_state()

    def __getattr__(self, name: str) -> Any:
        """What the environment has besides (`state`, its own attributes), for `call` and `get_attr` of a vector."""
        if name.startswith("_") or name == "env":
            raise AttributeError(name)
        return getattr(self.env, name)

    def _row(self, observations: Any, acted: Any, rewards: Any, terminations: Any, truncations: Any) -> dict[str, Any]:
        """The slot's observation; from now on those act who are there now."""
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


class OpenAgentsEnv(AgentsEnv):
    """One environment of agents that nobody knows before they are there: what its `reset` and `step` return, behind the
    list of its agents, is an observation that goes by message, as it is. An action is theirs, by agent."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.observation_space, self.action_space = Anything(), Anything()
        self.metadata, self.render_mode = dict(getattr(env, "metadata", None) or {}), getattr(env, "render_mode", None)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        told = self.env.reset(seed=seed, options=options)
        return (list(self.env.agents), *told), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        told = self.env.step(action)
        return (list(self.env.agents), *told), float(sum(told[1].values())), not self.env.agents, False, {}


def one_of_either(make: Callable[..., Any], *, turns: bool = False, **kwargs: Any) -> AgentsEnv:
    """What runs in the slot of a single environment: it may leave open who its agents may be."""
    env = make(**kwargs)
    known = turns or hasattr(env, "agent_iter") or getattr(env, "possible_agents", None)
    return AgentsEnv(lambda: env, turns=turns) if known else OpenAgentsEnv(env)


def spaces_of(env: Any, agent: Any) -> tuple[Any, Any]:
    """Observation and action space of an agent of what runs in a slot."""
    return env.unwrapped.env.observation_space(agent), env.unwrapped.env.action_space(agent)


class TurnsEnv:
    """An AEC environment as a parallel one in which only the agent acts whose turn it is.

    Attributes:
        agents: whose turn it is; nobody's when the game is over.
        present: who is in the game.
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


def _told(infos: Any) -> dict[Any, Any]:
    """Infos by agent, without the empty ones; each is one that may be written to."""
    return {agent: dict(info) if isinstance(info, dict) else info for agent, info in infos.items() if info}
