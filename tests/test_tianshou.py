"""`treadle.tianshou`: what Tianshou's own vectors give, its collectors on top, partial steps, deaths, refusals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from conftest import require

pytestmark = pytest.mark.heavy

require("tianshou")
torch = require("torch")
torch.set_num_threads(1)

from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy  # noqa: E402
from tianshou.data import AsyncCollector, Batch, Collector, VectorReplayBuffer  # noqa: E402
from tianshou.env import DummyVectorEnv, VectorEnvNormObs  # noqa: E402
from tianshou.utils.net.common import Net  # noqa: E402
from tianshou.utils.net.discrete import DiscreteActor  # noqa: E402

from treadle.errors import UsageError  # noqa: E402
from treadle.tianshou import VectorEnv  # noqa: E402
from treadle.worker.options import WorkerOptions  # noqa: E402


class Steps(gym.Env):
    """Observes [steps, episodes] as an array or in a dict; ends after `length` steps. Waits for `gate` in its step."""

    action_space = gym.spaces.Discrete(3)

    def __init__(self, length: int = 3, form: str = "array", gate: str = "") -> None:
        box = gym.spaces.Box(0, 10 * length, (2,), np.float32)
        spaces = {"array": box, "dict": gym.spaces.Dict(at=box), "ragged": gym.spaces.Sequence(gym.spaces.Discrete(9))}
        self.observation_space: Any = spaces[form]
        self.length, self.form, self.gate = length, form, gate
        self.t, self.episode = 0, -1

    def _seen(self) -> Any:
        at = np.array([self.t, self.episode], np.float32)
        return {"array": at, "dict": {"at": at}, "ragged": tuple(range(self.t + 1))}[self.form]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.t, self.episode = 0, self.episode + 1
        return self._seen(), {"drawn": float(self.np_random.random()), "options": str(options)}

    def step(self, action: int) -> Any:
        while self.gate and not Path(self.gate).exists():
            pass
        if action == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        self.t += 1
        return self._seen(), float(action), self.t >= self.length, False, {"t": self.t, "more": {"x": float(self.t)}}


def steps(n: int, **kwargs: Any) -> list[Any]:
    return [lambda length=length: Steps(length, **kwargs) for length in range(3, 3 + n)]


def plain(values: Any) -> Any:
    """What an array (of dicts) holds, to be compared."""
    if isinstance(values, dict):
        return {key: plain(value) for key, value in values.items()}
    if isinstance(values, np.ndarray) and values.dtype == object:
        return [plain(value) for value in values]
    return values.tolist() if isinstance(values, np.ndarray | np.generic) else values


@pytest.mark.parametrize(
    "how",
    [{"workers": 2, "inline": 0}, {"worker_options": WorkerOptions(backend="serial")}],
    ids=["processes", "caller"],
)
@pytest.mark.parametrize("form", ["array", "dict"])
def test_steps_and_resets_are_those_of_tianshous_vectors(form: str, how: dict[str, Any]) -> None:
    ours, theirs = VectorEnv(steps(3, form=form), **how), DummyVectorEnv(steps(3, form=form))
    try:
        assert len(ours) == 3
        assert ours.action_space == theirs.action_space
        assert ours.observation_space == theirs.observation_space
        assert ours.seed(5) == [[5], [6], [7]]
        theirs.seed(5)
        for a, b in zip(ours.reset(), theirs.reset(), strict=True):
            assert plain(a) == plain(b)
        assert plain(ours.reset(1, options={"level": 2})[1]) == plain(theirs.reset(1, options={"level": 2})[1])
        for t in range(20):
            actions = np.array([t % 2, 1, 0])
            mine, other = ours.step(actions), theirs.step(actions)
            for a, b in zip(mine[:4], other[:4], strict=True):
                assert a.dtype == b.dtype or (form == "array" and a.dtype == np.float64)
                assert plain(a) == plain(b)
            assert plain(mine[4]) == plain(other[4])
            ended = np.flatnonzero(mine[2])
            if ended.size:
                assert plain(ours.reset(ended)[0]) == plain(theirs.reset(ended)[0])
        assert plain(ours.step([0, 1], [2, 0])[0]) == plain(theirs.step([0, 1], [2, 0])[0])
    finally:
        ours.close()
        theirs.close()


def test_seed_makes_random_actions_those_of_tianshous_vectors() -> None:
    def drawn(envs: Any) -> list[Any]:
        try:
            envs.seed(7)
            return [[space.sample() for space in envs.action_space] for _ in range(5)]
        finally:
            envs.close()

    class Own(Steps):
        def __init__(self) -> None:
            super().__init__()
            self.action_space = gym.spaces.Discrete(1000)  # in one process all others have one, and its generator

    for how in ({"workers": 2, "inline": 0}, {"worker_options": WorkerOptions(backend="serial")}):
        assert drawn(VectorEnv([Own] * 3, **how)) == drawn(DummyVectorEnv([Own] * 3))


def test_a_space_of_ones_own_is_taken_where_all_are_equal() -> None:
    class Anything(gym.Space):
        def contains(self, x: Any) -> bool:
            return True

        def __eq__(self, other: object) -> bool:
            return type(other) is Anything

    class Free(Steps):
        def __init__(self, length: int) -> None:
            super().__init__(length)
            self.observation_space = Anything()

        def _seen(self) -> Any:
            return f"step {self.t}"

    envs = VectorEnv([lambda: Free(3)] * 2, worker_options=WorkerOptions(backend="serial"))
    assert envs.reset()[0].tolist() == ["step 0"] * 2
    assert envs.step([0, 1])[0].tolist() == ["step 1"] * 2
    envs.close()


def test_ragged_observations_are_objects() -> None:
    envs = VectorEnv(steps(2, form="ragged"), workers=1)
    envs.reset()
    envs.reset(0)
    envs.step([0], [1])
    observations = envs.step([0, 0])[0]
    assert observations.dtype == object
    assert [len(each) for each in observations] == [2, 3]
    envs.close()


def test_attributes() -> None:
    envs = VectorEnv([*steps(2), lambda: gym.wrappers.TimeLimit(Steps(9), 4)], workers=1)
    assert envs.get_env_attr("length") == [3, 4, 9]
    assert envs.get_env_attr("length", [2, 0]) == [9, 3]
    envs.set_env_attr("length", 7, 1)
    envs.set_env_attr("mine", [1, 2])
    assert envs.get_env_attr("length", 1) == [7]
    assert envs.get_env_attr("mine") == [[1, 2]] * 3
    envs.close()
    with pytest.raises(AssertionError, match="cannot be called after close"):
        envs.reset()


def test_those_that_are_ready_first_come_first(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    envs = VectorEnv([*steps(2), lambda: Steps(9, gate=str(gate))], wait_num=2, workers=3)
    try:
        envs.reset()
        infos = envs.step([0, 1, 0])[4]
        assert sorted(info["env_id"] for info in infos) == [0, 1]
        assert envs.waiting_id == [2]
        assert envs.ready_id == [0, 1]
        with pytest.raises(UsageError, match="environment 2 is stepping, or does not exist; ready are \\[0, 1\\]"):
            envs.step([0], [2])
        observations, _ = envs.reset([0, 1])
        assert observations[:, 0].tolist() == [0, 0]
        assert envs.action_space == [Steps.action_space] * 3
        gate.touch()
        infos = envs.step(None)[4]
        assert [info["env_id"] for info in infos] == [2]
        with pytest.raises(UsageError, match="there are none"):
            envs.step(None)
    finally:
        envs.close()


def test_a_timeout_returns_what_there_is(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    envs = VectorEnv([*steps(1), lambda: Steps(9, gate=str(gate))], timeout=0.2, workers=2)
    try:
        envs.reset()
        assert [info["env_id"] for info in envs.step([0, 0])[4]] == [0]
        gate.touch()
        while len(envs.ready_id) < 2:
            envs.step(None)
        assert plain(envs.step([1, 1])[1]) == [1.0, 1.0] or envs.waiting_id
    finally:
        envs.close()


def test_a_death_is_a_row_that_is_cut() -> None:
    envs = VectorEnv(steps(2), workers=2, on_failure="restart")
    try:
        envs.reset()
        _, _, terminated, truncated, infos = envs.step([2, 1])
        assert (terminated.tolist(), truncated.tolist()) == ([False, False], [True, False])
        assert infos[0]["aborted"]
        assert envs.reset([0])[0].tolist() == [[0, 0]]
        assert envs.step([1, 1])[0][:, 0].tolist() == [1, 2]
    finally:
        envs.close()


class Noting(DiscreteActorPolicy):
    """Has a state and something to be kept with each step, without which Tianshou's asynchronous collector fails."""

    def forward(self, batch: Any, state: Any = None, **kwargs: Any) -> Any:
        found = super().forward(batch, state, **kwargs)
        found.policy, found.state = (Batch(row=np.arange(len(found.act))) for _ in range(2))
        return found


def collecting(cls: Any, envs: Any, **how: Any) -> Any:
    net = Net(state_shape=(2,), hidden_sizes=[8])
    policy = Noting(actor=DiscreteActor(preprocess_net=net, action_shape=2), action_space=gym.spaces.Discrete(2))
    collector = cls(policy, envs, VectorReplayBuffer(400, envs.env_num))
    collector.reset()
    return collector.collect(**how), collector.buffer


def test_a_collector_fills_its_buffer() -> None:
    envs = VectorEnv(steps(3), workers=1)
    try:
        stats, buffer = collecting(Collector, envs, n_episode=7)
        assert stats.n_collected_episodes == 7
        assert set(stats.lens) <= {3, 4, 5}
        assert len(buffer) == stats.n_collected_steps == sum(stats.lens)
        rows = buffer.sample_indices(0)
        assert buffer.obs_next[rows, 0].tolist() == (buffer.obs[rows, 0] + 1).tolist()
    finally:
        envs.close()


def test_an_asynchronous_collector_fills_its_buffer() -> None:
    envs = VectorEnv(steps(4), wait_num=2, workers=4)
    try:
        stats, buffer = collecting(AsyncCollector, envs, n_step=60)
        assert stats.n_collected_steps >= 60
        rows = buffer.sample_indices(0)
        assert buffer.obs_next[rows, 0].tolist() == (buffer.obs[rows, 0] + 1).tolist()
    finally:
        envs.close()


class Raises(Steps):
    """Number 1 in its second step, in which the others wait for a file."""

    def __init__(self, slot: int, file: str) -> None:
        super().__init__(length=9)
        self.slot, self.file = slot, file

    def step(self, action: int) -> Any:
        if self.t == 1 and self.slot == 1:
            raise ArithmeticError("boom")
        while self.t == 1 and not os.path.exists(self.file):
            time.sleep(0.001)
        return super().step(action)


@pytest.mark.parametrize("wait_num", [None, 1])
def test_after_an_environment_has_raised_the_others_go_on(wait_num: int | None, tmp_path: Path) -> None:
    """Also those that were still at their step then: what they bring is dropped, or comes with the next steps."""
    file = tmp_path / "open"
    envs = VectorEnv([partial(Raises, slot, str(file)) for slot in range(3)], wait_num=wait_num, workers=3)
    opening = threading.Timer(0.2, file.touch)
    try:
        envs.reset()
        envs.step([0, 0, 0])
        while envs.waiting_id:
            envs.step(None)
        if wait_num is None:
            opening.start()
        with pytest.raises(ArithmeticError, match="boom"):
            envs.step([0, 0, 0])
        assert envs.waiting_id == ([0, 2] if wait_num else [])
        file.touch()
        while envs.waiting_id:
            assert set(envs.step(None)[0][:, 0].tolist()) == {2.0}
        assert envs.reset(seed=1)[0][:, 0].tolist() == [0, 0, 0]
        assert envs.step([0], id=[1])[0][:, 0].tolist() == [1.0]
    finally:
        envs.close()
        if wait_num is None:
            opening.join()


def test_wrappers_go_on_top() -> None:
    envs = VectorEnvNormObs(VectorEnv(steps(2), workers=1))
    assert envs.reset()[0].shape == (2, 2)
    envs.step([0, 1])
    assert envs.get_obs_rms().count > 2
    envs.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"wait_num": 3}, "wait_num must be from 1 to 2"),
        ({"timeout": 0}, "timeout must be more than 0"),
        ({"autoreset_mode": "SameStep"}, "autoreset_mode= cannot be given here"),
    ],
)
def test_refusals(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        VectorEnv(steps(2), **options)


def test_without_tianshou_the_extra_is_named() -> None:
    script = "import sys; sys.modules['tianshou'] = None\nimport treadle.tianshou"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("treadle.errors.MissingExtra: treadle.tianshou needs Tianshou")
    assert last.endswith("pip install 'treadle[tianshou]'")
