"""What a reader has to walk through: functions and files of three paths, and files that hang on one other."""

import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "scripts"))
import trace_calls
import weight

PACKAGE = Path(__file__).parent.parent / "src" / "treadle"
# path -> (functions, files, calls) at most. A step that does not have to wait takes two functions and two files less;
# how often a wait looks, and in how many chunks a batch goes, depends on the machine, so these bounds leave room where
# several answers are waited for (on an idle one 8, 73 and 220 to 260 calls).
# Python 3.12 and later inline comprehensions, so fewer there.
MOST = {
    "VectorEnv.step": (9, 8, 11),
    "ParallelEnv.step_batch": (80, 13, 100),
    "obtain_samples": (110, 19, 350),
    "an episode": (75, 15, 390),  # nobody is waited for
}


@pytest.mark.parametrize("path", MOST)
def test_a_path_stays_short(path: str) -> None:
    functions, files, calls = MOST[path]
    end = time.monotonic() + 60
    while time.monotonic() < end:  # on a busy machine it may have to wait many times
        counts = trace_calls.measured(path)
        if len(counts) <= functions and counts.total() <= calls and len(trace_calls.files(counts)) <= files:
            break
    assert len(counts) <= functions, sorted(counts)
    assert len(trace_calls.files(counts)) <= files, trace_calls.files(counts)
    assert counts.total() <= calls, counts.most_common()


def test_no_module_needs_itself_to_be_loaded() -> None:
    assert weight.circles(PACKAGE, types=False, functions=False) == []


def test_weight_counts_code_alone() -> None:
    documented = '"""A docstring\nof two lines."""\n\n# a comment\nx = (\n    1,  # one\n\n)\n'
    source = documented + '\n\ndef f():\n    """Another."""\n    return x\n'
    assert weight.code_lines(source) == 5


@pytest.mark.parametrize(
    ("back", "counted"),
    [
        ("def f():\n    import p.a\n", (0, 0, 1)),
        ("if TYPE_CHECKING:\n    from p.a import X\n", (0, 1, 1)),
        ("from p.a import x\n", (1, 1, 1)),
    ],
)
def test_a_circle_is_found(tmp_path: Path, back: str, counted: tuple[int, int, int]) -> None:
    package = tmp_path / "p"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "__init__.pyi").write_text("")  # it has no public names
    (package / "a.py").write_text("from p import b\n")
    (package / "b.py").write_text("import p.c\n")
    (package / "c.py").write_text(back)
    (package / "d.py").write_text("import p.a, p.e\n")  # beside it
    (package / "e.py").write_text("")
    for (types, functions), count in zip([(False, False), (True, False), (True, True)], counted):
        assert weight.circles(package, types=types, functions=functions) == [["p.a", "p.b", "p.c"]] * count
    assert weight.lonely(package) == ["p.b", "p.c", "p.e"]
