"""`on_failure="restart"` and "drop" as a training script sees them, in Gymnasium's three modes and forms of infos."""

import os
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces as gs

from treadle.errors import UsageError
from treadle.pool import failure
from treadle.seeding import restart_seed
from treadle.vector.gymnasium import VectorEnv
from treadle.vector.infos import InfoStyle
from treadle.vector.next_obs import next_obs

MODES = ["NextStep", "SameStep", "Disabled"]


class Bomb(gym.Env[np.ndarray, int]):
    """Observes how many steps its episode has, ends after 4; action 1 ends the process in step 2 of its first life."""

    observation_space = gs.Box(0, 100, (2,), np.float64)
    action_space = gs.Discrete(2)

    def __init__(self, folder: str, slot: int) -> None:
        marker = Path(folder, str(slot))
        self.life = float(marker.exists())
        marker.touch()
        self.t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return self.observe(), {"seed": -1 if seed is None else seed, "level": (options or {}).get("level", -1)}

    def step(self, action: int) -> Any:
        self.t += 1
        if action == 1 and self.t == 2 and not self.life:
            os._exit(5)
        return self.observe(), 1.0, self.t >= 4, False, {}

    def observe(self) -> Any:
        return np.array([self.t, self.life])


class Wordy(Bomb):
    """Says in every info what the vector says too, but means something else by it."""

    words: dict[str, Any] = dict.fromkeys(
        ("aborted", "dropped", "restarted", "final_obs", "final_observation", "final_info"), 7
    )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=seed, options=options)[0], self.words

    def step(self, action: int) -> Any:
        return *super().step(action)[:4], self.words


def bombs(folder: Path, mode: str, on_failure: str = "restart", **options: Any) -> VectorEnv:
    """Three slots, a worker each."""
    envs = [lambda i=i: Bomb(str(folder), i) for i in range(3)]
    return VectorEnv(envs, workers=3, autoreset_mode=mode, on_failure=on_failure, **options)


ACTIONS = np.array([0, 1, 0])


def test_same_step(tmp_path: Path) -> None:
    vector = bombs(tmp_path, "SameStep")
    try:
        vector.reset(seed=3)
        vector.step(ACTIONS)
        observations, rewards, terminated, truncated, infos = vector.step(ACTIONS)
        assert observations.tolist() == [[2, 0], [0, 1], [2, 0]]
        assert rewards.tolist() == [1, 0, 1]
        assert (terminated.any(), truncated.tolist()) == (False, [False, True, False])
        assert infos["restarted"].tolist() == infos["_restarted"].tolist() == [False, True, False]
        assert infos["seed"].tolist() == [0, restart_seed(3, 1, 1), 0]
        assert infos["final_obs"][1].tolist() == [1, 0]
        assert infos["_final_obs"].tolist() == [False, True, False]
        assert infos["final_info"]["aborted"].tolist() == infos["final_info"]["_aborted"].tolist()
        assert infos["final_info"]["aborted"].tolist() == [False, True, False]
        assert next_obs(observations, infos).tolist() == [[2, 0], [1, 0], [2, 0]]
        assert vector.valid.tolist() == [True, False, True]
        for _ in range(6):
            vector.step(ACTIONS)
        stats = vector.stats()
        assert stats.restarts.tolist() == [0, 1, 0]
        assert stats.steps.tolist() == [8, 7, 8]
        assert stats.episodes.tolist() == [3, 3, 3]
    finally:
        vector.close()


def test_next_step(tmp_path: Path) -> None:
    vector = bombs(tmp_path, "NextStep")
    try:
        vector.reset(seed=3)
        vector.step(ACTIONS)
        observations, rewards, terminated, truncated, infos = vector.step(ACTIONS)
        assert observations.tolist() == [[2, 0], [1, 0], [2, 0]]
        assert rewards.tolist() == [1, 0, 1]
        assert (terminated.any(), truncated.tolist()) == (False, [False, True, False])
        assert infos["aborted"].tolist() == infos["_aborted"].tolist() == [False, True, False]
        assert vector.valid.tolist() == [True, False, True]
        observations, rewards, terminated, truncated, infos = vector.step(ACTIONS)
        assert observations.tolist() == [[3, 0], [0, 1], [3, 0]]
        assert rewards.tolist() == [1, 0, 1]
        assert not (terminated | truncated).any()
        assert infos["restarted"].tolist() == [False, True, False]
        assert infos["seed"][1] == restart_seed(3, 1, 1)
        assert vector.valid.tolist() == [True, False, True]
        for _ in range(6):
            vector.step(ACTIONS)
        stats = vector.stats()
        assert stats.restarts.tolist() == [0, 1, 0]
        assert stats.steps.tolist() == [8, 6, 8]
        assert stats.episodes.tolist() == [2, 3, 2]
    finally:
        vector.close()


def test_disabled(tmp_path: Path) -> None:
    vector = bombs(tmp_path, "Disabled")
    try:
        vector.reset(seed=3)
        vector.step(ACTIONS)
        observations, _, terminated, truncated, infos = vector.step(ACTIONS)
        assert observations.tolist() == [[2, 0], [1, 0], [2, 0]]
        assert infos["aborted"].tolist() == [False, True, False]
        with pytest.raises(UsageError, match=r"\[1\].*reset them first"):
            vector.step(ACTIONS)
        observations, infos = vector.reset(options={"reset_mask": terminated | truncated})
        assert observations.tolist() == [[2, 0], [0, 1], [2, 0]]
        assert infos["seed"][1] == restart_seed(3, 1, 1)
        assert vector.step(ACTIONS)[0].tolist() == [[3, 0], [1, 1], [3, 0]]
        assert vector.stats().steps.tolist() == [3, 2, 3]
    finally:
        vector.close()


@pytest.mark.parametrize("mode", MODES)
def test_a_restarted_slot_takes_a_state(mode: str, tmp_path: Path) -> None:
    """Nothing of what stood out for it, a fresh episode or a reset, comes over the state that it was given."""
    vector = bombs(tmp_path, mode)
    try:
        vector.reset(seed=3)
        vector.step(ACTIONS)
        state = vector.get_states()[0]
        vector.step(ACTIONS)
        vector.set_states([state], slots=[1])
        observations, rewards, _, _, infos = vector.step(np.array([0, 0, 0]))
        assert observations.tolist() == [[3, 0], [2, 0], [3, 0]]
        assert rewards.tolist() == [1, 1, 1]
        assert "restarted" not in infos
        assert vector.valid.all()
        assert vector.stats().restarts.tolist() == [0, 1, 0]
    finally:
        vector.close()


@pytest.mark.parametrize("mode", MODES)
def test_drop(mode: str, tmp_path: Path) -> None:
    vector = bombs(tmp_path, mode, "drop")
    try:
        vector.reset(seed=3)
        vector.step(ACTIONS)
        observations, _, _, truncated, infos = vector.step(ACTIONS)
        assert observations.tolist() == [[2, 0], [1, 0], [2, 0]]
        assert truncated.tolist() == [False, True, False]
        assert infos["dropped"].tolist() == infos["aborted"].tolist() == [False, True, False]
        if mode == "SameStep":
            assert infos["final_obs"][1].tolist() == [1, 0]
            assert infos["final_info"]["dropped"].tolist() == [False, True, False]
        observations, rewards, terminated, truncated, infos = vector.step(ACTIONS)
        assert observations.tolist() == [[3, 0], [0, 0], [3, 0]]
        assert rewards.tolist() == [1, 0, 1]
        assert not (terminated | truncated).any()
        assert "dropped" not in infos
        assert vector.valid.tolist() == [True, False, True]
        with pytest.raises(UsageError, match=r"slots \[1\] were dropped"):
            vector.reset_at([0, 1])
        assert vector.reset(seed=8)[0].tolist() == [[0, 0]] * 3
        assert vector.get_attr("life") == (0.0, None, 0.0)
        assert vector.stats().steps.tolist() == [3, 1, 3]
    finally:
        vector.close()


def test_list_and_legacy_infos(tmp_path: Path) -> None:
    for style in (InfoStyle.LIST, "legacy"):
        (tmp_path / style).mkdir()
        vector = bombs(tmp_path / style, "SameStep", infos=style)
        vector.reset(seed=3)
        vector.step(ACTIONS)
        infos = vector.step(ACTIONS)[4]
        if style == "list":
            assert infos[1]["restarted"] is True
            assert infos[1]["final_info"] == {"aborted": True}
        else:
            assert infos["final_info"].tolist() == [None, {"aborted": True}, None]
            assert infos["final_observation"][1].tolist() == [1, 0]
        vector.close()


def test_options_that_are_kept_serve_the_fresh_environment(tmp_path: Path) -> None:
    """As they serve autoresets; a plain dict of options is for its own reset only."""
    for options, level in (([{"level": 7}] * 3, 7), ({"level": 7}, -1)):
        folder = tmp_path / str(level)
        folder.mkdir()
        vector = bombs(folder, "SameStep")
        vector.reset(seed=3, options=options)
        vector.step(ACTIONS)
        assert vector.step(ACTIONS)[4]["level"][1] == level
        vector.close()


def test_asynchronous_steps(tmp_path: Path) -> None:
    vector = bombs(tmp_path, "NextStep")
    try:
        vector.reset(seed=3)
        for expected in (False, True, False):
            vector.step_async(ACTIONS)
            assert vector.step_wait(timeout=30)[3].tolist() == [False, expected, False]
        vector.reset_async(seed=4)
        assert vector.reset_wait()[0].tolist() == [[0, 0], [0, 1], [0, 0]]
    finally:
        vector.close()


def test_wrappers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gymnasium's statistics count a cut episode as an episode."""
    monkeypatch.setattr(failure, "BACKOFF", 0.0)
    vector = gym.wrappers.vector.RecordEpisodeStatistics(bombs(tmp_path, "NextStep"))
    try:
        vector.reset(seed=3)
        vector.step(ACTIONS)
        infos = vector.step(ACTIONS)[4]
        assert infos["episode"]["l"][1] == 2
    finally:
        vector.close()


@pytest.mark.parametrize(
    ("mode", "infos"),
    [("SameStep", "legacy"), *((mode, infos) for mode in MODES for infos in ("gymnasium", InfoStyle.LIST))],
)
def test_an_environments_own_words_are_no_news(mode: str, infos: str, tmp_path: Path) -> None:
    envs = [lambda i=i: Wordy(str(tmp_path), i) for i in range(2)]
    vector = VectorEnv(envs, workers=2, autoreset_mode=mode, on_failure="restart", infos=infos)
    try:
        observations, found = vector.reset(seed=3)
        for t in range(1, 5):
            if infos == "list":
                assert [each["env_dropped"] for each in found] == [7, 7]
                assert not {"aborted", "restarted", "dropped"} & set(found[0])
            else:
                assert found["env_dropped"].tolist() == [7, 7]
                assert found["_env_dropped"].tolist() == [True, True]
                assert not {"aborted", "_aborted", "restarted", "dropped"} & set(found)
            observations, _, terminated, truncated, found = vector.step(np.array([0, 0]))
            assert terminated.tolist() == [t == 4] * 2
            assert not truncated.any()
            led_to = next_obs(observations, found, vector.single_observation_space)
            assert led_to[:, 0].tolist() == [t, t]
        if mode == "SameStep":
            told = [each["final_info"] for each in found] if infos == "list" else found["final_info"]
            own = told["env_dropped"].tolist() if infos == "gymnasium" else [each["env_dropped"] for each in told]
            assert own == [7, 7]
        if mode == "Disabled":
            vector.reset(options={"reset_mask": terminated})
        elif mode == "NextStep":
            vector.step(np.array([0, 0]))
        vector.step(np.array([0, 0]))
        found = vector.step(np.array([0, 1]))[4]  # slot 1 dies
        key = "restarted" if mode == "SameStep" else "aborted"
        if infos == "list":
            assert [each.get(key) for each in found] == [None, True]
        else:
            assert found[key].tolist() == [False, True]
            assert found["env_aborted"].tolist()[0] == 7
    finally:
        vector.close()


def test_own_words_where_nothing_goes_on(tmp_path: Path) -> None:
    """Without on_failure the vector says nothing of deaths: the words are the environments', as in Gymnasium."""
    with closing(VectorEnv(lambda: Wordy(str(tmp_path), 0), 2, workers=1)) as vector:
        found = vector.reset(seed=3)[1]
        assert found["dropped"].tolist() == found["aborted"].tolist() == [7, 7]
        assert found["env_final_obs"].tolist() == [7, 7]


def test_own_words_in_partial_batches() -> None:
    class Numbered(gym.Wrapper[Any, Any, Any, Any]):
        def reset(self, **kwargs: Any) -> Any:
            return super().reset(**kwargs)[0], {"env_id": -1, "valid": "yes", "final_obs": 3}

    with closing(VectorEnv(lambda: Numbered(gym.make("CartPole-v1")), 2, workers=1)) as vector:
        vector.async_reset(seed=1)
        found = vector.recv(min=2)[4]
        assert sorted(found["env_id"].tolist()) == [0, 1]
        assert not found["valid"].any()
        assert found["env_env_id"].tolist() == [-1, -1]
        assert found["env_valid"].tolist() == ["yes", "yes"]
        assert found["env_final_obs"].tolist() == [3, 3]
