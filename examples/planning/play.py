"""Plays an environment by planning: tries out what would happen, and does what looks best.

    python examples/planning/play.py CartPole-v1 --games 3 --out cart
    python examples/planning/play.py ALE/MsPacman-v5 --algo mcts --dt 4 --horizon 10 --budget 1000 --out pacman

In every state the planner steps copies of the environment from there, `--budget` steps for one decision, in batches on
all workers. It knows the state and nothing else: no network, no training. `random-shooting` plays random plans of
`--horizon` actions and begins the best one. `mcts` grows a tree of states by UCT, with `--horizon` random actions from
each new one; it needs discrete actions, finishes the round of leaves that reaches the budget, and grows another tree
with another number of workers. `--dt` applies each action that often.

Game i begins with seed SEED + i; random play of the same seeds is what it is compared with. With `--out DIR` there is a
video of the first game (game.mp4 with imageio-ffmpeg, else an animated game.png) and a picture of a search, search.svg.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from mcts import MCTS
from picture import search_picture
from playing import Game, play
from random_shooting import RandomShooting
from search import RandomPlay

from treadle import UsageError, plan
from treadle.record.video import video

SEARCHES = 8  # decisions kept of the first game; the picture shows the one that looked at most
ALGORITHMS: dict[str, Any] = {"random-shooting": RandomShooting, "mcts": MCTS}


def run(options: argparse.Namespace) -> list[Game]:
    """Play, print what came of it, and return the games."""
    pixels = "rgb_array" if options.out is not None and not options.env.startswith("ALE/") else None
    made_of = {"autoreset": False, "render_mode": pixels, "env_kwargs": options.env_kwargs}
    with plan.make(options.env, options.workers, **made_of) as env:
        search = {name: getattr(options, name) for name in ("budget", "horizon", "dt", "discount")}
        planner = ALGORITHMS[options.algo](env, **search)
        frames = options.out is not None and _draws(env)
        games, chance = [], []
        for index in range(options.games):
            how = {"seed": options.seed + index, "max_steps": options.max_steps}
            first = options.out is not None and index == 0
            game = play(env, planner, frames=frames and first, searches=SEARCHES if first else 0, **how)
            other = play(env.plan_env, RandomPlay(env.action_space, dt=options.dt), **how)
            end = "terminated" if game.terminated else "truncated" if game.truncated else "stopped"
            print(
                f"seed {game.seed}: return {game.total_reward:,.2f}, random play {other.total_reward:,.2f}; "
                f"{end} after {game.steps:,} steps, {game.searched:,} searched",
                flush=True,
            )
            games.append(game)
            chance.append(other)
    mean, other_mean = (float(np.mean([game.total_reward for game in each])) for each in (games, chance))
    times = f", {mean / other_mean:.1f} times as much" if other_mean > 0 else ""
    print(f"{options.algo}: mean return {mean:,.2f}; random play: {other_mean:,.2f}{times}")
    if options.out is not None:
        write(options.out, games[0], f"{options.algo} on {options.env}")
    return games


def _draws(env: plan.ParallelEnv) -> bool:
    """Can the environment be drawn?"""
    try:
        env.reset()
        return env.get_image() is not None
    except (UsageError, gym.error.DependencyNotInstalled) as error:
        print(f"no video: {' '.join(str(error).split())}", file=sys.stderr)
        return False


def write(out: Path, game: Game, title: str) -> None:
    """The video and the picture of a game."""
    out.mkdir(parents=True, exist_ok=True)
    if game.frames:
        path = out / ("game.mp4" if find_spec("imageio_ffmpeg") else "game.png")
        with video(path) as take:
            for frame in game.frames:
                take(frame)
        print(f"written: {path}")
    widest = max(game.searches, key=lambda decision: len(decision.branches))
    (out / "search.svg").write_text(search_picture(widest, title), encoding="utf-8")
    print(f"written: {out / 'search.svg'}")


def main(arguments: Sequence[str] | None = None) -> list[Game]:
    """Run as a script."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("env", metavar="ENV", help="id of a Gymnasium environment")
    parser.add_argument("--algo", choices=ALGORITHMS, default="random-shooting")
    parser.add_argument("--budget", type=int, default=2000, help="steps of the environment for one decision")
    parser.add_argument("--horizon", type=int, default=50, help="actions to look ahead")
    parser.add_argument("--dt", type=int, default=1, help="how often each action is applied")
    parser.add_argument("--discount", type=float, default=1.0, help="of rewards, for each action")
    parser.add_argument("--games", type=int, default=1, help="how many to play")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-steps", type=int, help="stop a game there")
    parser.add_argument("--workers", type=lambda text: text if text == "auto" else int(text), default="auto")
    parser.add_argument("--env-kwargs", type=json.loads, metavar="JSON", help="of the environment's constructor")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where the video and the picture go")
    options = parser.parse_args(arguments)
    try:
        return run(options)
    except UsageError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
