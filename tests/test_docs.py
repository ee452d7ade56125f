"""Every code block of README and docs runs, in the order of its page; see `run_page.py` for the marks above a fence."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import require, scaled
from run_page import CODE, Block, Different, Page, blocks_of, masked, sessions

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCKS = {page: blocks_of(page.read_text(encoding="utf-8")) for page in PAGES}
MOST_FRAGMENTS = 20
HEAVY = {  # page -> what it imports
    "compat-plangym.md": ("plangym",),
    "conformance.md": ("plangym",),
    "coming-from-sb3.md": ("stable_baselines3",),
    "subprocvecenv-slower-than-dummyvecenv.md": ("stable_baselines3",),
    "coming-from-tianshou.md": ("tianshou",),
    "coming-from-torchrl.md": ("torchrl",),
    "coming-from-pettingzoo.md": ("pettingzoo", "mpe2", "stable_baselines3"),
    "scaling.md": ("ray",),
    "coming-from-dm-env.md": ("dm_env",),
}
SLOW = ("collect.md", "collect-reference.md", "faults.md", "planning.md", "replay.md")


def marks(page: Path) -> list[pytest.MarkDecorator]:
    heavy = [pytest.mark.heavy] if page.name in HEAVY else []
    slow = [pytest.mark.slow] if page.name in SLOW else []
    return [*heavy, *slow, pytest.mark.timeout(400)]


def to_run(page: Path) -> list[Block]:
    return [block for block in BLOCKS[page] if block.language in CODE and block.fragment is None]


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=marks(page), id=page.name) for page in PAGES if to_run(page)]
)
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    for library in HEAVY.get(page.name, ()):
        require(library)
    runner = Path(__file__).parent / "run_page.py"
    done = subprocess.run(
        [sys.executable, runner, page], cwd=tmp_path, capture_output=True, text=True, timeout=scaled(390), check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.timeout(400)
def test_the_python_of_the_readme_runs_where_there_are_no_fork_servers(tmp_path: Path) -> None:
    """In the caller's own process, which is said once."""
    (tmp_path / "sitecustomize.py").write_text("import sys\n\nsys.platform = 'darwin'\n")
    page = tmp_path / "README.md"
    python = [
        block for block in BLOCKS[PAGES[0]] if block.language == "python" or block.mark in ("prints", "resembles")
    ]
    page.write_text("".join(f"<!-- test: {block.mark} -->\n```{block.language}\n{block.code}```\n" for block in python))
    runner = Path(__file__).parent / "run_page.py"
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, runner, page], cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, capture_output=True,
        text=True, timeout=scaled(390), check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("worker processes are made for Linux (fork, pidfds), and this is darwin") == 1


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_fence_says_what_it_holds(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text.count("\n```") + text.startswith("```") == 2 * len(BLOCKS[page])
    assert {block.language for block in BLOCKS[page]} <= {*CODE, "text", "diff"}
    marks = [block.mark for block in BLOCKS[page] if block.mark]
    assert text.count("<!-- test: ") == len(marks), "a mark stands on the line above a fence"
    assert all(re.fullmatch(r"prints|resembles|file=\S+|fragment: .+", mark) for mark in marks), marks


def test_few_blocks_are_fragments_and_each_names_what_it_lacks() -> None:
    reasons = [block.fragment for blocks in BLOCKS.values() for block in blocks if block.fragment is not None]
    assert len(reasons) <= MOST_FRAGMENTS, reasons
    assert all(len(reason.split()) >= 3 for reason in reasons), reasons


# -- the runner itself -------------------------------------------------------------------------------------------------

SAMPLE = """
# A page

```python
x = 2

def double(y): return 2 * y
print(double(x))
```

<!-- test: prints -->
```text
4
```

<!-- test: file=said.py -->
```python
print("from a file", 17)
```

<!-- test: resembles -->
```text
from a file 99
```

```pycon
>>> double(3)
6
```

```sh
echo said > told
test -s said.py
```

```console
$ cat told; echo /a/b/c 1.5 2%
said
/data/c 3 4
$ echo \\
    again
...
```

<!-- test: fragment: wants what is not there -->
```python
import nothing.at.all
```
"""


def page(text: str) -> Page:
    return Page("sample", blocks_of(text))


def test_the_runner_runs_what_it_should(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    page(SAMPLE).run()


@pytest.mark.parametrize(
    ("right", "wrong", "line"),
    [
        ("print(double(x))", "print(double(x) / 0)", 8),
        ("\n4\n", "\n5\n", 13),
        ("from a file 99", "from two files 99", 23),
        (">>> double(3)\n6", ">>> double(3)\n7", 27),
        ("test -s said.py", "test -s gone.py", 32),
        ("\nsaid\n/data/c", "\nsad\n/data/c", 37),
    ],
)
def test_the_runner_sees_what_is_wrong(
    right: str, wrong: str, line: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert right in SAMPLE
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    with pytest.raises((Different, ZeroDivisionError)) as caught:
        page(SAMPLE.replace(right, wrong)).run()
    block = int(caught.value.__notes__[0].rpartition(":")[2])
    assert block <= line
    assert not any(block < each.line <= line for each in blocks_of(SAMPLE))


def test_consoles_are_taken_apart() -> None:
    assert sessions("$ a b\nout\nmore\n\n$ c \\\n  d\n") == [("a b\n", "out\nmore\n\n"), ("c   d\n", "")]
    assert masked("busy  75%  71%\n/data/x/mine: 3,238.5 steps") == "busy # /mine: # steps"
