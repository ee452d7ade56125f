"""Many steps of one environment in a row: what a worker does with a chunk.

`PlanEnv.step` is a template whose parts a subclass may change, and finding out that nothing was changed costs as much
as a third of a step of CartPole, in every step anew. So a `GymPlanEnv` that changes nothing is asked once for each
chunk, and then stepped by `plain`, which does what the template would. Everything else is stepped by its own `step`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from treadle.program.own_names import own_names
from treadle.wire.copies import snapshot

Row = tuple[Any, ...]  # state (None where none is wanted), observation, reward, terminal, truncated, info
# called with actions, states (None: it goes on) and dts
Steps = Callable[[Iterable[Any], Iterable[Any], Iterable[int]], Iterator[Row]]

STEP_NAMES = frozenset({"n_step", "dt"})  # what a planning step itself puts into its info


def told(info: Mapping[str, Any], **ours: Any) -> dict[str, Any]:
    """An environment's info with what a planning step tells: its own value under such a NAME is kept as env_NAME."""
    return {**own_names(info, frozenset(ours), "env"), **ours}


def walking(env: Any, wanted: bool) -> Steps:
    """What steps an environment, as `PlanEnv.step` does. `wanted`: are states to be returned?"""
    plain = getattr(env, "plain_walk", None)
    found: Steps | None = None if plain is None else plain(wanted)
    if found is not None:
        return found
    step = env.step

    def steps(actions: Iterable[Any], states: Iterable[Any], dts: Iterable[int]) -> Iterator[Row]:
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

    def steps(actions: Iterable[Any], states: Iterable[Any], dts: Iterable[int]) -> Iterator[Row]:
        for action, state, dt in zip(actions, states, dts):
            if state is not None:
                put(state)
            times = dt * frameskip
            obs, total, terminal, truncated, info = env.step(action)
            done = 1
            while done < times and not (terminal or truncated):
                obs, reward, terminal, truncated, info = env.step(action)
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
