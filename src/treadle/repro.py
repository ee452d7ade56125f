"""A recorded failure, from which it can be replayed: how to build the environment, its seeds, its actions.

On disk it is one file: a zip with `repro.json` and an `.npy` for each array (read without pickle). Objects that JSON
cannot hold are pickles in it: a lambda, a policy given as an object, a state. Pickles run code when they are opened, so
they are opened only when the reader says that the file is trusted. The last member, `signature`, is of all others
(`treadle.signing`): names of code are followed only in a file that this user's own runs have written.
"""

from __future__ import annotations

import copy
import hashlib
import io
import json
import os
import pickle
import shlex
import sys
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from treadle import pickling, signing
from treadle.errors import UsageError, WorkerDied, WorkerError, WorkerTimeout
from treadle.whole_file import opened, written

SUFFIX = ".repro"
HEAD = "repro.json"
SIGNATURE = "signature"
FORMAT = 1
_TOLD = ("error_type", "error_message", "signal", "exit_code", "limit")
UNKNOWN = bytes([255] * 8)  # a reward that was not recorded
MOST_BYTES = 64 << 20  # of recorded actions; of a longer episode the repro says that they are not there

# what a file that is not as it should be raises while it is read
_DAMAGE = (
    *(KeyError, TypeError, ValueError, AttributeError, EOFError, RuntimeError, MemoryError, OverflowError),
    *(zipfile.BadZipFile, zlib.error, OSError),
)

_last: list[Repro] = []


def last_failure() -> Repro | None:
    """Return the `Repro` of the latest failure that was raised in this process; None before the first.

    It holds until the next one; `save(path)` keeps it, `treadle.replay` plays it.
    """
    return _last[-1] if _last else None


def note(error: WorkerError, repro: Repro) -> None:
    """Keep what an error can be replayed from, as its `repro` and as the latest failure; a note says how."""
    error.repro = repro
    why = repro.about.get("unkept")
    error.add_note(f"it cannot be replayed: {why}" if why else f"to see it again: {repro.command}")
    _last[:] = [copy.copy(repro)]  # with pickles for objects: what users passed must not live as long as the process


def note_unkept(error: WorkerError, why: str) -> None:
    """Add to an error, and to the latest failure, the reason why it cannot be replayed."""
    note(error, Repro({"title": str(error).splitlines()[0], "unkept": why}))


class Repro:
    """How to see one failure (or one episode) again. Made by Treadle; see `treadle.last_failure` and `treadle.replay`.

    Attributes:
        about: all that JSON can say: face, env, policy, seeds, what failed, versions.
        arrays: what was recorded: "action.0", ... (a leaf of the action space each), "rewards".
        objects: what only this process has; `save` pickles them.
        path: the file that it was read from or saved to; None: it is in memory alone.
        stored: the directory of a run whose dataset may have the episode; None: it is of no run.
        doubt: why it may be another user's; "": it was made in this process, or this user has signed its file.
        made_here: was it made in this process? Then its pickles may be opened.
    """

    def __init__(self, about: Mapping[str, Any], arrays: Mapping[str, np.ndarray] | None = None) -> None:
        self.about: dict[str, Any] = {
            "treadle_repro": FORMAT,
            "versions": versions("treadle", "numpy", "gymnasium"),
            **about,
        }
        self.arrays = dict(arrays or {})
        self.objects: dict[str, Any] = {}
        self.path: Path | None = None
        self._sealed: dict[str, bytes] = {}
        self.stored: Path | None = None
        self.doubt, self.made_here = "", True

    def __repr__(self) -> str:
        failed = self.about.get("failed")
        what = f": {failed.get('reason')}" if failed else ""
        return f"<Repro of {self.about['title']}{what}>"

    @property
    def command(self) -> str:
        """How a person replays it."""
        if self.path is None:
            return "treadle.replay(treadle.last_failure())"
        return f"treadle replay {shlex.quote(_shown(self.path))}"

    def put(self, name: str, thing: Any) -> None:
        """Say what a thing is: in JSON where that can (None, plain values, an importable name), else as an object."""
        self.about[name] = said = say(thing)
        if "object" in said:
            self.objects[name] = thing

    def get(self, name: str, trust: bool) -> Any:
        """Return the object that `put` was given; of an importable one its name ("module:name" or "file.py:name").

        Raises:
            UsageError: `trust` is False, and the object lies in the file as a pickle. Likewise if it is a name in a
                file that may be another user's. The name of an environment is returned all the same: see
                `treadle.replays.opening`.
        """
        said = self._entry(name)
        if "object" in said and name in self.objects:
            return self.objects[name]
        if "value" in said or "name" in said:
            found = self.shown(name)
            if isinstance(found, str) and self.doubt and not trust and name != "env" and found != "random":
                raise UsageError(f"{name} is {found!a}: --trust (trust=True) would run it ({self.doubt})")
            return found
        told = " ".join(str(each) for each in (said["object"], said.get("where")) if each)
        if name not in self._sealed:
            raise UsageError(f"the {name} was {told}, which could not be pickled: give another with --{name}")
        if not (trust or self.made_here):
            option = {"env": "--env", "policy": "--other-policy"}.get(name)
            by_name = f"name one with {option} module:name, or " if option else ""
            raise UsageError(
                f"the {name} was {told}: {by_name}open its pickle with --trust (trust=True), which runs code of the "
                "file's"
            )
        self.objects[name] = pickle.loads(self._sealed[name])
        return self.objects[name]

    def shown(self, name: str) -> Any:
        """Return the value or the name that a file holds, or "a pickle of TYPE" where `get` would open a pickle."""
        said = self._entry(name)
        if "value" in said:
            return said["value"]
        return str(said["name"]) if "name" in said else f"a pickle of {said.get('object')}"

    def _entry(self, name: str) -> dict[str, Any]:
        said = self.about.get(name) or {"value": None}
        if not isinstance(said, dict):
            raise UsageError(f"{name} is not as it should be: {said!a}")
        return said

    @property
    def names_code(self) -> bool:
        """Return True if the file names more than an id and random actions."""
        env, policy = self.shown("env"), self.shown("policy")
        if not isinstance(env, str) or ":" in env or "object" in self._entry("env") or policy not in (None, "random"):
            return True
        return bool(self.about.get("wrappers") or self.shown("make"))

    def save(self, path: str | Path) -> Path:
        """Write it to a file (".repro" is appended to a name without a suffix). Returns its path."""
        path = Path(path)
        path = path if path.suffix else path.with_suffix(SUFFIX)
        path.parent.mkdir(parents=True, exist_ok=True)
        sealed = {**self._sealed, **{name: dumped for name, dumped in map(_pickled, self.objects.items()) if dumped}}
        members = {HEAD: (json.dumps(self.about, indent=1, default=str) + "\n").encode()}
        for name, array in self.arrays.items():
            data = io.BytesIO()
            np.lib.format.write_array(data, np.asarray(array), allow_pickle=False)
            members[f"{name}.npy"] = data.getvalue()
        members |= {f"{name}.pickle": data for name, data in sealed.items()}
        if not self.doubt and (signature := signing.signature(*_to_sign(members))):
            members[SIGNATURE] = signature.encode()
        with written(path, 0o600) as whole, zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in members.items():
                archive.writestr(name, content)
        self.path = path
        return path

    def __getstate__(self) -> dict[str, Any]:
        """Errors travel with it, and copies are made by it; what it holds as objects goes as their pickles."""
        sealed = {**self._sealed, **dict(map(_pickled, self.objects.items()))}
        return {**self.__dict__, "objects": {}, "_sealed": {name: data for name, data in sealed.items() if data}}

    @classmethod
    def load(cls, path: str | Path) -> Repro:
        """Read a file without unpickling anything. Raises UsageError where it is not such a file."""
        try:
            with opened(path) as file, zipfile.ZipFile(io.BytesIO(file.read())) as archive:
                if archive.getinfo(HEAD).file_size > MOST_BYTES:
                    raise ValueError(f"its {HEAD} is too large")
                members = {name: archive.read(name) for name in archive.namelist()}
            signature = members.pop(SIGNATURE, b"").decode()
            about = json.loads(members[HEAD])
            if about["treadle_repro"] > FORMAT:
                raise UsageError(f"{path} was written by a newer Treadle")
            if not (isinstance(about["title"], str) and isinstance(about.get("failed") or {}, dict)):
                raise ValueError(f"its {HEAD} is not as it should be")
            found = cls(about)
            found.doubt, found.made_here = signing.doubt(*_to_sign(members), signature), False
            for name, data in members.items():
                stem, _, suffix = name.rpartition(".")
                if suffix == "npy":
                    found.arrays[stem] = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
                elif suffix == "pickle":
                    found._sealed[stem] = data
        except _DAMAGE as error:
            if isinstance(error, UsageError):
                raise
            raise UsageError(f"{path} is not a {SUFFIX} file of Treadle's, or it is damaged ({error})") from error
        found.path = Path(path)
        return found


def say(thing: Any) -> dict[str, Any]:
    """Return the JSON of an object: {"value": ...}, {"name": "module:name"}, or {"object": ..., "where": ...}."""
    thing = getattr(thing, "reference", thing)  # of `sample.named.Named`
    if isinstance(thing, str):
        file, colon, name = thing.rpartition(":")
        if file.endswith(".py") or thing.endswith(".zip"):
            return {"name": f"{os.path.abspath(file)}:{name}" if colon else os.path.abspath(thing)}
        return {"name": thing}
    try:
        if json.loads(json.dumps(thing)) == thing:
            return {"value": thing}
    except (TypeError, ValueError, RecursionError):
        pass
    reference = _reference(thing)
    if reference:
        return {"name": reference}
    code = getattr(thing, "__code__", None)
    where = "" if code is None else f"({code.co_filename}, line {code.co_firstlineno})"
    kind = thing if hasattr(thing, "__qualname__") else type(thing)
    return {"object": f"{'' if kind is thing else 'a '}{kind.__module__}.{kind.__qualname__}", "where": where}


def _reference(thing: Any) -> str:
    """ "module:name" of what can be imported, "file.py:name" of what the main script defines; "" for anything else."""
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or "<" in name:
        return ""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not thing:
        return ""
    file = getattr(sys.modules[module], "__file__", None)
    if module == "__main__":
        return f"{os.path.abspath(file)}:{name}" if file and file.endswith(".py") else ""
    loaded_by_path = isinstance(file, str) and not module.isidentifier() and "." not in module
    return f"{file}:{name}" if loaded_by_path else f"{module}:{name}"


def _to_sign(members: Mapping[str, bytes]) -> tuple[str, dict[str, str], list[Any]]:
    """Of a file's members what `signing` wants: the kind, what is signed, and the names of code. Raises _DAMAGE."""
    about = json.loads(members[HEAD])
    said = [each for each in about.values() if isinstance(each, dict)]
    names = [each.get("name", each.get("value")) for each in said]
    return "repro", {name: hashlib.sha256(data).hexdigest() for name, data in members.items()}, names


def _pickled(item: tuple[str, Any]) -> tuple[str, bytes]:
    """Pickle an object; empty where that fails, which the error of a later `get` says."""
    try:
        return item[0], pickling.dumps(item[1])
    except Exception:  # noqa: BLE001 - pickling runs foreign code
        return item[0], b""


def _shown(path: Path) -> str:
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


def failure_of(error: WorkerError, reason: str = "") -> dict[str, Any]:
    """Return a repro's "failed": the kind of a failure, its place and its text."""
    where, kind = error.where, "raised"
    kind = "late" if isinstance(error, WorkerTimeout) else "died" if isinstance(error, WorkerDied) else kind
    told = {name: getattr(error, name, None) for name in _TOLD}
    at = {name: getattr(where, name) for name in ("slot", "worker", "phase", "step", "episode", "item")}
    text = error.remote_traceback or getattr(error, "stack", "")
    return {"kind": kind, **at, **told, "reason": reason or str(error).splitlines()[0], "traceback": text}


def versions(*packages: str) -> dict[str, str]:
    """Of Python and of these packages; what is not installed is left out."""
    found = {"python": sys.version.split()[0]}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def fingerprint(rows: Sequence[Any]) -> int:
    """A check sum of one observation's leaves; those without a fixed shape (None) do not count."""
    found = 0
    for row in rows:
        found = zlib.crc32(b"" if row is None else np.ascontiguousarray(row).data.cast("B"), found)
    return found


def spaces_of(spaces: Sequence[Any]) -> list[str]:
    """How the spaces of observations and actions look; "" for one whose text is another one each time."""
    return ["" if " at 0x" in text else " ".join(text.split()) for text in map(str, spaces)]


def recipe_of(repro: Repro, recipe: Any) -> None:
    """Write down how an environment is built: `recipe` is a `treadle.program.gym_env.EnvRecipe`."""
    spec: Callable[[], str] | None = getattr(recipe.env, "to_json", None)
    repro.put("env", getattr(recipe.env, "id", recipe.env) if spec else recipe.env)
    repro.put("kwargs", recipe.kwargs)
    for number, wrapper in enumerate(recipe.wrappers):
        repro.put(f"wrapper {number}", wrapper)
    repro.about["wrappers"] = len(recipe.wrappers)
