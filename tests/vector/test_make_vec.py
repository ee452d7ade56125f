"""`make_vec` and the entry point for Gymnasium's own `make_vec`."""

import re
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import wrappers
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.vector import AutoresetMode
from small_envs import Counter

from conftest import require
from treadle.errors import StartupFailed, UsageError
from treadle.vector.gymnasium import VectorEnv
from treadle.vector.make_vec import make_vec, vector_entry_point
from treadle.worker.options import WorkerOptions


def test_from_an_id() -> None:
    vector = make_vec(
        "CartPole-v1", 3, worker_options=WorkerOptions(backend="serial"), render_mode="rgb_array", max_episode_steps=4
    )
    assert isinstance(vector, VectorEnv)
    assert repr(vector) == "VectorEnv(CartPole-v1, num_envs=3)"
    assert vector.render_mode == "rgb_array"
    vector.reset(seed=0)
    for _ in range(4):
        truncations = vector.step([0, 1, 0])[3]
    assert truncations.tolist() == [True] * 3
    vector.close()


def test_from_a_callable_a_spec_and_wrappers() -> None:
    vector = make_vec(Counter, 2, worker_options=WorkerOptions(backend="serial"), length=1, autoreset_mode="SameStep")
    vector.reset()
    assert vector.step([0, 0])[2].tolist() == [True, True]
    vector.close()
    vector = make_vec(
        gym.spec("CartPole-v1"),
        2,
        worker_options=WorkerOptions(backend="serial"),
        wrappers=[wrappers.TimeAwareObservation],
    )
    assert vector.single_observation_space.shape == (5,)
    vector.close()


def test_defaults() -> None:
    vector = make_vec("CartPole-v1")
    assert vector.num_envs == 1
    assert vector.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    assert vector.reset(seed=0)[0].shape == (1, 4)
    vector.close()


def test_names_that_both_sides_have() -> None:
    class Copying(Counter):
        def __init__(self, infos: str) -> None:
            super().__init__()
            self.infos = infos

    vector = make_vec(
        Copying, 1, worker_options=WorkerOptions(backend="serial"), infos="gymnasium", env_kwargs={"infos": "mine"}
    )
    assert vector.get_attr("infos") == ("mine",)
    vector.close()


@pytest.mark.parametrize(
    ("wrong", "right"),
    {
        "wrokers": "workers=",
        "n_envs": "num_envs=",
        "n_jobs": "workers=",
        "auto_reset_mode": "autoreset_mode=",
        "start_methd": "worker_options=WorkerOptions(start_method=...)",
    }.items(),
)
def test_a_misspelt_option_starts_nothing(wrong: str, right: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.vector.make_vec.VectorEnv", None)
    for env in ("CartPole-v1", lambda **anything: gym.make("CartPole-v1")):
        with pytest.raises(
            UsageError, match=rf"^make_vec\(\) .*'{wrong}'; did you mean {re.escape(right)}\?"
        ) as caught:
            make_vec(env, 2, **{wrong: 2})
        assert "\n" not in str(caught.value)


def test_a_misplaced_option_names_its_object(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.vector.make_vec.VectorEnv", None)
    with pytest.raises(UsageError, match=r"takes backend in an object: worker_options=WorkerOptions\(backend=...\) .*"):
        make_vec("CartPole-v1", 2, backend="thread")


def test_an_option_that_is_gone_is_told_of() -> None:
    with pytest.raises(UsageError, match=r"owned= is gone: .*constructor.*: env_kwargs=\{\.\.\.\}"):
        make_vec("CartPole-v1", 2, worker_options=WorkerOptions(backend="serial"), owned=True)


def test_what_is_like_no_option_is_the_constructors() -> None:
    with pytest.raises(StartupFailed, match="unexpected keyword argument 'gravitation'"):
        make_vec("CartPole-v1", 2, worker_options=WorkerOptions(backend="serial"), gravitation=2)


def test_an_argument_that_the_constructor_takes_is_no_misspelt_option() -> None:
    class Nearly(CartPoleEnv):
        def __init__(self, worker: int) -> None:
            super().__init__()
            self.worker = worker

    vector = make_vec(Nearly, 1, worker_options=WorkerOptions(backend="serial"), worker=7)
    assert vector.get_attr("worker") == (7,)
    vector.close()
    with pytest.raises(StartupFailed, match="KeyError"):  # what it raises for another reason is not told otherwise
        make_vec(lambda worker: {}["gone"], 1, worker_options=WorkerOptions(backend="serial"), worker=7)


@pytest.mark.parametrize("options", [{"worker_options": WorkerOptions(backend="serial")}, {"workers": 1}])
def test_an_unknown_id_names_the_nearest(options: dict[str, Any]) -> None:
    with pytest.raises(
        StartupFailed, match=r"environment 'CartPoll-v1' is unknown; did you mean CartPole-v1"
    ) as caught:
        make_vec("CartPoll-v1", 2, **options)
    assert isinstance(caught.value, UsageError)
    assert caught.value.where.slot == 0


def test_an_id_that_a_constructor_does_not_find_is_not_what_was_asked_for() -> None:
    with pytest.raises(StartupFailed, match=r"NameNotFound.*CartPoll") as caught:
        make_vec(lambda: gym.make("CartPoll-v1"), 1, worker_options=WorkerOptions(backend="serial"))
    assert not isinstance(caught.value, UsageError)


def registered(monkeypatch: pytest.MonkeyPatch, name: str, **fields: Any) -> None:
    spec = gym.envs.registration.EnvSpec(name, vector_entry_point=vector_entry_point("CartPole-v1"), **fields)
    monkeypatch.setitem(gym.registry, name, spec)


def test_gymnasiums_make_vec_by_id(monkeypatch: pytest.MonkeyPatch) -> None:
    registered(monkeypatch, "treadle/CartPole-v1", max_episode_steps=7)
    vector = gym.make_vec("treadle/CartPole-v1", num_envs=2, workers=1, inline=1, autoreset_mode="SameStep")
    assert isinstance(vector, VectorEnv)
    assert vector.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert vector.spec is not None
    assert vector.spec.id == "treadle/CartPole-v1"
    vector.reset(seed=0)
    for t in range(7):
        truncations = vector.step(np.array([t % 2, t % 2]))[3]
    assert truncations.tolist() == [True, True]
    vector.close()


def test_gymnasiums_make_vec_by_spec() -> None:
    spec = gym.spec("CartPole-v1")
    theirs = spec.vector_entry_point
    spec.vector_entry_point = vector_entry_point("CartPole-v1")
    try:
        vector = gym.make_vec(spec, num_envs=2, vectorization_mode="vector_entry_point")
    finally:
        spec.vector_entry_point = theirs
    assert isinstance(vector, VectorEnv)
    vector.close()


def test_a_package_that_is_imported_once_more_in_a_worker_is_quiet(capfd: pytest.CaptureFixture[str]) -> None:
    """The caller's ids travel to the workers; a package that registers them there as well has no cause to complain."""
    require("minigrid")

    def grid() -> gym.Env:
        import minigrid

        gym.register_envs(minigrid)
        return gym.make("MiniGrid-Empty-5x5-v0")

    grid().close()
    for env in (grid, "MiniGrid-Empty-5x5-v0"):
        make_vec(env, 2, workers=1, inline=0).close()
    assert "Overriding" not in capfd.readouterr().err
