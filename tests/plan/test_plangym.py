"""plangym's own tests and its own environments, on our `ParallelEnv`; and each of its bugs, not rebuilt.

The tests of `plangym.api_tests` run as they are: only the classes that they ask `isinstance` about are ours. What
`tests/vectorization/test_parallel.py` of plangym asserts is written out below in words of our own.
"""

from __future__ import annotations

import copy
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plan_envs import Walk, same

from conftest import require
from treadle.errors import TaskRaised, UsageError
from treadle.plan import BatchEnv, ExternalProcess, GymPlanEnv, ParallelEnv, PlanEnv, make
from treadle.plan.parallel import VectorizedEnv
from treadle.worker.options import WorkerOptions

pytestmark = [pytest.mark.timeout(240)]

# -- plangym's tests ---------------------------------------------------------------------------------------------------


def cartpole(**options: Any) -> ParallelEnv:
    return ParallelEnv(GymPlanEnv, "CartPole-v1", n_workers=2, render_mode="rgb_array", array_state=True, **options)


def pacman(**options: Any) -> ParallelEnv:
    return ParallelEnv(GymPlanEnv, "ALE/MsPacman-v5", n_workers=2, obs_type="ram", **options)


def theirs_cartpole(**options: Any) -> ParallelEnv:
    from plangym.control.classic_control import ClassicControl

    return ParallelEnv(ClassicControl, "CartPole-v1", n_workers=2, **options)


def theirs_pacman(**options: Any) -> ParallelEnv:
    from plangym.videogames.atari import AtariEnv

    return ParallelEnv(AtariEnv, "ALE/MsPacman-v5", n_workers=2, obs_type="ram", **options)


SETUPS = [
    (cartpole, {"worker_options": WorkerOptions(start_method="forkserver"), "blocking": True}),
    (cartpole, {"worker_options": WorkerOptions(start_method="fork"), "blocking": False}),
    (pacman, {"worker_options": WorkerOptions(start_method="spawn"), "blocking": False}),
    (pacman, {"worker_options": WorkerOptions(start_method="forkserver"), "blocking": True}),
    (theirs_cartpole, {"worker_options": WorkerOptions(start_method="forkserver"), "blocking": False}),
    (theirs_cartpole, {"worker_options": WorkerOptions(start_method="fork"), "blocking": True}),
    (theirs_pacman, {"worker_options": WorkerOptions(start_method="spawn"), "blocking": True}),
    (theirs_pacman, {"worker_options": WorkerOptions(start_method="forkserver"), "blocking": False}),
]
NAMES = [f"{made.__name__}-{'-'.join(map(str, options.values()))}" for made, options in SETUPS]


def api_tests() -> Any:
    """The module, asking about our classes."""
    os.environ["SKIP_RENDER"] = "1"  # no display here; pictures have tests of their own
    module = require("plangym.api_tests")
    module.PlanEnv = (module.PlanEnv, PlanEnv)
    module.VectorizedEnv = (module.VectorizedEnv, VectorizedEnv)
    return module


def all_tests(module: Any) -> list[tuple[Any, str, list[dict[str, Any]]]]:
    """Every test of the two classes, with every combination of its parameters."""
    found = []
    for cls in (module.TestPlanEnv, module.TestPlangymEnv):
        for name in sorted(vars(cls)):
            if not name.startswith("test_"):
                continue
            cases: list[dict[str, Any]] = [{}]
            for mark in getattr(getattr(cls, name), "pytestmark", []):
                if mark.name == "parametrize":
                    key, values = mark.args
                    cases = [{**case, key: value} for case in cases for value in values]
            found.append((cls, name, cases))
    return found


@pytest.mark.heavy
@pytest.mark.parametrize(("made", "options"), SETUPS, ids=NAMES)
def test_plangyms_api_tests(made: Any, options: dict[str, Any]) -> None:
    module = api_tests()
    require("ale_py")
    ran = 0
    with made(**options) as env:
        for cls, name, cases in all_tests(module):
            function = getattr(cls(), name)
            takes = function.__func__.__code__.co_varnames[: function.__func__.__code__.co_argcount]
            for case in cases:
                extra = {key: value for key, value in (("batch_size", 10), ("display", None)) if key in takes}
                try:
                    function(env, **extra, **case)
                except pytest.skip.Exception:
                    continue
                ran += 1
    assert ran >= 45  # of 55 or so: some need a display


@pytest.mark.heavy
@pytest.mark.parametrize(("made", "options"), SETUPS, ids=NAMES)
def test_what_plangyms_own_tests_of_its_parallel_environment_assert(made: Any, options: dict[str, Any]) -> None:
    require("plangym")
    with made(**options) as env:
        batch = env._batch_env
        assert isinstance(batch, BatchEnv)
        assert len(batch) == 2
        assert batch.observation_space is not None
        process = batch[0]
        assert isinstance(process, ExternalProcess)
        obs, _ = batch.reset(return_states=False)
        assert isinstance(obs, np.ndarray)
        states, _, _ = batch.reset(return_states=True, indices=np.arange(len(batch._envs)))
        assert isinstance(states, np.ndarray) or not env.STATE_IS_ARRAY
        for blocking in (True, False):

            def now(value: Any, blocking: bool = blocking) -> Any:
                return value if blocking else value()

            obs, *_ = now(process.reset(return_states=False, blocking=blocking))
            assert isinstance(obs, np.ndarray)
            state, obs, _ = now(process.reset(return_states=True, blocking=blocking))
            assert isinstance(state, np.ndarray) or not env.STATE_IS_ARRAY
            now(process.set_state(state, blocking=blocking))
            action = env.sample_action()
            assert isinstance(now(process.step(action, dt=2, blocking=blocking)), tuple)
            state, *data = now(process.step(action, state, blocking=blocking))
            assert len(data) == 5
        assert process.action_space.sample() is not None
        assert process.unwrapped is not None


@pytest.mark.heavy
@pytest.mark.parametrize("made", [theirs_cartpole, theirs_pacman])
def test_rollouts_of_their_environments(made: Any) -> None:
    require("plangym")
    require("ale_py")
    with made(worker_options=WorkerOptions(backend="serial")) as env:
        state, _, _ = env.reset()
        states, *_ = env.step_batch([i % 2 for i in range(6)], [state] * 6)
        assert env.rollout_batch(states, [[0, 1, 0]] * 6).lengths.tolist() == [3] * 6


# -- their bugs --------------------------------------------------------------------------------------------------------


def test_bug_an_exception_keeps_its_type_and_the_workers_live() -> None:
    with ParallelEnv(GymPlanEnv, Walk, n_workers=2) as env:
        state, _, _ = env.reset()
        pids = [env._workers.by_slot[slot].pid for slot in (0, 1)]
        with pytest.raises(KeyError) as caught:
            env.step_batch([0, 2, 0, 2], [state] * 4)
        assert isinstance(caught.value, TaskRaised)
        with pytest.raises(AttributeError):
            env._batch_env[1].no_such_thing  # noqa: B018
        found = env.step_batch([0, 1, 0, 1], [state] * 4, dt=[1, 2, 3, 4])
        assert [info["n_step"] for info in found[-1]] == [1, 2, 3, 4], "no answer of the failed batch is left"
        assert [env._workers.by_slot[slot].pid for slot in (0, 1)] == pids


def test_bug_workers_end_with_their_caller() -> None:
    script = (
        "import os, sys\n"
        "from treadle.plan import make\n"
        "env = make('CartPole-v1', n_workers=2)\n"
        "print(*[env._workers.by_slot[s].pid for s in (0, 1)], flush=True)\n"
        "sys.stdin.read()\n"
    )
    import subprocess
    import sys
    import time

    with subprocess.Popen([sys.executable, "-c", script], stdin=-1, stdout=-1, text=True) as caller:
        assert caller.stdout is not None
        pids = [int(pid) for pid in caller.stdout.readline().split()]
        assert len(pids) == 2
        os.kill(caller.pid, signal.SIGKILL)
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline, "workers outlive their caller"
        time.sleep(0.002)


def test_bug_any_start_method_takes_lambdas() -> None:
    local = 2
    with ExternalProcess(
        lambda: GymPlanEnv("CartPole-v1", frameskip=local), worker_options=WorkerOptions(start_method="spawn")
    ) as process:
        process.reset()
        assert process.step(0)[-1]["n_step"] == 2


def test_bug_arguments_are_not_ignored() -> None:
    with make(
        "CartPole-v1",
        n_workers=1,
        autoreset=False,
        worker_options=WorkerOptions(backend="serial"),
        env_kwargs={"max_episode_steps": 2},
    ) as env:
        env.reset()
        assert env.plan_env.autoreset is env._batch_env[0].autoreset is False
        found = env.step_batch([0], dt=5, return_state=True)
        assert (found[4], found[5][0]["n_step"]) == ([True], 2)
        assert env._batch_env[0].get_state() == found[0][0], "nothing was reset"
        assert env.clone(delay_setup=True).autoreset is False
        assert env.plan_env.clone(obs_type="coords").obs_type == "coords"


def test_bug_clone_seeds_sticky_actions_repeat_from_a_state() -> None:
    require("ale_py")
    with make("ALE/Boxing-v5", n_workers=2, obs_type="ram", repeat_action_probability=0.5) as env:
        env.seed(0)
        state, _, _ = env.reset()
        actions = [i % 18 for i in range(12)]
        same(env.step_batch(actions, [state] * 12, dt=3), env.step_batch(actions, [state] * 12, dt=3))
    with make("ALE/Boxing-v5", obs_type="ram", repeat_action_probability=0.5, randomness=False) as env:
        state, _, _ = env.reset()
        seen = set()
        for _ in range(12):
            env.step(2, state, dt=3)
            seen.add(b"".join(env.step(action, dt=3)[0].tobytes() for action in (5, 3, 4, 2)))
        assert len(seen) > 1, "with randomness=False what follows a state is random"


def test_bug_arrays_travel_out_of_band_and_results_are_lists() -> None:
    with make("CartPole-v1", n_workers=1) as env:
        state, _, _ = env.reset()
        _, observations, rewards, *_ = env.step_batch([0] * 500, [state] * 500)
        arrays = {id(observation.base) for observation in observations}
        assert len(arrays) <= 8, "one array for each chunk, not five hundred pickles"
        assert type(observations) is type(rewards) is list


def test_other_surprises() -> None:
    """Zero steps, no items, no workers, futures out of order, copies: errors, or what they should be."""
    with make("CartPole-v1", n_workers=1, worker_options=WorkerOptions(backend="serial")) as env:
        state, _, _ = env.reset()
        for arguments, text in (
            (([], []), "empty batch"),
            (([0], [state], 0), "dt of item 0"),
            (([0, 0], [None, state]), "item 0 has no state"),
        ):
            with pytest.raises(UsageError, match=text):
                env.step_batch(*arguments)
        with pytest.raises(TypeError, match="clone"):
            copy.copy(env)
        first, second = env._batch_env[0].call("step", 0, dt=1), env._batch_env[0].call("step", 0, dt=2)
        assert (second()[-1]["dt"], first()[-1]["dt"]) == (2, 1)
        assert len(env.step_batch([0], [state])) == 6
    with pytest.raises(UsageError, match="n_workers"):
        make("CartPole-v1", n_workers=0)


def test_bug_classic_control_keeps_what_was_left_out() -> None:
    """CartPole's steps_beyond_terminated and generator are part of its state."""
    env = make("CartPole-v1", autoreset=False)
    env.seed(1)
    env.reset()
    while not env.step(1)[2]:
        pass
    over = env.get_state()
    assert env.gym_env.unwrapped.steps_beyond_terminated is not None
    env.reset()
    env.set_state(over)
    assert env.gym_env.unwrapped.steps_beyond_terminated is not None
    first = env.reset()[1]
    env.set_state(over)
    np.testing.assert_array_equal(env.reset()[1], first)
