"""When workers raise, die or are given nonsense: what is told, what is kept, what goes on."""

from __future__ import annotations

import _thread
import logging
import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sampler_kit import Coin, Crashing, Deadly, Fixed, GridWorld, Once, Point, Walk

from treadle import (
    DefaultWorker,
    EnvUpdate,
    LocalSampler,
    MultiprocessingSampler,
    NewEnvUpdate,
    StartupFailed,
    TaskRaised,
    UsageError,
    VecWorker,
    Worker,
    WorkerDied,
    WorkerError,
    WorkerFactory,
    WorkersLost,
)
from treadle.play.contract import BadStep
from treadle.samplers import pool_sampler
from treadle.worker.life import State
from treadle.worker.options import PoolOptions, WorkerOptions

BOTH = pytest.mark.parametrize("kind", [LocalSampler, MultiprocessingSampler])


def make(kind: Any, agents: Any, envs: Any, **more: Any) -> Any:
    options = {
        name: more.pop(name)
        for name in list(more)
        if name in ("on_failure", "worker_options", "ordered", "step_timeout")
    }
    return kind(WorkerFactory(**{"seed": 1, "max_episode_length": 16, "n_workers": 2, **more}), agents, envs, **options)


def step(x: float) -> np.ndarray:
    return np.array([x, 0], np.float32)


# -- what becomes of a worker that fails -------------------------------------------------------------------------------


@BOTH
def test_a_worker_that_raises_is_survived_and_named(kind: Any, caplog: pytest.LogCaptureFixture) -> None:
    with make(kind, [Fixed([step(0.1)]), Crashing()], Point(), on_failure="drop") as sampler:
        told: list[str] = []
        while not told:  # the other worker may be quick enough to fill a batch or two before this one has raised
            assert sum(sampler.obtain_samples(0, 160, None).lengths) >= 160
            told = [record.message for record in caplog.records if record.levelno == logging.WARNING]
        assert sum(sampler.obtain_samples(0, 160, None).lengths) >= 160
        (line,) = [record.message for record in caplog.records if record.levelno == logging.WARNING]
        assert "worker 1 is dropped, 1 of 2 are left: Exception: Intentional subprocess crash" in line
        with pytest.raises(WorkersLost, match=r"an exact number of episodes .* worker 1: Exception: Intentional"):
            sampler.obtain_exact_episodes(1, None)
        assert sum(sampler.obtain_samples(0, 16, None).lengths) >= 16


def test_to_be_survived_is_the_default_among_processes_alone() -> None:
    with make(MultiprocessingSampler, [Fixed([step(0.1)]), Crashing()], Point()) as sampler:
        assert sum(sampler.obtain_samples(0, 160, None).lengths) >= 160
    with (
        make(LocalSampler, [Fixed([step(0.1)]), Crashing()], Point()) as sampler,
        pytest.raises(TaskRaised, match="Intentional subprocess crash"),
    ):
        sampler.obtain_samples(0, 160, None)


@BOTH
def test_a_worker_that_raises_is_told_if_that_is_wanted(kind: Any) -> None:
    with make(kind, [Coin(), Deadly(30, "raise")], Walk(), on_failure="raise") as sampler:
        with pytest.raises(ValueError, match=r"worker|in the caller") as caught:
            sampler.obtain_exact_episodes(50, None)
        error: Any = caught.value
        assert isinstance(error, TaskRaised)
        assert error.where.slot == 1
        assert "the agent had enough" in str(error)
        assert isinstance(error.__cause__, ValueError)
        good = Coin()
        assert len(sampler.obtain_exact_episodes(2, good).lengths) == 4  # the worker lives


class Weak(Walk):
    """Breaks in its third step; what it returns as a reward then, or raises, is `way`."""

    def __init__(self, way: Any) -> None:
        super().__init__()
        self.way = way

    def reset(self, **arguments: Any) -> Any:
        self.taken = 0
        return super().reset(**arguments)

    def step(self, action: int) -> Any:
        self.taken += 1
        observation, reward, _, _, info = super().step(action)
        if self.taken == 3 and isinstance(self.way, Exception):
            raise self.way
        return observation, self.way if self.taken == 3 else reward, False, self.taken == 5, info


class Stubborn(Coin):
    def reset(self, do_resets: Any = None) -> None:
        self.asked = 0

    def get_action(self, observation: Any) -> Any:
        self.asked += 1
        if self.asked == 3:
            raise RuntimeError("no more")
        return super().get_action(observation)


class Own(DefaultWorker):
    def step_episode(self) -> bool:
        return super().step_episode()


@pytest.mark.parametrize("worker", [DefaultWorker, Own, VecWorker])
@pytest.mark.parametrize(
    ("agent", "env"), [(Coin(), Weak(KeyError("broken"))), (Coin(), Weak("much")), (Stubborn(), Weak(1.0))]
)
def test_an_error_says_in_which_step_it_was(worker: Any, agent: Any, env: Any) -> None:
    if worker is VecWorker and isinstance(agent, Stubborn):
        pytest.skip("it asks for several environments at once")
    with make(LocalSampler, agent, env, worker_class=worker, n_workers=1) as sampler:
        with pytest.raises(WorkerError) as caught:
            sampler.obtain_exact_episodes(3, None)
        assert (caught.value.where.slot, caught.value.where.phase, caught.value.where.step) == (0, "rollout", 3)
        assert "step 3 of a rollout" in str(caught.value)


def test_what_is_told_of_a_dropped_worker_says_it_too(caplog: pytest.LogCaptureFixture) -> None:
    with (
        make(MultiprocessingSampler, Coin(), [Weak(KeyError("broken")), Walk()]) as sampler,
        pytest.raises(WorkersLost, match=r"worker 0: KeyError: 'broken'.*\(in step 3 of an episode\)"),
    ):
        sampler.obtain_exact_episodes(1, None)
    assert "(in step 3 of an episode)" in caplog.text


@BOTH
def test_a_worker_that_raises_is_replaced(kind: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with make(kind, Once(str(tmp_path / "once"), "raise"), Walk(), on_failure="restart") as sampler:
        batch = sampler.obtain_exact_episodes(8, None)
    assert len(batch.lengths) == 16
    assert "raised and is replaced: ValueError: only once" in caplog.text


@BOTH
def test_a_worker_that_raises_again_and_again_is_told_in_the_end(kind: Any) -> None:
    with (
        make(
            kind, Coin(), [Walk(), Raises()], on_failure="restart", worker_options=WorkerOptions(max_restarts=2)
        ) as sampler,
        pytest.raises(ZeroDivisionError),
    ):
        sampler.obtain_samples(0, 10**6, None)


class Raises(Walk):
    def step(self, action: int) -> Any:
        raise ZeroDivisionError("this world has no next moment")


@pytest.mark.parametrize("how", ["kill", "exit"])
def test_a_worker_that_dies_is_dropped_and_the_others_episodes_stay(how: str, caplog: Any) -> None:
    with make(MultiprocessingSampler, [Coin(), Deadly(40, how)], Walk()) as sampler:
        while "worker 1 is dropped" not in caplog.text:  # on a busy machine the other one may play all of them before
            assert len(sampler.obtain_samples(0, 3000, None)) >= 3000
        expected = "the worker was ended by SIGKILL" if how == "kill" else "the worker exited with code 3"
        assert f"worker 1 is dropped, 1 of 2 are left: {expected}" in caplog.text
        with pytest.raises(WorkersLost, match=f"worker 1: {expected}"):
            sampler.obtain_exact_episodes(1, None)
        assert len(sampler.obtain_samples(0, 30, None)) >= 30


def test_a_death_in_the_middle_of_exact_episodes_is_an_error_and_no_wait() -> None:
    with make(MultiprocessingSampler, [Coin(), Deadly(40)], Walk()) as sampler:
        with pytest.raises(WorkersLost, match="on_failure='restart' replaces workers") as caught:
            sampler.obtain_exact_episodes(500, None)
        assert isinstance(caught.value.failures[1], WorkerDied)
        assert isinstance(caught.value.__cause__, WorkerDied)


@pytest.mark.parametrize("how", ["kill", "exit", "raise"])
def test_when_all_are_gone_that_is_an_error_and_no_wait(how: str) -> None:
    with make(MultiprocessingSampler, Deadly(20, how), Walk()) as sampler:
        for _ in range(2):
            with pytest.raises(WorkersLost, match=r"all workers are gone: worker 0: .*; worker 1: ") as caught:
                sampler.obtain_samples(0, 10**6, None)
            assert set(caught.value.failures) == {0, 1}
            assert isinstance(caught.value, EOFError)


def test_a_death_is_told_if_that_is_wanted() -> None:
    with make(MultiprocessingSampler, [Coin(), Deadly(40)], Walk(), on_failure="raise") as sampler:
        with pytest.raises(WorkerDied, match=r"worker 1, pid \d+"):
            sampler.obtain_samples(0, 10**6, None)
        with pytest.raises(EOFError, match="the pool is broken by"):
            sampler.obtain_samples(0, 10, None)


def test_a_worker_that_dies_is_replaced_with_all_that_it_was_told(tmp_path: Path, caplog: Any) -> None:
    with make(MultiprocessingSampler, Fixed([0]), Walk(), on_failure="restart") as sampler:
        agent = Dies(str(tmp_path / "once"))
        sampler.obtain_exact_episodes(1, agent, env_update=NewEnvUpdate(Longer))
        batch = sampler.obtain_exact_episodes(20, {"gain": np.full(1, 5.0)})
        assert "is replaced: the worker was ended by SIGKILL" in caplog.text
        assert len(batch.lengths) == 40
        assert set(batch.agent_infos["gain"]) == {5.0}
        assert batch.lengths.tolist() == [13] * 40
        assert len({part.observations[0, 1] for part in batch.split()}) == 40  # no episode twice
        pids = [set(part.agent_infos["pid"]) for part in batch.split()]
        assert len(set.union(*pids)) == 3


class Longer(Walk):
    def reset(self, **arguments: Any) -> Any:
        observation, info = super().reset(**arguments)
        self.end = 13
        return observation, info


class Dies(Fixed):
    """Once, after its parameters were set."""

    def __init__(self, file: str) -> None:
        super().__init__([0])
        self.file, self.steps = file, 0

    def get_action(self, observation: Any) -> Any:
        self.steps += self.gain[0] == 5
        if self.steps == 240:  # some episodes are on their way by then
            try:
                os.close(os.open(self.file, os.O_CREAT | os.O_EXCL))
                os.kill(os.getpid(), signal.SIGKILL)
            except FileExistsError:
                return super().get_action(observation)
        return super().get_action(observation)


@pytest.mark.parametrize("how", ["kill", "raise", "hang"])
def test_by_index_a_replaced_worker_does_not_change_a_byte(how: str, tmp_path: Path) -> None:
    runs = []
    options = {"ordered": True, "on_failure": "restart", "step_timeout": 0.5 if how == "hang" else None}
    for agent in (Once(os.devnull), Once(str(tmp_path / "once"), how)):
        with make(MultiprocessingSampler, agent, Walk(), **options) as sampler:
            runs.append(sampler.obtain_samples(0, 300, None))
    assert (tmp_path / "once").exists()
    assert runs[0].lengths.tolist() == runs[1].lengths.tolist()
    assert runs[0].observations.tobytes() == runs[1].observations.tobytes()
    assert runs[0].actions.tolist() == runs[1].actions.tolist()


def test_by_index_what_a_dropped_worker_was_making_is_made_by_others(tmp_path: Path) -> None:
    runs = []
    for agent in (Once(os.devnull), Once(str(tmp_path / "once"))):
        with make(MultiprocessingSampler, agent, Walk(), ordered=True) as sampler:
            runs.append(sampler.obtain_samples(0, 300, None))
    assert (tmp_path / "once").exists()
    assert runs[0].observations.tobytes() == runs[1].observations.tobytes()


def test_a_worker_that_died_between_two_samplings_is_noticed_at_the_next(caplog: Any) -> None:
    with make(MultiprocessingSampler, Coin(), Walk()) as sampler:
        sampler.obtain_samples(0, 30, None)
        os.kill(sampler._sampling.pool.workers[0].pid, signal.SIGKILL)
        while "worker 0 is dropped" not in caplog.text:  # on a busy machine it dies late, and the other one plays on
            assert len(sampler.obtain_samples(0, 3000, None)) >= 3000


# -- what cannot work -------------------------------------------------------------------------------------------------


class Refuses(DefaultWorker):
    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        if self._worker_number == 1:
            raise OSError("no licence for a second one")


class Unpicklable(Walk):
    def step(self, action: int) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated, truncated, {**info, "lock": threading.Lock()}


class Particular(Coin):
    """Tells its gain, and does not take a negative one."""

    gain = 0.0

    def set_param_values(self, values: Any) -> None:
        if values["gain"] < 0:
            raise ValueError("no such gain")
        self.gain = values["gain"]

    def get_action(self, observation: Any) -> tuple[int, dict[str, Any]]:
        return super().get_action(observation)[0], {"gain": self.gain, "pid": os.getpid()}


def test_a_worker_whose_replacing_is_learned_of_late_is_told_everything() -> None:
    with make(MultiprocessingSampler, Particular(), Walk(), on_failure="restart") as sampler:
        (pid, *_) = set(sampler.obtain_exact_episodes(1, {"gain": 5.0}).agent_infos["pid"].tolist())
        os.kill(pid, signal.SIGKILL)
        sampler.obtain_samples(0, 1, None)
        pool = sampler._sampling.pool
        while not any(worker.restarts for worker in pool.workers):
            sampler.obtain_samples(0, 1, None)  # until the death is noticed
        while any(worker.state is State.STARTING for worker in pool.workers):
            pool.calls.poll(0.1, lambda event: None)  # as where it came together with the last episodes of a sampling
        infos = sampler.obtain_exact_episodes(1, None).agent_infos
        assert len(set(infos["pid"].tolist()) - {pid}) == 2
        assert set(infos["gain"].tolist()) == {5.0}


def test_a_worker_whose_death_an_interrupt_has_kept_from_us_is_told_everything() -> None:
    with make(MultiprocessingSampler, Particular(), Walk(), on_failure="restart") as sampler:
        (pid, *_) = set(sampler.obtain_exact_episodes(1, {"gain": 5.0}).agent_infos["pid"].tolist())
        os.kill(pid, signal.SIGKILL)
        pool = sampler._sampling.pool
        while not any(worker.restarts for worker in pool.workers) or pool.calls.changing:
            pool.calls.poll(0.1, lambda event: None)  # Ctrl-C comes before anybody looks at what is told
        infos = sampler.obtain_exact_episodes(1, None).agent_infos
        assert len(set(infos["pid"].tolist()) - {pid}) == 2
        assert set(infos["gain"].tolist()) == {5.0}


def test_the_episodes_of_a_dead_worker_do_not_wear_out_its_successor() -> None:
    with make(MultiprocessingSampler, Coin(), Walk(), on_failure="restart") as sampler:
        sampler.obtain_exact_episodes(2, None)
        pool = sampler._sampling.pool
        assert list(map(pool.calls.wear.played, pool.workers)) == [2, 2]
        os.kill(pool.workers[0].pid, signal.SIGKILL)
        while not pool.workers[0].restarts:
            pool.calls.poll(0.1, lambda event: None)
        assert list(map(pool.calls.wear.played, pool.workers)) == [0, 2]


def test_an_update_that_raised_is_not_told_to_workers_that_come_later() -> None:
    with make(MultiprocessingSampler, Particular(), Walk(), on_failure="restart") as sampler:
        (pid, *_) = set(sampler.obtain_exact_episodes(1, {"gain": 5.0}).agent_infos["pid"].tolist())
        with pytest.raises(ValueError, match="no such gain"):
            sampler.obtain_samples(0, 10, {"gain": -1.0})
        os.kill(pid, signal.SIGKILL)
        infos = sampler.obtain_exact_episodes(3, None).agent_infos
        assert len(set(infos["pid"].tolist()) - {pid}) == 2
        assert set(infos["gain"].tolist()) == {5.0}


@BOTH
def test_a_worker_class_that_raises_leaves_nothing_running(kind: Any) -> None:
    with pytest.raises(StartupFailed, match="OSError: no licence for a second one") as caught:
        make(kind, Coin(), Walk(), worker_class=Refuses)
    assert caught.value.where.slot == 1


@BOTH
@pytest.mark.parametrize(
    ("agents", "envs", "message"),
    [
        (Coin(), NewEnvUpdate(lambda: 1 / 0), "ZeroDivisionError"),
        (Coin(), "Nope-v1", "environment 'Nope-v1' is unknown"),
    ],
)
def test_what_no_worker_can_begin_with(kind: Any, agents: Any, envs: Any, message: str) -> None:
    with pytest.raises(StartupFailed, match=message):
        make(kind, agents, envs)


@BOTH
@pytest.mark.parametrize(
    ("agents", "envs", "message"),
    [
        (Coin(), 7, "Unknown environment update type: int"),
        (Coin(), [Walk(), b"CartPole-v1"], "Unknown environment update type: bytes"),
        (7, Walk(), "int is not an agent"),
        ([Coin(), Coin], Walk(), "Coin is a class, and an agent is an object"),
        ({"gain": np.ones(1)}, Walk(), "before there was an agent"),
    ],
)
def test_what_can_be_told_at_once_starts_nothing(
    kind: Any, agents: Any, envs: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_sampler, "Gathering", None)
    for worker_class in (DefaultWorker, VecWorker):
        with pytest.raises(TypeError, match=message):
            make(kind, agents, envs, worker_class=worker_class)


@BOTH
def test_vec_workers_say_what_they_need_at_the_start(kind: Any) -> None:
    with pytest.raises(StartupFailed, match=r"exactly n_envs \(3\) environments, but received 2"):
        make(kind, Coin(), [[Walk(), Walk()]] * 2, worker_class=VecWorker, worker_args={"n_envs": 3})


@BOTH
@pytest.mark.parametrize("on_failure", ["drop", "restart", "raise"])
def test_a_wrong_update_is_the_callers_own_mistake(kind: Any, on_failure: str) -> None:
    with make(kind, Fixed([0]), Walk(), on_failure=on_failure) as sampler:
        with pytest.raises(TypeError, match=r"Unknown environment update type: int"):
            sampler.obtain_samples(0, 10, None, env_update=7)
        with pytest.raises(UsageError, match="environment 'Nope-v1' is unknown"):
            sampler.obtain_samples(0, 10, None, env_update="Nope-v1")
        with pytest.raises(TypeError, match="returned a NoneType, not an environment"):
            sampler.obtain_samples(0, 10, None, env_update=NewEnvUpdate(lambda: None))
        with pytest.raises(TypeError, match="int is not an agent"):
            sampler.obtain_exact_episodes(1, 7)
        assert len(sampler.obtain_exact_episodes(1, Fixed([1]), env_update=Walk()).lengths) == 2  # nobody was lost


@BOTH
def test_an_agent_without_the_method_that_is_needed(kind: Any) -> None:
    with (
        make(kind, Mute(), Walk(), on_failure="drop") as sampler,
        pytest.raises(WorkersLost, match="TypeError: the agent, a Mute, has neither get_action nor get_actions"),
    ):
        sampler.obtain_samples(0, 10, None)


class Mute:
    def reset(self, do_resets: Any = None) -> None:
        """It can do nothing else."""


@pytest.mark.parametrize("on_failure", ["drop", "restart", "raise"])
def test_an_episode_that_cannot_be_sent_is_an_error_and_no_wait(on_failure: str) -> None:
    with (
        make(MultiprocessingSampler, Coin(), Unpicklable(), on_failure=on_failure) as sampler,
        pytest.raises(WorkerError, match=r"env_infos'\]\['lock'\] cannot be sent to the caller"),
    ):
        sampler.obtain_samples(0, 10, None)
    with make(LocalSampler, Coin(), Unpicklable()) as sampler:  # where nothing is sent there is nothing wrong
        assert len(sampler.obtain_samples(0, 10, None)) >= 10


def test_what_cannot_be_sent_to_workers_is_refused() -> None:
    agent = Coin()
    agent.lock = threading.Lock()  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match="cannot be sent to it: TypeError: cannot pickle"):
        make(MultiprocessingSampler, agent, Walk())
    with make(MultiprocessingSampler, Coin(), Walk()) as sampler:
        with pytest.raises(UsageError, match="an update cannot be sent: TypeError: cannot pickle"):
            sampler.obtain_samples(0, 10, agent)
        assert len(sampler.obtain_samples(0, 10, None)) >= 10


class ReturnsNothing(Worker):
    def update_agent(self, agent_update: Any) -> None:
        """Nobody plays."""

    def update_env(self, env_update: Any) -> None:
        """Nothing is played."""

    def rollout(self) -> Any:
        return {"observations": [1, 2]}


class OddOnce(Walk):
    """One reward that is none, in the episode that the file's absence says is the first such."""

    file = ""

    def step(self, action: int) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, *rest = super().step(action)
        if not Path(self.file).exists():
            Path(self.file).touch()
            reward = "much"  # type: ignore[assignment]
        return observation, reward, *rest  # type: ignore[return-value]


@BOTH
@pytest.mark.parametrize("ordered", [False, True])
def test_what_could_not_be_sent_is_forgotten(kind: Any, ordered: bool, tmp_path: Path) -> None:
    env = OddOnce()
    env.file = str(tmp_path / "seen")
    with make(kind, Coin(), env, on_failure="raise", ordered=ordered, n_workers=1) as sampler:
        with pytest.raises(BadStep, match="much"):
            sampler.obtain_samples(0, 50, None)
        again = sampler.obtain_samples(0, 50, None)
    with make(LocalSampler, Coin(), Walk(), ordered=ordered, n_workers=1) as sampler:
        fresh = sampler.obtain_samples(0, 50, None)
    assert again.rewards.dtype == np.float64
    if ordered:
        assert again.observations.tobytes() == fresh.observations.tobytes()


@BOTH
def test_a_rollout_that_is_no_batch(kind: Any) -> None:
    with (
        make(kind, Coin(), Walk(), worker_class=ReturnsNothing, on_failure="raise") as sampler,
        pytest.raises(TypeError, match="rollout returns an EpisodeBatch, this one's a dict"),
    ):
        sampler.obtain_samples(0, 10, None)


@BOTH
def test_options_that_make_no_sense_start_nothing(kind: Any) -> None:
    with pytest.raises(UsageError, match="on_failure must be"):
        make(kind, Coin(), Walk(), on_failure="ignore")
    with pytest.raises(TypeError, match="unexpected keyword"):
        kind(Coin(), Walk(), max_episode_length=3, n_wokers=2)


# -- stopping ---------------------------------------------------------------------------------------------------------


class Endless(GridWorld):
    """Never over; counts its steps in a file's size."""

    def __init__(self, file: str) -> None:
        super().__init__(["SF", "FF"])
        self.file = file

    def step(self, action: int) -> Any:
        with open(self.file, "ab") as file:
            file.write(b".")
        return super().step(action)


class TrueWorker(DefaultWorker):
    """A rollout of a user's own."""

    def rollout(self) -> Any:
        self.start_episode()
        over = False
        while not over:
            over = self.step_episode()
        return self.collect_episode()


@pytest.mark.parametrize("worker_class", [DefaultWorker, TrueWorker])
def test_a_stop_comes_in_at_the_next_step(worker_class: Any, tmp_path: Path) -> None:
    file = tmp_path / "steps"
    envs = [Walk(), NewEnvUpdate(lambda: Endless(str(file)))]
    with make(MultiprocessingSampler, Coin(), envs, max_episode_length=np.inf, worker_class=worker_class) as sampler:
        batch = sampler.obtain_samples(0, 3000, None)  # of worker 0 alone: the other one's episode never ends
        assert len(batch) >= 3000
        while not file.exists():  # until the other one has made a step
            sampler.obtain_samples(0, 3000, None)
        both = sampler.obtain_exact_episodes(2, None, env_update=[None, Walk()])
        assert len(both.lengths) == 4
        steps = file.stat().st_size
        assert steps > 0
        assert set(both.observations[:, 0]) <= set(range(20))
        sampler.obtain_exact_episodes(1, None)
        assert file.stat().st_size == steps


@BOTH
@pytest.mark.usefixtures("every_interrupt_is_heard")
def test_an_interrupted_sampling_leaves_a_sampler_that_goes_on(kind: Any) -> None:
    class Slow(EnvUpdate):
        def __call__(self, old_env: Any = None) -> Any:
            return Endless(os.devnull)

    with make(kind, Coin(), Walk(), max_episode_length=np.inf) as sampler:
        timer = threading.Timer(0.5, _thread.interrupt_main)
        with pytest.raises(KeyboardInterrupt):
            timer.start()
            sampler.obtain_samples(0, 10, None, env_update=Slow())
        timer.join()
        batch = sampler.obtain_exact_episodes(3, None, env_update=Walk())
        assert len(batch.lengths) == 6


def test_ending_in_the_middle_of_endless_episodes_takes_no_time_to_speak_of(monkeypatch: pytest.MonkeyPatch) -> None:
    # an episode that is not stopped never ends, and a process that waits for a core may take long to end
    monkeypatch.setitem(PoolOptions.__init__.__kwdefaults__, "close_timeout", 20.0)
    sampler = make(MultiprocessingSampler, Coin(), [Walk(), Endless(os.devnull)], max_episode_length=np.inf)
    sampler._sampling._courier.stale = True  # so that the endless one is not stopped at the end of the sampling
    sampler.obtain_samples(0, 30, None)
    sampler.shutdown_worker()
    assert all(worker.report.code == 0 for worker in sampler._sampling.pool.workers)  # asked, not killed
