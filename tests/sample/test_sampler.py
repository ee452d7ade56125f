"""Samplers: one suite over all, for they run one loop. What happens when workers fail is in test_sampler_failures."""

from __future__ import annotations

import pickle
import queue
import random
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from sampler_kit import TO_THE_GOAL, Coin, Dicts, Fixed, GridWorld, Noisy, Point, Scripted, SlowWalk, Walk

from treadle import (
    DefaultWorker,
    EpisodeBatch,
    FragmentWorker,
    LocalSampler,
    MultiprocessingSampler,
    NewEnvUpdate,
    RaySampler,
    Sampler,
    SetTaskUpdate,
    TaskRaised,
    UsageError,
    VecWorker,
    WorkerFactory,
    compare,
    run_worker,
    seeding,
    trees,
)
from treadle.samplers import StepType
from treadle.samplers.stop_rules import Exactly
from treadle.samplers.trajectories import trajectories_of
from treadle.samplers.worker import DefaultWorker as OrdinaryWorker
from treadle.worker.options import WorkerOptions

LIMIT = 16
ON_RAY = pytest.param(RaySampler, marks=[pytest.mark.heavy, pytest.mark.ray])
BOTH = pytest.mark.parametrize("kind", [LocalSampler, MultiprocessingSampler])
ALL = pytest.mark.parametrize("kind", [LocalSampler, MultiprocessingSampler, ON_RAY])


def factory(**more: Any) -> WorkerFactory:
    return WorkerFactory(**{"seed": 100, "max_episode_length": LIMIT, "n_workers": 2, **more})


def make(kind: Any, agents: Any, envs: Any, *, options: dict[str, Any] | None = None, **more: Any) -> Any:
    return kind(agents, envs, worker_factory=factory(**more), **(options or {}))


def points(count: int) -> list[SetTaskUpdate]:
    goals = np.random.default_rng(5).uniform(-2, 2, (count, 2))
    return [SetTaskUpdate(Point, {"goal": goal}, None) for goal in goals]


def step(x: float = 0.1, y: float = 0.0) -> np.ndarray:
    return np.array([x, y], np.float32)


def same(a: EpisodeBatch, b: EpisodeBatch) -> bool:
    names = [name for name in a.__dict__ if name != "env_spec"]
    return set(a.__dict__) == set(b.__dict__) and all(trees.equal(getattr(a, n), getattr(b, n)) for n in names)


# -- what is asked for is what comes ----------------------------------------------------------------------------------


@ALL
def test_whole_episodes_until_there_are_enough_steps(kind: Any) -> None:
    with make(kind, Scripted(TO_THE_GOAL), GridWorld(), n_workers=3) as sampler:
        batch = sampler.obtain_samples(0, 200, tuple(Scripted([]).get_param_values()))
        assert len(batch) >= 200
        assert len(batch) - batch.lengths[-1] < 200  # no episode more than that
        for part in batch.split():
            assert part.observations.tolist() == [0, 1, 2, 6, 10, 14]
            assert part.last_observations.tolist() == [15]
            assert part.actions.tolist() == [2, 2, 1, 1, 1, 2]
            assert part.rewards.tolist() == [0, 0, 0, 0, 0, 1]
        assert sampler.total_env_steps == len(batch)
        assert len(sampler.obtain_samples(None, 1, None)) == 6
        assert sampler.total_env_steps == len(batch) + 6


@ALL
def test_an_exact_number_of_episodes_in_worker_order(kind: Any) -> None:
    agents = [Fixed([step(0.01 * i)]) for i in range(4)]
    with make(kind, agents, Point(), n_workers=4) as sampler:
        for count in (3, 1):
            batch = sampler.obtain_exact_episodes(count, agent_update=agents)
            assert len(batch.lengths) == 4 * count
            for i, part in enumerate(batch.split()):
                assert (part.actions == step(0.01 * (i // count))).all()


@ALL
def test_vec_workers_make_exact_numbers_too(kind: Any) -> None:
    more = {"worker_class": VecWorker, "worker_args": {"n_envs": 3}}
    with make(kind, Coin(), Walk(), **more) as sampler:
        assert len(sampler.obtain_exact_episodes(4, None).lengths) == 8


def test_rollouts_of_several_episodes_are_cut_at_a_workers_number() -> None:
    with make(LocalSampler, Coin(), Walk(), n_workers=1) as sampler:
        three = trajectories_of([sampler.obtain_exact_episodes(3, None)])  # one rollout, as of a VecWorker
    rule, lengths = Exactly(4, 2), three.lengths.tolist()
    for worker in (1, 0):
        takes = [rule.take(worker, three) for _ in range(3)]
        assert [None if each is None else each.lengths.tolist() for each in takes] == [lengths, lengths[:1], None]
    assert rule.done
    assert [each.lengths.tolist() for each in rule.batches()] == [lengths, lengths[:1]] * 2


@ALL
def test_updates_of_environments_one_a_worker(kind: Any) -> None:
    with make(kind, Fixed([step()]), Point(), n_workers=4) as sampler:
        batch = sampler.obtain_samples(0, 161, {"gain": np.ones(1)}, env_update=points(4))
        goals = [part.env_infos["task"][0]["goal"].tolist() for part in batch.split()]
        expected = [update._task["goal"].tolist() for update in points(4)]
        assert all(goal in expected for goal in goals)
        if kind is LocalSampler:  # one rollout of each in turn
            assert goals == (expected * 3)[:11]
        exact = sampler.obtain_exact_episodes(1, None)  # they stay
        assert [part.env_infos["task"][0]["goal"].tolist() for part in exact.split()] == expected
        with pytest.raises(ValueError, match="Length of list doesn't match number of workers"):
            sampler.obtain_samples(0, 10, None, env_update=points(5))
        assert len(sampler.obtain_samples(0, 10, None)) >= 10


@ALL
def test_the_first_environments_may_be_updates(kind: Any) -> None:
    with make(kind, Fixed([step()]), points(2)) as sampler:
        assert sum(sampler.obtain_samples(0, 160, Fixed([step()])).lengths) >= 160
    with make(kind, Coin(2), NewEnvUpdate(lambda: gym.make("CartPole-v1")), seed=None) as sampler:
        assert len(sampler.obtain_samples(0, 50, None)) >= 50


@ALL
def test_updates_of_agents(kind: Any) -> None:
    with make(kind, Fixed([step()]), Point()) as sampler:

        def gains(update: Any) -> list[float]:
            batch = sampler.obtain_exact_episodes(1, update)
            return [part.agent_infos["gain"][0] for part in batch.split()]

        assert gains(None) == [1, 1]
        assert gains({"gain": np.full(1, 2.0)}) == [2, 2]
        assert gains(None) == [2, 2]
        big = np.zeros(100_000)  # too large for a message: through a memory file
        big[0] = 3
        assert gains({"gain": big}) == [3, 3]
        assert gains(Fixed([step()])) == [1, 1]
        if kind is MultiprocessingSampler:  # in the caller all workers share one agent
            assert gains([{"gain": big + 1}, {"gain": np.full(1, 5.0)}]) == [4, 5]


def test_weights_are_pickled_once_for_all_workers() -> None:
    class Counted:
        pickled = 0

        def __init__(self) -> None:
            self.weights = np.ones(50_000)

        def __reduce__(self) -> Any:
            Counted.pickled += 1
            return _weights, (self.weights,)

    with make(MultiprocessingSampler, Coin(), Walk(), n_workers=3) as sampler:
        with pytest.raises(TaskRaised, match="has no set_param_values"):
            sampler.obtain_exact_episodes(1, (Counted(),))
        assert Counted.pickled == 1


def _weights(weights: np.ndarray) -> np.ndarray:
    return weights


class Scribbler(Fixed):
    """Writes into the parameters that it was given."""

    def set_param_values(self, values: Any) -> None:
        super().set_param_values(values)
        self.gain += 1


def test_a_worker_that_writes_into_its_weights_touches_nobody_elses() -> None:
    with make(MultiprocessingSampler, Scribbler([step()]), Point(), n_workers=3) as sampler:
        weights = np.zeros(100_000)
        for _ in range(2):
            batch = sampler.obtain_exact_episodes(1, {"gain": weights})
            assert set(batch.agent_infos["gain"]) == {1.0}
        assert not weights.any()


@ALL
def test_no_episode_of_an_older_agent_mixes_in(kind: Any) -> None:
    with make(kind, Fixed([step()]), Point(), n_workers=3) as sampler:
        for version in range(1, 12):
            batch = sampler.obtain_samples(0, 40, {"gain": np.full(1, float(version))})
            assert set(batch.agent_infos["gain"]) == {float(version)}


@ALL
def test_late_episodes_come_with_their_version_if_they_are_wanted(kind: Any) -> None:
    with make(kind, Fixed([0, 1]), Walk(), options={"allow_stale": True}) as sampler:
        late = version = 0
        while version < 3 or (not late and kind is MultiprocessingSampler):  # workers play on in between
            version += 1
            batch = sampler.obtain_samples(0, 30, {"gain": np.full(1, float(version))})
            told = batch.episode_infos["agent_version"]
            assert (told == batch.agent_infos["gain"]).all()
            assert told.max() <= version
            late += int((told < version).sum())
        exact = sampler.obtain_exact_episodes(1, {"gain": np.zeros(1)})  # which takes none
        assert set(exact.agent_infos["gain"]) == {0.0}
        assert set(exact.episode_infos["agent_version"]) == {version + 1}


@ALL
def test_an_environments_own_version_is_kept(kind: Any) -> None:
    class Released(Walk):
        def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
            return super().reset(**kwargs)[0], {"agent_version": 77}

    with make(kind, Fixed([0, 1]), Released(), options={"allow_stale": True}) as sampler:
        infos = sampler.obtain_samples(0, 30, None).episode_infos
        assert set(infos["agent_version"]) == {1}
        assert set(infos["env_agent_version"]) == {77}


@ALL
def test_dicts_fragments_and_vectors(kind: Any) -> None:
    with make(kind, Coin(2), Dicts()) as sampler:
        batch = sampler.obtain_samples(0, 30, None)
        assert batch.observations["in"]["n"].reshape(-1, 4).tolist() == [[0, 1, 2, 3]] * len(batch.lengths)
        assert (batch.last_observations["in"]["n"] == 4).all()
        assert (batch.next_observations["x"][3] == 4).all()
    more = {"worker_class": FragmentWorker, "worker_args": {"n_envs": 2, "timesteps_per_call": 3}}
    with make(kind, Fixed([0]), Dicts(), n_workers=1, **more) as sampler:
        seen = sampler.obtain_samples(0, 24, None)
        later = sampler.obtain_samples(0, 6, None)
    parts = [part.observations["in"]["n"].tolist() for part in seen.split()]
    assert parts[:2] == [[0, 1, 2]] * 2  # the first call cuts in the middle
    assert parts[2:4] == [[3], [3]]  # the next one goes on there
    assert len(later) >= 6


@ALL
def test_ends_are_what_the_environment_says(kind: Any) -> None:
    with make(kind, Coin(), Walk(), max_episode_length=1000) as sampler:
        batch = sampler.obtain_samples(0, 300, None)
    for part in batch.split():
        assert part.step_types[-1] is (StepType.TIMEOUT if len(part) % 2 else StepType.TERMINAL)
        assert part.observations[:, 0].tolist() == list(range(len(part)))  # the same array all along, and yet
        assert part.last_observations[0, 0] == len(part)
        assert part.episode_infos_by_episode["end"].tolist() == [len(part)]
        assert part.env_infos["t"].tolist() == list(range(1, len(part) + 1))
        assert (part.env_infos["hit"] == (part.actions == 2)).all()
        assert (part.env_infos["_hit"] == (part.actions == 2)).all()


# -- the same whichever way it is played ------------------------------------------------------------------------------


class Ordinary(OrdinaryWorker):
    """A default worker that cannot be driven by the tight loop, because something is overridden."""

    def step_episode(self) -> bool:
        return super().step_episode()


@pytest.mark.parametrize("env", [Walk(), Dicts(), gym.make("CartPole-v1")])
def test_the_tight_loop_makes_what_the_ordinary_way_makes(env: Any) -> None:
    batches = []
    for worker_class in (DefaultWorker, Ordinary):
        with make(LocalSampler, Coin(2), env, worker_class=worker_class) as sampler:
            batches.append([sampler.obtain_exact_episodes(9, None), sampler.obtain_exact_episodes(2, None)])
    assert all(map(same, *batches))


@pytest.mark.parametrize("env", [Walk(), Noisy()])
def test_both_samplers_make_the_same_exact_episodes(env: Any) -> None:
    batches = []
    for kind in (LocalSampler, MultiprocessingSampler):
        with make(kind, Coin(2), env) as sampler:
            batches.append([sampler.obtain_exact_episodes(5, None), sampler.obtain_exact_episodes(2, None)])
    assert all(map(same, *batches))


@pytest.mark.parametrize("env", [Walk(), Noisy()])
@pytest.mark.parametrize("worker_class", [DefaultWorker, VecWorker])
@BOTH
def test_copies_of_an_environment_are_seeded_apart(kind: Any, env: Any, worker_class: Any) -> None:
    for seed in (1, None):
        with make(kind, Fixed([0]), env, n_workers=3, seed=seed, worker_class=worker_class) as sampler:
            parts = sampler.obtain_exact_episodes(3, None).split()
    firsts = {float(part.observations[0].sum() + part.observations[-1].sum()) for part in parts}
    assert len(firsts) == len(parts)


def test_unseeded_workers_differ() -> None:
    for kind in (LocalSampler, MultiprocessingSampler):
        draws = []
        for _ in range(2):
            with make(kind, Coin(), Walk(), seed=None) as sampler:
                draws += [part.agent_infos["draw"][0] for part in sampler.obtain_exact_episodes(1, None).split()]
        assert len(set(draws)) == 4


@ALL
def test_the_callers_randomness_is_its_own(kind: Any) -> None:
    random.seed(3)
    np.random.seed(3)
    expected = random.random(), np.random.random()
    random.seed(3)
    np.random.seed(3)
    with make(kind, Coin(), Walk()) as sampler:
        sampler.obtain_samples(0, 50, None)
        sampler.obtain_exact_episodes(1, Coin())
        sampler.evaluate(2)
    assert (random.random(), np.random.random()) == expected


# -- the deterministic schedule ---------------------------------------------------------------------------------------


def test_by_index_any_number_of_workers_makes_the_same_bytes() -> None:
    runs = []
    for kind, workers in (
        (LocalSampler, 1),
        (LocalSampler, 3),
        (MultiprocessingSampler, 1),
        (MultiprocessingSampler, 2),
        (MultiprocessingSampler, 5),
    ):
        with make(kind, Coin(), SlowWalk(), n_workers=workers, options={"ordered": True}) as sampler:
            first = sampler.obtain_samples(0, 300, None)
            second = sampler.obtain_samples(0, 100, Coin(2))
        runs.append((first, second))
    for run in runs[1:]:
        assert all(map(same, run, runs[0]))
    first, second = runs[0]
    assert len(first) >= 300 > len(first) - first.lengths[-1]
    expected = []
    for index in range(len(first.lengths)):  # by index, whatever its length
        with seeding.keep_globals():
            env = Walk()
            _, info = env.reset(seed=seeding.episode_env_seed(100, index))
            expected.append(min(info["end"], LIMIT))
    assert first.lengths.tolist() == expected
    _, info = Walk().reset(seed=seeding.episode_env_seed(100, len(first.lengths)))
    assert second.lengths[0] == info["end"]  # the next sampling goes on where that one ended


def test_by_index_exact_numbers_are_in_order_of_index() -> None:
    runs = []
    for workers, each in ((1, 6), (3, 2)):
        with make(MultiprocessingSampler, Coin(2), Noisy(), n_workers=workers, options={"ordered": True}) as sampler:
            runs.append(sampler.obtain_exact_episodes(each, None))
    assert len(runs[0].lengths) == 6
    assert same(*runs)


def test_what_depends_on_the_worker_is_refused_by_index() -> None:
    options = {"ordered": True}
    with pytest.raises(UsageError, match="agents is a list of different things"):
        make(LocalSampler, [Coin(), Coin()], Walk(), options=options)
    with make(LocalSampler, Coin(), Walk(), options=options) as sampler:
        with pytest.raises(UsageError, match="env_update is a list of different things"):
            sampler.obtain_samples(0, 10, None, [Walk(), Walk()])
        assert len(sampler.obtain_samples(0, 10, None)) >= 10
    for kind in (LocalSampler, MultiprocessingSampler):
        with (
            make(kind, Coin(), Walk(), worker_class=VecWorker, options=options) as sampler,
            pytest.raises(ValueError, match="a VecWorker cannot play single episodes"),
        ):
            sampler.obtain_samples(0, 10, None)
    with pytest.raises(UsageError, match="ordered must be True or False"):
        make(LocalSampler, Coin(), Walk(), options={"ordered": "random"})


@ALL
def test_evaluating_between_samplings(kind: Any) -> None:
    runs = []
    for evaluations in (0, 2):
        with make(kind, Coin(), Walk(), max_episode_length=100) as sampler:
            before = sampler.obtain_exact_episodes(2, None)
            scores = [sampler.evaluate(8, seed=4) for _ in range(evaluations)]
            assert sampler.total_env_steps == len(before)
            after = sampler.obtain_exact_episodes(2, None)
        assert not same(before, after)
        runs.append((before, after))
    assert same(runs[0][0], runs[1][0])
    first, second = scores
    assert first == second
    assert [score.index for score in first.scores] == list(range(8))
    assert {score.seed for score in first.scores} == {seeding.episode_env_seed(4, i) for i in range(8)}
    assert all(score.terminated == (score.length % 2 == 0) for score in first.scores)
    assert compare(first, second).difference == 0
    starts = [part.observations[0, 1] for batch in runs[1] for part in batch.split()]
    assert len(set(starts)) == len(starts)  # an evaluation does not rewind the environments


# -- constructing, pickling, ending -----------------------------------------------------------------------------------


@BOTH
def test_both_orders_of_arguments(kind: Any) -> None:
    wf, agent, env = factory(), Coin(), Walk()
    for sampler in (
        kind(wf, agent, env),
        kind(agent, env, worker_factory=wf),
        kind(agents=agent, envs=env, worker_factory=wf),
        kind.from_worker_factory(wf, agent, env),
        kind(agent, env, max_episode_length=LIMIT, seed=100, n_workers=2),
    ):
        with sampler:
            assert isinstance(sampler, Sampler)
            assert sampler._factory._seed == 100
            assert sampler._factory._max_episode_length == LIMIT
            sampler.start_worker()
            assert len(sampler.obtain_exact_episodes(1, None).lengths) == 2


@ALL
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (lambda: ((Coin(), Walk()), {}), "Must construct a sampler from"),
        (lambda: ((Coin(),), {"max_episode_length": 3}), "a sampler needs envs"),
        (lambda: ((factory(), Coin(), Walk(), 4), {}), "at most 3 arguments go by position"),
        (lambda: ((Coin(), Walk()), {"agents": Coin(), "max_episode_length": 3}), "agents was given twice"),
    ],
)
def test_arguments_that_make_no_sampler(kind: Any, arguments: Any, message: str) -> None:
    args, keywords = arguments()
    with pytest.raises(TypeError, match=message):
        kind(*args, **keywords)


@ALL
def test_lists_of_another_length_start_nothing(kind: Any) -> None:
    for agents, envs in (([Coin()], Walk()), (Coin(), [Walk()] * 3)):
        with pytest.raises(ValueError, match="Length of list doesn't match number of workers"):
            kind(factory(), agents, envs)


@BOTH
def test_nothing_asked_for_is_an_error(kind: Any) -> None:
    with make(kind, Coin(), Walk()) as sampler:
        with pytest.raises(ValueError, match="num_samples must be at least 1"):
            sampler.obtain_samples(0, 0, None)
        with pytest.raises(ValueError, match="n_eps_per_worker must be at least 1"):
            sampler.obtain_exact_episodes(0, None)
        with pytest.raises(ValueError, match="episodes must be at least 1"):
            sampler.evaluate(0)
        for amount in (None, "3", float("inf")):
            for call in (sampler.evaluate, lambda amount: sampler.obtain_samples(0, amount, None)):
                with pytest.raises(ValueError, match=r"must be a finite number"):
                    call(amount)
        assert len(sampler.obtain_samples(0, 10, None)) >= 10


@ALL
def test_a_pickled_sampler_starts_workers_of_its_own(kind: Any) -> None:
    sampler = make(kind, Fixed([step()]), Point(), options={"worker_options": WorkerOptions(max_restarts=2)})
    count = len(sampler.obtain_exact_episodes(1, {"gain": np.zeros(1)}))
    pickled = pickle.dumps(sampler)
    sampler.shutdown_worker()
    with pickle.loads(pickled) as again:
        assert again.total_env_steps == count
        assert again._options["worker_options"].max_restarts == 2
        batch = again.obtain_exact_episodes(1, None, env_update=points(2))
        assert set(batch.agent_infos["gain"]) == {0.0 if kind is LocalSampler else 1.0}  # the original agent
        assert batch.env_infos["task"][0]["goal"].tolist() == points(2)[0]._task["goal"].tolist()


@BOTH
def test_a_second_end_does_nothing_and_nothing_comes_after_it(kind: Any) -> None:
    sampler = make(kind, Coin(), env := GridWorld())
    sampler.obtain_samples(0, 5, Scripted(TO_THE_GOAL))
    sampler.shutdown_worker()
    sampler.shutdown_worker()
    with pytest.raises(UsageError, match="the sampler is shut down"):
        sampler.obtain_samples(0, 5, None)
    assert not env.closed  # the caller's own


@pytest.mark.parametrize("end", ["", "raise SystemExit(3)"])
def test_a_forgotten_sampler_does_not_hang_the_interpreter(end: str) -> None:
    script = (
        "from treadle import MultiprocessingSampler\nfrom sampler_kit import Coin, Walk\n"
        "s = MultiprocessingSampler(Coin(), Walk(), max_episode_length=9, n_workers=2)\n"
        f"print(len(s.obtain_samples(0, 30, None)) >= 30)\n{end}\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=Path(__file__).parent, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "True\n"
    assert done.returncode == (3 if end else 0)


def test_things_of_a_script_and_lambdas_travel() -> None:
    class Here(Coin):
        pass

    more = {"worker_class": lambda **arguments: DefaultWorker(**arguments)}
    with make(MultiprocessingSampler, Here(), NewEnvUpdate(lambda: Walk()), **more) as sampler:
        assert len(sampler.obtain_samples(0, 20, Here())) >= 20


def test_ids_that_the_caller_registered_are_known_to_workers() -> None:
    gym.register("sampler-test/Walk-v0", Walk)
    try:
        with make(MultiprocessingSampler, Coin(), NewEnvUpdate(lambda: gym.make("sampler-test/Walk-v0"))) as sampler:
            assert len(sampler.obtain_samples(0, 20, None)) >= 20
    finally:
        del gym.registry["sampler-test/Walk-v0"]


def test_progress_is_shown_when_it_is_wanted(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setattr("treadle.progress.PLAIN_SECONDS", -1.0)
    for show, said in ((None, False), (False, False), (True, True)):
        with make(LocalSampler, Coin(), Walk(), options={"progress": show}) as sampler:
            sampler.obtain_samples(0, 30, None)
            sampler.obtain_exact_episodes(1, None)
        shown = capsys.readouterr().err
        assert ("of 30 steps" in shown) == said
        assert ("of 2 episodes" in shown) == said


# -- the worker loop over queues --------------------------------------------------------------------------------------


def test_a_worker_over_two_queues() -> None:
    to_worker: queue.Queue[Any] = queue.Queue()
    to_sampler: queue.Queue[Any] = queue.Queue(maxsize=2)
    wf = factory(seed=None)
    thread = threading.Thread(target=run_worker, args=(wf, to_worker, to_sampler, 1, Fixed([step()]), Point()))
    thread.start()
    to_worker.put(("start", (pickle.dumps({"gain": np.full(1, 2.0)}), None, 7)))
    tag, (batch, version, number) = to_sampler.get(timeout=20)
    assert (tag, version, number) == ("episode", 7, 1)
    assert set(batch.agent_infos["gain"]) == {2.0}
    assert to_sampler.get(timeout=20)[0] == "episode"  # it streams, until the queue is full
    to_worker.put(("continue", ()))
    assert to_sampler.get(timeout=20)[0] == "episode"
    to_worker.put(("stop", ()))
    to_worker.put(("exit", ()))
    thread.join(20)
    assert not thread.is_alive()
    wrong: queue.Queue[Any] = queue.Queue()
    wrong.put(("dance", 3))
    with pytest.raises(AssertionError, match="Unknown tag dance"):
        run_worker(wf, wrong, queue.Queue(), 0, Fixed([step()]), Point())
