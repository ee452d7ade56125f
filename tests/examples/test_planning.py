"""The planners: small searches that must find what there is to find, and games; and the program that plays them."""

import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import example_kit
import gymnasium as gym
import numpy as np
import pytest

from conftest import require
from treadle.errors import UsageError
from treadle.plan import GymPlanEnv, ParallelEnv, make
from treadle.worker.options import WorkerOptions

sys.path.insert(0, str(example_kit.EXAMPLES / "planning"))

from mcts import MCTS
from picture import search_picture
from play import main
from playing import play
from random_shooting import RandomShooting
from search import Branch, Decision, RandomPlay


class Corridor(gym.Env):
    """Nine cells; only the right end pays, and the left end is a trap that pays a little and ends."""

    observation_space = gym.spaces.Discrete(9)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.cell = 2
        return self.cell, {}

    def step(self, action: int) -> Any:
        self.cell += 1 if action else -1
        end = self.cell in (0, 8)
        return self.cell, {0: 1.0, 8: 10.0}.get(self.cell, 0.0), end, False, {}


@pytest.fixture(scope="module")
def corridor() -> Any:
    with ParallelEnv(
        GymPlanEnv, Corridor, n_workers=2, worker_options=WorkerOptions(backend="serial"), autoreset=False
    ) as env:
        yield env


@pytest.mark.parametrize("planner", [RandomShooting, MCTS])
def test_the_far_reward_is_found(corridor: ParallelEnv, planner: Any) -> None:
    games = [play(corridor, planner(corridor, budget=900, horizon=12, discount=0.99), seed=s) for s in range(2)]
    for game in games:
        assert game.terminated
        assert game.total_reward == 10.0
        assert game.decisions == game.steps >= 6
        assert game.searched > 0
    again = play(corridor, planner(corridor, budget=900, horizon=12, discount=0.99), seed=1, searches=2)
    assert (again.steps, again.searched) == (games[1].steps, games[1].searched), "a seed gives a game"
    assert 1 <= len(again.searches) <= 4
    for decision in again.searches:
        assert [decision.branches[i].parent for i in decision.path] == [-1, *decision.path[:-1]]
        assert decision.branches[decision.path[0]].action == decision.action
        assert all(branch.parent < index for index, branch in enumerate(decision.branches))


class Silent(GymPlanEnv):
    """Tells nothing of its steps."""

    def process_info(self, info: dict[str, Any], **step: Any) -> dict[str, Any]:
        return {}


@pytest.mark.parametrize("planner", [RandomShooting, MCTS])
def test_a_planner_reads_no_infos(planner: Any) -> None:
    games = []
    for kind in (GymPlanEnv, Silent):
        with ParallelEnv(
            kind, Corridor, n_workers=2, worker_options=WorkerOptions(backend="serial"), autoreset=False
        ) as env:
            games.append(play(env, planner(env, budget=300, horizon=12, discount=0.99), seed=1))
    assert (games[0].steps, games[0].searched) == (games[1].steps, games[1].searched)


def test_a_tree_serves_the_next_decision(corridor: ParallelEnv) -> None:
    planner = MCTS(corridor, budget=300, horizon=5, leaves=4)
    corridor.seed(0)
    state, _, _ = corridor.reset()
    first = planner.plan(state)
    root = planner._root
    assert root is not None
    corridor.step(first.action)
    planner.plan(corridor.get_state())
    assert planner._root is not root
    planner.begin(0)
    assert planner._root is None


def test_bad_planners(corridor: ParallelEnv) -> None:
    with pytest.raises(UsageError, match="less than two plans"):
        RandomShooting(corridor, budget=10, horizon=10)
    with pytest.raises(UsageError, match="horizon must be at least 1"):
        MCTS(corridor, horizon=0)
    with make("Pendulum-v1", n_workers=1, worker_options=WorkerOptions(backend="serial")) as env:
        with pytest.raises(UsageError, match="needs discrete actions"):
            MCTS(env)
        game = play(env, RandomShooting(env, budget=40, horizon=5), max_steps=3)
        assert (game.steps, game.terminated, game.truncated) == (3, False, False)


def test_random_play_and_repeated_actions(corridor: ParallelEnv) -> None:
    game = play(corridor, RandomPlay(corridor.action_space, dt=3), seed=5)
    assert game.steps <= 3 * game.decisions
    assert game.terminated


def test_the_longest_game_ends_within_an_action_that_is_repeated() -> None:
    with make("CartPole-v1", n_workers=1, worker_options=WorkerOptions(backend="serial"), autoreset=False) as env:
        assert play(env, RandomPlay(env.action_space, dt=4), max_steps=6).steps == 6


@pytest.mark.slow
@pytest.mark.parametrize("planner", [RandomShooting, MCTS])
@pytest.mark.timeout(600)
def test_cartpole_is_balanced_for_500_steps(planner: Any) -> None:
    with make("CartPole-v1", n_workers=2, autoreset=False) as env:
        game = play(env, planner(env, budget=2000, horizon=50), seed=0)
        assert (game.total_reward, game.truncated) == (500.0, True)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_game_of_ales_is_played_twice_as_well_as_by_chance() -> None:
    require("ale_py")
    with make("ALE/MsPacman-v5", n_workers=2, autoreset=False, obs_type="ram") as env:
        planner = RandomShooting(env, budget=400, horizon=10, dt=4)
        planned = [play(env, planner, seed=seed, max_steps=400).total_reward for seed in range(3)]
        chance = RandomPlay(env.action_space, dt=4)
        random = [play(env.plan_env, chance, seed=seed, max_steps=400).total_reward for seed in range(3)]
        assert np.mean(planned) >= 2 * np.mean(random)


def test_a_picture_shows_the_way_to_the_best() -> None:
    branches = [Branch(-1, 0, 5, 1.0), Branch(-1, 1, 2, 0.5), Branch(0, 1, 3, 2.5), Branch(2, 0, 1, 2.0)]
    text = search_picture(Decision(0, 2.5, 40, branches, [0, 2]), "mcts & co")
    assert text.count("<line") == 4 + 2
    assert text.count('stroke="black"') == 2
    assert "mcts &amp; co: action 0, value 2.50, 4 branches, depth 3" in text
    assert search_picture(Decision(1)).count("<line") == 0


def test_a_huge_tree_is_cut() -> None:
    branches = [Branch(-1 if i < 10 else i // 2, 0, 10_000 - i, float(i)) for i in range(9000)]
    assert "(5,000 not drawn)" in search_picture(Decision(0, 0.0, 0, branches))


@pytest.mark.parametrize("planner", [MCTS, RandomShooting])
def test_a_planner_says_what_it_needs(planner: Any) -> None:
    env = GymPlanEnv("CartPole-v1")
    with pytest.raises(UsageError, match="in batches, and a GymPlanEnv has none: give it a ParallelEnv"):
        planner(env)
    env.close()


def test_the_program_plays_draws_and_says_what_came_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    require("pygame")
    small = ["--budget", "60", "--horizon", "10", "--max-steps", "12", "--workers", "2"]
    games = main(["CartPole-v1", "--algo", "mcts", "--games", "2", "--out", str(tmp_path), *small])
    assert [game.total_reward for game in games] == [12.0, 12.0]
    assert games[0].searched >= 12 * 60
    told = capsys.readouterr().out
    assert told.count("stopped after 12 steps") == 2
    assert "mcts: mean return 12.00; random play: " in told
    (video,) = tmp_path.glob("game.*")
    assert video.stat().st_size > 1000
    root = ET.fromstring((tmp_path / "search.svg").read_text())
    assert len(root.findall(".//{http://www.w3.org/2000/svg}line")) > 5


def test_the_program_names_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["Pendulum-v1", "--algo", "mcts", "--workers", "1"])
    assert ended.value.code == 2
    assert "needs discrete actions" in capsys.readouterr().err
