"""The REINFORCE example: it learns, and what it learns does not depend on the number of workers."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import example_kit
import numpy as np
import pytest

from conftest import require

pytestmark = pytest.mark.heavy

require("torch")


run_script = partial(example_kit.run_script, "reinforce_cartpole", timeout=800)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_three_seeds_reach_195(tmp_path: Path) -> None:
    require("matplotlib")
    picture = tmp_path / "curves.png"
    runs = run_script("--plot", str(picture), save=tmp_path / "runs")
    assert [run["seed"] for run in runs] == [1, 2, 3]
    for run in runs:
        assert run["returns"][0] < 60
        assert np.mean(run["returns"][-10:]) >= 195
    assert picture.stat().st_size < 200_000


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_curve_does_not_depend_on_the_number_of_workers(tmp_path: Path) -> None:
    arguments = ["--seeds", "4", "--iterations", "4", "--steps", "1000", "--workers"]
    one, three = (run_script(*arguments, workers, save=tmp_path / "runs") for workers in ("1", "3"))
    assert one == three
