"""The state of a slot that is more than an environment: a task, its sampler, and the environment they share."""

from __future__ import annotations

import pickle
from typing import Any

import gymnasium as gym

from treadle.errors import StateError
from treadle.states.keeper import Keeper
from treadle.states.layers import layers_of
from treadle.states.parts import Fixed, dump, load
from treadle.states.state import EnvState

KIND = "task slot"


def get_slot_state(objects: dict[str, Any], env: gym.Env | None = None, keeper: Keeper | None = None) -> EnvState:
    """The state of a slot.

    Args:
        objects: what else belongs to it, by name: the task, the sampler. They are pickled together, so what they share
            stays shared; their references to the environment become references to the other one.
        env: the Gymnasium environment that they use; None: there is none, or it is pickled with them.
        keeper: of `env`, for those that have one already.

    Raises StateError when something cannot be captured.
    """
    keeper = keeper or (Keeper(env) if env is not None else None)
    try:
        data = dump(objects, _fixed(env))
    except Exception as error:
        raise StateError(f"the state of the slot ({', '.join(objects)}) cannot be captured: {error}") from error
    kind = KIND if keeper is None else f"{KIND} of {keeper.kind}"
    return EnvState(kind, pickle.dumps((None if keeper is None else keeper.get(), data), 5))


def set_slot_state(state: EnvState, env: gym.Env | None = None, keeper: Keeper | None = None) -> dict[str, Any]:
    """Put the environment into its state, and return the other objects: new ones, which use this environment.

    Raises StateError for a state of another kind.
    """
    keeper = keeper or (Keeper(env) if env is not None else None)
    kind = KIND if keeper is None else f"{KIND} of {keeper.kind}"
    if not isinstance(state, EnvState) or state.kind != kind:
        raise StateError(f"this is no state of a {kind}: {state!r}")
    inner, data = pickle.loads(state.data)
    if keeper is not None:
        keeper.set(inner)
    return load(data, _fixed(env))


def _fixed(env: gym.Env | None) -> Fixed:
    """The environment's layers, and its spaces: they stay on their side."""
    fixed = Fixed()
    for index, layer in enumerate(layers_of(env) if env is not None else ()):
        fixed.add((index, "action_space"), layer.action_space)
        fixed.add((index, "observation_space"), layer.observation_space)
        fixed.add((index,), layer)
    return fixed
