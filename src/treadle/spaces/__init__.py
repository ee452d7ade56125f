"""Spaces: the layout of a Gymnasium space's values in memory, and exact checks of values."""

from treadle.spaces.layout import Layout
from treadle.spaces.leaves import BatchReader, BatchWriter, Leaf, Mailed, Mismatch, Outline, RowWriter

__all__ = ["BatchReader", "BatchWriter", "Layout", "Leaf", "Mailed", "Mismatch", "Outline", "RowWriter"]
