"""Count what the package weighs: lines of code (no docstrings, comments or blanks) by room, files that only one other
file imports, and circles of imports: groups of files each of which imports, directly or by way of others, all of its
group. They are counted three times: as files are loaded; with what is imported for type checkers alone; and with what
functions import when they are called. Such imports keep a circle from failing, and it is one all the same.

Not counted among files with one importer: `cli/`; faces (what `treadle` itself or a room's `__init__` names, and rooms
of other packages' interfaces); backends and formats, each of which one file chooses from; and files that are loaded by
name, which nobody imports at all. Who imports a name from a room's `__init__` imports the file that it comes from.

usage: python scripts/weight.py [FOLDER]
"""

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

SILENT = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
}  # fmt: skip
# one file chooses from these: backends, formats, and other packages' interfaces
CHOSEN = (
    "cli",
    "pettingzoo",
    "nodes",
    "worker.process",
    "worker.thread",
    "record.minari",
    "record.video",
    "record.lerobot",
)
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def code_lines(source: str) -> int:
    """Lines on which there is code that is no docstring."""
    documents: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            documents.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in SILENT:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - documents)


def modules(root: Path) -> dict[str, Path]:
    """Absolute name of each module under a package's folder -> its file."""
    found = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(name: str, path: Path, known: dict[str, Path], *, types: bool, functions: bool) -> set[str]:
    """The package's modules that a file imports. types: also for type checkers only; functions: also inside those."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    home = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(home.split(".")[: len(home.split(".")) - node.level + 1]) if node.level else ""
            base = ".".join(filter(None, [base, node.module or ""]))
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                found.add(inner if inner in known else home_of(base, alias.name, known) if types else base)
        inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        checked = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        if (functions or not inside) and (types or not checked):
            for child in ast.iter_child_nodes(node):
                visit(child)

    visit(tree)
    return found & set(known) - {name}


def home_of(module: str, name: str, known: dict[str, Path]) -> str:
    """Where a name comes from that is imported from a module: from another one, where a room's door hands it on."""
    path = known.get(module)
    if path is None or path.name != "__init__.py":
        return module
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        handed_on = isinstance(node, ast.ImportFrom) and node.module in known and node.module
        if handed_on and name in {alias.asname or alias.name for alias in node.names}:
            return handed_on
    return module


def importers(root: Path) -> Counter[str]:
    """Module -> how many others import it, in whatever way."""
    known = modules(root)
    found = (imported(name, path, known, types=True, functions=True) for name, path in known.items())
    return Counter(other for each in found for other in each)


def named_by_doors(root: Path) -> set[str]:
    """What the `__init__` of the package and those of its rooms say in text, as names of modules."""
    stub = ast.parse((root / "__init__.pyi").read_text(encoding="utf-8"))
    found = {f"{root.name}.{node.module}" for node in stub.body if isinstance(node, ast.ImportFrom)}
    for path in root.glob("**/__init__.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                own = ".".join(("", *path.parent.relative_to(root).parts))
                inside = node.value if node.value.startswith(".") else f"{own.rstrip('.')}.{node.value}"
                found.add(f"{root.name}{inside}")
    return found


def lonely(root: Path) -> list[str]:
    """Modules with exactly one importer; see the top for those that are not counted."""
    known = modules(root)
    faces = named_by_doors(root)
    counts = importers(root)
    return [
        name
        for name in known
        if counts[name] == 1
        and not f"{name.partition('.')[2]}.".startswith(tuple(f"{each}." for each in CHOSEN))
        and name not in faces
        and known[name].name != "__init__.py"
    ]


def circles(root: Path, *, types: bool, functions: bool) -> list[list[str]]:
    """The groups of modules that import one another, largest first; see `imported`, and Tarjan (1972) for how."""
    known = modules(root)
    wants = {name: imported(name, path, known, types=types, functions=functions) for name, path in known.items()}
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(name: str) -> None:
        number[name] = lowest[name] = len(number)
        stack.append(name)
        for other in sorted(wants[name]):
            if other not in number:
                visit(other)
                lowest[name] = min(lowest[name], lowest[other])
            elif other in stack:
                lowest[name] = min(lowest[name], number[other])
        if lowest[name] == number[name]:
            at = stack.index(name)
            found.append(sorted(stack[at:]))
            del stack[at:]

    for name in known:
        if name not in number:
            visit(name)
    return sorted((group for group in found if len(group) > 1), key=lambda group: (-len(group), group))


def main() -> None:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent.parent / "src" / "treadle"
    rooms: Counter[str] = Counter()
    for path in root.rglob("*.py"):
        parts = path.relative_to(root).parts
        rooms[parts[0] if len(parts) > 1 else "."] += code_lines(path.read_text(encoding="utf-8"))
    for room, lines in sorted(rooms.items()):
        print(f"{lines:7,}  {room}")
    print(f"{rooms.total():7,}  in {len(modules(root))} files")
    alone = lonely(root)
    print(f"{len(alone):7}  files with one importer: {', '.join(name.partition('.')[2] for name in alone)}")
    for what, types, functions in (
        ("as files are loaded", False, False),
        ("with imports for type checkers", True, False),
        ("with those in functions, too", True, True),
    ):
        groups = circles(root, types=types, functions=functions)
        told = "".join(f"\n{'':9}{', '.join(name.partition('.')[2] for name in group)}" for group in groups)
        print(f"{len(groups):7}  circles of imports {what}, of {sum(map(len, groups))} files{told}")


if __name__ == "__main__":
    main()
