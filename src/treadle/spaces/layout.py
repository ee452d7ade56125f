"""The layout of a space: its outline, with quick ways to write single values and batches of them to arrays, and to
read them back. The closures are made in `rows` and `batch`; what they promise stands here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces as gs

from treadle.spaces import batch
from treadle.spaces import rows as rows_of
from treadle.spaces.leaves import BatchReader, BatchWriter, Outline, RowWriter


class Layout(Outline):
    """How the values of one space are taken apart, checked, stored in rows and put together again."""

    def row_writer(self, rows: Sequence[np.ndarray | None]) -> RowWriter:
        """A function that checks one value and writes it to ``rows``, bound to them for good.

        Args:
            rows: for each fixed leaf the array of its shape (for a Discrete leaf one of shape (), which is
                ``array[i, ...]`` and not ``array[i]``) that the value goes to; None for a loose leaf.

        Returns:
            ``write(value)``, which returns None, or the list of the loose leaves' values (in the order of ``loose``)
            when the layout has any. It raises Mismatch and may then leave the rows half written.

        Raises:
            ValueError: ``rows`` do not fit the leaves.
        """
        return rows_of.row_writer(self, rows)

    def read(self, rows: Sequence[Any], loose: Sequence[Any] = ()) -> Any:
        """One value, as a copy that nothing else refers to.

        Args:
            rows: one array per leaf, as for `row_writer`.
            loose: the values of the loose leaves, in the order of ``loose``; they are not copied.

        Returns:
            The tree; arrays for fixed leaves, a Python int for a Discrete one.
        """
        rest = iter(loose)
        values = [
            (row.item() if isinstance(leaf.space, gs.Discrete) else row.copy()) if leaf.fixed else next(rest)
            for leaf, row in zip(self.leaves, rows)
        ]
        return self.unflatten(values)

    def batch_writer(self, arrays: Sequence[np.ndarray | None], n: int, *, cast: bool = False) -> BatchWriter:
        """A function that checks a batch of n actions and writes it to ``arrays``, bound to them for good.

        It takes what Gymnasium's vector environments take. For a leaf: an array [n, *shape], or a list or tuple of n
        values. For a Dict: a dict of batches, or a list or tuple of n dicts. For a Tuple: a *tuple* of batches, or a
        *list* of n tuples (Gymnasium reads a tuple as batches, whatever its length). For a loose leaf: a list or tuple
        of n values.

        Checked before anything is written: the number of actions, shapes, dtypes (integers go to an integer leaf when
        they fit, numbers of any kind to a float leaf), the range of Discrete, MultiDiscrete and MultiBinary, NaN. The
        bounds of a Box are not: policies overshoot, and environments clip.

        What is written is of the leaf's dtype. Where that is not what was given (float64 for a float32 Box, lists), the
        values are to go by message as well, so that environments get them as Gymnasium's vectors would hand them over:
        unrounded, a list as a list. Only of a Discrete leaf every action is an integer.

        Args:
            arrays: for each fixed leaf an array [n, *shape] of its dtype; None for a loose one.
            n: how many actions make a batch, at least 1.
            cast: what is written is what counts: fixed leaves never go by message, and a number that is too large for
                their dtype is a Mismatch.

        Returns:
            ``write(actions)``, which returns what is to go by message: None, or a batch of n values by the index of its
            leaf: of every loose leaf, and copies of those of fixed leaves that are not of their dtype as they were
            given. It raises Mismatch, whose ``row`` is the first bad action.

        Raises:
            ValueError: ``arrays`` do not fit the leaves, or n is below 1.
        """
        return batch.batch_writer(self, arrays, n, cast=cast)

    def batch_reader(self, arrays: Sequence[np.ndarray | None], lo: int, hi: int) -> BatchReader:
        """A function that reads the actions lo to hi - 1 of a batch, bound to the arrays for good.

        Args:
            arrays: as for `batch_writer`.
            lo: the first action's row.
            hi: the row after the last one's.

        Returns:
            ``read(mailed=None)``: a list of hi - lo actions, each the caller's to keep. A Discrete leaf is a Python
            int (or NumPy's: ``numpy_integers``), another fixed one a row of a private copy, unless ``mailed`` has its
            hi - lo values, as it must of every loose leaf: by the index of the leaf.

        Raises:
            ValueError: ``arrays`` do not fit the leaves, or lo and hi are not rows of them.
        """
        return batch.batch_reader(self, arrays, lo, hi)
