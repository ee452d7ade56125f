"""Vectors of environments with several agents, in two forms with one layout.

Both have a `treadle.VectorEnv` of `AgentsEnv`s, `vec`, and cut its batches: `AgentsVector` by agent, `AgentRows` into
rows (environment x agent) in the order of environments. `vec` has the other methods, such as calls of some slots and
statistics.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import batch_space

from treadle import trees
from treadle.errors import UsageError
from treadle.pettingzoo.env import KEY, AgentsEnv, AgentsLayout, Outcome
from treadle.vector.gymnasium import VectorEnv
from treadle.vector.infos import columns, rows_of_infos
from treadle.vector.make_vec import vector_of
from treadle.vector.next_obs import finals_of
from treadle.vector.orders import chosen_slots
from treadle.vector.rollout import Rollout

Five = tuple[Any, Any, Any, Any, dict[Any, Any]]
FINAL = ("final_obs", "_final_obs", "final_info", "_final_info")


class AgentsFace:
    """The base of both forms.

    Attributes:
        vec: the vector of environments, whose batches `treadle.pettingzoo.env` describes.
        layout: the `AgentsLayout`: the agents' places in a slot's observation and action.
        agents, possible_agents: the names of all possible agents.
    """

    fill = False  # see `Outcome.of`
    width = 1  # rows of a slot
    _cut: Callable[[Any, int], Any]  # a tree of [..., n, agents, ...] in this form; the int is the slots' axis
    _given: Callable[[Any, np.ndarray], Any]  # (actions in this form, bool[n, agents] of who acts) -> slots' actions
    _agent_infos: Callable[[dict[Any, Any], int], dict[Any, Any]]  # infos of n slots in this form
    _ends: Callable[[dict[Any, Any]], dict[Any, Any]]  # terminal observations, by (slot,) or (t, slot), in this form

    def __init__(self, vec: VectorEnv) -> None:
        self.vec = vec
        vec._pool.calls.again = "reset()"
        self.layout: AgentsLayout = vec.metadata[KEY]
        self.agents = self.possible_agents = list(self.layout.agents)
        self._last: Outcome | None = None
        self._now = np.zeros((vec.num_envs, len(self.agents)), np.bool_)  # agents that act next, in all slots

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[Any, Any]]:
        """Do as `VectorEnv.reset`: environment i gets seed + i."""
        observations, infos = self.vec.reset(seed=seed, options=options)
        none = np.zeros(len(observations["rewards"]), np.bool_)
        return self._handed(observations, none, infos, lambda: none)[::4]

    def step(self, actions: Any) -> Five:
        """Step every environment; return observations, rewards, terminations, truncations, infos, in this form.

        Actions of agents that are not `alive` are ignored, but must be valid. Raises UsageError for actions in another
        form, and the errors of `VectorEnv.step`; `partial` of an error is a batch of `vec`.
        """
        observations, _, terminated, truncated, infos = self.vec.step(self._given(actions, self._now))
        return self._handed(observations, terminated | truncated, infos, lambda: self.vec.valid)

    @property
    def alive(self) -> np.ndarray:
        """bool[n, agents] after the last batch: True for agents that act next.

        In turn games, that is one agent in each environment, and none after the end of its episode. Raises UsageError
        before the first batch.
        """
        return self._outcome.alive

    @property
    def acted(self) -> np.ndarray:
        """bool[n, agents] of the last batch: True for agents whose action was taken; their rows are transitions.

        Raises UsageError before the first batch.
        """
        return self._outcome.acted

    def rollout(self, policy: Callable[[Any], Any] | None = None, *, steps: int) -> Rollout:
        """Do as `VectorEnv.rollout`; observations for `policy`, the policy's actions and the result are in this form.

        The result's `valid` is True for transitions: the agent's action was taken.
        """
        act = policy and (lambda batch: self._given(policy(self._cut(batch["observation"], 0)), batch["alive"]))
        made, cut = self.vec.rollout(act, steps=steps), self._cut
        finals, ended = made.terminal_observations, made.terminated | made.truncated
        outcome = Outcome.of(made.following, finals, ended, lambda: made.valid, fill=self.fill)
        self._last = Outcome(*(column[-1] for column in outcome))
        self._now[:] = self._last.alive
        return replace(
            made,
            observations=cut(made.observations["observation"], 1),
            actions=cut(made.actions, 1),
            rewards=cut(outcome.rewards, 1),
            terminated=cut(outcome.terminations, 1),
            truncated=cut(outcome.truncations, 1),
            valid=cut(outcome.acted, 1),
            episode_ids=np.repeat(made.episode_ids, self.width, axis=1),
            infos=[self._infos(infos, self.vec.num_envs) for infos in made.infos],
            bootstrap=cut(made.bootstrap["observation"], 0),
            following=cut(made.following["observation"], 1),
            terminal_observations=self._ends(finals),
        )

    def async_reset(self, *, seed: Any = None, options: Any = None) -> None:
        """See `VectorEnv.async_reset`."""
        self.vec.async_reset(seed=seed, options=options)

    def send(self, actions: Any, env_id: Any = None) -> None:
        """Begin a step of the environments `env_id` (None: all), with actions in this form.

        `env_id` is as in the infos of `recv`. In the form "rows", it holds an environment's number once for each agent.
        """
        if env_id is not None:
            given, env_id = np.atleast_1d(env_id), np.atleast_1d(env_id)[:: self.width]
            if not np.array_equal(np.repeat(env_id, self.width), given):
                raise UsageError(f"env_id has each environment {self.width} times, once for each agent: got {given}")
            env_id = chosen_slots(env_id.tolist(), self.vec.num_envs)
        self.vec.send(self._given(actions, self._now if env_id is None else self._now[env_id]), env_id)

    def recv(self, *, min: int | None = None, max: int | None = None, timeout: float | None = None) -> Five:
        """Return the results of the environments that are ready first, in this form.

        `min`, `max` (numbers of environments) and `timeout` are those of `VectorEnv.recv`. infos have "env_id" (for
        `send`) and "valid"; `alive` and `acted` are of these environments.
        """
        observations, _, terminated, truncated, infos = self.vec.recv(min=min, max=max, timeout=timeout)
        ids, valid = infos.pop("env_id"), infos.pop("valid")
        five = self._handed(observations, terminated | truncated, infos, lambda: valid, ids)
        five[4].update(env_id=np.repeat(ids, self.width), valid=self._cut(self.acted, 0))
        return five

    def call(self, name: str, /, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Do as `VectorEnv.call`: return one result for each environment."""
        return self.vec.call(name, *args, **kwargs)

    def render(self) -> tuple[Any, ...]:
        """Return one frame for each environment."""
        return self.vec.render()

    def close(self, **kwargs: Any) -> None:
        """See `VectorEnv.close`."""
        self.vec.close(**kwargs)

    # -- helpers ---------------------------------------------------------------------------------------------------

    @property
    def _outcome(self) -> Outcome:
        if self._last is None:
            raise UsageError("no agent is there before the first reset()")
        return self._last

    def _handed(self, batch: Any, ended: np.ndarray, infos: Any, valid: Any, slots: Any = slice(None)) -> Any:
        """Return a batch of `slots` in this form; see `Outcome.of` for `ended` and `valid`."""
        self._last = out = Outcome.of(batch, finals_of(infos) if infos else {}, ended, valid, fill=self.fill)
        self._now[slots] = out.alive
        parts = (batch["observation"], out.rewards, out.terminations, out.truncations)
        return *(self._cut(part, 0) for part in parts), self._infos(infos, len(ended))

    def _infos(self, infos: dict[Any, Any], n: int) -> dict[Any, Any]:
        out = self._agent_infos({key: column for key, column in infos.items() if key not in FINAL}, n) if infos else {}
        if "final_obs" in infos:
            found, mask = np.empty(n * self.width, object), np.repeat(infos["_final_obs"], self.width)
            for (row,), final in self._ends({(slot,): final for slot, final in finals_of(infos).items()}).items():
                found[row] = final
            out.update(final_obs=found, _final_obs=mask)
            out.update(final_info=self._agent_infos(infos["final_info"], n), _final_info=mask.copy())
        return out


class AgentsVector(AgentsFace):
    """A vector grouped by agent: observations, rewards, terminations and truncations are {agent: [n, ...]}.

    Actions are {agent: [n, ...]}, too; agents that act in no environment may be missing. infos are {agent: columns}.
    With SAME_STEP they also have "final_obs" (n observations of all agents, by name) and "final_info". The observation
    of an absent agent is zeros, or None if its space has no fixed shape. If `on_failure` allows a worker's death, all
    agents of its environments are truncated, and none has `acted`.
    """

    def __init__(self, vec: VectorEnv) -> None:
        super().__init__(vec)
        self.num_envs, self.metadata, self.render_mode = vec.num_envs, vec.metadata, vec.render_mode
        seen, done = self.layout.observation_spaces, self.layout.action_spaces
        self.single_observation_space, self.single_action_space = seen.__getitem__, done.__getitem__
        self.observation_space, self.action_space = (
            {agent: batch_space(space, vec.num_envs) for agent, space in each.items()}.__getitem__
            for each in (seen, done)
        )

    def _cut(self, tree: Any, axis: int) -> Any:
        return self.layout.by_agent(tree, axis + 1)

    def _given(self, actions: Any, alive: np.ndarray) -> Any:
        if not isinstance(actions, dict):
            raise UsageError(f"actions are {{agent: [n, ...]}} in the grouped form, got {type(actions).__name__}")
        return self.layout.joined_actions(actions, alive)

    def _agent_infos(self, infos: dict[Any, Any], n: int) -> dict[Any, Any]:
        return infos

    def _ends(self, finals: dict[Any, Any]) -> dict[Any, Any]:
        return {at: self.layout.by_agent(final["observation"], 0) for at, final in finals.items()}


class AgentRows(AgentsFace, gym.vector.VectorEnv):
    """A Gymnasium vector with a row for each agent of each environment.

    Row i * agents + j is agent j of environment i. All agents have the same spaces.

    A row whose agent has ended waits until its environment begins again. It is not `valid`, and its observation is
    zeros. It is truncated when the environment's episode ends, so that returns along a row are not bootstrapped across
    the end. Otherwise the autoreset mode is the environments'. In DISABLED mode, all rows of an environment are reset
    together.

    Attributes:
        agent_id: int64[rows], the index of the row's agent in `agents`.
        env_id: int64[rows], the row's environment.

    Raises:
        UsageError: agents have different spaces, or spaces without a fixed shape.
    """

    fill = True

    def __init__(self, vec: VectorEnv) -> None:
        super().__init__(vec)
        layout, n = self.layout, vec.num_envs
        if not layout.stacked:
            vec.close()
            raise UsageError(
                f"rows need agents whose spaces are equal and of fixed shape, these are {layout.observation_spaces} "
                f'and {layout.action_spaces}: use form="grouped"'
            )
        self.width = k = len(self.agents)
        self.num_envs = n * k
        self.agent_id, self.env_id = np.tile(np.arange(k), n), np.repeat(np.arange(n), k)
        self.single_observation_space = layout.observation_spaces[self.agents[0]]
        self.single_action_space = layout.action_spaces[self.agents[0]]
        self.observation_space = batch_space(self.single_observation_space, n * k)
        self.action_space = batch_space(self.single_action_space, n * k)
        self.metadata, self.render_mode, self.spec = vec.metadata, vec.render_mode, None
        self.autoreset_mode = vec.autoreset_mode

    @property
    def valid(self) -> np.ndarray:
        """bool[rows] of the last batch: True for rows that are transitions."""
        return self.acted.reshape(-1)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[Any, Any]]:
        """Do as `VectorEnv.reset`: environment i gets seed + i.

        options["reset_mask"] has all rows of an environment or none of them. Raises UsageError for any other mask.
        """
        if isinstance(options, dict) and "reset_mask" in options:
            mask = np.asarray(options["reset_mask"]).reshape(self.vec.num_envs, -1)
            if (mask.any(1) != mask.all(1)).any():
                raise UsageError("an environment is reset as a whole: reset_mask has all of its rows, or none of them")
            options = {**options, "reset_mask": mask.any(1)}
        return super().reset(seed=seed, options=options)

    def close_extras(self, **kwargs: Any) -> None:
        self.vec.close(**kwargs)

    def close(self, **kwargs: Any) -> None:
        gym.vector.VectorEnv.close(self, **kwargs)

    def _cut(self, tree: Any, axis: int) -> Any:
        return trees.map(lambda leaf: leaf.reshape(*leaf.shape[:axis], -1, *leaf.shape[axis + 2 :]), tree)

    def _given(self, actions: Any, alive: np.ndarray) -> Any:
        try:
            return trees.map(lambda leaf: np.reshape(leaf, (*alive.shape, *np.shape(leaf)[1:])), actions)
        except ValueError as error:
            raise UsageError(f"{alive.size} rows want as many actions: {error}") from error

    def _agent_infos(self, infos: dict[Any, Any], n: int) -> dict[Any, Any]:
        """Put an agent's infos into its row, and infos without an agent into all rows of the environment."""
        rows = {}
        for slot, told in rows_of_infos(infos, n).items():
            common = {key: value for key, value in told.items() if key not in self.layout.action_spaces}
            for i, agent in enumerate(self.agents):
                if info := {**common, **told.get(agent, {})}:
                    rows[slot * self.width + i] = info
        return columns(n * self.width, rows)

    def _ends(self, finals: dict[Any, Any]) -> dict[Any, Any]:
        return {
            (*at[:-1], at[-1] * self.width + i): trees.row(final["observation"], i)
            for at, final in finals.items()
            for i in range(self.width)
        }


FORMS: dict[str, type] = {"grouped": AgentsVector, "rows": AgentRows}


def make_vec(
    env: Callable[..., Any], num_envs: int = 1, *, form: str = "grouped", turns: bool = False, **kwargs: Any
) -> Any:
    """Make a vector of `num_envs` environments of several agents.

    Args:
        env: a callable that returns a `pettingzoo.ParallelEnv`, such as `simple_spread_v3.parallel_env`.
        num_envs: number of environments.
        form: "grouped": `AgentsVector`, {agent: [n, ...]}. "rows": `AgentRows`, a `gymnasium.vector.VectorEnv` with
            a row for each agent of each environment, for agents with equal spaces.
        turns: True: `env` makes an `AECEnv`, whose agents take turns. `alive` then marks the agent whose turn it is,
            and each step takes the action of one agent.
        **kwargs: options of `treadle.VectorEnv` (workers, inline, autoreset_mode, on_failure, ...); the others go to
            `env`, as for `treadle.make_vec`.

    Raises:
        UsageError: `env` cannot be called, `form` is unknown, agents have different spaces in rows, or `infos` is not
            "gymnasium".
        StartupFailed: an environment of the other kind than `turns` says, or without `possible_agents`.
        TreadleError: the errors of `treadle.make_vec`.
    """
    if form not in FORMS:
        raise UsageError(f'form is "grouped" or "rows", got {form!r}')
    return FORMS[form](slots_of("make_vec", AgentsEnv, env, num_envs, turns=turns, **kwargs))


def slots_of(face: str, kind: Callable[..., Any], env: Callable[..., Any], n: int, /, **kwargs: Any) -> VectorEnv:
    """Make the vector of slots, with a `kind` around each environment that `env` makes.

    `face`: the name of the function or class that the user called, for errors.
    """
    if not callable(env):
        raise UsageError(
            f"a function that makes a PettingZoo environment is wanted, such as a parallel_env, got {env!r}"
        )
    if kwargs.get("infos", "gymnasium") != "gymnasium":
        raise UsageError('vectors of agents have infos="gymnasium" only')
    return vector_of(face, partial(kind, env, turns=kwargs.pop("turns", False)), n, **kwargs)
