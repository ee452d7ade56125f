"""Runs in shards: what is put together is what a run without shards is."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from treadle.cli.main import main
from treadle.errors import UsageError
from treadle.record.journal import Damaged
from treadle.record.shards import merge_shards, shard_of
from treadle.record.summary import read_summary, summary_rows
from treadle.record.verify import about, damage
from treadle.sample.failed import CollectionFailed
from treadle.sample.schedule import Schedule
from treadle.worker.options import WorkerOptions
from typed_run import TIMES, collected


def files(out: Path) -> dict[str, Any]:
    """All files of a run, the summary without its times."""
    found: dict[str, Any] = {
        str(path.relative_to(out)): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()
    }
    summary = json.loads(found["summary.json"])
    found["summary.json"] = {name: value for name, value in summary.items() if name not in TIMES}
    for name in found:
        if name.startswith("failures"):  # they hold the time when they were written
            found[name] = b""
    return found


class Words(gym.Wrapper):
    """Observations with a text of a space that Minari cannot name."""

    class Mission(gym.spaces.Text):
        pass

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        spaces = {"state": env.observation_space, "mission": self.Mission(30)}
        self.observation_space = gym.spaces.Dict(spaces)
        self._count = 0

    def reset(self, **kwargs: Any) -> Any:
        observation, info = self.env.reset(**kwargs)
        self._text = "go" + "abcdefgh"[kwargs["seed"] % 8] * (kwargs["seed"] % 5)
        return {"state": observation, "mission": self._text}, info

    def step(self, action: Any) -> Any:
        observation, *rest = self.env.step(action)
        return {"state": observation, "mission": self._text}, *rest


class Falls(gym.Wrapper):
    """One episode in five raises."""

    def reset(self, **kwargs: Any) -> Any:
        if kwargs["seed"] % 5 == 0:
            raise RuntimeError("the floor gives way")
        return self.env.reset(**kwargs)


@pytest.mark.parametrize(
    "more",
    [{}, {"wrappers": [Words]}, {"wrappers": [Falls], "on_error": "skip", "max_skipped": 20}],
    ids=["plain", "texts", "holes"],
)
def test_shards_together_are_the_run_without(tmp_path: Path, more: dict[str, Any]) -> None:
    run: dict[str, Any] = {"episodes": 22, "seed": 4, "workers": 1, **more}
    whole = collected("CartPole-v1", out=tmp_path / "whole", **run)
    for i in range(3):
        stored = collected("CartPole-v1", out=tmp_path / f"part{i}", shard=f"{i}/3", **run)
        assert stored.complete
    merge_shards([tmp_path / f"part{i}" for i in (2, 0, 1)], tmp_path / "merged")
    assert files(tmp_path / "merged") == files(tmp_path / "whole")
    assert whole.summary is not None
    more_of_it = {**run, "episodes": 30, "resume": True}
    collected("CartPole-v1", out=tmp_path / "merged", **more_of_it)
    collected("CartPole-v1", out=tmp_path / "whole", **more_of_it)
    assert files(tmp_path / "merged") == files(tmp_path / "whole")


def test_what_does_not_belong_together_is_named(tmp_path: Path) -> None:
    def part(name: str, shard: str | None, *, seed: int = 1, episodes: int = 6) -> Path:
        run: dict[str, Any] = {"episodes": episodes, "seed": seed, "workers": 1}
        collected("CartPole-v1", out=tmp_path / name, shard=shard, **run)
        return tmp_path / name

    a, b, again = part("a", "0/3"), part("b", "1/3"), part("again", "0/3")
    c, other, whole = part("c", "2/3"), part("other", "2/3", seed=2), part("whole", None)
    more = part("more", "1/2")

    def refused(paths: Sequence[Path], said: str) -> None:
        with pytest.raises(UsageError, match=said):
            merge_shards(paths, tmp_path / "out")
        assert not (tmp_path / "out").exists()

    refused([a, b], r"not all shards of the run are here: 2/3 missing")
    refused([a, b, again], rf"shard 0/3 is there twice: {a} and {again}")
    refused([a, b, other], rf"{other} is of another run than {a}: seed is 2, not 1$")
    refused([a, more], rf"{more} is of another run than {a}: n of --shard is 2, not 3$")
    refused([a, b, whole], rf"{whole} is not of a run that was begun with --shard")
    refused([a, b, tmp_path / "nowhere"], r"nowhere is not the directory of a run")
    refused([a, a, b], "is named twice")
    with pytest.raises(UsageError, match="is one of the shards"):
        merge_shards([a, b, c], a)
    (c / "summary.json").unlink()
    refused([a, b, c], rf"shard 2/3 in {c} is not finished")


def test_a_damaged_shard_leaves_nothing(tmp_path: Path) -> None:
    for i in range(2):
        collected("CartPole-v1", out=tmp_path / str(i), shard=f"{i}/2", episodes=4, workers=1)
    data = next((tmp_path / "1").rglob("main_data.hdf5"))
    data.write_bytes(data.read_bytes()[:2000])
    with pytest.raises(UsageError, match=rf"the dataset in {tmp_path / '1'} is damaged"):
        merge_shards([tmp_path / "0", tmp_path / "1"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_shards_from_somebody_else_are_not_trusted(tmp_path: Path) -> None:
    shards = [tmp_path / "0", tmp_path / "1"]
    for i, shard in enumerate(shards):
        collected(
            "CartPole-v1", out=shard, shard=f"{i}/2", episodes=4, workers=1
        )  # fmt: skip
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "secret").write_text("mine")
    (shards[0] / "failures").symlink_to(tmp_path / "own")
    (shards[1] / "failures").mkdir()
    (shards[1] / "failures" / "episode-1.repro").symlink_to(tmp_path / "own" / "secret")
    (shards[1] / "failures" / "episode-3.repro").write_text("told")
    merge_shards(shards, tmp_path / "out")
    assert [path.name for path in (tmp_path / "out" / "failures").iterdir()] == ["episode-3.repro"]
    begun = json.loads((shards[1] / "run.json").read_text())
    begun.pop("digest")
    for shard, said in {1: "1 is not a shard", "1/many": "'1/many' is not a shard"}.items():
        begun["arguments"]["shard"] = shard
        (shards[1] / "run.json").write_text(json.dumps(begun))
        with pytest.raises(UsageError, match=said):
            merge_shards(shards, tmp_path / "again")


class Stops(gym.Wrapper):
    """The run ends in the episode with the seed that a file says."""

    def __init__(self, env: gym.Env, where: str) -> None:
        super().__init__(env)
        self._where = Path(where)

    def reset(self, **kwargs: Any) -> Any:
        if self._where.exists() and str(kwargs["seed"]) == self._where.read_text():
            raise RuntimeError("the allocation is spent")
        return self.env.reset(**kwargs)


def test_what_a_spent_allocation_has_made_is_put_together(tmp_path: Path) -> None:
    """One shard is whole, one stopped in its fourth episode, one was never begun."""
    stop = tmp_path / "stop"
    run: dict[str, Any] = {
        "episodes": 20, "seed": 4, "worker_options": WorkerOptions(backend="serial"),
        "wrappers": [partial(Stops, where=str(stop))],
    }  # fmt: skip
    whole = collected("CartPole-v1", out=tmp_path / "whole", **run).summary
    collected("CartPole-v1", out=tmp_path / "a", shard="0/3", **run)
    assert whole is not None
    stop.write_text(str(whole.seeds[10]))
    with pytest.raises(CollectionFailed, match="spent"):
        collected("CartPole-v1", out=tmp_path / "b", shard="1/3", **run)
    shards, out = [tmp_path / "b", tmp_path / "a"], tmp_path / "out"
    with pytest.raises(UsageError, match=r"shard 1/3 in .*/b is not finished.*--allow-missing"):
        merge_shards(shards, out)
    with pytest.raises(UsageError, match=r"1/3, 2/3 missing; allow_missing=True \(--allow-missing\) goes on"):
        merge_shards(shards[1:], out)
    before = {path: path.read_bytes() for shard in shards for path in shard.rglob("*") if path.is_file()}
    merged = merge_shards(shards, out, allow_missing=True)
    assert {path: path.read_bytes() for shard in shards for path in shard.rglob("*") if path.is_file()} == before
    there = [i for i in range(20) if i % 3 == 0 or i in (1, 4, 7)]
    assert merged.digests == [whole.digests[i] for i in there]
    assert merged.missing == [
        {"shard": "1/3", "episodes": 4, "cause": f"{tmp_path / 'b'} is not finished"},
        {"shard": "2/3", "episodes": 6, "cause": "it is not among the directories"},
    ]
    assert merged.hash.endswith("-incomplete")
    assert read_summary(out / "summary.json").missing == merged.missing
    rows = dict(summary_rows(merged))
    assert rows["missing"] == f"shard 1/3, 4 episodes: {tmp_path / 'b'} is not finished"
    assert rows["hash"] == merged.hash
    assert damage(out) == (len(there) * 2, [])
    about_it = dict(about(out)[0])
    assert about_it["unfinished"].startswith("10 of 20 episodes are finished (mean return ")
    stop.unlink()
    mended = collected("CartPole-v1", out=out, resume=True, **run)
    assert (mended.before, mended.complete) == (10, True)
    (out / "failures" / "episode-10.repro").unlink()
    (out / "failures").rmdir()
    made, wanted = files(out), files(tmp_path / "whole")
    assert made.pop("summary.json") == {**wanted.pop("summary.json"), "before": 10}
    assert made == wanted


def test_nothing_that_is_finished_is_told(tmp_path: Path) -> None:
    run: dict[str, Any] = {"episodes": 4, "worker_options": WorkerOptions(backend="serial")}
    collected("CartPole-v1", out=tmp_path / "a", shard="0/2", **run)
    (tmp_path / "a" / "summary.json").unlink()
    with pytest.raises(UsageError, match="no shard has a summary"):
        merge_shards([tmp_path / "a"], tmp_path / "out", allow_missing=True)
    assert not (tmp_path / "out").exists()


def test_a_merge_with_damage_gives_back_what_it_was_to_replace(tmp_path: Path) -> None:
    run: dict[str, Any] = {"episodes": 4, "worker_options": WorkerOptions(backend="serial")}
    shards = [tmp_path / "0", tmp_path / "1"]
    for i in range(2):
        collected("CartPole-v1", out=shards[i], shard=f"{i}/2", **run)
    collected("CartPole-v1", out=tmp_path / "out", **{**run, "episodes": 3})
    before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    (data,) = shards[1].rglob("main_data.hdf5")
    content = bytearray(data.read_bytes())
    content[3000] ^= 1
    data.write_bytes(content)
    with pytest.raises(Damaged, match=r"episode \d: not what was written"):
        merge_shards(shards, tmp_path / "out", force=True)
    assert {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()} == before


def test_what_is_no_shard_is_refused() -> None:
    assert shard_of("3/4", 10) == (3, 4)
    for text in ("4/4", "1", "a/b", "-1/4", "0/0", ""):
        with pytest.raises(UsageError, match=r"shard \(--shard\) is i/n"):
            shard_of(text, 10)
    with pytest.raises(UsageError, match=r"lengths .* Give --episodes"):
        shard_of("0/4", None)
    with pytest.raises(UsageError, match="is empty"):
        shard_of("3/4", 3)


def test_a_shards_indices() -> None:
    schedule = Schedule(episodes=11, skipped=[5], shard=(1, 4))
    assert schedule.to_hand_out(1.0) == 2
    taken = list(iter(schedule.take, None))
    assert taken == [1, 9]
    for index in taken:
        assert not schedule.complete
        schedule.finish(index, 10)
    assert schedule.complete
    assert schedule.standing().of_episodes == 3


def test_the_command(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for i in range(2):
        with pytest.raises(SystemExit) as done:
            main(["collect", "CartPole-v1", "--episodes", "5", "--shard", f"{i}/2", "--out", f"p{i}", "--quiet"])
        assert done.value.code == 0
    with pytest.raises(SystemExit) as done:
        main(["dataset", "merge", "p0", "p1", "--out", "all", "--json"])
    assert done.value.code == 0
    assert json.loads(capfd.readouterr().out)["episodes"] == 5
    with pytest.raises(SystemExit) as done:
        main(["dataset", "merge", "p0", "p1", "--out", "all"])
    assert done.value.code == 2
    told = capfd.readouterr().err
    assert "force=True (--force) starts again" in told
    assert "resume" not in told  # `dataset merge` has no such option
    with pytest.raises(SystemExit) as done:
        main(["dataset", "merge", "p0", "p1", "--out", "all", "--force"])
    assert done.value.code == 0
    *_, last = capfd.readouterr().out.splitlines()
    loaded = subprocess.run([sys.executable, *shlex.split(last)[1:]], capture_output=True, text=True, check=True)
    assert "MinariDataset" in loaded.stdout
    with pytest.raises(SystemExit) as done:
        main(["dataset", "merge", "p1", "--out", "half", "--allow-missing", "--quiet"])
    assert done.value.code == 0
    told = capfd.readouterr()
    command = "the run's command, without --shard, with --resume --out half makes them"
    assert (told.out, told.err) == ("", f"treadle: 3 episodes are missing: {command}\n")
    with pytest.raises(SystemExit) as done:
        main(["collect", "CartPole-v1", "--steps", "5", "--shard", "0/2", "--out", "p2"])
    assert done.value.code == 2
    told = capfd.readouterr().err
    assert "goes with a number of episodes, not of steps" in told
    assert "Give --episodes" in told
