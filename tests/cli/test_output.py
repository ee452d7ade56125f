"""What the command writes where: no codes in pipes, few words about many workers, no more workers than episodes."""

from __future__ import annotations

import json
import os
import zipfile
from dataclasses import fields
from pathlib import Path

import pytest
from command import ZOO, one_line, summary, treadle

from treadle.cli.main import COMMANDS, main
from treadle.cli.options import help_of, option_name

pytestmark = pytest.mark.usefixtures("command_server")

COLOURS = {**os.environ, "FORCE_COLOR": "1", "TTY_COMPATIBLE": "1"}


def test_no_codes_in_pipes(tmp_path: Path) -> None:
    warns = f"{ZOO}:Warns"
    for arguments in (
        ("collect", warns, "--episodes", 3, "--out", tmp_path / "o"),
        ("eval", warns, "--episodes", 3),
        ("collect", "--help"),
        ("no-such-command",),
    ):
        done = treadle(*arguments, env=COLOURS)
        assert "\x1b" not in done.stdout + done.stderr, arguments
        if warns in arguments:
            assert "WARN: something is odd" in done.stderr


@pytest.mark.parametrize("words", COMMANDS)
def test_help_says_of_every_option_what_it_is(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*words.split(), "--help"])
    assert ended.value.code == 0
    told, (about, said) = " ".join(capsys.readouterr().out.split()), help_of(COMMANDS[words][0])
    assert all(" ".join(part.split()) in told for part in about.split("\n\n"))
    for each in fields(COMMANDS[words][0]):
        if each.metadata:
            assert said[each.name] in told
            assert each.metadata.get("position") or option_name(each.name) in told


def test_a_saved_model_without_torch_is_told_in_a_line(tmp_path: Path) -> None:
    """No torch: a module of that name that cannot be imported, as on a machine without it."""
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n")
    with zipfile.ZipFile(tmp_path / "ppo.zip", "w") as archive:
        archive.writestr("data", json.dumps({"policy_class": {}, "clip_range": 0.2}))
    done = treadle(
        "eval", "CartPole-v1", "--policy", "ppo.zip", "--episodes", 2, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"},
    )  # fmt: skip
    assert done.returncode == 2
    told = one_line(done.stderr)
    assert "ppo.zip is a PPO of Stable-Baselines3" in told
    assert "pip install stable-baselines3" in told


def test_a_policy_file_alone_lists_what_it_has(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import os\ndef act(observations): ...\nclass Better: ...\n")
    done = treadle("eval", "CartPole-v1", "--policy", "mine.py", "--episodes", 2, cwd=tmp_path)
    assert done.returncode == 2
    assert "it has: act, Better; as in mine.py:act" in one_line(done.stderr)


def test_no_more_workers_than_episodes(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    pids.mkdir()
    play = (f"{ZOO}:LeavesPid", "--env-kwargs", json.dumps({"pids": str(pids)}), "--workers", 100)
    done = treadle("collect", *play, "--episodes", 3, "--out", tmp_path / "o", "--verify", 0)
    assert done.returncode == 0, done.stderr
    assert len(list(pids.iterdir())) == 3
    assert len(summary(tmp_path / "o")["worker_shares"]) == 3
    assert done.stdout.count("%  of the time, by worker") == 1


def test_many_workers_are_summarised(tmp_path: Path) -> None:
    done = treadle("collect", f"{ZOO}:Walk", "--workers", 9, "--episodes", 9, "--out", tmp_path / "o", "--verify", 0)
    (busy,) = [line for line in done.stdout.splitlines() if line.startswith("busy")]
    assert busy.endswith("of the time, 9 workers")
    assert len(busy) < 80


@pytest.mark.parametrize(
    ("typed", "found"),
    [("treadle co", "collect"), ("treadle collect --epi", "--episodes"), ("treadle --v", "--version")],
)
def test_the_shell_can_complete_words(typed: str, found: str, tmp_path: Path) -> None:
    words = {"_TREADLE_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
    done = treadle(env={**os.environ, **words})
    assert done.stdout.split() == [found]


def test_completion_is_installed_where_the_shell_looks(tmp_path: Path) -> None:
    home = {**os.environ, "HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    done = treadle("--install-completion", "bash", env=home)
    assert done.returncode == 0, done.stderr
    assert "treadle.sh" in (tmp_path / ".bashrc").read_text()
    assert "complete" in (tmp_path / ".bash_completions" / "treadle.sh").read_text()
