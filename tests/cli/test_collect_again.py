"""`treadle collect` on a run that is there: what was left out, a dataset that is damaged, a run that grows."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from command import ZOO, at_once, one_line, run_hash, run_hashes, summary, treadle

from conftest import require
from treadle import seeding

pytestmark = pytest.mark.usefixtures("command_server")


def also(case: object) -> object:
    """A case that repeats in another form what a quick one shows."""
    return pytest.param(case, marks=pytest.mark.slow)


def fragile(gate: Path, *arguments: object) -> tuple[object, ...]:
    kwargs = json.dumps({"mended": str(gate)})
    return "collect", f"{ZOO}:Fragile", "--env-kwargs", kwargs, "--max-skipped", "50%", "--on-error", "skip", *arguments


def bad_among(episodes: int) -> list[int]:
    return [i for i in range(episodes) if seeding.episode_env_seed(0, i) % 4 == 0]


def test_episodes_that_fail_are_left_out_and_said(tmp_path: Path) -> None:
    h5py = require("h5py")
    gate, bad = tmp_path / "gate", bad_among(30)
    assert 5 < len(bad) < 15
    files, hashes = set(), set()
    outs = {workers: tmp_path / str(workers) for workers in (1, 3)}
    both = at_once(*(fragile(gate, "--episodes", 30, "--workers", n, "--out", out) for n, out in outs.items()))
    for out, done in zip(outs.values(), both, strict=True):
        assert done.returncode == 0, done.stderr
        told = summary(out)
        causes = {each["cause"].split(" (envs.py:")[0] for each in told["skipped"]}
        assert [each["index"] for each in told["skipped"]] == bad
        assert [each["seed"] for each in told["skipped"]] == [seeding.episode_env_seed(0, i) for i in bad]
        assert causes == {"ValueError: the arm is off"}
        assert told["episodes"] == 30 - len(bad)
        assert f"episodes  {30 - len(bad)} ({len(bad)} left out)" in done.stdout
        line = told["skipped"][0]["line"]
        named = ", ".join(map(str, bad[:5]))
        assert (
            f"left out  {len(bad)} x ValueError: the arm is off envs.py:{line} (episodes {named}, ...)" in done.stdout
        )
        for each in told["skipped"]:
            kept = f"failures/episode-{each['index']}.repro"
            assert [each[name] for name in ("kind", "step", "file", "repro")] == ["ValueError", 2, str(ZOO), kept]
            assert (out / each["repro"]).exists()
        assert "the arm is off" in ZOO.read_text().splitlines()[line - 1]
        assert 1 <= len(done.stderr.splitlines()) <= len(bad)
        assert all(line.endswith("; it is left out") for line in done.stderr.splitlines())
        (data,) = out.glob("treadle/*/data/main_data.hdf5")
        files.add(data.read_bytes())
        hashes.add(told["hash"])
    assert len(files) == len(hashes) == 1
    with h5py.File(data) as file:
        groups = [file[f"episode_{i}"].attrs for i in range(30 - len(bad))]
        assert [attrs["id"] for attrs in groups] == list(range(len(groups)))
        assert [attrs["episode_index"] for attrs in groups] == [i for i in range(30) if i not in bad]


def test_what_was_left_out_stays_so_until_it_is_to_be_tried_again(tmp_path: Path) -> None:
    gate, out = tmp_path / "gate", tmp_path / "o"
    play = (*fragile(gate, "--steps", 150), "--out", out, "--workers", 2)
    stopped = treadle(*(each for each in play if each not in ("--on-error", "skip", "--max-skipped", "50%")))
    assert stopped.returncode == 1
    assert '; on_error="skip" (--on-error skip) leaves such an episode out' in stopped.stderr
    few = treadle(*(each if each != "50%" else "2" for each in play), "--resume")
    bad = bad_among(60)
    assert few.returncode == 1
    assert "episodes have failed, more than the 2 of max_skipped (--max-skipped): 3 x ValueError" in few.stderr
    refused = treadle(*(each if each != "50%" else "2" for each in play), "--resume")
    assert refused.returncode == 2
    assert "goes on, --resume --retry-skipped tries them again" in one_line(refused.stderr)
    gate.touch()
    done = treadle(*play, "--resume")  # it would succeed now, but was left out
    told = summary(out)
    left = {each["index"] for each in told["skipped"]}
    assert (done.returncode, done.stderr) == (0, "")
    assert len(left) >= 3
    assert left < set(bad)
    again = treadle(*play, "--resume")
    assert "nothing to do" in again.stdout


def test_a_run_that_has_failed_of_too_many_goes_on_with_what_it_says(tmp_path: Path) -> None:
    play = (*fragile(tmp_path / "gate", "--episodes", 40), "--out", tmp_path / "o", "--workers", 2, "--verify", 0)
    play = tuple("5%" if each == "50%" else each for each in play)
    failed = treadle(*play)
    assert failed.returncode == 1
    told = failed.stderr.splitlines()[-1]
    options = told.partition("the same command with ")[2].removesuffix(" continues").split()
    assert options[:2] == ["--resume", "--max-skipped"], told
    refused = treadle(*play, "--resume")
    assert refused.returncode == 2
    more = one_line(refused.stderr).partition("; ")[2].partition(" goes on")[0].split()
    done = treadle(*play, *more)
    while done.returncode == 1:  # more of the later ones fail than of those before
        told = done.stderr.splitlines()[-1]
        options = told.partition("the same command with ")[2].removesuffix(" continues").split()
        assert int(options[2].rstrip("%")) > int(more[2].rstrip("%"))
        more = options
        done = treadle(*play, *more)
    assert done.returncode == 0, done.stderr
    assert [each["index"] for each in summary(tmp_path / "o")["skipped"]] == bad_among(40)


def test_a_dataset_that_is_cut_short_is_refused_by_name(tmp_path: Path) -> None:
    out = tmp_path / "o"
    play = (f"{ZOO}:Walk", "--episodes", 9)
    before = run_hash(out, *play)
    (data,) = out.rglob("main_data.hdf5")
    size = data.stat().st_size
    os.truncate(data, size // 2)
    for more in ((), ("--episodes", 12)):
        done = treadle("collect", *play, *more, "--out", out, "--resume")
        line = one_line(done.stderr)
        assert done.returncode == 1
        assert f"{data} is damaged: it has {size // 2:,} bytes and was written with {size:,}; put a copy" in line
        assert data.stat().st_size == size // 2
    data.unlink()
    done = treadle("collect", *play, "--out", out, "--resume")
    assert (done.returncode, summary(out)["hash"], data.stat().st_size) == (0, before, size)
    again = treadle("collect", *play, "--out", out, "--resume")
    assert "nothing to do" in again.stdout


@pytest.mark.parametrize("content", [also(None), also(""), '{"total_episodes": 9', also("[]")])
def test_a_dataset_that_is_not_described_is_put_together_again(content: str | None, tmp_path: Path) -> None:
    """Minari could not load it, and the run was called complete."""
    out = tmp_path / "o"
    play = ("collect", f"{ZOO}:Walk", "--episodes", 9, "--out", out)
    assert treadle(*play).returncode == 0
    before = files(out)
    (path,) = out.rglob("metadata.json")
    path.unlink()
    if content is not None:
        path.write_text(content)
    done = treadle(*play, "--resume")
    line = one_line(done.stderr)
    assert done.returncode == 0, line
    assert line.startswith(f"treadle: damaged: {path}")
    assert line.endswith("the dataset is put together again from its data")
    assert files(out) == before
    path.write_text(json.dumps({**json.loads(path.read_text()), "author": "a person"}))
    again = treadle(*play, "--resume")
    assert "nothing to do" in again.stdout
    assert "a person" in path.read_text()


# -- a run that grows --------------------------------------------------------------------------------------------------

GROWING = {
    "episodes": ((f"{ZOO}:Walk",), "--episodes", 9, 30),
    "steps": ((f"{ZOO}:Walk",), "--steps", 40, 200),
    "compressed": ((f"{ZOO}:Heavy",), "--episodes", 4, 7),
    "infos that differ": ((f"{ZOO}:Odd",), "--episodes", 9, 30),
    "texts": (("MiniGrid-DoorKey-5x5-v0", "--max-episode-steps", 20), "--episodes", 3, 8),
}


def files(out: Path) -> dict[str, bytes]:
    """Of the dataset."""
    found = [path for path in out.rglob("*") if path.suffix == ".hdf5" or path.name == "metadata.json"]
    assert found
    return {str(path.relative_to(out)): path.read_bytes() for path in found}


@pytest.mark.parametrize("case", [case if case == "steps" else also(case) for case in GROWING])
def test_a_complete_run_grows_and_ends_with_the_same_bytes(case: str, tmp_path: Path) -> None:
    play, amount, less, more = GROWING[case]
    out = tmp_path / "o"
    run_hashes({out: (*play, amount, less, "--workers", 2), tmp_path / "r": (*play, amount, more)})
    before = summary(out)["episodes"]
    done = treadle("collect", *play, amount, more, "--out", out, "--resume", "--verify", 0)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"({before} from before)" in done.stdout
    assert summary(out)["digests"] == summary(tmp_path / "r")["digests"]
    assert files(out) == files(tmp_path / "r")
    assert not [path.name for path in out.iterdir() if path.name in (".parts", ".reopened")]
    again = treadle("collect", *play, amount, more, "--out", out, "--resume")
    assert "nothing to do" in again.stdout
    smaller = treadle("collect", *play, amount, less, "--out", out, "--resume")
    assert smaller.returncode == 2
    assert f"{amount[2:]} was {more} and is {less}" in one_line(smaller.stderr)
    assert "only episodes or steps may grow" in smaller.stderr


def test_episodes_that_are_there_are_not_played_again(tmp_path: Path) -> None:
    out, played = tmp_path / "o", tmp_path / "played"
    kwargs = json.dumps({"played": str(played)})
    play = ("collect", f"{ZOO}:Counted", "--env-kwargs", kwargs, "--out", out, "--verify", 0)
    assert treadle(*play, "--episodes", 9).returncode == 0
    assert treadle(*play, "--episodes", 12, "--resume").returncode == 0
    seeds = played.read_text().split()
    assert sorted(map(int, seeds)) == sorted(seeding.episode_env_seed(0, i) for i in range(12))


def test_an_unfinished_run_grows_too(tmp_path: Path) -> None:
    gate, out = tmp_path / "gate", tmp_path / "o"
    kwargs = json.dumps({"mended": str(gate)})
    play = ("collect", f"{ZOO}:Fragile", "--env-kwargs", kwargs, "--workers", 1, "--out", out)
    assert treadle(*play, "--episodes", 9).returncode == 1
    gate.touch()
    done = treadle(*play, "--episodes", 12, "--resume")
    assert (done.returncode, done.stderr) == (0, "")
    assert summary(out)["episodes"] == 12
    assert "nothing to do" in treadle(*play, "--episodes", 12, "--resume").stdout


def test_what_was_left_out_of_a_complete_run_is_tried_again(tmp_path: Path) -> None:
    gate, out = tmp_path / "gate", tmp_path / "o"
    play = (*fragile(gate, "--episodes", 20), "--out", out, "--verify", 0)
    done = treadle(*play)
    left = [each["index"] for each in summary(out)["skipped"]]
    assert (done.returncode, left) == (0, bad_among(20))
    more = treadle(*(30 if each == 20 else each for each in play), "--resume")
    assert [each["index"] for each in summary(out)["skipped"]] == bad_among(30)
    assert f"({20 - len(left)} from before, {len(bad_among(30))} left out)" in more.stdout
    assert not [line for line in more.stderr.splitlines() if int(line.split()[2]) < 20], "they stay left out"
    gate.touch()
    play = tuple(30 if each == 20 else each for each in play)
    reference = tuple(tmp_path / "r" if each == out else each for each in play)
    done, fresh = at_once((*play, "--resume", "--retry-skipped"), reference)
    assert (done.returncode, done.stderr, fresh.returncode) == (0, "", 0)
    assert summary(out)["skipped"] == []
    assert f"({30 - len(bad_among(30))} from before)" in done.stdout
    assert summary(out)["hash"] == summary(tmp_path / "r")["hash"]
    assert files(out) == files(tmp_path / "r")
    assert "nothing to do" in treadle(*play, "--resume", "--retry-skipped").stdout


@pytest.mark.parametrize("damage", [also("gone"), "short", also("foreign")])
def test_a_run_that_cannot_be_taken_apart_is_refused_by_name(damage: str, tmp_path: Path) -> None:
    out, other = tmp_path / "o", tmp_path / "other"
    walk = f"{ZOO}:Walk"
    run_hashes({out: (walk, "--episodes", 9), other: (walk, "--episodes", 9, "--seed", 1)})
    kept = out / ".episodes"
    if damage == "gone":
        kept.unlink()
    elif damage == "short":
        os.truncate(kept, kept.stat().st_size - 1)
    else:
        kept.write_bytes((other / ".episodes").read_bytes())
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    done = treadle("collect", walk, "--out", out, "--episodes", 12, "--resume")
    assert done.returncode == 2
    assert f"the run in {out} cannot be taken apart" in one_line(done.stderr)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_a_run_that_cannot_begin_to_grow_is_as_it_was(tmp_path: Path) -> None:
    out = tmp_path / "o"
    run_hash(out, f"{ZOO}:Walk", "--episodes", 9)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    done = treadle(
        "collect", f"{ZOO}:Walk", "--episodes", 12, "--out", out, "--resume", env={**os.environ, "WALK": "0"}
    )
    assert (done.returncode, "no legs" in one_line(done.stderr)) == (1, True)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
