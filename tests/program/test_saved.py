"""What a saved model is told to be, without what it would be loaded with."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from treadle.errors import UsageError
from treadle.program.policies import policy_name
from treadle.program.saved import algorithm_of


def saved(path: Path, module: str = "stable_baselines3.common.policies", **settings: Any) -> str:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data", json.dumps({"policy_class": {"__module__": module}, **settings}))
    return str(path)


@pytest.mark.parametrize(
    ("module", "settings", "algorithm"),
    [
        ("stable_baselines3.common.policies", {"clip_range": 1, "gae_lambda": 1}, ("stable_baselines3", "PPO")),
        ("mine", {"gae_lambda": 1}, ("stable_baselines3", "A2C")),
        ("stable_baselines3.common.policies", {"cg_max_steps": 1, "gae_lambda": 1}, ("sb3_contrib", "TRPO")),
        ("sb3_contrib.common.maskable.policies", {"clip_range": 1}, ("sb3_contrib", "MaskablePPO")),
        ("sb3_contrib.qrdqn.policies", {"exploration_rate": 1}, ("sb3_contrib", "QRDQN")),
    ],
)
def test_the_algorithm_is_told_by_the_file(
    module: str, settings: dict[str, Any], algorithm: tuple[str, str], tmp_path: Path
) -> None:
    assert algorithm_of(saved(tmp_path / "m.zip", module, **settings)) == algorithm


def test_what_is_no_model_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"file .*none\.zip does not exist"):
        algorithm_of(str(tmp_path / "none.zip"))
    (tmp_path / "text.zip").write_text("not a zip")
    with pytest.raises(UsageError, match="not a model that Stable-Baselines3 has saved"):
        algorithm_of(str(tmp_path / "text.zip"))
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("a.txt", "a")
    with pytest.raises(UsageError, match="not a model that Stable-Baselines3 has saved"):
        algorithm_of(str(tmp_path / "other.zip"))
    with pytest.raises(UsageError, match=r"file\.py:load"):
        algorithm_of(saved(tmp_path / "new.zip", unheard_of=1))
    with pytest.raises(UsageError, match="recurrent"):
        algorithm_of(saved(tmp_path / "r.zip", "sb3_contrib.common.recurrent.policies", clip_range=1))


def test_torch_missing_is_told(tmp_path: Path) -> None:
    path = saved(tmp_path / "ppo.zip", clip_range=0.2)
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from treadle.errors import MissingExtra\n"
        "from treadle.program.saved import load_model\n"
        f"try: load_model({path!r})\n"
        "except MissingExtra as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert "is a PPO of Stable-Baselines3, which cannot be imported" in done.stdout
    assert "pip install stable-baselines3" in done.stdout


def test_its_name() -> None:
    assert policy_name("runs/PPO_hopper.zip") == "ppo_hopper"
