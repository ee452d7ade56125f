"""What a release is made of; `make release` builds and checks it with the tools for that."""

import re
import tomllib
from pathlib import Path

import treadle

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_the_version_stands_in_one_place() -> None:
    assert "version" in PROJECT["project"]["dynamic"]
    files = [ROOT / "pyproject.toml", ROOT / "CITATION.cff", ROOT / "mkdocs.yml", *(ROOT / "src").rglob("*.py")]
    named = [path.name for path in files if f'"{treadle.__version__}"' in path.read_text(encoding="utf-8")]
    assert named == ["__init__.py"]


def test_the_sdist_has_what_make_needs() -> None:
    included = PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    assert {"src", "tests", "docs", "scripts", "Makefile", "mkdocs.yml", "README.md"} <= set(included)
    assert all((ROOT / name).exists() for name in included)


def test_the_issue_form_asks_for_the_machine() -> None:
    assert "treadle info" in (ROOT / ".github" / "ISSUE_TEMPLATE" / "bug.yml").read_text(encoding="utf-8")


def test_an_extra_is_named_as_older_pips_know_it() -> None:
    """The wheel holds the normal form of each name: pip 23.2, of Python 3.11, passes over `treadle[dm_env]`."""
    extras = {*PROJECT["project"]["optional-dependencies"]}
    assert extras == {re.sub(r"[-_.]+", "-", extra).lower() for extra in extras}
    texts = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.py")]
    told = [name for path in texts for name in re.findall(r"treadle\[([\w,.-]+)\]", path.read_text(encoding="utf-8"))]
    asked = [
        name
        for path in (ROOT / "src").rglob("*.py")
        for name in re.findall(r'needed\(".*", "(.+)"\)', path.read_text(encoding="utf-8"))
    ]
    assert len(asked) > 10
    assert {each for name in told + asked for each in name.split(",")} <= extras
