"""What a failure in a sampler's worker is replayed from: its episode's seeds and actions, or the agent, asked again."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

from treadle import seeding
from treadle.errors import WorkerError
from treadle.program.gym_env import EnvRecipe
from treadle.repro import Repro, failure_of, note, note_unkept, recipe_of
from treadle.sample.failed import reason_of
from treadle.sample.named import env_name
from treadle.sample.samplers.agents import action_of, reset_agent
from treadle.sample.samplers.default_worker import DefaultWorker
from treadle.sample.samplers.sampler_slot import SlotRecipe
from treadle.sample.samplers.updates import environment, is_environment, of_gymnasium
from treadle.sample.samplers.worker import ENVIRONMENTS, GLOBALS

MORE = 1000  # episodes that are played, by arrival, after those that a worker had told of before it died


class AgentPlayed:
    """A worker's agent as an `Actor`, asked as workers ask it.

    Args:
        told: the agent as it was at first, and its updates.
        by_index: is it seeded for each episode, where it can be?
    """

    def __init__(self, told: list[Any], by_index: bool) -> None:
        self._told, self._by_index = told, by_index
        self._agent: Any = None

    def start(self, row: int, seed: int) -> None:
        """An episode begins."""
        if self._agent is None:
            worker = DefaultWorker(seed=None, max_episode_length=1, worker_number=0)
            for update in copy.deepcopy(self._told):  # the caller's own agent stays as it is
                worker.update_agent(update)
            self._agent = worker.agent
        seed_agent = getattr(self._agent, "seed", None)
        if self._by_index and callable(seed_agent):
            seed_agent(seed)
        reset_agent(self._agent)

    def act_alone(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        """Its action, and what it says of it."""
        return action_of(self._agent, observation)


def keep(recipe: SlotRecipe, updates: Any, asked: Any, played: int, error: WorkerError) -> None:
    """Keep it as the error's `repro`; nothing for what an update raised.

    Args:
        recipe: of the worker.
        updates: what it was told since, as `gathering.Updates`.
        asked: what it was doing, as `gathering.Asked`.
        played: its episodes that have come.
    """
    order, number, factory, where = asked.order, asked.worker, recipe.factory, error.where
    kind = getattr(factory, "_worker_class", None)
    if order is None or where.phase == "update":
        return
    root, episode, trail = order.root, where.episode, dict(error.trail or {})
    if not trail and not getattr(kind, "by_index", False):
        name = getattr(kind, "__name__", "worker of one's own")
        note_unkept(error, f"a {name} may play several environments at once, and none of them, a gymnasium.Env, raised")
        return
    agents = [recipe.agent, *(each.open() for each in updates.agent)]
    envs = [recipe.env, *(each.open() for each in updates.env)]
    if (which_env := trail.pop("env", None)) is not None:
        envs = [each[which_env] if isinstance(each, list) else each for each in envs]
    first, generator = trail.pop("start", (None, None))
    plays: list[tuple[int | None, int | None, int | None]] = []  # seed of the reset, seed of all else, number
    whose = f"worker {number}" if which_env is None else f"environment {which_env} of worker {number}"
    which = f"episode {episode} of {whose}" if trail else f"the episodes of worker {number}"
    if order.indices is not None:
        indices = order.indices[asked.made :] if episode is None else (episode,)
        which = f"episode {' or '.join(map(str, indices))}"
        plays = [(seeding.episode_env_seed(root, i), seeding.episode_policy_seed(root, i), i) for i in indices]
    elif trail:
        plays = [(first, None, None)]
    else:
        path, stop = (number, order.incarnation), played + MORE if episode is None else episode + 1
        begin = seeding.derive(root, ENVIRONMENTS, *path, len(envs)), seeding.derive(root, GLOBALS, *path), 0
        plays = [begin, *((None, None, each) for each in range(1, stop))]
    if not plays:  # all that was asked for had come
        return
    env = envs[0] if len(envs) == 1 and not is_environment(envs[0]) else partial(environment, envs)
    about = {"face": "episode", "title": f"{which} of {env_name(envs[0])}", "plays": plays, "seed": plays[0][0]}
    most = factory._max_episode_length
    repro = Repro({**about, "generator": generator, "max_steps": int(most) if most < 1 << 62 else None}, trail)
    recipe_of(repro, EnvRecipe(env, wrappers=(of_gymnasium,), registrations=None))
    phase = "step" if "action.0" in trail else where.phase
    repro.put("policy", AgentPlayed(agents, order.indices is not None))
    repro.about["failed"] = failure_of(error, reason_of(error)) | {"phase": phase}
    note(error, repro)
