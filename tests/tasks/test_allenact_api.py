"""Our signatures against every signature of AllenAct's pages on tasks and task vectors."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent
API = json.loads((ROOT / "tests" / "data" / "allenact_api.json").read_text())
DEVIATIONS = json.loads((ROOT / "tests" / "data" / "allenact_deviations.json").read_text())
MEMBERS = [(page, each) for page, found in API.items() for each in found["members"]]
# what the pages say and nobody could have as a signature: stars that a page lost
LOST_STARS = {"args": "*args", "kwargs": "**kwargs"}
BEYOND = {"VectorSampledTasks.__init__", "SingleProcessVectorSampledTasks.__init__"}  # have arguments of our own


@pytest.fixture(scope="module")
def script() -> ModuleType:
    path = ROOT / "scripts" / "allenact_api.py"
    spec = importlib.util.spec_from_file_location("allenact_api", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def ours(script: ModuleType, owner: str) -> type:
    home, _, name = script.HOMES[owner].rpartition(".")
    return getattr(importlib.import_module(home), name)


def name_of(member: dict[str, Any]) -> str:
    return f"{member['class']}.{member['name']}"


@pytest.mark.parametrize("page", list(API))
def test_every_name_argument_and_default(script: ModuleType, page: str) -> None:
    for member in API[page]["members"]:
        compare(script, member)


def compare(script: ModuleType, member: dict[str, Any]) -> None:
    cls, name = ours(script, member["class"]), member["name"]
    if member["kind"] == "attribute":
        known = inspect.signature(cls).parameters
        assert name in known or name in cls.__annotations__ or name == "sampler_fn_args"
        return
    found = inspect.getattr_static(cls, name)
    if member["kind"] == "property":
        assert isinstance(found, property)
        return
    assert isinstance(found, classmethod) == (member["kind"] == "classmethod")
    parameters = dict(inspect.signature(getattr(cls, name)).parameters)
    parameters.pop("self", None)
    shown = {
        {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}.get(each.kind.name, "") + key: each
        for key, each in parameters.items()
    }
    wanted = {LOST_STARS.get(a["name"], a["name"]): a["default"] for a in member["arguments"]}
    if name_of(member) in BEYOND:
        assert set(wanted) <= set(shown)
        assert all(
            shown[key].default is not inspect.Parameter.empty
            for key in set(shown) - set(wanted) - {"*positional", "**unknown"}
        )
        assert list(wanted)[:2] == list(shown)[:2]
    else:
        assert list(wanted) == list(shown)
    for key, default in wanted.items():
        if default is None:
            assert shown[key].default is inspect.Parameter.empty
        else:
            assert shown[key].default == ast.literal_eval(default)


def test_the_list_is_whole() -> None:
    for found in API.values():
        counts, members = found["counts"], found["members"]
        named = [each for each in members if each["kind"] != "attribute"]
        assert counts["names"] == len(named)
        assert counts["signatures"] == sum(each["signature"] is not None for each in named)
        assert counts["arguments"] == sum(len(each["arguments"]) for each in members)
    assert [found["counts"]["signatures"] for found in API.values()] == [34, 37, 23]


def test_the_extraction_reads_both_kinds_of_pages(script: ModuleType) -> None:
    older = """## Thing
```python
Thing(
    self,
    a: Dict[str, int] = None,
    b: <x of <y>> = 'q,r',
) -> None
```
__Attributes__

- `a `: some
### size
How big.
### grow
```python
Thing.grow(self, by: int)
```
"""
    newer = "Thing#\n\nAttributes\n\n  • c: other\n\nThing.size#\n\n | @property\n | size() -> int\n\n"
    newer += "Thing.make#\n\n | @classmethod\n | @abstractmethod\n | make(n: int = 3, **kwargs) -> Tuple[str, ...]\n"
    found = script.extract({"older": older, "newer": newer})
    first, attribute, size, grow = found["older"]["members"]
    assert [(a["name"], a["default"]) for a in first["arguments"]] == [("a", "None"), ("b", "'q,r'")]
    assert (attribute["kind"], size["kind"], grow["arguments"][0]["annotation"]) == ("attribute", "property", "int")
    assert found["older"]["counts"] == {
        "signatures": 2,
        "names": 3,
        "attribute": 1,
        "constructor": 1,
        "method": 1,
        "property": 1,
        "arguments": 3,
    }
    other, big, make = found["newer"]["members"]
    assert (other["name"], big["returns"], make["kind"], make["abstract"]) == ("c", "int", "classmethod", True)
    assert [a["name"] for a in make["arguments"]] == ["n", "**kwargs"]


def test_the_page_shows_the_table(script: ModuleType) -> None:
    page = (ROOT / "docs" / "compat-allenact.md").read_text()
    assert script.table() in page
    names = {name_of(member) for _, member in MEMBERS}
    assert {key for key in DEVIATIONS if not key.startswith("*")} <= names
    assert {key[2:] for key in DEVIATIONS if key.startswith("*")} <= {name.partition(".")[2] for name in names}
