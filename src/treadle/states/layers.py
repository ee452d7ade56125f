"""One layer of an environment (a wrapper, or the environment inside all of them): which attributes are its state.

Of the classes in the tables it is known which attributes change while it runs, so only those are kept: a state of
CartPole is some 200 bytes. Of any other class all attributes are kept.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

# class -> the attributes that change; "_np_random" is kept for every class
KNOWN: dict[str, tuple[str, ...]] = {
    "gymnasium.envs.classic_control.cartpole.CartPoleEnv": ("state", "steps_beyond_terminated"),
    "gymnasium.envs.classic_control.acrobot.AcrobotEnv": ("state",),
    "gymnasium.envs.classic_control.mountain_car.MountainCarEnv": ("state",),
    "gymnasium.envs.classic_control.continuous_mountain_car.Continuous_MountainCarEnv": ("state",),
    "gymnasium.envs.classic_control.pendulum.PendulumEnv": ("state", "last_u"),
    "ale_py.env.AtariEnv": (),
    "gymnasium.wrappers.common.TimeLimit": ("_elapsed_steps",),
    "gymnasium.wrappers.common.OrderEnforcing": ("_has_reset", "_has_rendered"),
    "gymnasium.wrappers.common.Autoreset": ("autoreset",),
    # not episode_start_time and time_queue: a clock means nothing at another time
    "gymnasium.wrappers.common.RecordEpisodeStatistics": (
        "episode_count",
        "episode_returns",
        "episode_lengths",
        "return_queue",
        "length_queue",
    ),
    "gymnasium.wrappers.common.PassiveEnvChecker": (),
    # what has been filmed is no state
    "gymnasium.wrappers.rendering.RecordVideo": (),
    "gymnasium.wrappers.rendering.RenderCollection": (),
    "gymnasium.wrappers.rendering.HumanRendering": (),
}

# of every layer: the inner environment (a layer of its own), and what Gymnasium's Wrapper remembers of it
SKIPPED = frozenset(
    {
        "env",
        "spec",
        "metadata",
        "_saved_kwargs",
        "_action_space",
        "_observation_space",
        "_metadata",
        "_cached_spec",
        "_ezpickle_args",
        "_ezpickle_kwargs",
    }
)


class Missing:
    """In the place of an attribute that does not exist yet. There is one, `MISSING`."""

    def __reduce__(self) -> str:
        return "MISSING"


MISSING = Missing()


def class_name(value: Any) -> str:
    """Module and name of an object's class."""
    return f"{type(value).__module__}.{type(value).__qualname__}"


def layers_of(env: gym.Env) -> list[Any]:
    """The wrappers from the outermost in, and the environment inside them; it ends at one that keeps its own state."""
    layers: list[Any] = [env]
    while isinstance(env, gym.Wrapper) and not keeps_itself(env):
        env = env.env
        layers.append(env)
    return layers


def keeps_itself(layer: Any) -> bool:
    """Does its class say `state_is_all = True`: its get_state() and set_state(state) are all there is to keep?"""
    return getattr(type(layer), "state_is_all", False)


def read(layer: Any, names: tuple[str, ...]) -> tuple[Any, ...]:
    """The values of named attributes."""
    found = layer.__dict__
    return tuple([found.get(name, MISSING) for name in names])


def write(layer: Any, names: tuple[str, ...], values: tuple[Any, ...]) -> None:
    """Give named attributes their values, and take those away that were missing."""
    for name, value in zip(names, values, strict=True):
        if value is not MISSING:
            setattr(layer, name, value)
        elif name in layer.__dict__:
            delattr(layer, name)


def pass_first_checks(layer: Any) -> None:
    """Gymnasium's checker compares the first steps with the reset before them, which a state does not have."""
    layer.checked_reset = layer.checked_step = layer.checked_data_reuse = True
    layer._previous_data = None


def generators_of(layer: Any) -> tuple[str, ...]:
    """The attributes that are random generators of NumPy's, `_np_random` first. It counts before it is made, too."""
    found = [name for name, value in layer.__dict__.items() if isinstance(value, np.random.Generator)]
    always = [] if isinstance(layer, gym.Wrapper) else ["_np_random"]
    return tuple(dict.fromkeys([*always, *sorted(found)]))
