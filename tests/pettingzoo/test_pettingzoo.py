"""PettingZoo's own environments and its own tests: MPE, Butterfly, classic games."""

from __future__ import annotations

import subprocess
import sys
import warnings
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import treadle
from conftest import require
from treadle import pettingzoo as ours
from treadle import trees

pytestmark = pytest.mark.heavy
ROOT = Path(__file__).parents[2]
N = 3


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("pettingzoo", "mpe2", "pygame"):
        require(package)
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    warnings.simplefilter("ignore")


def dealt(spaces: dict[str, Any], t: int, n: int = N, masks: Any = None) -> dict[str, Any]:
    """Actions of n environments, the same whoever asks."""
    out = {}
    for i, (agent, space) in enumerate(spaces.items()):
        space.seed(1000 * t + i)
        out[agent] = np.array([space.sample(None if masks is None else masks[agent][k]) for k in range(n)])
    return out


PARALLEL = {
    "mpe2.simple_spread_v3": {},
    "mpe2.simple_tag_v3": {"max_cycles": 10},  # agents with different spaces
    "mpe2.simple_world_comm_v3": {"continuous_actions": True, "max_cycles": 10},
    "pettingzoo.butterfly.pistonball_v6": {"n_pistons": 4, "max_cycles": 15},
    "pettingzoo.butterfly.knights_archers_zombies_v11": {"max_cycles": 12},
    "pettingzoo.butterfly.cooperative_pong_v6": {"max_cycles": 20},
    "pettingzoo.classic.rps_v2": {"max_cycles": 5},
}


@pytest.mark.parametrize("name", PARALLEL)
def test_workers_give_what_a_plain_loop_gives(name: str) -> None:
    module, kwargs, steps = require(name), PARALLEL[name], 45
    loops = [module.parallel_env(**kwargs) for _ in range(N)]
    vector = ours.make_vec(module.parallel_env, N, workers=2, inline=1, env_kwargs=kwargs)
    ends = 0
    try:
        spaces = {agent: loops[0].action_space(agent) for agent in loops[0].possible_agents}
        assert {agent: vector.single_action_space(agent) for agent in vector.agents} == spaces
        observations, _ = vector.reset(seed=11)
        plain: list[Any] = [(*env.reset(seed=11 + i)[:1], {}, {}, {}) for i, env in enumerate(loops)]
        for t in range(steps):
            for slot, env in enumerate(loops):
                for i, agent in enumerate(vector.agents):
                    assert vector.alive[slot, i] == (agent in env.agents)
                    if agent in plain[slot][0]:
                        row = trees.map(lambda leaf, slot=slot: leaf[slot], observations[agent])
                        assert trees.equal(trees.map(np.asarray, row), trees.map(np.asarray, plain[slot][0][agent]))
            given = dealt(spaces, t)
            for slot, env in enumerate(loops):
                if not env.agents:
                    plain[slot] = (*env.reset()[:1], {}, {}, {})
                    ends += 1
                else:
                    plain[slot] = env.step({agent: given[agent][slot] for agent in env.agents})[:4]
            observations, rewards, terminations, truncations, _ = vector.step(given)
            for slot in range(N):
                for agent in vector.agents:
                    for mine, theirs in zip((rewards, terminations, truncations), plain[slot][1:]):
                        assert mine[agent][slot] == theirs.get(agent, 0), (t, slot, agent)
    finally:
        vector.close()
        for env in loops:
            env.close()
    assert ends >= N


@pytest.mark.parametrize("name", ["tictactoe_v3", "connect_four_v3", "rps_v2"])
def test_turn_games_are_the_game_played_in_a_loop(name: str) -> None:
    module = require(f"pettingzoo.classic.{name}")
    vector = ours.make_vec(module.env, N, turns=True, workers=2, inline=0)
    loops = [module.env() for _ in range(N)]
    over = 0
    try:
        observations, _ = vector.reset(seed=3)
        for slot, env in enumerate(loops):
            env.reset(seed=3 + slot)
        waiting = [False] * N
        for t in range(80):
            actions = {agent: np.zeros(N, np.int64) for agent in vector.agents}
            for slot, env in enumerate(loops):
                if waiting[slot]:
                    continue
                agent = env.agent_selection
                assert [vector.agents[i] for i in np.flatnonzero(vector.alive[slot])] == [agent]
                seen = env.observe(agent)
                row = trees.map(lambda leaf, slot=slot: leaf[slot], observations[agent])
                assert trees.equal(trees.map(np.asarray, row), trees.map(np.asarray, seen))
                allowed = np.flatnonzero(seen["action_mask"]) if isinstance(seen, dict) else np.arange(3)
                actions[agent][slot] = allowed[(t * 7 + slot) % len(allowed)]
            paid = []
            for slot, env in enumerate(loops):
                if waiting[slot]:
                    env.reset()
                    waiting[slot] = False
                    paid.append({})
                    continue
                env.step(actions[env.agent_selection][slot])
                paid.append(dict(env.rewards))
                ended = [agent for agent in env.agents if env.terminations[agent] or env.truncations[agent]]
                while env.agents and (env.terminations[env.agent_selection] or env.truncations[env.agent_selection]):
                    env.step(None)
                waiting[slot] = not env.agents
                over += bool(ended)
            observations, rewards, *_ = vector.step(actions)
            for slot in range(N):
                for agent in vector.agents:
                    assert rewards[agent][slot] == paid[slot].get(agent, 0)
        assert over >= N or name == "rps_v2"
    finally:
        vector.close()


@pytest.mark.parametrize("name", ["mpe2.simple_spread_v3", "mpe2.simple_tag_v3", "pettingzoo.butterfly.pistonball_v6"])
def test_pettingzoos_own_tests_of_the_single_adapter(name: str) -> None:
    from pettingzoo.test import parallel_api_test, parallel_seed_test

    kwargs = {"n_pistons": 2, "max_cycles": 20} if "pistonball" in name else {}
    env = ours.ParallelEnv(require(name).parallel_env, env_kwargs=kwargs)
    try:
        parallel_api_test(env, num_cycles=30)
    finally:
        env.close()
    made = []

    def make() -> Any:
        made.append(ours.ParallelEnv(require(name).parallel_env, env_kwargs=kwargs))
        return made[-1]

    try:
        parallel_seed_test(make, num_cycles=20)
    finally:
        for env in made:
            env.close()


def test_an_environment_that_does_not_name_its_agents_is_refused() -> None:
    from pettingzoo.test.example_envs import generated_agents_parallel_v0 as example

    for face in (ours.ParallelEnv, partial(ours.make_vec, num_envs=2)):
        with pytest.raises(treadle.UsageError, match="does not say in possible_agents who its agents may be"):
            face(example.parallel_env)


def test_a_step_that_failed_names_the_reset_of_the_face() -> None:
    from small_agents import Crowd

    class Corner(Crowd):
        def step(self, actions: Any) -> Any:
            raise KeyError("corner")

    with closing(ours.ParallelEnv(Corner)) as env:
        env.reset(seed=1)
        with pytest.raises(KeyError, match=r"the worker lives; call reset\(\) to carry on"):
            env.step({agent: env.action_space(agent).sample() for agent in env.agents})
        env.reset(seed=1)


def test_an_argument_that_nobody_takes_is_refused_by_the_face() -> None:
    for face in (ours.ParallelEnv, ours.make_vec):
        with pytest.raises(
            treadle.UsageError, match=rf"^{face.__name__}\(\) .* 'step_timout'; did you mean step_timeout="
        ):
            face(require("mpe2.simple_spread_v3").parallel_env, step_timout=2)


def test_a_dataset_is_one_that_minari_loads(tmp_path: Any) -> None:
    minari = require("minari")
    env = partial(ours.AgentsEnv, require("mpe2.simple_tag_v3").parallel_env, max_cycles=6)
    stored = treadle.collect_dataset(env, out=tmp_path / "tag", episodes=3, seed=1, workers=2)
    assert stored.complete
    data = minari.MinariDataset(stored.path / "data")
    episode = data[0]
    assert set(episode.observations["observation"]) == {"adversary_0", "adversary_1", "adversary_2", "agent_0"}
    assert episode.observations["observation"]["agent_0"].shape[1:] == (14,)
    assert episode.observations["rewards"].shape[1] == 4
    assert np.allclose(episode.observations["rewards"][1:].sum(1), episode.rewards)


def test_an_aec_environment_given_as_parallel_is_refused() -> None:
    from mpe2 import simple_spread_v3

    with pytest.raises(treadle.StartupFailed, match="is an AEC environment: say turns=True, or give its parallel"):
        ours.make_vec(simple_spread_v3.env, 2, workers=1)


def test_images_want_a_render_mode() -> None:
    from mpe2 import simple_spread_v3

    with_images = ours.make_vec(partial(simple_spread_v3.parallel_env, render_mode="rgb_array"), 2, workers=1)
    without = ours.make_vec(simple_spread_v3.parallel_env, 2, workers=1)
    try:
        with_images.reset(seed=0)
        without.reset(seed=0)
        frames = with_images.render()
        assert [frame.shape for frame in frames] == [(700, 700, 3)] * 2
        with pytest.raises(ValueError, match='made with render_mode=None: give render_mode="rgb_array"'):
            without.render()
    finally:
        with_images.close()
        without.close()


def test_stable_baselines3_learns_from_rows() -> None:
    sb3 = require("stable_baselines3")
    from small_agents import Crowd

    from treadle.sb3 import AgentsVecEnv

    with pytest.raises(ValueError, match="SameStep"):
        AgentsVecEnv(ours.make_vec(Crowd, 2, form="rows", worker_options=treadle.WorkerOptions(backend="serial")))
    crowd = AgentsVecEnv(ours.make_vec(Crowd, 2, form="rows", autoreset_mode="SameStep", workers=1))
    try:
        crowd.seed(4)
        first = crowd.reset()
        assert (first[[1, 4]] == 0).all()  # agents that come later
        assert first[[0, 2, 3, 5]].any(1).all()
        ends = 0
        for _ in range(30):
            _, rewards, dones, infos = crowd.step(np.full(6, 2))
            assert rewards.dtype == np.float32
            for row in np.flatnonzero(dones):
                assert infos[row]["terminal_observation"].shape == (3,)
                ends += "episode" in infos[row]
        assert ends > 6
        assert crowd.get_attr("render_mode") == [None] * 6
    finally:
        crowd.close()
    make = require("mpe2.simple_spread_v3").parallel_env
    rows = AgentsVecEnv(ours.make_vec(make, 4, form="rows", autoreset_mode="SameStep", workers=1))
    try:
        model = sb3.PPO("MlpPolicy", rows, n_steps=50, batch_size=200, n_epochs=2, seed=1, device="cpu")
        model.learn(1800)
        assert len(model.ep_info_buffer) > 0
        assert all(-200 < each["r"] < 0 for each in model.ep_info_buffer)
    finally:
        rows.close()


def test_the_benchmark_measures_all_contestants() -> None:
    require("supersuit")
    command = [sys.executable, "-m", "benchmarks.pettingzoo", "--rounds", "1", "--seconds", "0.05", "--rows", "think"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    *_, head, _, row = done.stdout.strip().splitlines()
    assert head.count("|") == row.count("|") == 7
    assert "think 2 ms" in row
