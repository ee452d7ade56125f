"""Arguments that make no sense: refused by each face in one line that names them, never from deep inside."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import Any

import pytest

import treadle

NO_COUNT = (-3, 0, 2.5, float("nan"), "2", True, [])
MAKE = partial(treadle.make_vec, "CartPole-v1", backend="serial")
EVALUATE = partial(treadle.evaluate, "CartPole-v1", "random", 2, backend="serial")
STATE = partial(treadle.check_state, "CartPole-v1")
PLAN = partial(treadle.GymPlanEnv, "CartPole-v1")
TASKS = partial(treadle.GymTaskSampler, "CartPole-v1")


def collected(**given: Any) -> Any:
    return list(treadle.collect("CartPole-v1", "random", **{"episodes": 1, "backend": "serial"} | given))


@pytest.mark.parametrize(
    ("face", "name"),
    [
        (MAKE, "num_envs"),
        (partial(MAKE, num_envs=2), "blocks"),
        (EVALUATE, "keep_built"),
        (collected, "envs_per_worker"),
        (collected, "max_deaths"),
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
    ("name", "values"), [("wrappers", (3, "ab", [3])), ("imports", (3, "ab", [3], None)), ("kwargs", (3, "ab", [3]))]
)
def test_what_builds_no_environment_is_refused_by_name(face: Any, name: str, values: Any) -> None:
    own = "env_kwargs" if name == "kwargs" and face.func in (treadle.evaluate, treadle.GymPlanEnv) else name
    for value in values:
        with pytest.raises(treadle.UsageError, match=name):
            face(**{own: value})


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (partial(EVALUATE, reset_options=[]), "reset_options is a function"),
        (partial(collected, reset_options=3), "reset_options is a function"),
        (partial(collected, max_buffered="2"), "max_buffered must be"),
        (partial(MAKE, num_envs=2, autoreset_mode="nonsense"), "autoreset_mode"),
        (partial(MAKE, num_envs=2, workers=float("inf")), "workers must be"),
        (partial(treadle.OwnedVectors, 3), "OwnedVectors takes an id"),
        (partial(treadle.WorkerFactory, max_episode_length="2"), "max_episode_length"),
        (partial(treadle.WorkerFactory, max_episode_length=9, seed=float("nan")), "seed is"),
        (partial(treadle.merge_shards, 3, "out"), "shards is a list"),
        (partial(treadle.replay, 3), "source is a path"),
        (partial(TASKS, sensors=[3]), "sensors is a list"),
        (partial(treadle.rollout, 3, print), "made already"),
        (partial(MAKE, num_envs=2, blocks=10**30), "blocks can be"),
        (partial(MAKE, num_envs=10**30), "num_envs can be"),
        (partial(collected, episodes=10**30), "episodes can be"),
        (partial(MAKE, num_envs=2, preload=3), "preload is a sequence"),
        (partial(MAKE, num_envs=2, preload="numpy"), "preload is a sequence"),
        (partial(EVALUATE, watch=3), "watch is a function"),
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
