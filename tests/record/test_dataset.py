"""A run that ends in a dataset: what is stored when it ends before its time. (The rest: `tests/cli`.)"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces as gs

from treadle.errors import UsageError
from treadle.record.dataset import collect_dataset
from treadle.record.parts import recover
from treadle.replays.replay import replay
from treadle.sample.failed import CollectionFailed
from treadle.sample.named import Named


class Few(gym.Env[Any, Any]):
    """Episodes of three quick steps; after `LAST` of them in one process, whichever copy played them, reset raises."""

    observation_space = gs.Box(0, 3, (1,), np.float32)
    action_space = gs.Discrete(2)
    LAST = 57
    begun = 0  # of all that a worker has

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        Few.begun += 1
        if Few.begun > Few.LAST:
            raise RuntimeError("no more")
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> Any:
        self.t += 1
        return np.full(1, self.t, np.float32), 1.0, self.t == 3, False, {}


@pytest.mark.parametrize("rows", [1, 3])
def test_quick_episodes_that_wait_to_be_written_are_there_when_the_next_one_raises(rows: int, tmp_path: Path) -> None:
    with pytest.raises(CollectionFailed, match="no more") as caught:
        collect_dataset(Few, out=tmp_path, episodes=1000, workers=1, envs_per_worker=rows, verify=0)
    finished = caught.value.stored.finished
    assert Few.LAST - rows < finished <= Few.LAST, "all but those that the other copies had not ended"
    assert finished == caught.value.stored.summary.episodes == len(recover(tmp_path / ".parts"))


def test_numbers_may_be_numpys(tmp_path: Path) -> None:
    given = {"workers": 1, "format": "npz", "verify": 0}
    numpys = {"episodes": np.int64(2), "seed": np.int32(3), "max_episode_steps": np.uint8(5)}
    first = collect_dataset("CartPole-v1", out=tmp_path / "a", **given, **numpys)
    again = collect_dataset("CartPole-v1", out=tmp_path / "b", **given, episodes=2, seed=3, max_episode_steps=5)
    assert first.summary is not None
    assert again.summary is not None
    assert first.summary.hash == again.summary.hash
    assert collect_dataset("CartPole-v1", out=tmp_path / "a", resume=True, **given, **numpys).unchanged


class Starts(gym.Env[Any, Any]):
    """It begins where its reset's options say."""

    observation_space = gs.Box(-1, 1e6, (1,), np.float64)
    action_space = gs.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.at = float(options["at"])
        return np.array([self.at]), {}

    def step(self, action: int) -> Any:
        return np.array([self.at]), 1.0, True, False, {}


def at_tenfold(index: int) -> dict[str, Any]:
    return {"at": 10 * index}


@pytest.mark.parametrize("starts", [at_tenfold, [{"at": 10 * i} for i in range(6)]], ids=["function", "list"])
def test_each_episode_begins_with_its_options(starts: Any, tmp_path: Path) -> None:
    given = {"workers": 2, "format": "npz", "verify": 2}
    collect_dataset(Starts, out=tmp_path, episodes=4, **given, reset_options=starts)
    grown = collect_dataset(Starts, out=tmp_path, episodes=6, **given, reset_options=starts, resume=True)
    assert grown.summary is not None
    assert not grown.summary.warnings
    with np.load(grown.path) as data:
        assert data["observations"][::2, 0].tolist() == [0, 10, 20, 30, 40, 50]
    for other in (lambda index: {"at": index}, [{"at": 1}], None):
        with pytest.raises(UsageError, match="reset_options"):
            collect_dataset(Starts, out=tmp_path, episodes=9, **given, reset_options=other, resume=True)


def test_episodes_that_began_with_options_are_replayed_with_them(tmp_path: Path) -> None:
    given = {"workers": 1, "format": "npz", "verify": 0, "episodes": 3}
    (tmp_path / "starts.py").write_text("def of(index):\n    return {'at': index + 2}\n")
    starts = Named(f"{tmp_path / 'starts.py'}:of")
    collect_dataset(Starts, out=tmp_path / "named", **given, reset_options=starts)
    again = replay(tmp_path / "named", 1, trust=True, here=True)
    assert again.difference is None
    assert again.observation.tolist() == [3.0]
    collect_dataset(Starts, out=tmp_path / "listed", **given, reset_options=[{"at": 1}])
    with pytest.raises(UsageError, match="list of reset options"):
        replay(tmp_path / "listed", 1, trust=True, here=True)


def test_options_whose_file_has_changed_are_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "starts.py").write_text("def of(index):\n    return {'at': index + 2}\n")
    given = {"workers": 1, "format": "npz", "verify": 0, "reset_options": Named(f"{tmp_path / 'starts.py'}:of")}
    collect_dataset(Starts, out=tmp_path / "run", episodes=2, **given)
    (tmp_path / "starts.py").write_text("def of(index):\n    return {'at': index + 3}\n")
    collect_dataset(Starts, out=tmp_path / "run", episodes=3, resume=True, **given)
    assert any("starts.py has changed since the run was begun" in text for text in caplog.messages)
