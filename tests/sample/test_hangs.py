"""What hangs while episodes are made: a limit on time replaces the worker, and without one it is at least said."""

import logging
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from treadle import seeding
from treadle.evaluation.evaluate import evaluate
from treadle.play.episode import Episode
from treadle.pool import calls
from treadle.sample.collect import collect
from treadle.sample.failed import CollectionFailed
from treadle.worker import process
from treadle.worker.options import WorkerOptions

HANGING = 5  # the episode that hangs
HANGING_SEED = seeding.episode_env_seed(0, HANGING)


class Walk(gym.Env):
    """Episodes of 3 to 8 steps. In step 2 of one of them `strike` is called, if the file `once` can be made."""

    observation_space = gym.spaces.Box(-1e9, 1e9, (2,), np.float64)
    action_space = gym.spaces.Discrete(3)

    def __init__(self, once: Path | None = None, seconds: float = 3600.0, in_reset: bool = False) -> None:
        self.once, self.seconds, self.in_reset = once, seconds, in_reset

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t, self.end, self.struck = 0, int(self.np_random.integers(3, 9)), seed == HANGING_SEED
        if self.struck and self.in_reset:
            self.strike()
        return self.look(), {}

    def look(self) -> np.ndarray:
        return np.array([self.t, self.np_random.random()])

    def step(self, action: Any) -> Any:
        self.t += 1
        if self.struck and self.t == 2 and not self.in_reset:
            self.strike()
        return self.look(), 1.0, self.t >= self.end, False, {}

    def strike(self) -> None:
        try:
            if self.once is not None:
                self.once.touch(exist_ok=False)
        except FileExistsError:
            return
        time.sleep(self.seconds)


class Coroutines(Walk):
    async def reset(self, **options: Any) -> Any:  # type: ignore[override]
        return super().reset(**options)

    async def step(self, action: Any) -> Any:  # type: ignore[override]
        return super().step(action)


class UntilSaid(Walk):
    """Hangs until the file is there."""

    def __init__(self, said: Path) -> None:
        super().__init__()
        self.said = said

    def strike(self) -> None:
        while not self.said.exists():
            time.sleep(0.01)


class UntilSaidInCoroutines(UntilSaid, Coroutines):
    """Its coroutines block the loop."""


@contextmanager
def made_when(text: str, file: Path, later: float = 0.0) -> Iterator[None]:
    """Make the file so many seconds after something was logged that has the text."""
    timer = threading.Timer(later, file.touch)

    class Maker(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if text in record.getMessage() and timer.ident is None:
                timer.start()

    maker = Maker()
    logging.getLogger("treadle").addHandler(maker)
    try:
        yield
    finally:
        logging.getLogger("treadle").removeHandler(maker)
        if timer.ident is not None:
            timer.join()


def same(a: list[Episode], b: list[Episode]) -> bool:
    return all(x.observations.tobytes() == y.observations.tobytes() for x, y in zip(a, b, strict=True))


@pytest.fixture
def stacks_may_be_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that waits for a core, too, has the time to write its stack."""
    monkeypatch.setattr(process, "STACK_SECONDS", 5.0)


@pytest.mark.usefixtures("stacks_may_be_late")
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("in_reset", [False, True])
def test_a_worker_that_hangs_is_replaced_and_nothing_changes(
    in_reset: bool, rows: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    once = tmp_path / "once"
    with caplog.at_level(logging.WARNING, "treadle"):
        how: Any = {"num_envs": 2 * rows, "workers": 2, "step_timeout": 0.5}
        found = list(collect(lambda: Walk(once, 3600.0, in_reset), episodes=30, **how))
    # a healthy step may be late, too, where the machine stalls: it is made again, with a line of its own
    (line,) = [each.getMessage() for each in caplog.records if f"made again: episode {HANGING}" in each.getMessage()]
    assert re.search(r"is replaced: no step came to its end for \d+\.\d s", line)
    doing = "its reset" if in_reset else r"step \d+"
    assert re.search(rf"\(the limit is 0.5 s\) in {doing} of episode {HANGING}, at test_hangs.py:", line)
    assert same(found, list(collect(lambda: Walk(once), episodes=30, worker_options=WorkerOptions(backend="serial"))))


def test_an_episode_that_always_hangs_ends_the_run() -> None:
    with pytest.raises(CollectionFailed, match="has cost 3 fresh workers their lives") as caught:
        evaluate(Walk, "random", episodes=30, workers=2, step_timeout=0.4)
    assert (caught.value.where.episode, caught.value.where.seed) == (HANGING, HANGING_SEED)
    assert "no step came to its end" in caught.value.reason


@pytest.mark.usefixtures("stacks_may_be_late")
@pytest.mark.parametrize("backend", ["process", "thread"])
def test_without_a_limit_it_is_said_once(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(calls, "STILL_WAITING", 0.5)
    said, text = tmp_path / "said", f"of episode {HANGING}: no answer for "
    with caplog.at_level(logging.WARNING, "treadle"), made_when(text, said, later=0.5):
        options = WorkerOptions(backend=backend)
        made = list(collect(lambda: UntilSaid(said), episodes=8, workers=2, worker_options=options))
    assert len(made) == 8
    (line,) = [each.getMessage() for each in caplog.records if text in each.getMessage()]
    assert re.search(r"in step \d+ of episode \d+: no answer for \d+ s, and no step_timeout is set. Stack:", line)
    assert "in strike" in line


def test_in_threads_that_may_not_be_replaced_a_limit_is_measured(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    said = tmp_path / "said"
    with caplog.at_level(logging.WARNING, "treadle"), made_when("no deadline is enforced", said):
        options: dict[str, Any] = {
            "workers": 2,
            "worker_options": WorkerOptions(backend="thread"),
            "step_timeout": 0.3,
            "on_failure": "raise",
        }
        assert len(list(collect(lambda: UntilSaidInCoroutines(said), episodes=8, **options))) == 8
    (line,) = [record.getMessage() for record in caplog.records]
    assert "no deadline is enforced" in line


def test_a_worker_that_waits_for_its_caller_does_not_hang(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs out of orders, or of room for answers, while the caller is busy for longer than the limit."""
    with caplog.at_level(logging.WARNING, "treadle"):
        for buffered in (1, 1 << 30):
            made = 0
            monkeypatch.setattr("treadle.sample.collect.MOST_WAITING", buffered)
            options: dict[str, Any] = {"workers": 2, "step_timeout": 2.0}
            for _ in collect(Walk, episodes=150, seed=1, **options):
                made += 1
                if made == 50:
                    time.sleep(2.5)
            assert made == 150
    assert not caplog.records
