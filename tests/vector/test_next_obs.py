"""`next_obs`: the terminal observation where a slot has moved on, in every mode, nesting and form of infos."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces as gs
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from small_envs import Counter, Echo, assert_same, of

from treadle.vector.gymnasium import VectorEnv
from treadle.vector.infos import InfoStyle
from treadle.vector.next_obs import next_obs
from treadle.worker.options import WorkerOptions


@pytest.mark.parametrize("infos", ["gymnasium", "legacy", InfoStyle.LIST])
def test_same_step(infos: str) -> None:
    vector = VectorEnv(
        [of(Counter, 2), of(Counter, 3)],
        worker_options=WorkerOptions(backend="serial"),
        autoreset_mode="SameStep",
        infos=infos,
    )
    vector.reset()
    vector.step([0, 0])
    observations, _, _, _, found = vector.step([0, 0])
    vector.close()
    assert observations.tolist() == [0, 2]
    assert next_obs(observations, found).tolist() == [2, 2]
    assert observations.tolist() == [0, 2]


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
@pytest.mark.parametrize("infos", ["gymnasium", InfoStyle.LIST])
def test_rows_that_show_the_end_already(mode: AutoresetMode, infos: str) -> None:
    vector = VectorEnv(
        [of(Counter, 1)] * 2, worker_options=WorkerOptions(backend="serial"), autoreset_mode=mode, infos=infos
    )
    vector.reset()
    observations, _, terminations, _, found = vector.step([0, 0])
    vector.close()
    assert terminations.all()
    assert observations.tolist() == [1, 1]
    assert next_obs(observations, found) is observations


NESTED = gs.Dict(
    picture=gs.Box(0, 255, (2, 2), np.uint8),
    pair=gs.Tuple([gs.Discrete(9), gs.Text(4)]),
    list=gs.Sequence(gs.Discrete(3)),
)


@pytest.mark.parametrize("given", [True, False])
def test_nested_spaces(given: bool) -> None:
    vector = VectorEnv(
        [of(Echo, NESTED)] * 3, worker_options=WorkerOptions(backend="serial"), autoreset_mode="SameStep"
    )
    vector.reset(seed=1)
    for _ in range(2):
        vector.step([0, 0, 0])
    observations, _, _, _, infos = vector.step([0, 1, 0])
    space = vector.single_observation_space if given else None
    followed = next_obs(observations, infos, space)
    vector.close()
    for slot in range(3):
        final = infos["final_obs"][slot]
        assert final in vector.single_observation_space
        assert_same(followed["picture"][slot], final["picture"])
        assert_same(followed["pair"][0][slot], final["pair"][0])
        assert_same(followed["pair"][1][slot], final["pair"][1])
        assert_same(followed["list"][slot], final["list"])


def test_the_space_settles_what_a_tuple_is() -> None:
    """Two slots with sequences of two values look like a Tuple space of two parts."""
    observations: Any = ((1, 1), (2, 2))
    infos = [{}, {"final_obs": (8, 9)}]
    assert next_obs(observations, infos, gs.Sequence(gs.Discrete(10))) == ((1, 1), (8, 9))
    assert next_obs(observations, infos, gs.Tuple([gs.Text(1), gs.Text(1)])) == ((1, 8), (2, 9))


class Ends(gym.Env[Any, Any]):
    """Every step ends an episode, with the same observation."""

    action_space = gs.Discrete(2)

    def __init__(self, space: gs.Space[Any], last: Any) -> None:
        self.observation_space, self._last = space, last

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self._last, {}

    def step(self, action: Any) -> Any:
        return self._last, 0.0, True, False, {}


PAIR = gs.Dict(n=gs.Discrete(9), x=gs.Box(-1, 1, ()), v=gs.Box(-1, 1, (2,)))
LAST: dict[str, tuple[gs.Space[Any], Any]] = {
    "int": (gs.Discrete(9), 4),
    "int64": (gs.Discrete(9), np.int64(4)),
    "int32": (gs.Discrete(9), np.int32(4)),
    "0-d integer": (gs.Discrete(9), np.array(4)),
    "float32": (gs.Box(-1, 1, ()), np.float32(0.5)),
    "0-d float": (gs.Box(-1, 1, ()), np.array(0.5, np.float32)),
    "nested": (PAIR, {"n": 3, "x": np.float32(0.1), "v": np.ones(2, np.float32)}),
    "vector": (gs.Box(-1, 1, (2,)), np.ones(2, np.float32)),
    "text": (gs.Tuple((gs.Text(3), gs.Discrete(3))), ("abc", 1)),
}
SETUPS: list[dict[str, Any]] = [
    {"worker_options": WorkerOptions(backend="serial")},
    {"workers": 1, "inline": 1},
    {"worker_options": WorkerOptions(backend="thread")},
]


def kinds(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: kinds(part) for key, part in value.items()}
    return tuple(map(kinds, value)) if isinstance(value, tuple) else type(value)


@pytest.mark.parametrize("name", LAST)
@pytest.mark.parametrize("setup", SETUPS, ids=str)
@pytest.mark.parametrize("how", ["step", "recv", "rollout"])
def test_final_observations_are_of_the_types_that_environments_gave(name: str, setup: dict[str, Any], how: str) -> None:
    space, last = LAST[name]
    vector = VectorEnv([of(Ends, space, last)] * 2, autoreset_mode="SameStep", **setup)
    if how == "rollout":
        finals = list(vector.rollout(steps=1).terminal_observations.values())
    elif how == "recv":
        vector.async_reset(seed=1)
        vector.recv(min=2)
        vector.send([0, 0])
        finals = list(vector.recv(min=2)[4]["final_obs"])
    else:
        vector.reset(seed=1)
        finals = list(vector.step([0, 0])[4]["final_obs"])
    vector.close()
    sync = SyncVectorEnv([of(Ends, space, last)] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    sync.reset()
    theirs = list(sync.step([0, 0])[4]["final_obs"])
    sync.close()
    assert_same(finals, theirs)
    assert kinds(tuple(finals)) == kinds(tuple(theirs))
    assert kinds(finals[0]) == kinds(last)
    if "0-d" not in name and np.shape(last) == () and not isinstance(last, dict):
        assert {*finals} == {last}  # they can be hashed


def test_a_final_observation_is_not_the_array_that_the_environment_goes_on_with() -> None:
    last = np.array(0.5, np.float32)
    vector = VectorEnv(
        lambda: Ends(gs.Box(-1, 1, ()), last),
        1,
        worker_options=WorkerOptions(backend="serial"),
        autoreset_mode="SameStep",
    )
    vector.reset()
    final = vector.step([0])[4]["final_obs"][0]
    vector.close()
    last[...] = 0.25
    assert final == 0.5


def test_terminal_observations_of_a_discrete_space_are_scalars_in_every_mode() -> None:
    vector = VectorEnv([of(Counter, 2)] * 2, worker_options=WorkerOptions(backend="serial"), autoreset_mode="Disabled")
    rollout = vector.rollout(steps=4)
    vector.close()
    assert set(rollout.terminal_observations.values()) == {2}
