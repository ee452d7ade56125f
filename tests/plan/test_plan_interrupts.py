"""Ctrl-C in the middle of planning: whatever moment it comes at, the next batch is right and nothing stays in use."""

from typing import Any

import pytest
from plan_envs import Walk, same

from injector import Pressed
from treadle.plan import GymPlanEnv, ParallelEnv, items
from treadle.worker.options import WorkerOptions


@pytest.mark.parametrize("least", [1e-9, 10.0], ids=["a chunk for each worker", "one chunk"])
@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.timeout(300)
def test_interrupts_at_every_moment_of_a_batch(least: float, every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(items, "LEAST_SECONDS", least)
    with ParallelEnv(GymPlanEnv, Walk, n_workers=2) as env:
        env.seed(3)
        state, *_ = env.reset()

        def batch() -> Any:
            return env.step_batch([0, 1, 0, 1], [state] * 4)

        expected = batch()
        batch()  # now it is known what an item takes, in time and in memory
        pool, pressed = env._batch_env._buffers, Pressed()
        points = pressed.count(batch)
        for point in range(1, points + 1, every):
            pressed.run(batch, point)
            same(batch(), expected)
            assert not env._workers._calls, pressed.moment
            assert all(buffer.free for buffer in pool.buffers), pressed.moment
        assert len(pool.buffers) <= 2
    assert points > 300


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_interrupts_at_every_moment_of_a_request_disturb_no_other_worker(every: int) -> None:
    with ParallelEnv(GymPlanEnv, Walk, n_workers=2, worker_options=WorkerOptions(backend="thread")) as env:
        state, *_ = env.reset()
        first, second = env._batch_env._envs
        expected, pressed = second.step(1, state), Pressed()
        points = pressed.count(lambda: first.set_state(state))
        for point in range(1, points + 1, every):
            pressed.run(lambda: first.set_state(state), point)
            same(second.step(1, state), expected)
            first.get_state()  # answered after the one that was interrupted, if that was sent
            assert not env._workers._calls, pressed.moment
        same(first.step(1, state), expected)
    assert points > 100
