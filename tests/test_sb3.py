"""`treadle.sb3`: what SB3's own vectors give, step by step; its wrappers and algorithms on top; deaths; refusals."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest

from conftest import require

pytestmark = pytest.mark.heavy

require("stable_baselines3")
require("tqdm").tqdm.get_lock()  # a semaphore for the rest of the process, which MoviePy would make in a test

from stable_baselines3 import DQN, PPO, SAC  # noqa: E402
from stable_baselines3.common import env_util  # noqa: E402
from stable_baselines3.common.envs import IdentityEnv, IdentityEnvBox  # noqa: E402
from stable_baselines3.common.evaluation import evaluate_policy  # noqa: E402
from stable_baselines3.common.monitor import Monitor  # noqa: E402
from stable_baselines3.common.vec_env import (  # noqa: E402
    DummyVecEnv,
    VecCheckNan,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
    VecVideoRecorder,
)

from treadle.errors import ClosedPool, UsageError, WorkerDied  # noqa: E402
from treadle.sb3 import VecEnv, make_atari_env, make_vec_env  # noqa: E402
from treadle.worker.options import WorkerOptions  # noqa: E402

require("torch").set_num_threads(1)

WAYS = [{"workers": 2, "inline": 0}, {"worker_options": WorkerOptions(backend="serial")}]
IDS = ["processes", "caller"]


class Told(gym.Env):
    """Episodes of 3 to 5 steps, alternately terminated and truncated; tells of options, seeds and what it is."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"]}
    observation_space = gym.spaces.Dict({"at": gym.spaces.Box(0, 9, (2,), np.float32), "odd": gym.spaces.Discrete(2)})
    action_space = gym.spaces.Discrete(3)

    def __init__(self, number: int = 0, render_mode: str | None = "rgb_array") -> None:
        self.number, self.render_mode, self.episode, self.t = number, render_mode, -1, 0
        self.given: Any = ()

    def _seen(self) -> dict[str, Any]:
        return {"at": np.array([self.t, self.episode], np.float32), "odd": self.t % 2}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.episode, self.t, self.given = self.episode + 1, 0, (*self.given, (seed, options))
        return self._seen(), {"began": self.episode}

    def step(self, action: int) -> Any:
        self.t += 1
        over, cut = self.t >= 3 + self.number, self.episode % 2 == 1
        return self._seen(), float(action) / 3, over and not cut, over and cut, {"t": self.t, "all": [self.t, "x"]}

    def render(self) -> np.ndarray:
        return np.full((4, 4, 3), self.number, np.uint8)

    def double(self, number: int, more: int = 0) -> int:
        return 2 * number + more + self.number


def told(n: int, **kwargs: Any) -> list[Any]:
    return [lambda number=number: Monitor(Told(number, **kwargs)) for number in range(n)]


def without_times(infos: Any) -> list[dict[str, Any]]:
    """Infos but for the seconds that `Monitor` has counted."""
    cleaned = [dict(info) for info in infos]
    for info in cleaned:
        if "episode" in info:
            info["episode"] = {key: value for key, value in info["episode"].items() if key != "t"}
    return cleaned


def same(a: Any, b: Any) -> None:
    if isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            same(a[key], b[key])
    else:
        assert type(a) is type(b)
        assert a.dtype == b.dtype
        assert a.tobytes() == b.tobytes()


def same_infos(mine: Any, theirs: Any) -> None:
    for a, b in zip(without_times(mine), without_times(theirs), strict=True):
        assert a.keys() == b.keys()
        if "terminal_observation" in a:
            one, other = a.pop("terminal_observation"), b.pop("terminal_observation")
            assert pickle.dumps(one) == pickle.dumps(other) or np.array_equal(one, other) or repr(one) == repr(other)
        assert a == b


def compared(ours: Any, theirs: Any, steps: int, seed: int = 3) -> int:
    """Steps both with the same actions and compares all that they return. Returns how many episodes have ended."""
    ends = 0
    try:
        assert ours.seed(seed) == theirs.seed(seed)
        same(ours.reset(), theirs.reset())
        assert ours.reset_infos == theirs.reset_infos
        ours.action_space.seed(0)
        for _ in range(steps):
            actions = np.array([ours.action_space.sample() for _ in range(ours.num_envs)])
            mine, other = ours.step(actions), theirs.step(actions)
            same(mine[0], other[0])
            same(mine[1], other[1])
            same(mine[2], other[2])
            same_infos(mine[3], other[3])
            assert ours.reset_infos == theirs.reset_infos
            ends += int(mine[2].sum())
    finally:
        ours.close()
        theirs.close()
    return ends


@pytest.mark.parametrize("how", WAYS, ids=IDS)
def test_steps_are_those_of_the_vectors_of_sb3(how: dict[str, Any]) -> None:
    assert compared(VecEnv(told(3), **how), DummyVecEnv(told(3)), 60) > 30


@pytest.mark.filterwarnings("ignore:The environment is already wrapped with a `Monitor`")
@pytest.mark.parametrize("wrap", [VecNormalize, VecMonitor, VecCheckNan, lambda env: VecFrameStack(env, 3)])
def test_cartpole_and_the_wrappers_on_top_give_what_they_give_on_sb3s(wrap: Any) -> None:
    ours, theirs = (make("CartPole-v1", 4, seed=5) for make in (make_vec_env, env_util.make_vec_env))
    assert isinstance(ours.unwrapped, VecEnv)
    assert compared(wrap(ours), wrap(theirs), 150) > 10


def test_atari_is_preprocessed_as_by_sb3() -> None:
    require("ale_py")
    ours = make_atari_env("ALE/Breakout-v5", 2, seed=1, vec_env_kwargs={"workers": 1, "inline": 1})
    theirs = env_util.make_atari_env("ALE/Breakout-v5", 2, seed=1)
    assert ours.observation_space.shape == (84, 84, 1)
    assert compared(ours, theirs, 120, seed=7) > 0


def test_videos_are_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require("moviepy")
    monkeypatch.setattr(require("tqdm").tqdm, "monitor_interval", 0)  # else a thread watches its progress for ever
    envs = VecVideoRecorder(make_vec_env("CartPole-v1", 2), str(tmp_path), lambda step: step == 0, video_length=5)
    envs.reset()
    for _ in range(8):
        envs.step(np.zeros(2, np.int64))
    envs.close()
    (video,) = tmp_path.glob("*.mp4")
    assert video.stat().st_size > 500


# -- asking the environments -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", WAYS, ids=IDS)
def test_environments_are_asked_and_told(how: dict[str, Any]) -> None:
    envs = VecEnv([*told(3), lambda: Told(3)], **how)
    try:
        assert envs.env_method("double", 4, more=1) == [9, 10, 11, 12]
        assert envs.env_method("double", 4, indices=[2, -4]) == [10, 8]
        assert envs.env_is_wrapped(Monitor) == [True, True, True, False]
        assert envs.env_is_wrapped(Monitor, indices=3) == [False]
        envs.set_attr("color", [1, 2], indices=[0, 1])  # one value, and not one for each
        assert envs.get_attr("color", 1) == [[1, 2]]
        assert not envs.has_attr("color")
        envs.set_attr("color", "red")
        assert envs.has_attr("color")
        assert envs.get_attr("number", range(1, 3)) == [1, 2]
        assert envs.get_attr("number", []) == []
        assert [image[0, 0, 0] for image in envs.get_images()] == [0, 1, 2, 3]
        assert envs.render().shape == (8, 8, 3)
        with pytest.raises(AttributeError, match="nothing"):
            envs.get_attr("nothing")
        with pytest.raises(UsageError, match="use `reset` directly"):
            envs.env_method("reset")
        with pytest.raises(UsageError, match="indices must be integers below 4, got 7"):
            envs.get_attr("number", 7)
    finally:
        envs.close()


@pytest.mark.parametrize("how", WAYS, ids=IDS)
def test_seeds_and_options_serve_one_reset(how: dict[str, Any]) -> None:
    envs = VecEnv(told(2), **how)
    try:
        envs.seed(40)
        envs.set_options([{"level": 1}, {}])
        envs.reset()
        for _ in range(3):
            envs.step([0, 0])  # the first episode of slot 0 ends, and the next begins by itself
        envs.set_options({"level": 2})
        envs.reset()
        first, second = envs.get_attr("given")
        assert first == ((40, {"level": 1}), (None, None), (None, {"level": 2}))
        assert second == ((41, None), (None, {"level": 2}))
    finally:
        envs.close()


def test_a_reset_forgets_a_step_that_was_begun() -> None:
    envs = VecEnv(told(2), worker_options=WorkerOptions(backend="serial"))
    envs.reset()
    envs.step_async([0, 0])
    envs.reset()
    with pytest.raises(UsageError, match="without step_async"):
        envs.step_wait()
    assert envs.get_attr("t") == [0, 0]
    envs.close()
    envs.close()
    with pytest.raises(ClosedPool):
        envs.step([0, 0])


def test_infos_are_the_callers_own() -> None:
    envs = VecEnv(told(2), worker_options=WorkerOptions(backend="serial"))
    envs.reset()
    infos = envs.step([0, 0])[3]
    infos[0]["t"], infos[1]["mine"] = "changed", True
    assert [info.keys() for info in envs.step([0, 0])[3]] == [{"t", "all", "TimeLimit.truncated"}] * 2
    assert infos[0]["t"] == "changed"
    envs.close()


# -- deaths ------------------------------------------------------------------------------------------------------------


class Mortal(IdentityEnv):
    """Dies in its 5th episode, once in the life of `marker`."""

    marker = ""

    def step(self, action: Any) -> Any:
        if self.num_resets == 4 and not Path(self.marker).exists():
            Path(self.marker).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


def mortal(marker: Path) -> Any:
    def make() -> gym.Env:
        env = Mortal(dim=2, ep_length=20)
        env.marker = str(marker)
        return Monitor(env)

    return make


def test_a_death_ends_an_episode_as_truncated(tmp_path: Path) -> None:
    fns = [mortal(tmp_path / "died"), lambda: Monitor(IdentityEnv(dim=2, ep_length=20))]
    envs = VecEnv(fns, workers=2, on_failure="restart")
    try:
        envs.reset()
        dones, cut = [], []
        for t in range(200):
            observations, rewards, done, infos = envs.step([0, 0])
            assert observations.shape == (2,)
            dones.append(done.copy())
            if infos[0].get("aborted"):
                assert done[0]
                assert infos[0]["TimeLimit.truncated"] is True
                assert "terminal_observation" in infos[0]
                assert "episode" not in infos[0], "Monitor has died with its environment"
                assert rewards[0] == 0
                assert envs.reset_infos[0].get("restarted")
                cut.append(t)
        assert cut == [60]
        assert (tmp_path / "died").exists()
        assert [t for t, done in enumerate(dones) if done[1]] == [*range(19, 200, 20)]
        assert [t for t, done in enumerate(dones) if done[0]] == [19, 39, 59, *range(60, 200, 20)]
    finally:
        envs.close()


def test_training_goes_on_after_a_death(tmp_path: Path) -> None:
    envs = VecEnv([mortal(tmp_path / "died")] * 2, workers=2, on_failure="restart")
    model = PPO("MlpPolicy", envs, n_steps=64, seed=0, device="cpu")
    model.learn(1024)
    assert (tmp_path / "died").exists()
    assert model.num_timesteps == 1024
    assert envs.vector.stats().restarts.sum() >= 1
    envs.close()


def test_a_death_is_named_otherwise(tmp_path: Path) -> None:
    envs = VecEnv([mortal(tmp_path / "died")] * 2, workers=2, inline=0)
    envs.reset()
    with pytest.raises(WorkerDied, match="SIGKILL"):
        for _ in range(200):
            envs.step([0, 0])
    envs.close()


# -- learning ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "kind", "settings", "steps", "at_least"),
    [
        (PPO, lambda: IdentityEnv(dim=4), {"n_steps": 64, "batch_size": 64, "n_epochs": 10}, 2048, 90),
        (
            DQN,
            lambda: IdentityEnv(dim=4),
            {"learning_starts": 200, "train_freq": 2, "gamma": 0.5, "exploration_fraction": 0.3, "learning_rate": 3e-3},
            2000,
            90,
        ),
        (
            SAC,
            lambda: IdentityEnvBox(eps=0.4),
            {"learning_starts": 100, "gamma": 0.1, "learning_rate": 3e-3, "policy_kwargs": {"net_arch": [32]}},
            1200,
            90,
        ),
    ],
    ids=["ppo", "dqn", "sac"],
)
def test_it_learns(algorithm: Any, kind: Any, settings: Any, steps: int, at_least: float) -> None:
    envs = make_vec_env(kind, 4, seed=0, vec_env_kwargs={"workers": 1})
    try:
        model = algorithm("MlpPolicy", envs, seed=0, device="cpu", **settings)
        before, _ = evaluate_policy(model, envs, n_eval_episodes=4)
        model.learn(steps)
        after, _ = evaluate_policy(model, envs, n_eval_episodes=8)
        assert before < at_least <= after
    finally:
        envs.close()


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"autoreset_mode": "NextStep"}, "autoreset_mode= cannot be given here: .* from the step that ends one"),
        ({"infos": "legacy"}, "infos= cannot be given here: .* list of dicts"),
        ({"batch_size": 2}, "batch_size= cannot be given here: .* partial batches are treadle.make_vec's"),
        ({"groups": 2}, "groups= is gone: use send and recv"),
        ({"on_failure": "drop"}, "cannot do without some environments: on_failure='raise' or 'restart'"),
        (
            {"worker_options": WorkerOptions(start_method="illegal")},
            "start_method must be one of .*: cannot find context for 'illegal'",
        ),
    ],
)
def test_what_leaves_no_room_for_sb3_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        VecEnv(told(2), **options)


def test_one_environment_for_two_slots_is_refused() -> None:
    env = Told()
    with pytest.raises(UsageError, match="environments 0 and 1 are one object: each of env_fns must make"):
        VecEnv([lambda: env] * 2, worker_options=WorkerOptions(backend="serial"))


def test_different_render_modes_are_refused() -> None:
    with pytest.raises(UsageError, match=r"render_mode mode should be the same.*: give all of them the same"):
        VecEnv([Told, lambda: Told(render_mode=None)], workers=1)


class Nested(Told):
    observation_space = gym.spaces.Dict({"all": Told.observation_space})


def test_nested_spaces_are_refused_as_by_sb3() -> None:
    with pytest.raises(NotImplementedError, match="Nested observation spaces"):
        VecEnv([Nested], worker_options=WorkerOptions(backend="serial"))


def test_images_without_a_render_mode_are_told_of() -> None:
    envs = VecEnv(told(2, render_mode=None), workers=1)
    with pytest.warns(
        UserWarning, match="no images are made with render_mode=None: make the environments with 'rgb_array'"
    ):
        assert envs.get_images() == [None, None]
    envs.close()


def test_a_misspelt_argument_of_make_vec_env_has_its_name_in_the_error() -> None:
    with pytest.raises(TypeError, match=r"make_vec_env\(\) got an unexpected .* 'n_env'; did you mean n_envs=\?"):
        make_vec_env("CartPole-v1", n_env=2)


def test_the_arguments_of_make_vec_env_are_those_of_sb3(tmp_path: Path) -> None:
    made = make_vec_env(
        "CartPole-v1",
        2,
        1,
        0,
        str(tmp_path),
        None,
        {"max_episode_steps": 5},
        None,
        {"workers": 1},
        {"info_keywords": ()},
    )
    assert isinstance(made, VecEnv)
    made.reset()
    for _ in range(6):
        made.step([0, 1])
    made.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.monitor.csv", "1.monitor.csv"]
    theirs = make_vec_env("CartPole-v1", vec_env_cls=DummyVecEnv)
    assert type(theirs) is DummyVecEnv
    theirs.close()


def test_without_sb3_the_extra_is_named() -> None:
    script = "import sys; sys.modules['stable_baselines3'] = None\nimport treadle.sb3"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("treadle.errors.MissingExtra: treadle.sb3 needs Stable-Baselines3")
    assert last.endswith("pip install 'treadle[sb3]'")


def test_workers_do_without_sb3_where_environments_do() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        envs = VecEnv(
            [lambda: gym.make("CartPole-v1")] * 2,
            workers=2,
            inline=0,
            worker_options=WorkerOptions(start_method="spawn"),
        )
    envs.env_is_wrapped(Monitor.__base__)
    loaded = envs.vector.call(lambda env: "torch" in __import__("sys").modules)
    assert loaded == (False, False)
    envs.close()


def test_misspelt_names_are_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="environment 'CartPole-v7' is unknown; did you mean CartPole-v1"):
        make_vec_env("CartPole-v7", 2)
    with pytest.raises(UsageError, match=r"^VecEnv\(\) got an unexpected .* 'worker'; did you mean workers=\?"):
        make_vec_env("CartPole-v1", 2, vec_env_kwargs={"worker": 2})
    with pytest.raises(ValueError, match="cannot find context for 'not_a_method'"):  # as SB3's own tests want it
        VecEnv([lambda: gym.make("CartPole-v1")], worker_options=WorkerOptions(start_method="not_a_method"))
    make_vec_env("CartPole", 1).close()  # the newest version, as Gymnasium understands it
