"""Whatever face is used: an exception that does harm ends neither caller nor worker, and is caught by its class."""

from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

import numpy as np
import pytest

from hostile import BEYOND, ZOO, Case, Raises
from treadle import (
    AsyncVectorEnv,
    DefaultWorker,
    MultiprocessingSampler,
    SingleProcessVectorSampledTasks,
    TaskRaised,
    VectorEnv,
    VectorSampledTasks,
    WorkerDied,
    WorkerError,
    WorkerFactory,
    collect,
)
from treadle.errors import StartupFailed
from treadle.plan import GymPlanEnv, ParallelEnv
from treadle.sample.failed import CollectionFailed
from treadle.tasks import GymTaskSampler
from treadle.worker.options import WorkerOptions
from zoo.faults import OsExits, Outcome, Sound

EACH = {**ZOO, **BEYOND}
# where a failure ends a run, and every run costs workers: one of each kind of harm
HARM = ("metaclass", "reduce exits", "new", "setattr", "getattribute", "speech leaves", "group", "leaves", "interrupt")
BACKENDS = pytest.mark.parametrize("backend", ["serial", "thread", "process"])


def cases(backend: str) -> dict[str, Case]:
    return ZOO if backend == "serial" else EACH


def check(error: WorkerError, name: str) -> None:
    case = EACH[name]
    assert isinstance(error, TaskRaised), name
    assert case.kind is None or isinstance(error, case.kind), name
    assert case.says in error.error_message, name
    assert repr(error)


def envs() -> list[Callable[[], Any]]:
    return [Sound, Raises, Sound]


@BACKENDS
@pytest.mark.parametrize("kind", [VectorEnv, AsyncVectorEnv])
def test_vectors(kind: Any, backend: str) -> None:
    with closing(kind(envs(), worker_options=WorkerOptions(backend=backend), workers=2)) as vector:
        for name in cases(backend):
            vector.reset(options={"step": name})
            vector.step(np.zeros(3, np.int64))
            vector.step(np.zeros(3, np.int64))
            with pytest.raises(WorkerError) as caught:
                vector.step(np.zeros(3, np.int64))
            check(caught.value, name)
            assert caught.value.where.slot == 1
            with pytest.raises(WorkerError) as caught:
                vector.call_at(1, "ask", name)
            check(caught.value, name)


@BACKENDS
def test_partial_batches(backend: str) -> None:
    with closing(VectorEnv(envs(), worker_options=WorkerOptions(backend=backend), workers=2)) as vector:
        for name in cases(backend):
            vector.async_reset(options={"raise": name} if name != "" else None)
            found, errors = 0, []
            while found + len(errors) < 3:
                try:
                    found += len(vector.recv(min=1)[1])
                except WorkerError as error:
                    errors.append(error)
            assert (found, len(errors)) == (2, 1)
            check(errors[0], name)


@BACKENDS
def test_task_vectors(backend: str) -> None:
    kind: Any = SingleProcessVectorSampledTasks if backend == "serial" else VectorSampledTasks
    how = {} if backend == "serial" else {"worker_options": WorkerOptions(backend=backend)}
    with kind(Samplers, [{"env": env} for env in envs()], **how) as vector:
        for name in cases(backend):
            with pytest.raises(WorkerError) as caught:
                vector.command_at(1, "call_sampler", ("ask", [name]))
            check(caught.value, name)


class Samplers(GymTaskSampler):
    def ask(self, name: str) -> None:
        self.env.unwrapped.ask(name)  # type: ignore[attr-defined]


@BACKENDS
def test_planning(backend: str) -> None:
    how: dict[str, Any] = {"worker_options": WorkerOptions(backend=backend)} if backend != "process" else {}
    with ParallelEnv(GymPlanEnv, Raises, n_workers=2, **how) as env:
        state, *_ = env.reset()
        for name in cases(backend).keys() - {"stop"}:  # steps are made by a generator, where Python makes another of it
            with pytest.raises(WorkerError) as caught:
                env.step_batch([0, name, 0], [state] * 3)
            check(caught.value, name)


@BACKENDS
def test_collecting(backend: str) -> None:
    for name in HARM:
        if name in cases(backend) and (name, backend) != ("setattr", "serial"):  # Python's contextlib writes, too
            made = partial(Raises, always=name)
            with pytest.raises(CollectionFailed) as caught:
                list(collect(made, episodes=2, workers=1, worker_options=WorkerOptions(backend=backend)))
            assert isinstance(caught.value.__cause__, WorkerError)
            check(caught.value.__cause__, name)
            assert caught.value.where.step == 3
            assert EACH[name].says in caught.value.reason


def test_samplers() -> None:
    """Of processes; a LocalSampler lets exceptions through as they are."""
    for name in HARM:
        factory = WorkerFactory(seed=1, max_episode_length=16, n_workers=1, worker_class=DefaultWorker)
        with MultiprocessingSampler(factory, Still(), Raises(always=name), on_failure="raise") as sampler:
            with pytest.raises(WorkerError) as caught:
                sampler.obtain_samples(0, 32, None)
            check(caught.value, name)


class Still:
    """A policy that never moves."""

    def reset(self, do_resets: Any = None) -> None:
        return

    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        return 0, {}


@BACKENDS
def test_constructors(backend: str) -> None:
    for name in HARM:
        if name in cases(backend) and name != "setattr":  # Python's contextlib writes around constructors
            with pytest.raises(StartupFailed) as caught:
                VectorEnv(
                    [Sound, partial(Raises, name)], workers=1, inline=0, worker_options=WorkerOptions(backend=backend)
                )
            check(caught.value.failures[0], name)


class Nested(Sound):
    """Has a vector of its own, which loses its worker in the third step."""

    def at_step(self, sound: Outcome) -> None:
        vector = VectorEnv([partial(OsExits, at=1)], workers=1)
        try:
            vector.reset()
            vector.step([0])
        finally:
            vector.close()


@BACKENDS
def test_the_death_within_an_environment_is_not_that_of_its_worker(backend: str) -> None:
    """It raises our WorkerDied; whoever steps it has a worker that lives."""
    vector = VectorEnv([Sound, Nested], workers=1, worker_options=WorkerOptions(backend=backend))
    try:
        vector.reset()
        for _ in range(2):
            vector.step([0, 0])
        with pytest.raises(TaskRaised, match=r"^slot 1 .*in step 3 of episode 0: WorkerDied: slot 0 ") as caught:
            vector.step([0, 0])
        assert not isinstance(caught.value, WorkerDied)
        inner = caught.value.__cause__
        assert isinstance(inner, WorkerDied)
        assert (inner.where.slot, inner.where.phase, inner.exit_code) == (0, "step", 3)
        vector.reset()
        vector.step([0, 0])
    finally:
        vector.close()
    with pytest.raises(CollectionFailed) as failed:
        list(collect(Nested, episodes=1, workers=1, worker_options=WorkerOptions(backend=backend)))
    assert failed.value.where.step == 3
    assert failed.value.reason.startswith("WorkerDied: slot 0 ")
