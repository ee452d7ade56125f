"""Handles, rollouts and fan-out: states that stay where they were made."""

import contextlib
import gc
from typing import Any

import numpy as np
import pytest
from plan_envs import Walk, same

from treadle.errors import FreedHandle, StoreFull, TaskRaised, UsageError
from treadle.plan import GymPlanEnv, ParallelEnv
from treadle.states.state import EnvState


@pytest.fixture(params=["serial", "thread", "process"], scope="module")
def shared(request: pytest.FixtureRequest) -> Any:
    with ParallelEnv(GymPlanEnv, Walk, n_workers=2, backend=request.param) as made:
        made.put_state(made.get_state())  # lays the store, which stays as long as the fixture, as trays do
        made.step_batch([0], [made.get_state()])
        yield made


@pytest.fixture
def env(shared: ParallelEnv) -> ParallelEnv:
    shared.seed(3)
    shared.reset()
    return shared


def test_a_search_by_handles_is_the_same_search(env: ParallelEnv) -> None:
    start = env.get_state()
    states, handles = [start] * 4, [env.put_state(start)] * 4
    for depth in range(4):
        actions = [0, 1, depth % 2, 1]
        states, *expected = env.step_batch(actions, states, dt=2)
        handles, *found = env.step_batch(actions, handles, dt=2, return_state="handle")
        same(found, expected)
    assert [handle.fetch() for handle in handles] == states
    assert all(isinstance(handle.fetch(), EnvState) for handle in handles)
    back, *_ = env.step_batch([0], handles[:1])
    assert isinstance(back[0], EnvState), "a state crosses when it is asked for"
    only = env.step_batch([0] * 4, handles, return_state=False)
    assert len(only) == 5


def test_rows_are_counted(env: ParallelEnv) -> None:
    gc.collect()
    start = env.put_state(env.get_state())
    before = env.free_handles
    handles, *_ = env.step_batch([0, 1, 1], [start] * 3, return_state="handle")
    assert env.free_handles == before - 3
    also = handles[1]
    del handles
    gc.collect()
    assert env.free_handles == before - 1
    also.free()
    also.free()
    assert env.free_handles == before
    assert also.freed
    with pytest.raises(FreedHandle, match="item 1: this handle was freed"):
        env.step_batch([0, 1], [start, also])
    with pytest.raises(FreedHandle):
        also.fetch()
    with pytest.raises(TypeError, match=r"handle\.fetch\(\)"):
        also.__reduce__()
    with pytest.raises(UsageError, match="item 1: give handles for all items"):
        env.step_batch([0, 1], [start, env.get_state()])
    with pytest.raises(TaskRaised):
        env.step_batch([0, 2, 1], [start] * 3, return_state="handle")
    assert env.free_handles == before, "a batch that fails takes no rows"
    assert len(env.step_batch([0], [start])) == 6


def test_a_full_store_says_so() -> None:
    with ParallelEnv(GymPlanEnv, Walk, n_workers=1, backend="serial", store_bytes=4096, state_bytes=1024) as env:
        state, _, _ = env.reset()
        kept, *_ = env.step_batch([0] * 3, [state] * 3, return_state="handle")
        with pytest.raises(StoreFull, match=r"1 free rows of 4 .*, and 2 are needed.*store_bytes=") as caught:
            env.step_batch([0] * 2, kept[:2], return_state="handle")
        assert (caught.value.rows, caught.value.row_bytes) == (4, 1024)
        env.step_batch([0], kept[:1], return_state="handle")
        stranger = kept[0]
    with pytest.raises(FreedHandle, match="closed"):
        stranger.fetch()
    with ParallelEnv(GymPlanEnv, Walk, n_workers=1, backend="serial", state_bytes=64) as env:
        with pytest.raises(TaskRaised, match=r"item 0 of 1: .*StoreFull: a state of \d+ bytes does not fit") as larger:
            env.step_batch([0], [env.get_state()], return_state="handle")
        assert isinstance(larger.value, MemoryError)
        assert len(env.step_batch([0], [env.get_state()])) == 6


def test_a_handle_of_another_environment(env: ParallelEnv) -> None:
    with ParallelEnv(GymPlanEnv, Walk, n_workers=1, backend="serial") as other:
        stranger = other.put_state(other.get_state())
        with pytest.raises(FreedHandle, match=r"item 0: .*another environment's store"):
            env.step_batch([0], [stranger])
    with pytest.raises(UsageError, match="None is no state"):
        env.put_state(None)


def test_handles_for_the_local_environment(env: ParallelEnv) -> None:
    """They may be given wherever a state may."""
    state = env.step(1, dt=4, return_state=True)[0]
    handle = env.put_state(state)
    same(env.step(1, handle), env.step(1, state))
    env.set_state(handle)
    assert env.get_state() == state
    assert [env._batch_env[slot].get_state() for slot in range(env.n_workers)] == [state] * env.n_workers
    handle.free()
    with pytest.raises(FreedHandle, match="freed"):
        env.step(1, handle)


@pytest.mark.parametrize("kind", ["state", "handle"])
def test_fan_out(env: ParallelEnv, kind: str) -> None:
    states = [env.get_state(), env.step(1, dt=4, return_state=True)[0], env.step(1, dt=2, return_state=True)[0]]
    actions = [0, 1] * 6
    expected = env.step_batch(actions, [state for state in states for _ in range(4)])
    given = states if kind == "state" else [env.put_state(state) for state in states]
    same(env.step_batch(actions, given, repeat=4), expected)


def test_rollouts_are_steps(env: ParallelEnv) -> None:
    rng = np.random.default_rng(0)
    states = [env.get_state(), env.step(1, dt=6, return_state=True)[0]]
    sequences = rng.integers(2, size=(6, 25))
    found = env.rollout_batch(states, sequences, repeat=3, return_state=True, observations="all", dt=[1, 2, 1, 1, 1, 2])
    alone = GymPlanEnv(Walk, autoreset=False)
    for item, dt in enumerate([1, 2, 1, 1, 1, 2]):
        alone.set_state(states[item // 3])
        rewards, seen, end = [], [], False
        for action in sequences[item]:
            observation, reward, end, _, _ = alone.step(action, dt=dt)
            rewards.append(reward)
            seen.append(observation)
            if end:
                break
        assert found.lengths[item] == len(rewards)
        assert found.terminated[item] == end
        np.testing.assert_array_equal(found.rewards[item], rewards + [0.0] * (25 - len(rewards)))
        np.testing.assert_array_equal(found.observations[item], seen)
        assert found.states[item] == alone.get_state()
    assert len(found) == 6
    np.testing.assert_allclose(found.returns, found.rewards.sum(1))
    last = env.rollout_batch(states, sequences, repeat=3, return_state="handle", observations="last")
    assert last.observations.shape == (6, 2)
    more = env.rollout_batch(last.states, [[1], [0, 1], [1], [1], [1, 1, 1], [0]])
    assert more.rewards.shape == (6, 3)
    assert more.states is more.observations is None


@pytest.mark.parametrize(
    ("states", "sequences", "options", "text"),
    [
        (1, [], {}, "an empty batch"),
        (1, [[0], [1]], {}, "1 states for 2 actions: item 1"),
        (2, [[0], []], {}, "item 1 has no actions"),
        (0, [[0]], {}, "rollouts begin in states"),
        (1, [[0]], {"observations": "some"}, "observations must be"),
        (1, [[0]], {"dt": 0}, "dt of item 0"),
        (1, [3], {}, "the actions of item 0 must be a sequence, one for each step"),
    ],
)
def test_bad_rollouts(env: ParallelEnv, states: int, sequences: Any, options: Any, text: str) -> None:
    given = [env.get_state()] * states if states else None
    with pytest.raises(UsageError, match=text):
        env.rollout_batch(given, sequences, **options)
    with pytest.raises(KeyError, match="item 1 of 2"):
        env.rollout_batch([env.get_state()] * 2, [[0], [0, 2]])
    assert env.rollout_batch([env.get_state()], [[0]]).lengths.tolist() == [1]


def test_any_number_of_workers_gives_the_same_bytes() -> None:
    results = []
    for workers in (1, 2, 3):
        with ParallelEnv(GymPlanEnv, Walk, n_workers=workers, start_method="forkserver") as env:
            env.seed(9)
            states = [env.reset()[0]]
            states += [env.step(1, return_state=True)[0] for _ in range(4)]
            for _ in range(3):  # the more is known of what items take, the more chunks there are
                steps = env.step_batch([0, 1] * 10, states, repeat=4)
                handles, *_ = env.step_batch([0, 1] * 10, states, repeat=4, return_state="handle")
                played = env.rollout_batch(handles, [[0, 1, 1]] * 20, return_state=True)
            results.append([*steps, [h.fetch() for h in handles], played.rewards, played.states])
    same(results[1], results[0])
    same(results[2], results[0])


class Unsendable:
    def __reduce__(self) -> Any:
        raise ValueError("it stays here")


@pytest.mark.parametrize("action", [2, Unsendable()], ids=["raises", "cannot be sent"])
def test_an_error_that_was_caught_holds_no_handles(action: Any) -> None:
    with ParallelEnv(GymPlanEnv, Walk, n_workers=2) as env:
        handle = env.put_state(env.reset()[0])
        before = env.free_handles
        held = env.step_batch([0, 1], [handle, handle], return_state="handle")[0]
        gc.disable()
        try:
            with contextlib.suppress(TaskRaised, UsageError):
                env.step_batch([0, action], held, return_state="handle")
            del held
            assert env.free_handles == before
        finally:
            gc.enable()
