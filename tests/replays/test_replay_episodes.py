"""Episodes that were made by their index, and failed or did not: replayed from the error to the line."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import sys
import zipfile
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import treadle
from treadle.cli.main import main
from treadle.errors import UsageError
from treadle.replays.playing import StillRunning, limited
from treadle.repro import Repro
from typed_run import collected

sys.path.insert(0, str(Path(__file__).parent))

from drills import BAD_EPISODE, BAD_STEP, LENGTH, Corridor, Tired, line_of

ENV = f"{Path(__file__).parent / 'drills.py'}:Corridor"


def run_of(out: Path, **options: Any) -> Path:
    """A run of the drill, stopped by its failure where there is one; its directory."""
    given = {
        "episodes": 4,
        "workers": 1,
        "worker_options": treadle.WorkerOptions(worker_output="keep"),
        **options,
    }
    with contextlib.suppress(treadle.CollectionFailed):
        collected(given.pop("env", ENV), out=out, **given)
    return out


def test_what_was_raised_is_raised_again_with_the_environments_own_frames(tmp_path: Path) -> None:
    out = tmp_path / "o"
    with pytest.raises(treadle.CollectionFailed) as failed:
        collected(ENV, out=out, episodes=4, workers=1)
    assert failed.value.repro.path == out / "failures" / "episode-2.repro"
    assert f"to see it again: treadle replay {failed.value.repro.path}" in failed.value.__notes__
    result = treadle.replay(out)
    assert type(result.error) is ZeroDivisionError
    assert (result.steps, result.as_recorded) == (BAD_STEP, True)
    assert result.compared == ["rewards", "observations"]
    place = f"drills.py:{line_of('1 / (self.t - BAD_STEP)')}"
    assert str(result) == f"step {BAD_STEP}: ZeroDivisionError: division by zero ({place}), as recorded"
    assert [line for line in result.stack.splitlines() if "/treadle/" in line] == []
    assert treadle.replay(out, policy=True).as_recorded, "the random policy, from its own generator"
    assert treadle.replay(out, BAD_EPISODE).steps == BAD_STEP
    stopped = treadle.replay(out, step=5)
    assert (stopped.steps, stopped.stopped, stopped.error) == (5, True, None)
    assert stopped.observation[0] == 5


def test_an_episode_that_did_not_fail_is_compared_with_what_is_stored_of_it(tmp_path: Path) -> None:
    out = run_of(tmp_path / "o", env_kwargs={"fault": "none"})
    result = treadle.replay(out, 1)
    assert (result.steps, result.error, result.as_recorded) == (LENGTH, None, True)
    assert result.compared == ["rewards", "ends", "observations"]
    with pytest.raises(treadle.UsageError, match="has the episodes 0 to 3, not 4"):
        treadle.replay(out, 4)
    with pytest.raises(treadle.UsageError, match="no episode has failed"):
        treadle.replay(out)


def test_a_run_with_an_npz_file_of_an_earlier_state_is_refused(tmp_path: Path) -> None:
    out = run_of(tmp_path / "o", env_kwargs={"fault": "none"})
    np.savez(out / "old-v0.npz", rewards=np.zeros(3))
    shutil.rmtree(out / "treadle")
    begun = json.loads((out / "run.json").read_text())
    begun["arguments"]["format"], begun["output"] = "npz", "old-v0.npz"
    begun.pop("digest")
    (out / "run.json").write_text(json.dumps(begun))
    with pytest.raises(UsageError, match="no dataset in"):
        treadle.replay(out, 1, trust=True)
    with pytest.raises(UsageError, match=r"is of the format 'npz', which treadle 0.* does not know; resume='replace'"):
        collected(ENV, out=out, episodes=5, workers=1, resume=True)
    assert collected(ENV, out=out, episodes=2, workers=1, resume="replace").complete
    assert not (out / "old-v0.npz").exists()


def test_the_first_step_that_is_not_as_recorded_is_told(tmp_path: Path) -> None:
    out = run_of(tmp_path / "o", env_kwargs={"fault": "drift"})
    result = treadle.replay(out, BAD_EPISODE)
    assert not result.as_recorded
    assert (result.difference.step, result.difference.field) == (BAD_STEP, "reward")
    assert f"first differs from what was recorded in step {BAD_STEP}, reward" in str(result)


def test_a_debugger_stops_before_the_step_that_is_not_as_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = run_of(tmp_path / "o", env_kwargs={"fault": "drift"})
    monkeypatch.setattr("sys.stdin", io.StringIO("p self.t\nc\n"))
    result = treadle.replay(out, BAD_EPISODE, pdb=True)
    shown = capsys.readouterr().out
    assert shown.startswith(f"it first differs from what was recorded in step {BAD_STEP}, reward")
    assert f"drills.py({line_of('self.x += float(self.np_random') - 1})step()" in shown
    assert f"(Pdb) {BAD_STEP - 1}" in shown
    assert (result.difference.step, result.steps, result.as_recorded) == (BAD_STEP, BAD_STEP, False)
    monkeypatch.setattr("sys.stdin", io.StringIO("q\n"))
    left = treadle.replay(out, BAD_EPISODE, pdb=True)
    assert str(left).startswith(f"left in step {BAD_STEP}; it first differs from what was recorded in step {BAD_STEP}")


def test_an_environment_other_than_the_recorded_one_is_found_by_its_first_observation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    played: list[Any] = []
    file = run_of(tmp_path / "o") / "failures" / f"episode-{BAD_EPISODE}.repro"
    with pytest.raises(UsageError, match="not what was played: it differs in the reset, observation"):
        treadle.replay(file, env=lambda: Shifted(), tick=lambda *at: played.append(at))
    assert played == [(0, 0)], "no step"
    assert treadle.replay(file, env=lambda: Corridor()).as_recorded
    with pytest.raises(SystemExit, match="2"):
        main(["replay", str(file), "--env", "CartPole-v1"])
    said = capsys.readouterr().err
    assert said.startswith("treadle: env (--env) is not what was played: its observation space is Box(")
    assert said.count("\n") == 1


def test_an_environment_other_than_the_one_that_died_is_told_from_the_child(tmp_path: Path) -> None:
    run_of(tmp_path / "o", env_kwargs={"fault": "segfault"})
    with pytest.raises(UsageError, match=r"its action space is Discrete\(3\), and was Discrete\(2\)"):
        treadle.replay(tmp_path / "o", env=f"{__file__}:Wider")
    with pytest.raises(UsageError, match="not what was played: building it raised a TypeError"):
        treadle.replay(tmp_path / "o", env="gymnasium.envs.classic_control:PendulumEnv")


def test_a_constructor_that_raises_in_the_child_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = run_of(tmp_path / "o", env=f"{__file__}:Elsewhere", env_kwargs={"fault": "segfault"})
    monkeypatch.setenv("ASSETS_ARE_GONE", "1")
    with pytest.raises(treadle.TreadleError, match=r"^FileNotFoundError: no assets$"):
        treadle.replay(out)


class Elsewhere(Corridor):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if "ASSETS_ARE_GONE" in os.environ:
            raise FileNotFoundError("no assets")


class Wider(Corridor):
    action_space = gym.spaces.Discrete(3)


class Shifted(Corridor):
    def look(self) -> np.ndarray:
        return super().look() + 1.0


def test_a_file_that_cannot_be_written_does_not_hide_the_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(self: Repro, path: Any) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Repro, "save", full)
    with pytest.raises(treadle.CollectionFailed, match="division by zero") as failed:
        collected(ENV, out=tmp_path / "o", episodes=4, workers=1)
    assert "No space left" in caplog.text
    assert treadle.replay(failed.value).as_recorded


@pytest.mark.parametrize("fault", ["divide", "segfault"])
def test_a_run_that_has_skipped_too_many_is_replayed_by_the_last(fault: str, tmp_path: Path) -> None:
    out = run_of(tmp_path / "o", env_kwargs={"fault": fault}, on_error="skip", max_skipped=0)
    result = treadle.replay(out)
    assert (result.steps, result.as_recorded) == (BAD_STEP, True), str(result)
    recorded = treadle.last_failure()
    assert recorded is not None
    assert recorded.about["failed"]["kind"] == ("raised" if fault == "divide" else "died")
    assert ("action.0" in recorded.arrays) == (fault == "divide")


@pytest.mark.parametrize(
    ("fault", "line", "told"),
    [
        ("segfault", "ctypes.string_at(0)", "the process was ended by SIGSEGV"),
        ("hang", "time.sleep(0.01)", "no step came to its end for 2 s"),
        ("grip", "deque(repeat(None), maxlen=0)", "no step came to its end for 2 s"),
    ],
)
def test_what_ended_a_worker_ends_a_child_and_the_line_is_shown(
    fault: str, line: str, told: str, tmp_path: Path
) -> None:
    limit = {} if fault == "segfault" else {"step_timeout": 2.0}
    out = run_of(tmp_path / "o", env_kwargs={"fault": fault}, **limit)
    result = treadle.replay(out)
    assert str(result) == f"step {BAD_STEP}: {told} (drills.py:{line_of(line)}), as recorded"


def test_a_policy_that_raised_is_asked_again(tmp_path: Path) -> None:
    name = f"{Path(__file__).parent / 'drills.py'}:Tired"
    out = run_of(tmp_path / "o", policy=name, env_kwargs={"fault": "none"})
    result = treadle.replay(out)
    assert str(result).startswith(f"policy before step {BAD_STEP}: RuntimeError: tired (drills.py:")
    assert result.as_recorded


def test_a_debugger_stops_in_the_users_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = run_of(tmp_path / "o")
    monkeypatch.setattr("sys.stdin", io.StringIO("p self.t\nq\n"))
    treadle.replay(out, pdb=True)
    shown = capsys.readouterr().out
    assert f"drills.py({line_of('1 / (self.t - BAD_STEP)')})fail()" in shown
    assert f"(Pdb) {BAD_STEP}" in shown
    monkeypatch.setattr("sys.stdin", io.StringIO("p self.t\nq\n"))
    stopped = treadle.replay(out, pdb=True, step=10)
    assert "(Pdb) 9" in capsys.readouterr().out, "before its tenth step"
    assert stopped.steps == 10


def test_an_object_is_opened_from_its_pickle_only_when_the_file_is_trusted(tmp_path: Path) -> None:
    with pytest.raises(treadle.CollectionFailed):
        for _ in treadle.collect(lambda: Corridor(), Tired(tired=False), episodes=4, workers=1):
            pass
    repro = treadle.last_failure()
    assert repro is not None
    assert treadle.replay(repro).as_recorded, "in memory it is the object itself"
    path = repro.save(tmp_path / "kept.repro")
    with pytest.raises(treadle.UsageError, match="--env") as told:
        treadle.replay(path)
    assert "test_replay_episodes.py, line" in str(told.value)
    with pytest.raises(treadle.UsageError, match="--other-policy"):
        treadle.replay(path, env=Corridor, policy=True)
    assert treadle.replay(path, env=Corridor).as_recorded, "the actions were recorded"
    assert treadle.replay(path, trust=True, policy=True).as_recorded


def test_a_file_is_a_zip_of_json_and_arrays(tmp_path: Path) -> None:
    path = Repro({"face": "episode", "title": "kept"}).save(tmp_path / "kept")
    with zipfile.ZipFile(path) as archive:
        assert json.loads(archive.read("repro.json"))["title"] == "kept"
    with pytest.raises(treadle.UsageError, match=r"is not a \.repro file"):
        Repro.load(__file__)


LIMIT, OWN = 12, 20  # steps: the run's limit, the environment's


@pytest.mark.parametrize(("limit", "own"), [(LIMIT, None), (LIMIT, OWN), (OWN, LIMIT), (LIMIT, LIMIT), (LENGTH, None)])
def test_what_the_runs_own_limit_has_cut_has_an_equal_end(
    limit: int, own: int | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = ENV if own is None else f"{__file__}:limited_corridor"
    kwargs = {"fault": "none"} if own is None else {"steps": own}
    out = run_of(tmp_path / "o", env=name, env_kwargs=kwargs, max_episode_steps=limit)
    for episode in range(4):
        result = treadle.replay(out, episode)
        assert (result.steps, result.as_recorded) == (min(limit, own or LENGTH), True), str(result)
        assert "ends" in result.compared
        with pytest.raises(SystemExit, match="0"):
            main(["replay", str(out), str(episode)])
        assert "steps to its end" in capsys.readouterr().out
    assert treadle.replay(out, 1, policy=True).as_recorded


def test_an_end_that_is_none_of_the_runs_limit_is_told(tmp_path: Path) -> None:
    out = run_of(tmp_path / "o", env_kwargs={"fault": "none"}, max_episode_steps=LIMIT)
    told = str(treadle.replay(out, 1, env=lambda **_: limited_corridor(LIMIT - 2)))
    assert f"step {LIMIT - 2}, the end of the episode: it was going on and is truncated" in told


def limited_corridor(steps: int) -> gym.Env:
    return gym.wrappers.TimeLimit(Corridor("none"), steps)


def test_a_file_with_a_flipped_bit_is_damaged_and_says_so(tmp_path: Path) -> None:
    path = Repro({"face": "episode", "title": "kept" * 99}, {"rewards": np.arange(999.0)}).save(tmp_path / "kept")
    whole = path.read_bytes()
    for at in range(30, len(whole), 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :])
        with contextlib.suppress(UsageError):  # and no other error; some bytes say nothing
            Repro.load(path)


def test_without_the_recorder_nothing_is_kept(tmp_path: Path) -> None:
    with pytest.raises(treadle.CollectionFailed) as failed:
        collected(ENV, out=tmp_path / "o", episodes=4, workers=1, worker_options=treadle.WorkerOptions(recorder=False))
    assert failed.value.repro is None
    assert not (tmp_path / "o" / "failures").exists()


def test_pictures_are_made_of_what_was_played(tmp_path: Path) -> None:
    out = run_of(tmp_path / "o")
    treadle.replay(out, render=tmp_path / "seen.png")
    assert (tmp_path / "seen.png").read_bytes().startswith(b"\x89PNG")


def test_what_cannot_be_meant_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = run_of(tmp_path / "o")
    with pytest.raises(UsageError, match="step must be a whole number"):
        treadle.replay(out, step=-1)
    with pytest.raises(UsageError, match="timeout"):
        treadle.replay(out, timeout=-1)
    with pytest.raises(UsageError, match="render_mode='rgb_array'"):
        treadle.replay(out, env=lambda: Corridor(), render=tmp_path / "out.mp4")
    monkeypatch.setattr("sys.stdin", io.StringIO("q\n"))
    assert str(treadle.replay(out, pdb=True, step=10)) == "left in step 10, as recorded"


def test_a_timer_of_the_users_own_goes_on() -> None:
    rang: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda *_: rang.append(1))
    signal.setitimer(signal.ITIMER_REAL, 1000.0)
    try:
        with limited(5.0) as ring:
            ring()
            assert signal.getitimer(signal.ITIMER_REAL)[0] <= 5.0
        assert 900 < signal.getitimer(signal.ITIMER_REAL)[0] <= 1000
        with limited(0.01) as ring, pytest.raises(StillRunning):
            ring()
            while True:
                pass
        assert 900 < signal.getitimer(signal.ITIMER_REAL)[0] <= 1000
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    assert not rang


def test_what_failed_in_planning_is_not_replayed() -> None:
    with pytest.raises(UsageError, match="planning"):
        treadle.replay(Repro({"face": "item", "title": "item 3 of a batch"}))
    with pytest.raises(UsageError, match="planning"):
        treadle.replay(treadle.TaskRaised("item 3 of 4: division by zero"))
