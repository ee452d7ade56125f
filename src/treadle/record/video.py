"""Moving pictures. The only file that imports imageio_ffmpeg.

An .mp4 needs ffmpeg. Without it there is the animated PNG, which every browser plays: a PNG with frames (the APNG
chunks of the third edition of the PNG specification), written here, with nothing but zlib.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from treadle.errors import UsageError, needed

TALL = 400  # small pictures are shown larger, by a whole number


def write_video(path: Path, frames: Sequence[np.ndarray], fps: float = 30.0) -> None:
    """Write pictures (uint8[height, width, 3], or [height, width]) as a video: an .mp4, or an animated .png.

    Raises:
        MissingExtra: an .mp4, and imageio-ffmpeg is not installed.
        UsageError: another suffix, or no pictures.
    """
    if not frames:
        raise UsageError("a video needs at least one picture")
    if path.suffix == ".mp4":
        _write_mp4(path, frames, fps)
    elif path.suffix == ".png":
        path.write_bytes(animated_png([_rgb(frame) for frame in frames], fps))
    else:
        raise UsageError(f"a video is an .mp4 or an (animated) .png, not {path.name!r}")


def mp4_writer(path: Path, size: tuple[int, int], fps: float, **options: Any) -> Any:
    """A generator whose `send` takes pictures (contiguous uint8[height, width, 3]) and whose `close` ends the file.

    `size` is (width, height); options are those of `imageio_ffmpeg.write_frames`. Raises MissingExtra.
    """
    with needed("an .mp4 needs imageio-ffmpeg", "video"):
        import imageio_ffmpeg
    writer = imageio_ffmpeg.write_frames(str(path), size, fps=fps, macro_block_size=1, **options)
    writer.send(None)
    return writer


def _write_mp4(path: Path, frames: Sequence[np.ndarray], fps: float) -> None:
    height, width = _even(_enlarged(_rgb(frames[0]))).shape[:2]
    writer = mp4_writer(path, (width, height), fps, quality=8)
    try:
        for frame in frames:
            writer.send(np.ascontiguousarray(_even(_enlarged(_rgb(frame)))))
    finally:
        writer.close()


def animated_png(frames: Sequence[np.ndarray], fps: float) -> bytes:
    """Pictures (uint8[height, width, 3], all of one size) as an animated PNG."""
    height, width = frames[0].shape[:2]
    parts = [b"\x89PNG\r\n\x1a\n", _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))]
    parts.append(_chunk(b"acTL", struct.pack(">II", len(frames), 0)))
    number = 0
    for index, frame in enumerate(frames):
        # sequence number, size, offset, delay (milliseconds / 1000), leave it there, replace what was there
        control = (number, width, height, 0, 0, round(1000 / fps), 1000, 0, 0)
        parts.append(_chunk(b"fcTL", struct.pack(">IIIIIHHBB", *control)))
        number += 1
        rows = np.zeros((height, 1 + 3 * width), np.uint8)  # each row begins with its filter: 0, none
        rows[:, 1:] = frame.reshape(height, -1)
        data = zlib.compress(rows.tobytes(), 6)
        if index == 0:
            parts.append(_chunk(b"IDAT", data))
        else:
            parts.append(_chunk(b"fdAT", struct.pack(">I", number) + data))
            number += 1
    return b"".join([*parts, _chunk(b"IEND", b"")])


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _rgb(frame: np.ndarray) -> np.ndarray:
    return np.repeat(frame[..., None], 3, axis=-1) if frame.ndim == 2 else frame[..., :3]


def _enlarged(frame: np.ndarray) -> np.ndarray:
    times = max(1, TALL // frame.shape[0])
    return frame.repeat(times, axis=0).repeat(times, axis=1)


def _even(frame: np.ndarray) -> np.ndarray:
    """Codecs want even sizes."""
    height, width = frame.shape[:2]
    return np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
