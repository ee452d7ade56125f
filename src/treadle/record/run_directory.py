"""The directory of one run: who may write to it, and what is in it already.

```
DIR/run.json        the arguments that decide the run's bytes; written first
DIR/.parts/         finished episodes that are not merged yet; gone when the run is complete
DIR/summary.json    what came of it
DIR/treadle/...     the dataset (or DIR/<name>.npz)
```

Two locks, both of the kernel's (`flock`), so that they end with the processes that hold them, however those end: the
caller holds one on DIR for the whole run, each worker a shared one on DIR/.parts while it may write there. A run that
continues another waits for the second, because workers outlive a killed caller by some milliseconds.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from treadle.errors import UsageError
from treadle.record.journal import EpisodeNote
from treadle.record.parts import recover
from treadle.record.summary import Summary, read_summary

PARTS = ".parts"
ARGUMENTS = "run.json"
SUMMARY = "summary.json"
LAST_WRITERS = 10.0  # seconds that the workers of a killed run get to end


class RunDirectory:
    """Claims DIR for this process. A context manager: leaving it gives DIR back.

    Args:
        path: DIR; made when it is missing.

    Raises:
        UsageError: when another run has claimed it.
        OSError: when it cannot be made or written, with its path.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()
        self.parts = self.path / PARTS
        if self.path.exists() and not self.path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "it is a file, not a directory", str(self.path))
        self._made = not self.path.exists()
        self.path.mkdir(parents=True, exist_ok=True)
        if not os.access(self.path, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, "Permission denied", str(self.path))
        self._fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._fd)
            raise UsageError(
                f"another run is writing to {self.path}; wait for it or choose another directory"
            ) from None

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        if self._made and not any(self.path.iterdir()):
            self.path.rmdir()
        os.close(self._fd)

    @property
    def complete(self) -> bool:
        """Is a run there that needs no more episodes?"""
        return not self.parts.exists() and (self.path / SUMMARY).exists() and (self.path / ARGUMENTS).exists()

    def summary(self) -> Summary:
        """The summary that is there."""
        return read_summary(self.path / SUMMARY)

    def check(self, arguments: Mapping[str, Any], output: Path, *, force: bool, resume: bool) -> list[str]:
        """May a run with these arguments begin here, and make `output`?

        Returns:
            What a person should be told: a Python file that has changed since the run to resume was begun.

        Raises:
            UsageError: something is there, and neither `force` nor `resume` says what to do with it; or the run to
                resume was made with other arguments, which are named.
        """
        found = next((path for path in (*self._files(), output) if path.exists()), None)
        if resume and (self.path / ARGUMENTS).exists():
            before = json.loads((self.path / ARGUMENTS).read_text())
            changes = differences(before["arguments"], arguments)
            known = before["files"]
            if changes:
                raise UsageError(
                    f"{self.path} was begun with other arguments ({'; '.join(changes)}): --resume continues with the "
                    "same ones; use --force to start again, or another directory"
                )
            return [
                f"{name} has changed since the run was begun: episodes from before and after are mixed"
                for name, digest in file_digests(arguments["env"], arguments["policy"], *arguments["wrappers"]).items()
                if known.get(name, digest) != digest
            ]
        if found and not force:
            if resume:
                raise UsageError(
                    f"{found} is there, but no {ARGUMENTS} that says how it was made: it cannot be resumed"
                )
            advice = "--force to replace it" if self.complete else "--resume to continue it, or --force to start again"
            raise UsageError(f"{found} is there already: use {advice}, or choose another directory with --out")
        return []

    def _files(self) -> tuple[Path, ...]:
        return self.parts, self.path / SUMMARY, self.path / ARGUMENTS

    def recover(self) -> list[EpisodeNote]:
        """The episodes of the run to resume, once nobody writes any more.

        Raises:
            UsageError: when workers of an earlier run are still writing.
        """
        if not self.parts.exists():
            return []
        self._await_writers()
        return recover(self.parts)

    def begin(self, arguments: Mapping[str, Any], output: Path) -> None:
        """Remove what an earlier run left, and write this one's arguments down.

        Args:
            arguments: checked by `check`.
            output: what the run will make, below DIR.

        Raises:
            OSError: when DIR cannot be written.
        """
        old = self.path / ARGUMENTS
        if old.exists():
            remove(self.path / json.loads(old.read_text())["output"])
        for path in (*self._files()[:2], output):
            remove(path)
        content = {
            "arguments": dict(arguments),
            "files": file_digests(arguments["env"], arguments["policy"], *arguments["wrappers"]),
            "output": str(output.relative_to(self.path)),
        }
        temporary = old.with_name(f".{ARGUMENTS}.tmp")
        try:
            temporary.write_text(json.dumps(content, indent=1) + "\n")
            os.replace(temporary, old)
        finally:
            temporary.unlink(missing_ok=True)
        self.parts.mkdir()

    def _await_writers(self) -> None:
        fd = os.open(self.parts, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        deadline = time.monotonic() + LAST_WRITERS
        try:
            while True:
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        message = f"workers of an earlier run are still writing to {self.parts}; end them first"
                        raise UsageError(message) from None
                    time.sleep(0.01)
        finally:
            os.close(fd)

    def abandon(self) -> None:
        """The run has made nothing: DIR becomes what it was before `begin`, less what that removed."""
        for path in self._files():
            remove(path)

    def finish(self) -> None:
        """The run is complete and merged: its parts are not needed any more."""
        remove(self.parts)


def hold_parts(parts: str | Path) -> int:
    """Say, as a worker, that this process may write to the parts until the descriptor returned is closed."""
    fd = os.open(parts, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BaseException:
        os.close(fd)
        raise
    return fd


def remove(path: Path) -> None:
    """Remove a file or a folder with all that is in it, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What is not the same, one short text each, such as "seed was 0 and is 1"."""
    told = json.loads(json.dumps(dict(now)))  # tuples become lists, as they did in the file
    found = []
    for key in dict.fromkeys((*before, *told)):
        if before.get(key) != told.get(key):
            found.append(f"{key} was {json.dumps(before.get(key))} and is {json.dumps(told.get(key))}")
    return found


def file_digests(*references: Any) -> dict[str, str]:
    """blake2b-128 of the Python files named in "file.py:attribute" references, by path; others are skipped."""
    out = {}
    for reference in references:
        name = reference.rpartition(":")[0] if isinstance(reference, str) else ""
        if name.endswith(".py") and os.path.isfile(name):
            out[name] = hashlib.blake2b(Path(name).read_bytes(), digest_size=16).hexdigest()
    return out
