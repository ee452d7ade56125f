"""Seeds, options and masks of `reset`, and what `reset_at` adds."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv
from small_envs import Counter, assert_same, of

from treadle.errors import UsageError
from treadle.vector.gymnasium import VectorEnv
from treadle.vector.infos import InfoStyle
from treadle.worker.options import WorkerOptions

INLINE = pytest.mark.parametrize(
    "setup", [{"worker_options": WorkerOptions(backend="serial")}, {"workers": 1, "inline": 1}], ids=["serial", "split"]
)


@INLINE
def test_seeds(setup: dict[str, Any]) -> None:
    vector = VectorEnv([Counter] * 3, **setup)
    assert vector.reset(seed=4)[1]["seed"].tolist() == [4, 5, 6]
    assert vector.reset(seed=np.int64(4))[1]["seed"].tolist() == [4, 5, 6]  # type: ignore[arg-type]
    assert vector.reset(seed=[9, None, 2])[1]["seed"].tolist() == [9, -1, 2]
    assert vector.reset()[1]["seed"].tolist() == [-1] * 3
    assert vector.np_random_seed[0] == 9
    with pytest.raises(ValueError, match="must match num_envs=3 but got length=2"):
        vector.reset(seed=[1, 2])
    vector.close()


@INLINE
def test_masks_equal_syncs(setup: dict[str, Any]) -> None:
    envs = [lambda: gym.make("CartPole-v1")] * 3
    ours = VectorEnv(envs, autoreset_mode="Disabled", **setup)
    theirs = SyncVectorEnv(envs, autoreset_mode="Disabled")
    try:
        first, _ = ours.reset(seed=[0, 1, 2])
        assert_same(first, theirs.reset(seed=[0, 1, 2])[0])
        for _ in range(3):
            last = ours.step(np.array([0, 1, 0]))[0]
            theirs.step(np.array([0, 1, 0]))
        mask = np.array([True, True, False])
        options = {"reset_mask": mask, "low": -0.01, "high": 0.01}
        found = ours.reset(seed=[0, 1, 0], options=options)
        assert set(options) == {"reset_mask", "low", "high"}  # the caller's dict is not changed
        assert ours.valid.tolist() == [False] * 3
        assert_same(found[0], theirs.reset(seed=[0, 1, 0], options=dict(options))[0])
        assert_same(found[0][2], last[2])
        actions = np.array([1, 1, 1])
        assert_same(ours.step(actions)[:4], theirs.step(actions)[:4])
    finally:
        ours.close()


def test_infos_of_a_masked_reset() -> None:
    vector = VectorEnv([Counter] * 3, worker_options=WorkerOptions(backend="serial"))
    vector.reset()
    _, infos = vector.reset(seed=7, options={"reset_mask": np.array([False, True, True]), "level": 2})
    assert infos["seed"].tolist() == [0, 8, 9]
    assert infos["_seed"].tolist() == [False, True, True]
    assert infos["options"]["level"].tolist() == [0, 2, 2]
    vector.close()


@pytest.mark.parametrize(
    ("mask", "error"),
    [
        ([True, True, True], TypeError),
        (np.array([True]), ValueError),
        (np.array([True, True, False, False]), ValueError),
        (np.array([[True, True, True]]), ValueError),
        (np.array([1, 1, 0]), TypeError),
        (np.array([1.0, 1.0, 0.0]), TypeError),
        (np.array([False, False, False]), ValueError),
    ],
    ids=repr,
)
def test_masks_that_are_refused(mask: Any, error: type[Exception]) -> None:
    vector = VectorEnv([Counter] * 3, worker_options=WorkerOptions(backend="serial"))
    vector.reset()
    with pytest.raises(error, match="reset_mask"):
        vector.reset(options={"reset_mask": mask})
    assert vector.step([0, 0, 0])[0].tolist() == [1, 1, 1]
    vector.close()


def test_the_first_reset_is_of_all() -> None:
    vector = VectorEnv([Counter] * 2, worker_options=WorkerOptions(backend="serial"))
    with pytest.raises(UsageError, match="first reset"):
        vector.reset(options={"reset_mask": np.array([True, False])})
    with pytest.raises(UsageError, match="first reset"):
        vector.reset_at(0)
    assert vector.reset(options={"reset_mask": np.array([True, True])})[0].tolist() == [0, 0]
    vector.close()


def test_a_step_before_the_first_reset_is_the_environments_affair() -> None:
    vector = VectorEnv([Counter] * 2, workers=1, inline=1)
    assert vector.step([0, 1])[0].tolist() == [1, 1]
    vector.close()
    strict = VectorEnv("CartPole-v1", 2, worker_options=WorkerOptions(backend="serial"))
    with pytest.raises(gym.error.ResetNeeded):
        strict.step([0, 1])
    strict.close()


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
@INLINE
def test_options_of_each_slot_serve_its_autoresets(mode: str, setup: dict[str, Any]) -> None:
    vector = VectorEnv([of(Counter, 1)] * 3, autoreset_mode=mode, infos=InfoStyle.LIST, **setup)

    def after_autoreset() -> list[Any]:
        for _ in range(2 if mode == "NextStep" else 1):
            infos = vector.step([0, 0, 0])[4]
        return [info["options"] for info in infos]

    try:
        told = vector.reset(options=[{"level": 1}, None, {"level": 3}])[1]
        assert [info["options"] for info in told] == [{"level": 1}, None, {"level": 3}]
        for _ in range(2):
            assert after_autoreset() == [{"level": 1}, None, {"level": 3}]
        vector.reset_at([2, 1], options=[{"level": 7}, None])
        assert after_autoreset() == [{"level": 1}, None, {"level": 7}]
        vector.reset_at(0)
        assert after_autoreset() == [None, None, {"level": 7}]
        vector.reset(options={"level": 9})  # one dict for all is for this reset only, as in Gymnasium
        assert after_autoreset() == [None, None, None]
    finally:
        vector.close()


def test_options_that_an_environment_changes() -> None:
    class Eater(Counter):
        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            result = super().reset(seed=seed, options=dict(options or {}))
            (options or {}).clear()
            return result

    mine = {"level": 1}
    vector = VectorEnv(
        [of(Eater, 1)] * 2,
        worker_options=WorkerOptions(backend="serial"),
        autoreset_mode="SameStep",
        infos=InfoStyle.LIST,
    )
    vector.reset(options=[mine, mine])
    for _ in range(3):
        assert vector.step([0, 0])[4][1]["options"] == {"level": 1}
    vector.reset(options=mine)
    assert mine == {"level": 1}
    vector.close()


def test_reset_at() -> None:
    vector = VectorEnv([of(Counter, 9)] * 4, workers=2, inline=0)
    vector.reset()
    vector.step([0] * 4)
    observations, infos = vector.reset_at([3, 1], seed=[30, 10], options={"level": 2})
    assert observations.tolist() == [1, 0, 1, 0]
    assert infos["seed"].tolist() == [0, 10, 0, 30]
    assert vector.reset_at(2, seed=5)[1]["seed"].tolist() == [0, 0, 5, 0]
    assert vector.step([0] * 4)[0].tolist() == [2, 1, 1, 1]
    with pytest.raises(UsageError, match="options for 2 slots"):
        vector.reset_at([0, 1], options=[None])
    with pytest.raises(UsageError, match="distinct"):
        vector.reset_at([0, 4])
    vector.close()
