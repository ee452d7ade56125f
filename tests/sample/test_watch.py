"""Steps count while they are made: whoever watches a run of one long episode sees it get on."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Iterator
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import treadle
from treadle.progress import Standing
from treadle.record.dataset import collect_dataset
from typed_run import collected

LIMIT = 20.0


class Patient(gym.Env[Any, Any]):
    """Its episode goes on until a file is there, which whoever sees its steps makes."""

    observation_space = gym.spaces.Box(0, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, seen: str) -> None:
        self.seen = Path(seen)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.since = time.monotonic()
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        if time.monotonic() - self.since > LIMIT:
            raise RuntimeError("nobody saw its steps")
        return np.zeros(1, np.float32), 1.0, self.seen.exists(), False, {}


class Person(io.StringIO):
    """Reads what is written, and makes the file at the first line with steps but without a finished episode."""

    def __init__(self, seen: Path) -> None:
        super().__init__()
        self._seen = seen

    def write(self, text: str) -> int:
        if re.search(r"\b0( of 1)? episodes.*, [1-9][\d,]* steps|^[1-9][\d,]* of [\d,]+ steps, 0 episodes", text):
            self._seen.touch()
        return super().write(text)


@pytest.fixture(name="person")
def person_fixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Person]:
    monkeypatch.setattr("treadle.progress.PLAIN_SECONDS", -1.0)
    person = Person(tmp_path / "seen")
    yield person
    assert (tmp_path / "seen").exists(), "its steps were seen while the episode was played"


class Zero:
    def get_action(self, observation: Any) -> Any:
        return 0, {}


def env(tmp_path: Path) -> Any:
    return {"env": Patient, "env_kwargs": {"seen": str(tmp_path / "seen")}, "workers": 1}


@pytest.mark.parametrize("backend", ["process", "thread", "serial"])
def test_collect(backend: str, person: Person, tmp_path: Path) -> None:
    with redirect_stderr(person):
        (episode,) = treadle.collect(
            **env(tmp_path), episodes=1, worker_options=treadle.WorkerOptions(backend=backend), progress=True
        )
        assert len(episode) >= 1
        assert "1 of 1 episodes" not in person.getvalue().splitlines()[0]


def test_collect_of_steps(person: Person, tmp_path: Path) -> None:
    with redirect_stderr(person):
        episodes = list(treadle.collect(**env(tmp_path), steps=3, progress=True))
        assert len(episodes) >= 1
        assert re.search(r"^[1-9][\d,]* of 3 steps, 0 episodes", person.getvalue(), re.MULTILINE)


def test_evaluate(person: Person, tmp_path: Path) -> None:
    with redirect_stderr(person):
        assert treadle.evaluate(policy=None, episodes=1, **env(tmp_path), progress=True).mean >= 1


def test_collect_dataset(person: Person, tmp_path: Path) -> None:
    with redirect_stderr(person):
        told: list[Standing] = []
        out = tmp_path / "out"
        stored = collected(**env(tmp_path), out=out, episodes=1, progress=True)
        assert stored.complete
        assert "0 of 1 episodes" in person.getvalue()
        collect_dataset(**env(tmp_path), out=out, episodes=1, resume="replace", progress=told.append)
        assert told


@pytest.mark.parametrize("sampler", [treadle.LocalSampler, treadle.MultiprocessingSampler])
def test_a_sampler(sampler: Any, person: Person, tmp_path: Path) -> None:
    with redirect_stderr(person):
        patient = Patient(str(tmp_path / "seen"))
        with sampler(Zero(), patient, max_episode_length=10**9, n_workers=1, progress=True) as sampling:
            assert len(sampling.obtain_samples(0, 1, None)) >= 1


def test_nothing_is_shown_unasked(person: Person, tmp_path: Path) -> None:
    with redirect_stderr(person):
        (tmp_path / "seen").touch()
        assert len(list(treadle.collect(**env(tmp_path), episodes=1))) == 1
        assert person.getvalue() == ""
