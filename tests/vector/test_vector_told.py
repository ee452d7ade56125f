"""What a vector says about what it is given, before anything runs: each line names what to do instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces as gs
from small_envs import Counter

import treadle
from treadle.errors import BadAction, NoBatch, StartupRefused, TaskRaised, UsageError


class NoSpaces(gym.Env[Any, Any]):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return 0, {}

    def step(self, action: Any) -> Any:
        return 0, 0.0, True, False, {}


class HalfSpaces(NoSpaces):
    observation_space = gs.Discrete(2)


class NoSeed(HalfSpaces):
    action_space = gs.Discrete(2)

    def reset(self) -> Any:  # type: ignore[override]
        return 0, {}


class NoOptions(NoSeed):
    def reset(self, *, seed: int | None = None) -> Any:  # type: ignore[override]
        return 0, {}


class Seeding(gym.Wrapper[Any, Any, Any, Any]):
    """Gives an environment the arguments that it lacks."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self.env.reset()


class Anything(NoSeed):
    def reset(self, **given: Any) -> Any:  # type: ignore[override]
        return 0, {}


WRONG: list[tuple[Callable[[], gym.Env], str]] = [
    (NoSpaces, "made a NoSpaces without an observation_space: .* must set self.observation_space"),
    (HalfSpaces, "made a HalfSpaces without an action_space"),
    (NoSeed, r"NoSeed.reset\(\) takes no `seed`.*reset\(\*, seed=None, options=None\)"),
    (lambda: gym.wrappers.TimeLimit(NoSeed(), 5), r"NoSeed.reset\(\) takes no `seed`"),
    (NoOptions, r"NoOptions.reset\(\) takes no `options`"),
]


@pytest.mark.parametrize(("make", "words"), WRONG)
@pytest.mark.parametrize(
    "setup", [{"worker_options": treadle.WorkerOptions(backend="serial")}, {"workers": 1, "inline": 0}], ids=str
)
def test_environments_that_are_none_say_what_they_lack(
    make: Callable[[], gym.Env], words: str, setup: dict[str, Any]
) -> None:
    with pytest.raises(StartupRefused, match=words):
        treadle.VectorEnv(make, 2, **setup)


@pytest.mark.parametrize(("make", "words"), WRONG[:4])
def test_collecting_says_the_same(make: Callable[[], gym.Env], words: str) -> None:
    with pytest.raises(StartupRefused, match=words):
        list(treadle.collect(make, episodes=1, workers=1))


@pytest.mark.parametrize(
    "setup", [{"worker_options": treadle.WorkerOptions(backend="serial")}, {"workers": 1, "inline": 0}], ids=str
)
def test_an_unknown_id_is_one_error_and_its_cause(setup: dict[str, Any]) -> None:
    """Which says what is wrong and where; the failure of the slot is among `failures` and is not told once more."""
    with pytest.raises(StartupRefused, match="environment 'CartPol-v1' is unknown; did you mean CartPole-v1") as caught:
        treadle.VectorEnv("CartPol-v1", 2, **setup)
    assert type(caught.value.__cause__) is UsageError
    assert type(caught.value.__cause__.__cause__) is gym.error.NameNotFound
    assert isinstance(caught.value.failures[0], TaskRaised)


@pytest.mark.parametrize("make", [lambda: Seeding(NoSeed()), Anything, lambda: gym.wrappers.TimeLimit(Anything(), 5)])
def test_what_takes_a_seed_in_its_own_way_is_let_be(make: Callable[[], gym.Env]) -> None:
    envs = treadle.VectorEnv(make, 2, worker_options=treadle.WorkerOptions(backend="serial"))
    assert envs.reset(seed=1)[0].tolist() == [0, 0]
    envs.close()


@pytest.mark.parametrize(
    "build",
    [
        lambda env: treadle.make_vec(env, 2),
        lambda env: treadle.VectorEnv(env, 2),
        lambda env: treadle.VectorEnv([env, env]),
        lambda env: treadle.AsyncVectorEnv([env, env]),
        lambda env: next(treadle.collect(env, episodes=1)),
    ],
)
def test_an_environment_that_is_built_already(build: Callable[[Any], Any]) -> None:
    env = gym.make("CartPole-v1")
    with pytest.raises(UsageError, match=r"got TimeLimit, which is built already .* give its id or its class"):
        build(env)
    env.close()


@pytest.mark.parametrize("env", [3, None])
def test_what_builds_no_environments(env: Any) -> None:
    with pytest.raises(UsageError, match="an environment is an id, an EnvSpec or a callable that builds it, got"):
        treadle.make_vec(env, 2)


@pytest.mark.parametrize("name", ["vectorization_mode", "vector_kwargs"])
def test_arguments_of_gymnasiums_make_vec_do_not_go_to_the_environment(name: str) -> None:
    with pytest.raises(UsageError, match=f"{name}= is of gymnasium.make_vec. Here workers="):
        treadle.make_vec("CartPole-v1", 2, **{name: "async"})  # type: ignore[arg-type]

    class Takes(Counter):
        def __init__(self, **given: Any) -> None:
            super().__init__()
            self.given = given

    envs = treadle.make_vec(Takes, 1, worker_options=treadle.WorkerOptions(backend="serial"), env_kwargs={name: "mine"})
    assert envs.get_attr("given") == ({name: "mine"},)
    envs.close()


@pytest.mark.parametrize("seconds", [-1, -0.5, 0, float("nan"), "5", True])
@pytest.mark.parametrize(
    "make",
    [
        lambda **limit: treadle.make_vec(Counter, 2, workers=1, **limit),
        lambda **limit: treadle.make_vec(Counter, 2, worker_options=treadle.WorkerOptions(backend="serial"), **limit),
        lambda **limit: next(treadle.collect(Counter, episodes=1, workers=1, **limit)),
        lambda **limit: treadle.evaluate(Counter, "random", episodes=1, workers=1, **limit),
    ],
)
def test_a_step_timeout_is_a_time(make: Callable[..., Any], seconds: Any) -> None:
    with pytest.raises(UsageError, match="step_timeout must be more than 0 seconds or None, got"):
        make(step_timeout=seconds)


@pytest.mark.parametrize(("name", "seconds"), [("start_timeout", 0), ("start_timeout", None)])
def test_other_limits_are_times(name: str, seconds: Any) -> None:
    with pytest.raises(UsageError, match=f"{name} must be"):
        treadle.WorkerOptions(**{name: seconds})


@pytest.mark.parametrize("space", [gs.Discrete(3), gs.Box(-1, 1, (2,)), gs.Dict(a=gs.Discrete(2))], ids=str)
@pytest.mark.parametrize("how", ["step", "step_async", "send"])
def test_what_is_no_batch_is_a_type_error_too(space: gs.Space[Any], how: str) -> None:
    class Acting(NoSpaces):
        observation_space, action_space = gs.Discrete(2), space

    envs = treadle.VectorEnv(Acting, 2, worker_options=treadle.WorkerOptions(backend="serial"))
    if how == "send":
        envs.async_reset()
        envs.recv(min=2)
    else:
        envs.reset()
    for actions in (0, 1.5, None, np.array(1)):
        with pytest.raises(TypeError, match="Nothing was sent") as caught:
            getattr(envs, how)(actions)
        assert isinstance(caught.value, NoBatch)
        assert isinstance(caught.value, BadAction)
        assert isinstance(caught.value, ValueError)
    with pytest.raises(BadAction) as caught:
        getattr(envs, how)([0, 1, 2])
    assert not isinstance(caught.value, TypeError)
    envs.close()
