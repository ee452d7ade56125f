"""Trees: nested dicts and tuples, with all other values as leaves.

Observations, actions and records are trees that nest as their space nests. A *node* is a dict or a plain tuple. Every
other value is a leaf, including lists and named tuples (Gymnasium's ``GraphInstance``): those are values, not
structure. The first tree decides the order of a dict's keys. Other trees are read by key, so two dicts that differ only
in order are the same tree.

A *path* is the tuple of dict keys and tuple indices that lead from the root to a leaf; the root's path is ``()``.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

Path = tuple[Any, ...]


def _is_node(tree: Any) -> bool:
    return isinstance(tree, dict) or (isinstance(tree, tuple) and not hasattr(tree, "_fields"))


def _children(node: Any) -> Iterator[tuple[Any, Any]]:
    return iter(node.items()) if isinstance(node, dict) else enumerate(node)


def _rebuild(node: Any, children: list[Any]) -> Any:
    return dict(zip(node, children)) if isinstance(node, dict) else tuple(children)


def _walk(tree: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    if _is_node(tree):
        for key, child in _children(tree):
            yield from _walk(child, (*path, key))
    else:
        yield path, tree


def leaves(tree: Any) -> list[Any]:
    """Return the leaves of a tree, depth first."""
    return [leaf for _, leaf in _walk(tree, ())]


def paths(tree: Any) -> list[Path]:
    """Return the path of every leaf, in the order of `leaves`."""
    return [path for path, _ in _walk(tree, ())]


def _require_same_node(node: Any, other: Any, path: Path) -> None:
    if isinstance(node, dict):
        same = isinstance(other, dict) and node.keys() == other.keys()
    else:
        same = _is_node(other) and isinstance(other, tuple) and len(node) == len(other)
    if not same:
        raise ValueError(f"the trees differ in structure at path {path!r}: {_outline(node)} against {_outline(other)}")


def _outline(tree: Any) -> str:
    if not _is_node(tree):
        return type(tree).__name__
    return f"dict with keys {list(tree)!r}" if isinstance(tree, dict) else f"tuple of length {len(tree)}"


def _map(fn: Callable[..., Any], trees: Sequence[Any], path: Path) -> Any:
    first = trees[0]
    if not _is_node(first):
        return fn(*trees)
    for other in trees[1:]:
        _require_same_node(first, other, path)
    return _rebuild(first, [_map(fn, [tree[key] for tree in trees], (*path, key)) for key, _ in _children(first)])


def map(fn: Callable[..., Any], tree: Any, *rest: Any) -> Any:
    """Apply ``fn(leaf, *leaves_of_rest)`` to every leaf and return the tree of the results.

    The trees in ``rest`` have at least the nodes of the first. Their parts at the place of a leaf of the first tree are
    passed on unchanged.

    Raises:
        ValueError: a tree in ``rest`` lacks a node of the first, or has other keys or another length there.
    """
    return _map(fn, [tree, *rest], ())


def row(tree: Any, index: int) -> Any:
    """Return the tree of the entries at ``index`` of every array and list; those of arrays are views or scalars."""
    return map(lambda leaf: leaf[index], tree)


def equal(a: Any, b: Any) -> bool:
    """Return True if two trees are the same to the byte.

    Arrays and NumPy scalars are equal if dtype, shape and bytes are. So NaN equals the same NaN, and 0.0 differs from
    -0.0. A NumPy scalar equals the array of shape () that holds it, but not a Python number. Python floats also compare
    by their bytes. Lists and named tuples are compared item by item. Other leaves are equal if their types are and
    ``==`` is True. The order of dict keys does not matter.
    """
    if isinstance(a, dict) or isinstance(b, dict):
        return (
            isinstance(a, dict)
            and isinstance(b, dict)
            and a.keys() == b.keys()
            and all(equal(value, b[key]) for key, value in a.items())
        )
    if isinstance(a, np.ndarray | np.generic) and isinstance(b, np.ndarray | np.generic):
        return _equal_arrays(np.asarray(a), np.asarray(b))
    if type(a) is not type(b):
        return False
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(builtins.map(equal, a, b))
    if isinstance(a, float):
        return np.float64(a).tobytes() == np.float64(b).tobytes()
    return bool(a == b)


def _equal_arrays(a: np.ndarray, b: np.ndarray) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.dtype.hasobject:  # the bytes of an object array are addresses
        return all(builtins.map(equal, a.ravel().tolist(), b.ravel().tolist()))
    return a.tobytes() == b.tobytes()


def first_difference(
    one: Mapping[str, Any], other: Mapping[str, Any], begins: Callable[[str], int] = lambda name: 0
) -> tuple[int, str] | None:
    """Return (step, name) of the first difference between two records of an episode; None: they are equal.

    Args:
        one, other: rows by name, such as arrays whose first axis is time. Rows are compared by their bytes. A name that
            one record lacks differs at its first row; a name with fewer rows in one record differs after the last.
        begins: returns the step of a name's first row.
    """
    found: list[tuple[int, str]] = []
    for name in dict.fromkeys((*one, *other)):
        a, b = one.get(name, ()), other.get(name, ())
        unequal = (row for row, (x, y) in enumerate(zip(a, b)) if np.asarray(x).tobytes() != np.asarray(y).tobytes())
        row = next(unequal, None if len(a) == len(b) and name in one and name in other else min(len(a), len(b)))
        if row is not None:
            found.append((row + begins(name), name))
    return min(found, key=lambda each: each[0], default=None)
