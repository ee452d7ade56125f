"""Workers that are late: what they failed of is told when it is known, and they get no orders meanwhile."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sampler_kit import Coin, Fixed, Walk

from treadle import EnvUpdate, LocalSampler, MultiprocessingSampler, TaskRaised, WorkersLost, WorkerTimeout

BOTH = pytest.mark.parametrize("kind", [LocalSampler, MultiprocessingSampler])
FOR_EVER = range(10**6)  # the test's own time limit ends it


class Gated(Walk):
    """Waits for a file: in its first reset, or in every first step, after which it may raise.

    `there`: it makes this file when it begins to wait.
    """

    def __init__(self, file: Path, where: str, way: Exception | None = None, there: Path | None = None) -> None:
        self.file, self.where, self.way, self.level, self.there = file, where, way, 0, there

    def _wait(self, where: str) -> None:
        if where == self.where and self.there is not None:
            self.there.touch()
        while where == self.where and not self.file.exists():
            time.sleep(0.001)

    def reset(self, **arguments: Any) -> Any:
        self._wait("reset")
        return super().reset(**arguments)

    def step(self, action: int) -> Any:
        self._wait("step")
        if self.way is not None:
            raise self.way
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated, truncated, {**info, "level": self.level}


class Level(EnvUpdate):
    """One more; every one of them counts."""

    def __call__(self, old_env: Any = None) -> Any:
        old_env.unwrapped.level += 1
        return old_env


class Steady(Gated):
    """Never waits."""

    def __init__(self) -> None:
        super().__init__(Path("/"), "nowhere")


def sampler(envs: Any, agent: Any = None, **more: Any) -> MultiprocessingSampler:
    agent = Coin() if agent is None else agent
    return MultiprocessingSampler(agent, envs, max_episode_length=16, n_workers=2, seed=1, **more)


@pytest.mark.parametrize("where", ["step", "reset"])
def test_a_failure_that_comes_late_is_raised_by_the_next_sampling(where: str, tmp_path: Path) -> None:
    gate, there = tmp_path / "open", tmp_path / "there"
    with sampler([Walk(), Gated(gate, where, ValueError("always"), there)], on_failure="raise") as late:
        while not there.exists():  # an order that is stopped before its first step begins no episode
            late.obtain_samples(0, 20, None)
        for i in range(30):
            assert len(late.obtain_samples(i, 20, None)) >= 20
        gate.touch()
        with pytest.raises(ValueError, match="always") as caught:
            for i in FOR_EVER:
                late.obtain_samples(i, 20, None)
        error: Any = caught.value
        assert isinstance(error, TaskRaised)
        assert (error.where.slot, error.where.step) == (1, 1)
        # the first one was given up in its reset; so is each that the end of a sampling meets before its first step
        assert error.where.episode >= (where == "reset")
        batch = late.obtain_exact_episodes(3, None, env_update=Walk())  # it lives, and nothing is told twice
        assert len(batch.lengths) == 6


def test_a_worker_that_fails_late_is_dropped_where_that_is_wanted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gate = tmp_path / "open"
    with caplog.at_level(logging.WARNING, "treadle"), sampler([Walk(), Gated(gate, "step", ValueError("a"))]) as late:
        late.obtain_samples(0, 20, None)
        gate.touch()
        while "worker 1 is dropped, 1 of 2 are left: ValueError: a" not in caplog.text:
            late.obtain_samples(0, 20, None)
        assert len(late.obtain_samples(0, 20, None)) >= 20
        with pytest.raises(WorkersLost, match="worker 1: ValueError"):
            late.obtain_exact_episodes(1, None)


def test_the_caller_is_told_once_of_a_sampling_that_failed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    gate, there = tmp_path / "open", tmp_path / "there"  # the first one raises when the second one is in its step
    envs = [Gated(there, "step", ValueError("first")), Gated(gate, "step", ValueError("second"), there)]
    with caplog.at_level(logging.WARNING, "treadle"), sampler(envs, on_failure="raise") as late:
        with pytest.raises(ValueError, match="first"):
            late.obtain_samples(0, 20, None)
        gate.touch()
        while "worker 1 has failed, too, in a sampling that failed: ValueError: second" not in caplog.text:
            late.obtain_samples(0, 20, None, env_update=Walk())
        assert len(late.obtain_exact_episodes(2, None).lengths) == 4


@pytest.mark.parametrize("allow_stale", [False, True])
def test_a_slow_worker_gets_no_orders_and_then_hears_all_of_them(allow_stale: bool, tmp_path: Path) -> None:
    gate = tmp_path / "open"
    agent = Fixed([0])
    with sampler([Steady(), Gated(gate, "reset")], agent, allow_stale=allow_stale) as late:
        for i in range(1, 41):
            assert len(late.obtain_samples(i, 20, {"gain": np.full(1, float(i))}, env_update=Level())) >= 20
            assert len(late._sampling.pool.workers[1].owed) <= 1 + allow_stale
        gate.touch()
        batch = late.obtain_exact_episodes(4, None)
        assert set(batch.env_infos["level"]) == {40}, "every update counts, also those that came while it was slow"
        assert set(batch.agent_infos["gain"]) == {40.0}
        assert len(set(batch.agent_infos["pid"])) == 2


class Picky(Coin):
    """Tells its gain, and does not take a negative one."""

    gain = 0.0

    def set_param_values(self, values: Any) -> None:
        if values["gain"] < 0:
            raise ValueError("no such gain")
        self.gain = values["gain"]

    def get_action(self, observation: Any) -> tuple[int, dict[str, Any]]:
        return super().get_action(observation)[0], {"gain": self.gain}


class NoLevel(EnvUpdate):
    def __call__(self, old_env: Any = None) -> Any:
        raise ValueError("no such level")


@pytest.mark.parametrize("refused", ["gain", "level"])
@pytest.mark.parametrize("slow", [True, False])
def test_an_update_that_is_refused_neither_comes_back_nor_takes_others_with_it(
    slow: bool, refused: str, tmp_path: Path
) -> None:
    """A worker may be slow when the update is refused, or get it with an accepted one that it has not had before."""
    gate, there = tmp_path / "open", tmp_path / "there"
    with sampler([Steady(), Gated(gate, "reset", None, there)], Picky(), on_failure="raise") as late:
        while not there.exists():  # an order that is stopped before its first step keeps nobody busy
            late.obtain_samples(0, 20, None)
        late.obtain_samples(1, 20, {"gain": 1.0}, env_update=Level())
        if not slow:
            gate.touch()
            while late._sampling.pool.workers[1].owed:
                late._sampling.pool.calls.poll(0.1, lambda event: None)
        wrong = ({"gain": -1.0}, Level()) if refused == "gain" else (None, NoLevel())
        with pytest.raises(ValueError, match=f"no such {refused}"):
            late.obtain_samples(2, 20, *wrong)
        gate.touch()
        batch = late.obtain_exact_episodes(2, None)
    assert set(batch.env_infos["level"]) == {1}
    assert set(batch.agent_infos["gain"]) == {1.0}


@pytest.mark.parametrize("on_failure", ["raise", "drop", "restart"])
def test_a_worker_that_hangs_over_samplings_misses_its_deadline(
    on_failure: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    envs = [Walk(), Gated(tmp_path / "never", "reset")]
    # worker 0 may be late, too, where the machine stalls: only one that is replaced is not missed
    limit = 0.3 if on_failure == "restart" else 2.0
    with (
        caplog.at_level(logging.WARNING, "treadle"),
        sampler(envs, on_failure=on_failure, step_timeout=limit) as late,
    ):
        if on_failure == "raise":
            with pytest.raises(WorkerTimeout, match="worker 1, pid"):
                for i in FOR_EVER:
                    late.obtain_samples(i, 20, None)
            return
        said = "worker 1 is dropped" if on_failure == "drop" else "worker 1 is replaced"
        while said not in caplog.text:
            late.obtain_samples(0, 20, None)
        assert f" {limit:g} s)" in caplog.text


@BOTH
def test_a_wrong_update_is_told_once(kind: Any, caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.INFO, "treadle"),
        kind(Picky(), Walk(), max_episode_length=9, n_workers=3, seed=1, on_failure="raise") as both,
    ):
        with pytest.raises(ValueError, match="no such gain"):
            both.obtain_samples(0, 20, {"gain": -1.0})
        for i in range(5):
            assert len(both.obtain_exact_episodes(1 + i, None).lengths) == 3 * (1 + i)
    assert not [each for each in caplog.records if each.module != "spent"]  # which tells how its time went by
