"""Runs the code of one page of documentation, from its first block to its last: `python run_page.py PAGE`.

The blocks of a page share a namespace (that of `__main__`) and a folder (the current one). The language of a fence:

    ```python     runs
    ```pycon      runs, and answers as shown; "..." stands for anything
    ```sh         shell commands, each of which must succeed
    ```console    commands after "$ ", and what they print
    ```text       no code

A comment on the line above a fence, `<!-- test: MARK -->`, changes that. Renderers of Markdown show no comments, and
some take a fence with more than a language for prose. The marks:

    file=NAME           of python: it is written to NAME, which is run as a script
    prints              of text: what the block before it prints
    resembles           of text: the same with other numbers
    fragment: REASON    does not run, as it lacks what REASON names

What a console prints is compared without regard to numbers, folders and breaks of lines; "..." stands for anything.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import re
import subprocess
import sys
import traceback
import types
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(
    r"(?:^<!-- test: (?P<mark>[^\n]*) -->\n)?^```(?P<language>[^\n`]*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL
)
CODE = ("python", "pycon", "sh", "console")
# what comes after ten seconds, on a busy machine, and what binds a run there
OF_THE_MACHINE = re.compile(
    r"^(?:[\d,]+ of [\d,]+ (?:episodes|steps), .* steps/s"
    r"|(?:verdict +)?(?:[a-z]+-bound \d+ %:|oversubscribed \d+ %:|nothing to gain:|unsure:)).*\n",
    re.MULTILINE,
)
LIMIT = 300.0  # seconds that one command may take


@dataclass(frozen=True)
class Block:
    """One fenced block. `line`: of its first line of code, from 1. `mark`: of the comment above it, "" without one."""

    line: int
    language: str
    mark: str
    code: str

    @property
    def fragment(self) -> str | None:
        """Why it does not run; None: it does."""
        found = re.search(r"fragment: *(.*)", self.mark)
        return found[1] if found else None


def blocks_of(text: str) -> list[Block]:
    """All fenced blocks of a page, in order."""
    return [
        Block(text[: match.start("code")].count("\n") + 1, match["language"], match["mark"] or "", match["code"])
        for match in FENCE.finditer(text)
    ]


class Different(Exception):
    """Something was printed that the page does not show."""


class Page:
    """Args:
    name: in messages and tracebacks.
    blocks: of it.
    """

    def __init__(self, name: str, blocks: list[Block]) -> None:
        self.name, self.blocks = name, blocks
        self._main = types.ModuleType("__main__")
        self._printed = ""

    def run(self) -> None:
        """Run all that is no fragment. Raises what a block raises, and `Different`."""
        sys.modules["__main__"] = self._main
        for block in self.blocks:
            if block.fragment is None:
                try:
                    self._run(block)
                except BaseException as error:
                    error.add_note(f"in the block of {self.name}:{block.line}")
                    raise

    def _run(self, block: Block) -> None:
        if block.language == "python":
            self._printed = self._python(block)
        elif block.language == "pycon":
            self._pycon(block)
        elif block.language == "sh":
            self._printed = shell(f"set -e\n{block.code}", check=True)
        elif block.language == "console":
            for command, expected in sessions(block.code):
                printed = shell(command, errors_too=True)
                compare(*(OF_THE_MACHINE.sub("", each) for each in (expected, printed)), masked)
        elif block.mark in ("prints", "resembles"):
            compare(block.code, self._printed, masked if block.mark == "resembles" else one_line)

    def _python(self, block: Block) -> str:
        name = re.fullmatch(r"file=(\S+)", block.mark)
        if name:
            Path(name[1]).write_text(block.code, encoding="utf-8")
            return shell(f"{sys.executable} {name[1]}", check=True)
        with contextlib.redirect_stdout(io.StringIO()) as out:
            # as many empty lines before it as make its lines those of the page
            exec(compile("\n" * (block.line - 1) + block.code, self.name, "exec"), vars(self._main))
        return out.getvalue()

    def _pycon(self, block: Block) -> None:
        flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        test = doctest.DocTestParser().get_doctest(block.code, vars(self._main), self.name, self.name, block.line - 1)
        with contextlib.redirect_stdout(io.StringIO()) as out:
            failed, _ = doctest.DocTestRunner(optionflags=flags).run(test, out=out.write, clear_globs=False)
        if failed:
            raise Different(out.getvalue())


def shell(command: str, *, check: bool = False, errors_too: bool = False) -> str:
    """What a command prints. With `check` it must succeed."""
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", command], env=env, stdout=subprocess.PIPE, text=True, timeout=LIMIT, check=False,
        stderr=subprocess.STDOUT if errors_too else subprocess.PIPE,
    )  # fmt: skip
    if check and done.returncode:
        raise Different(f"{command}\nended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def sessions(code: str) -> list[tuple[str, str]]:
    """(command, what it prints) of a console."""
    parts = re.split(r"^\$ ", code, flags=re.MULTILINE)[1:]
    found = []
    for part in parts:
        command, printed = re.match(r"((?:.*\\\n)*.*\n?)((?:.|\n)*)", part).groups()  # type: ignore[union-attr]
        found.append((command.replace("\\\n", ""), printed))
    return found


def one_line(text: str) -> str:
    """Without regard to where lines break."""
    return " ".join(text.split())


def masked(text: str) -> str:
    """Without regard to numbers, hashes, folders, and how wide a table is."""
    text = re.sub(r"\b[0-9a-f]{32}\b", "#", text)
    text = re.sub(r"(?<![\w.])/(?:[\w.+-]+/)+", "/", text)
    text = re.sub(r"[+-]?\d[\d,]*(?:\.\d+)?(?:e[+-]\d+)?%?", "#", text)
    text = re.sub("─+", "─", text)
    return re.sub(r"#(?: #)+", "#", one_line(text))


def compare(expected: str, printed: str, shape: types.FunctionType | object) -> None:
    """Raises Different unless `printed` is what is expected, seen through `shape`."""
    seen, wanted = shape(printed), shape(expected)  # type: ignore[operator]
    pattern = ".*".join(re.escape(part) for part in re.split(r" ?\.\.\. ?", wanted))
    if not re.fullmatch(pattern, seen, re.DOTALL):
        raise Different(f"it should print\n{expected}\nand printed\n{printed}\n({wanted!r} against {seen!r})")


def main() -> None:
    page = Path(sys.argv[1])
    try:
        Page(page.name, blocks_of(page.read_text(encoding="utf-8"))).run()
    except BaseException:  # noqa: BLE001 - told and ended with, as Python itself would, but with the notes first
        traceback.print_exc()
        sys.stdout.flush()
        os._exit(1)  # whatever the page has left open


if __name__ == "__main__":
    main()
