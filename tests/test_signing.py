"""Signatures: with a key that is made once and that nobody else can read, of a content and where its names lead."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from treadle import signing

CONTENT = {"arguments": {"env": "CartPole-v1", "episodes": 3}}


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without a key."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "treadle" / "key"


def test_the_key_is_made_once_and_for_this_user_alone(state: Path) -> None:
    made = signing.signature("run", CONTENT, [])
    assert (len(state.read_bytes()), state.stat().st_mode & 0o777, state.parent.stat().st_mode & 0o777) == (
        signing.SIZE,
        0o600,
        0o700,
    )
    key = state.read_bytes()
    assert signing.signature("run", CONTENT, []) == made != ""
    assert state.read_bytes() == key
    assert [each.name for each in state.parent.iterdir()] == ["key"]
    assert signing.doubt("run", CONTENT, [], made) == ""


def test_a_signature_is_of_its_content_and_its_kind(state: Path) -> None:
    made = signing.signature("run", CONTENT, [])
    for kind, content in (("repro", CONTENT), ("run", {**CONTENT, "more": None}), ("run", {})):
        assert "not this user's, of this content" in signing.doubt(kind, content, [], made)
    for none in ("", None, 3, [], {}):
        assert signing.doubt("run", CONTENT, [], none) == "it carries no signature of this user's runs"
    for wrong in (made[:-1], made.upper(), "é" * 64, "\ud800" * 64):
        assert "not this user's" in signing.doubt("run", CONTENT, [], wrong)
    state.write_bytes(bytes(32))
    assert "not this user's" in signing.doubt("run", CONTENT, [], made)


def test_processes_that_race_make_one_key(state: Path) -> None:
    code = "import sys; from treadle.signing import signature; sys.stdin.read(); print(signature('run', {}, []))"
    racing = [
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(8)
    ]
    for each in racing:
        assert each.stdin is not None
        each.stdin.close()
        each.stdin = None
    told = [each.communicate()[0] for each in racing]
    assert len(set(told)) == 1
    assert told[0].strip() == signing.signature("run", {}, [])
    key = state.read_bytes()
    signing._make(state)  # of one that saw none before the other had linked its own
    assert state.read_bytes() == key
    assert [each.name for each in state.parent.iterdir()] == ["key"]


@pytest.mark.parametrize("spoil", ["read by others", "short", "long", "a link", "a folder", "a pipe", "another user's"])
def test_a_key_that_is_not_this_users_alone_is_not_used(
    spoil: str, state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = signing.signature("run", CONTENT, [])
    if spoil == "read by others":
        state.chmod(0o640)
    elif spoil in ("short", "long"):
        state.write_bytes(bytes(31 if spoil == "short" else 33))
    elif spoil == "another user's":
        monkeypatch.setattr(os, "geteuid", lambda: state.stat().st_uid + 1)
    else:
        state.rename(tmp_path / "elsewhere")
        if spoil == "a link":
            state.symlink_to(tmp_path / "elsewhere")
        elif spoil == "a folder":
            state.mkdir()
        else:
            os.mkfifo(state, 0o600)
    assert signing.signature("run", CONTENT, []) == ""
    told = signing.doubt("run", CONTENT, [], made)
    assert told.startswith("this user's own files cannot be recognised without a key: ")
    assert str(state) in told


def test_where_no_key_can_be_made_nothing_is_signed(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state.parent.parent.write_text("no folder")
    assert signing.signature("run", CONTENT, []) == ""
    assert "Not a directory" in signing.doubt("run", CONTENT, [], "a" * 64)
    monkeypatch.setenv("XDG_STATE_HOME", "relative")  # which the standard says to ignore
    monkeypatch.setenv("HOME", "relative")
    assert signing.signature("run", CONTENT, []) == ""
    assert "no home directory" in signing.doubt("run", CONTENT, [], "a" * 64)


@pytest.mark.parametrize(
    ("name", "bound"),
    [
        ("my_env.py:make", True),
        ("model.zip", True),
        ("my_env:make", True),
        ("my_env.inner:make", True),
        ("folder.inner:Id-v0", True),
        ("/abs/my_env.py:make", False),
        ("gymnasium.envs:make", False),
        ("my_env", False),
        ("CartPole-v1", False),
        (None, False),
        ({"a": 1}, False),
    ],
)
@pytest.mark.usefixtures("state")
def test_names_that_are_looked_up_in_the_current_folder_are_bound_to_it(
    name: object, bound: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("mine", "theirs"):
        (tmp_path / place / "folder").mkdir(parents=True)
        (tmp_path / place / "my_env.py").touch()
    monkeypatch.chdir(tmp_path / "mine")
    made = signing.signature("run", CONTENT, ["random", name])
    assert signing.doubt("run", CONTENT, ["random", name], made) == ""
    monkeypatch.chdir(tmp_path / "theirs")
    assert (signing.doubt("run", CONTENT, ["random", name], made) != "") == bound
