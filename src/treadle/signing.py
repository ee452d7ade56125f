"""Signatures of the files that this user's runs write: HMAC-SHA-256 with a key that only this user can read.

The key is `$XDG_STATE_HOME/treadle/key` (`~/.local/state/treadle/key`), 32 random bytes, made when the first file is
signed. A signature covers the content of its file. If the content names code in the current folder ("my_env.py:make",
or a module of that folder), the signature also covers the folder. In another folder, the names mean other code.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import stat
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

SIZE = 32  # bytes of a key


def signature(kind: str, content: Any, names: Iterable[Any]) -> str:
    """Return the signature of a file's content; "" if a key can be neither read nor made.

    Args:
        kind: of the file; a signature is valid for one kind only.
        content: values that JSON can hold.
        names: of code in the content: "module:name", "file.py:name", "model.zip". Values other than text are ignored.
    """
    try:
        return _signed(_key(), kind, content, names)
    except OSError:
        return ""  # the run goes on; when its files are replayed, `doubt` gives the reason


def doubt(kind: str, content: Any, names: Iterable[Any], found: Any) -> str:
    """Return why a file with the signature `found` may be another user's; "" for one of this user's own files."""
    try:
        key = _key()
    except OSError as error:
        return f"this user's own files cannot be recognised without a key: {error}"
    if not isinstance(found, str) or not found:
        return "it carries no signature of this user's runs"
    with contextlib.suppress(OSError):
        if hmac.compare_digest(found.encode(errors="replace"), _signed(key, kind, content, names).encode()):
            return ""
    return "its signature is not this user's, of this content, in this folder"


def _signed(key: bytes, kind: str, content: Any, names: Iterable[Any]) -> str:
    told = json.dumps([kind, _folder(names), json.loads(json.dumps(content, default=str))], sort_keys=True)
    return hmac.new(key, told.encode(), hashlib.sha256).hexdigest()


def _folder(names: Iterable[Any]) -> str:
    """Return the current folder if one of these names may be looked up in it, else ""."""
    here = os.getcwd()
    there = {each.partition(".")[0] for each in os.listdir(here)}
    for name in names:
        path, colon, _ = name.rpartition(":") if isinstance(name, str) else ("", "", "")
        path = path if colon else name
        if isinstance(path, str) and path.endswith((".py", ".zip")):
            if not os.path.isabs(path):
                return here
        elif colon and path.partition(".")[0] in there:
            return here
    return ""


def _key() -> bytes:
    """Return this user's key, which is made if it is missing. Raises OSError with the reason if it cannot be made."""
    state = os.environ.get("XDG_STATE_HOME", "")
    base = state if os.path.isabs(state) else os.path.expanduser("~/.local/state")
    if not os.path.isabs(base):
        raise OSError("this user has no home directory")
    path = Path(base, "treadle", "key")
    if not os.path.lexists(path):
        _make(path)
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        about = os.fstat(fd)
        key = os.read(fd, SIZE + 1) if stat.S_ISREG(about.st_mode) else b""
    finally:
        os.close(fd)
    if len(key) != SIZE or about.st_uid != os.geteuid() or about.st_mode & 0o077:
        raise OSError(f"{path} is not {SIZE} bytes of this user's that only this user may read (mode 0600): remove it")
    return key


def _make(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd, name = tempfile.mkstemp(dir=path.parent)  # O_EXCL, mode 0600
    try:
        with open(fd, "wb") as file:
            file.write(secrets.token_bytes(SIZE))
            file.flush()
            os.fsync(fd)
        with contextlib.suppress(FileExistsError):  # another process was first: its key is used
            os.link(name, path)
    finally:
        os.unlink(name)
