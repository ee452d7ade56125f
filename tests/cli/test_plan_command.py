"""`treadle plan`, as a user runs it."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from command import one_line, treadle

from conftest import require
from treadle.cli import plan as plan_command
from treadle.plan import RandomShooting, make

SMALL = ("--budget", 60, "--horizon", 10, "--max-steps", 12, "--quiet")


def test_games_with_a_table() -> None:
    done = treadle("plan", "CartPole-v1", "--games", 2, "--workers", 1, *SMALL)
    assert (done.returncode, done.stderr) == (0, "")
    assert "random-shooting: mean return 12.00 over 2 games; random play: " in done.stdout
    assert done.stdout.count("stopped") == 2


def test_the_return_so_far_is_shown_while_the_first_game_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []
    monkeypatch.setattr(plan_command, "throttled", lambda _: lambda now: seen.append(now.mean_return))
    with make("CartPole-v1", n_workers=1, backend="serial", autoreset=False) as env:
        planner = RandomShooting(env, budget=40, horizon=5)
        plan_command._games(env, planner, cast(Any, SimpleNamespace(games=1, quiet=True, seed=0, max_steps=3)), False)
    assert seen == [1.0, 2.0, 3.0]


def test_json_a_video_and_a_picture(tmp_path: Path) -> None:
    require("pygame")
    out = tmp_path / "out"
    arguments = ("plan", "CartPole-v1", "--algo", "mcts", "--workers", 2, "--out", out, "--json", *SMALL)
    done = treadle(*arguments)
    assert (done.returncode, "treadle" in done.stderr) == (0, False)
    result = json.loads(done.stdout)
    assert result["mean"] == 12.0
    assert result["games"][0]["searched"] >= 12 * 60
    video, picture = (Path(path) for path in result["written"])
    assert video.stat().st_size > 1000
    root = ET.fromstring(picture.read_text())
    assert len(root.findall(".//{http://www.w3.org/2000/svg}line")) > 5
    done = treadle(*arguments)
    assert (done.returncode, "--force" in one_line(done.stderr)) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("CartPol-v1",), "did you mean CartPole-v1"),
        (("Pendulum-v1", "--algo", "mcts"), "needs discrete actions"),
        (("CartPole-v1", "--algo", "astar"), "--algo is random-shooting or mcts"),
        (("CartPole-v1", "--budget", "10"), "less than two plans"),
        (("CartPole-v1", "--dt", "0"), "--dt must be at least 1"),
        (("CartPole-v1", "--workers", "0"), "--workers must be at least 1"),
    ],
)
def test_bad_input_is_one_line(arguments: tuple[str, ...], text: str) -> None:
    done = treadle("plan", *arguments, "--quiet")
    assert (done.returncode, text in one_line(done.stderr)) == (2, True), done.stderr
