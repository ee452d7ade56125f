"""Episodes that qualify: the first so many by index, equal to filtering a longer run."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import treadle
from treadle.errors import UsageError
from treadle.play.episode import Episode
from treadle.record.dataset import Interrupted
from treadle.sample.failed import CollectionFailed
from treadle.sample.keeping import LEAST, Keep
from typed_run import collected

SERIAL = treadle.WorkerOptions(backend="serial")


class Lucky(gym.Env):
    """Succeeds in one seed of three, after 2 to 7 steps of reward 1."""

    observation_space = gym.spaces.Box(0, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t, self.drawn = 0, int(self.np_random.integers(1 << 30))
        return self.np_random.random(1, np.float32), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        ended = self.t == 2 + self.drawn % 6
        return self.np_random.random(1, np.float32), 1.0, ended, False, {"success": ended and self.drawn % 3 == 0}


def short(episode: Episode) -> bool:
    return len(episode) < 4


def episode(length: int, reward: float = 1.0) -> Any:
    return next(treadle.collect("CartPole-v1", None, episodes=1, max_episode_steps=length, worker_options=SERIAL))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("return>=3", ""),
        ("length<3", "length<3"),
        ("length <= 3 and return > 2.5", ""),
        ("length<=3 and return>1e1", "return>1e1"),
        ("success", "success"),
        ("return != 3", "return != 3"),
    ],
)
def test_terms_are_joined_by_and(text: str, why: str) -> None:
    assert Keep(text).unfit(episode(3), None) == why


@pytest.mark.parametrize("text", ["", "return", "return>", "seconds>1", "success>1", "return>1 or length>2", "a and"])
def test_what_is_no_term_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"keep \(--keep\) takes success"):
        Keep(text)
    with pytest.raises(UsageError, match="a text or a function"):
        Keep(7)  # type: ignore[arg-type]


def stored(folder: Path, **options: Any) -> Any:
    return collected(Lucky, None, out=folder, seed=3, **options)


def digests(found: Any) -> list[str]:
    return list(found.summary.digests)


@pytest.mark.parametrize("keep", ["success", "success and length>3", short])
def test_it_is_a_longer_run_filtered(keep: Any, tmp_path: Path) -> None:
    whole = stored(tmp_path / "whole", episodes=60, worker_options=SERIAL)
    rule = Keep(keep)
    episodes = treadle.collect(Lucky, None, episodes=60, seed=3, worker_options=SERIAL)
    told = zip(digests(whole), episodes, whole.summary.successes, strict=True)
    fit = [digest for digest, each, success in told if not rule.unfit(each, success)]
    one = stored(tmp_path / "one", keep=keep, kept=7, worker_options=SERIAL)
    assert digests(one) == fit[:7]
    assert sum(one.summary.unfit.values()) + 7 <= 60
    three = stored(tmp_path / "three", keep=keep, kept=7, workers=3)
    assert (three.path / "data" / "main_data.hdf5").read_bytes() == (one.path / "data" / "main_data.hdf5").read_bytes()
    assert three.summary.unfit == one.summary.unfit
    larger = stored(tmp_path / "one", keep=keep, kept=9, resume=True, worker_options=SERIAL)
    assert digests(larger) == fit[:9]


def test_stopped_and_resumed_it_is_the_same(tmp_path: Path) -> None:
    whole = stored(tmp_path / "whole", keep="success", kept=600, worker_options=SERIAL)

    def stop(now: Any) -> None:
        if now.episodes > 5:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted, match=r"<Stored: .* finished.*> \(in \.stored\)$"):
        stored(tmp_path / "parted", keep="success", kept=600, progress=stop, workers=1)
    with pytest.raises(UsageError, match=r"keep was \"success\" and is \"return>=1\""):
        stored(tmp_path / "parted", keep="return>=1", kept=600, resume=True)
    with pytest.raises(UsageError, match='keep was "success" and is null'):
        stored(tmp_path / "parted", episodes=70000, resume=True)
    found = stored(tmp_path / "parted", keep="success", kept=600, resume=True, workers=2)
    assert digests(found) == digests(whole)
    assert found.summary.unfit == whole.summary.unfit


def test_what_is_too_rare_ends_the_run_with_its_rate(tmp_path: Path) -> None:
    with pytest.raises(CollectionFailed, match=r"0 of 1,000 episodes are kept \(0.00%\), not 2: length>90") as failed:
        stored(tmp_path / "never", keep="length>90", kept=2, worker_options=SERIAL)
    assert failed.value.stored.path is None
    with pytest.raises(CollectionFailed, match="0 of 50 episodes"):
        stored(tmp_path / "none", keep="length>90", kept=2, episodes=50, worker_options=SERIAL)
    few = stored(tmp_path / "few", keep="success", kept=100, episodes=30, worker_options=SERIAL)
    assert few.complete
    assert few.summary.episodes + few.summary.unfit["success"] == 30
    assert json.loads((few.directory / "run.json").read_text())["arguments"]["episodes"] == 30 < LEAST


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"keep": "success"}, "give both"),
        ({"kept": 3, "episodes": 3}, "give both"),
        ({"keep": "success", "kept": 3, "steps": 100}, "neither steps"),
        ({"keep": "success", "kept": 3, "cluster": treadle.Cluster(nodes=1)}, "nor nodes"),
        ({"keep": "success", "kept": 3, "episodes": 10, "shard": "0/2"}, "does not go with shard"),
        ({"keep": "success", "kept": 0}, "kept"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=told):
        stored(tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()
