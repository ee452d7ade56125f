"""AllenAct's documented API of tasks and task vectors: read out of its pages, and shown beside ours.

usage: python scripts/allenact_api.py extract NAME=FILE ... > tests/data/allenact_api.json
       python scripts/allenact_api.py table > the table of docs/compat-allenact.md

A FILE is the text of one page of AllenAct's API documentation. There are two kinds. The older has Markdown headings
and a block of Python for every signature. The newer has a heading that ends in "#" for every name, and signatures (and
decorators) on lines that begin with "|". Every signature becomes one member, with the names, annotations and defaults
of its arguments as they stand there; so does every property, and every attribute that a class's page lists. The counts
beside them are of lines in the text and come from plain patterns, not from the members: the test compares the two.

Only the standard library is used.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
DATA = ROOT / "tests" / "data" / "allenact_api.json"
DEVIATIONS = ROOT / "tests" / "data" / "allenact_deviations.json"

BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
BAR = re.compile(r"^ \| (.*)$", re.MULTILINE)
ATTRIBUTE = re.compile(r"^\s*(?:•|-) `?(\w+) ?`? ?: ")


# -- signatures --------------------------------------------------------------------------------------------------------


def split_top(text: str, at: str = ",") -> list[str]:
    """`text` split at `at` where it stands in no bracket and no quotes."""
    parts, depth, quote, last = [], 0, "", 0
    for i, sign in enumerate(text):
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "'\"":
            quote = sign
        elif sign in "([{<":
            depth += 1
        elif sign in ")]}>":
            depth -= 1
        elif sign == at and depth == 0:
            parts.append(text[last:i])
            last = i + 1
    return [part.strip() for part in [*parts, text[last:]] if part.strip()]


def argument(text: str) -> dict[str, Any]:
    """One argument: name (with its stars), annotation and default as text, None where there is none."""
    head, equals, default = text.rpartition(" = ")
    if not equals:
        head, default = text, ""
    name, _, annotation = head.partition(":")
    return {"name": name.strip(), "annotation": annotation.strip() or None, "default": default.strip() or None}


def signature(text: str) -> dict[str, Any]:
    """`name(arguments) -> result`, taken apart."""
    text = " ".join(text.split())
    name, _, rest = text.partition("(")
    depth, end = 1, 0
    while depth and end < len(rest):
        depth += {"(": 1, ")": -1}.get(rest[end], 0)
        end += 1
    end -= 1
    result = rest[end + 1 :].strip().removeprefix("->").strip().rstrip(":")
    arguments = [argument(part) for part in split_top(rest[:end])]
    return {
        "name": name.strip(),
        "arguments": [each for each in arguments if each["name"] not in ("self", "cls")],
        "returns": result or None,
        "signature": text,
    }


# -- pages -------------------------------------------------------------------------------------------------------------


def older_page(text: str) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """The members of a page with Markdown headings."""
    members: list[dict[str, Any]] = []
    owner = ""
    sections = re.split(r"^(##+) (\w+)\n", text, flags=re.MULTILINE)[1:]
    for level, name, body in zip(sections[::3], sections[1::3], sections[2::3]):
        block = BLOCK.search(body)
        if level == "##":
            owner = name
        if block is None:
            members.append(member(owner, name, "property"))
            continue
        found = signature(block.group(1))
        kind = "constructor" if level == "##" else "method"
        members.append(member(owner, "__init__" if level == "##" else name, kind, found))
        if level == "##":
            members += attributes(owner, body)
    return members, {
        "signatures": len(re.findall(r"^```python$", text, re.MULTILINE)),
        "names": len(re.findall(r"^##+ ", text, re.MULTILINE)),
    }


def newer_page(text: str) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """The members of a page whose signatures stand behind bars."""
    members: list[dict[str, Any]] = []
    sections = re.split(r"^([\w.]+)#\n", text, flags=re.MULTILINE)[1:]
    for heading, body in zip(sections[::2], sections[1::2]):
        if heading.count(".") > 1 or (heading.islower() and "." in heading):
            continue  # the page's own title
        owner, _, name = heading.partition(".")
        if not name:
            members += attributes(owner, body)
            continue
        bars = BAR.findall(body)
        decorators = [bar[1:] for bar in bars if bar.startswith("@")]
        found = signature(next(bar for bar in bars if not bar.startswith("@")))
        kind = "property" if "property" in decorators else "classmethod" if "classmethod" in decorators else "method"
        members.append(member(owner, name, kind, found, abstract="abstractmethod" in decorators))
    return members, {
        "signatures": len(re.findall(r"^ \| [^@]", text, re.MULTILINE)),
        "names": len(re.findall(r"^\w+\.\w+#$", text, re.MULTILINE)),
    }


def member(
    owner: str, name: str, kind: str, found: dict[str, Any] | None = None, *, abstract: bool = False
) -> dict[str, Any]:
    """One entry of the list."""
    found = found or {"arguments": [], "returns": None, "signature": None}
    return {
        "class": owner,
        "name": name,
        "kind": kind,
        "abstract": abstract,
        "arguments": found["arguments"],
        "returns": found["returns"],
        "signature": found["signature"],
    }


def attributes(owner: str, body: str) -> list[dict[str, Any]]:
    """What a class's own text lists under "Attributes"."""
    lines = body.partition("Attributes")[2].splitlines()
    return [member(owner, match.group(1), "attribute") for line in lines if (match := ATTRIBUTE.match(line))]


def extract(named: dict[str, str]) -> dict[str, Any]:
    """What `tests/data/allenact_api.json` holds: counts and members of every page."""
    out: dict[str, Any] = {}
    for name, text in named.items():
        members, counts = older_page(text) if "```python" in text else newer_page(text)
        kinds = [each["kind"] for each in members]
        counts |= {kind: kinds.count(kind) for kind in sorted(set(kinds))}
        counts["arguments"] = sum(len(each["arguments"]) for each in members)
        out[name] = {"counts": counts, "members": members}
    return out


# -- the table ---------------------------------------------------------------------------------------------------------

HOMES = {
    "Task": "treadle.tasks.core.Task",
    "TaskSampler": "treadle.tasks.core.TaskSampler",
    "VectorSampledTasks": "treadle.tasks.vectors.VectorSampledTasks",
    "SingleProcessVectorSampledTasks": "treadle.tasks.vectors.SingleProcessVectorSampledTasks",
}


def table() -> str:
    """Every name and argument, on which pages it stands, and what is different here."""
    api, deviations = json.loads(DATA.read_text()), json.loads(DEVIATIONS.read_text())
    lines = ["| name | arguments there | pages | here |", "|---|---|---|---|"]
    rows: dict[tuple[str, str, str], list[str]] = {}
    for page, found in api.items():
        for each in found["members"]:
            shown = ", ".join(a["name"] + (f"={a['default']}" if a["default"] else "") for a in each["arguments"])
            kind = each["kind"] if each["kind"] in ("property", "attribute") else ""
            rows.setdefault((each["class"], each["name"], f"`{shown}`" if shown else kind), []).append(page)
    for (owner, name, shown), pages in sorted(rows.items(), key=lambda row: list(HOMES).index(row[0][0])):
        why = deviations.get(f"{owner}.{name}") or deviations.get(f"*.{name}") or "the same"
        lines.append(f"| `{owner}.{name}` | {shown} | {', '.join(pages)} | {why} |")
    return "\n".join(lines)


def main(argv: list[str]) -> int:
    """The command line; see the module."""
    if argv[:1] == ["table"]:
        print(table())
        return 0
    if argv[:1] != ["extract"] or len(argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    named = {
        name: Path(file).read_text(encoding="utf-8") for name, _, file in (each.partition("=") for each in argv[1:])
    }
    print(json.dumps(extract(named), indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
