"""What a backend is: one class, registered under a name. And the options of a pool, checked in one place."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import pytest
from kit import Pool, with_fault

import treadle
from treadle.errors import UsageError
from treadle.wire.messages import Hello, Reply, Request
from treadle.worker.backends import BACKENDS, register
from treadle.worker.options import PoolOptions, WorkerOptions, chosen
from treadle.worker.place import Place
from treadle.worker.serve import Server
from treadle.worker.worker import Worker, build_here
from zoo.faults import Sound


class Later(Worker):
    """A backend in thirty lines: it does what it was asked to when it is next looked at, one request at a time."""

    in_caller = inline = starts_here = True

    def start(self) -> None:
        programs, self._hello = build_here(self.spec, lambda: self.factories, in_caller=True)
        self.server = Server(self.slots, programs, in_caller=True, local=True)
        self.asked: list[Request] = []
        self.closed = False

    def hello(self) -> Hello:
        return self._hello

    def join(self, place: Place) -> None:
        assert place.rows is not None
        self.server.attach(place.rows)

    def pack(self, payload: Any) -> Any:
        return None

    def post(self, request: Request, packed: Any) -> None:
        self.asked.append(request)

    def take(self) -> Reply | None:
        return next(self.server.handle(self.asked.pop(0), None)) if self.asked else None

    def idle(self) -> bool:
        return not self.asked

    def ended(self) -> bool:
        return self.closed

    def ask(self) -> None:
        if not self.closed:
            self.closed = True
            self.server.close()


@pytest.fixture
def later() -> Iterator[str]:
    register("later", lambda: Later)
    yield "later"
    del BACKENDS["later"]


def test_a_backend_is_one_class(later: str) -> None:
    """It is as good as ours to whoever steps."""
    with Pool(with_fault(Sound), backend=later) as pool, Pool(with_fault(Sound), backend="serial") as ours:
        assert [type(worker) for worker in pool.workers] == [Later]
        assert pool.reset(seeds=range(pool.n)).observations.tolist() == ours.reset(seeds=range(4)).observations.tolist()
        for _ in range(25):
            a, b = (each.step(np.arange(4)) for each in (pool, ours))
            assert a.observations.tolist() == b.observations.tolist()
            assert a.rewards.tolist() == b.rewards.tolist()


def test_a_face_takes_a_registered_backend(later: str) -> None:
    with closing(treadle.make_vec("CartPole-v1", 3, worker_options=treadle.WorkerOptions(backend=later))) as vector:
        assert vector.reset(seed=1)[0].shape == (3, 4)
        assert vector.step(np.zeros(3, np.int64))[1].tolist() == [1.0] * 3


def test_options_are_frozen_and_checked_once() -> None:
    options = PoolOptions(step_timeout=3)
    with pytest.raises(FrozenInstanceError):
        options.step_timeout = 4  # type: ignore[misc]
    with pytest.raises(UsageError, match=r"backend must be one of process, .*, got 'none'"):
        Pool(with_fault(Sound), backend="none")
    wrong = {"on_failure": "hope", "worker_output": "loud", "start_timeout": 0, "max_restarts": -1}
    for name, value in wrong.items():
        with pytest.raises(UsageError, match=name):
            PoolOptions(**{name: value})  # type: ignore[arg-type]
    assert PoolOptions(**chosen(WorkerOptions())) == PoolOptions()
    assert chosen(WorkerOptions(max_restarts=None, preload=[])) == {"max_restarts": None, "preload": ()}


def test_every_face_knows_every_option() -> None:
    """What a pool's option means is written once; a face that took another name for it would be told here."""
    for kind in (WorkerOptions, PoolOptions):
        for name in kind.__annotations__.keys() - vars(WorkerOptions).keys() | WorkerOptions.__annotations__.keys():
            assert f"{name}: " in (kind.__doc__ or "") + (WorkerOptions.__doc__ or "")
    options = treadle.WorkerOptions(backend="serial", max_restarts=7)
    with closing(treadle.VectorEnv("CartPole-v1", 2, worker_options=options)) as envs:
        assert envs._pool.options == PoolOptions(backend="serial", max_restarts=7)
    with pytest.raises(UsageError, match="worker_options is a treadle"):
        treadle.VectorEnv("CartPole-v1", 2, worker_options={"backend": "serial"})  # type: ignore[arg-type]
    for name in sorted(WorkerOptions.__annotations__):
        for face in (treadle.VectorEnv, treadle.make_vec, treadle.collect, treadle.plan.make):
            with pytest.raises(UsageError, match=rf"{name} .*: worker_options=WorkerOptions\({name}=\.\.\.\)"):
                face("CartPole-v1", 2, **{name: None})
    with pytest.raises(TypeError, match="no_such_option"):
        treadle.VectorEnv("CartPole-v1", 2, no_such_option=1)  # type: ignore[call-arg]
