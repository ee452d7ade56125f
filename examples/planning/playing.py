"""Playing games with a planner."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from search import Decision, Planner, whole

from treadle import PlanEnv


@dataclass
class Game:
    """What came of a game.

    Attributes:
        seed: it began with.
        total_reward: of it.
        steps: of the environment that were played.
        decisions: how often the planner was asked.
        searched: steps of the environment that the planner took.
        terminated, truncated: how it ended; both False: `max_steps` were played.
        frames: pictures, one for each step and one of the beginning; empty when not asked for.
        searches: some of the planner's decisions, spread over the game; empty when not asked for.
    """

    seed: int
    total_reward: float = 0.0
    steps: int = 0
    decisions: int = 0
    searched: int = 0
    terminated: bool = False
    truncated: bool = False
    frames: list[np.ndarray] = field(default_factory=list)
    searches: list[Decision] = field(default_factory=list)


def play(
    env: PlanEnv,
    planner: Planner,
    *,
    seed: int = 0,
    max_steps: int | None = None,
    frames: bool = False,
    searches: int = 0,
) -> Game:
    """Play one game: reset with `seed`, then ask the planner in every state what to do, until the episode ends.

    Args:
        env: whose own (local) environment plays. It should be made with autoreset=False.
        planner: decides; each action is applied `planner.dt` times.
        seed: of the environment and of the planner.
        max_steps: the longest game; None: as long as it lasts.
        frames: keep a picture of every step.
        searches: keep about so many of the decisions.
    """
    longest = None if max_steps is None else whole(max_steps, "max_steps")
    game = Game(seed)
    env.seed(seed)
    state, _, _ = env.reset()
    planner.begin(seed)
    every = 1
    if frames:
        game.frames.append(np.array(env.get_image()))
    while not (game.terminated or game.truncated) and (longest is None or game.steps < longest):
        decision = planner.plan(state)
        if searches and game.decisions % every == 0:
            game.searches.append(decision)
            if len(game.searches) > 2 * searches:  # too many: keep every second, and take half as many from now on
                game.searches, every = game.searches[::2], 2 * every
        game.decisions += 1
        game.searched += decision.steps
        for _ in range(planner.dt):
            _, reward, game.terminated, game.truncated, _ = env.step(_plain(decision.action), return_state=False)
            game.total_reward += float(reward)
            game.steps += 1
            if frames:
                game.frames.append(np.array(env.get_image()))
            if game.terminated or game.truncated or game.steps == longest:
                break
        state = env.get_state()
    return game


def _plain(action: Any) -> Any:
    """NumPy's whole numbers as Python's, which every environment takes."""
    return int(action) if isinstance(action, np.integer) else action
