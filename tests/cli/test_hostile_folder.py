"""A current folder that came from somebody else: its modules are not imported by commands that name no code of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from command import treadle

# of every module that is looked for and not found, as long as the current folder is searched
WATCH = """
import os, sys

class Watch:
    def find_spec(self, name, path=None, target=None):
        if path is None and {os.getcwd(), ""} & set(sys.path):
            with open(os.environ["MISSED"], "a") as file:
                file.write(name + " ")

sys.meta_path.append(Watch())
"""
COMMANDS = {
    "version": ["--version"],
    "help": ["collect", "--help"],
    "verify": ["dataset", "verify", "run"],
    "info": ["dataset", "info", "run"],
    "merge": ["dataset", "merge", "shard", "--out", "merged"],
    "resume": ["collect", "CartPole-v1", "--episodes", "2", "--resume", "--verify", "0", "--out", "run"],
    "replay": ["replay", "run", "1"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("hostile")
    for name in ("run", "shard"):
        more = ["--shard", "0/1"] if name == "shard" else []
        done = treadle("collect", "CartPole-v1", "--episodes", 2, "--verify", 0, "--out", name, *more, cwd=place)
        assert done.returncode == 0, done.stderr
    for name in ("_winapi", "org"):  # standard modules look for these, and go on without
        (place / f"{name}.py").write_text("open('TRAPPED', 'w').close()\n")
    (place / "mine.py").write_text("import gymnasium\n\n\ndef make():\n    return gymnasium.make('CartPole-v1')\n")
    (place / "watch").mkdir()
    (place / "watch" / "sitecustomize.py").write_text(WATCH)
    return place


def in_folder(folder: Path, *command: object) -> tuple[str, str]:
    """What a command says, and which modules it looked for in the folder."""
    (folder / "missed").write_text("")
    path = os.pathsep.join([str(folder / "watch"), os.environ.get("PYTHONPATH", "")])
    environ = {**os.environ, "MISSED": str(folder / "missed"), "PYTHONPATH": path.rstrip(os.pathsep)}
    done = subprocess.run([*map(str, command)], cwd=folder, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout, (folder / "missed").read_text()


@pytest.mark.parametrize("name", COMMANDS)
def test_nothing_is_looked_for_in_the_folder(name: str, folder: Path) -> None:
    assert in_folder(folder, Path(sys.executable).parent / "treadle", *COMMANDS[name])[1] == ""
    assert not (folder / "TRAPPED").exists()


def test_nor_when_python_has_put_it_first(folder: Path) -> None:
    _, missed = in_folder(folder, sys.executable, "-m", "treadle", *COMMANDS["verify"])
    assert set(missed.split()) <= {"sitecustomize", "usercustomize"}, "what Python itself looks for"
    assert not (folder / "TRAPPED").exists()


def test_code_that_is_named_is_found(folder: Path) -> None:
    said, _ = in_folder(folder, sys.executable, "-m", "treadle", "eval", "mine:make", "--episodes", "2")
    assert "2 episodes" in said
    assert not (folder / "TRAPPED").exists()
