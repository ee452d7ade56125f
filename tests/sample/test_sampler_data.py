"""The batches that samplers return: what they check, how they are split and joined, padded and sent."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampler_kit import Dicts, Noisy, Point, Walk

from treadle import Episode, EpisodeBatch, collect, trees
from treadle.samplers import EnvSpec, EnvStep, InProgressEpisode, StepType, TimeStep, TimeStepBatch
from treadle.worker.options import WorkerOptions


class Flat:
    """A space that knows how many numbers a flattened value has, as those of akro do."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape, self.flat_dim = shape, int(np.prod(shape))

    def contains(self, value: Any) -> bool:
        return np.shape(value) == self.shape


@pytest.fixture
def eps_data() -> dict[str, Any]:
    observations = gym.spaces.Box(1, np.inf, (4, 3, 2), np.float32)
    lengths = np.array([10, 20, 7, 25, 25, 40, 10, 5])
    steps = lengths.sum()
    kinds = [kind for n in lengths for kind in [StepType.FIRST, *[StepType.MID] * (n - 2), StepType.TERMINAL]]
    actions = np.stack([[1, 3]] * steps)
    return {
        "env_spec": EnvSpec(observations, gym.spaces.MultiDiscrete([2, 5]), max_episode_length=100),
        "episode_infos": {"task_one_hot": np.stack([[i, 1] for i in range(len(lengths))])},
        "observations": np.stack([observations.low * (i + 1) for i in range(steps)]),
        "last_observations": np.stack([observations.low * 1000 * (i + 1) for i in range(len(lengths))]),
        "actions": actions,
        "rewards": np.arange(steps),
        "env_infos": {"goal": np.stack([[1, 1]] * steps), "foo": np.arange(steps)},
        "agent_infos": {"prev_action": actions, "hidden": np.arange(steps)},
        "step_types": np.array(kinds, dtype=StepType),
        "lengths": lengths,
    }


def test_a_batch_holds_what_it_was_given(eps_data: dict[str, Any]) -> None:
    batch = EpisodeBatch(**eps_data)
    for name, value in eps_data.items():
        assert getattr(batch, "episode_infos_by_episode" if name == "episode_infos" else name) is value
    assert batch.episode_infos["task_one_hot"].shape == (142, 2)
    assert batch.episode_infos["task_one_hot"][10].tolist() == [1, 1]
    assert (batch.terminals == [kind == StepType.TERMINAL for kind in eps_data["step_types"]]).all()
    assert len(batch) == 142


def _cut(name: str, index: Any) -> Any:
    return lambda data: data.update({name: data[name][index]})


def _entry(name: str, key: str, value: Any) -> Any:
    return lambda data: data[name].update({key: value})


def _action_box(data: dict[str, Any]) -> None:
    space = gym.spaces.Box(1, np.inf, (4, 3, 2), np.float32)
    data["env_spec"] = EnvSpec(data["env_spec"].observation_space, space)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_cut("lengths", np.s_[None]), "lengths has shape"),
        (lambda d: d.update(lengths=d["lengths"].astype(np.float32)), "lengths has dtype float32"),
        (lambda d: d.update(lengths=d["lengths"] + 1), "rewards has batch size 142, but the lengths add up to 150"),
        (lambda d: d.update(lengths=d["lengths"][:0]), "lengths has shape"),
        (_cut("observations", np.s_[:, :, :, :1]), "Each observation has shape"),
        (_cut("observations", np.s_[:-1]), "observations has batch size"),
        (_cut("last_observations", np.s_[:, :, :, :1]), "last_observations must have the same number of entries"),
        (_cut("last_observations", np.s_[:-1]), "last_observations has batch size 7"),
        (lambda d: d.update(last_observations=list(d["last_observations"])), "last_observations is not of type"),
        (_cut("actions", np.s_[:, 0]), "Each action has shape "),
        (_action_box, "Each action has shape"),
        (_cut("actions", np.s_[:-1]), "actions has batch size"),
        (lambda d: d.update(rewards=d["rewards"].reshape(2, -1)), "rewards has shape"),
        (lambda d: d.update(rewards=[]), "rewards is not of type"),
        (_entry("env_infos", "bar", []), "Entry 'bar' in env_infos"),
        (_entry("env_infos", "goal", np.zeros((141, 2))), "Entry 'goal' in env_infos has batch size 141"),
        (_entry("agent_infos", "bar", []), "Entry 'bar' in agent_infos"),
        (_entry("agent_infos", "hidden", np.zeros(141)), "Entry 'hidden' in agent_infos has batch size 141"),
        (lambda d: d.update(step_types=d["step_types"].reshape(2, -1)), "step_types has batch size 2"),
        (lambda d: d.update(step_types=d["step_types"].astype(np.float32)), "step_types has dtype float32"),
        (_entry("episode_infos", "bar", []), "Entry 'bar' in episode_infos"),
        (_entry("episode_infos", "task_one_hot", np.ones((3, 2))), "Entry 'task_one_hot' in episode_infos has"),
        (_entry("episode_infos", "task_one_hot", ["test"] * 8), "Entry 'task_one_hot' in episode_infos"),
    ],
)
def test_columns_that_do_not_fit_are_refused(eps_data: dict[str, Any], spoil: Any, message: str) -> None:
    spoil(eps_data)
    with pytest.raises(ValueError, match=message):
        EpisodeBatch(**eps_data)


def test_a_first_observation_out_of_bounds_warns(eps_data: dict[str, Any]) -> None:
    eps_data["observations"] = eps_data["observations"] - 5
    with pytest.warns(UserWarning, match="is outside observation_space"):
        EpisodeBatch(**eps_data)


def test_flat_and_one_hot_values_pass() -> None:
    spec = EnvSpec(Flat((2, 2)), gym.spaces.Discrete(3))
    columns: dict[str, Any] = {
        "observations": np.zeros((2, 4)),
        "last_observations": np.zeros((1, 4)),
        "rewards": np.zeros(2),
        "env_infos": {},
        "agent_infos": {},
        "step_types": np.array([StepType.FIRST, StepType.MID], object),
        "lengths": np.array([2]),
        "episode_infos": {},
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batch = EpisodeBatch(spec, actions=np.eye(3)[:2], **columns)
    assert len(batch) == 2
    with pytest.warns(UserWarning, match="is outside"), pytest.raises(ValueError, match="Each action has shape"):
        EpisodeBatch(spec, actions=np.eye(4)[:2], **columns)


def test_reprs_are_one_line(eps_data: dict[str, Any]) -> None:
    batch = EpisodeBatch(**eps_data)
    assert repr(batch) == "<EpisodeBatch: 8 episodes, 142 steps, mean return 1,251.38>"
    assert repr(TimeStepBatch.from_episode_batch(batch)) == "<TimeStepBatch: 142 steps>"


def test_lists_and_pads(eps_data: dict[str, Any]) -> None:
    batch = EpisodeBatch(**eps_data)
    start = 0
    for i, (path, length) in enumerate(zip(batch.to_list(), eps_data["lengths"], strict=True)):
        stop = start + length
        for name in ("observations", "actions", "rewards", "step_types"):
            assert (path[name] == eps_data[name][start:stop]).all()
        following = [*eps_data["observations"][start + 1 : stop], eps_data["last_observations"][i]]
        assert (path["next_observations"] == following).all()
        assert path["episode_infos"]["task_one_hot"].tolist() == [i, 1]
        assert (batch.observations_list[i] == path["observations"]).all()
        assert (batch.actions_list[i] == path["actions"]).all()
        for padded, packed in (
            (batch.padded_observations, path["observations"]),
            (batch.padded_next_observations, path["next_observations"]),
            (batch.padded_actions, path["actions"]),
            (batch.padded_rewards, path["rewards"]),
            (batch.padded_step_types, path["step_types"]),
            (batch.padded_agent_infos["hidden"], path["agent_infos"]["hidden"]),
            (batch.padded_env_infos["goal"], path["env_infos"]["goal"]),
            (batch.valids, np.ones(length)),
        ):
            assert padded.shape[:2] == (8, 100)
            assert (padded[i][:length] == packed).all()
            assert np.count_nonzero(padded[i][length:]) == 0
        start = stop
    assert start == 142
    assert batch.valids.dtype == eps_data["rewards"].dtype


def test_a_longer_episode_than_the_spec_says_is_padded_with_a_warning(eps_data: dict[str, Any]) -> None:
    spec = eps_data["env_spec"]
    eps_data["env_spec"] = EnvSpec(spec.observation_space, spec.action_space, 10)
    with pytest.warns(UserWarning, match="longer length than requested"):
        assert EpisodeBatch(**eps_data).padded_rewards.shape == (8, 40)
    eps_data["env_spec"] = EnvSpec(spec.observation_space, spec.action_space)
    assert EpisodeBatch(**eps_data).padded_rewards.shape == (8, 40)


def same(a: EpisodeBatch, b: EpisodeBatch) -> bool:
    names = [name for name in a.__dict__ if name != "env_spec"]
    return all(trees.equal(getattr(a, name), getattr(b, name)) for name in names)


@given(st.lists(st.integers(1, 6), min_size=1, max_size=6), st.integers(0, 2**32 - 1))
def test_what_is_split_joined_listed_or_pickled_is_the_same(lengths: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    steps = sum(lengths)
    observations = gym.spaces.Dict({"a": gym.spaces.Box(-1, 1, (2,)), "b": gym.spaces.Tuple([gym.spaces.Discrete(9)])})

    def some(n: int) -> dict[str, Any]:
        return {"a": rng.uniform(-1, 1, (n, 2)).astype(np.float32), "b": (rng.integers(0, 9, n),)}

    batch = EpisodeBatch(
        env_spec=EnvSpec(observations, gym.spaces.Discrete(2)),
        episode_infos={"g": rng.random((len(lengths), 2))},
        observations=some(steps),
        last_observations=some(len(lengths)),
        actions=rng.integers(0, 2, steps),
        rewards=rng.random(steps),
        env_infos={"nested": {"deep": rng.random(steps)}, "flat": rng.random((steps, 3))},
        agent_infos={"p": rng.random(steps)},
        step_types=np.array([StepType(k) for k in rng.integers(0, 4, steps)], object),
        lengths=np.array(lengths),
    )
    parts = batch.split()
    assert [part.lengths.tolist() for part in parts] == [[length] for length in lengths]
    assert same(EpisodeBatch.concatenate(*parts), batch)
    assert same(EpisodeBatch.from_list(batch.env_spec, batch.to_list()), batch)
    assert same(pickle.loads(pickle.dumps(batch)), batch)
    middle = len(lengths) // 2
    assert trees.equal(
        batch.episodes(middle, len(lengths)).rewards, np.concatenate([p.rewards for p in parts[middle:]])
    )
    singles = TimeStepBatch.from_episode_batch(batch)
    again = TimeStepBatch.from_time_step_list(batch.env_spec, singles.to_time_step_list())
    assert trees.equal(singles.__dict__ | {"env_spec": 0}, again.__dict__ | {"env_spec": 0})
    assert len(singles.split()) == steps
    assert trees.equal(TimeStepBatch.concatenate(*singles.split()).next_observations, batch.next_observations)


def test_ten_thousand_episodes_are_one_pass(eps_data: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    piece = EpisodeBatch(**eps_data).episodes(7, 8)
    calls = []
    real = np.concatenate
    monkeypatch.setattr(np, "concatenate", lambda arrays, *a, **k: calls.append(len(arrays)) or real(arrays, *a, **k))
    whole = EpisodeBatch.concatenate(*[piece] * 10_000)
    assert len(whole.lengths) == 10_000
    assert set(calls) == {10_000}  # every array of every episode is read once
    assert len(calls) <= 12


def test_keys_that_are_missing_somewhere_are_filled_or_refused(eps_data: dict[str, Any]) -> None:
    first, second = EpisodeBatch(**eps_data).split()[:2]
    second.env_infos["bar"] = np.arange(20.0)
    joined = EpisodeBatch.concatenate(first, second)
    assert joined.env_infos["bar"].tolist() == [0.0] * 10 + list(range(20))
    assert joined.env_infos["_bar"].tolist() == [False] * 10 + [True] * 20
    again = EpisodeBatch.concatenate(joined, second)
    assert again.env_infos["_bar"].tolist() == [False] * 10 + [True] * 40
    del first.agent_infos["hidden"]
    with pytest.raises(ValueError, match="agent_infos of batch 0 lack the key 'hidden'"):
        EpisodeBatch.concatenate(first, second)


@pytest.mark.parametrize("kind", [EpisodeBatch, TimeStepBatch])
def test_nothing_cannot_be_joined(kind: type) -> None:
    with pytest.raises(ValueError, match="at least one"):
        kind.concatenate()
    with pytest.raises(ValueError, match="at least one dict"):
        getattr(kind, "from_list" if kind is EpisodeBatch else "from_time_step_list")(None, [])


def test_lists_of_older_kinds(eps_data: dict[str, Any]) -> None:
    batch = EpisodeBatch(**eps_data)
    paths = batch.to_list()
    for path in paths:  # all T + 1 observations, no next ones; dones for step types
        path["observations"] = np.concatenate([path["observations"], path.pop("next_observations")[-1:]])
        path["dones"] = path.pop("step_types") == StepType.TERMINAL
    again = EpisodeBatch.from_list(batch.env_spec, paths)
    assert (again.last_observations == batch.last_observations).all()
    assert (again.terminals == batch.terminals).all()
    for path in paths:  # the last one is lost
        path["observations"] = path["observations"][:-1]
    lost = EpisodeBatch.from_list(batch.env_spec, paths)
    assert (lost.last_observations[0] == batch.observations[9]).all()


@pytest.mark.parametrize(
    ("step", "limit", "done", "kind"),
    [
        (1, 5, False, StepType.FIRST),
        (2, 5, False, StepType.MID),
        (2, None, False, StepType.MID),
        (5, 5, False, StepType.TIMEOUT),
        (5, 5, True, StepType.TIMEOUT),
        (1, 5, True, StepType.TERMINAL),
        (1, 1, False, StepType.TIMEOUT),
        (3, np.inf, True, StepType.TERMINAL),
    ],
)
def test_the_type_of_a_step(step: int, limit: Any, done: bool, kind: StepType) -> None:
    assert StepType.get_step_type(step_cnt=step, max_episode_length=limit, done=done) is kind


def test_a_step_before_the_reset_has_no_type() -> None:
    with pytest.raises(ValueError, match="step_cnt to be >= 1"):
        StepType.get_step_type(step_cnt=0, max_episode_length=5, done=False)


def test_single_steps() -> None:
    spec = EnvSpec(gym.spaces.Box(-1, 1, (2,)), gym.spaces.Discrete(2))
    assert spec.input_space is spec.action_space
    assert spec.output_space is spec.observation_space
    step = EnvStep(spec, 1, 2.0, np.ones(2), {"a": 1}, StepType.FIRST)
    for kind, words in zip(StepType, ("first", "mid", "terminal", "timeout"), strict=True):
        step.step_type = kind
        said = {word for word in ("first", "mid", "terminal", "timeout", "last") if getattr(step, word)}
        assert said == {words} | ({"last"} if kind >= StepType.TERMINAL else set())
    before = np.zeros(2)
    made = TimeStep.from_env_step(step, before, {"b": 2}, {"c": 3})
    same = TimeStep(spec, {"c": 3}, before, 1, 2.0, step.observation, {"a": 1}, {"b": 2}, StepType.TIMEOUT)
    assert list(vars(made).items()) == list(vars(same).items())
    assert made.last
    with pytest.raises(AttributeError):
        made.reward = 3.0  # type: ignore[misc]


def test_an_episode_in_progress() -> None:
    with pytest.raises(ValueError, match="only episode info was passed in"):
        InProgressEpisode(Point(), None, {})
    with pytest.raises(ValueError, match="only initial observation was passed in"):
        InProgressEpisode(Point(), np.zeros(2))
    episode = InProgressEpisode(Point())
    with pytest.raises(AssertionError, match="without steps"):
        episode.to_batch()
    for _ in range(3):
        episode.step(np.full(2, 0.1, np.float32), {"p": 1})
    batch = episode.to_batch()
    assert np.allclose(batch.observations[:, 0], [0, 0.1, 0.2])  # though the environment's array is always the same
    assert np.allclose(batch.last_observations, 0.3)
    assert batch.env_infos["task"][0]["goal"].tolist() == [1, 1]
    assert batch.episode_infos_by_episode["goal"].tolist() == [[1, 1]]
    assert [kind.name for kind in batch.step_types] == ["FIRST", "MID", "MID"]
    going_on = InProgressEpisode(episode.env, episode.last_obs, episode.episode_info)
    going_on.step(np.zeros(2, np.float32), {})
    assert going_on.to_batch().step_types[0] is StepType.MID


def test_dicts_are_batches_of_dicts() -> None:
    episode = InProgressEpisode(Dicts())
    while not episode.ended:
        episode.step(0, {})
    batch = episode.to_batch()
    assert batch.observations["x"].shape == (4, 2)
    assert batch.observations["in"]["n"].tolist() == [0, 1, 2, 3]
    assert batch.next_observations["in"]["n"].tolist() == [1, 2, 3, 4]
    assert batch.padded_observations["x"].shape == (1, 4, 2)
    assert batch.split()[0].last_observations["in"]["n"].tolist() == [4]


def test_collected_episodes_are_the_same_batch() -> None:
    episodes: list[Episode] = list(collect(Walk, episodes=6, seed=3, worker_options=WorkerOptions(backend="serial")))
    spec = EnvSpec(Walk.observation_space, Walk.action_space)
    batch = EpisodeBatch.from_episodes(spec, episodes)
    for episode, part in zip(episodes, batch.split(), strict=True):
        assert np.array_equal(np.concatenate([part.observations, part.last_observations]), episode.observations)
        assert np.array_equal(part.rewards, episode.rewards)
        assert part.terminals[-1] == episode.terminated[-1]
        assert (part.step_types[-1] is StepType.TIMEOUT) == bool(episode.truncated[-1])
        assert part.env_infos["t"].tolist() == [info["t"] for info in episode.infos[1:]]
        assert part.episode_infos_by_episode["end"].tolist() == [episode.infos[0]["end"]]


def test_an_environment_with_its_own_generator_keeps_its_interface() -> None:
    env = Noisy()
    assert InProgressEpisode(env).env is env
