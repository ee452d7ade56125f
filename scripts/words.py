"""Count the habits of writing that make a reader stop: in docs, in docstrings, and in messages and help of src/treadle.

    told        "told", "tells", "tell": the verb hides what is passed, printed or stored
    nobody      nobody, anybody, somebody, whoever
    is_no       "is no X" where "is not an X" or another verb is meant
    what        sentences that begin with "What"
    question    docstrings whose first line is a question (docstrings only)
    no_summary  docstrings that begin with "Args:" (docstrings only)
    long        sentences of more than 25 words; code in backticks counts as one word

Comments, tests and figures that benchmarks write into pages are not counted. `tests/words.toml` keeps the counts, and
`tests/test_words.py` compares.

usage: python scripts/words.py                  the table, as tests/words.toml has it
       python scripts/words.py HABIT [TEXT]     each place of a habit, in files whose name holds TEXT
       python scripts/words.py pages            counts by page and by file, the worst first
"""

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
LONGEST = 25  # words of a sentence
WORDS = {
    "told": r"\b(?:told|tells?|telling)\b",
    "nobody": r"\b(?:nobody|anybody|somebody|whoever)\b",
    "is_no": r"\b(?:is|are|was|were) no \w",
}
KINDS = ("docs", "docstrings", "messages")
DOCSTRINGS_ONLY = ("question", "no_summary")
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef

FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
MADE = re.compile(r"<!-- (?P<name>[\w-]+):begin -->.*?<!-- (?P=name):end -->", re.DOTALL)  # by a benchmark
CODE = re.compile(r"``[^`]+``|`[^`]+`")
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
ITEM = re.compile(r"^\s*(?:[-*+]|\d+\.)\s")  # of a list
FIELD = re.compile(r"^\s*[\w`*]+(?:, [\w`*]+)*:(?:\s|$)")  # "name: ..." in a docstring
END = re.compile(r"(?<=[.!?])[\"')*]*\s+(?=[\"'(*`]*[A-Z0-9`])")
ABBREVIATION = re.compile(r"\b(?:e\.g|i\.e|cf|vs|Fig|No)\.$")


@dataclass(frozen=True)
class Place:
    """Where a habit was found. kind: of KINDS. line: from 1. text: the sentence, or the docstring's first line."""

    kind: str
    habit: str
    file: str
    line: int
    text: str


def paragraphs(text: str, *, fields: bool) -> Iterator[tuple[int, str]]:
    """Yield (number of its first line from 0, text) of each paragraph, item of a list, heading and cell of a table.

    Args:
        fields: whether a line "name: ..." begins a paragraph, as in docstrings.
    """
    start, lines = 0, []
    for number, line in enumerate([*text.split("\n"), ""]):
        begins = ITEM.match(line) or line.startswith(("#", "|", ">")) or (fields and FIELD.match(line))
        if lines and (begins or not line.strip() or lines[0].startswith("#")):
            yield start, " ".join(lines)
            lines = []
        if line.startswith("|"):
            yield from ((number, cell.strip()) for cell in line.strip("| ").split(" | ") if cell.strip("-: |"))
        elif line.strip():
            start = start if lines else number
            lines.append(line.strip())


def sentences(text: str, *, fields: bool = False) -> Iterator[tuple[int, str]]:
    """Yield (line from 0, sentence) of each sentence of prose, without code, comments and figures of benchmarks."""
    for pattern in (MADE, FENCE, COMMENT):
        text = pattern.sub(lambda found: "\n" * found[0].count("\n"), text)
    text = CODE.sub(lambda found: "Code" + "\n" * found[0].count("\n"), LINK.sub(r"\1", text))
    for line, paragraph in paragraphs(text, fields=fields):
        held = ""
        for part in END.split(re.sub(r"^(?:[-*+#>]+|\d+\.)\s", "", paragraph)):
            held = f"{held} {part}".strip()
            if not ABBREVIATION.search(held):
                yield line, held
                held = ""
        if held:
            yield line, held


def words_in(sentence: str) -> int:
    return len(re.findall(r"[\w][\w'’.,-]*", sentence))


def habits_of(sentence: str) -> Iterator[str]:
    """Yield the name of each habit that a sentence has, as often as it has it."""
    for habit, pattern in WORDS.items():
        yield from [habit] * len(re.findall(pattern, sentence, re.IGNORECASE))
    if re.match(r"[\"'(*]*What\b", sentence):
        yield "what"
    if words_in(sentence) > LONGEST:
        yield "long"


def joined(node: ast.AST) -> str:
    """Return the text of a constant or an f-string, whose values count as one word each."""
    if isinstance(node, ast.JoinedStr):
        return "".join(joined(each) for each in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else "Value"


def texts_of(source: str) -> Iterator[tuple[str, int, str]]:
    """Yield (kind, line from 1, text) of each docstring and each message; a message has four words or more."""
    tree = ast.parse(source)
    skipped: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node) is not None:
            document = node.body[0].value  # type: ignore[attr-defined]
            skipped.add(id(document))
            yield "docstrings", document.lineno, ast.get_docstring(node) or ""
        elif isinstance(node, ast.JoinedStr):
            skipped.update(id(each) for each in node.values)
        if isinstance(node, ast.JoinedStr | ast.Constant) and id(node) not in skipped:
            text = joined(node)
            if words_in(text) >= 4:
                yield "messages", node.lineno, text


def places(root: Path = ROOT) -> Iterator[Place]:
    """Yield every place of every habit, in the order of files and lines."""
    for page in [
        root / "README.md",
        root / "CONTRIBUTING.md",
        root / "CHANGELOG.md",
        *sorted(set((root / "docs").rglob("*.md")) - {root / "docs" / "api.md"}),  # made of docstrings
    ]:
        for line, sentence in sentences(page.read_text(encoding="utf-8")):
            for habit in habits_of(sentence):
                yield Place("docs", habit, str(page.relative_to(root)), line + 1, sentence)
    for path in sorted((root / "src" / "treadle").rglob("*.py")):
        file = str(path.relative_to(root))
        for kind, first, text in texts_of(path.read_text(encoding="utf-8")):
            for line, sentence in sentences(text, fields=kind == "docstrings"):
                for habit in habits_of(sentence):
                    yield Place(kind, habit, file, first + line, sentence)
            summary = text.split("\n\n")[0]
            if kind == "docstrings" and summary.rstrip().endswith("?"):
                yield Place(kind, "question", file, first, summary)
            if kind == "docstrings" and re.match(r"\s*Args:", text):
                yield Place(kind, "no_summary", file, first, summary.split("\n")[0])


def counts(root: Path = ROOT) -> dict[str, dict[str, int]]:
    """Kind of text -> habit -> how often it is found."""
    found = Counter((place.kind, place.habit) for place in places(root))
    habits = {kind: (*WORDS, "what", "long", *(DOCSTRINGS_ONLY if kind == "docstrings" else ())) for kind in KINDS}
    return {kind: {habit: found[kind, habit] for habit in habits[kind]} for kind in KINDS}


def main() -> None:
    match sys.argv[1:]:
        case []:
            for kind, found in counts().items():
                print(f"[{kind}]", *(f"{habit} = {count}" for habit, count in found.items()), "", sep="\n")
        case ["pages"]:
            files = {place.file: Counter[str]() for place in places()}
            for place in places():
                files[place.file][place.habit] += 1
            for file, found in sorted(files.items(), key=lambda each: -each[1].total()):
                print(f"{found.total():4}  {file}  ", *(f"{habit} {count}" for habit, count in found.most_common()))
        case [habit, *text]:
            for place in places():
                if place.habit == habit and all(each in place.file for each in text):
                    print(f"{place.file}:{place.line}: {place.text}")


if __name__ == "__main__":
    main()
