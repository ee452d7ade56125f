"""Treadle steps many environments at once."""

__version__ = "0.1.0"
