"""Many steps of one environment in a row: what a worker does with a chunk.

`PlanEnv.step` is a template whose parts a subclass may change, and finding out that nothing was changed costs as much
as a third of a step of CartPole, in every step anew. So a `GymPlanEnv` that changes nothing is asked once for each
chunk, and then stepped by `plain`, which does what the template would. Everything else is stepped by its own `step`.

Frames in between, of which nobody sees anything, need no picture: drawing one is a third of an Atari frame. It is left
out where no wrapper could have looked at it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import gymnasium as gym

from treadle.pool.serve import snapshot
from treadle.program.own_names import own_names
from treadle.states.layers import class_name

Row = tuple[Any, ...]  # state (None where none is wanted), observation, reward, terminal, truncated, info
# called with actions, states (None: it goes on), dts, and whether somebody looks (else observations may be None)
Steps = Callable[[Iterable[Any], Iterable[Any], Iterable[int], bool], Iterator[Row]]


STEP_NAMES = frozenset({"n_step", "dt"})  # what a planning step itself puts into its info


def told(info: Mapping[str, Any], **ours: Any) -> dict[str, Any]:
    """An environment's info with what a planning step tells: its own value under such a NAME is kept as env_NAME."""
    return {**own_names(info, frozenset(ours), "env"), **ours}


BLIND = frozenset(  # wrappers that do not look at observations (the checker: after its first steps)
    {
        "gymnasium.wrappers.common.TimeLimit",
        "gymnasium.wrappers.common.OrderEnforcing",
        "gymnasium.wrappers.common.PassiveEnvChecker",
    }
)
DRAWN = "ale_py.env.AtariEnv"


def walking(env: Any, wanted: bool) -> Steps:
    """What steps an environment, as `PlanEnv.step` does. `wanted`: are states to be returned?"""
    plain = getattr(env, "plain_walk", None)
    found: Steps | None = None if plain is None else plain(wanted)
    if found is not None:
        return found
    step = env.step

    def steps(actions: Iterable[Any], states: Iterable[Any], dts: Iterable[int], seen: bool) -> Iterator[Row]:
        for action, state, dt in zip(actions, states, dts):
            row = step(action=action, state=state, dt=dt, return_state=wanted)
            yield row if wanted else (None, *row)

    return steps


def plain(env: Any, frameskip: int, put: Callable[[Any], None], take: Callable[[], Any] | None, reset: Any) -> Steps:
    """`PlanEnv.step` where nothing was changed.

    Args:
        env: the Gymnasium environment.
        frameskip: how often the action is applied for each dt.
        put, take: put a state back; take it, None when no state is wanted.
        reset: called after a step that ended an episode.
    """
    once, blind = env.step, blind_step(env)

    def steps(actions: Iterable[Any], states: Iterable[Any], dts: Iterable[int], seen: bool) -> Iterator[Row]:
        for action, state, dt in zip(actions, states, dts):
            if state is not None:
                put(state)
            times = dt * frameskip
            hidden = 0 if blind is None else times - seen
            obs, total, terminal, truncated, info = blind(action, seen) if blind and hidden else once(action)
            done = 1
            while done < times and not (terminal or truncated):
                again = blind(action, seen) if blind and done < hidden else once(action)
                obs, reward, terminal, truncated, info = again
                total = total + reward
                done += 1
            info = {**info, "n_step": done, "dt": dt} if STEP_NAMES.isdisjoint(info) else told(info, n_step=done, dt=dt)
            if terminal or truncated:
                terminal, truncated = bool(terminal), bool(truncated)
                # an environment may use its arrays again in the reset that follows
                obs, total, info = snapshot(obs), snapshot(total), snapshot(info)
                row = (None if take is None else take(), obs, total, terminal, truncated, info)
                reset(row)
                yield row
            else:
                yield None if take is None else take(), obs, total, False, False, info

    return steps


def blind_step(env: gym.Env) -> Callable[[Any, bool], tuple[Any, ...]] | None:
    """What steps an environment without drawing it; None where there is nothing to be gained, or somebody looks.

    An episode's last observation is drawn all the same, if it is `seen`.
    """
    layer: Any = env
    while isinstance(layer, gym.Wrapper):
        if class_name(layer) not in BLIND or not getattr(layer, "checked_step", True):
            return None
        layer = layer.env
    if class_name(layer) != DRAWN or layer._obs_type == "ram" or "_get_obs" in layer.__dict__:
        return None
    attributes, draw, once = layer.__dict__, layer._get_obs, env.step

    def step(action: Any, seen: bool) -> tuple[Any, ...]:
        attributes["_get_obs"] = _nothing
        try:
            obs, reward, terminal, truncated, info = once(action)
        finally:
            del attributes["_get_obs"]
        if seen and (terminal or truncated):
            obs = draw()
        return obs, reward, terminal, truncated, info

    return step


def _nothing() -> None:
    """In the place of an observation that nobody sees."""
