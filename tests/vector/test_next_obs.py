"""`next_obs`: the terminal observation where a slot has moved on, in every mode, nesting and form of infos."""

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces as gs
from gymnasium.vector import AutoresetMode
from small_envs import Counter, Echo, assert_same, of

from treadle.vector.gymnasium import VectorEnv
from treadle.vector.next_obs import next_obs


@pytest.mark.parametrize("infos", ["gymnasium", "legacy", "list"])
def test_same_step(infos: str) -> None:
    vector = VectorEnv([of(Counter, 2), of(Counter, 3)], backend="serial", autoreset_mode="SameStep", infos=infos)
    vector.reset()
    vector.step([0, 0])
    observations, _, _, _, found = vector.step([0, 0])
    vector.close()
    assert observations.tolist() == [0, 2]
    assert next_obs(observations, found).tolist() == [2, 2]
    assert observations.tolist() == [0, 2]


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
@pytest.mark.parametrize("infos", ["gymnasium", "list"])
def test_rows_that_show_the_end_already(mode: AutoresetMode, infos: str) -> None:
    vector = VectorEnv([of(Counter, 1)] * 2, backend="serial", autoreset_mode=mode, infos=infos)
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
    vector = VectorEnv([of(Echo, NESTED)] * 3, backend="serial", autoreset_mode="SameStep")
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


SCALARS = gs.Dict(n=gs.Discrete(9), x=gs.Box(-1, 1, ()), v=gs.Box(-1, 1, (2,)))


@pytest.mark.parametrize("space", [gs.Discrete(9), gs.Box(-1, 1, ()), SCALARS], ids=lambda space: type(space).__name__)
@pytest.mark.parametrize("how", ["step", "recv", "rollout"])
def test_final_observations_of_shape_nothing_are_scalars(space: gs.Space[Any], how: str) -> None:
    """As environments return them: they can be hashed, as keys of a table are."""
    vector = VectorEnv([of(Echo, space)] * 2, workers=1, inline=1, autoreset_mode="SameStep")
    rollout, infos = None, None
    if how == "rollout":
        rollout = vector.rollout(steps=3)
        finals = list(rollout.terminal_observations.values())
    elif how == "recv":
        vector.async_reset(seed=1)
        for _ in range(3):
            vector.recv(min=2)
            vector.send([0, 0])
        *_, infos = vector.recv(min=2)
        finals = list(infos["final_obs"])
    else:
        vector.reset(seed=1)
        for _ in range(3):
            *_, infos = vector.step([0, 0])
        finals = list(infos["final_obs"])
    vector.close()
    assert len(finals) == 2
    for final in finals:
        scalars = [final["n"], final["x"]] if isinstance(final, dict) else [final]
        assert all(isinstance(scalar, np.generic) for scalar in scalars)
        assert len({*scalars}) == len(scalars)
        if isinstance(final, dict):
            assert isinstance(final["v"], np.ndarray)


def test_terminal_observations_of_a_discrete_space_are_scalars_in_every_mode() -> None:
    vector = VectorEnv([of(Counter, 2)] * 2, backend="serial", autoreset_mode="Disabled")
    rollout = vector.rollout(steps=4)
    vector.close()
    assert set(rollout.terminal_observations.values()) == {2}
