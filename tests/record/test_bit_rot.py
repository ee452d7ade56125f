"""A bit that has changed in a file of a run: it is found before anything is made of it, or it makes no difference.

Each file of a run that is to grow, of one that is not finished, and of a shard is flipped at many places, one bit at a
time. Then the run goes on, or the shards are merged: that ends with an error, and every file is as it was before; or
with the bytes of the undamaged run.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import h5py
import numpy as np
import pytest
from gymnasium import spaces as gs

from treadle.cli.main import main
from treadle.errors import TreadleError, UsageError
from treadle.record.journal import Damaged, journals, read
from treadle.record.merge import load
from treadle.record.parts import recover
from treadle.record.shards import merge_shards
from treadle.record.verify import about, damage
from treadle.replays.replay import replay
from treadle.repro import Repro
from treadle.sample.failed import CollectionFailed
from treadle.worker.options import WorkerOptions
from typed_run import TIMES, collected

FAILS = "TREADLE_TEST_FAILS"  # in the environment: which episodes fail


class Noted(gym.Env[Any, Any]):
    """Small episodes with infos and a text, and long ones that are compressed."""

    observation_space = gs.Dict({"seen": gs.Box(0, 255, (40, 40), np.uint8), "said": gs.Text(9, charset="abc")})
    action_space = gs.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t, self.seed = 0, seed
        self.last = 60 if seed is not None and seed % 3 == 0 else 3
        return self._observed(), {"at": 0}

    def _observed(self) -> Any:
        return {"seen": self.np_random.integers(0, 9, (40, 40), np.uint8), "said": "abc"[: 1 + self.t % 3]}

    def step(self, action: Any) -> Any:
        self.t += 1
        if str(self.seed) in os.environ.get(FAILS, "").split(","):
            raise RuntimeError("it falls over")
        info = {"at": self.t, "odd": {"list": [self.t] * self.t}} if self.t < 4 else {"at": self.t}
        return self._observed(), float(self.np_random.random()), self.t == self.last, False, info


RUN: dict[str, Any] = {
    "seed": 2,
    "worker_options": WorkerOptions(backend="serial"),
    "workers": 1,
    "on_error": "skip",
    "max_skipped": 9,
}


def seeds(out: Path) -> list[int]:
    return json.loads((out / "summary.json").read_text())["seeds"]


def tree(out: Path) -> dict[str, bytes]:
    return {str(path.relative_to(out)): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}


def made(out: Path) -> dict[str, Any]:
    """Of a run that was merged all files but what it keeps of failures, without times and the user's signature."""
    found: dict[str, Any] = {name: data for name, data in tree(out).items() if not name.startswith("failures")}
    for name in ("summary.json", "run.json"):
        found[name] = {key: value for key, value in json.loads(found[name]).items() if key not in (*TIMES, "signature")}
    return found


def played(out: Path) -> Any:
    """Of a run that went on the episodes, and what was left out. (How `run.json` says so is its own affair: all of its
    arguments are compared with those that are given.)"""
    (data,) = out.rglob("main_data.hdf5")
    summary = json.loads((out / "summary.json").read_text())
    return data.read_bytes(), [summary[name] for name in ("hash", "digests", "seeds", "returns", "skipped", "missing")]


def flips(data: bytes, text: bool) -> list[int]:
    """Which bits to flip: of a text in every few bytes, of other files at both ends and here and there."""
    chance = random.Random(len(data))
    if text:
        places = set(chance.sample(range(len(data)), min(len(data), 40)))
    else:
        edges = (*range(0, 48, 5), *range(len(data) - 48, len(data), 9))
        places = {*edges, *(chance.randrange(len(data)) for _ in range(40))}
    return [8 * at + chance.randrange(8) for at in sorted(places)]


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A complete run of six episodes, one that is not finished, two shards of it, and what becomes of them."""
    home = tmp_path_factory.mktemp("begun")
    places = {name: home / name for name in ("complete", "unfinished", "0", "1")}
    with pytest.MonkeyPatch.context() as patch:
        collected(Noted, out=home / "all", episodes=8, **RUN)
        all_seeds = seeds(home / "all")
        patch.setenv(FAILS, str(all_seeds[1]))
        collected(Noted, out=places["complete"], episodes=6, **RUN)
        for i in ("0", "1"):
            collected(Noted, out=places[i], episodes=6, shard=f"{i}/2", **RUN)
        patch.setenv(FAILS, f"{all_seeds[1]},{all_seeds[5]}")
        with pytest.raises(CollectionFailed):
            collected(Noted, out=places["unfinished"], episodes=8, **{**RUN, "max_skipped": 1})
    return places


def grown(directory: Path) -> Any:
    collected(Noted, out=directory, episodes=8, resume=True, **RUN)
    return played(directory)


def merged(directory: Path) -> Any:
    out = directory.with_name("merged")
    shutil.rmtree(out, ignore_errors=True)
    merge_shards([directory, directory.parent / "other"], out)
    return made(out)


CASES = {
    "complete": (grown, ["run.json", "summary.json", ".episodes", "main_data.hdf5", "metadata.json"]),
    "unfinished": (grown, ["run.json", "summary.json", "skipped.json", "worker-0-0.episodes", "main_data.hdf5"]),
    "0": (merged, ["run.json", "summary.json", ".episodes", "main_data.hdf5", "metadata.json"]),
}


# what a run that goes on does not take from them: it makes the episodes again, or the file
NOT_TAKEN = {
    ("complete", "metadata.json"),
    ("unfinished", "summary.json"),
    ("unfinished", "main_data.hdf5"),
}


@pytest.mark.parametrize(("case", "name"), [(case, name) for case, (_, names) in CASES.items() for name in names])
def test_a_flipped_bit_is_found_or_makes_no_difference(
    case: str, name: str, begun: dict[str, Path], tmp_path: Path
) -> None:
    go_on, work = CASES[case][0], tmp_path / "work"
    shutil.copytree(begun["1"], tmp_path / "other")
    shutil.copytree(begun[case], work)
    wanted = go_on(work)
    found = 0
    (path,) = (path for path in begun[case].rglob(name))
    whole = path.read_bytes()
    for bit in flips(whole, text=name.endswith(".json")):
        shutil.rmtree(work)
        shutil.copytree(begun[case], work)
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        (work / path.relative_to(begun[case])).write_bytes(flipped)
        before = tree(work)
        try:
            result = go_on(work)
        except TreadleError as error:
            found += 1
            assert str(tmp_path) in str(error), f"bit {bit}: {error}"  # noqa: PT017 - most flips raise
            assert tree(work) == before, f"bit {bit}"
            assert not (tmp_path / "merged").exists(), f"bit {bit}"
        else:
            assert result == wanted, f"bit {bit} of {name}: {flipped[max(0, bit // 8 - 40) : bit // 8 + 40]!r}"
    assert bool(found) is ((case, name) not in NOT_TAKEN)


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)


def test_damaged_episodes_are_named(begun: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for i in ("0", "1"):
        shutil.copytree(begun[i], tmp_path / i)
    (data,) = (tmp_path / "0").rglob("main_data.hdf5")
    with h5py.File(data) as file:
        stored = data.read_bytes()
        places = [stored.index(file[name]["rewards"][()].tobytes()) for name in ("episode_0", "episode_2")]
    with pytest.raises(SystemExit) as done:
        main(["dataset", "verify", str(tmp_path / "0")])
    assert (done.value.code, capsys.readouterr().out) == (0, "3 episodes read, nothing damaged\n")
    for place in places:
        flip(data, place)
    with pytest.raises(Damaged) as told:
        merge_shards([tmp_path / "0", tmp_path / "1"], tmp_path / "out")
    assert f"{data} is damaged: episode 0, episode 4: not what was written" in str(told.value)
    assert not (tmp_path / "out").exists()
    with pytest.raises(SystemExit) as done:
        main(["dataset", "verify", str(tmp_path / "0"), "--json"])
    assert done.value.code == 1
    lines = [f"episode {index} in {data} is damaged" for index in (0, 4)]
    assert json.loads(capsys.readouterr().out) == {"episodes": 3, "damaged": lines}


@pytest.mark.parametrize(("case", "name"), [(case, name) for case, (_, names) in CASES.items() for name in names])
def test_verify_finds_what_a_reader_would_get_wrong(
    case: str, name: str, begun: dict[str, Path], tmp_path: Path
) -> None:
    """It says nothing only where each episode, as h5py reads it, is still what it was."""
    shutil.copytree(begun[case], tmp_path / "work")
    assert damage(tmp_path / "work")[1] == []
    (path,) = (tmp_path / "work").rglob(name)
    whole = path.read_bytes()
    wanted = read_all(tmp_path / "work")
    silent = 0
    for bit in flips(whole, text=name.endswith(".json")):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        if not damage(tmp_path / "work")[1]:
            silent += 1
            assert read_all(tmp_path / "work") == wanted, f"bit {bit}"
    assert silent < 40


@pytest.mark.parametrize("name", ["namespace_metadata.json", "episode-1.repro", "run.json"])
def test_verify_reads_all_files(name: str, begun: dict[str, Path], tmp_path: Path) -> None:
    """Also those that no reader of the dataset opens; each is named."""
    shutil.copytree(begun["complete"], tmp_path / "work")
    (path,) = (tmp_path / "work").rglob(name)
    whole = path.read_bytes()
    # a zip begins with a header that has dates in it; of those nothing is made
    within = 100 if name.endswith(".repro") else len(whole) // 2
    for at in (0, within):
        flipped = bytearray(whole)
        flipped[at] ^= 1
        path.write_bytes(flipped)
        (line,) = damage(tmp_path / "work")[1]
        assert name in line


def test_a_repro_with_a_changed_byte_is_damage_or_says_the_same(begun: dict[str, Path], tmp_path: Path) -> None:
    """A zip holds dates and attributes that nothing is made of; each other byte is noticed."""
    (path,) = (begun["complete"]).rglob("episode-1.repro")
    whole, wanted = path.read_bytes(), Repro.load(path)
    file, silent = tmp_path / "episode-1.repro", 0
    for at in range(len(whole)):
        flipped = bytearray(whole)
        flipped[at] ^= 1
        file.write_bytes(flipped)
        with contextlib.suppress(UsageError):
            found = Repro.load(file)
            if found.doubt:  # the signature cannot be found: nothing of it is run without trust
                continue
            silent += 1
            assert found.about == wanted.about, f"byte {at}"
            assert found.arrays.keys() == wanted.arrays.keys(), f"byte {at}"
            for name, array in wanted.arrays.items():
                assert np.array_equal(found.arrays[name], array), f"byte {at}"
    assert silent < len(whole) / 5


def test_a_letter_of_run_json_is_damage_and_no_other_run(begun: dict[str, Path], tmp_path: Path) -> None:
    for i in ("0", "1"):
        shutil.copytree(begun[i], tmp_path / i)
    path = tmp_path / "1" / "run.json"
    path.write_text(path.read_text().replace('"seed": 2', '"seed": 3'))
    with pytest.raises(UsageError, match=rf"^{path} is damaged \(ValueError: its digest"):
        merge_shards([tmp_path / "0", tmp_path / "1"], tmp_path / "out")
    with pytest.raises(UsageError, match=rf"^{path} is damaged \(ValueError: its digest"):
        collected(Noted, out=tmp_path / "1", episodes=6, shard="1/2", resume=True, **RUN)


@pytest.mark.parametrize("other", ["pipe", "/dev/zero"])
@pytest.mark.parametrize("name", ["run.json", "summary.json", ".episodes", "main_data.hdf5", "metadata.json"])
def test_what_is_no_file_is_damage(name: str, other: str, begun: dict[str, Path], tmp_path: Path) -> None:
    """Nobody waits for a pipe that nobody writes to, or reads a device that has no end."""
    work = tmp_path / "work"
    shutil.copytree(begun["complete"], work)
    (path,) = work.rglob(name)
    path.unlink()
    if other == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(other)
    assert any(name in line for line in damage(work)[1])
    grow = partial(collected, Noted, out=work, episodes=7, resume=True, **RUN)
    for read_it in (partial(about, work), partial(replay, work, 0), partial(load, work), grow):
        with contextlib.suppress(TreadleError, ValueError):  # what does not read this file goes on
            read_it()


def read_all(out: Path) -> Any:
    """What readers have: the arrays and attributes of all episodes, their notes in journals, and the summary."""
    with h5py.File(next(out.rglob("main_data.hdf5"))) as file:
        found: dict[str, Any] = {}

        def see(name: str, item: Any) -> None:
            found[name] = dict(item.attrs), item[()].tobytes() if isinstance(item, h5py.Dataset) else b""

        file.visititems(see)
    notes = [record.note for path in journals(out / ".parts") for record in read(path, lost=[])]
    return found, json.loads((out / "summary.json").read_text()), notes


def test_journals_of_an_unfinished_run(begun: dict[str, Path], tmp_path: Path) -> None:
    """Damage before an intact episode is named, and nothing is cut off; after the last one it is as good as a kill."""
    parts = tmp_path / "work" / ".parts"
    shutil.copytree(begun["unfinished"], tmp_path / "work")
    (path,) = journals(parts)
    whole = path.read_bytes()
    records = list(read(path))
    assert len(records) >= 3
    for at in (0, 30, records[1].end - records[1].begin - 1):  # its magic, its note, its last byte
        path.write_bytes(whole)
        flip(path, records[1].begin + at)
        with pytest.raises(Damaged, match=rf"{path} is damaged: episode .*--resume makes again what is missing"):
            recover(parts)
        assert path.stat().st_size == len(whole)
    path.write_bytes(whole)
    flip(path, len(whole) - 1)
    assert [line for line in damage(tmp_path / "work")[1] if f"episode {records[-1].note.index} in {path}" in line]
    assert [note.index for note in recover(parts)] == [record.note.index for record in records[:-1]]


class Rots(Noted):
    """In its fourth episode a bit of the first one changes on the disk."""

    parts: Path
    begun = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        Rots.begun += 1
        if Rots.begun == 4:
            flip(Rots.parts / "worker-0-0.episodes", 2000)
        return super().reset(seed=seed, options=options)


def test_damage_between_collecting_and_merging_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "o"
    monkeypatch.setattr(Rots, "parts", out / ".parts", raising=False)
    with pytest.raises(CollectionFailed, match=r"worker-0-0\.episodes is damaged: episode 0") as told:
        collected(Rots, out=out, episodes=4, **RUN)
    assert told.value.stored.summary is None
    assert told.value.stored.finished == 4
    assert not list(out.rglob("*.hdf5"))
