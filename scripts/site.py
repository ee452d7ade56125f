"""Put the pages of the site into build/docs, where mkdocs.yml has Zensical look for them.

The pages of docs/ are copied. Made from code are `reference/`, from the table of public names (`treadle/__init__.pyi`),
the rooms of other packages' interfaces and the commands' options; CONTRIBUTING, CHANGELOG and the examples that pages
link to become pages, too. Every public name has a page, or this fails.

usage: python scripts/site.py
"""

import re
import shutil
from dataclasses import MISSING, fields
from pathlib import Path

import treadle
from treadle.cli.main import COMMANDS
from treadle.cli.options import help_of, option_name
from treadle.lazy import of_stub

ROOT = Path(__file__).parent.parent
OUT = ROOT / "build" / "docs"

# page -> its title, and what it says first
PAGES = {
    "vectors": ("Vectors", "The guide is [Vectors of environments](../gymnasium.md)."),
    "collecting": (
        "Collecting and evaluating",
        "The guides are [Collect a dataset](../collect.md), [Evaluate a policy](../evaluate.md) and "
        "[A policy on a GPU](../inference.md).",
    ),
    "tasks": ("Tasks", "The guide is [Tasks](../tasks.md)."),
    "samplers": ("Samplers", "The guide is [Samplers](../sampling.md)."),
    "planning": ("Planning", "The guide is [Planning](../planning.md)."),
    "interfaces": ("Other interfaces", "Each needs the package that it is an interface to."),
    "errors": (
        "Errors",
        "Every error is a `treadle.TreadleError`. [When something is "
        "wrong](../vectors-reference.md#when-something-is-wrong) says which call raises which.",
    ),
}
# room of src/treadle -> the page of its public names; the first part of a name's home decides
ROOMS = {
    "vector": "vectors",
    "worker": "vectors",
    "errors": "errors",
    "repro": "errors",
    "sample": "collecting",
    "record": "collecting",
    "play": "collecting",
    "program": "collecting",
    "evaluation": "collecting",
    "reports": "collecting",
    "replays": "collecting",
    "nodes": "collecting",
    "tasks": "tasks",
    "samplers": "samplers",
    "plan": "planning",
    "testing": "vectors",
}
INTERFACES = {
    "testing": "env_check.check_env verdict.Report verdict.Finding",
    "sb3": "VecEnv AgentsVecEnv make_vec_env make_atari_env",
    "pettingzoo": "faces.make_vec faces.AgentsVector faces.AgentRows single.ParallelEnv",
    "tianshou": "VectorEnv",
    "dm_env": "from_dm_env DmVector DmEnvironment",
    "lerobot": "LeRobotVectorEnv",
}


def entry(name: str, value: object, home: str) -> str:
    """A heading of the public name, and what mkdocstrings makes of its docstring; of a constant its value."""
    if not hasattr(value, "__qualname__"):
        return f"### {name} {{ #{home} }}\n\n`{value!r}`\n"
    return collected(name, f"{value.__module__}.{value.__qualname__}")  # type: ignore[attr-defined]


def collected(name: str, home: str) -> str:
    """What has mkdocstrings put an object's docstring there, under a public name."""
    return f"::: {home}\n    options:\n      heading: {name}\n      toc_label: {name.rpartition('.')[2]}\n"


def reference() -> dict[str, list[str]]:
    """Page -> entries of the public names, in the order of the table. Raises KeyError for a name that has no page."""
    found: dict[str, list[str]] = {page: [] for page in PAGES}
    for table in of_stub(str(ROOT / "src" / "treadle" / "__init__.py")):
        for name, home in table.items():
            value = getattr(treadle, name)
            if home:  # else a room
                error = isinstance(value, type) and issubclass(value, Exception)
                page = "errors" if error else ROOMS[home.partition(".")[0]]
                found[page].append(entry(f"treadle.{name}", value, f"treadle.{home}.{name}"))
    for room, names in INTERFACES.items():
        for name in names.split():
            public = f"treadle.{room}.{name.rpartition('.')[2]}"
            found["interfaces"].append(collected(public, f"treadle.{room}.{name}"))
    return found


def commands() -> str:
    """The page of the commands: what `--help` says, as tables."""
    parts = [
        "# Commands\n\nExit codes: 0 all went well; 1 the run failed; 2 the command was wrong, and nothing was done; "
        "130 Ctrl-C or SIGTERM.\n"
    ]
    for words, (kind, _, _) in COMMANDS.items():
        summary, said = help_of(kind)
        summary = re.sub(r"^ *(?=treadle )", "    ", summary, flags=re.MULTILINE)  # examples
        parts.append(f"## `treadle {words}`\n\n{summary}\n\n| option | default | meaning |\n|---|---|---|")
        for each in fields(kind):
            if each.metadata:
                about = each.metadata
                typed = each.name.upper() if about.get("position") else option_name(each.name)
                default = "required" if each.default is MISSING and each.default_factory is MISSING else each.default
                shown = "" if default in (None, False, MISSING) else f"`{about.get('shown') or default}`"
                parts.append(f"| `{typed}` | {shown} | {cell(said.get(each.name, ''))} |")
        parts.append("")
    return "\n".join(parts)


def cell(text: str) -> str:
    """Text for a cell of a table: in a bare `<` a browser sees a tag, in `|` Markdown the next cell."""
    return text.replace("|", "\\|").replace("<", "&lt;")


def cells(code: str) -> str:
    """A page of a script in cells, as jupytext has them: text as text, code as blocks."""
    found = []
    for kind, body in re.findall(r"^# %%( \[markdown\])?\n(.*?)(?=^# %%|\Z)", code, re.MULTILINE | re.DOTALL):
        text = re.sub(r"^# ?", "", body, flags=re.MULTILINE) if kind else f"```python\n{body.strip()}\n```\n"
        found.append(text.strip() + "\n")
    return "\n".join(found)


def linked(text: str, depth: int) -> str:
    """A page's text with links out of docs/ led to the pages that stand for those files."""
    up = "../" * depth
    text = re.sub(
        rf"\]\((?:\.\./){{{depth + 1}}}(CONTRIBUTING|CHANGELOG)\.md", lambda m: f"]({up}{m[1].lower()}.md", text
    )
    return re.sub(rf"\]\((?:\.\./){{{depth + 1}}}(examples/[\w/]+)\.py\)", rf"]({up}\1.md)", text)


def main() -> None:
    shutil.rmtree(OUT, ignore_errors=True)
    shutil.copytree(ROOT / "docs", OUT)
    examples: set[str] = set()
    for page in OUT.rglob("*.md"):
        text = page.read_text(encoding="utf-8")
        examples.update(re.findall(r"\]\((?:\.\./)+(examples/[\w/]+)\.py\)", text))
        page.write_text(linked(text, len(page.relative_to(OUT).parts) - 1), encoding="utf-8")
    for name in sorted(examples):
        (OUT / f"{name}.md").parent.mkdir(parents=True, exist_ok=True)
        code = (ROOT / f"{name}.py").read_text(encoding="utf-8")
        shown = cells(code) if "# %%" in code else f"# {name}.py\n\n```python\n{code}```\n"
        (OUT / f"{name}.md").write_text(shown, encoding="utf-8")
    for name in ("CONTRIBUTING", "CHANGELOG"):
        text = (ROOT / f"{name}.md").read_text(encoding="utf-8").replace("](docs/", "](")
        (OUT / f"{name.lower()}.md").write_text(text, encoding="utf-8")
    (OUT / "reference").mkdir()
    for page, entries in reference().items():
        title, first = PAGES[page]
        (OUT / "reference" / f"{page}.md").write_text(
            "\n".join([f"# {title}\n\n{first}\n", *entries]), encoding="utf-8"
        )
    (OUT / "reference" / "commands.md").write_text(commands(), encoding="utf-8")


if __name__ == "__main__":
    main()
