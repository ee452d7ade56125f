"""`treadle eval`, as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from command import ZOO, one_line, started, treadle, until

from treadle.cli.failures import KEPT

pytestmark = pytest.mark.usefixtures("command_server")


def test_one_policy() -> None:
    done = treadle("eval", f"{ZOO}:Walk", "--policy", f"{ZOO}:two", "--episodes", 12, "--json", "--workers", 2)
    assert (done.returncode, done.stderr) == (0, "")
    result = json.loads(done.stdout)
    assert [score["index"] for score in result["scores"]] == list(range(12))
    assert all(score["total_reward"] == 2 * score["length"] for score in result["scores"])
    assert result["low"] <= result["mean"] <= result["high"]


def test_two_policies_meet_the_same_episodes() -> None:
    play = ("eval", f"{ZOO}:Walk", "--policy", f"{ZOO}:two", "--against", f"{ZOO}:zero", "--episodes", 9)
    done = treadle(*play)
    assert (done.returncode, done.stderr) == (0, "")
    assert "better in 9, equal in 0, worse in 0 of 9 episodes" in done.stdout
    assert "unsure" not in done.stdout, "a verdict that says nothing is left out"
    quiet = treadle(*play, "--quiet").stdout
    assert len(quiet.splitlines()) == 3, "no table"
    assert done.stdout.endswith(quiet)
    result = json.loads(treadle(*play, "--json", "--workers", 1).stdout)
    lengths = [[score["length"] for score in result[name]["scores"]] for name in ("first", "second")]
    assert lengths[0] == lengths[1]
    assert result["difference"] == sum(2 * length for length in lengths[0]) / 9


def test_bad_input_is_one_line() -> None:
    done = treadle("eval", "CartPol-v1", "--episodes", 2)
    assert (done.returncode, "did you mean CartPole-v1" in one_line(done.stderr)) == (2, True)
    done = treadle("eval", f"{ZOO}:Raises", "--episodes", 30)
    assert (done.returncode, "ValueError: the motor is hot" in one_line(done.stderr)) == (1, True)


ORDER = """
import sys
seen = []
sys.addaudithook(lambda event, args: seen.append(event) if event == "subprocess.Popen" else None)
sys.addaudithook(lambda event, args: seen.append("numpy") if event == "import" and args[0] == "numpy" else None)
from treadle.cli.main import main
try:
    main(["eval", "CartPole-v1", "--episodes", "2", *sys.argv[1:]])
except SystemExit as end:
    print(end.code, *dict.fromkeys(seen))
"""


@pytest.mark.parametrize(("more", "wanted"), [((), "0 subprocess.Popen numpy"), (("--nope",), "2")])
def test_the_server_imports_beside_the_command_and_a_wrong_one_starts_nothing(more: tuple[str], wanted: str) -> None:
    command = [sys.executable, "-c", ORDER, *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.splitlines()[-1] == wanted, done.stderr


def test_a_long_table_is_cut() -> None:
    done = treadle("eval", f"{ZOO}:Walk", "--episodes", 60)
    assert "and 10 more" in done.stdout


def test_one_episode_has_no_interval() -> None:
    done = treadle("eval", f"{ZOO}:Walk", "--episodes", 1, "--against", "random")
    assert (done.returncode, "interval" in done.stdout) == (0, False)
    assert ", 1 episode\n" in done.stdout
    assert "of 1 episode\n" in done.stdout


def test_a_policy_is_asked_in_this_process_when_it_says_that_it_is_batched(tmp_path: Path) -> None:
    policy = tmp_path / "policies.py"
    policy.write_text(
        "class Large:\n    batched = True\n"
        "    def __call__(self, observations):\n        return (observations[:, 2] > 0).astype('int64')\n"
    )
    play = ("eval", "CartPole-v1", "--policy", f"{policy}:Large", "--episodes", 6, "--json")
    said = [treadle(*play, *more) for more in ((), ("--num-envs", 3, "--pad-to", 4), ("--inference", "worker"))]
    assert [each.returncode for each in said] == [0, 0, 0], said[0].stderr
    assert said[0].stdout == said[1].stdout == said[2].stdout
    paired = treadle(*play, "--inference", "caller", "--num-envs", 3, "--pad-to", 4, "--against", "random")
    assert paired.returncode == 0, paired.stderr
    told = json.loads(paired.stdout)
    assert told["first"]["mean"] > told["second"]["mean"]
    wrong = treadle("eval", "CartPole-v1", "--inference", "gpu")
    assert (wrong.returncode, one_line(wrong.stderr)) == (2, wrong.stderr.strip())
    assert "inference must be 'auto', 'worker', 'caller' or 'node'" in wrong.stderr
    assert treadle(*play, "--inference", "worker", "--pad-to", 8).stdout == said[0].stdout


def test_several_environments_are_tasks_of_one_run(tmp_path: Path) -> None:
    states = tmp_path / "states.py"
    states.write_text("def of(index):\n    return {'low': -0.01 * (1 + index), 'high': 0.01}\n")
    both = "CartPole-v0,CartPole-v1"
    play = ("eval", both, "--episodes", 3, "--reset-options", f"{states}:of")
    done = treadle(*play)
    assert done.returncode == 0, done.stderr
    assert "CartPole-v0: random: mean return" in done.stdout
    assert "CartPole-v1: random: mean return" in done.stdout
    told = json.loads(treadle(*play, "--json").stdout)
    assert {name: len(each["scores"]) for name, each in told["tasks"].items()} == {"CartPole-v0": 3, "CartPole-v1": 3}
    paired = treadle(*play, "--against", "random")
    assert "CartPole-v1: difference: +0.00" in paired.stdout


def test_a_task_that_nobody_knows_is_refused_before_anything_is_played() -> None:
    done = treadle("eval", "CartPole-v1,CartPole-v7", "--episodes", 4)
    assert done.returncode == 2
    assert "environment 'CartPole-v7' is unknown" in one_line(done.stderr)


def test_a_typo_in_one_of_two_tasks_is_refused_before_anything_is_played() -> None:
    done = treadle("eval", f"{ZOO}:Walk,{ZOO}:Wlak", "--episodes", 4)
    assert done.returncode == 2
    assert "has no 'Wlak'" in one_line(done.stderr)


def test_failures_without_a_directory_are_kept_in_one_place_and_not_for_ever(tmp_path: Path) -> None:
    """As many as there may be are there already: the oldest goes."""
    folder = tmp_path / f"treadle-failures-{os.getuid()}"
    folder.mkdir(mode=0o700)
    for number in range(KEPT):
        (folder / f"failure-{number:020}.repro").touch()
    done = treadle("eval", f"{ZOO}:Raises", "--episodes", 30, env={**os.environ, "TMPDIR": str(tmp_path)})
    named = Path(one_line(done.stderr).rpartition("treadle replay ")[2])
    assert (named.exists(), named.parent) == (True, folder)
    assert len(list(folder.iterdir())) == KEPT
    assert not (folder / f"failure-{0:020}.repro").exists()


def test_a_success_key_that_no_info_has_is_told() -> None:
    done = treadle("eval", "CartPole-v1", "--episodes", 2, "--success-key", "won", "--json", "--workers", 1)
    assert done.returncode == 0
    assert "'won'" in one_line(done.stderr)


def told(out: Path) -> list[dict]:
    """The lines of an evaluation, without what depends on the machine."""
    lines = map(json.loads, (out / "episodes.jsonl").read_text().splitlines())
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def test_a_killed_evaluation_is_resumed(tmp_path: Path) -> None:
    gate = json.dumps({"gate": str(tmp_path), "free": 1000})  # a worker: together they cannot come to the end
    play = ("eval", f"{ZOO}:Gated", "--env-kwargs", gate, "--episodes", 4000, "--quiet", "--out")
    out, whole = tmp_path / "parted", tmp_path / "whole"
    process = started(*play, out, "--workers", 2)
    until(
        lambda: (out / "episodes.jsonl").exists() and (out / "episodes.jsonl").read_bytes().count(b"\n") > 20, process
    )
    process.kill()
    process.communicate()
    assert len(told(out)) < 4000
    (tmp_path / "open").touch()
    done = treadle(*play, out, "--workers", 1, "--resume")
    assert (done.returncode, done.stderr) == (0, "")
    assert treadle(*play, whole, "--workers", 2).returncode == 0
    assert told(out) == told(whole)
    assert (out / "steps.hdf5").read_bytes() == (whole / "steps.hdf5").read_bytes()


def test_what_was_finished_is_printed_whatever_ends_it(tmp_path: Path) -> None:
    done = treadle("eval", f"{ZOO}:Raises", "--episodes", 30, "--workers", 1, "--out", tmp_path / "out")
    assert (done.returncode, "ValueError: the motor is hot" in one_line(done.stderr)) == (1, True)
    assert "of 30 episodes were finished and are kept in" in done.stdout
    refused = treadle("eval", "CartPole-v1", "--out", tmp_path / "two", "--against", "random")
    assert refused.returncode == 2
    assert "--out keeps the evaluation of one policy" in one_line(refused.stderr)
