"""Texts, arguments and commands of a run without names of persons and without secrets, for files that are handed on.

Markup stays as it is: the writer of HTML escapes it.
"""

from __future__ import annotations

import getpass
import json
import os
import re
import shlex
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from treadle.progress import printable

HIDDEN = "(hidden)"
SECRET = re.compile("(?<!success_)key|token|secret|password|auth", re.IGNORECASE)
LEAST = 4  # characters of a secret, or of a name, from which on it is hidden inside other words, too
_HOME = re.compile(r"(?<![\w.~-])/(?:home|Users)/[^/\s'\",:;()]+|(?<![\w.~-])/root(?![\w.-])")
_PATH = re.compile(r"(?<![\w.:/~\\-])/(?:[^/\s'\",:;()<>]+/)+(?=[^/\s'\",:;()<>]*)")


class Inert:
    """Makes texts of one run harmless.

    Args:
        directory: of the run; paths below it are shown relative to it.
        arguments: of the run. A value whose key names a secret (`SECRET`) is hidden wherever it stands in a text.
    """

    def __init__(self, directory: Path, arguments: Mapping[str, Any]) -> None:
        found = {form for each in _secrets(arguments) for form in (each, json.dumps(each)[1:-1], ascii(each)[1:-1])}
        self._secrets = sorted((each for each in found if len(each) >= LEAST), key=len, reverse=True)
        self._runs = sorted({os.path.abspath(directory), os.path.realpath(directory)}, key=len, reverse=True)
        home = Path.home()
        names = {_user(): "(user)", socket.gethostname(): "(host)"}
        if str(home.parent) in ("/home", "/Users"):
            names[home.name] = "(user)"
        self._names = {name: shown for name, shown in names.items() if len(name) >= LEAST and name != "root"}
        self._home = str(home)

    def text(self, value: Any) -> str:
        """Return a text in one line, without secret, user or host.

        Of a path, the part below the run or "~" is left, else the last name alone. Characters that control a terminal,
        or turn the direction of a line, are escaped.
        """
        said = " ".join(str(value).split())
        for each in self._secrets:
            said = said.replace(each, HIDDEN)
        for run in self._runs:
            said = re.sub(rf"{re.escape(run)}(?:/|(?![\w.-]))", "./", said)
        said = re.sub(rf"{re.escape(self._home)}(?![\w.-])", "~", said) if self._home != "/" else said
        said = _PATH.sub("…/", _HOME.sub("~", said))
        for name, shown in self._names.items():
            said = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", shown, said)
        return printable(said)

    def value(self, value: Any, key: str = "") -> Any:
        """Return an argument of JSON with values of secret keys hidden, and texts as `text` returns them.

        `key`: the key that the argument stands under; "": none.
        """
        if SECRET.search(key) and value is not None:
            return HIDDEN
        if isinstance(value, Mapping):
            return {self.text(name): self.value(each, str(name)) for name, each in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(each) for each in value]
        return self.text(value) if isinstance(value, str) else value

    def command(self, typed: str) -> str:
        """Return a command line that means the same to a shell, except for what is hidden; "": it cannot be parsed."""
        try:
            words = shlex.split(typed)
        except ValueError:
            return ""
        return shlex.join(self._word(word) for word in words)

    def _word(self, word: str) -> str:
        option, given, text = word.partition("=") if word.startswith("--") else ("", "", word)
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return self.text(word)
        held = isinstance(value, dict | list)
        return f"{option}{given}{json.dumps(self.value(value)) if held else self.text(text)}"


def _secrets(value: Any, key: str = "", hidden: bool = False) -> Iterator[str]:
    """Yield the values below keys of secrets, as texts. `hidden`: True: all of `value` is below such a key."""
    hidden = hidden or bool(SECRET.search(key))
    if isinstance(value, Mapping):
        for name, each in value.items():
            yield from _secrets(each, str(name), hidden)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _secrets(each, "", hidden)
    elif hidden and isinstance(value, str | int | float) and not isinstance(value, bool):
        yield str(value)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name
        return ""
