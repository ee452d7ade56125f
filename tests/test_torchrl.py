"""Our vectors in TorchRL's `GymWrapper`: specs, rollouts equal to those over Gymnasium's own, a collector, a loop."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from conftest import require

pytestmark = pytest.mark.heavy

torch = require("torch")
require("torchrl")
torch.set_num_threads(1)

from torchrl.collectors import Collector  # noqa: E402
from torchrl.envs import GymWrapper, RewardSum, StepCounter, TransformedEnv, set_gym_backend  # noqa: E402
from torchrl.envs.utils import check_env_specs  # noqa: E402

import treadle  # noqa: E402

MODES = [gym.vector.AutoresetMode.SAME_STEP, gym.vector.AutoresetMode.DISABLED]
MODE = pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name.lower())


class Walk(gym.Env):
    """Observes [steps in the episode, episodes, slot]; ends after 3 steps, or is cut after 2, by turns."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, number: int = 0) -> None:
        self.number, self.episode, self.t = number, -1, 0

    def _seen(self) -> np.ndarray:
        return np.array([self.t, self.episode, self.number], np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.episode, self.t = self.episode + 1, 0
        return self._seen(), {}

    def step(self, action: int) -> Any:
        self.t += 1
        cut = self.episode % 2 == 1
        return self._seen(), float(action), not cut and self.t == 3, cut and self.t == 2 + self.number % 2, {}


def walks(n: int) -> list[Any]:
    return [lambda number=number: Walk(number) for number in range(n)]


def ours(mode: gym.vector.AutoresetMode, envs: Any = None, **options: Any) -> treadle.VectorEnv:
    return treadle.VectorEnv(walks(4) if envs is None else envs, autoreset_mode=mode, workers=1, inline=2, **options)


@pytest.fixture(autouse=True)
def gymnasium_is_meant(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tests with AllenAct say that Gymnasium is `gym`, too, and TorchRL then takes it for an old one."""
    for name in [each for each in sys.modules if each.partition(".")[0] == "gym"]:
        monkeypatch.delitem(sys.modules, name)
    with set_gym_backend("gymnasium"):
        yield


@MODE
@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_the_specs_are_kept(mode: gym.vector.AutoresetMode, env: str) -> None:
    wrapped = GymWrapper(treadle.make_vec(env, 3, autoreset_mode=mode, workers=1))
    try:
        assert tuple(wrapped.batch_size) == (3,)
        check_env_specs(wrapped)
    finally:
        wrapped.close()


@MODE
def test_rollouts_are_those_over_gymnasiums_vector(mode: gym.vector.AutoresetMode) -> None:
    vectors = [ours(mode), gym.vector.SyncVectorEnv(walks(4), autoreset_mode=mode)]
    found = []
    for vector in vectors:
        wrapped = GymWrapper(vector)
        torch.manual_seed(0)
        try:
            wrapped.set_seed(3)
            found.append(wrapped.rollout(40, break_when_any_done=False))
        finally:
            wrapped.close()
    mine, theirs = found
    assert theirs["next", "done"].sum() > 20
    assert (mine == theirs).all()


@MODE
def test_batches_that_are_kept_do_not_change(mode: gym.vector.AutoresetMode) -> None:
    """A tensor over a lent row holds it, however many steps are made meanwhile."""
    wrapped = GymWrapper(ours(mode))
    try:
        kept, copies = [], []
        state = wrapped.reset()
        for _ in range(30):
            step, state = wrapped.step_and_maybe_reset(wrapped.rand_action(state))
            kept.append(step["next", "observation"])
            copies.append(kept[-1].clone())
        assert all(torch.equal(a, b) for a, b in zip(kept, copies, strict=True))
    finally:
        wrapped.close()


def test_some_are_reset() -> None:
    wrapped = GymWrapper(ours(gym.vector.AutoresetMode.DISABLED))
    try:
        state = wrapped.reset()
        for _ in range(2):
            _, state = wrapped.step_and_maybe_reset(wrapped.rand_action(state))
        before = state["observation"].clone()
        state["_reset"] = torch.tensor([[True], [False], [True], [False]])
        after = wrapped.reset(state)["observation"]
        assert after[[0, 2], 0].tolist() == [0, 0]
        assert after[[0, 2], 1].tolist() == (before[[0, 2], 1] + 1).tolist()
        assert torch.equal(after[[1, 3]], before[[1, 3]])
    finally:
        wrapped.close()


@MODE
def test_a_collector_counts_episodes(mode: gym.vector.AutoresetMode) -> None:
    env = TransformedEnv(GymWrapper(ours(mode)), RewardSum())
    env.append_transform(StepCounter())
    collector = Collector(env, None, frames_per_batch=40, total_frames=200)
    batches = list(collector)
    collector.shutdown()
    assert [tuple(batch.shape) for batch in batches] == [(4, 10)] * 5
    data = torch.cat(batches, 1)
    ends = data["next", "done"].squeeze(-1)
    assert ends.sum() > 60
    lengths = data["next", "step_count"].squeeze(-1)[ends]
    # in SAME_STEP mode TorchRL resets once more what has begun by itself, and so every second episode is never seen
    assert set(lengths.tolist()) == ({2, 3} if mode is gym.vector.AutoresetMode.DISABLED else {3})
    seen = data["next", "observation"][..., 0][ends]
    assert torch.equal(seen, lengths.float()), "the last observation is the episode's own, and not the next one's"
    assert torch.equal(data["observation"][:, 1:, 0][ends[:, :-1]], torch.zeros(int(ends[:, :-1].sum())))
