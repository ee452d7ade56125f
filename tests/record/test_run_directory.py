"""A run's directory that somebody else made: nothing outside it is touched, whatever its files say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from treadle.errors import UsageError
from treadle.record.run_directory import RunDirectory

ARGUMENTS = {"env": "CartPole-v1", "policy": "random", "wrappers": []}

# names, and what leads outside: DIR/link is a link to the folder beside DIR
OUTSIDE = ["../victim", "inner/../../victim", "link/tree", "link", "", ".", "{victim}", 5, None]


@pytest.fixture
def place(tmp_path: Path) -> tuple[Path, Path]:
    """DIR, and a folder beside it that must stay as it is."""
    run, victim = tmp_path / "run", tmp_path / "victim"
    (victim / "tree").mkdir(parents=True)
    (victim / "tree" / "precious").write_text("do not lose me")
    run.mkdir()
    (run / "link").symlink_to(victim)
    return run, victim


def tree(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def named(name: Any, victim: Path) -> Any:
    return name.format(victim=victim) if isinstance(name, str) else name


@pytest.mark.parametrize("name", OUTSIDE)
def test_what_an_earlier_run_made_stays_below_the_directory(
    name: Any, place: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    run, victim = place
    before = tree(victim)
    content = {"arguments": ARGUMENTS, "files": {}, "objects": {}, "output": named(name, victim)}
    (run / "run.json").write_text(json.dumps(content))
    output = run / "new"
    with RunDirectory(run) as directory:
        with pytest.raises(UsageError, match=r"run\.json is damaged"):
            directory.check(ARGUMENTS, output, force=False, resume=True)
        directory.check(ARGUMENTS, output, force=True, resume=False)
        directory.begin(ARGUMENTS, output)
    assert tree(victim) == before
    assert "run.json is damaged" in caplog.text


@pytest.mark.parametrize("name", [".parts", "treadle"])
def test_a_folder_that_is_a_link_to_another_place_is_not_entered(name: str, place: tuple[Path, Path]) -> None:
    run, victim = place
    before = tree(victim)
    (run / name).symlink_to(victim)
    with (
        pytest.raises(UsageError, match=rf"{run / name}.* leads outside {run}"),
        RunDirectory(run) as directory,
    ):
        directory.check(ARGUMENTS, run / "treadle" / "tree", force=True, resume=False)
    assert tree(victim) == before


def test_a_link_in_the_place_of_a_temporary_file_is_not_written_through(place: tuple[Path, Path]) -> None:
    run, victim = place
    before = tree(victim)
    (run / ".run.json.tmp").symlink_to(victim / "tree" / "precious")
    with RunDirectory(run) as directory:
        directory.begin(ARGUMENTS, run / "new")
    assert tree(victim) == before
    assert json.loads((run / "run.json").read_text())["arguments"] == ARGUMENTS


def test_a_part_that_is_another_file_is_damaged(tmp_path: Path) -> None:
    parts = tmp_path / ".parts"
    parts.mkdir()
    (parts / "worker-0-0.episodes").write_text("another file altogether")
    with RunDirectory(tmp_path) as run, pytest.raises(UsageError, match=r"not a file of episodes.*resume='replace'"):
        run.recover()
