"""Videos and pictures of searches."""

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest

from conftest import require
from treadle.cli.search_picture import search_picture
from treadle.errors import MissingExtra, UsageError
from treadle.plan.search import Branch, Decision
from treadle.record.video import can_write_mp4, write_video

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
    if can_write_mp4():
        write_video(tmp_path / "a.mp4", [frame[..., 0] for frame in FRAMES])
        assert (tmp_path / "a.mp4").read_bytes()[4:8] == b"ftyp"
    else:
        with pytest.raises(MissingExtra, match="treadle\\[video\\]"):
            write_video(tmp_path / "a.mp4", FRAMES)


def test_what_is_no_video(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="at least one"):
        write_video(tmp_path / "a.png", [])
    with pytest.raises(UsageError, match=r"not 'a\.gif'"):
        write_video(tmp_path / "a.gif", FRAMES)


def test_a_picture_shows_the_way_to_the_best() -> None:
    branches = [Branch(-1, 0, 5, 1.0), Branch(-1, 1, 2, 0.5), Branch(0, 1, 3, 2.5), Branch(2, 0, 1, 2.0)]
    text = search_picture(Decision(0, 2.5, 40, branches, [0, 2]), "mcts & co")
    assert text.count("<line") == 4 + 2
    assert text.count('stroke="black"') == 2
    assert "mcts &amp; co: action 0, value 2.50, 4 branches, depth 3" in text
    assert search_picture(Decision(1)).count("<line") == 0


def test_a_huge_tree_is_cut() -> None:
    branches = [Branch(-1 if i < 10 else i // 2, 0, 10_000 - i, float(i)) for i in range(9000)]
    assert "(5,000 not drawn)" in search_picture(Decision(0, 0.0, 0, branches))
