"""Environments in a slot: built from whatever names one, stepped into the full record."""

import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from treadle.errors import MissingExtra, UsageError
from treadle.program import ids
from treadle.program.base import OnEnd, Program, settle
from treadle.program.gym_env import EnvRecipe, GymEnv, portable_spec
from zoo.faults import Sound
from zoo.programs import gym_env


def finish(program: GymEnv) -> Any:
    """Step to the end of an episode, as a server does."""
    while True:
        observation, reward, terminated, truncated, info = program.step(0)
        if terminated or truncated:
            return program.ended(observation, reward, terminated, truncated, info)


def test_an_id_a_spec_and_a_callable_make_the_same_environment() -> None:
    first = []
    for env in ("CartPole-v1", gym.spec("CartPole-v1"), lambda: gym.make("CartPole-v1")):
        program = gym_env(env)()
        first.append(program.begin(seed=3)[0].tobytes())
        program.close()
    assert len(set(first)) == 1


def test_a_module_and_an_id(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "brings_an_env.py").write_text(
        "import gymnasium as gym\nfrom zoo.faults import Sound\ngym.register('FromModule-v0', entry_point=Sound)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        program = gym_env("brings_an_env:FromModule-v0")()
        assert isinstance(program.env.unwrapped, Sound)
        program = gym_env("brings_an_env:FromModule-v0", kwargs={"at": 9})()
        assert program.env.unwrapped.at == 9
    finally:
        gym.registry.pop("FromModule-v0", None)
        sys.modules.pop("brings_an_env", None)


def test_arguments_and_wrappers_in_order() -> None:
    program = gym_env(
        Sound, kwargs={"at": 5}, wrappers=[lambda e: gym.wrappers.TimeLimit(e, 4), gym.wrappers.RecordEpisodeStatistics]
    )()
    assert isinstance(program.env, gym.wrappers.RecordEpisodeStatistics)
    assert program.env.unwrapped.at == 5
    program.begin(seed=1)
    record = finish(program)
    assert (record.terminated, record.truncated) == (False, True)
    assert record.info["episode"]["l"] == 4


@pytest.mark.parametrize("wrong", [3, object(), lambda: "not an environment"])
def test_what_is_no_environment_is_refused(wrong: Any) -> None:
    with pytest.raises(UsageError, match=r"environment"):
        gym_env(wrong)()


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ale_py", None)
    import importlib

    real = importlib.import_module

    def absent(name: str, *args: Any) -> Any:
        if name == "ale_py":
            raise ModuleNotFoundError("No module named 'ale_py'", name="ale_py")
        return real(name, *args)

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(MissingExtra, match=r"pip install 'treadle\[atari\]'"):
        EnvRecipe("ALE/Pong-v5").build()


def test_the_next_episode_within_the_step() -> None:
    program = gym_env(Sound, on_end=OnEnd.SAME_STEP)()
    assert program.describe().finals
    program.begin(seed=2)
    record = finish(program)
    assert record.observation.tolist() == [2, 1, 0, 0]
    assert record.final_observation.tolist() == [2, 0, 20, 0]
    assert (record.reward, record.final_info, record.begins_next) == (20.0, {}, False)


def test_the_next_episode_at_the_next_step() -> None:
    program = gym_env(Sound)()
    program.begin(seed=2)
    record = finish(program)
    assert record.observation.tolist() == [2, 0, 20, 0]
    assert record.begins_next
    assert record.final_info is None


def test_holding() -> None:
    program = gym_env(Sound, on_end=OnEnd.HOLD)()
    program.begin(seed=2)
    record = finish(program)
    assert not record.begins_next
    with pytest.raises(UsageError, match="reset the slot first"):
        program.step(0)
    program.begin()
    assert program.step(1)[0].tolist() == [2, 1, 1, 1]


def test_settle_asks_for_the_next_episode_only_when_it_must() -> None:
    asked: list[int] = []

    def begin() -> Any:
        asked.append(1)
        return np.ones(1), {"new": True}

    for mode in (OnEnd.NEXT_STEP, OnEnd.HOLD):
        assert settle(mode, begin, "o", 1.0, True, False, {"i": 1}).info == {"i": 1}
    assert asked == []
    record = settle(OnEnd.SAME_STEP, begin, "o", 1.0, True, False, {"i": 1})
    assert (record.info, record.final_info, record.final_observation) == ({"new": True}, {"i": 1}, "o")
    assert asked == [1]


def test_calls_reach_through_wrappers() -> None:
    program = gym_env(Sound, wrappers=[lambda env: gym.wrappers.TimeLimit(env, 4)])()
    assert program.call("at", (), {}) == 3
    program.begin(seed=6)
    assert program.call("observe", (7,), {}).tolist() == [6, 0, 0, 7]
    with pytest.raises(AttributeError):
        program.call("nothing_like_this", (), {})


def test_the_spec_travels_when_json_can_hold_it() -> None:
    cartpole = gym_env("CartPole-v1")().describe().metadata
    assert gym.envs.registration.EnvSpec.from_json(cartpole["spec"]).id == "CartPole-v1"
    assert portable_spec(Sound()) is None
    env = Sound()
    env.spec = gym.envs.registration.EnvSpec("X-v0", entry_point=lambda: Sound(), kwargs={"f": lambda: 1})
    assert portable_spec(env) is None


def test_a_bare_program_says_what_it_is_not() -> None:
    program = Program()
    assert program.describe().observation_space is None
    with pytest.raises(TypeError, match="cannot be reset"):
        program.begin()
    with pytest.raises(TypeError, match="no episodes"):
        program.ended(0, 0, True, False, {})
    with pytest.raises(TypeError, match="cannot stream"):
        program.stream(1, None)  # type: ignore[arg-type]
    assert program.call("describe", (), {}) == program.describe()
    program.close()


def test_arguments_that_are_missing_are_named_for_ids_specs_and_callables() -> None:
    class Needs(gym.Env):
        def __init__(self, level: int, size: int = 1) -> None: ...

    for name in ("NeedsByClass-v0", "NeedsByFunction-v0"):
        gym.register(name, entry_point=Needs if "Class" in name else lambda level: Needs(level))
        try:
            for env in (name, gym.spec(name)):
                with pytest.raises(UsageError, match=f"^{name} needs the argument 'level': --env-kwargs"):
                    EnvRecipe(env).build()
        finally:
            del gym.registry[name]
    with pytest.raises(UsageError, match=r"^Needs needs the argument 'level'") as caught:
        EnvRecipe(Needs, {"size": 2}).build()
    assert isinstance(caught.value.__cause__, TypeError)
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        EnvRecipe(Needs, {"level": 1, "colour": 2}).build()


def test_a_broken_package_does_not_hide_that_an_id_is_unknown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "broken_envs.py").write_text("raise ImportError('built for another Python')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(ids.PACKAGES, "Broken/", ("broken_envs", None))
    with pytest.raises(UsageError, match="'CartPol-v1' is unknown; did you mean CartPole-v"):
        EnvRecipe("CartPol-v1").build()
