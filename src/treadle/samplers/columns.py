"""Arrays whose first axis is time: padding, slicing, joining, and the checks of batches.

Packed arrays hold episodes one after the other; padded arrays hold one row an episode. Values may be arrays, lists, or
nested dicts and tuples of these; `play/columns.py` describes infos.

`check_steps` and `check_episodes` check the invariants of a batch of steps. Their messages are part of the contract:
programs and tests match them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from treadle import trees
from treadle.play.columns import absent
from treadle.spaces.fit import contains, soft_contains


def pad_batch_array(array: Any, lengths: Any, max_length: int | None = None) -> Any:
    """Return packed [sum(lengths), ...] as padded [N, max_length, ...], with zeros after an episode's end.

    Args:
        array: the packed array, or a tree of them.
        lengths: int[N], steps of each episode.
        max_length: None: the length of the longest episode. If an episode is longer, its length is used, with a
            warning.

    Raises:
        ValueError: the lengths do not add up to the array's length.
    """
    lengths = np.asarray(lengths)
    longest = int(lengths.max(initial=0))
    if max_length is not None and max_length < longest:
        warnings.warn("Creating a padded array with longer length than requested", stacklevel=2)
    size = max(longest, int(max_length or 0))
    inside = np.arange(size) < lengths[:, None]

    def pad(values: Any) -> np.ndarray:
        values = np.asarray(values)
        if len(values) != lengths.sum():
            raise ValueError(
                f"{len(values)} rows cannot be {len(lengths)} episodes of {int(lengths.sum())} steps in all"
            )
        padded = np.zeros((len(lengths), size, *values.shape[1:]), values.dtype)
        padded[inside] = values
        return padded

    return trees.map(pad, array)


def sliced(tree: Any, start: int, stop: int | None) -> Any:
    """Return rows start to stop-1 (None: to the end) of every array and list; arrays are views."""
    return trees.map(lambda values: values[start:stop], tree)


def joined(values: Sequence[Any], there: Callable[..., np.ndarray | None] | None = None) -> Any:
    """Concatenate trees in one pass.

    Args:
        values: the trees. A single tree is returned unchanged.
        there: called with the arrays of each leaf; returns one array if they already lie next to each other, else None.

    Raises:
        ValueError: the trees differ in structure; the message names the path.
    """
    if len(values) == 1 and there is None:
        return values[0]

    def join(*values: Any) -> Any:
        if isinstance(values[0], list):
            return [item for value in values for item in value]
        found = there(values) if there is not None else None
        if found is None:
            found = np.concatenate(values) if len(values) > 1 else values[0]
        return found

    return join(*values) if isinstance(values[0], np.ndarray) else trees.map(join, values[0], *values[1:])


def join_columns(
    tables: Sequence[dict[str, Any]],
    lengths: Sequence[int],
    *,
    strict: str | None = None,
    there: Callable[..., Any] | None = None,
) -> dict[str, Any]:
    """Join the infos of several batches.

    Args:
        tables: keys and columns of each batch.
        lengths: rows of each table.
        strict: None: keys that some tables lack are filled as in `columns_of`. Otherwise a missing key raises an error
            that calls the tables by this name.
        there: see `joined`.

    Raises:
        ValueError: a table lacks a key and `strict` is given, or nested columns differ in structure.
    """
    first = tables[0]
    if not any(tables):
        return {}
    if all(table.keys() == first.keys() for table in tables):
        return {key: joined([table[key] for table in tables], there) for key in first}
    keys = dict.fromkeys(key for table in tables for key in table)
    if strict is not None:
        for key in keys:
            for i, table in enumerate(tables):
                if key not in table:
                    raise ValueError(f"{strict} of batch {i} lack the key {key!r}, which another batch has")
    columns = {}
    for key in [key for key in keys if key[:1] != "_" or key[1:] not in keys]:  # but for the masks
        some = next(table[key] for table in tables if key in table)
        pairs = list(zip(tables, lengths, strict=True))
        columns[key] = joined([table[key] if key in table else absent(some, rows) for table, rows in pairs])
        if any(key not in table or f"_{key}" in table for table in tables):
            columns[f"_{key}"] = joined([table.get(f"_{key}", np.full(rows, key in table)) for table, rows in pairs])
    return columns


BY_EPISODE = frozenset({"episode_infos", "last_observations", "lengths"})  # columns of a table with one row an episode
INFOS = frozenset({"episode_infos", "env_infos", "agent_infos"})

Table = dict[str, Any]  # name -> part of a batch; without `lengths` all parts have one row a step


def join_tables(tables: Sequence[Table], there: Callable[..., Any] | None = None) -> Table:
    """Concatenate tables in one pass over their arrays. All must have the same keys in `agent_infos`.

    `there`: see `joined`. Raises what `joined` and `join_columns` raise.
    """
    rows = list(map(len, map(itemgetter("rewards"), tables)))
    episodes = list(map(len, map(itemgetter("lengths"), tables))) if "lengths" in tables[0] else rows
    columns = {}
    for name in tables[0]:
        values = list(map(itemgetter(name), tables))
        if name in INFOS:
            strict, sizes = name if name == "agent_infos" else None, episodes if name in BY_EPISODE else rows
            columns[name] = join_columns(values, sizes, strict=strict, there=there)
        else:
            columns[name] = joined(values, there)
    return columns


def cut_table(table: Table, first: int, last: int, begin: int, end: int) -> Table:
    """Return episodes first to last-1, whose steps are begin to end-1; arrays are views."""
    return {
        name: sliced(values, first, last) if name in BY_EPISODE else sliced(values, begin, end)
        for name, values in table.items()
    }


def _shape(element: Any) -> Any:
    if isinstance(element, dict | tuple):
        return trees.map(np.shape, element)
    return np.shape(element)


def check_values(field: str, values: Any, space: Any) -> None:
    """Raise ValueError unless the first row fits the space; a value that is only out of bounds gives a warning."""
    first = values[0] if isinstance(values, np.ndarray) else trees.row(values, 0)
    if contains(space, first):
        return
    noun = "observation" if "observation" in field else "action"
    if not soft_contains(space, first):
        raise ValueError(f"Each {field[:-1]} has shape {_shape(first)} but must match the {noun}_space {space}")
    if noun == "observation" and isinstance(first, np.ndarray):
        warnings.warn(f"Observation {first!r} is outside observation_space {space}", stacklevel=4)


class Sizes:
    """The check that all columns of a batch have as many rows as the first.

    Attributes:
        rows: rows of the first column; None before it.
        of: the name of the first column.
    """

    def __init__(self) -> None:
        self.rows: int | None = None
        self.of = ""

    def see(self, field: str, values: Any) -> None:
        """Raise ValueError if a column is not an array or a tree of arrays, or has another number of rows."""
        for leaf in (values,) if isinstance(values, np.ndarray) else trees.leaves(values):
            text = isinstance(values, dict | tuple) and isinstance(leaf, list)  # and other objects, in nested values
            if not text and not isinstance(leaf, np.ndarray):
                raise ValueError(f"{field} is not of type {np.ndarray!r}")
            size = len(leaf) if text else leaf.shape[0]
            if self.rows is None:
                self.rows, self.of = size, field
            elif size != self.rows:
                raise ValueError(
                    f"{field} has batch size {size}, but must have batch size {self.rows} to match {self.of}"
                )

    def see_infos(self, field: str, infos: dict[str, Any]) -> None:
        """Raise ValueError if an entry is not an array or a dict, or has another number of rows."""
        for key, values in infos.items():
            if not isinstance(values, np.ndarray | dict):
                raise ValueError(
                    f"Entry {key!r} in {field} is of type {type(values)} but must be {np.ndarray!r} or dict"
                )
            if isinstance(values, np.ndarray) and values.shape[0] != self.rows:
                raise ValueError(
                    f"Entry {key!r} in {field} has batch size {values.shape[0]} but must have batch size "
                    f"{self.rows} to match {self.of}"
                )


def check_steps(batch: Any, *, next_observations: bool) -> None:
    """Raise ValueError unless the columns of a batch of steps fit one another and its spaces.

    `next_observations`: True if next observations and episode infos are columns of the batch.
    """
    sizes, spec = Sizes(), batch.env_spec
    seen = {"observations": spec.observation_space, "next_observations": spec.observation_space}
    spaces = {**seen, "actions": spec.action_space}
    for field in ("rewards", "observations", "actions", "next_observations", "step_types"):
        if field == "next_observations" and not next_observations:
            continue
        values = getattr(batch, field)
        sizes.see(field, values)
        if field in ("rewards", "step_types") and values.shape != (sizes.rows,):
            raise ValueError(
                f"{field} has shape {values.shape} but must have batch size {sizes.rows} to match {sizes.of}"
            )
        if sizes.rows == 0:
            raise ValueError(f"{field} has batch size 0: a batch holds at least one step")
        if field in spaces:
            check_values(field, values, spaces[field])
        elif field == "step_types" and values.dtype != np.dtype(object):
            raise ValueError(f"step_types has dtype {values.dtype} but must have dtype StepType")
    sizes.see_infos("agent_infos", batch.agent_infos)
    if next_observations:
        sizes.see_infos("episode_infos", batch.episode_infos)
    sizes.see_infos("env_infos", batch.env_infos)


def check_episodes(env_spec: Any, episode_infos: dict[str, Any], last_observations: Any, lengths: Any) -> None:
    """Raise ValueError unless the columns with one row an episode fit the lengths and the space."""
    if len(lengths.shape) != 1:
        raise ValueError(f"lengths has shape {lengths.shape} but must be a tensor of shape (N,)")
    if lengths.dtype.kind not in "ui":
        raise ValueError(f"lengths has dtype {lengths.dtype}, but must have an integer dtype")
    episodes = len(lengths)
    if episodes == 0:
        raise ValueError("lengths has shape (0,): a batch holds at least one episode")
    for key, values in episode_infos.items():
        if not isinstance(values, np.ndarray):
            raise ValueError(
                f"Entry {key!r} in episode_infos is of type {type(values)!r} but must be of type {np.ndarray!r}"
            )
        if values.shape[0] != episodes:
            raise ValueError(
                f"Entry {key!r} in episode_infos has batch size {values.shape[0]}, but must have batch size "
                f"{episodes} to match the number of episodes"
            )
    for leaf in (last_observations,) if isinstance(last_observations, np.ndarray) else trees.leaves(last_observations):
        if not isinstance(leaf, np.ndarray | list) or (isinstance(leaf, list) and leaf is last_observations):
            raise ValueError(f"last_observations is not of type {np.ndarray!r}")
        if len(leaf) != episodes:
            raise ValueError(
                f"last_observations has batch size {len(leaf)} but must have batch size {episodes} to match the "
                "number of episodes"
            )
    first = last_observations[0] if isinstance(last_observations, np.ndarray) else trees.row(last_observations, 0)
    if not soft_contains(env_spec.observation_space, first):
        raise ValueError(
            f"last_observations must have the same number of entries as there are episodes ({episodes}) but got data "
            f"with shape {_shape(first)} entries"
        )
