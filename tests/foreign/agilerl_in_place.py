"""A plugin of pytest: our vector of PettingZoo's environments in the place of AgileRL's, behind its constructor."""

from __future__ import annotations

from functools import partial
from typing import Any

import agilerl.vector.pz_async_vec_env as module

import treadle
from treadle.pettingzoo import AgentsEnv, AgentsVector


def made(make: Any) -> Any:
    env = make()
    if not hasattr(env, "agents"):  # PettingZoo wants them; one of the tests' environments has none
        env.agents = list(env.possible_agents)
    return env


class InPlaceOfAsync(AgentsVector):
    """Its infos name every agent in every step."""

    def __init__(self, env_fns: Any, copy: bool = True, context: str | None = None) -> None:
        envs = [partial(AgentsEnv, partial(made, make)) for make in env_fns]
        super().__init__(
            treadle.VectorEnv(
                envs, autoreset_mode="SameStep", worker_options=treadle.WorkerOptions(start_method=context)
            )
        )
        self.get_attr, self.set_attr = self.vec.get_attr, self.vec.set_attr

    def _infos(self, infos: dict[Any, Any], n: int) -> dict[Any, Any]:
        return {**{agent: {} for agent in self.agents}, **super()._infos(infos, n)}


module.AsyncPettingZooVecEnv = InPlaceOfAsync
