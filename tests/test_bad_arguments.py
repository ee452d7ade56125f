"""Arguments that make no sense: refused by each face in one line that names them, never from deep inside."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import treadle
from treadle.pool.pool import Pool

NO_COUNT = (-3, 0, 2.5, float("nan"), "2", True, [])
MAKE = partial(treadle.make_vec, "CartPole-v1", worker_options=treadle.WorkerOptions(backend="serial"))
EVALUATE = partial(treadle.evaluate, "CartPole-v1", "random", 2, worker_options=treadle.WorkerOptions(backend="serial"))
STATE = partial(treadle.plan.check_state, "CartPole-v1")
PLAN = partial(treadle.GymPlanEnv, "CartPole-v1")
TASKS = partial(treadle.tasks.GymTaskSampler, "CartPole-v1")


def collected(**given: Any) -> Any:
    return list(
        treadle.collect(
            "CartPole-v1",
            "random",
            **{"episodes": 1, "worker_options": treadle.WorkerOptions(backend="serial")} | given,
        )
    )


@pytest.mark.parametrize(
    ("face", "name"),
    [
        (MAKE, "num_envs"),
        (partial(collected, workers=1), "num_envs"),
        (STATE, "steps"),
        (STATE, "points"),
        (TASKS, "max_steps"),
        (partial(treadle.WorkerFactory, max_episode_length=9), "n_workers"),
        (partial(treadle.VecWorker, seed=0, max_episode_length=9, worker_number=0), "n_envs"),
    ],
)
def test_what_is_no_count_is_refused_by_name(face: Any, name: str) -> None:
    for value in NO_COUNT:
        with pytest.raises(treadle.UsageError, match=f"{name} must be a whole number of at least 1") as refused:
            face(**{name: value})
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize("face", [partial(MAKE, num_envs=2), partial(TASKS), partial(PLAN), EVALUATE])
@pytest.mark.parametrize(
    ("name", "values"),
    [("wrappers", (3, "ab", [3])), ("env_kwargs", (3, "ab", [3]))],
)
def test_what_builds_no_environment_is_refused_by_name(face: Any, name: str, values: Any) -> None:
    for value in values:
        with pytest.raises(treadle.UsageError, match=name):
            face(**{name: value})


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (partial(EVALUATE, reset_options=[]), "reset_options is a function"),
        (partial(collected, reset_options=3), "reset_options is a function"),
        (partial(MAKE, num_envs=2, autoreset_mode="nonsense"), "autoreset_mode"),
        (partial(MAKE, num_envs=2, workers=float("inf")), "workers must be"),
        (partial(treadle.WorkerFactory, max_episode_length="2"), "max_episode_length"),
        (partial(treadle.WorkerFactory, max_episode_length=9, seed=float("nan")), "seed is"),
        (partial(treadle.merge_shards, 3, "out"), "shards is a list"),
        (partial(treadle.replay, 3), "source is a path"),
        (partial(TASKS, sensors=[3]), "sensors is a list"),
        (partial(treadle.rollout, 3, print), "has reset and step, got a int"),
        (partial(MAKE, num_envs=10**30), "num_envs can be"),
        (partial(collected, episodes=10**30), "episodes can be"),
        (partial(treadle.WorkerOptions, preload=3), "preload is a sequence"),
        (partial(treadle.WorkerOptions, preload="numpy"), "preload is a sequence"),
        (partial(EVALUATE, success_key=[]), "success_key is a key"),
        (partial(treadle.evaluate, {"a": "CartPole-v1"}, "random", 2, reset_options=[]), "reset_options is a function"),
        (partial(treadle.compare, 3, 4), "results of treadle.evaluate"),
        (partial(treadle.VectorSampledTasks, make_sampler_fn=print, sampler_fn_args=[{}], mp_ctx=3), "mp_ctx is"),
    ],
)
def test_other_nonsense_is_refused_in_a_line(call: Any, match: str) -> None:
    with pytest.raises(treadle.UsageError, match=match) as refused:
        call()
    assert "\n" not in str(refused.value)


MAKERS: dict[str, Any] = {  # face -> what hands unknown keyword arguments on
    "VectorEnv": partial(treadle.VectorEnv, "CartPole-v1", 2),
    "AsyncVectorEnv": partial(treadle.AsyncVectorEnv, [partial(gym.make, "CartPole-v1")]),
    "VectorSampledTasks": partial(treadle.VectorSampledTasks, treadle.tasks.GymTaskSampler, [{"env": "CartPole-v1"}]),
    "LocalSampler": partial(treadle.LocalSampler, print, "CartPole-v1"),
    "MultiprocessingSampler": partial(treadle.MultiprocessingSampler, print, "CartPole-v1"),
    "RaySampler": partial(treadle.RaySampler, print, "CartPole-v1"),
    "ExternalProcess": partial(treadle.ExternalProcess, print),
    "LeRobotVectorEnv": partial(treadle.lerobot.LeRobotVectorEnv, "CartPole-v1", 2),
    "Pool": partial(Pool, []),
    "collect": partial(treadle.collect, "CartPole-v1"),
    "evaluate": partial(treadle.evaluate, "CartPole-v1", "random"),
    "collect_dataset": partial(treadle.collect_dataset, "CartPole-v1", out="nowhere"),
}


@pytest.mark.parametrize("name", MAKERS)
def test_an_unknown_argument_is_refused_by_the_face_that_was_called(name: str) -> None:
    with pytest.raises(treadle.UsageError, match=rf"^{name}\(\) got an unexpected keyword argument 'foo'$") as refused:
        MAKERS[name](foo=1)
    assert isinstance(refused.value, TypeError)
    place = "" if name == "Pool" else r"worker_options=WorkerOptions\("
    with pytest.raises(treadle.UsageError, match=rf"'start_timout'; did you mean {place}start_timeout=.*\?$"):
        MAKERS[name](start_timout=1)


@pytest.mark.parametrize(
    ("name", "wrong", "right"),
    [
        ("VectorEnv", "worker", "workers"),
        ("AsyncVectorEnv", "max_concurency", "max_concurrency"),
        ("AsyncVectorEnv", "inlin", "inline"),  # which is `VectorEnv`'s
        ("VectorSampledTasks", "max_procesess", "max_processes"),
        ("LocalSampler", "max_episode_lenght", "max_episode_length"),
        ("RaySampler", "clustr", "cluster"),
        ("RaySampler", "n_worker", "n_workers"),
        ("collect", "on_eror", "on_error"),
        ("evaluate", "inferense", "inference"),
        ("collect_dataset", "episode", "episodes"),
    ],
)
def test_the_nearest_name_is_one_of_that_face(name: str, wrong: str, right: str) -> None:
    with pytest.raises(treadle.UsageError, match=rf"^{name}\(\) .* '{wrong}'; did you mean {right}=\?$"):
        MAKERS[name](**{wrong: 1})


def test_a_field_of_an_object_is_named_with_the_object() -> None:
    with pytest.raises(
        treadle.UsageError, match=r"^collect\(\) takes nodes in an object: cluster=Cluster\(nodes=...\)$"
    ):
        collected(nodes=2)
    with pytest.raises(treadle.UsageError, match=r"'batchsize'; did you mean inference=Inference\(batch_size=...\)"):
        EVALUATE(batchsize=2)
    with pytest.raises(
        treadle.UsageError, match=r"^ParallelEnv\(\) takes nodes in an object: cluster=Cluster\(nodes=...\) \(one of"
    ):
        treadle.plan.make("CartPole-v1", 2, nodes=2)
    with pytest.raises(treadle.UsageError, match="unexpected keyword argument 'nodes'"):
        MAKERS["VectorEnv"](nodes=2)  # which takes no cluster


@pytest.mark.parametrize(
    ("face", "wrong", "said"),
    [
        (treadle.WorkerOptions, "start_timout", r"'start_timout'; did you mean start_timeout=\?"),
        (treadle.WorkerOptions, "step_timeout", "'step_timeout': it stands beside worker_options=, not in it"),
        (treadle.Inference, "num_envs", "'num_envs': it stands beside inference=, not in it"),
        (treadle.Cluster, "node", r"'node'; did you mean nodes=\?"),
        (treadle.film, "besst", r"'besst'; did you mean best=\?"),
        (treadle.replay, "polcy", r"'polcy'; did you mean policy=\?"),
        (collected, "max_steps", r"'max_steps'; did you mean max_episode_steps=\?"),
        (collected, "out", "'out': it is an argument of collect_dataset and evaluate"),
        (collected, "success_key", "'success_key': it is an argument of evaluate"),
    ],
)
def test_objects_and_other_functions_say_so_too(face: Any, wrong: str, said: str) -> None:
    with pytest.raises(treadle.UsageError, match=f"{said}$"):
        face(**{wrong: 1})


def test_so_is_one_that_would_go_to_the_environment() -> None:
    with pytest.raises(treadle.UsageError, match=r"^ParallelEnv\(\) .* 'n_worker'; did you mean n_workers=\?"):
        treadle.ParallelEnv(treadle.GymPlanEnv, "CartPole-v1", n_worker=2)
    with pytest.raises(treadle.UsageError, match=r"^make\(\) .* 'n_worker'; did you mean n_workers=\?"):
        treadle.plan.make("CartPole-v1", n_worker=2)


@pytest.mark.parametrize("face", [partial(MAKE, num_envs=2), MAKERS["VectorEnv"], collected, EVALUATE])
def test_no_workers_at_all_is_another_backend(face: Any) -> None:
    with pytest.raises(treadle.UsageError, match=r"workers must be .* got 0: .*backend='serial'\) steps everything"):
        face(workers=0)


class Reset(Exception):
    """It has come to the environment."""


class Untouched(gym.Env[Any, Any]):
    observation_space, action_space = gym.spaces.Discrete(2), gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        raise Reset


def test_a_negative_seed_does_not_come_to_any_environment() -> None:
    with closing(treadle.VectorEnv(Untouched, 3, worker_options=treadle.WorkerOptions(backend="serial"))) as envs:
        for reset in (envs.reset, envs.reset_async, envs.async_reset, partial(envs.reset_at, [1, 2])):
            for seed in (-1, -2, np.int64(-1)):
                with pytest.raises(treadle.UsageError, match=f"^seed must not be negative, got {seed}$"):
                    reset(seed=seed)
        with pytest.raises(treadle.UsageError, match=r"^seed\[1\] must not be negative, got -5$"):
            envs.reset(seed=[0, -5, None])
        with pytest.raises(Reset):
            envs.reset(seed=0)


def test_nor_to_any_task_or_state() -> None:
    arguments = [{"env": "CartPole-v1"}] * 2
    with closing(treadle.SingleProcessVectorSampledTasks(treadle.tasks.GymTaskSampler, arguments)) as tasks:
        with pytest.raises(treadle.UsageError, match="the seed of slot 1 must not be negative, got -1"):
            tasks.set_seeds([4, -1])
        with pytest.raises(treadle.UsageError, match="the seed of slot 0 must not be negative, got -1"):
            tasks.command_at(0, "seed", -1)
    for given in ({"seed": -1}, {"seeds": [3, -1]}):
        with pytest.raises(treadle.UsageError, match="seed must not be negative, got -1"):
            TASKS(**given)
    with pytest.raises(treadle.UsageError, match="seed must not be negative, got -1"):
        PLAN().seed(-1)


@pytest.mark.parametrize("kind", [treadle.LocalSampler, treadle.MultiprocessingSampler, treadle.WorkerFactory])
def test_samplers_refuse_it_as_collecting_does(kind: Any) -> None:
    given = () if kind is treadle.WorkerFactory else (print, "CartPole-v1")
    with pytest.raises(treadle.UsageError, match="seed must not be negative, got -1"):
        kind(*given, max_episode_length=9, seed=-1)
    with pytest.raises(treadle.UsageError, match="seed must not be negative, got -1"):
        collected(seed=-1)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("rollout", {"steps": True}),
        ("rollout", {"steps": 2, "policy": 3}),
        ("reset", {"seed": 2.0}),
        ("reset", {"seed": [None, "x"]}),
        ("reset", {"options": [3, 3]}),
        ("recv", {"max": 2.5}),
        ("recv", {"timeout": "1"}),
        ("get_attr", {"name": []}),
    ],
)
def test_so_are_arguments_of_a_vectors_methods(name: str, given: dict[str, Any]) -> None:
    with closing(MAKE(2)) as envs:
        if name == "recv":
            envs.async_reset(seed=0)  # and never received: closing says so
        else:
            envs.reset(seed=0)
        with pytest.raises(treadle.UsageError, match=r"must be|policy is|a seed is|reset options|is named by"):
            getattr(envs, name)(**given)
