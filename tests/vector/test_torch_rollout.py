"""Rollouts as tensors."""

from __future__ import annotations

import sys
from contextlib import closing
from typing import Any

import numpy as np
import pytest

import treadle
from treadle.vector.gymnasium import VectorEnv


@pytest.mark.heavy
def test_tensors_share_the_memory_and_keep_it(require: Any) -> None:
    torch = require("torch")
    with closing(VectorEnv("CartPole-v1", 3, workers=1, inline=1, autoreset_mode="SameStep")) as vector:
        rollout = vector.rollout(lambda _: [0, 1, 1], steps=30)
        tensors = rollout.torch()
        assert tensors.observations.data_ptr() == rollout.observations.__array_interface__["data"][0]
        for name in ("observations", "actions", "rewards", "terminated", "valid", "episode_ids", "next_obs"):
            assert torch.is_tensor(getattr(tensors, name))
            np.testing.assert_array_equal(getattr(tensors, name).numpy(), getattr(rollout, name))
        assert rollout.terminal_observations
        kept, before = tensors.observations, rollout.observations.copy()
        del rollout, tensors
        for _ in range(3):
            vector.rollout(steps=30)
        np.testing.assert_array_equal(kept.numpy(), before)


def test_without_torch_the_error_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with closing(VectorEnv("CartPole-v1", 1, worker_options=treadle.WorkerOptions(backend="serial"))) as vector:
        rollout = vector.rollout(steps=2)
        with pytest.raises(treadle.MissingExtra, match="pip install torch"):
            rollout.torch()
