"""The examples of other packages' algorithms on our vectors: they learn."""

from __future__ import annotations

from pathlib import Path

import example_kit
import pytest

from conftest import require

pytestmark = [pytest.mark.heavy, pytest.mark.slow, pytest.mark.timeout(600)]


def test_ppo_of_stable_baselines3_learns_cartpole(tmp_path: Path) -> None:
    require("stable_baselines3")
    (run,) = example_kit.run_script("sb3_cartpole", "--seeds", "1", save=tmp_path / "runs", timeout=500)
    assert run["returns"][0] < 60
    assert run["evaluation"] >= 475


def test_a_collector_loop_of_torchrl_learns_cartpole(tmp_path: Path) -> None:
    require("torchrl")
    (run,) = example_kit.run_script(
        "torchrl_cartpole", "--seeds", "2", "--steps", "50000", save=tmp_path / "runs", timeout=500
    )
    assert run["returns"][0] < 60
    assert run["returns"][-1] >= 150


def test_tianshous_ppo_learns_cartpole(tmp_path: Path) -> None:
    require("tianshou")
    (run,) = example_kit.run_script(
        "tianshou_cartpole", "--seeds", "1", "--steps", "30000", save=tmp_path / "runs", timeout=500
    )
    assert run["returns"][0] < 60
    assert max(run["returns"]) >= 400


def test_an_agent_behind_dm_envs_interface_learns_cartpole(tmp_path: Path) -> None:
    require("dm_env")
    (run,) = example_kit.run_script("dm_env_cartpole", "--seeds", "1", save=tmp_path / "runs", timeout=500)
    assert run["returns"][0] < 60
    assert run["returns"][-1] >= 300
