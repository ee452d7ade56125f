"""Public text has the habits that make a reader stop no more often than `words.toml` allows."""

import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "scripts"))
import words

ALLOWED = tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))
SLACK = 40  # a row follows what is mended
counted = cache(words.counts)


def test_the_table_names_what_is_counted() -> None:
    assert {kind: row.keys() for kind, row in ALLOWED.items()} == {kind: row.keys() for kind, row in counted().items()}


@pytest.mark.parametrize(("kind", "habit"), [(kind, habit) for kind, row in ALLOWED.items() for habit in row])
def test_public_text_keeps_to_its_counts(kind: str, habit: str) -> None:
    have, most = counted()[kind][habit], ALLOWED[kind][habit]
    assert have <= most, f"{kind}: {have} times {habit}, and {most} are allowed; `scripts/words.py {habit}` lists them"
    assert have >= most - SLACK, f"{kind}: {have} times {habit} are left; lower the row of tests/words.toml to it"


def found(text: str, *, fields: bool = False) -> list[str]:
    return [habit for _, sentence in words.sentences(text, fields=fields) for habit in words.habits_of(sentence)]


LONG = " ".join(["word"] * 26)


@pytest.mark.parametrize(
    ("text", "habits"),
    [
        ("Nobody is told. What is it? It is no array.", ["told", "nobody", "what", "is_no"]),
        ("```python\ntold = nobody  # What\n```\n<!-- told -->\n\nIt returns `told`.", []),
        ("A [told](told.md) link.", ["told"]),
        (f"{LONG}. {LONG[5:]}.", ["long"]),
        (f"`{LONG}` is one word.", []),
        (f"- {LONG[:50]}\n- {LONG[50:]}", []),
        (f"| {LONG[:50]} | {LONG[50:]} |", []),
        ("first line\nWhat goes on in the same sentence.", []),
    ],
)
def test_sentences_and_habits(text: str, habits: list[str]) -> None:
    assert found(text) == habits


def test_a_field_of_a_docstring_begins_a_sentence() -> None:
    text = f"A summary.\n\nArgs:\n    one: {LONG[:50]}\n    two: {LONG[50:]}\n    three: What it holds."
    assert found(text, fields=True) == []
    assert found(text) == ["long"]


def test_docstrings_and_messages_are_taken_from_code() -> None:
    source = '"""Module."""\ndef f(x):\n    """Is it?"""\n    raise ValueError(f"slot {x} has no rows left")\n'
    assert list(words.texts_of(source)) == [
        ("docstrings", 1, "Module."), ("docstrings", 3, "Is it?"), ("messages", 4, "slot Value has no rows left"),
    ]  # fmt: skip
