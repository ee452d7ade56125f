"""Videos."""

import struct
import zlib
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from conftest import require
from treadle.errors import MissingExtra, UsageError
from treadle.record.video import video


def write_video(path: Path, frames: list[np.ndarray], fps: float = 30.0) -> None:
    with video(path, fps) as take:
        for frame in frames:
            take(frame)


FRAMES = [np.full((3, 5, 3), 40 * i, np.uint8) for i in range(4)]


def chunks(data: bytes) -> list[tuple[bytes, bytes]]:
    at, found = 8, []
    while at < len(data):
        (size,) = struct.unpack_from(">I", data, at)
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + size]
        assert struct.unpack_from(">I", data, at + 8 + size)[0] == zlib.crc32(kind + body)
        found.append((kind, body))
        at += 12 + size
    return found


def test_an_animated_png_has_all_frames(tmp_path: Path) -> None:
    write_video(tmp_path / "a.png", FRAMES, fps=20)
    found = chunks((tmp_path / "a.png").read_bytes())
    assert [kind for kind, _ in found][:4] == [b"IHDR", b"acTL", b"fcTL", b"IDAT"]
    assert struct.unpack(">II", dict(found)[b"acTL"]) == (4, 0)
    numbers = [struct.unpack_from(">I", body)[0] for kind, body in found if kind in (b"fcTL", b"fdAT")]
    assert numbers == list(range(7))
    pixels = [zlib.decompress(body if kind == b"IDAT" else body[4:]) for kind, body in found if kind[1:] == b"DAT"
              or kind == b"fdAT"]  # fmt: skip
    assert [data[1] for data in pixels] == [0, 40, 80, 120]
    image = require("PIL.Image").open(tmp_path / "a.png")
    assert (image.n_frames, image.size) == (4, (5, 3))
    image.close()


def test_an_mp4_where_ffmpeg_is(tmp_path: Path) -> None:
    if find_spec("imageio_ffmpeg"):
        write_video(tmp_path / "a.mp4", FRAMES)
        assert (tmp_path / "a.mp4").read_bytes()[4:8] == b"ftyp"
    else:
        with pytest.raises(MissingExtra, match="treadle\\[video\\]"):
            write_video(tmp_path / "a.mp4", FRAMES)


def test_what_is_no_video(tmp_path: Path) -> None:
    write_video(tmp_path / "a.png", [])
    with pytest.raises(UsageError, match=r"not 'a\.gif'"):
        write_video(tmp_path / "a.gif", FRAMES)
    with pytest.raises(UsageError, match="have one size"):
        write_video(tmp_path / "a.png", [*FRAMES, FRAMES[0][:2]])
    assert list(tmp_path.iterdir()) == [], "neither a file nor a part of one"
