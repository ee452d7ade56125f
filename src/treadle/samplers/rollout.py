"""`rollout`, which plays one episode in the caller."""

from __future__ import annotations

import time
from numbers import Real
from typing import Any

import numpy as np

from treadle.errors import BadObservation, UsageError, Where, attributes_of
from treadle.samplers.adapt import as_environment, is_environment
from treadle.samplers.agents import action_of, as_agent, reset_agent
from treadle.samplers.in_progress import InProgressEpisode
from treadle.spaces import Mismatch


def rollout(
    env: Any,
    agent: Any,
    *,
    max_episode_length: int | float = np.inf,
    animated: bool = False,
    pause_per_frame: float | None = None,
    deterministic: bool = False,
) -> dict[str, Any]:
    """Play one episode in the caller.

    Args:
        env: an environment with the sampler's interface, or a `gymnasium.Env`. It is not closed.
        agent: an agent or a callable, see `treadle.samplers.agents`.
        max_episode_length: steps after which the episode is cut.
        animated: call the environment's `visualize` (or, if it has none, `render`) at each step.
        pause_per_frame: seconds to wait after each step of an animation; None: 0.05.
        deterministic: use the action that the agent's info holds as "mean", if it has one.

    Returns:
        observations, next_observations, actions, rewards, step_types [T, ...], dones (bool[T]: True for TERMINAL),
        agent_infos and env_infos (dicts of [T, ...]), and episode_infos (dict).

    Raises:
        BadObservation: an observation does not fit the environment's space.
        UsageError: `env` has no `reset` or `step`, or `max_episode_length` is below 1.
        TypeError: `agent` is neither an agent nor a callable, or is a class.
    """
    env, agent = as_environment(env), as_agent(agent)
    if not is_environment(env):
        raise UsageError(f"rollout needs an environment that has reset and step, got a {type(env).__name__}")
    if not isinstance(max_episode_length, Real) or not max_episode_length >= 1:
        raise UsageError(f"max_episode_length must be at least 1, got {max_episode_length!r}")
    show = getattr(env, "visualize", getattr(env, "render", None)) if animated else None
    try:
        episode = InProgressEpisode(env)
        reset_agent(agent)
        if show is not None:
            show()
        while len(episode) < max_episode_length and not episode.ended:
            action, info = action_of(agent, episode.last_obs)
            episode.step(info["mean"] if deterministic and "mean" in info else action, info)
            if show is not None:
                if not hasattr(env, "visualize"):
                    show()
                time.sleep(0.05 if pause_per_frame is None else pause_per_frame)
    except Mismatch as error:
        step = attributes_of(error).get("treadle_step")
        where = Where(phase="step" if step else "reset", step=step or None, episode=0)
        fields: dict[str, Any] = {"path": error.path, "expected": error.expected, "got": error.got}
        raise BadObservation(
            f"{where}: {error}. The environment's observation does not fit its own observation_space",
            where=where,
            **fields,
        ) from error
    batch = episode.to_batch()
    (path,) = batch.to_list()
    return {**path, "dones": batch.terminals}
