"""Workers by themselves, in the caller: what a rollout is, what updates do, and workers that users write."""

from __future__ import annotations

import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from sampler_kit import TO_THE_GOAL, Coin, Dicts, Fixed, GridWorld, Point, Scripted, Walk

from treadle import (
    DefaultWorker,
    EnvUpdate,
    EpisodeBatch,
    ExistingEnvUpdate,
    FragmentWorker,
    LocalSampler,
    NewEnvUpdate,
    SetTaskUpdate,
    UsageError,
    VecWorker,
    Worker,
    WorkerFactory,
    rollout,
    seeding,
)
from treadle.samplers import StepType, TimeStep

LIMIT = 9
DESCS = [
    ["SFFF", "FHFH", "FFFH", "HFFG"],
    ["SFFF", "FFFH", "FHFH", "HFFG"],
    ["SFFF", "FFFH", "FHFH", "FFFG"],
    ["SFFF", "FFFF", "FFFF", "FFFF"],
    ["SHFF", "HHFF", "FFFF", "FFFF"],
]
OTHERS = [
    ["FFFS", "FHFH", "FFFH", "HFFG"],
    ["FFSF", "FFFH", "FHFH", "HFFG"],
    ["FFFF", "FFSH", "FHFH", "FFFG"],
    ["FFFF", "FFFF", "FSFF", "FFFF"],
    ["HHFF", "HHHF", "HSHF", "HHHF"],
]


@pytest.fixture(autouse=True)
def own_randomness() -> Any:
    """Workers seed their process's generators; here that is the tests'."""
    with seeding.keep_globals():
        yield


def made(kind: type[Worker], agent: Any, env: Any, limit: float = LIMIT, **more: Any) -> Any:
    worker = kind(seed=100, max_episode_length=limit, worker_number=0, **more)
    worker.update_agent(agent)
    worker.update_env(env)
    return worker


def episodes_of(batch: EpisodeBatch) -> set[Any]:
    return {(tuple(part.actions), tuple(part.observations)) for part in batch.split()}


def test_a_default_worker_plays_one_episode_and_keeps_where_it_ended() -> None:
    worker = made(DefaultWorker, Scripted(TO_THE_GOAL), GridWorld())
    for _ in range(2):
        batch = worker.rollout()
        assert batch.observations.tolist() == [0, 1, 2, 6, 10, 14]
        assert batch.last_observations.tolist() == [15]  # the terminal one
        assert batch.actions.tolist() == [2, 2, 1, 1, 1, 2]
        assert batch.rewards.tolist() == [0, 0, 0, 0, 0, 1]
        assert batch.lengths.tolist() == [6]
        assert batch.lengths.dtype == np.int64
        assert [kind.name for kind in batch.step_types] == ["FIRST", *["MID"] * 4, "TERMINAL"]
    worker.shutdown()
    assert worker.env.closed


def test_the_workers_limit_cuts_and_leaves_the_step_type() -> None:
    batch = made(DefaultWorker, Fixed([np.zeros(2, np.float32)]), Point(), limit=5).rollout()
    assert [kind.name for kind in batch.step_types] == ["FIRST", *["MID"] * 4]
    assert batch.env_spec.max_episode_length is None


@pytest.mark.parametrize("kind", [DefaultWorker, VecWorker, FragmentWorker])
def test_an_environments_own_limit_below_the_workers_is_a_timeout(kind: type[Worker]) -> None:
    more = {} if kind is DefaultWorker else {"n_envs": 2}
    worker = made(kind, Fixed([np.zeros(2, np.float32)]), Point(max_episode_length=4), limit=100, **more)
    ends = [worker.rollout() for _ in range(9)]
    kinds = [step for batch in ends for step in batch.step_types]
    assert StepType.TIMEOUT in kinds
    if kind is not FragmentWorker:
        assert all(batch.step_types[-1] is StepType.TIMEOUT and set(batch.lengths) == {4} for batch in ends)


@pytest.mark.parametrize("kind", [DefaultWorker, VecWorker, FragmentWorker])
def test_observations_in_an_array_that_is_used_again_are_kept(kind: type[Worker]) -> None:
    more: dict[str, Any] = {} if kind is DefaultWorker else {"n_envs": 2}
    if kind is FragmentWorker:
        more["timesteps_per_call"] = 3
    worker = made(kind, Fixed([np.full(2, 0.1, np.float32)]), Point((9.0, 9.0)), limit=3, **more)
    for _ in range(2):
        for part in worker.rollout().split():
            assert np.allclose(part.observations[:, 0], [0, 0.1, 0.2])
            assert np.allclose(part.last_observations, 0.3)
            assert part.episode_infos_by_episode["goal"].tolist() == [[9, 9]]  # kept after the first episode, too


def test_a_vec_worker_plays_all_its_environments() -> None:
    worker = made(VecWorker, Scripted(TO_THE_GOAL), GridWorld(), n_envs=5)
    first, second = worker.rollout(), worker.rollout()
    assert len(first.lengths) == len(second.lengths) == 5
    assert str(first) == str(second)
    assert first.actions.var() > 0
    worker.shutdown()
    assert all(env.closed for env in worker._envs)
    alone = made(VecWorker, Scripted(TO_THE_GOAL), GridWorld(), n_envs=1)
    assert [len(alone.rollout().lengths) for _ in range(2)] == [1, 1]


def local(policy: Any, envs: Any, **factory: Any) -> LocalSampler:
    factory = {"seed": 100, "max_episode_length": LIMIT, "n_workers": 5, **factory}
    return LocalSampler.from_worker_factory(WorkerFactory(**factory), policy, envs)


def worlds(descs: Any) -> list[GridWorld]:
    return [GridWorld(desc) for desc in descs]


def test_a_vec_worker_makes_what_as_many_default_workers_make() -> None:
    policy = Scripted(TO_THE_GOAL)
    vec = {"n_workers": 1, "worker_class": VecWorker, "worker_args": {"n_envs": 5}}
    with local(policy, worlds(DESCS)) as true, local(policy, [worlds(DESCS)], **vec) as many:
        for _ in range(2):  # the second time no environment is at its beginning
            expected, found = true.obtain_samples(0, 100, None), many.obtain_samples(0, 100, None)
            assert found.lengths.sum() >= 100
            assert episodes_of(found) == episodes_of(expected)
        expected = true.obtain_samples(0, 36, None, worlds(OTHERS))
        found = many.obtain_samples(0, 36, None, [worlds(OTHERS)])
        assert episodes_of(found) == episodes_of(expected)


def test_updates_may_bring_the_first_environments() -> None:
    policy = Scripted(TO_THE_GOAL)
    with pytest.warns(UserWarning, match="sends a whole environment"):
        sampler = local(policy, [ExistingEnvUpdate(env) for env in worlds(DESCS)])
    with sampler, local(policy, worlds(DESCS)) as other:
        assert episodes_of(sampler.obtain_samples(0, 100, None)) == episodes_of(other.obtain_samples(0, 100, None))


def test_a_vec_worker_begins_anew_after_an_update_of_the_agent() -> None:
    worker = made(VecWorker, Fixed([0, 1]), Walk(), limit=50, n_envs=4)
    for gain in range(1, 6):
        worker.update_agent({"gain": np.array([gain])})
        for part in worker.rollout().split():
            assert set(part.agent_infos["gain"]) == {gain}  # no episode has two policies
            assert part.step_types[0] in (StepType.FIRST, StepType.TERMINAL, StepType.TIMEOUT)


@pytest.mark.parametrize("steps", [1, 2])
def test_fragments_go_on_where_they_stopped(steps: int) -> None:
    worker = made(FragmentWorker, Scripted(TO_THE_GOAL), GridWorld(), n_envs=5, timesteps_per_call=steps)
    seen: list[int] = []
    for i in range(-(-LIMIT // steps)):
        batch = worker.rollout()
        assert sum(batch.lengths) == steps * 5
        if steps * i < 4:
            assert StepType.TERMINAL not in list(batch.step_types)
        seen += batch.split()[0].observations.tolist()
    assert seen[:9] == [0, 1, 2, 6, 10, 14, 0, 1, 2][: len(seen)]


def test_fragments_are_cut_by_the_workers_limit_over_several_calls() -> None:
    worker = made(
        FragmentWorker, Fixed([np.full(2, 0.1, np.float32)]), Point((9, 9)), limit=5, n_envs=1, timesteps_per_call=3
    )
    firsts = np.concatenate([worker.rollout().observations[:, 0] for _ in range(4)])
    assert np.allclose(firsts, [0, 0.1, 0.2, 0.3, 0.4, 0, 0.1, 0.2, 0.3, 0.4, 0, 0.1])


def test_what_is_discarded_of_a_fragment_is_played_all_the_same() -> None:
    worker = made(FragmentWorker, Fixed([np.full(2, 0.1, np.float32)]), Point((9, 9)), n_envs=1, timesteps_per_call=2)
    worker.rollout()
    worker.step_episode()
    worker.discard_episode()
    assert np.allclose(worker.rollout().observations[:, 0], [0.3, 0.4])


def test_an_update_of_the_agent_does_not_begin_fragments_anew() -> None:
    worker = made(FragmentWorker, Fixed([np.full(2, 0.1, np.float32)]), Point((9, 9)), n_envs=1, timesteps_per_call=2)
    worker.rollout()
    worker.update_agent({"gain": np.zeros(1)})
    assert np.allclose(worker.rollout().observations[:, 0], [0.2, 0.3])


# -- updates ----------------------------------------------------------------------------------------------------------


class SubPoint(Point):
    """Another type as far as a task update is concerned."""


def test_a_task_update_wants_the_exact_type() -> None:
    task = {"goal": np.array([2.0, 2.0])}
    old = Point()
    assert SetTaskUpdate(Point, task, None)(old) is old
    assert old._task is task
    assert SetTaskUpdate(Point, task, None)()._task is task
    with pytest.warns(UserWarning, match="of another type"):
        new = SetTaskUpdate(Point, task, None)(SubPoint())
    assert type(new) is Point
    wrapped = SetTaskUpdate(Point, task, lambda env, given: (env, given))()
    assert wrapped[1] is task
    with pytest.raises(ValueError, match="env_type should be a type"):
        SetTaskUpdate(lambda: Point(), task, None)  # type: ignore[arg-type]


def test_updates_of_the_environment() -> None:
    worker = made(DefaultWorker, Scripted(TO_THE_GOAL), GridWorld())
    first = worker.env
    worker.update_env(None)
    worker.update_env(EnvUpdate())
    assert worker.env is first
    worker.update_env(NewEnvUpdate(lambda: GridWorld(DESCS[3])))
    assert first.closed
    assert worker.env.rows == DESCS[3]
    second = worker.env
    worker.update_env(GridWorld())
    assert second.closed
    with pytest.raises(TypeError, match="Unknown environment update type"):
        worker.update_env(7)
    with pytest.raises(TypeError, match="returned a NoneType, not an environment"):
        worker.update_env(NewEnvUpdate(lambda: None))
    with pytest.warns(UserWarning, match="sends a whole environment"):
        pickle.dumps(ExistingEnvUpdate(GridWorld()))


def test_an_update_sees_the_environment_as_its_owner_knows_it() -> None:
    seen = []

    class Look(EnvUpdate):
        def __call__(self, old_env: Any = None) -> Any:
            seen.append(old_env)
            return old_env

    env = gym.make("CartPole-v1")
    worker = made(DefaultWorker, Coin(2), env)
    worker.update_env(Look())
    assert seen == [env]
    assert worker.env.unwrapped is env.unwrapped
    assert worker.env.gravity == 9.8  # type: ignore[attr-defined]
    worker.shutdown()


def test_a_list_inside_the_list_must_fit_the_environments() -> None:
    worker = made(VecWorker, Scripted(TO_THE_GOAL), None, n_envs=2)
    with pytest.raises(ValueError, match="exactly n_envs"):
        worker.update_env([GridWorld()])


@pytest.mark.parametrize("parameters", [{"gain": np.zeros(1)}, (0.0,), np.zeros(1)])
def test_parameters_go_to_the_agent(parameters: Any) -> None:
    worker = made(DefaultWorker, agent := Fixed([0]), Walk())
    worker.update_agent(parameters)
    worker.update_agent(None)
    assert worker.agent is agent
    assert agent.gain[0] == (0.0 if isinstance(parameters, dict) else 1.0)


def test_agents_that_lack_something_are_told() -> None:
    with pytest.raises(TypeError, match="int is not an agent"):
        made(DefaultWorker, 3, GridWorld())
    with pytest.raises(TypeError, match="has no set_param_values"):
        made(DefaultWorker, Coin(), GridWorld()).update_agent({})
    with pytest.raises(TypeError, match="before there was an agent"):
        made(DefaultWorker, {}, GridWorld())

    class Mute:
        def reset(self, do_resets: Any = None) -> None:
            """It can do nothing else."""

    for kind in (DefaultWorker, VecWorker):
        with pytest.raises(TypeError, match="a Mute, has neither get_action"):
            made(kind, Mute(), GridWorld()).rollout()


def test_agents_with_one_of_the_two_methods_and_plain_functions_do() -> None:
    class One:
        def get_action(self, observation: Any) -> Any:
            return int(observation["in"]["n"] % 2), {"n": observation["in"]["n"]}

    class Many:
        def get_actions(self, observations: Any) -> Any:
            return observations["in"]["n"] % 2, {"n": observations["in"]["n"]}

    def plain(observations: Any) -> Any:
        return observations["in"]["n"] % 2

    for kind in (DefaultWorker, VecWorker):
        found = [made(kind, agent, Dicts()).rollout() for agent in (One(), Many(), plain)]
        assert [batch.actions[:4].tolist() for batch in found] == [[0, 1, 0, 1]] * 3
        assert found[0].agent_infos["n"].tolist() == found[1].agent_infos["n"].tolist()


def test_a_function_gets_a_generator_from_the_workers_randomness() -> None:
    def noisy(observations: Any, rng: Any) -> Any:
        if isinstance(rng, list):
            return [int(one.integers(0, 3)) for one in rng]
        return [int(rng.integers(0, 3))]

    runs = [made(kind, noisy, Walk()).rollout().actions.tolist() for kind in (DefaultWorker, DefaultWorker, VecWorker)]
    assert runs[0] == runs[1]
    assert runs[2]


def test_workers_do_not_pickle() -> None:
    with pytest.raises(ValueError, match="Workers are not pickleable"):
        pickle.dumps(made(DefaultWorker, Coin(), Walk()))


def test_a_factory() -> None:
    factory = WorkerFactory(
        seed=3, max_episode_length=7, n_workers=2, worker_class=VecWorker, worker_args={"n_envs": 3}
    )
    worker = factory(1)
    assert (worker._worker_number, worker._n_envs, factory._seed, factory._max_episode_length) == (1, 3, 3, 7)
    with pytest.raises(ValueError, match="Worker number is too big"):
        factory(2)
    assert factory.prepare_worker_messages(5, str) == ["5", "5"]
    with pytest.raises(ValueError, match="Length of list doesn't match number of workers"):
        factory.prepare_worker_messages([1])
    assert WorkerFactory(max_episode_length=1).n_workers >= 1
    for wrong in ({"n_workers": 0}, {"max_episode_length": 0}, {"is_tf_worker": True}, {"n_workers": 1.5}):
        with pytest.raises(UsageError):
            WorkerFactory(**{"max_episode_length": 1, **wrong})


# -- workers that users write -----------------------------------------------------------------------------------------


class TrialWorker(DefaultWorker):
    """As for RL2: several episodes a rollout, between which the agent is not reset."""

    def __init__(self, *, episodes_per_trial: int, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._episodes_per_trial = episodes_per_trial

    def start_episode(self) -> None:
        self._eps_length = 0
        self._prev_obs, _ = self.env.reset()

    def rollout(self) -> EpisodeBatch:
        self.agent.reset()
        for _ in range(self._episodes_per_trial):
            self.start_episode()
            while not self.step_episode():
                pass
        self._agent_infos["batch_idx"] = np.full(len(self._env_steps), self._worker_number)
        return self.collect_episode()


class ContextWorker(DefaultWorker):
    """As for PEARL: the agent hears of every step, and the worker has its own way of stepping."""

    def start_episode(self) -> None:
        self._eps_length = 0
        self._prev_obs, self._episode_info = self.env.reset()

    def step_episode(self) -> bool:
        action, agent_info = self.agent.get_action(self._prev_obs)
        step = self.env.step(action)
        self._observations.append(self._prev_obs)
        self._env_steps.append(step)
        for key, value in agent_info.items():
            self._agent_infos[key].append(value)
        self._eps_length += 1
        self.agent.context.append(
            TimeStep.from_env_step(
                env_step=step, last_observation=self._prev_obs, agent_info=agent_info, episode_info=self._episode_info
            )
        )
        if not step.last and self._eps_length < self._max_episode_length:
            self._prev_obs = step.observation
            return False
        self._lengths.append(self._eps_length)
        self._last_observations.append(self._prev_obs)
        return True


class Listening(Scripted):
    def __init__(self, actions: Any) -> None:
        super().__init__(actions)
        self.context: list[TimeStep] = []


def test_several_episodes_a_rollout() -> None:
    worker = made(TrialWorker, Fixed([np.zeros(2, np.float32)]), Point(), limit=100, episodes_per_trial=5)
    batch = worker.rollout()
    assert batch.rewards.shape == (500,)
    assert batch.lengths.tolist() == [100] * 5
    assert worker.agent.at == [500]  # reset once
    with local(
        Fixed([0]), Walk(), n_workers=2, worker_class=TrialWorker, worker_args={"episodes_per_trial": 3}
    ) as sampler:
        found = sampler.obtain_samples(0, 60, None)
        assert len(found.lengths) % 3 == 0
        assert set(found.agent_infos["batch_idx"]) == {0, 1}
        assert len(sampler.obtain_exact_episodes(4, None).lengths) == 8


def test_a_worker_with_its_own_way_of_stepping() -> None:
    worker = made(ContextWorker, agent := Listening(TO_THE_GOAL), GridWorld())
    batch = worker.rollout()
    assert batch.last_observations.tolist() == [15]  # though the worker itself noted the one before
    assert [step.observation for step in agent.context] == batch.observations.tolist()
    assert [step.next_observation for step in agent.context] == batch.next_observations.tolist()


def test_the_base_class_says_what_is_missing() -> None:
    bare = Worker(seed=1, max_episode_length=1, worker_number=0)
    for call in (bare.rollout, lambda: bare.update_agent(None), lambda: bare.update_env(None), bare.discard_episode):
        with pytest.raises(NotImplementedError, match=r"Worker\."):
            call()


def test_one_episode_here_and_now() -> None:
    path = rollout(GridWorld(), Scripted(TO_THE_GOAL))
    assert path["observations"].tolist() == [0, 1, 2, 6, 10, 14]
    assert path["next_observations"].tolist() == [1, 2, 6, 10, 14, 15]
    assert path["dones"].tolist() == [False] * 5 + [True]

    class Mean:
        def get_action(self, observation: Any) -> Any:
            return np.full(2, 0.1, np.float32), {"mean": np.zeros(2, np.float32)}

    path = rollout(Point(), Mean(), max_episode_length=3, deterministic=True)
    assert (path["actions"] == 0).all()
    assert path["observations"].shape == (3, 2)
    assert path["agent_infos"]["mean"].shape == (3, 2)
    assert path["episode_infos"]["goal"].tolist() == [1, 1]
    assert len(rollout(gym.make("CartPole-v1"), Coin(2), max_episode_length=4)["rewards"]) == 4
