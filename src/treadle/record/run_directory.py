"""The directory of one run: the process that may write to it, and its contents.

```
DIR/run.json        the arguments that decide the run's bytes, signed (`treadle.signing`); written first
DIR/.parts/         finished episodes before the merge, and the list of those left out; gone when the run is complete
DIR/summary.json    the result of the run
DIR/treadle/...     the dataset
DIR/.episodes       notes and checksums of the dataset's episodes, from which a run that is extended makes its parts
DIR/failures/       recordings of episodes that failed, for a replay: episode-5.repro
DIR/.reopened/      parts that are being made of the dataset of such a run, or of shards
```

The directory may come from another user, so its files are not trusted. Names in them are relative, hold no ".." and
lead below DIR, also through links. Otherwise the file is damaged, and the files that it names stay where they are.

Two locks of the kernel (`flock`) end with the processes that hold them, however those end. The caller holds one on DIR
for the whole run, each worker a shared one on DIR/.parts while it may write there. A run that continues another waits
for the second, because workers outlive a killed caller by some milliseconds.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from treadle import signing
from treadle.errors import UsageError
from treadle.interrupts import Closes
from treadle.record.identity import compared
from treadle.record.journal import REMEDY, EpisodeNote, journals
from treadle.record.parts import KEPT, recover, reopen
from treadle.record.summary import Summary, digest_of, read_summary, sealed, skipped_of, unsealed
from treadle.repro import MOST_BYTES, SUFFIX, Repro, versions
from treadle.sample.skipping import Skipped
from treadle.whole_file import read_json, written

log = logging.getLogger("treadle")

PARTS = ".parts"
FORMAT = "h5py"  # what `run.json` says of how episodes are stored
ARGUMENTS = "run.json"
SUMMARY = "summary.json"
SKIPPED = "skipped.json"
REOPENED = ".reopened"
FAILURES = "failures"
LINES = "episodes.jsonl"  # of an evaluation
FILMS = "films"
AGAIN = "resume='replace' (--force) starts again"
AMOUNTS = ("episodes", "steps", "kept")  # arguments that may grow: episode i is what it is, however many there are
LAST_WRITERS = 10.0  # seconds that the workers of a killed run get to end


class Checked(NamedTuple):
    """The result of `RunDirectory.check`.

    Attributes:
        warnings: lines to log when the run goes on. They name a Python file that has changed since the run was begun,
            or an object that cannot be compared.
        grown: True if the run is to be larger than when it was begun.
    """

    warnings: tuple[str, ...] = ()
    grown: bool = False


class RunFiles:
    """The files in the directory of a run. It changes nothing, takes no lock and does not wait."""

    def __init__(self, path: Path) -> None:
        self.path, self.parts = path, path / PARTS

    @property
    def begun_there(self) -> bool:
        """Return True if a run has begun here."""
        return (self.path / ARGUMENTS).exists()

    @property
    def complete(self) -> bool:
        """Return True if the directory holds a run that needs no more episodes."""
        return not self.parts.exists() and (self.path / SUMMARY).exists() and self.begun_there

    def written(self) -> tuple[dict[str, Any], str]:
        """Return the content of `run.json` without its signature, and why another user may have written it; "": this
        user's own run has. Raises OSError, and the exceptions that `intact` takes from a damaged file."""
        content = unsealed(read_json(self.path / ARGUMENTS, MOST_BYTES))
        mark = content.pop("signature", "")
        return content, signing.doubt(*_to_sign(content), mark)

    def begun(self) -> dict[str, Any]:
        """Return the content of `RunDirectory.begin`: the run's "arguments", "files", "objects" and "output".

        Raises UsageError when the file is damaged, or missing because no run was begun. Likewise when an earlier
        version of Treadle has stored the episodes in a format of its own.
        """
        path = self.path / ARGUMENTS
        if not path.exists():
            raise UsageError(f"{self.path} is not the directory of a run: it has no {ARGUMENTS}")
        with intact(path):
            content = {"objects": {}, **self.written()[0]}
            below(self.path.absolute(), content["output"])
            found = {name: dict(content[name]) for name in ("arguments", "files", "objects")}
        if (format := found["arguments"].get("format", FORMAT)) != FORMAT:
            now = versions("treadle").get("treadle")
            raise UsageError(
                f"{self.path} is of the format {format!r}, which treadle {now} does not know; "
                f"{AGAIN}; or choose another directory"
            )
        return {**found, "output": content["output"]}

    def summary(self) -> Summary | None:
        """The summary; None: there is none yet. Raises UsageError when it is damaged."""
        path = self.path / SUMMARY
        with intact(path):
            return read_summary(path) if path.exists() else None

    def journals(self) -> list[Path]:
        """Of the parts. Raises UsageError when one leads outside DIR."""
        found = journals(self.parts)
        for path in found:
            self._below(path)
        return found

    def skipped(self) -> list[Skipped]:
        """The episodes that a run which is not complete has left out so far. Raises UsageError when the file is
        damaged."""
        path = self.parts / SKIPPED
        if not path.exists():
            return []
        with intact(path):
            content = read_json(path, MOST_BYTES)
            return skipped_of(content if isinstance(content, list) else unsealed(content)["skipped"])

    def _below(self, path: Path) -> None:
        """Raise UsageError when `path`, of a name of our own, is a link that leads outside DIR, or below one."""
        try:
            below(self.path, str(path.relative_to(self.path)))
        except ValueError:
            raise UsageError(
                f"{path} is damaged: it leads outside {self.path}; remove that link, or choose another directory"
            ) from None


class RunDirectory(RunFiles, Closes):
    """Claims DIR for this process. A context manager: leaving it gives DIR back.

    Args:
        path: DIR; made when it is missing.

    Raises:
        UsageError: when another run has claimed it, or workers of a killed one are still writing.
        OSError: when it cannot be made or written, with its path.
    """

    def __init__(self, path: str | Path) -> None:
        super().__init__(Path(path).absolute())
        if self.path.exists() and not self.path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "it is a file, not a directory", str(self.path))
        self._made = not self.path.exists()
        self.path.mkdir(parents=True, exist_ok=True)
        if not os.access(self.path, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, "Permission denied", str(self.path))
        self._fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._held = {self.path: self._fd}  # descriptors of what must stay in its place
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._fd)
            raise UsageError(
                f"another run is writing to {self.path}; wait for it or choose another directory"
            ) from None
        try:
            for name in (PARTS, KEPT):
                self._below(self.path / name)
            remove(self.path / REOPENED)
        except BaseException:
            os.close(self._fd)
            raise

    def close(self) -> None:
        """Give DIR back."""
        if _is(self.path, self._fd):
            remove(self.path / REOPENED)
            if self._made and not any(self.path.iterdir()):
                self.path.rmdir()
        for fd in self._held.values():
            os.close(fd)

    def check_there(self) -> None:
        """Raise OSError when DIR, or its parts, were removed, moved or replaced.

        A later write would be lost, and the files in their place belong to another program.
        """
        if self.parts not in self._held and self.parts.exists():
            self._held[self.parts] = os.open(self.parts, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        for path, fd in self._held.items():
            if not _is(path, fd):
                why = "it was removed, moved or replaced during the run: put it back and --resume, or begin again"
                raise FileNotFoundError(errno.ENOENT, why, str(path))

    def name_of(self, given: str | None, default: str) -> str:
        """The name of the dataset that a run which is resumed here makes: the one that it was begun with, if it was.

        Raises:
            UsageError: another was `given`, or `run.json` is damaged.
        """
        if not self.begun_there:
            return given or default
        before = Path(self.begun()["output"]).stem
        if given not in (None, before):
            text = (
                f"the run in {self.path} makes the dataset {before}, not {given}: resume=True (--resume) keeps the name"
            )
            raise UsageError(f"{text}, so leave name= (--name) out; {AGAIN}")
        return before

    def check(
        self,
        arguments: Mapping[str, Any],
        output: Path,
        *,
        force: bool,
        resume: bool | None,
        objects: Mapping[str, str | None] | None = None,
    ) -> Checked:
        """Check that a run with these arguments may begin here and make `output`.

        Args:
            resume: None of a call that cannot resume a run.
            objects: the arguments that are objects, as `identity.identities` returns them.

        Raises:
            UsageError: files of a run, or `output`, are there without `force` and `resume`. Or `resume` finds them with
                a missing or damaged `run.json`. Or the run to resume had other arguments, which are named.
        """
        self._below(output)
        found = next((path for path in (*self._files(), output) if path.exists()), None)
        if resume and self.begun_there:
            before = self.begun()
            others, unknown = compared(before["objects"], objects or {})
            known = before["arguments"]
            grown = {name: known[name] for name in AMOUNTS if _grows(known.get(name), arguments.get(name))}
            changes = differences(known, {**arguments, **grown})
            named = {change.partition(" was ")[0] for change in changes}
            changes += [
                f"{name} is another object than then, or in another state"
                for name in others
                if name.split(" ")[0] not in named
            ]
            if changes:
                raise UsageError(
                    f"{self.path} was begun with other arguments ({'; '.join(changes)}). resume=True (--resume) "
                    f"needs the same ones; only episodes or steps may grow. {AGAIN}, or choose another directory"
                )
            digests, files = file_digests(arguments), before["files"]
            warnings = [
                f"{name} has changed since the run was begun: episodes from before and after are mixed"
                for name, digest in digests.items()
                if files.get(name, digest) != digest
            ] + [f"it is unknown whether {name} is the same object as when the run was begun" for name in unknown]
            return Checked(tuple(warnings), bool(grown))
        if found and not force:
            if resume:
                raise UsageError(
                    f"{found} is there, but no {ARGUMENTS} that says how it was made: it cannot be resumed"
                )
            on = "asks for more" if self.complete else "continues it"
            how = "force=True (--force) starts again" if resume is None else f"resume=True (--resume) {on}, {AGAIN}"
            raise UsageError(f"{found} is there already: {how}; or choose another directory (out=, --out)")
        return Checked()

    def _files(self) -> tuple[Path, ...]:
        return self.parts, self.path / SUMMARY, self.path / ARGUMENTS, self.path / KEPT

    def reopen(self, data: Path, skipped: Iterable[Skipped]) -> list[EpisodeNote]:
        """Make parts of a complete run's dataset again; `reopened` puts them in their place. Returns their notes.

        Raises:
            Damaged: episodes of the dataset are not what was written. It is as it was.
            UsageError: the same of what says where they are.
        """
        work = self.new_parts()
        try:
            reopen(self.path / KEPT, data, work)
        except (ValueError, FileNotFoundError) as error:
            text = f"{error.filename} is missing" if isinstance(error, FileNotFoundError) else str(error)
            raise UsageError(f"{text}: the run in {self.path} cannot be taken apart. Of {data}: {REMEDY}") from error
        _write_skipped(work, skipped)
        return recover(work)

    def new_parts(self) -> Path:
        """An empty folder for parts, which `reopened` or `begin` put in their place; else it goes with this object."""
        work = self.path / REOPENED
        work.mkdir()
        return work

    def reopened(self) -> None:
        """The run is not complete any more: it has parts, and its dataset until the next one is made of them."""
        os.rename(self.path / REOPENED, self.parts)

    def keep_failure(self, repro: Repro) -> None:
        """Write down what a failed episode can be replayed from."""
        repro.save(self.path / FAILURES / f"episode-{repro.about['index']}{SUFFIX}")

    def grow(self, arguments: Mapping[str, Any]) -> None:
        """Note that more is asked for than when the run was begun. Call it when there are parts."""
        self._write_arguments({**self.begun(), "arguments": dict(arguments)})

    def _write_arguments(self, content: dict[str, Any], sign: bool = True) -> None:
        mark = signing.signature(*_to_sign(content)) if sign else ""
        # arguments may hold a token, which is nobody else's
        _write_json(self.path / ARGUMENTS, sealed(content | ({"signature": mark} if mark else {})), 0o600)

    def recover(self) -> list[EpisodeNote]:
        """Return the episodes of the run to resume, once no process writes any more.

        Raises:
            UsageError: when workers of an earlier run are still writing, or their files were replaced.
            Damaged: when an episode differs from the written one.
        """
        if not self.parts.exists():
            return []
        self._await_writers()
        self.journals()
        with intact(self.parts):
            return recover(self.parts)

    def note_skipped(self, skipped: Iterable[Skipped]) -> None:
        """Write down which episodes the run has left out so far."""
        _write_skipped(self.parts, skipped)

    def begin(
        self,
        arguments: Mapping[str, Any],
        output: Path,
        objects: Mapping[str, str | None] | None = None,
        *,
        sign: bool = True,
    ) -> None:
        """Remove what an earlier run left, and write this one's arguments down. See `abandon`.

        Args:
            arguments, objects: checked by `check`.
            output: what the run will make, below DIR.
            sign: are the arguments this user's own? Then a replay follows what they name.

        Raises:
            OSError: when DIR cannot be written.
        """
        self._clear(output)
        content = {
            "arguments": dict(arguments),
            "files": file_digests(arguments),
            "objects": dict(objects or {}),
            "output": str(output.relative_to(self.path)),
        }
        self._write_arguments(content, sign)
        if (self.path / REOPENED).exists():
            self.reopened()
        else:
            self.parts.mkdir()

    def _clear(self, output: Path) -> None:
        # the parts and run.json last: they say whose run it is when this is cut short
        paths = [self.path / SUMMARY, self.path / FAILURES, output]
        if self.begun_there:
            try:
                with intact(self.path / ARGUMENTS):
                    paths.append(below(self.path, self.written()[0]["output"]))
            except UsageError:
                log.warning("%s is damaged: what else it names is left as it is", self.path / ARGUMENTS)
        for path in (*paths, self.path / KEPT, self.parts):
            remove(path)

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
        """The run has made nothing: what `begin` wrote is removed."""
        for path in self._files():
            remove(path)

    def finish(self) -> None:
        """The run is complete and merged: its parts are not needed any more."""
        remove(self.parts)


def _to_sign(content: dict[str, Any]) -> tuple[str, dict[str, Any], list[Any]]:
    """Of a `run.json` what `signing` wants: the kind, what is signed, and the names of code."""
    arguments = content["arguments"]
    named = (arguments.get(each) for each in ("env", "policy", "reset_options"))
    return "run", content, [*named, *arguments.get("wrappers", ())]


def _is(path: Path, fd: int) -> bool:
    """Return True if the path leads to the file `fd`."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))
    except (FileNotFoundError, NotADirectoryError):
        return False


def remove(path: Path) -> None:
    """Remove a file or a folder with all that is in it, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _grows(before: Any, now: Any) -> bool:
    return isinstance(before, int) and isinstance(now, int) and now > before


def below(root: Path, name: Any) -> Path:
    """Return `root / name`, for a name that was read from a file.

    Raises:
        ValueError: when that is not below `root`, for whatever reason. TypeError: when the name is not text.
    """
    if not isinstance(name, str):
        raise TypeError(f"a name is expected, got {name!r}")
    relative, path = Path(name), root / name
    inside = relative.parts and not relative.is_absolute() and ".." not in relative.parts
    if not inside or root.resolve() not in path.resolve().parents:
        raise ValueError(f"{name!r} is not below {root}")
    return path


@contextmanager
def intact(path: Path) -> Iterator[None]:
    """A block that reads a file: its exceptions become a UsageError about a damaged file."""
    try:
        yield
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        text = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise UsageError(f"{path} is damaged ({text}): {AGAIN}, or choose another directory") from error


def _write_skipped(parts: Path, skipped: Iterable[Skipped]) -> None:
    _write_json(parts / SKIPPED, sealed({"skipped": [vars(each) for each in skipped]}))


def _write_json(path: Path, content: Any, mode: int = 0o666) -> None:
    with written(path, mode) as file:
        file.write(json.dumps(content, indent=1).encode() + b"\n")


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the differences, one short text each, such as "seed was 0 and is 1"."""
    told = json.loads(json.dumps(dict(now)))  # tuples become lists, as they did in the file
    found = []
    for key in dict.fromkeys((*before, *told)):
        if before.get(key) != told.get(key):
            found.append(f"{key} was {json.dumps(before.get(key))} and is {json.dumps(told.get(key))}")
    return found


def file_digests(arguments: Mapping[str, Any]) -> dict[str, str]:
    """blake2b-128 of the files of "file.py:attribute" and "model.zip" references, by path; others are skipped."""
    out = {}
    named = (arguments.get(name) for name in ("env", "policy", "reset_options", "keep"))
    for reference in (*named, *arguments["wrappers"]):
        name = reference if isinstance(reference, str) else ""
        name = name if name.endswith(".zip") else name.rpartition(":")[0]
        if name.endswith((".py", ".zip")) and os.path.isfile(name):
            out[name] = digest_of(Path(name).read_bytes())
    return out
