"""Evaluations in a directory: they survive, are the same for any number of workers, and say what to know of them."""

from __future__ import annotations

import json
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import h5py
import numpy as np
import pytest

from treadle.errors import UsageError
from treadle.evaluation.evaluate import Scored, evaluate
from treadle.evaluation.remarks import remarks_of
from treadle.evaluation.results import Results
from treadle.record import making
from treadle.record.journal import EpisodeNote
from treadle.record.making import Interrupted
from treadle.record.summary import Summary, write_summary
from treadle.replays.replay import replay
from treadle.sample.failed import CollectionFailed
from treadle.sample.scores import Evaluation, compare
from treadle.sample.skipping import Skipped
from treadle.worker.options import WorkerOptions

LENGTHS = 12  # steps of an episode, at most
SECONDS = "seconds"  # the one key that is not decided by the run


class Reach(gym.Env):
    """Succeeds in every other seed; with `fails` one seed in `fails` raises in its third step."""

    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gym.spaces.Discrete(4)

    def __init__(self, fails: int = 0) -> None:
        self.fails = fails

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t, self.drawn = 0, int(self.np_random.integers(1 << 30))
        return self._seen(), {"success": False}

    def _seen(self) -> np.ndarray:
        return self.np_random.uniform(-1, 1, 3).astype(np.float32)

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        if self.fails and self.drawn % self.fails == 0 and self.t == 3:
            raise KeyError("corner")
        ended = self.t == 3 + self.drawn % (LENGTHS - 3)
        return self._seen(), float(action), ended, False, {"success": ended and self.drawn % 2 == 0}


def lines(folder: Path) -> list[dict[str, Any]]:
    """Those of episodes.jsonl, without what depends on the machine."""
    found = [json.loads(line) for line in (folder / "episodes.jsonl").read_text().splitlines()]
    return [{key: value for key, value in each.items() if key != SECONDS} for each in found]


def test_what_is_kept_is_what_was_played(tmp_path: Path) -> None:
    result = evaluate(Reach, None, 8, 3, workers=2, out=tmp_path / "kept")
    alone = evaluate(Reach, None, 8, 3, worker_options=WorkerOptions(backend="serial"))
    assert [score.cells for score in result.scores] == [score.cells for score in alone.scores]
    assert (result.mean, result.low, result.high, result.success) == (alone.mean, alone.low, alone.high, alone.success)
    told = lines(tmp_path / "kept")
    assert [(each["index"], each["seed"], each["return"], each["length"], each["success"]) for each in told] == [
        (score.index, score.seed, score.total_reward, score.length, score.success) for score in alone.scores
    ]
    assert {each["end"] for each in told} == {"terminated"}
    with h5py.File(tmp_path / "kept" / "steps.hdf5") as file:
        for each in told:
            group = file[f"episode_{each['index']}"]
            assert "observations" not in group
            assert group["rewards"][()].sum() == each["return"]
            assert group["terminations"][()].tolist() == [False] * (each["length"] - 1) + [True]


def test_a_summary_is_written_once_with_the_remarks_on_what_was_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Drifts(Reach):
        def __init__(self) -> None:
            super().__init__()
            self.born = time.monotonic()

        def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            seen, reward, *more = super().step(action)
            return seen, reward + self.born, *more  # type: ignore[return-value]

    said: list[list[str]] = []

    def write(path: Path, summary: Summary) -> None:
        said.append([each["text"] for each in summary.remarks])
        write_summary(path, summary)

    monkeypatch.setattr(making, "write_summary", write)
    run = Scored.of(Drifts, None, 4, 0, None, True, worker_options=WorkerOptions(backend="serial"))
    run.evaluation(tmp_path / "later", "typed")
    run.evaluation(tmp_path / "later", "typed", resume=True, verify=2)
    run.evaluation(tmp_path / "at once", "typed", verify=2)
    unequal = ["2 episodes played again came out differently: the seed does not decide all"]
    assert said == [[], unequal, unequal]


@pytest.mark.parametrize("workers", [1, 3])
def test_killed_and_resumed_it_is_the_undisturbed_run(
    workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kept(out: Path, episodes: int, **more: Any) -> Evaluation:
        return evaluate(
            Reach, None, episodes, 5, env_kwargs={"fails": 9}, out=out, on_error="skip", max_skipped=0.5, **more
        )

    whole, parted = tmp_path / "whole", tmp_path / "parted"
    first = kept(whole, 30, worker_options=WorkerOptions(backend="serial"))
    assert first.left_out
    said = json.loads((whole / "summary.json").read_text())["remarks"]
    assert [each["text"] for each in said] == [remark.text for remark in first.remarks] != []
    assert {each.index for each in first.left_out} == {each["index"] for each in lines(whole) if each["end"] == "error"}

    have = Results.have

    def stop(results: Results, note: EpisodeNote) -> None:
        have(results, note)
        if len(results.notes) == 12:  # any twelve: a worker may be late with the first
            signal.raise_signal(signal.SIGINT)

    with (
        pytest.raises(Interrupted, match=r"^random: mean return .* episodes \(in \.stored\)$") as stopped,
        monkeypatch.context() as patched,
    ):
        patched.setattr(Results, "have", stop)
        kept(parted, 30, workers=workers)
    assert 0 < len(stopped.value.stored.scores) < 30
    assert lines(parted)
    second = kept(parted, 30, workers=4 - workers, resume=True)
    assert second == first
    assert lines(parted) == lines(whole)
    assert (parted / "steps.hdf5").read_bytes() == (whole / "steps.hdf5").read_bytes()
    assert kept(parted, 30, resume=True) == first  # nothing to do
    larger = kept(parted, 40, workers=2, resume=True)
    assert larger == kept(tmp_path / "larger", 40, worker_options=WorkerOptions(backend="serial"))
    assert lines(parted) == lines(tmp_path / "larger")


def test_a_failure_ends_it_and_what_was_finished_is_there(tmp_path: Path) -> None:
    with pytest.raises(CollectionFailed, match="corner") as failed:
        evaluate(
            Reach,
            None,
            60,
            5,
            env_kwargs={"fails": 9},
            out=tmp_path / "kept",
            worker_options=WorkerOptions(backend="serial"),
        )
    assert failed.value.stored.scores
    assert len(lines(tmp_path / "kept")) == len(failed.value.stored.scores)
    with pytest.raises(CollectionFailed, match="corner") as failed:
        evaluate(Reach, None, 60, 5, env_kwargs={"fails": 9}, worker_options=WorkerOptions(backend="serial"))
    assert failed.value.stored.scores


def test_another_policy_or_seed_is_not_resumed(tmp_path: Path) -> None:
    evaluate(Reach, None, 4, 1, worker_options=WorkerOptions(backend="serial"), out=tmp_path)
    with pytest.raises(UsageError, match="seed was 1 and is 2"):
        evaluate(Reach, None, 4, 2, worker_options=WorkerOptions(backend="serial"), out=tmp_path, resume=True)
    with pytest.raises(UsageError, match="policy was"):
        evaluate(Reach, still, 4, 1, worker_options=WorkerOptions(backend="serial"), out=tmp_path, resume=True)
    with pytest.raises(UsageError, match="success_keys was"):
        evaluate(
            Reach,
            None,
            4,
            1,
            worker_options=WorkerOptions(backend="serial"),
            out=tmp_path,
            resume=True,
            success_key="won",
        )
    with pytest.raises(UsageError, match="is there already"):
        evaluate(Reach, None, 4, 1, worker_options=WorkerOptions(backend="serial"), out=tmp_path)
    with pytest.raises(UsageError, match=r"--force.*give out"):
        evaluate(Reach, None, 4, 1, worker_options=WorkerOptions(backend="serial"), resume=True)


def still(observations: np.ndarray) -> np.ndarray:
    return np.ones(len(observations), np.int64)


def evaluated(folder: Path, episodes: int) -> Path:
    """The directory of an evaluation whose environment and policy are in a file."""
    (folder / "reach.py").write_text(Path(__file__).read_text())
    serial, out = WorkerOptions(backend="serial"), folder / "kept"
    evaluate(f"{folder}/reach.py:Reach", f"{folder}/reach.py:still", episodes, 1, worker_options=serial, out=out)
    return out


def test_each_episode_is_replayed_without_its_policy(tmp_path: Path) -> None:
    out = evaluated(tmp_path, 5)
    for index in range(5):
        again = replay(out, index)
        assert again.as_recorded, str(again)
        assert again.compared == ["rewards", "ends", "observations"]
        assert again.total_reward == lines(out)[index]["return"]


def test_an_episode_whose_observations_are_others_is_said(tmp_path: Path) -> None:
    """Its rewards and ends are those that were recorded; of observations there is a digest alone."""
    out = evaluated(tmp_path, 2)
    again = replay(out, 0, env=Dim)
    assert not again.as_recorded
    assert "the digest of all observations" in str(again)


class Dim(Reach):
    """Sees a little less."""

    def _seen(self) -> np.ndarray:
        return super()._seen() * np.float32(0.99)


def test_verified_episodes_are_equal_and_damage_is_told(tmp_path: Path) -> None:
    played = Scored.of(Reach, None, 6, 1, None, True, worker_options=WorkerOptions(backend="serial"))
    result = played.evaluation(tmp_path, "treadle eval", verify=2)
    assert len(json.loads((tmp_path / "summary.json").read_text())["verified"]["episodes"]) == 2
    assert not result.remarks
    shutil.copy(tmp_path / "episodes.jsonl", tmp_path / "before")
    (tmp_path / "episodes.jsonl").write_text("{")
    assert played.evaluation(tmp_path, "treadle eval", verify=2, resume=True) == result
    told = lines(tmp_path)
    shutil.copy(tmp_path / "before", tmp_path / "episodes.jsonl")
    assert told == lines(tmp_path)


def test_tasks_are_in_the_lines(tmp_path: Path) -> None:
    result = evaluate(
        {"near": Reach, "far": (Reach, {"fails": 0})},
        None,
        3,
        worker_options=WorkerOptions(backend="serial"),
        out=tmp_path,
    )
    assert [each["task"] for each in lines(tmp_path)] == ["near"] * 3 + ["far"] * 3
    assert [len(each.scores) for each in result.tasks.values()] == [3, 3]


def test_episodes_that_one_of_two_has_left_out_are_not_compared() -> None:
    some = evaluate(
        Reach,
        None,
        30,
        5,
        env_kwargs={"fails": 9},
        on_error="skip",
        max_skipped=0.5,
        worker_options=WorkerOptions(backend="serial"),
    )
    every = evaluate(Reach, still, 30, 5, worker_options=WorkerOptions(backend="serial"))
    found = compare(some, every)
    assert found.wins + found.ties + found.losses == 30 - len(some.left_out) < 30


def note(index: int, digest: str = "", **more: Any) -> EpisodeNote:
    about = {name: more.pop(name) for name in ("solved", "still") if name in more}
    rest: dict[str, Any] = {"terminated": True, "truncated": False, "success": None, **more}
    return EpisodeNote(index, index, 9, 1.0, nbytes=0, digest=digest or str(index), about=about, **rest)


def test_nothing_is_remarked_on_sound_episodes() -> None:
    assert remarks_of([note(i) for i in range(9)]) == ()


@pytest.mark.parametrize(
    ("notes", "text", "episodes"),
    [
        ([note(0, solved=True), note(1)], "1 episode had succeeded at the reset", (0,)),
        ([note(0, "a"), note(1, "a"), note(2)], "3 episodes are 2 different ones", (0, 1)),
        ([note(0, still="x"), note(1, still="x")], "the policy's actions never change", (0, 1)),
        ([note(0, terminated=False, truncated=True), note(1)][:1] * 1, "1 of 1 episode were cut", (0,)),
    ],
)
def test_what_a_reader_should_know_is_remarked_on(
    notes: list[EpisodeNote], text: str, episodes: tuple[int, ...]
) -> None:
    (remark,) = remarks_of(notes)
    assert text in remark.text
    assert remark.episodes == episodes


def test_episodes_that_could_not_be_played_lower_the_rate() -> None:
    notes = [note(i, success=i < 2) for i in range(4)]
    (remark,) = remarks_of(notes, [Skipped(4, 4, "boom")])
    assert "1 of 5 episodes could not be played; if they count as failures, success is 40.0%" in remark.text


@pytest.mark.parametrize("env", ["CartPole-v1", "MiniGrid-Empty-5x5-v0", "Hopper-v5", "ALE/Pong-v5"])
def test_no_remark_is_made_of_a_random_policy(env: str) -> None:
    found = evaluate(env, None, 10, worker_options=WorkerOptions(backend="serial"), max_episode_steps=400).remarks
    assert [each.text for each in found if "time limit" not in each.text] == []
