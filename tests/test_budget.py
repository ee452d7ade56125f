"""The package weighs no more than `budget.toml` allows, and not much less: a row follows what goes."""

import inspect
import re
import sys
import tomllib
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest

import treadle
from treadle.checks import arguments_of
from treadle.cli.main import COMMANDS
from treadle.cli.options import PANELS, PlayCommand

sys.path.insert(0, str(Path(__file__).parent.parent / "scripts"))
import weight

PACKAGE = Path(__file__).parent.parent / "src" / "treadle"
BUDGET = tomllib.loads(Path(__file__).with_name("budget.toml").read_text(encoding="utf-8"))
SLACK = {"lines": 300, "files": 3}  # of others: none
ENVIRONMENTS = {"env_kwargs", "wrappers"}  # the environment's own, which doors are counted without
DOORS = ("collect", "evaluate", "collect_dataset", "make_vec")  # with what all but garage, AllenAct and plangym use
OBJECTS = (treadle.Inference, treadle.Cluster, treadle.WorkerOptions)


@cache
def keywords_of(face: Callable[..., Any]) -> frozenset[str]:
    """Its arguments, those included that it takes by way of `**`."""
    found = arguments_of(face)
    for made in [vars(each).get("__init__") for each in face.__mro__] if isinstance(face, type) else [face]:
        for each in inspect.signature(made, eval_str=True).parameters.values() if inspect.isfunction(made) else ():
            if each.kind is each.VAR_KEYWORD:
                typed = get_args(each.annotation)
                found |= typed[0].__annotations__.keys() if typed else set()
    return frozenset(found | keywords_of(treadle.VectorEnv) - {"envs"} if face is treadle.make_vec else found)


def all_keywords() -> set[str]:
    others = (treadle.VectorEnv, treadle.VectorSampledTasks, treadle.MultiprocessingSampler, treadle.ParallelEnv)
    faces = (*(getattr(treadle, name) for name in DOORS), *others)
    return {name for face in faces for name in keywords_of(face)} | {e.name for each in OBJECTS for e in fields(each)}


@cache
def found() -> dict[str, int]:
    known = weight.modules(PACKAGE)
    return {
        "lines": sum(weight.code_lines(path.read_text(encoding="utf-8")) for path in known.values()),
        "files": len(known),
        "lonely": len(weight.lonely(PACKAGE)),
        "names": len(treadle.__all__),
        "worker": len(fields(treadle.WorkerOptions)),
        "distinct": len(all_keywords()),
        "shown": len(dir(treadle)),
        **{name: len(keywords_of(getattr(treadle, name)) - ENVIRONMENTS) for name in DOORS},
        "options": sum(bool(each.metadata) for kind, *_ in COMMANDS.values() for each in fields(kind)),
        **{
            f"{name}_options": sum("metavar" in e.metadata and not e.metadata.get("position") for e in fields(kind))
            for name, (kind, *_) in COMMANDS.items()
            if name in ("collect", "eval")
        },
    }


@pytest.mark.parametrize("name", DOORS)
def test_every_keyword_is_in_the_docs(name: str) -> None:
    pages = [*(PACKAGE.parent.parent / "docs").glob("*.md"), PACKAGE.parent.parent / "README.md"]
    words = set(re.findall(r"\w+", "".join(page.read_text(encoding="utf-8") for page in pages)))
    assert keywords_of(getattr(treadle, name)) <= words
    assert {each.name for kind in OBJECTS for each in fields(kind)} <= words


@pytest.mark.parametrize("command", [kind for kind, *_ in COMMANDS.values() if issubclass(kind, PlayCommand)])
def test_every_option_of_what_plays_is_in_a_panel(command: type) -> None:
    shown = {name for names in PANELS.values() for name in names}
    assert {each.name for each in fields(command) if each.metadata} <= shown


def test_the_table_names_what_is_counted() -> None:
    assert BUDGET.keys() == found().keys()


@pytest.mark.parametrize("row", BUDGET)
def test_the_package_keeps_to_its_budget(row: str) -> None:
    have, most = found()[row], BUDGET[row]
    assert have <= most, f"{row}: {have}, and tests/budget.toml allows {most}"
    if row != "lonely":
        assert have >= most - SLACK.get(row, 0), f"{row}: {have} are left; lower the row of tests/budget.toml to it"
