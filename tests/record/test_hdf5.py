"""What is encoded is in the file, and is read back from it as it was encoded."""

from pathlib import Path

import h5py
import numpy as np
import pytest

from treadle.record import hdf5
from treadle.record.columns import Column
from treadle.record.hdf5 import Reader, assemble, encode
from treadle.record.journal import EpisodeNote, Journal, journals, read, record_of


def columns(steps: int, *more: Column) -> list[Column]:
    flags = np.zeros(steps, bool)
    return [
        Column(("observations",), np.arange(4 * (steps + 1), dtype=np.float32).reshape(-1, 4)),
        Column(("actions",), np.arange(steps)),
        Column(("rewards",), np.linspace(-1, 2, steps)),
        Column(("terminations",), flags),
        Column(("truncations",), flags),
        *more,
    ]


def write(path: Path, *episodes: list[Column], seed: int = 1):
    """A file of these episodes, which is read back as well."""
    notes = [
        EpisodeNote(7 * i, seed, len(each[2].array), 0.0, True, False, 0, "00" * 16) for i, each in enumerate(episodes)
    ]
    blobs = [encode(episode) for episode in episodes]
    with Journal(path.parent, 0) as journal:
        for note, blob in zip(notes, blobs, strict=True):
            journal.write(record_of(note, *blob))
    size = assemble(path, [record for each in journals(path.parent) for record in read(each, "hdf5")])
    assert size == path.stat().st_size
    with Reader(path, len(episodes)) as reader:
        for number, (note, blob) in enumerate(zip(notes, blobs, strict=True)):
            again = reader.blob(number, note)
            assert (again.head, b"".join(again.data)) == (blob.head, b"".join(blob.data))
    return h5py.File(path)


@pytest.mark.parametrize("code", ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "S7"])
def test_datatypes(code, tmp_path):
    dtype = np.dtype(code)
    array = np.array([0, 1, 1, 0, 1]).astype(dtype)
    with write(tmp_path / "f", columns(4, Column(("infos", "x"), array))) as file:
        assert file["episode_0/infos/x"].dtype == dtype
        assert file["episode_0/infos/x"][()].tobytes() == array.tobytes()


def test_the_same_episodes_are_the_same_bytes(tmp_path, monkeypatch):
    """However many forms are kept: one that is made again leaves the same bytes as one that another episode was in."""
    episodes = [columns(9 + k % 3, Column(("infos", f"x{k % 7}", "y"), np.arange(20_000 - k % 2))) for k in range(60)]
    files = []
    for forms in (hdf5.FORMS, hdf5.FORMS, 1, 5):
        monkeypatch.setattr(hdf5, "FORMS", forms)
        folder = tmp_path / str(len(files))
        folder.mkdir()
        write(folder / "f", *episodes).close()
        files.append((folder / "f").read_bytes())
    assert files[1:] == files[:1] * 3


def test_episodes_of_one_kind_share_nothing(tmp_path):
    """Each has the numbers that it was written with, the small arrays and the compressed ones, and may be changed."""
    made = [columns(5, Column(("infos", "x"), np.arange(k, 20_000 + k))) for k in range(3)]
    for k, each in enumerate(made):
        each[2] = Column(("rewards",), np.arange(5.0) * k)
    write(tmp_path / "f", *made).close()
    with h5py.File(tmp_path / "f", "r+") as file:
        file["episode_1/rewards"][0] = 7
        file["episode_1"].attrs["id"] = 9
        assert file["episode_1/rewards"][()].tolist() == [7, 1, 2, 3, 4]
        for k in (0, 2):
            group = file[f"episode_{k}"]
            assert (group.attrs["id"], group.attrs["rewards_sum"]) == (k, 10 * k)
            assert group["rewards"][()].tolist() == made[k][2].array.tolist()
            assert group["infos/x"][()].tolist() == made[k][5].array.tolist()


@pytest.mark.parametrize("shape", [(5,), (5, 0), (5, 1, 2, 1, 3), (0, 3), (1 << 14,), ((1 << 14) + 1,), (32767,)])
def test_odd_shapes(shape, tmp_path):
    array = np.arange(np.prod(shape), dtype=np.int16).reshape(shape)
    with write(tmp_path / "f", columns(4, Column(("infos", "x"), array)), columns(3)) as file:
        assert file["episode_0/infos/x"].shape == shape
        assert file["episode_0/infos/x"][()].tobytes() == array.tobytes()
        assert len(file["episode_1/rewards"]) == 3


@pytest.mark.parametrize("rows", [1, 2, 64, 65, 129, 4096, 4097, 9000])
def test_any_number_of_chunks(rows, tmp_path, monkeypatch):
    """One row a chunk."""
    monkeypatch.setattr(hdf5, "COMPRESS_FROM", 1)
    monkeypatch.setattr(hdf5, "CHUNK_BYTES", 16)
    array = np.arange(4 * rows, dtype=np.float32).reshape(rows, 2, 2)
    with write(tmp_path / "f", columns(2), columns(1, Column(("infos", "x"), array))) as file:
        data = file["episode_1/infos/x"]
        assert data.chunks == (1, 2, 2)
        assert data[()].tobytes() == array.tobytes()
        assert data[rows // 2].tolist() == array[rows // 2].tolist()


@pytest.mark.parametrize("rows", [1, 7, 8, 9, 100])
def test_last_chunk_is_partial(rows, tmp_path, monkeypatch):
    monkeypatch.setattr(hdf5, "COMPRESS_FROM", 1)
    monkeypatch.setattr(hdf5, "CHUNK_BYTES", 8 * 3)
    with write(tmp_path / "f", columns(rows)) as file:
        for column in columns(rows):
            assert file["episode_0"]["/".join(column.path)][()].tobytes() == column.array.tobytes()
        assert file["episode_0"].attrs["rewards_sum"] == columns(rows)[2].array.sum()


@pytest.mark.parametrize("count", [0, 1, 128, 129, 1000])
def test_any_number_of_episodes(count, tmp_path):
    write(tmp_path / "f", *[columns(1)] * count).close()
    with h5py.File(tmp_path / "f", "r+") as file:
        assert set(file) == {f"episode_{i}" for i in range(count)}
        for i in {0, 1, count // 2, count - 1} & set(range(count)):
            assert (file[f"episode_{i}"].attrs["id"], file[f"episode_{i}"].attrs["episode_index"]) == (i, 7 * i)
            assert file[f"episode_{i}/actions"][()].tolist() == [0]
        file.create_group("one_more")
        assert len(file) == count + 1


def test_many_and_long_names(tmp_path):
    infos = [Column(("infos", f"key é {i}" + "x" * (i * 7 % 300)), np.full(3, i)) for i in range(150)]
    with write(tmp_path / "f", columns(2, *infos)) as file:
        assert set(file["episode_0/infos"]) == {c.path[1] for c in infos}
        for column in infos:
            assert file["episode_0/infos"][column.path[1]][()].tolist() == column.array.tolist()


def test_attributes(tmp_path):
    episode = columns(9)
    rewards = episode[2].array
    with write(tmp_path / "f", episode, seed=2**64 - 1) as file:
        attributes = dict(file["episode_0"].attrs)
    assert attributes["seed"] == 2**64 - 1
    assert attributes["total_steps"] == 9
    statistics = {name: getattr(rewards, name)() for name in ("sum", "mean", "std", "min", "max")}
    assert {name: attributes[f"rewards_{name}"] for name in statistics} == statistics


def test_rewards_that_are_no_numbers(tmp_path):
    episode = columns(3)
    episode[2] = Column(("rewards",), np.array([np.nan, np.inf, 1.0]))
    with write(tmp_path / "f", episode) as file:
        assert np.isnan(file["episode_0"].attrs["rewards_sum"])
