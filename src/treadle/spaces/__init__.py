"""Spaces: what the values of a Gymnasium space look like in memory, and exact checks of them."""

from treadle.spaces.layout import Layout
from treadle.spaces.leaves import BatchReader, BatchWriter, Leaf, Mailed, Mismatch, Outline, RowWriter

__all__ = ["BatchReader", "BatchWriter", "Layout", "Leaf", "Mailed", "Mismatch", "Outline", "RowWriter"]
