"""`treadle collect` on a run that is there: what was left out, a dataset that is damaged, a run that grows."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from command import ZOO, one_line, run_hash, summary, treadle

from treadle import seeding


def fragile(gate: Path, *arguments: object) -> tuple[object, ...]:
    kwargs = json.dumps({"mended": str(gate)})
    return "collect", f"{ZOO}:Fragile", "--env-kwargs", kwargs, "--max-skipped", "50%", "--on-error", "skip", *arguments


def bad_among(episodes: int) -> list[int]:
    return [i for i in range(episodes) if seeding.episode_env_seed(0, i) % 4 == 0]


def test_episodes_that_fail_are_left_out_and_said(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    gate, bad = tmp_path / "gate", bad_among(30)
    assert 5 < len(bad) < 15
    files, hashes = set(), set()
    for workers in (1, 3):
        out = tmp_path / str(workers)
        done = treadle(*fragile(gate, "--episodes", 30, "--workers", workers, "--out", out))
        assert done.returncode == 0, done.stderr
        told = summary(out)
        causes = {each["cause"].split(" (zoo.py:")[0] for each in told["skipped"]}
        assert [each["index"] for each in told["skipped"]] == bad
        assert [each["seed"] for each in told["skipped"]] == [seeding.episode_env_seed(0, i) for i in bad]
        assert causes == {"ValueError: the arm is off"}
        assert told["episodes"] == 30 - len(bad)
        assert f"episodes  {30 - len(bad)} ({len(bad)} left out)" in done.stdout
        assert (
            f"left out  episode {bad[0]} (seed {told['skipped'][0]['seed']}): ValueError: the arm is off" in done.stdout
        )
        assert f"and {len(bad) - 5} more; all are in summary.json" in done.stdout
        assert len(done.stderr.splitlines()) == len(bad)
        assert all(line.endswith("; it is left out") for line in done.stderr.splitlines())
        (data,) = out.glob("treadle/*/data/main_data.hdf5")
        files.add(data.read_bytes())
        hashes.add(told["hash"])
    assert len(files) == len(hashes) == 1
    with h5py.File(data) as file:
        groups = [file[f"episode_{i}"].attrs for i in range(30 - len(bad))]
        assert [attrs["id"] for attrs in groups] == list(range(len(groups)))
        assert [attrs["episode_index"] for attrs in groups] == [i for i in range(30) if i not in bad]
    assert treadle(*fragile(gate, "--episodes", 5), "--format", "npz", "--out", tmp_path / "npz").returncode == 0
    (npz,) = (tmp_path / "npz").glob("*.npz")
    with np.load(npz) as arrays:
        assert arrays["episode_indices"].tolist() == [i for i in range(5) if i not in bad]


def test_what_was_left_out_stays_so_until_it_is_to_be_tried_again(tmp_path: Path) -> None:
    gate, out = tmp_path / "gate", tmp_path / "o"
    play = (*fragile(gate, "--steps", 150), "--out", out, "--workers", 2)
    stopped = treadle(*(each for each in play if each not in ("--on-error", "skip", "--max-skipped", "50%")))
    assert stopped.returncode == 1
    assert '; on_error="skip" (--on-error skip) leaves such an episode out' in stopped.stderr
    few = treadle(*(each if each != "50%" else "2" for each in play), "--resume")
    bad = bad_among(60)
    assert few.returncode == 1
    assert "episodes have failed, more than the 2 of max_skipped (--max-skipped); the last: episode" in few.stderr
    refused = treadle(*(each if each != "50%" else "2" for each in play), "--resume")
    assert refused.returncode == 2
    assert "allow more, or try them again with retry_skipped (--retry-skipped)" in one_line(refused.stderr)
    gate.touch()
    done = treadle(*play, "--resume")  # it would succeed now, but was left out
    told = summary(out)
    left = {each["index"] for each in told["skipped"]}
    assert (done.returncode, done.stderr) == (0, "")
    assert len(left) >= 3
    assert left < set(bad)
    again = treadle(*play, "--resume")
    assert "nothing to do" in again.stdout


@pytest.mark.parametrize("format", ["hdf5", "npz"])
def test_a_dataset_that_is_cut_short_is_made_again_and_the_damaged_file_kept(format: str, tmp_path: Path) -> None:
    from treadle.record.merge import load

    out = tmp_path / "o"
    play = (f"{ZOO}:Walk", "--episodes", 9, "--format", format)
    before = run_hash(out, *play)
    (data,) = out.rglob("main_data.hdf5" if format == "hdf5" else "*.npz")
    size = data.stat().st_size
    for kept in (out / f"{data.name}.damaged", out / f"{data.name}.2.damaged"):
        os.truncate(data, size // 2)
        done = treadle("collect", *play, "--out", out, "--resume")
        line = one_line(done.stderr)
        assert done.returncode == 0, line
        assert line.startswith(f"treadle: damaged: {data} has {size // 2:,} bytes and was written with {size:,}; made")
        assert line.endswith(f"made again, the damaged file is kept as {kept}")
        assert kept.stat().st_size == size // 2
        assert "nothing to do" not in done.stdout
        assert summary(out)["hash"] == before
        assert data.stat().st_size == size
    assert len(load(out)) > 0
    again = treadle("collect", *play, "--out", out, "--resume")
    assert "nothing to do" in again.stdout
