"""An episode as a list of named arrays: the one form that is hashed and stored, whatever the file format.

The order is fixed (observations, actions, rewards, terminations, truncations, infos, policy infos), dicts by key, tuple
members under the names `_index_0`, `_index_1`, ... as in Minari. Text becomes UTF-8 bytes of the episode's
greatest length, padded with zeros (dtype `S<n>`).

Infos become columns by rules that go key by key over the rows of one episode. So an episode's bytes depend on that
episode alone:

- Numbers, bools and arrays of numbers with one dtype and shape on every row that has the key: an array of that dtype,
  `[rows, *shape]`. When some rows lack the key (Gymnasium's resets usually do) they hold zeros. Then a second column
  `_<key>`, bool[rows], marks the rows that have it, as in Gymnasium's vector infos. (Bools that the environment itself
  keeps under `_<key>` beside `<key>` are stored as JSON text, so that a reader does not confuse the two.)
- Dicts with string keys, none of them empty: a group, by the same rules. A "/" in a key also makes a group.
- Everything else: JSON text per row (UTF-8 bytes, dtype `S<n>`), empty where the row lacks the key. NumPy values inside
  become plain numbers and lists, tuples become lists.
- Values that JSON cannot express (objects, sets, ...) are left out; the caller gets their names.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from treadle.errors import needed
from treadle.play.episode import Episode

POLICY_INFOS = "policy_infos"
COPIED = 1 << 16  # bytes up to which it is quicker to join arrays than to hash one after the other
_PLAIN = frozenset(map(np.dtype, ("?", *(f"<{k}{n}" for k in "iu" for n in (1, 2, 4, 8)), "<f2", "<f4", "<f8")))
_MISSING = object()
_SCALARS = {bool: np.dtype(bool), int: np.dtype(np.int64), float: np.dtype(np.float64)}


class Column(NamedTuple):
    """One array of an episode, time first, C-contiguous and little-endian, under the path of its names."""

    path: tuple[str, ...]
    array: np.ndarray


class Columns(NamedTuple):
    """The stored arrays of an episode, and the info keys (paths joined by "/") that could not be stored."""

    columns: list[Column]
    left_out: tuple[str, ...]


def columns_of(episode: Episode, *, infos: bool = True) -> Columns:
    """The arrays of an episode.

    Infos are stored by the rules above, below the path ("infos",), what the policy said below
    ("infos", "policy_infos").

    Raises:
        TypeError: when an observation or action holds values that are neither numbers nor text.
        ValueError: when a text holds the character NUL, or rows are missing.
    """
    steps, out = len(episode.rewards), list[Column]()
    _collect(episode.observations, ("observations",), steps + 1, out)
    _collect(episode.actions, ("actions",), steps, out)
    ends = {"terminations": episode.terminated, "truncations": episode.truncated}
    for name, array in {"rewards": episode.rewards, **ends}.items():
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


@cache
def hasher() -> Callable[[bytes], Any]:
    """`new(initial) -> state` with `update` and `digest`: XXH3 of 128 bits. Raises MissingExtra.

    Of a raw Pong frame blake2b takes 100 us and XXH3 about 5. The digests separate episodes that differ by chance or by
    a fault. They do not protect against an attacker who wants two equal digests.
    """
    with needed("datasets are hashed by xxhash", "data"):
        import xxhash
    new: Callable[[bytes], Any] = xxhash.xxh3_128
    return new


def digester() -> Callable[[Sequence[Column]], bytes]:
    """A function that gives the XXH3-128 digest of columns: over paths, dtypes, shapes and bytes, in order."""
    known: dict[tuple, bytes] = {}
    new = hasher()

    def digest(columns: Sequence[Column]) -> bytes:
        kind = tuple([(path, array.dtype, array.shape[1:]) for path, array in columns])
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


def pack_infos(rows: Sequence[Mapping], left_out: list[str]) -> list[tuple[tuple[str, ...], np.ndarray]]:
    """Columns of the infos, as (path, array) with one row per dict, sorted by path.

    Args:
        rows: the info dicts of one episode.
        left_out: gets the keys that cannot be stored, as paths joined by "/".
    """
    columns: dict[tuple[str, ...], np.ndarray] = {}
    used: set[tuple[str, ...]] = set()  # every path that is a column or leads to one
    for path, array in _pack(list(rows), (), left_out):
        taken = path in used or any(path[:i] in columns for i in range(1, len(path)))
        if taken or any(name in ("", ".") or "\0" in name for name in path):
            left_out.append("/".join(path))
        else:
            columns[path] = array
            used.update(path[:i] for i in range(1, len(path) + 1))
    return sorted(columns.items())


def _pack(rows: list, above: tuple[str, ...], left_out: list[str]) -> Iterator[tuple[tuple[str, ...], np.ndarray]]:
    keys = dict.fromkeys(key for row in rows if row is not _MISSING for key in row)
    names = {str(key) for key in keys}
    for key in keys:
        values = [_MISSING if row is _MISSING else row.get(key, _MISSING) for row in rows]
        path = (*above, *str(key).split("/"))
        present = [value for value in values if value is not _MISSING]
        if all(isinstance(value, dict) and value and all(isinstance(k, str) for k in value) for value in present):
            yield from _pack(values, path, left_out)
            continue
        complete = len(present) == len(values)
        array = _as_array(present)
        if array is not None and array.dtype == bool and str(key)[:1] == "_" and str(key)[1:] in names:
            array = None
        if array is not None and complete:
            yield path, array
        elif array is not None and f"_{key}" not in names:
            mask = np.array([value is not _MISSING for value in values])
            padded = np.zeros((len(values), *array.shape[1:]), array.dtype)
            padded[mask] = array
            yield path, padded
            yield (*path[:-1], f"_{path[-1]}"), mask
        else:
            text = _as_json(values)
            if text is None:
                left_out.append("/".join(path))
            else:
                yield path, text


def _as_array(values: list) -> np.ndarray | None:
    """Numbers, bools or arrays of one dtype and shape as one array; None when they are not."""
    kinds = set(map(type, values))
    if len(kinds) == 1 and (dtype := _SCALARS.get(next(iter(kinds)))) is not None:
        try:
            return np.array(values, dtype)
        except OverflowError:
            return None
    if len(kinds) == 1 and issubclass(next(iter(kinds)), np.generic):
        array = np.array(values)  # of one type, so nothing is converted
        return array if array.dtype.kind in "biuf" and array.dtype.itemsize <= 8 else None
    arrays = []
    for value in values:
        if type(value) in _SCALARS:
            if type(value) is int and not -(2**63) <= value < 2**63:
                return None
            arrays.append(np.asarray(value, _SCALARS[type(value)]))
        elif isinstance(value, np.ndarray | np.generic):
            arrays.append(np.asarray(value))
        else:
            return None
        first, last = arrays[0], arrays[-1]
        if last.dtype != first.dtype or last.shape != first.shape:
            return None
    dtype = arrays[0].dtype
    if dtype.kind not in "biuf" or dtype.itemsize > 8:
        return None
    return np.ascontiguousarray(np.stack(arrays), dtype.newbyteorder("<"))


def _as_json(values: list) -> np.ndarray | None:
    try:
        texts = [b"" if v is _MISSING else json.dumps(v, default=_plain).encode() for v in values]
    except (TypeError, ValueError, RecursionError):
        return None
    return np.array(texts, dtype=f"S{max(1, max(map(len, texts)))}")


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufU":
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not JSON")
