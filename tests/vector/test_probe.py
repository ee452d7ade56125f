"""What `workers="auto"` finds out about environments, and what it then chooses."""

import logging
import os
import subprocess
import sys
import threading
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces as gs
from gymnasium.vector import SyncVectorEnv
from small_envs import Counter, assert_same, of

from conftest import require
from treadle.errors import StartupFailed
from treadle.program.base import OnEnd
from treadle.vector import shares
from treadle.vector.env_slot import slots_of
from treadle.vector.gymnasium import VectorEnv
from treadle.vector.make_vec import AsyncVectorEnv
from treadle.vector.shares import CROWDED_SHARE, GRAPHICS, SECONDS, STEPS, Measured, Why, measure, policy_threads, tell
from treadle.worker.options import WorkerOptions

CHILD = "import sys\nfor line in sys.stdin:\n    print(sum(range(200_000)) % 7, flush=True)"


class Walk(gym.Env[np.ndarray, int]):
    """A random walk of its own generator; episodes end at random. Subclasses say what a step does besides."""

    observation_space = gs.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = gs.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.at = self.np_random.normal(size=2)
        return self.at, {}

    def step(self, action: int) -> Any:
        self.work()
        self.at = self.at + self.np_random.normal(size=2) * (1 + action)
        return self.at, float(self.at[0]), bool(self.np_random.random() < 0.2), False, {}

    def work(self) -> None:
        """Nothing."""

    def pid(self) -> int:
        return os.getpid()


class Waiter(Walk):
    def work(self) -> None:
        threading.Event().wait(0.003)


class Worker(Walk):
    def work(self) -> None:
        sum(range(200_000))


class Simulated(Walk):
    """Its steps are computed by a process of its own."""

    def __init__(self) -> None:
        command = [sys.executable, "-S", "-c", CHILD]
        pipe = subprocess.PIPE
        self.child: Any = subprocess.Popen(command, text=True, bufsize=1, stdin=pipe, stdout=pipe)

    def work(self) -> None:
        self.child.stdin.write("step\n")
        self.child.stdout.readline()

    def close(self) -> None:
        self.child.stdin.close()
        self.child.stdout.close()
        self.child.wait()


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.wire.bell.cores", lambda: 2)
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")  # whatever other tests have imported


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if "workers='auto'" in r.getMessage()]


@pytest.mark.parametrize(
    ("env", "workers", "inline", "word"),
    [(Waiter, 4, 0, "wait"), (Simulated, 4, 0, "wait"), (Worker, 1, 2, "compute"), (Walk, 0, 4, "compute")],
)
def test_the_choice_and_the_bytes(
    env: type[gym.Env],
    workers: int,
    inline: int,
    word: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # neither who else computes nor the time to wake decides: a batch takes far less than that, or far more
    monkeypatch.setattr("treadle.vector.shares.CROWDED_SECONDS", 0.0)
    monkeypatch.setattr("treadle.vector.shares._time_to_wake", lambda pool: 1e-3)
    caplog.set_level(logging.INFO, "treadle")
    ours, theirs = VectorEnv([env] * 4), SyncVectorEnv([env] * 4)
    try:
        assert len(ours.stats().busy) == workers
        assert len(set(ours.call("pid"))) == workers + (inline > 0)
        (line,) = said(caplog)
        assert f"environments {word} (a step took" in line
        if workers:
            assert f"{inline} are the caller's; workers for the others: {workers}" in line
        else:
            assert "no longer than waking a worker" in line
            assert "All 4 slots are the caller's, without workers" in line
        assert_same(ours.reset(seed=3), theirs.reset(seed=3))
        for t in range(12):
            actions = np.array([t % 2, 1, 0, t % 3 == 0]).astype(np.int64)
            assert_same(ours.step(actions), theirs.step(actions))
        assert_same(ours.reset(), theirs.reset())  # the generators go on where they were
    finally:
        ours.close()
        theirs.close()


def test_no_step_is_measured_where_nothing_hangs_on_it(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "treadle")

    class Counted(Counter):
        def __init__(self) -> None:
            super().__init__()
            with open(tmp_path / "built", "a") as file:
                file.write("x")

    def built(n: int, **options: Any) -> int:
        VectorEnv([Counted] * n, **options).close()
        count = (tmp_path / "built").stat().st_size
        (tmp_path / "built").unlink()
        return count

    assert built(1) == 1
    assert built(2, inline=0) == 2
    assert built(3, workers=1) == 3
    assert built(3, inline=2) == 3
    assert built(2, step_timeout=9.0) == 2
    assert built(3, worker_options=WorkerOptions(backend="thread")) == 3
    assert said(caplog) == []
    assert built(3) == 4
    assert len(said(caplog)) == 1


def test_gymnasiums_constructor_measures_as_well() -> None:
    vector = AsyncVectorEnv([Waiter] * 3)
    assert len(vector.stats().busy) == 3
    vector.close()


def test_an_environment_that_breaks_on_the_way_counts_as_computing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "treadle")

    class Choosy(Counter):
        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            if options is None:
                raise ValueError("options are needed")
            return super().reset(seed=seed, options=options)

    class Mortal(Counter):
        def step(self, action: int) -> Any:
            os._exit(3)

    for env in (Choosy, Mortal):
        vector = VectorEnv([env] * 3)
        assert len(vector.stats().busy) == 1
        vector.reset(options={"level": 1})
        vector.close()
    assert ["could not be measured" in line for line in said(caplog)] == [True, True]


def test_one_that_cannot_be_built_is_an_error_of_the_start() -> None:
    with pytest.raises(StartupFailed, match=r"slot 0.*takes no such"):
        VectorEnv([of(refuse)] * 3)


def refuse() -> Any:
    raise ValueError("takes no such thing")


def test_a_step_that_never_ends_is_judged_by_what_it_has_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.vector.shares.LIMIT", 0.3)

    class Stuck(Counter):
        def step(self, action: int) -> Any:
            threading.Event().wait()

    class Spinning(Counter):
        def step(self, action: int) -> Any:
            while True:
                pass

    for env, waits in ((Stuck, True), (Spinning, False)):
        found = measure(slots_of([env], None, OnEnd.NEXT_STEP)[0], 8)
        assert found is not None
        assert found.waits is waits


def test_few_steps_are_taken(tmp_path: Any) -> None:
    class Noted(Walk):
        def work(self) -> None:
            with open(tmp_path / "steps", "a") as file:
                file.write("x")

    assert measure(slots_of([Noted], None, OnEnd.NEXT_STEP)[0], 8) is not None
    assert 2 <= (tmp_path / "steps").stat().st_size <= STEPS + 1
    assert SECONDS <= 0.5  # what a vector's construction may take longer, at most, for steps that are short


ON_ONE_CORE = """
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from treadle.program.base import OnEnd
from treadle.vector import shares
from treadle.vector.env_slot import slots_of
from treadle.vector.shares import Measured, measure
from gymnasium.envs.classic_control import CartPoleEnv

class Computes(CartPoleEnv):
    def step(self, action):
        sum(range(30_000))  # longer, all steps together, than what a virtual machine may be without a core
        return super().step(action)

Measured.crowd_matters = lambda *_: True  # the time in line is measured however quick this machine is
found = measure(slots_of([Computes], None, OnEnd.NEXT_STEP)[0], 64)
print(found.stood, found.share)
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="processes cannot be bound to a core here")
def test_standing_in_line_is_neither_waiting_nor_having_a_core(tmp_path: Any) -> None:
    done = subprocess.run([sys.executable, "-c", ON_ONE_CORE], capture_output=True, text=True, check=True, cwd=tmp_path)
    stood, share = map(float, done.stdout.split())
    assert stood >= CROWDED_SHARE
    assert share < 0.5


def test_time_in_line_before_the_first_step_is_not_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process may lose its core while it reads how long it has stood in line so far."""
    now, probe = [0.0], shares._Probe(slots_of([Walk], None, OnEnd.NEXT_STEP)[0](), 1)

    def read(_: int) -> tuple[float, float]:
        now[0] = 1.0
        return 0.0, 1.0

    monkeypatch.setattr("treadle.vector.shares.perf_counter", lambda: now[0])
    monkeypatch.setattr("treadle.vector.shares.times_of", read)
    assert probe.prepare()
    assert probe.steps()[0] < 0.1


@pytest.mark.heavy
def test_threads_of_a_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = require("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert policy_threads() == 1  # they are told to sleep when they have nothing to do
        monkeypatch.delenv("OMP_WAIT_POLICY")
        assert policy_threads() == (1 if any(map(os.path.exists, GRAPHICS)) else 2)
        torch.set_num_threads(1)
        assert policy_threads() == 1
    finally:
        torch.set_num_threads(before)


@pytest.mark.skipif(any(map(os.path.exists, GRAPHICS)), reason="a policy would compute on a graphics processor")
@pytest.mark.parametrize(
    ("said", "threads"),
    [({}, 1), ({"OMP_NUM_THREADS": "4"}, 4), ({"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "3,2"}, 3),
     ({"OPENBLAS_NUM_THREADS": "many"}, 1), ({"OMP_NUM_THREADS": "4", "OMP_WAIT_POLICY": "PASSIVE"}, 1)],
)  # fmt: skip
def test_threads_of_other_libraries(said: dict[str, str], threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_WAIT_POLICY", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in said.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert policy_threads() == threads


class Misshapen(Walk):
    def step(self, action: int) -> Any:
        return (self.at[:1], *super().step(action)[1:])


def test_what_is_observed_is_written_where_steps_are_measured() -> None:
    """Else an environment that hands out ready pictures looks as if a step of it took nothing."""
    assert measure(slots_of(Walk, 4, OnEnd.NEXT_STEP)[0], 4) is not None
    assert measure(slots_of(Misshapen, 4, OnEnd.NEXT_STEP)[0], 4) is None


@pytest.mark.parametrize(
    ("why", "words"),
    [
        (Why.SHORT, "8 of them take 0.04 ms, no longer than waking a worker (0.07 ms). All 8 slots are the caller's"),
        (Why.CROWDED, "other programs compute: 36% of the time was standing in line for a core. All 8 slots"),
        (Why.THREADS, "a policy has 2 threads (torch.set_num_threads), which keep cores from workers. All 8 slots"),
    ],
)
def test_one_line_says_why_there_are_no_workers_and_how_to_ask_for_them(
    why: Why, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "treadle")
    tell(Measured(5e-6, 0.0, 70e-6, 0.36), 8, 1, 8, why, 2)
    (line,) = said(caplog)
    assert words in line
    assert "workers=1 or more: processes" in line
