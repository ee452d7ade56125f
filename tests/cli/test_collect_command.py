"""`treadle collect`, as a user runs it."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command import COMMAND, LIMIT, ZOO, at_once, one_line, run_hash, run_hashes, started, summary, treadle, until

pytestmark = pytest.mark.usefixtures("command_server")

REAL = {
    "CartPole-v1": ("--episodes", 40),
    "ALE/Pong-v5": ("--episodes", 5, "--max-episode-steps", 40),
    "MiniGrid-DoorKey-5x5-v0": ("--episodes", 5, "--max-episode-steps", 50),
    "Hopper-v5": ("--steps", 200),
}


# -- the same bytes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env", REAL)
def test_any_number_of_workers_gives_the_same_dataset(env: str, tmp_path: Path) -> None:
    plays = {tmp_path / str(n): (env, *REAL[env], "--workers", n, "--verify", n % 2) for n in (1, 2, 5)}
    hashes = run_hashes(plays)
    assert len(set(hashes)) == 1, hashes
    data = {path.read_bytes() for path in tmp_path.glob("*/treadle/*/data/main_data.hdf5")}
    assert len(data) == 1
    assert not list(tmp_path.glob("*/.parts"))


@pytest.mark.parametrize(
    ("env", "policy", "amount"),
    [
        ("Walk", "stochastic", ("--episodes", 30)),
        ("RandomTimes", "random", ("--steps", 120)),
        ("GlobalRandom", "globally_random", ("--episodes", 30)),
    ],
)
def test_randomness_of_every_kind_repeats(env: str, policy: str, amount: tuple[str, int], tmp_path: Path) -> None:
    policy = policy if policy == "random" else f"{ZOO}:{policy}"
    play = (f"{ZOO}:{env}", *amount, "--policy", policy)
    ways = {"1": ("--workers", 1), "3": ("--workers", 3), "s": ("--seed", 1)}
    one, three, other = run_hashes({tmp_path / name: (*play, *way) for name, way in ways.items()})
    assert one == three != other


def test_several_envs_a_worker_change_nothing_for_random_actions(tmp_path: Path) -> None:
    play = (f"{ZOO}:Walk", "--episodes", 30)
    one, four = run_hashes({tmp_path / "1": play, tmp_path / "4": (*play, "--workers", 1, "--num-envs", 4)})
    assert one == four


def test_steps_takes_the_shortest_prefix(tmp_path: Path) -> None:
    walk = f"{ZOO}:Walk"
    run_hashes({tmp_path / "n": (walk, "--episodes", 40), tmp_path / "t": (walk, "--steps", 100, "--workers", 3)})
    whole, cut = summary(tmp_path / "n"), summary(tmp_path / "t")
    count = len(cut["lengths"])
    assert sum(cut["lengths"]) >= 100 > sum(cut["lengths"][:-1])
    assert cut["digests"] == whole["digests"][:count]


def test_minari_reads_it_and_makes_the_environment_again(tmp_path: Path, require) -> None:
    require("minari")
    from treadle.record.merge import load

    out = tmp_path / "new" / "folder"
    done = treadle("collect", "CartPole-v1", "--episodes", 7, "--max-episode-steps", 12, "--out", out)
    assert done.returncode == 0, done.stderr
    last = done.stdout.strip().splitlines()[-1]
    env = {**os.environ, "PATH": f"{COMMAND.parent}:{os.environ['PATH']}"}
    shown = subprocess.run(last, shell=True, capture_output=True, text=True, env=env, check=False, timeout=60)
    assert "treadle/CartPole-v1-random-v0" in last
    assert shown.returncode == 0, shown.stderr
    dataset = load(out)
    assert [len(e.rewards) for e in dataset.iterate_episodes()] == summary(out)["lengths"]
    assert max(summary(out)["lengths"]) <= 12
    again = dataset.recover_environment()
    assert again.spec.max_episode_steps == 12
    again.close()


# -- what a person sees ------------------------------------------------------------------------------------------------


def test_the_closing_table_says_what_came_of_it(tmp_path: Path) -> None:
    done = treadle("collect", f"{ZOO.name}:Walk", "--steps", 50, "--out", tmp_path / "o", cwd=ZOO.parent)
    assert (done.returncode, done.stderr) == (0, "")
    told = summary(tmp_path / "o")
    assert f"({told['steps'] - 50} more than asked: whole episodes)" in done.stdout
    assert told["hash"] in done.stdout
    for word in ("episodes", "return", "length", "steps/s", "on disk", "busy"):
        assert word in done.stdout
    assert told["command"].startswith("treadle collect envs.py:Walk --steps 50")
    assert set(told["time_shares"]) == {"step", "policy", "encode", "merge"}
    assert sum(told["time_shares"].values()) == pytest.approx(1)


def test_json_is_alone_on_stdout_even_when_environments_print(tmp_path: Path) -> None:
    done = treadle("collect", f"{ZOO}:Talks", "--episodes", 5, "--out", tmp_path / "o", "--json", "--workers", 2)
    assert done.returncode == 0
    assert json.loads(done.stdout) == summary(tmp_path / "o")
    assert done.stderr.count("] hello from the environment\n") == 5, "and not again from --verify"
    shown = treadle("collect", f"{ZOO}:Talks", "--episodes", 5, "--out", tmp_path / "t", "--workers", 2)
    assert "hello" not in shown.stdout
    assert shown.stderr.count("] hello from the environment\n") == 5


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path: Path) -> None:
    process = started("collect", f"{ZOO}:Walk", "--episodes", 3, "--out", tmp_path / "o")
    process.stdout.close()
    error = process.stderr.read()
    process.stderr.close()
    assert (process.wait(), error) == (0, "")
    assert summary(tmp_path / "o")["episodes"] == 3


def test_ale_keeps_its_banner_to_itself(tmp_path: Path) -> None:
    done = treadle("collect", "ALE/Pong-v5", "--episodes", 1, "--max-episode-steps", 5, "--out", tmp_path / "o")
    assert (done.returncode, done.stderr) == (0, "")


def test_an_environment_that_carries_something_over_is_noticed(tmp_path: Path) -> None:
    play = ("collect", f"{ZOO}:CarriesOver", "--episodes", 30, "--workers", 1, "--verify", 3, "--out", tmp_path / "o")
    done = treadle(*play)
    lines = done.stderr.splitlines()
    assert done.returncode == 0
    assert lines
    for line in lines:
        assert "came out differently, first at step 2 (observations); --fresh-env" in line
    assert summary(tmp_path / "o")["warnings"] == [line.removeprefix("treadle: warning: ") for line in lines]
    mended = treadle(*play, "--force", "--fresh-env")
    assert (mended.returncode, mended.stderr) == (0, "")


# -- stopping and going on ---------------------------------------------------------------------------------------------


def gated_play(gate: Path) -> tuple[object, ...]:
    kwargs = json.dumps({"gate": str(gate)})
    return "collect", f"{ZOO}:Gated", "--episodes", 40, "--workers", 2, "--env-kwargs", kwargs, "--verify", 0


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The hash of the run that nothing stops."""
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "open").touch()
    done = treadle(*gated_play(folder), "--quiet", "--out", folder / "reference")
    assert (done.returncode, done.stderr) == (0, "")
    return summary(folder / "reference")["hash"]


@pytest.fixture
def gated(tmp_path: Path, undisturbed: str) -> tuple[tuple[object, ...], Path, Path, str]:
    """Arguments of a run that stops at a gate, the gate, its directory, and the hash it must end with."""
    gate, out = tmp_path / "gate", tmp_path / "out"
    gate.mkdir()
    return (*gated_play(gate), "--out", out), gate, out, undisturbed


def waiting(gate: Path, count: int):
    """A condition: so many workers wait at the gate. Its value: their pids."""

    def condition() -> list[int]:
        found = [int(path.stem) for path in gate.glob("*.waits")]
        return found if len(found) >= count else []

    return condition


def stored(out: Path) -> bool:
    return any(path.stat().st_size > 100 for path in (out / ".parts").glob("worker-*"))


def test_a_killed_worker_is_replaced_and_nothing_changes(gated) -> None:
    play, gate, out, expected = gated
    process = started(*play)
    pids = until(waiting(gate, 2), process)
    os.kill(pids[0], signal.SIGKILL)
    (gate / "open").touch()
    _, error = process.communicate(timeout=60)
    assert process.returncode == 0, error
    (line,) = [line for line in error.splitlines() if line.startswith("treadle: ")]
    assert re.search(
        r"is replaced: the worker was ended by SIGKILL in its reset of episode \d+; made again: epis", line
    )
    assert summary(out)["hash"] == expected
    assert summary(out)["restarts"] == 1


def test_a_killed_command_is_resumed(gated) -> None:
    play, gate, out, expected = gated
    process = started(*play)
    until(waiting(gate, 2), process)
    assert stored(out)
    process.kill()
    process.communicate(timeout=60)
    (gate / "open").touch()
    done = treadle(*play)
    assert (done.returncode, "(--resume) continues it" in one_line(done.stderr)) == (2, True)
    other = treadle(*play, "--resume", "--seed", 5, "--workers", 1)
    assert other.returncode == 2
    assert "seed was 0 and is 5" in one_line(other.stderr)
    done = treadle(*play, "--resume", "--workers", 1)
    assert (done.returncode, done.stderr) == (0, "")
    assert "from before" in done.stdout
    assert summary(out)["hash"] == expected
    again = treadle(*play, "--resume")
    assert (again.returncode, "nothing to do" in again.stdout) == (0, True)
    refused = treadle(*play)
    assert (refused.returncode, "resume='replace' (--force) starts again" in one_line(refused.stderr)) == (2, True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_merges_what_is_finished_and_resume_goes_on(gated, number: int) -> None:
    from treadle.record.merge import load

    play, gate, out, expected = gated
    process = started(*play)
    until(waiting(gate, 2), process)
    process.send_signal(number)
    (gate / "open").touch()
    output, error = process.communicate(timeout=60)
    assert (process.returncode, output) == (130, ""), error
    merged = summary(out)["episodes"]
    assert f"the first {merged} of them are merged" in one_line(error)
    assert 0 < merged < 40
    assert sum(1 for _ in load(out).iterate_episodes()) == merged
    done = treadle(*play, "--resume")
    assert (done.returncode, done.stderr) == (0, "")
    assert summary(out)["hash"] == expected


def test_two_runs_never_share_a_directory(gated) -> None:
    play, gate, out, expected = gated
    process = started(*play)
    until(waiting(gate, 2), process)
    for option in ("--force", "--resume"):
        done = treadle(*play, option)
        assert (done.returncode, "another run is writing" in one_line(done.stderr)) == (2, True)
    (gate / "open").touch()
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert summary(out)["hash"] == expected


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    play = ("collect", f"{ZOO}:Heavy", "--episodes", 30, "--workers", 2, "--verify", 0, "--out", tmp_path / "o")
    small = 1_000_000  # bytes a file: the shared memory fits, thirty episodes do not

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (small, resource.RLIM_INFINITY))

    done = treadle(*play, "--force", preexec_fn=limit)
    assert done.returncode == 1, done.stderr
    first, second = done.stderr.strip().splitlines()
    assert "File too large" in first
    assert "finished episodes are kept" in second
    assert "with --resume in place of --force continues" in second
    kept = int(second.split()[1])
    done = treadle(*play, "--resume")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"({kept} from before)" in done.stdout
    assert summary(tmp_path / "o")["hash"] == run_hash(tmp_path / "r", *play[1:-2])


def test_what_raises_ends_the_run_and_keeps_what_was_finished(tmp_path: Path) -> None:
    out = tmp_path / "o"
    play = ("collect", f"{ZOO}:Raises", "--episodes", 30, "--workers", 2, "--out")
    done, shown = at_once((*play, out), (*play, tmp_path / "d", "--debug"))
    first, second = done.stderr.strip().splitlines()
    assert (done.returncode, done.stdout) == (1, "")
    told = summary(out)
    assert f"episode {told['episodes']} (seed " in first
    assert "step 7: ValueError: the motor is hot and smells (envs.py:" in first
    assert f"the first {told['episodes']} of them are merged" in second
    assert "incomplete" in told["warnings"][0]
    assert shown.returncode == 1
    assert "Traceback" in shown.stderr
    assert "raise ValueError" in shown.stderr


def test_three_deaths_on_one_episode_end_the_run(tmp_path: Path) -> None:
    done = treadle("collect", f"{ZOO}:Dies", "--episodes", 9, "--out", tmp_path / "o", "--workers", 1)
    lines = done.stderr.strip().splitlines()
    assert done.returncode == 1
    said = "has cost 3 fresh workers their lives; the last time the worker exited with code 3 in step "
    assert said in lines[-2]
    assert "finished episodes are kept" in lines[-1]


def test_an_environment_that_hangs_ends_the_run(tmp_path: Path) -> None:
    end = "--step-timeout", 0.4, "--workers", 1
    done = treadle("collect", f"{ZOO}:Hangs", "--episodes", 9, "--out", tmp_path / "o", *end)
    lines = done.stderr.strip().splitlines()
    assert done.returncode == 1
    said = r"has cost 3 fresh workers their lives; the last time no step came to its end for \d+(\.\d+)? s "
    assert re.search(said + r"\(the limit is 0.4 s\) in step \d+, at envs.py:", lines[-2])
    assert "finished episodes are kept" in lines[-1]


# -- bad input ---------------------------------------------------------------------------------------------------------

BAD = {
    "unknown env": (("CartPol-v1", "--episodes", 2), 2, "did you mean CartPole-v1"),
    "unknown ale": (("ALE/Pon-v5", "--episodes", 2), 2, "ALE/Pong-v5"),
    "unknown attribute": ((f"{ZOO}:Nothing", "--episodes", 2), 2, "has no 'Nothing'"),
    "missing package": ((f"{ZOO}:NeedsPackage", "--episodes", 2), 2, "a_package_that_nobody_has is not installed"),
    "no time": (("CartPole-v1", "--episodes", 2, "--step-timeout", 0), 2, "Invalid value for '--step-timeout'"),
    "no workers": (
        ("CartPole-v1", "--episodes", 2, "--workers", 0),
        2,
        "workers must be a whole number of at least 1, got 0",
    ),
    "some workers": (("CartPole-v1", "--episodes", 2, "--workers", "some"), 2, "'auto' or a whole number"),
    "both amounts": (("CartPole-v1", "--episodes", 2, "--steps", 9), 2, "not both"),
    "what on error": (
        ("CartPole-v1", "--episodes", 1, "--on-error", "go"),
        2,
        "on_error is 'raise' or 'skip', got 'go'",
    ),
    "skipped how": (("CartPole-v1", "--episodes", 1, "--max-skipped", 2), 2, "on_error='skip' (--on-error skip) only"),
    "no share": (
        ("CartPole-v1", "--episodes", 1, "--on-error", "skip", "--max-skipped", "200%"),
        2,
        "such as 7, or a share of them such as 5%, got '200%'",
    ),
    "no amount": (("CartPole-v1",), 2, "(--episodes N or --steps N)"),
    "no episodes": (("CartPole-v1", "--episodes", 0), 2, "Invalid value for '--episodes'"),
    "negative seed": (("CartPole-v1", "--episodes", 1, "--seed", -1), 2, "Invalid value for '--seed'"),
    "force and resume": (("CartPole-v1", "--episodes", 1, "--force", "--resume"), 2, "--resume continues: give one of"),
    "force and retry": (
        ("CartPole-v1", "--episodes", 1, "--force", "--retry-skipped"),
        2,
        "and --retry-skipped continues",
    ),
    "no json": (("CartPole-v1", "--episodes", 1, "--env-kwargs", "{x"), 2, "--env-kwargs is not JSON"),
    "wrong kwargs": (("CartPole-v1", "--episodes", 1, "--env-kwargs", '{"wings": 2}'), 1, "'wings'"),
    "wrong option": (("CartPole-v1", "--episode", 1, "--bogus"), 2, "--help"),
    "wrong import": (("no_such_pkg:CartPole-v1", "--episodes", 1), 2, "no_such_pkg"),
    "an option that went": (("CartPole-v1", "--episodes", 1, "--wrap", "a:B"), 2, "may be a function that returns a"),
    "no policy file": (("CartPole-v1", "--episodes", 1, "--policy", "gone.py:act"), 2, "file gone.py does not exist"),
    "no policy module": (("CartPole-v1", "--episodes", 1, "--policy", "gone:act"), 2, "module 'gone' is not"),
}


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[subprocess.CompletedProcess[str], Path]]:
    """What came of each command of `BAD`, and the folder that it ran in."""
    folders = {case: tmp_path_factory.mktemp("bad") for case in BAD}
    commands = [("collect", *BAD[case][0], "--out", folder / "o") for case, folder in folders.items()]
    done = at_once(*commands, cwds=list(folders.values()))
    return dict(zip(folders, zip(done, folders.values(), strict=True), strict=True))


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_told_in_one_line_and_leaves_nothing(case: str, bad: dict[str, Any]) -> None:
    _, code, expected = BAD[case]
    done, folder = bad[case]
    assert expected in one_line(done.stderr)
    assert (done.returncode, done.stdout) == (code, "")
    assert not any(folder.iterdir())


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("wrong_shape", "expected int64[1], got int64[1, 2]"),
        ("wrong_dtype", "float64"),
        ("out_of_range", "7"),
        ("raises", "KeyError: 'weights' (envs.py:"),
    ],
)
def test_a_bad_policy_is_placed(policy: str, expected: str, tmp_path: Path) -> None:
    done = treadle("collect", f"{ZOO}:Walk", "--episodes", 2, "--policy", f"{ZOO}:{policy}", "--out", tmp_path / "o",
                   "--workers", 1)  # fmt: skip
    first, second = done.stderr.strip().splitlines()
    assert done.returncode == 1
    assert "episode 0 (seed " in first
    assert "slot 0), policy before step 1: " in first
    assert expected in first
    assert second == "treadle: no episode was finished"
    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert left == [tmp_path / "o" / "failures" / "episode-0.repro"]
    assert first.endswith(f"; to see it again: treadle replay {left[0]}")


def test_an_environment_that_cannot_be_built_is_one_line_and_a_traceback_on_request(tmp_path: Path) -> None:
    play = ("collect", f"{ZOO}:CannotBuild", "--episodes", 2, "--out")
    done, with_more = at_once((*play, tmp_path / "o"), (*play, tmp_path / "d", "--debug"))
    assert done.returncode == 1
    assert "could not be built: RuntimeError: no licence for the simulator (envs.py:" in one_line(done.stderr)
    assert "Traceback" in with_more.stderr


@pytest.mark.parametrize(
    ("library", "extra"), [("MuJoCo", "; or: pip install 'treadle[mujoco]'"), ("Box2D", "gymnasium[Box2D]")]
)
def test_a_missing_simulator_is_a_wrong_command_that_names_what_to_install(
    library: str, extra: str, tmp_path: Path
) -> None:
    play = ("collect", f"{ZOO}:Needs", "--episodes", 2, "--env-kwargs", json.dumps({"library": library}))
    done = treadle(*play, "--out", tmp_path / "o")
    assert done.returncode == 2
    assert one_line(done.stderr).endswith(extra)


@pytest.fixture(scope="module")
def walked_once(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    out = tmp_path_factory.mktemp("walked") / "o"
    return out, run_hash(out, *WALK)


WALK = (f"{ZOO}:Walk", "--episodes", 3)


@pytest.fixture
def walked(tmp_path: Path, walked_once: tuple[Path, str]) -> tuple[Path, str]:
    """The directory of a complete run of `WALK`, and its hash."""
    shutil.copytree(walked_once[0], tmp_path / "o")
    return tmp_path / "o", walked_once[1]


def test_a_dataset_that_is_gone_is_made_again(walked: tuple[Path, str]) -> None:
    out, before = walked
    shutil.rmtree(out / "treadle")
    done = treadle("collect", *WALK, "--out", out, "--resume")
    assert done.returncode == 0
    assert f"dataset {out}/treadle/envs-Walk-random-v0 is gone: it is made again" in one_line(done.stderr)
    assert "nothing to do" not in done.stdout
    assert summary(out)["hash"] == before
    assert list(out.glob("treadle/*/data/main_data.hdf5"))


@pytest.mark.parametrize("name", ["run.json", "summary.json"])
def test_a_damaged_file_is_named_and_force_mends_it(name: str, walked: tuple[Path, str]) -> None:
    out, before = walked
    (out / name).write_text('{"comm')
    done = treadle("collect", *WALK, "--out", out, "--resume")
    line = one_line(done.stderr)
    assert done.returncode == 2
    assert f"{out / name} is damaged" in line
    assert "(--force) starts again" in line
    done = treadle("collect", *WALK, "--out", out, "--force", "--quiet")
    assert done.returncode == 0
    assert summary(out)["hash"] == before


def test_parts_that_only_have_to_be_merged_are_not_called_nothing(tmp_path: Path) -> None:
    from treadle.record.merge import load

    heavy = (f"{ZOO}:Heavy", "--episodes", 20, "--workers", 2, "--verify", 0)
    play = ("collect", *heavy, "--out", tmp_path / "o")
    run_hash(tmp_path / "r", *heavy)
    (whole,) = tmp_path.glob("r/treadle/*/data/main_data.hdf5")

    def limit() -> None:  # bytes a file: room for a worker's part, even if it makes all episodes, not for the dataset
        resource.setrlimit(resource.RLIMIT_FSIZE, (whole.stat().st_size - 1, resource.RLIM_INFINITY))

    done = treadle(*play, preexec_fn=limit)
    first, second = done.stderr.strip().splitlines()
    said = "treadle: cannot write the dataset: File too large (the limit on the size of a file, ulimit -f): "
    assert (done.returncode, first.startswith(said)) == (1, True)
    assert "20 finished episodes are kept" in second
    with pytest.raises(FileNotFoundError, match="the command that began the run does that with --resume"):
        load(tmp_path / "o")
    done = treadle(*play, "--resume")
    assert (done.returncode, done.stderr) == (0, "")
    assert "no episode was missing: all 20 episodes are merged now" in done.stdout


def test_a_reward_that_is_nan_is_told_of_and_is_null_in_json(tmp_path: Path) -> None:
    out = tmp_path / "o"
    done = treadle("collect", f"{ZOO}:NotANumber", "--episodes", 3, "--out", out, "--workers", 2, "--json")
    assert done.returncode == 0
    assert "warning: episode 0 (seed " in one_line(done.stderr)
    assert "(NaN), in step 2" in done.stderr
    result = json.loads(done.stdout, parse_constant=pytest.fail)
    assert result["returns"] == [None] * 3
    again = treadle("collect", f"{ZOO}:NotANumber", "--episodes", 3, "--out", out, "--resume")
    assert (again.returncode, "mean nan" in again.stdout) == (0, True)


def test_an_info_that_differs_leads_to_no_infos(tmp_path: Path) -> None:
    done = treadle("collect", f"{ZOO}:TellsTheTime", "--episodes", 3, "--out", tmp_path / "o")
    assert done.returncode == 0
    assert "(infos/time); an info may hold the time or an address; --no-infos leaves" in one_line(done.stderr)


def test_a_policy_that_carries_something_over_is_not_called_an_environment(tmp_path: Path) -> None:
    play = ("collect", f"{ZOO}:Walk", "--episodes", 9, "--workers", 1, "--policy", f"{ZOO}:CountsCalls")
    done = treadle(*play, "--out", tmp_path / "o", "--seed", 1)
    assert done.returncode == 0
    assert "for the policy a reset(seed=...) or rng" in one_line(done.stderr)


def test_an_environment_without_a_spec_is_noted(tmp_path: Path) -> None:
    without, with_spec = at_once(
        ("collect", f"{ZOO}:Walk", "--episodes", 1, "--out", tmp_path / "w"),
        ("collect", "CartPole-v1", "--episodes", 1, "--out", tmp_path / "c"),
    )
    assert "recover_environment() cannot make this environment" in without.stdout
    assert summary(tmp_path / "w")["recoverable"] is False
    assert "recover_environment" not in with_spec.stdout
    assert summary(tmp_path / "c")["recoverable"] is True


def test_alone_it_helps() -> None:
    done = treadle()
    assert (done.returncode, done.stderr) == (0, "")
    assert "collect" in done.stdout


def test_a_failed_start_leaves_an_older_dataset_alone(walked: tuple[Path, str]) -> None:
    out, before = walked
    assert treadle("collect", f"{ZOO}:CannotBuild", "--episodes", 2, "--out", out, "--force").returncode == 1
    assert summary(out)["hash"] == before
    assert list(out.glob("treadle/envs-Walk-random-v0/data/main_data.hdf5"))


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/none")):
        done = treadle("collect", f"{ZOO}:Walk", "--episodes", 2, "--out", out)
        assert done.returncode == 1
        assert f"cannot write {out}" in one_line(done.stderr)
    assert (tmp_path / "file").read_text() == "mine"


def test_force_replaces_only_what_a_run_made(walked: tuple[Path, str]) -> None:
    out, _ = walked
    (out / "notes.txt").write_text("mine")
    run_hash(out, f"{ZOO}:make_walk", "--episodes", 2, "--force")
    assert [path.name for path in out.glob("treadle/*-v0")] == ["envs-make_walk-random-v0"]
    assert (out / "notes.txt").read_text() == "mine"


def test_help_teaches() -> None:
    done = treadle("collect", "--help")
    assert done.returncode == 0
    for word in ("treadle collect CartPole-v1 --episodes 1000", "THE SEED", "--num-envs N", "float32"):
        assert word in done.stdout


def test_a_policy_may_draw_from_every_row_also_from_those_without_an_episode(tmp_path: Path) -> None:
    policy = tmp_path / "policy.py"
    policy.write_text(
        "import numpy as np\n"
        "def act(observations, rng):\n"
        "    return np.array([each.integers(0, 2) for each in (rng if isinstance(rng, list) else [rng])])\n"
    )
    arguments = ("CartPole-v1", "--episodes", 3, "--workers", 1, "--policy", f"{policy}:act")
    one, four = run_hashes({tmp_path / "1": arguments, tmp_path / "4": (*arguments, "--num-envs", 4)})
    assert one == four


def test_a_mistyped_command_is_told_what_it_may_have_been() -> None:
    done = treadle("colect", "CartPole-v1")
    assert done.returncode == 2
    assert one_line(done.stderr).endswith("Did you mean 'collect'? Try: treadle --help")


def test_the_module_is_the_command() -> None:
    said = [
        subprocess.run([*way, "--version"], capture_output=True, text=True, timeout=LIMIT, check=True).stdout
        for way in ([COMMAND], [sys.executable, "-m", "treadle"])
    ]
    assert said[0] == said[1] != ""


def test_a_path_of_no_letters_is_not_the_current_directory(tmp_path: Path) -> None:
    run = ("collect", "CartPole-v1", "--episodes", 1, "--out")
    commands = (*run, ""), (*run[:-1], "--out="), ("dataset", "merge", "a", "--out", ""), ("dataset", "verify", "")
    for done in at_once(*commands, cwds=[tmp_path] * len(commands)):
        assert done.returncode == 2
        assert "a path is expected, got ''" in one_line(done.stderr)
    assert not list(tmp_path.iterdir())


def test_a_run_can_be_asked_what_it_is(walked: tuple[Path, str], tmp_path: Path) -> None:
    out, before = walked
    info, as_json, verified, nowhere, no_run = at_once(
        ("dataset", "info", out),
        ("dataset", "info", out, "--json"),
        ("dataset", "verify", out),
        ("dataset", "info", tmp_path / "nowhere"),
        ("dataset", "verify", tmp_path),
    )
    rows = dict(line.split(maxsplit=1) for line in info.stdout.splitlines())
    assert (rows["seed"], rows["episodes"], rows["hash"]) == ("0", "3", before)
    assert rows["environment"].endswith("envs.py:Walk")
    assert json.loads(as_json.stdout)["summary"]["hash"] == before
    assert (verified.returncode, verified.stdout) == (0, "3 episodes read, nothing damaged\n")
    for done in (nowhere, no_run):
        assert (done.returncode, "is not the directory of a run" in one_line(done.stderr)) == (2, True)


def test_an_unfinished_run_says_how_far_it_is(tmp_path: Path) -> None:
    done = treadle("collect", f"{ZOO}:Fragile", "--episodes", 9, "--workers", 1, "--out", tmp_path / "o")
    assert done.returncode == 1
    shown = treadle("dataset", "info", tmp_path / "o")
    kept = int(re.search(r"(\d+) finished episode", done.stderr)[1])
    assert re.search(
        rf"^unfinished +{kept} of 9 episodes are finished \(mean return .*, 0 left out, 0 damaged;", shown.stdout, re.M
    )
