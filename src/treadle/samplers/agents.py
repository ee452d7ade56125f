"""The agents that samplers accept.

An agent has `get_action(observation) -> (action, info)` or `get_actions(observations) -> (actions, infos)`. It may have
`reset(do_resets)`, and needs `get_param_values` and `set_param_values` if its parameters are to be updated.

A plain callable is called as by `treadle.collect`, with a batch of observations, and returns a batch of actions. If it
takes `rng`, it gets its episode's own generator.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from treadle import trees
from treadle.errors import UsageError
from treadle.play.columns import stacked
from treadle.program.policies import asker_of


class FunctionAgent:
    """A callable, or an object with `predict`, with an agent's interface.

    Parameters are passed on to the object, if it has `get_param_values` and `set_param_values`. Every reset makes new
    generators for `rng` (one, or one a row) from the worker's own randomness.
    """

    def __init__(self, policy: Any) -> None:
        self.policy = policy
        asker = asker_of(policy)
        assert asker is not None
        self._asker = asker
        self._rngs: list[np.random.Generator] = []

    def reset(self, do_resets: Sequence[bool] | None = None) -> None:
        """Begin new episodes in the rows whose entry is True; None: there is one row."""
        rows = [True] if do_resets is None else list(do_resets)
        if self._asker.draws:
            fresh = len(self._rngs) != len(rows)
            old = [None] * len(rows) if fresh else self._rngs
            self._rngs = [
                np.random.Generator(np.random.PCG64(random.getrandbits(63))) if fresh or again else rng  # type: ignore[misc]
                for again, rng in zip(rows, old, strict=True)
            ]

    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        """Return (action, {}) for one observation."""
        actions = self._ask(stacked([observation]), 1)
        return trees.row(actions, 0), {}

    def get_actions(self, observations: Any) -> tuple[Any, dict[str, Any]]:
        """Return (actions, {}) for a batch of observations."""
        return self._ask(observations, len(trees.leaves(observations)[0])), {}

    def _ask(self, observations: Any, rows: int) -> Any:
        if self._asker.draws and len(self._rngs) != rows:
            self.reset([True] * rows)
        return self._asker.ask(observations, self._rngs[0] if len(self._rngs) == 1 else self._rngs)

    def get_param_values(self) -> Any:
        return self.policy.get_param_values()

    def set_param_values(self, values: Any) -> None:
        self.policy.set_param_values(values)


def as_agent(agent: Any) -> Any:
    """Return the agent itself, or a `FunctionAgent` around a callable. Raises TypeError for any other object."""
    if isinstance(agent, type):
        raise TypeError(f"{agent.__name__} is a class, and an agent is an object: give an instance")
    if any(callable(getattr(agent, name, None)) for name in ("get_action", "get_actions")):
        return agent
    if callable(agent) or callable(getattr(agent, "predict", None)):
        return FunctionAgent(agent)
    if callable(getattr(agent, "reset", None)):
        return agent  # a missing method raises when it is needed
    raise TypeError(
        f"{type(agent).__name__} is not an agent: it has neither get_action nor get_actions and cannot be called"
    )


def is_parameters(update: Any) -> bool:
    """Return True if an update holds an agent's new parameters, False if it is an agent."""
    return isinstance(update, dict | tuple | np.ndarray)


def action_of(agent: Any, observation: Any) -> tuple[Any, dict[str, Any]]:
    """Return (action, info) for one observation, also from an agent that has only `get_actions`.

    Raises TypeError if the agent has neither method.
    """
    one = getattr(agent, "get_action", None)
    if one is not None:
        return one(observation)
    actions, infos = _method(agent, "get_actions")(stacked([observation]))
    return trees.row(actions, 0), {key: value[0] for key, value in infos.items()}


def actions_of(agent: Any, observations: list[Any]) -> tuple[Any, dict[str, Any]]:
    """Return (actions, infos of batched values) for a list of observations, also from an agent with only `get_action`.

    Raises TypeError if the agent has neither method.
    """
    many = getattr(agent, "get_actions", None)
    if many is not None:
        return many(stacked(observations))
    pairs = [_method(agent, "get_action")(observation) for observation in observations]
    keys = pairs[0][1]
    return [action for action, _ in pairs], {key: [info[key] for _, info in pairs] for key in keys}


def reset_agent(agent: Any, *do_resets: Sequence[bool]) -> None:
    """Call the agent's `reset`, if it has one."""
    reset = getattr(agent, "reset", None)
    if reset is not None:
        reset(*do_resets)


def set_parameters(agent: Any, values: Any) -> None:
    """Set the agent's parameters. Raises TypeError if it has no `set_param_values`, or if `agent` is None."""
    if agent is None:
        raise TypeError("parameters came before there was an agent to set them in")
    _method(agent, "set_param_values")(values)


def _method(agent: Any, name: str) -> Any:
    found = getattr(agent, name, None)
    if found is None:
        what = "neither get_action nor get_actions" if name.startswith("get_action") else f"no {name}"
        raise TypeError(f"the agent, a {type(agent).__name__}, has {what}")
    return found


def askable(agent: Any) -> Any:
    """Return the agent as a policy in the caller: itself, or a wrapper that asks the agent row by row."""
    if asker_of(agent) is not None or callable(getattr(agent, "initial_state", None)):
        return agent
    if not callable(getattr(agent, "get_action", None)):
        raise UsageError(f"{type(agent).__name__} is not an agent: it has neither get_action nor get_actions")
    return _RowByRow(agent)


class _RowByRow:
    def __init__(self, agent: Any) -> None:
        self._agent = agent

    def get_actions(self, observations: Any) -> Any:
        rows = range(len(trees.leaves(observations)[0]))
        actions, infos = actions_of(self._agent, [trees.row(observations, row) for row in rows])
        return actions, {key: np.asarray(values) for key, values in infos.items()}
