"""Moving pictures, written as they come. The only file that imports imageio_ffmpeg.

An .mp4 needs ffmpeg. The animated PNG does not, and every browser plays it. It is a PNG with frames, the APNG chunks of
the third edition of the PNG specification, written here with zlib alone.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from treadle.errors import UsageError, needed

SIGNATURE = b"\x89PNG\r\n\x1a\n"
COUNT_AT = len(SIGNATURE) + 25  # after the chunk IHDR

Taker = Generator[None, np.ndarray, None]  # `send` takes a picture, `close` ends the file


@contextmanager
def video(path: Path, fps: float = 30.0) -> Iterator[Callable[[np.ndarray], None]]:
    """A block that writes a video: an .mp4, or an animated .png. It yields a function that takes a picture:
    uint8[height, width, 3], all of one size.

    When the block has ended the file is there, whole. Where it raises, or got no picture, an older file stays.

    Raises:
        UsageError: another suffix, or pictures of several sizes.
        MissingExtra: with the first picture of an .mp4, where imageio-ffmpeg is not installed.
    """
    kinds = {".mp4": _mp4, ".png": _animated_png}
    if path.suffix not in kinds:
        raise UsageError(f"a video is an .mp4 or an (animated) .png, not {path.name!r}")
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".part-{path.name}")  # ffmpeg goes by the suffix
    taker, sizes = kinds[path.suffix](part, fps), set()
    next(taker)

    def take(picture: np.ndarray) -> None:
        sizes.add(picture.shape[:2])
        if len(sizes) > 1:
            raise UsageError(f"the pictures of a video have one size, and these have {sizes}")
        taker.send(picture)

    try:
        yield take
        taker.close()
        if sizes:
            os.replace(part, path)
    finally:
        taker.close()
        part.unlink(missing_ok=True)


def mp4_writer(path: Path, size: tuple[int, int], fps: float, **options: Any) -> Any:
    """A generator whose `send` takes pictures (contiguous uint8[height, width, 3]) and whose `close` ends the file.

    `size` is (width, height); options are those of `imageio_ffmpeg.write_frames`. Raises MissingExtra.
    """
    with needed("an .mp4 needs imageio-ffmpeg", "video"):
        import imageio_ffmpeg
    writer = imageio_ffmpeg.write_frames(str(path), size, fps=fps, macro_block_size=1, **options)
    writer.send(None)
    return writer


def _mp4(path: Path, fps: float) -> Taker:
    picture = _even((yield))
    writer = mp4_writer(path, (picture.shape[1], picture.shape[0]), fps, quality=8)
    try:
        while True:
            writer.send(np.ascontiguousarray(picture))
            picture = _even((yield))
    finally:
        writer.close()


def _animated_png(path: Path, fps: float) -> Taker:
    picture = yield
    height, width = picture.shape[:2]
    count = number = 0
    with open(path, "wb") as file:
        head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
        file.write(SIGNATURE + _chunk(b"IHDR", head) + _chunk(b"acTL", bytes(8)))
        try:
            while True:
                # sequence number, size, offset, delay (milliseconds / 1000), leave it there, replace what was there
                control = (number, width, height, 0, 0, round(1000 / fps), 1000, 0, 0)
                rows = np.zeros((height, 1 + 3 * width), np.uint8)  # each row begins with its filter: 0, none
                rows[:, 1:] = picture.reshape(height, -1)
                data = zlib.compress(rows.tobytes(), 6)
                shown = (b"fdAT", struct.pack(">I", number + 1) + data) if count else (b"IDAT", data)
                file.write(_chunk(b"fcTL", struct.pack(">IIIIIHHBB", *control)) + _chunk(*shown))
                number, count = 2 * count + 1, count + 1
                picture = yield
        finally:
            file.write(_chunk(b"IEND", b""))
            file.seek(COUNT_AT)
            file.write(_chunk(b"acTL", struct.pack(">II", count, 0)))


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _even(frame: np.ndarray) -> np.ndarray:
    """Codecs want even sizes."""
    height, width = frame.shape[:2]
    return np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
