"""Compressing and hashing an episode's bytes, by libraries of the `data` extra.

Encoding has to keep up with stepping: of a raw Pong frame (100,800 bytes, 200 us of stepping) zlib's level 1 takes
135 us and blake2b another 100; ISA-L makes smaller deflate streams in 21 us, and XXH3 hashes it in about 5 (measured on
one core). Any reader of gzip or HDF5 reads the streams. Which bytes a stream has may differ between versions of the
library, and between processors; a digest is over the arrays before they are compressed, so it does not.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from treadle.errors import MissingExtra

LEVEL = 1


@cache
def deflater() -> Callable[[Any], bytes]:
    """`compress(buffer) -> bytes`: a zlib stream of level 1. Raises MissingExtra."""
    try:
        from isal import isal_zlib
    except ImportError as error:
        raise MissingExtra(f"datasets are compressed by isal ({error}): pip install 'treadle[data]'") from error
    compress = isal_zlib.compress
    return lambda data: compress(data, LEVEL)


@cache
def hasher() -> Callable[[bytes], Any]:
    """`new(initial) -> state` with `update` and `digest`: XXH3 of 128 bits. Raises MissingExtra.

    It tells episodes apart that differ by chance or by a fault, and is no protection against somebody who wants two
    to have the same digest.
    """
    try:
        import xxhash
    except ImportError as error:
        raise MissingExtra(f"datasets are hashed by xxhash ({error}): pip install 'treadle[data]'") from error
    new: Callable[[bytes], Any] = xxhash.xxh3_128
    return new
