"""`treadle plan`."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from treadle.cli import failures
from treadle.cli.options import Plan
from treadle.cli.output import own_stdout
from treadle.cli.search_picture import search_picture
from treadle.errors import UsageError
from treadle.plan.mcts import MCTS
from treadle.plan.parallel import ParallelEnv, make
from treadle.plan.playing import Game, play
from treadle.plan.random_shooting import RandomShooting
from treadle.plan.search import Planner, RandomPlay
from treadle.progress import Progress, Standing, duration, print_table, throttled
from treadle.record.summary import as_json
from treadle.record.video import can_write_mp4, write_video

TOLD = ("seed", "total_reward", "steps", "decisions", "searched", "terminated", "truncated", "seconds")
SEARCHES = 8  # decisions kept of the first game; the picture shows the one that looked at most
log = logging.getLogger("treadle")


def run(options: Plan) -> int:
    """Play, print what came of it, and return the exit code."""
    arguments = options.arguments()
    if options.out is not None and options.out.exists() and not options.force and any(options.out.iterdir()):
        raise UsageError(f"there is something in {options.out}: --force replaces what this run writes")
    made_of = {name: arguments[name] for name in ("env_kwargs", "wrappers", "imports")}
    with own_stdout(options.json) as out:
        pictures = options.out is not None
        pixels = "rgb_array" if pictures and not options.env.startswith("ALE/") else None
        env: Any = make(arguments["env"], arguments["workers"], autoreset=False, render_mode=pixels, **made_of)
        with env:
            search = {name: arguments[name] for name in ("budget", "horizon", "dt", "discount")}
            planner = (MCTS if options.algo == "mcts" else RandomShooting)(env, **search)
            chance = [_random(env, options, options.seed + i) for i in range(options.games)]
            games = _games(env, planner, options, pictures)
        written = _write(options.out, games[0], options) if options.out is not None else []
        if options.json:
            print(as_json(_result(games, chance, written, options)), file=out)
        else:
            _show(games, chance, written, options)
    return failures.OK


def _random(env: ParallelEnv, options: Plan, seed: int) -> Game:
    chance = RandomPlay(env.action_space, dt=options.dt)
    return play(env.plan_env, chance, seed=seed, max_steps=options.max_steps)


def _games(env: ParallelEnv, planner: Planner, options: Plan, pictures: bool) -> list[Game]:
    now = Standing(of_episodes=options.games)
    games: list[Game] = []
    with Progress(show=not options.quiet) as progress:
        show = throttled(progress)

        def watch(game: Game) -> None:
            now.steps = now.made_steps = sum(each.searched for each in games) + game.searched
            if not games:  # nothing is finished: what the first game has so far
                now.made, now.return_sum = 1, game.total_reward
            show(now)

        progress(now)
        for index in range(options.games):
            seed = options.seed + index
            first = pictures and index == 0
            try:
                game = play(env, planner, seed=seed, max_steps=options.max_steps, frames=first, watch=watch,
                            searches=SEARCHES if first else 0)  # fmt: skip
            except (UsageError, gym.error.DependencyNotInstalled) as error:
                if not first or games:
                    raise
                log.warning("no video: %s", " ".join(str(error).split()))
                game = play(env, planner, seed=seed, max_steps=options.max_steps, watch=watch, searches=SEARCHES)
            games.append(game)
            now.episodes = now.made = len(games)
            now.return_sum = sum(each.total_reward for each in games)
            progress(now)
    return games


def _write(out: Path, game: Game, options: Plan) -> list[Path]:
    """The video and the picture."""
    out.mkdir(parents=True, exist_ok=True)
    written = []
    if game.frames:
        video = out / ("game.mp4" if can_write_mp4() else "game.png")
        write_video(video, game.frames)
        written.append(video)
    if game.searches:
        picture = out / "search.svg"
        widest = max(game.searches, key=lambda decision: len(decision.branches))
        picture.write_text(search_picture(widest, f"{options.algo} on {options.env}"), encoding="utf-8")
        written.append(picture)
    return written


def _result(games: list[Game], chance: list[Game], written: list[Path], options: Plan) -> dict[str, Any]:
    pairs = zip(games, chance, strict=True)
    rows = [{**{name: getattr(game, name) for name in TOLD}, "random": other.total_reward} for game, other in pairs]
    return {
        "algo": options.algo,
        "mean": float(np.mean([game.total_reward for game in games])),
        "random_mean": float(np.mean([game.total_reward for game in chance])),
        "games": rows,
        "written": [str(path) for path in written],
    }


def _show(games: list[Game], chance: list[Game], written: list[Path], options: Plan) -> None:
    rows = [
        (
            str(game.seed),
            f"{game.total_reward:,.2f}",
            f"{other.total_reward:,.2f}",
            f"{game.steps:,}",
            "terminated" if game.terminated else "truncated" if game.truncated else "stopped",
            f"{game.searched:,}",
            duration(game.seconds),
        )
        for game, other in zip(games, chance, strict=True)
    ]
    print_table(rows, ("seed", "return", "random", "steps", "end", "searched", "time"))
    mean, other = (float(np.mean([game.total_reward for game in each])) for each in (games, chance))
    times = f", {mean / other:.1f} times as much" if other > 0 else ""
    count = f"{len(games)} game{'' if len(games) == 1 else 's'}"
    print(f"{options.algo}: mean return {mean:,.2f} over {count}; random play: {other:,.2f}{times}")
    for path in written:
        print(f"written: {path}")
