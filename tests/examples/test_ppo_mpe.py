"""The PPO example on a team: it learns, and every agent's episodes are told."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import example_kit
import numpy as np
import pytest

from conftest import require

pytestmark = [pytest.mark.heavy, pytest.mark.slow, pytest.mark.timeout(400)]

require("torch")
require("mpe2")


def test_a_team_learns_to_spread(tmp_path: Path) -> None:
    example = example_kit.load("ppo_mpe")
    picture = tmp_path / "curve.svg"
    steps = 150_000
    (run,) = example.main(["--total-steps", str(steps), "--seeds", "1", "--plot", str(picture)])
    updates = steps // 4800
    assert len(run) == updates * 100 // 25 * 48  # every agent of every environment, every 25 steps
    returns = [value for _, value in run]
    assert np.mean(returns[-300:]) > np.mean(returns[:300]) + 2.5
    (curve,) = ET.parse(picture).getroot().findall("{http://www.w3.org/2000/svg}polyline")
    assert len(curve.get("points", "").split()) == 200
