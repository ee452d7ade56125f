"""What is read back from a dataset is what was played, whoever wrote it."""

import dataclasses
import json
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import gymnasium as gym
import h5py
import minari
import numpy as np
import pytest
from played import COUNTS, real
from unpacked import unpack_infos

from treadle.program.gym_env import portable_spec
from treadle.record.columns import leaves
from treadle.record.journal import Damaged
from treadle.record.merge import load, merge
from treadle.record.minari import About, dataset_name
from treadle.record.parts import PartWriter, recover


def write(path: Path, env: gym.Env, episodes, workers: int = 1, **options) -> list:
    spaces = env.observation_space, env.action_space
    (path / ".parts").mkdir(parents=True, exist_ok=True)
    writers = [PartWriter(path / ".parts", k, *spaces, **options) for k in range(workers)]
    notes = [writers[(7 * i) % workers].add(episode) for i, episode in reversed(list(enumerate(episodes)))]
    for writer in writers:
        writer.close()
    return notes[::-1]


def join(path: Path, name: str, env: gym.Env, episodes=None):
    about = About(dataset_name(name, "random"), "random", env.observation_space, env.action_space, portable_spec(env))
    return merge(path / ".parts", path, episodes or recover(path / ".parts"), about)


def assert_same_tree(got, want) -> None:
    got, want = dict(leaves(got)), dict(leaves(want))
    assert got.keys() == want.keys()
    for path, leaf in want.items():
        if isinstance(leaf, list):
            assert got[path] == leaf, path
        else:
            assert (got[path].dtype, got[path].shape) == (leaf.dtype, leaf.shape), path
            assert got[path].tobytes() == leaf.tobytes(), path


@pytest.mark.parametrize("name", COUNTS)
def test_minari_gives_back_the_same_bytes(name, tmp_path, monkeypatch):
    env, episodes = real(name)
    notes = write(tmp_path, env, episodes)
    dataset_id = f"treadle/{join(tmp_path, name, env, notes).path.name}"
    assert [n.length for n in notes] == [len(e) for e in episodes]
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    dataset = minari.load_dataset(dataset_id)
    assert dataset.total_episodes == len(episodes)
    assert dataset.total_steps == sum(map(len, episodes))
    for got, want in zip(dataset.iterate_episodes(), episodes, strict=True):
        assert_same_tree(got.observations, want.observations)
        assert_same_tree(got.actions, want.actions)
        for key, array in (
            ("rewards", want.rewards),
            ("terminations", want.terminated),
            ("truncations", want.truncated),
        ):
            assert getattr(got, key).dtype == array.dtype
            assert getattr(got, key).tobytes() == array.tobytes()
    for number, metadata in enumerate(dataset.storage.get_episode_metadata(range(len(episodes)))):
        assert metadata["id"] == number
        assert metadata["seed"] == episodes[number].seed
        assert metadata["total_steps"] == len(episodes[number])
    assert list(minari.list_local_datasets()) == [dataset_id]


@pytest.mark.parametrize("name", COUNTS)
def test_the_number_of_workers_does_not_show(name, tmp_path):
    env, episodes = real(name)
    one, three = tmp_path / "one", tmp_path / "three"
    notes = write(one, env, episodes), write(three, env, episodes, workers=3)
    assert notes[0] == notes[1]
    reports = join(one, name, env), join(three, name, env)
    assert reports[0].hash == reports[1].hash
    for file in ("main_data.hdf5", "metadata.json"):
        assert (reports[0].path / "data" / file).read_bytes() == (reports[1].path / "data" / file).read_bytes()


def test_the_environment_is_recovered(tmp_path):
    for name in ("CartPole-v1", "Hopper-v5"):
        env, episodes = real(name)
        write(tmp_path / name, env, episodes)
        join(tmp_path / name, name, env)
        recovered = load(tmp_path / name).recover_environment()
        assert recovered.spec.id == name
        observation, _ = recovered.reset(seed=episodes[1].seed)
        assert observation.tobytes() == episodes[1].observations[0].tobytes()


def test_a_space_without_a_name_is_stored_as_text(tmp_path):
    env, episodes = real("MiniGrid-DoorKey-5x5-v0")
    write(tmp_path, env, episodes)
    join(tmp_path, "MiniGrid-DoorKey-5x5-v0", env)
    dataset = load(tmp_path)
    assert isinstance(dataset.observation_space["mission"], gym.spaces.Text)
    first = {k: v[0] for k, v in dataset[0].observations.items()}
    assert dataset.observation_space.contains(first)


def test_infos_come_back(tmp_path):
    env, episodes = real("nest")
    notes = write(tmp_path, env, episodes)
    report = join(tmp_path, "nest", env)
    assert [n.left_out for n in notes] == [("ball",)] * len(notes)
    assert len(report.warnings) == 1
    assert '"ball"' in report.warnings[0]
    for got, want in zip(load(tmp_path), episodes, strict=True):
        assert got.infos["level"].dtype == np.int64
        assert got.infos["_speed"].tolist() == [False] + [True] * len(want)
        assert len(got.infos["policy_infos"]["value"]) == len(want)
        rows = unpack_infos(got.infos)
        assert rows[0] == {"level": 3, "seeds": [want.seed, 1]}
        for row, info in zip(rows[1:], want.infos[1:], strict=True):
            assert row.keys() == info.keys()
            assert (row["level"], row["speed"], row["name"]) == (info["level"], info["speed"], info["name"])
            assert row["ragged"] == info["ragged"]
            assert row["where"]["x"] == info["where"]["x"]
            assert row["where"]["cells"].tolist() == info["where"]["cells"].tolist()
        for row, info in zip(unpack_infos(got.infos["policy_infos"]), want.policy_infos, strict=True):
            assert row["value"] == info["value"]
            assert row["logits"].tobytes() == info["logits"].tobytes()


def test_no_infos_means_an_empty_group(tmp_path):
    env, episodes = real("nest")
    write(tmp_path, env, episodes, stored="no infos")
    join(tmp_path, "nest", env)
    assert load(tmp_path)[0].infos == {}


def test_a_part_of_the_episodes_is_numbered_from_zero(tmp_path):
    env, episodes = real("CartPole-v1")
    notes = write(tmp_path, env, episodes)
    join(tmp_path, "CartPole-v1", env, [notes[4], notes[2]])
    dataset = load(tmp_path)
    assert [m["seed"] for m in dataset.storage.get_episode_metadata([0, 1])] == [4000, 2000]
    assert dataset[0].observations.tobytes() == episodes[4].observations.tobytes()
    with pytest.raises(Damaged, match="episode 99"):
        join(tmp_path, "CartPole-v1", env, [dataclasses.replace(notes[0], index=99)])


def test_structure_is_that_of_minari(tmp_path, monkeypatch):
    """Against a dataset of the same episodes that Minari writes: groups, arrays, attributes, description."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    env, episodes = real("CartPole-v1")
    episodes = [dataclasses.replace(e, policy_infos=()) for e in episodes]
    buffers = [
        minari.data_collector.EpisodeBuffer(
            i, e.seed, None, e.observations, e.actions, e.rewards, e.terminated, e.truncated, {}
        )
        for i, e in enumerate(episodes)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = minari.create_dataset_from_buffers("theirs/x-v0", buffers, env=env, algorithm_name="random")
    theirs.storage.update_episode_metadata(
        theirs.storage.apply(lambda e: minari.EpisodeMetadataCallback()(e)), range(len(episodes))
    )
    write(tmp_path, env, episodes)
    ours = join(tmp_path, "CartPole-v1", env)

    raw = [json.loads((p / "metadata.json").read_text()) for p in (theirs.storage.data_path, ours.path / "data")]
    for metadata in raw:
        del metadata["dataset_id"], metadata["dataset_size"], metadata["jpeg_encoding"]
    raw[0].pop("eval_env_spec", None)
    assert raw[1] == raw[0]

    files = [h5py.File(p / "main_data.hdf5") for p in (theirs.storage.data_path, ours.path / "data")]
    assert set(files[0]) == set(files[1])
    for name in files[0]:
        want, got = files[0][name], files[1][name]
        assert set(want) == set(got)
        assert {*want.attrs, "episode_index"} == set(got.attrs)
        assert got.attrs["episode_index"] == episodes[int(name.removeprefix("episode_"))].index
        for key, value in want.attrs.items():
            assert type(got.attrs[key]) is type(value), key
            assert got.attrs[key] == value, key
        for key in want:
            if isinstance(want[key], h5py.Dataset):
                assert (want[key].dtype, want[key].shape) == (got[key].dtype, got[key].shape)
                assert want[key][()].tobytes() == got[key][()].tobytes()
            else:
                assert len(want[key]) == len(got[key]) == 0
    for file in files:
        file.close()


def test_minari_can_add_to_a_dataset(tmp_path):
    env, episodes = real("CartPole-v1")
    write(tmp_path, env, episodes)
    join(tmp_path, "CartPole-v1", env)
    dataset, e = load(tmp_path), episodes[5]
    one_more = minari.data_collector.EpisodeBuffer(
        None, 5, None, e.observations, e.actions, e.rewards, e.terminated, e.truncated, {}
    )
    dataset.update_dataset_from_buffer([one_more])
    dataset.storage.update_episode_metadata([{"note": "x" * 500}], [2])
    again = load(tmp_path)
    assert again.total_episodes == len(episodes) + 1
    assert again[len(episodes)].observations.tobytes() == e.observations.tobytes()
    assert again[2].observations.tobytes() == episodes[2].observations.tobytes()


def test_a_dataset_may_be_moved(tmp_path):
    env, episodes = real("ALE/Pong-v5")
    write(tmp_path / "a", env, episodes)
    join(tmp_path / "a", "ALE/Pong-v5", env)
    shutil.move(tmp_path / "a" / "treadle", tmp_path / "b" / "treadle")
    shutil.rmtree(tmp_path / "a")
    assert load(tmp_path / "b")[1].observations.tobytes() == episodes[1].observations.tobytes()


def test_images_are_compressed(tmp_path):
    env, episodes = real("ALE/Pong-v5")
    (first, *_) = write(tmp_path, env, episodes)
    report = join(tmp_path, "ALE/Pong-v5", env)
    assert first.nbytes > episodes[0].observations.nbytes
    data = report.path / "data" / "main_data.hdf5"
    assert data.stat().st_size < sum(e.nbytes for e in episodes) / 50
    with h5py.File(data) as file:
        frames = file["episode_0/observations"]
        assert frames.compression == "gzip"
        assert 1 << 20 <= np.prod(frames.chunks) <= 4 << 20


@pytest.mark.parametrize(
    ("env_id", "policy", "name"),
    [
        ("ALE/Pong-v5", "random", "ALE-Pong-v5-random-v0"),
        ("my module:make_env", "../p.py:Best Policy", "my-module-make_env-p-py-Best-Policy-v0"),
        ("é/", "", "unnamed-unnamed-v0"),
    ],
)
def test_names(env_id, policy, name):
    from minari.dataset.minari_dataset import parse_dataset_id

    assert dataset_name(env_id, policy) == name
    assert parse_dataset_id(f"treadle/{name}") == ("treadle", name[:-3], 0)


def test_load_says_what_is_wrong(tmp_path):
    with pytest.raises(FileNotFoundError, match="no dataset"):
        load(tmp_path)
    env, episodes = real("CartPole-v1")
    write(tmp_path, env, episodes)
    reports = [join(tmp_path, name, env) for name in ("a", "b")]
    with pytest.raises(ValueError, match="several datasets"):
        load(tmp_path)
    assert len(load(reports[1].path)) == len(episodes)
    assert [n.index for n in recover(tmp_path / ".parts")] == list(range(len(episodes)))


CTRL_C = """
import os, signal, sys
from treadle.record import minari

class Presses:
    def find_spec(self, name, path=None, target=None):
        if name == "h5py.h5t":
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Presses())
try:
    minari.require()
except KeyboardInterrupt:
    print("pressed", "h5py.h5t" in sys.modules, "minari" in sys.modules)
"""


def test_ctrl_c_waits_for_the_import_of_what_cannot_be_interrupted() -> None:
    """A module of Cython that begins made a KeyError of it, which ended the command."""
    done = subprocess.run([sys.executable, "-c", CTRL_C], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("pressed True True\n", "")
