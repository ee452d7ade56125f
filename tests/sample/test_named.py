"""Objects given by name: what a text means, and what short names and references things have."""

import functools
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from treadle.errors import UsageError
from treadle.sample.named import Named, env_name, env_of, reference_of


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("CartPole-v1", False),
        ("ALE/Pong-v5", False),
        ("my_package:Mine-v0", False),
        ("my_package:make_env", True),
        ("my_package.envs:Maker.build", True),
        ("envs.py:make_env", True),
        ("dir/envs.py:Mine-v0", True),
        (":make_env", True),
        ("make_env:", False),
    ],
)
def test_a_text_is_an_id_or_names_something(text: str, named: bool) -> None:
    assert isinstance(env_of(text), Named) == named
    assert str(env_of(text)) == text


def test_a_file_alone_says_too_little() -> None:
    with pytest.raises(UsageError, match=r"As in my_env.py:make_env"):
        env_of("my_env.py")


def test_what_is_no_text_is_left_alone() -> None:
    assert env_of(gym.make) is gym.make


def test_calling_the_name_calls_the_thing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("def make(n, k=1):\n    return n * k\nnumber = 3\n")
    assert Named("mine.py:make")(3, k=2) == 6
    with pytest.raises(UsageError, match=r"mine.py:number is of type int, which cannot be called"):
        Named("mine.py:number")()
    with pytest.raises(UsageError, match="has no 'nothing'"):
        Named("mine.py:nothing")()


class Maker:
    def __call__(self) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("env", "name", "reference"),
    [
        ("ALE/Pong-v5", "ALE/Pong-v5", "ALE/Pong-v5"),
        (Named("a.b:c"), "c", "a.b:c"),
        (gym.spec("CartPole-v1"), "CartPole-v1", "CartPole-v1"),
        (Maker, "Maker", f"{__name__}:Maker"),
        (Maker(), "Maker", f"{__name__}:Maker"),
        (functools.partial(Maker), "partial", "functools:partial"),
    ],
)
def test_names_and_references(env: Any, name: str, reference: str) -> None:
    assert env_name(env) == name
    assert reference_of(env) == reference
