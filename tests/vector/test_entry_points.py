"""`register_all`: Gymnasium's own `make_vec` makes our vectors, until `unregister_all`."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import treadle
from treadle.errors import UsageError
from treadle.vector.gymnasium import VectorEnv


def entry_points(of: Any = None) -> dict[str, Any]:
    """Of all ids; or of those that are in `of`: a hint to a name that is nearly right imports packages with more."""
    return {name: spec.vector_entry_point for name, spec in gym.registry.items() if of is None or name in of}


@pytest.fixture(autouse=True)
def _given_back() -> Iterator[None]:
    before = entry_points()
    yield
    treadle.unregister_all()
    assert entry_points(before) == before


def test_gymnasiums_make_vec_makes_ours() -> None:
    assert treadle.register_all(["CartPole-v1"]) == ["CartPole-v1"]
    envs = gym.make_vec(
        "CartPole-v1", num_envs=3, vectorization_mode="vector_entry_point", workers=1, inline=2, max_episode_steps=5
    )
    try:
        assert isinstance(envs, VectorEnv)
        assert envs.spec is not None
        assert envs.spec.id == "CartPole-v1"
        assert gym.envs.registration.EnvSpec.from_json(envs.spec.to_json()).id == "CartPole-v1"
        assert envs.call("spec")[0].to_json()
        envs.reset(seed=0)
        for _ in range(5):
            truncated = envs.step(np.ones(3, np.int64))[3]
        assert truncated.tolist() == [True] * 3
    finally:
        envs.close()
    by_default = gym.make_vec("CartPole-v1", num_envs=2, worker_options=treadle.WorkerOptions(backend="serial"))
    assert isinstance(by_default, VectorEnv)
    by_default.close()


def test_twice_is_as_good_as_once_and_it_is_undone() -> None:
    before = entry_points()
    every = treadle.register_all()
    assert {"CartPole-v1", "Acrobot-v1", "Pendulum-v1"} <= set(every)
    once = entry_points()
    assert treadle.register_all() == every
    assert treadle.register_all("CartPole-v1") == every
    assert entry_points() == once
    assert {name for name in before if once[name] != before[name]} == set(every)
    treadle.unregister_all()
    assert entry_points() == before
    treadle.unregister_all()
    with pytest.raises(gym.error.Error, match="doesn't have a vector entry point"):
        gym.make_vec("Acrobot-v1", vectorization_mode="vector_entry_point")


@pytest.mark.parametrize("carried", [copy.deepcopy, lambda spec: pickle.loads(pickle.dumps(spec))])
def test_what_was_there_goes_along_with_the_spec(carried: Any) -> None:
    theirs = gym.spec("CartPole-v1").vector_entry_point
    treadle.register_all(["CartPole-v1"])
    entry = carried(gym.spec("CartPole-v1")).vector_entry_point
    assert entry == "treadle.vector.make_vec:CartPole-v1"
    assert entry.theirs == theirs


def test_unknown_ids_are_refused_and_nothing_is_changed() -> None:
    before = entry_points()
    with pytest.raises(UsageError, match="environment 'CartPoll-v1' is unknown; did you mean CartPole-v1"):
        treadle.register_all(["Acrobot-v1", "CartPoll-v1"])
    assert entry_points(before) == before


def test_importing_registers_nothing() -> None:
    script = (
        "import gymnasium, treadle, treadle.vector.make_vec\n"
        "print(any('treadle' in str(spec.vector_entry_point) for spec in gymnasium.registry.values()))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
