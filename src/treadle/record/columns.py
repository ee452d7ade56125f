"""An episode as a list of named arrays: the one form that is hashed and stored, whatever the file format.

The order is fixed (observations, actions, rewards, terminations, truncations, infos, policy infos), dicts by key, tuple
members under the names `_index_0`, `_index_1`, ... as in Minari. Text becomes UTF-8 bytes of the episode's
greatest length, padded with zeros (dtype `S<n>`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from treadle.play.episode import Episode
from treadle.record.infos import pack_infos
from treadle.record.packing import hasher

POLICY_INFOS = "policy_infos"
COPIED = 1 << 16  # bytes up to which it is quicker to join arrays than to hash one after the other
_PLAIN = frozenset(map(np.dtype, ("?", *(f"<{k}{n}" for k in "iu" for n in (1, 2, 4, 8)), "<f2", "<f4", "<f8")))


class Column(NamedTuple):
    """One array of an episode, time first, C-contiguous and little-endian, under the path of its names."""

    path: tuple[str, ...]
    array: np.ndarray


class Columns(NamedTuple):
    """What is stored of an episode, and the info keys (paths joined by "/") that could not be."""

    columns: list[Column]
    left_out: tuple[str, ...]


def kind_of(columns: Sequence[Column]) -> tuple[Any, ...]:
    """What columns of many episodes have in common, hashable: all but their rows."""
    return tuple([(path, array.dtype, array.shape[1:]) for path, array in columns])


def columns_of(episode: Episode, *, infos: bool = True) -> Columns:
    """The arrays of an episode.

    Infos are stored by the rules of `treadle.record.infos` below the path ("infos",), what the policy said below
    ("infos", "policy_infos").

    Raises:
        TypeError: when an observation or action holds values that are neither numbers nor text.
        ValueError: when a text holds the character NUL, or rows are missing.
    """
    steps, out = len(episode.rewards), list[Column]()
    _collect(episode.observations, ("observations",), steps + 1, out)
    _collect(episode.actions, ("actions",), steps, out)
    for name, array in (
        ("rewards", episode.rewards),
        ("terminations", episode.terminated),
        ("truncations", episode.truncated),
    ):
        out.append(Column((name,), _plain_array(array, (name,))))
    left_out: list[str] = []
    if infos:
        if any(episode.infos):
            out += (Column(("infos", *path), array) for path, array in pack_infos(episode.infos, left_out))
        if any(episode.policy_infos):
            found: list[str] = []
            if any(c.path[:2] == ("infos", POLICY_INFOS) for c in out):
                found.append("")  # the environment uses that name itself
            else:
                packed = pack_infos(episode.policy_infos, found)
                out += (Column(("infos", POLICY_INFOS, *path), array) for path, array in packed)
            left_out += (f"{POLICY_INFOS}/{key}".rstrip("/") for key in found)
    return Columns(out, tuple(left_out))


def leaves(tree: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The leaves of a tree of dicts and tuples with their paths, tuple members named `_index_<i>`."""
    if isinstance(tree, dict):
        for key in sorted(tree):
            yield from leaves(tree[key], (*path, str(key)))
    elif isinstance(tree, tuple):
        for i, value in enumerate(tree):
            yield from leaves(value, (*path, f"_index_{i}"))
    else:
        yield path, tree


def _collect(tree: Any, path: tuple[str, ...], rows: int, out: list[Column]) -> None:
    for where, leaf in leaves(tree, path):
        array = text_array(leaf, where) if isinstance(leaf, list) else _plain_array(leaf, where)
        if len(array) != rows:
            raise ValueError(f"{'/'.join(where)} has {len(array)} rows where the episode has {rows}")
        out.append(Column(where, array))


def _plain_array(array: np.ndarray, path: tuple[str, ...]) -> np.ndarray:
    if array.dtype not in _PLAIN:
        if array.dtype.kind == "U":
            return text_array(array.tolist(), path)
        if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
            raise TypeError(f"{'/'.join(path)} holds values of type {array.dtype}; numbers and text can be stored")
        array = array.astype(array.dtype.newbyteorder("<"))
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def text_array(texts: Sequence[Any], path: tuple[str, ...]) -> np.ndarray:
    """Texts as UTF-8 bytes: `S<longest>`[len(texts)]."""
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"{'/'.join(path)} holds a {type(text).__name__}; only arrays and text can be stored")
        if "\0" in text:
            raise ValueError(f"{'/'.join(path)} holds a text with the character NUL, which a dataset cannot keep")
    encoded = [text.encode() for text in texts]
    return np.array(encoded, dtype=f"S{max(1, max(map(len, encoded), default=1))}")


def digester() -> Callable[[Sequence[Column]], bytes]:
    """A function that gives the XXH3-128 digest of columns: over paths, dtypes, shapes and bytes, in order."""
    known: dict[tuple, bytes] = {}
    new = hasher()

    def digest(columns: Sequence[Column]) -> bytes:
        kind = kind_of(columns)
        description = known.get(kind)
        if description is None:
            if len(known) >= 256:
                known.clear()
            description = known[kind] = repr(tuple((path, dtype.str, shape) for path, dtype, shape in kind)).encode()
        head = description + struct.pack(f"<{len(columns)}Q", *[len(array) for _, array in columns])
        if sum([array.nbytes for _, array in columns]) < COPIED:
            found: bytes = new(b"".join([head, *[array.tobytes() for _, array in columns]])).digest()
            return found
        state = new(head)
        for column in columns:
            state.update(column.array.data)
        found = state.digest()
        return found

    return digest
