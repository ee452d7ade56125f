"""`ParallelEnv` and its parts: the same bytes on every backend, futures, errors that name the item, deaths."""

import copy
import os
import signal
from typing import Any

import numpy as np
import pytest
from plan_envs import Abacus, Walk, same

from treadle.errors import BrokenPool, ClosedPool, StartupFailed, TaskRaised, UsageError, WorkerDied, WorkerTimeout
from treadle.plan import BatchEnv, ExternalProcess, GymPlanEnv, ParallelEnv, items, make
from treadle.worker.life import State
from treadle.worker.options import WorkerOptions

BACKENDS: list[dict[str, Any]] = [
    {"worker_options": WorkerOptions(backend="serial")},
    {"worker_options": WorkerOptions(backend="thread")},
    {"worker_options": WorkerOptions(start_method="forkserver")},
    {"worker_options": WorkerOptions(start_method="fork"), "blocking": True},
]


def walks(n: int = 2, **kwargs: Any) -> ParallelEnv:
    return ParallelEnv(GymPlanEnv, Walk, n_workers=n, **kwargs)


@pytest.fixture(params=BACKENDS, ids=lambda setup: "-".join(map(str, setup.values())))
def env(request: pytest.FixtureRequest) -> Any:
    with walks(**request.param) as made:
        yield made


def scene(env: Any) -> tuple[list[Any], list[int], list[int]]:
    """Nine states along an episode, actions and dts for them; the same ones always."""
    env.seed(5)
    states = [env.reset()[0]]
    for i in range(8):
        states.append(env.step(i % 2, return_state=True)[0])
    return states, [0, 1, 1, 0, 1, 0, 1, 1, 0], [1, 2, 3, 1, 9, 20, 1, 2, 3]


def test_with_states_the_result_is_that_of_a_plain_loop(env: ParallelEnv) -> None:
    states, actions, dts = scene(env)
    alone = GymPlanEnv(Walk)
    expected = alone.step_batch(actions, states, dts, return_state=None)
    for _ in range(3):
        found = env.step_batch(actions, states, dts)
        assert [type(column) for column in found] == [list] * 6
        same(found, expected)
    same(env.step_batch(actions, states, np.array(dts), return_state=False), expected[1:])
    assert found[5][4]["dt"] == 9
    assert found[5][5]["n_step"] <= 20


def test_without_states_items_go_on_from_one_another(env: ParallelEnv) -> None:
    """Six items on four workers are three runs of two, dealt to the first three."""
    states, _, _ = scene(env)
    env.set_state(states[0])
    found = env.step_batch([0, 1, 0])
    assert [info["t"] for info in found[-1]] == [1, 2, 1], "two workers: items 0 and 1, then item 2"
    assert len(found) == 5
    assert [info["t"] for info in env.step_batch([0, 0], return_state=True)[-1]] == [3, 2]
    env.sync_states(states[3])
    assert [info["t"] for info in env.step_batch([0, 0], [None, None])[-1]] == [4, 4]


def test_only_resets_and_states_reach_the_workers(env: ParallelEnv) -> None:
    env.seed(1)
    env.reset()
    env.step(1)
    assert env.step_batch([0])[-1][0]["t"] == 1
    env.reset()
    assert env.step_batch([0])[-1][0]["t"] == 1


def test_an_environment_that_raises_names_the_item_and_stays(env: ParallelEnv) -> None:
    states, actions, _ = scene(env)
    actions[3] = actions[7] = 2
    with pytest.raises(TaskRaised, match=r"item 3 of 9: slot \d .*KeyError: 'two'") as caught:
        env.step_batch(actions, states)
    assert isinstance(caught.value, KeyError)
    assert caught.value.item == 3
    assert caught.value.where.slot in (0, 1)
    with pytest.raises(KeyError, match="item 1 of 2"):
        env.step_batch([0, 2])
    assert len(env.step_batch([1] * 9, states)[0]) == 9


def test_attributes_fail_like_attributes(env: ParallelEnv) -> None:
    process = env._batch_env[0]
    assert isinstance(process, ExternalProcess)
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        process.nothing_of_the_kind  # noqa: B018
    assert not hasattr(process, "__array__")
    with pytest.raises(AttributeError):
        env.nothing_of_the_kind  # noqa: B018
    assert process.action_space == env.action_space
    assert process.name == "Walk"
    assert isinstance(process.sample_action(), int | np.integer)
    assert env._batch_env.observation_space == env.observation_space
    assert len(env.step_batch([0])) == 5


def test_futures_are_bound_to_their_request(env: ParallelEnv) -> None:
    states, _, _ = scene(env)
    process = env._batch_env[1]
    process.set_state(states[0], blocking=False)
    futures = [process.step(0, states[i], blocking=False) for i in range(4)]
    late = process.call("get_state")
    assert process.step(0, states[7])[-1]["t"] == 8, "what is asked at once is not the answer to what waits"
    assert [p()[-1]["t"] for p in reversed(futures)] == [4, 3, 2, 1]
    assert futures[2].result(1.0) is futures[2]()
    assert late() == futures[3]()[0]
    failing = process.step(2, blocking=False)
    after = process.reset(blocking=False)
    assert len(after()) == 2
    assert isinstance(failing.exception(), KeyError)
    with pytest.raises(KeyError):
        failing()
    assert failing.done()
    many = [process.step(0, states[i % 9], blocking=False) for i in range(40)]
    assert [p()[-1]["t"] for p in reversed(many)] == [i % 9 + 1 for i in reversed(range(40))]


def test_batches_of_processes(env: ParallelEnv) -> None:
    states, obs, infos = env._batch_env.reset()
    assert states.shape == (2,)
    assert obs.shape == (2, 2)
    assert infos.dtype == object
    obs, infos = env._batch_env.reset(indices=[1], return_states=False)
    assert obs.shape == (1, 2)
    with pytest.raises(UsageError, match="at least one index"):
        env._batch_env.reset(indices=[])
    with pytest.raises(IndexError, match="process 2 cannot be reset: there are 2"):
        env._batch_env.reset(indices=[0, 2])
    external = env._batch_env[0].step_batch([0, 1], dt=2, blocking=False)()
    assert [info["t"] for info in external[-1]] == [2, 4]
    assert len(env._batch_env) == 2


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"actions": []}, "an empty batch"),
        ({"actions": [0, 1], "states": 1}, "1 states for 2 actions"),
        ({"actions": [0, 1, 1], "states": 2, "repeat": 2}, "2 states x repeat=2 for 3 actions"),
        ({"actions": [0], "dt": 0}, "dt of item 0 must be at least 1"),
        ({"actions": [0], "repeat": 2}, "it needs states"),
    ],
)
def test_bad_batches_are_refused_and_nothing_is_sent(env: ParallelEnv, arguments: dict[str, Any], text: str) -> None:
    state, _, _ = env.reset()
    if "states" in arguments:
        arguments = {**arguments, "states": [state] * arguments["states"]}
    with pytest.raises(UsageError, match=text):
        env.step_batch(**arguments)
    with pytest.raises(TaskRaised, match=r"item 1 of 2: .*StateError: this is a state of .*CartPole"):
        env.step_batch([0, 0], [state, make("CartPole-v1").get_state()])
    assert len(env.step_batch([0, 1], [state, state])) == 6


def test_an_environment_of_ones_own() -> None:
    with ParallelEnv(
        Abacus, "abacus", n_workers=2, worker_options=WorkerOptions(backend="serial"), autoreset=False
    ) as env:
        env.reset()
        state = env.get_state()
        _, observations, rewards, ends, _, _ = env.step_batch([1, 2, 2], [state] * 3, dt=[1, 2, 9])
        assert rewards == [1.0, 4.0, 10.0]
        assert ends == [False, False, True]
        np.testing.assert_array_equal(observations[2], [5, 10])
        assert env.plan_env.autoreset is env._batch_env[0].autoreset is False
        assert env.STATE_IS_ARRAY is True
        env.step(1)
        np.testing.assert_array_equal(env.get_image(), np.full((2, 2, 3), 1))


def test_spawn_and_lambdas() -> None:
    with ExternalProcess(
        lambda: GymPlanEnv(Walk, frameskip=2), worker_options=WorkerOptions(start_method="spawn")
    ) as process:
        state, _, _ = process.reset(return_states=True)
        assert process.step(0, state)[-1]["n_step"] == 2
        assert process.frameskip == 2


def test_processes_of_their_own_make_a_batch() -> None:
    envs = [
        ExternalProcess(lambda: GymPlanEnv("CartPole-v1"), worker_options=WorkerOptions(backend="thread"))
        for _ in range(2)
    ]
    other = ExternalProcess(lambda: GymPlanEnv("Pendulum-v1"), worker_options=WorkerOptions(backend="serial"))
    try:
        batch = BatchEnv(envs, blocking=False)
        states, _, _ = batch.reset()
        assert len(batch.make_transitions([0] * 5, [states[0]] * 5)) == 6
        assert len(batch.make_transitions([0] * 5)[0]) == 5
        with pytest.raises(ValueError, match="process 1 has the observation_space"):
            BatchEnv([envs[0], other], blocking=False)
        with pytest.raises(UsageError, match="at least one process"):
            BatchEnv([], blocking=True)
    finally:
        for each in (*envs, other):
            each.close()


def test_what_cannot_start() -> None:
    with pytest.raises(UsageError, match="n_workers must be at least 1, got 0"):
        make("CartPole-v1", n_workers=0)
    with pytest.raises(UsageError, match=r"n_workers must be a positive integer, got 1\.5"):
        make("CartPole-v1", n_workers=1.5)
    for option in ("store_bytes", "state_bytes"):
        with pytest.raises(UsageError, match=f"{option}= is gone: batches take states"):
            walks(**{option: 4096})
    with walks(1, worker_options=WorkerOptions(backend="serial")) as env:
        with pytest.raises(AttributeError, match="put_state is gone: batches take states"):
            env.put_state(env.get_state())
        with pytest.raises(AttributeError, match="snapshot is gone: get_states and set_states"):
            env.snapshot("path")

    def bad() -> Any:
        raise OSError("no such thing")

    with pytest.raises(StartupFailed, match="no such thing"):
        ExternalProcess(bad)


def test_setup_waits_and_begins_anew() -> None:
    env = ParallelEnv(GymPlanEnv, Walk, n_workers=1, worker_options=WorkerOptions(backend="serial"), delay_setup=True)
    with pytest.raises(UsageError, match="not set up yet"):
        env.get_state()
    assert copy.copy(env).n_workers == 1
    env.reset()
    first = env._workers
    env.setup()
    assert first.pool.closed
    assert len(env.reset()) == 3
    with pytest.raises(TypeError, match="use clone"):
        copy.copy(env)
    clone = env.clone(n_workers=2)
    assert (clone.n_workers, clone.delay_setup, clone.plan_env) == (2, True, None)
    env.close()
    env.close()
    uses = [env.reset, env.get_state, lambda: env.set_state(1), lambda: env.step(0), lambda: env.step_batch([0])]
    for use in [*uses, lambda: env.rollout_batch([1], [[0]]), env.sync_states]:
        with pytest.raises(ClosedPool, match="closed: setup"):
            use()
    assert env._workers is None, "no use starts workers"
    env.setup()
    assert len(env.step_batch([0])) == 5
    env.close()


def test_a_death_is_told_with_its_slot() -> None:
    with walks() as env:
        state, _, _ = env.reset()
        with pytest.raises(WorkerDied, match="exited with code 7") as caught:
            env.step_batch([0, 3, 0, 0], [state] * 4)
        assert caught.value.where.slot in (0, 1)
        with pytest.raises(BrokenPool):
            env.step_batch([0], [state])


def test_a_death_is_told_when_all_other_answers_have_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many chunks have yet to be sent: those that wait stay unsent."""
    monkeypatch.setattr(items, "LEAST_SECONDS", 1e-9)
    monkeypatch.setattr(items, "CHUNK_SECONDS", 1e-9)
    with walks() as env:
        state, _, _ = env.reset()
        env.step_batch([0] * 32, [state] * 32)  # from now on there are eight chunks a slot
        with pytest.raises(WorkerDied, match="exited with code 7") as caught:
            env.step_batch([3] + [0] * 31, [state] * 32)
        assert not isinstance(caught.value, BrokenPool)
        assert not env._workers._calls


@pytest.mark.parametrize("policy", ["restart", "drop"])
def test_batches_with_states_survive_a_death(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The chunk of the worker that was killed goes to another one: the result is that of a pool without deaths."""
    monkeypatch.setattr(items, "LEAST_SECONDS", 1e-9)  # every slot has a chunk, however little there is to do
    with walks(on_failure=policy, worker_options=WorkerOptions(start_method="forkserver")) as env:
        states, actions, dts = scene(env)
        expected = env.step_batch(actions, states, dts)
        future = env._batch_env[1].call("step", 3)
        same(env.step_batch(actions, states, dts), expected)
        with pytest.raises(WorkerDied):
            future()
        same(env.step_batch(actions, states, dts), expected)


def test_batches_with_states_do_without_a_worker_that_missed_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others do its share, before it is dropped and after."""
    monkeypatch.setattr(items, "LEAST_SECONDS", 1e-9)
    with walks(on_failure="drop", step_timeout=2.0) as env:
        states, actions, dts = scene(env)
        expected = env.step_batch(actions, states, dts)
        os.kill(env._workers.by_slot[0].pid, signal.SIGSTOP)
        same(env.step_batch(actions, states, dts), expected)
        while env._workers.by_slot[0].state is not State.GONE:  # it is killed, and seen to be dead, soon
            same(env.step_batch(actions, states, dts), expected)
        assert env._workers.by_slot[1].state is not State.GONE


@pytest.mark.parametrize(
    ("n", "slots", "seconds", "sizes"),
    [
        (5, 2, None, [1, 1, 1, 2]),  # nothing is known yet: two a slot
        (64, 2, 1e-6, [64]),  # too little to be worth a second worker
        (64, 2, 15e-6, [32, 32]),
        (64, 16, 25e-6, [16] * 4),  # some of many
        (64, 2, 1e-3, [10, 11, 11] * 2),  # as many as take ten milliseconds each
        (3, 4, 1.0, [1, 1, 1]),
    ],
)
def test_how_a_batch_is_cut(n: int, slots: int, seconds: float | None, sizes: list[int]) -> None:
    chunks = items.balanced_chunks(n, slots, seconds)
    assert [hi - lo for lo, hi in chunks] == sizes
    assert [lo for lo, _ in chunks] + [n] == [0] + [hi for _, hi in chunks]


def test_names_of_arguments_are_the_environments_own() -> None:
    """Also those that something on the way has, too."""
    with ExternalProcess(Named) as process:
        assert process.call("told", name=1, slot=2, then=3)() == (1, 2, 3)
        assert process.told(name=1, slot=2, then=3) == (1, 2, 3)


class Named(Abacus):
    def __init__(self) -> None:
        super().__init__("named")

    def told(self, name: int, slot: int, then: int) -> tuple[int, int, int]:
        return name, slot, then


def test_a_batch_without_states_does_not_go_on_after_a_death() -> None:
    with walks(on_failure="restart") as env:
        state, _, _ = env.reset()
        with pytest.raises(WorkerDied):
            env.step_batch([0, 3])
        assert len(env.step_batch([0, 1], [state] * 2)[0]) == 2
        env.set_state(state)
        assert [info["t"] for info in env.step_batch([0, 0])[-1]] == [1, 1]


def test_a_missed_deadline_is_told() -> None:
    with walks(n=1, step_timeout=2.0, on_failure="restart") as env:
        state, _, _ = env.reset()
        with pytest.raises(WorkerTimeout):
            env._batch_env[0].step(4)
        assert len(env.step_batch([0], [state])[0]) == 1


@pytest.mark.timeout(60)
def test_a_missed_deadline_of_a_batch_is_told_where_no_other_worker_is_to_do_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With on_failure="raise" its chunk goes to nobody else, and the worker goes on when it has answered."""
    monkeypatch.setattr(items, "LEAST_SECONDS", 1e-9)
    with walks(step_timeout=2.0) as env:
        state, _, _ = env.reset()
        expected = env.step_batch([0, 1], [state] * 2)
        with pytest.raises(WorkerTimeout):
            env.step_batch([0, 4], [state] * 2)
        same(env.step_batch([0, 1], [state] * 2), expected)


def test_closing_fails_what_waits() -> None:
    process = ExternalProcess(lambda: GymPlanEnv(Walk))
    waiting = process.step(4, blocking=False)
    process._workers.close(0.0)
    with pytest.raises(ClosedPool):
        waiting()
    with pytest.raises(ClosedPool):
        process.reset()


@pytest.mark.parametrize("name", ["n_worker", "workers", "max_restart", "start_metod"])
def test_an_argument_that_is_nearly_one_of_ours_starts_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.plan.parallel.Workers", None)
    for env in (lambda **more: walks(**more), lambda **more: make(Walk, **more)):
        with pytest.raises(UsageError, match=rf"unexpected keyword argument '{name}'; did you mean"):
            env(**{name: 2})


def test_an_argument_of_the_environments_own_is_its() -> None:
    with walks(worker_options=WorkerOptions(backend="serial"), env_kwargs={"n_worker": 3}, delay_setup=True) as env:
        assert env.clone()._env_kwargs == {"env_kwargs": {"n_worker": 3}}

    class Own(GymPlanEnv):
        def __init__(self, *args: Any, n_worker: int = 0, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.n_worker = n_worker

    with ParallelEnv(Own, Walk, n_workers=1, worker_options=WorkerOptions(backend="serial"), n_worker=5) as env:  # type: ignore[arg-type]
        assert env.plan_env.n_worker == 5
    with pytest.raises(UsageError, match="worker_options= goes with n_workers="):
        make(Walk, worker_options=WorkerOptions(backend="thread"))
