"""The rules of the house that a program can check. Each check is a function, and each is shown a bad sample too."""

import ast
import contextlib
import importlib
import os
import re
import signal
import subprocess
import sys
import threading
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import treadle
from conftest import SHM, Snapshot, require, residue, settle

sys.path.insert(0, str(Path(__file__).parent.parent / "scripts"))
import draw_house
import weight

ROOT = Path(__file__).parent.parent
SRC = ROOT / "src"
PACKAGE = SRC / "treadle"
BEYOND = tomllib.loads(Path(__file__).with_name("house.toml").read_text(encoding="utf-8"))

# Arrows only point down: a room imports from lower rows and from itself. `treadle/__init__.py` is the front door: it
# names everything and loads nothing, so it is outside the table, and no room enters through it.
LAYERS: tuple[frozenset[str], ...] = (
    frozenset({"__main__"}),
    frozenset({"cli"}),
    frozenset({"replays", "evaluation", "reports", "sb3", "tianshou", "pettingzoo", "dm_env", "lerobot"}),
    frozenset({"record", "testing"}),
    frozenset({"tasks", "samplers"}),
    frozenset({"vector", "plan", "sample"}),
    frozenset({"task"}),
    frozenset({"play"}),
    frozenset({"program"}),
    frozenset({"nodes", "lockstep", "stream"}),
    frozenset({"pool"}),
    frozenset({"worker"}),
    frozenset({"wire"}),
    frozenset({"memory"}),
    frozenset({"spaces", "states"}),
    frozenset({"verdict", "progress", "drawing", "repro", "checks", "coroutines"}),
    frozenset({"trees", "seeding", "pickling", "packages", "errors", "lazy", "signing", "whole_file", "interrupts"}),
    frozenset({"gone"}),
)
ROW = {room: row for row, rooms in enumerate(LAYERS) for room in rooms}
# A backend is chosen by name in pool/group.py, so a face never names one.
FACES = LAYERS[2] | LAYERS[4] | LAYERS[5]
# Rooms that are another package's interface. Who imports one has that package, so it may be imported when they load.
FOREIGN = {
    "sb3": "stable_baselines3",
    "tianshou": "tianshou",
    "pettingzoo": "pettingzoo",
    "dm_env": "dm_env",
}
BACKENDS = ("treadle.worker.process", "treadle.worker.thread", "treadle.nodes.worker")
HARD_DEPENDENCIES = frozenset({"numpy", "gymnasium", "cloudpickle"})
MAX_LINES = 500
MAX_ROOM = 2_700  # lines of code

# --- reading imports --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Import:
    """One module that a file imports, with absolute name. `lazy`: inside a function or under TYPE_CHECKING."""

    line: int
    module: str
    lazy: bool


def imports(source: str, module: str, *, package: bool = False) -> list[Import]:
    """Every import in the `source` of `module`, wherever it stands.

    `from a import b` counts as `a.b`, as b may be a module. `importlib.import_module` and `__import__` count when
    they are called with a constant name. `package` says that the source is an `__init__.py`.
    """
    home = module if package else module.rpartition(".")[0]
    return list(_walk(ast.parse(source), home, lazy=False))


def _walk(node: ast.AST, home: str, *, lazy: bool) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        yield from (Import(node.lineno, alias.name, lazy) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = _absolute("." * node.level + (node.module or ""), home)
        yield from (Import(node.lineno, f"{base}.{alias.name}", lazy) for alias in node.names)
    elif isinstance(node, ast.Call) and (name := _dynamic(node)):
        yield Import(node.lineno, _absolute(name, home), lazy)
    if isinstance(node, ast.If) and ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}:
        for child in node.body:
            yield from _walk(child, home, lazy=True)
        for child in node.orelse:
            yield from _walk(child, home, lazy=lazy)
        return
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        # Decorators and defaults run when the module loads; only the body waits for a call.
        eager = [*getattr(node, "decorator_list", []), *node.args.defaults, *filter(None, node.args.kw_defaults)]
        for child in ast.iter_child_nodes(node):
            if child not in eager and child is not node.args:
                yield from _walk(child, home, lazy=True)
        for child in eager:
            yield from _walk(child, home, lazy=lazy)
        return
    for child in ast.iter_child_nodes(node):
        yield from _walk(child, home, lazy=lazy)


def _absolute(name: str, home: str) -> str:
    dots = len(name) - len(name.lstrip("."))
    if not dots:
        return name
    parts = home.split(".")[: len(home.split(".")) - (dots - 1)]
    return ".".join([*parts, *filter(None, [name[dots:]])])


def _dynamic(call: ast.Call) -> str | None:
    called = ast.unparse(call.func).rpartition(".")[2]
    if called not in {"import_module", "__import__"} or not call.args:
        return None
    first = call.args[0]
    return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else None


def module_name(path: Path) -> str:
    """The dotted name of a file below src."""
    parts = path.relative_to(SRC).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def source_files() -> dict[str, tuple[str, bool]]:
    """Every module of the package: name -> (source, whether it is an `__init__.py`)."""
    return {
        module_name(path): (path.read_text(encoding="utf-8"), path.name == "__init__.py")
        for path in sorted(PACKAGE.rglob("*.py"))
    }


def found_imports(files: dict[str, tuple[str, bool]]) -> dict[str, list[Import]]:
    """The imports of each file of `files`."""
    return {name: imports(source, name, package=package) for name, (source, package) in files.items()}


# --- arrows only point down -------------------------------------------------------------------------------------------


def upward_arrows(found: dict[str, list[Import]]) -> list[str]:
    """The imports that break the table, one line each."""
    bad = []
    for name, items in found.items():
        if name == "treadle":
            continue
        room = name.split(".")[1]
        if room not in ROW:
            bad.append(f"{name}: room {room!r} has no row in LAYERS; give it one")
            continue
        for item in items:
            parts = item.module.split(".")
            if parts[0] != "treadle":
                continue
            target = parts[1] if len(parts) > 1 else ""
            if target == "__version__":
                continue
            if target not in ROW:
                bad.append(f"{name}:{item.line}: imports {item.module}: go to the room, not through the front door")
            elif target != room and ROW[target] <= ROW[room]:
                bad.append(f"{name}:{item.line}: {room} imports {target}, which is not below it")
            elif room in FACES and any(item.module == b or item.module.startswith(b + ".") for b in BACKENDS):
                bad.append(f"{name}:{item.line}: {room} names the backend {item.module}; choose it by name in the pool")
    return bad


def test_arrows_only_point_down() -> None:
    assert upward_arrows(found_imports(source_files())) == []


def test_the_map_for_contributors_is_of_this_house() -> None:
    guide = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = set(re.findall(r"`src/treadle/(\w+)`", guide))
    assert rows == {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert [frozenset(rooms) for rooms, _ in draw_house.rows_of(page)] == [*LAYERS[1:]]


def test_the_picture_of_the_house_is_that_of_its_imports() -> None:
    picture = (ROOT / "docs" / "house.svg").read_text(encoding="utf-8")
    assert picture == draw_house.house(), "run scripts/draw_house.py"


def test_a_picture_has_an_arrow_where_no_other_import_implies_it() -> None:
    assert draw_house.direct({"a": {"b", "c"}, "b": {"c"}}) == {"a": {"b"}, "b": {"c"}}


def test_the_page_about_the_house_is_short_and_names_files_that_there_are() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert len(page.split()) <= 2_400
    pages = page + (ROOT / "docs" / "decisions.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:tests/)?\w+/[\w/]+\.py)`", pages))
    assert len(named) > 40
    assert [
        name for name in sorted(named) if not ((ROOT if name.startswith("tests/") else PACKAGE) / name).is_file()
    ] == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("treadle.pool.pool", "from treadle.program.base import Program"),
        ("treadle.pool.pool", "def f():\n    from ..program import base"),
        ("treadle.pool.pool", "from .. import program"),
        ("treadle.vector.sb3", "import treadle.plan.envs"),
        ("treadle.sample.schedule", "from treadle.vector import sampled"),
        ("treadle.sample.schedule", "import importlib\nimportlib.import_module('treadle.plan')"),
        ("treadle.sample.schedule", "from treadle.samplers import steps"),
        ("treadle.play.recipe", "from treadle.sample.rows import Rows"),
        ("treadle.vector.sb3", "from treadle.worker import process"),
        ("treadle.vector.sb3", "from treadle.nodes.worker import NodeWorker"),
        ("treadle.sample.nodes", "def f():\n    from treadle.worker.thread import ThreadWorker"),
        ("treadle.record.minari", "from treadle import testing"),
        ("treadle.spaces", "if TYPE_CHECKING:\n    from .memory.arena import Arena"),
        ("treadle.errors", "from treadle.trees import leaves"),
        ("treadle.pool.pool", "from treadle import VectorEnv"),
        ("treadle.pool.pool", "import treadle"),
        ("treadle.attic", "import os"),
    ],
)
def test_a_wrong_arrow_is_seen(module: str, source: str) -> None:
    assert len(upward_arrows(found_imports({module: (source, False)}))) == 1


@pytest.mark.parametrize(
    ("module", "source", "package"),
    [
        ("treadle.cli.main", "from treadle.record import minari\nfrom . import console", False),
        ("treadle.vector", "from .sampled import VectorSampledTasks\nfrom ..pool.pool import Pool", True),
        ("treadle.worker.process", "from treadle import errors, __version__\nimport multiprocessing", False),
        ("treadle.pool.pool", "from treadle.worker import process, thread", False),
        (
            "treadle.sample.nodes",
            "from treadle.nodes import backend\nfrom treadle.nodes.placing import Placement",
            False,
        ),
        ("treadle.spaces.layout", "def f():\n    from treadle.spaces.batch import batch_writer", False),
        ("treadle", "from treadle.vector import sampled", True),
    ],
)
def test_a_right_arrow_passes(module: str, source: str, package: bool) -> None:
    assert upward_arrows(found_imports({module: (source, package)})) == []


def test_the_backends_that_no_face_may_name_are_those_that_there_are() -> None:
    found = {
        name
        for name, (source, _) in source_files().items()
        if name.startswith(("treadle.worker.", "treadle.nodes."))
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ClassDef) and "Worker" in map(ast.unparse, node.bases)
    }
    assert found - {"treadle.worker.worker"} == set(BACKENDS)  # the protocol, with the caller's own thread


# --- one book of calls ------------------------------------------------------------------------------------------------

# What only one file may do: take answers from workers, wait on the pool's bell (but for the fast lane, which is a
# closure over its own names), keep which requests are under way under which tags, decide what follows a death.
ONLY_CALLS = ("worker.take", "pool_bell.acquire", "Waiting", "InFlight", "on_death")
ALLOWED = {("treadle.lockstep.lockstep", "pool_bell.acquire"), ("treadle.wire.line", "Waiting")}
CALLS = "treadle.pool.calls"


def outside_of_calls(files: dict[str, tuple[str, bool]]) -> list[str]:
    """Where anything but `pool/calls.py` does what is its own."""
    bad = []
    for name, (source, _) in files.items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Call) and name != CALLS:
                called = "." + ast.unparse(node.func)
                bad += [
                    f"{name}:{node.lineno}: {what} is called"
                    for what in ONLY_CALLS
                    if called.endswith("." + what) and (name, what) not in ALLOWED
                ]
    return bad


def test_only_the_book_of_calls_hears_from_workers_and_decides() -> None:
    files = source_files()
    assert outside_of_calls(files) == []
    source, package = files[CALLS]
    assert {line.rpartition(": ")[2].split()[0] for line in outside_of_calls({"treadle.x": (source, package)})} == {
        *ONLY_CALLS
    }


# Who waits for news: a stream and a question, a joint request, a user's turn (partial batches, futures), and a relay.
WAITING = frozenset({"stream.stream", "pool.pool", "lockstep.recover", "vector.partial", "plan.futures", "nodes.host"})


def those_who_wait(files: dict[str, tuple[str, bool]]) -> set[str]:
    """The files that call `poll` of a pool's book of calls."""
    return {
        name.removeprefix("treadle.")
        for name, (source, _) in files.items()
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and re.search(r"(^|[._])calls\.poll$", ast.unparse(node.func))
    }


def test_a_new_schedule_is_a_stream() -> None:
    assert those_who_wait(source_files()) == WAITING
    assert those_who_wait({"treadle.x": ("pool.calls.poll(None, heard)", False)}) == {"x"}
    assert those_who_wait({"treadle.x": ("poll.poll(0)", False)}) == set()


# --- optional dependencies --------------------------------------------------------------------------------------------


def stray_dependencies(found: dict[str, list[Import]]) -> list[str]:
    """Optional dependencies imported when a module loads, or in more than one file.

    Optional is whatever is neither Treadle, the standard library, nor a hard dependency: no list to keep up.
    """
    bad = []
    places: dict[str, set[str]] = {}
    for name, items in found.items():
        for item in items:
            library = item.module.split(".")[0]
            if library == "treadle" or library in sys.stdlib_module_names or library in HARD_DEPENDENCIES:
                continue
            places.setdefault(library, set()).add(name)
            if not item.lazy and FOREIGN.get(name.partition(".")[2].split(".")[0]) != library:
                bad.append(f"{name}:{item.line}: {library} is optional; import it inside the function that needs it")
    bad += [
        f"{lib} is imported in {sorted(names)}; give it one file" for lib, names in places.items() if len(names) > 1
    ]
    return bad


def test_optional_dependencies_are_lazy_and_have_one_file() -> None:
    assert stray_dependencies(found_imports(source_files())) == []


@pytest.mark.parametrize(
    "source",
    [
        "import rich.table",
        "try:\n    import ray\nexcept ImportError:\n    ray = None",
        "from importlib import import_module\nale = import_module('ale_py')",
        "class A:\n    import h5py",
        "def f(x=__import__('torch')):\n    pass",
        "if TYPE_CHECKING:\n    import os\nelse:\n    import minari",
    ],
)
def test_an_eager_optional_import_is_seen(source: str) -> None:
    (line,) = stray_dependencies(found_imports({"treadle.record.x": (source, False)}))
    assert "is optional" in line


def test_a_room_that_is_an_interface_of_another_package_may_import_that_one() -> None:
    assert (
        stray_dependencies(found_imports({"treadle.sb3": ("from stable_baselines3.common import vec_env", False)}))
        == []
    )
    (line,) = stray_dependencies(found_imports({"treadle.sb3": ("import torch", False)}))
    assert "is optional" in line


def test_an_optional_dependency_with_two_files_is_seen() -> None:
    lazy = ("def f():\n    import minari", False)
    typed = ("if TYPE_CHECKING:\n    from minari import MinariDataset", False)
    assert stray_dependencies(found_imports({"treadle.record.a": lazy})) == []
    (line,) = stray_dependencies(found_imports({"treadle.record.a": lazy, "treadle.record.b": typed}))
    assert "minari" in line


# --- one module lends memory ------------------------------------------------------------------------------------------

LENDS = "treadle.memory.lent"  # whose `Buffer` alone asks who holds an array
ASKS_NO_ARRAYS = frozenset({"treadle.interrupts"})  # of a block of code, whether it is over


def other_lenders(files: dict[str, tuple[str, bool]]) -> list[str]:
    """Modules that find out by a weak reference of their own whether something is still held."""
    found = []
    for name, (source, _) in files.items():
        asked = {node.attr for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute)} | {
            item.module.rpartition(".")[2] for item in imports(source, name) if item.module.startswith("weakref.")
        }
        if asked & {"ref", "finalize"} and "weakref" in source and name != LENDS and name not in ASKS_NO_ARRAYS:
            found.append(f"{name}: lends memory; let {LENDS} do it")
    return found


def test_one_module_lends_memory() -> None:
    files = source_files()
    assert LENDS in files
    assert other_lenders(files) == []


@pytest.mark.parametrize(
    "source", ["import weakref\nweakref.ref(a)", "from weakref import finalize\nfinalize(a, print)"]
)
def test_another_lender_is_seen(source: str) -> None:
    assert len(other_lenders({"treadle.pool.x": (source, False)})) == 1
    assert other_lenders({LENDS: (source, False), "treadle.pool.y": ("import weakref\nweakref.WeakSet()", False)}) == []


# --- a light front door -----------------------------------------------------------------------------------------------


def loaded_by(statement: str) -> set[str]:
    """The top-level modules outside the standard library that `statement` loads in a fresh interpreter."""
    script = f"import sys; before = set(sys.modules)\n{statement}\nprint(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    return {name.split(".")[0] for name in done.stdout.split()} - sys.stdlib_module_names - {"treadle"}


def test_importing_treadle_loads_no_library() -> None:
    assert loaded_by("import treadle") == set()


def test_the_command_line_says_help_without_libraries() -> None:
    assert {"numpy", "gymnasium"}.isdisjoint(loaded_by("import treadle.cli.main"))


def test_planning_is_there_after_import_treadle() -> None:
    script = "import sys, treadle; assert 'treadle.plan.parallel' not in sys.modules; print(treadle.plan.make.__name__)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.stderr) == ("make\n", "")


def test_faces_are_there_after_import_treadle_and_not_in_star() -> None:
    script = "from treadle import *; import treadle; print(treadle.lerobot.__name__, 'lerobot' in globals())"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.stderr) == ("treadle.lerobot False\n", "")


def test_public_names_are_in_their_rooms_too() -> None:
    homes = {name: f"treadle.{home}".rpartition(".") for name, home in (treadle._FRONT | treadle._REFERENCES).items()}
    for room in ("plan", "sample", "samplers", "tasks", "vector"):
        package = importlib.import_module(f"treadle.{room}")
        wanted = {n for n, (home, _, module) in homes.items() if home == package.__name__ and n != module}
        assert wanted <= set(package.__all__) == set(dir(package))
        for name in package.__all__:
            found = getattr(package, name)
            assert name not in homes or found is getattr(treadle, name)
        with pytest.raises(AttributeError, match=rf"'treadle\.{room}' has no attribute 'Nothing'"):
            _ = package.Nothing


def test_importing_a_room_loads_no_library() -> None:
    assert loaded_by("import treadle.vector, treadle.tasks, treadle.sample, treadle.samplers, treadle.plan") == set()


def test_a_loaded_library_is_seen() -> None:
    assert "numpy" in loaded_by("import treadle, gymnasium")


# --- files ------------------------------------------------------------------------------------------------------------


def beyond(found: dict[str, int], most: int, allowed: dict[str, int], slack: int = 0) -> list[str]:
    """What is larger than `most` and than its row in house.toml, and rows that are larger than what is there."""
    bad = [
        f"{name} has {size} lines, {max(most, allowed.get(name, 0))} are allowed: it is two nouns"
        for name, size in found.items()
        if size > max(most, allowed.get(name, 0))
    ]
    for name, row in allowed.items():
        size = found.get(name, 0)
        if size <= most:
            bad.append(f"{name} has {size} lines: strike its row out of tests/house.toml")
        elif size < row - slack:
            bad.append(f"{name} has {size} lines: lower its row in tests/house.toml")
    return bad


def test_no_source_file_is_long() -> None:
    files = source_files()
    assert "treadle" in files
    sizes = {name: len(source.splitlines()) for name, (source, _) in files.items()}
    assert beyond(sizes, MAX_LINES, BEYOND["files"], slack=40) == []


def test_no_room_is_large() -> None:
    rooms: Counter[str] = Counter()
    for name, (source, package) in source_files().items():
        if package or name.count(".") > 1:
            rooms[name.split(".")[1] if "." in name else "treadle"] += weight.code_lines(source)
    assert beyond(rooms, MAX_ROOM, BEYOND["rooms"], slack=300) == []


def test_what_is_too_large_is_seen_and_so_is_a_row_that_allows_too_much() -> None:
    assert beyond({"a": 500, "b": 550}, 500, {"b": 560}, slack=40) == []
    assert len(beyond({"a": 501}, 500, {})) == 1
    assert len(beyond({"a": 561}, 500, {"a": 560})) == 1
    assert len(beyond({"a": 510}, 500, {"a": 560}, slack=40)) == 1
    assert len(beyond({}, 500, {"a": 560})) == 1


# --- names ---------------------------------------------------------------------------------------------------------


def several(sources: Iterable[str]) -> list[str]:
    """Names of public classes that more than one of these modules defines."""
    counts: Counter[str] = Counter()
    for source in sources:
        nodes = ast.parse(source).body
        counts.update({each.name for each in nodes if isinstance(each, ast.ClassDef) and each.name[0] != "_"})
    return sorted(name for name, count in counts.items() if count > 1)


def test_class_names_of_several_modules_only_become_fewer() -> None:
    """A name has one meaning."""
    found, allowed = several(source for source, _ in source_files().values()), BEYOND["classes"]
    assert len(found) <= allowed, found
    assert len(found) == allowed, f"{len(found)} names are left; lower `classes` in tests/house.toml"


def test_a_class_name_of_two_modules_is_seen() -> None:
    assert several(["class A: ...\nclass _B: ...", "class A: ...\nclass _B: ...", "class C: ..."]) == ["A"]


# --- circles ----------------------------------------------------------------------------------------------------------


def test_circles_of_imports_only_become_fewer() -> None:
    """Imports for type checkers and inside functions are imports: they keep a circle from failing, and it is one."""
    circles = weight.circles(PACKAGE, types=True, functions=True)
    files, allowed = sum(map(len, circles)), BEYOND["circles"]
    assert files <= allowed, "\n".join(", ".join(circle) for circle in circles)
    assert files >= allowed - min(allowed, 12), f"{files} files are left; lower `circles` in tests/house.toml"


def test_a_circle_is_seen(tmp_path: Path) -> None:
    for name, source in {
        "__init__": "",
        "a": "from pkg import b",
        "b": "def f():\n    from pkg.c import d",
        "c": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pkg.a import x\nd = 1",
        "e": "from pkg import a",
    }.items():
        (tmp_path / "pkg").mkdir(exist_ok=True)
        (tmp_path / "pkg" / f"{name}.py").write_text(source, encoding="utf-8")
    assert weight.circles(tmp_path / "pkg", types=True, functions=True) == [["pkg.a", "pkg.b", "pkg.c"]]
    assert weight.circles(tmp_path / "pkg", types=False, functions=True) == []


# A path of somebody's machine: an absolute path, so not the middle of a longer one, an URL or a shell variable's tail.
MACHINE_PATH = re.compile(r"(?<![\w.~*$}\])/-])/(?:work|root|home/\w+|Users/\w+)(?:/|\b(?!\.\w))")


def machine_paths(name: str, text: str) -> list[str]:
    """The lines of a file that name a path of one machine."""
    return [f"{name}:{n}: {line.strip()}" for n, line in enumerate(text.splitlines(), 1) if MACHINE_PATH.search(line)]


def project_files() -> list[Path]:
    """The files of the project: those that git tracks or would track; without git, all outside caches and venvs."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
        paths = [ROOT / name for name in done.stdout.split("\0") if name]
    except (OSError, subprocess.CalledProcessError):
        paths = [path for path in ROOT.rglob("*") if not any(p.startswith(".") for p in path.relative_to(ROOT).parts)]
    return [path for path in paths if path.is_file()]


def test_no_file_names_a_path_of_one_machine() -> None:
    files = project_files()
    assert Path(__file__) in files
    bad = []
    for path in files:
        data = path.read_bytes()
        if b"\0" not in data[:8192] and path != Path(__file__):
            bad += machine_paths(str(path.relative_to(ROOT)), data.decode("utf-8", errors="replace"))
    assert bad == []


@pytest.mark.parametrize("text", ["see /work/x", "'/root/.cache'", "cd /home/ann/treadle", "p=/work", "(/Users/ann/x)"])
def test_a_machine_path_is_seen(text: str) -> None:
    assert len(machine_paths("a.md", text)) == 1


@pytest.mark.parametrize("text", ["https://x.org/work/a", "$HOME/.pyenv", "src/root/a.py", "/workers", "homes/work/b"])
def test_other_paths_pass(text: str) -> None:
    assert machine_paths("a.md", text) == []


# --- nothing is left behind -------------------------------------------------------------------------------------------

Leak = Callable[[], contextlib.AbstractContextManager[object]]


@contextlib.contextmanager
def leaked_fd() -> Iterator[None]:
    fd = os.open(os.devnull, os.O_RDONLY)
    yield
    os.close(fd)


@contextlib.contextmanager
def leaked_shm() -> Iterator[None]:
    path = SHM / f"treadle-test-{os.getpid()}"
    path.touch()
    yield
    path.unlink()


@contextlib.contextmanager
def leaked_thread() -> Iterator[None]:
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    yield
    end.set()
    thread.join()


@contextlib.contextmanager
def leaked_handler() -> Iterator[None]:
    old = signal.signal(signal.SIGUSR1, lambda *_: None)
    yield
    signal.signal(signal.SIGUSR1, old)


@contextlib.contextmanager
def leaked_child() -> Iterator[None]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        yield
        assert child.stdin is not None
        child.stdin.close()


@contextlib.contextmanager
def leaked_zombie() -> Iterator[None]:
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    yield
    child.wait()


@contextlib.contextmanager
def leaked_orphan() -> Iterator[None]:
    script = (
        "import subprocess, sys; "
        "print(subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'], start_new_session=True,"
        " stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).pid)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    yield
    os.kill(int(done.stdout), signal.SIGKILL)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="photographs of processes come from /proc")
@pytest.mark.parametrize(
    ("leak", "expected"),
    [
        (leaked_fd, f"-> {os.devnull}"),
        (leaked_shm, "/dev/shm/treadle-test-"),
        (leaked_thread, "thread 'Thread-"),
        (leaked_handler, f"handler of signal {signal.SIGUSR1.value}"),
        (leaked_child, "process in state"),
        (leaked_zombie, "zombie"),
        (leaked_orphan, "signal.pause()"),
    ],
)
def test_what_a_test_leaves_behind_is_seen(leak: Leak, expected: str) -> None:
    before = Snapshot.take(anew=False)
    with leak():
        left = residue(before, Snapshot.take(anew=False))
    assert any(expected in line for line in left), left
    assert settle(before)[0] == []


def test_a_missing_library_skips_or_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    assert require("ast") is ast
    for all_of_them, required, collected, outcome in (
        (False, False, True, pytest.skip.Exception),
        (False, True, True, pytest.fail.Exception),  # under `make test`, which leaves out what is marked heavy
        (False, True, False, pytest.skip.Exception),  # at the top of a file, all of which is heavy
        (True, True, False, pytest.fail.Exception),
    ):
        monkeypatch.setattr("conftest.TEST_ALL", all_of_them)
        monkeypatch.setattr("conftest.REQUIRE", required)
        monkeypatch.setattr("conftest.COLLECTED", collected)
        with pytest.raises(outcome, match="no_such_library"):
            require("no_such_library")
