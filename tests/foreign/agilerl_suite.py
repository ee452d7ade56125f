"""AgileRL's vector of PettingZoo environments beside ours. Run by `make test-foreign ARGS=agilerl`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from agilerl.vector import AsyncPettingZooVecEnv
from mpe2 import simple_speaker_listener_v4, simple_spread_v3, simple_tag_v3

from treadle import pettingzoo

N = 3


@pytest.mark.parametrize("module", [simple_spread_v3, simple_tag_v3, simple_speaker_listener_v4])
@pytest.mark.parametrize("continuous", [False, True])
def test_the_same_batches_as_agilerls_vector(module: Any, continuous: bool) -> None:
    def make() -> Any:
        return module.parallel_env(continuous_actions=continuous, max_cycles=20)

    theirs = AsyncPettingZooVecEnv([make] * N)
    ours = pettingzoo.make_vec(make, N, workers=2, inline=0)
    try:
        assert list(theirs.agents) == ours.agents
        for agent in ours.agents:
            assert theirs.single_observation_space(agent) == ours.single_observation_space(agent)
            assert theirs.single_action_space(agent) == ours.single_action_space(agent)
            assert theirs.observation_space(agent) == ours.observation_space(agent)
            assert theirs.action_space(agent) == ours.action_space(agent)
        a, b = theirs.reset(seed=7)[0], ours.reset(seed=7)[0]
        for t in range(20):
            for agent in ours.agents:
                assert a[agent].tobytes() == b[agent].tobytes(), (t, agent)
            actions = {}
            for agent in ours.agents:
                ours.action_space(agent).seed(t)
                actions[agent] = ours.action_space(agent).sample()
            a, *of_theirs, _ = theirs.step(actions)
            b, *of_ours, _ = ours.step(actions)
            for mine, other in zip(of_ours, of_theirs, strict=True):
                for agent in ours.agents:
                    assert np.array_equal(mine[agent], other[agent]), (t, agent)
        assert all(of_ours[2][agent].all() for agent in ours.agents)
    finally:
        theirs.close()
        ours.close()
