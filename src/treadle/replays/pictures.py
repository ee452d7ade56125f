"""The film of one replay: what the environment renders after its reset and after each step, and a line under it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from treadle.errors import TreadleError, UsageError, needed
from treadle.program.offscreen import ADVICE, GL, NONE
from treadle.record.video import video
from treadle.replays.playing import Left

WIDE, MOST = 320, 1280  # pixels: narrower pictures are enlarged by a whole number, to no more than that
BAR, LETTERS = 28, 13  # height of the line under them, and of its letters
COLUMNS = (0.0, 0.27, 0.55, 0.84)  # where step, reward, return and a difference stand in it
DARK, RED, WHITE = (24, 24, 27), (185, 28, 28), (250, 250, 250)
EDGE = 3  # pixels, in red, of a picture that may not be of the recorded episode


@contextmanager
def film_of(env: Any, path: Path, plain: bool) -> Iterator[Callable[[int, float | None, float, bool], None]]:
    """Run a block that makes a film of an environment; see `treadle.record.video.video`.

    It yields a function that adds a picture. Its arguments are the step, the step's reward (None for the reset), the
    return so far, and a bool. The bool is True if the episode differs from the recorded one by now.

    Raises:
        UsageError: the environment gives no pictures. The text names its render modes.
        MissingExtra: a package for the .mp4, or for the line under a picture, is not installed.
    """
    fps = (getattr(env, "metadata", None) or {}).get("render_fps")
    refused: list[TreadleError] = []
    with video(path, float(fps) if isinstance(fps, int | float) and fps > 0 else 30.0) as take:

        def add(step: int, reward: float | None, total: float, differs: bool) -> None:
            try:
                picture = _enlarged(_rendered(env))
                if differs:
                    picture[:EDGE] = picture[-EDGE:] = picture[:, :EDGE] = picture[:, -EDGE:] = RED
                if not plain:
                    words = f"step {step:,}", "" if reward is None else f"reward {reward:.4g}", f"return {total:.6g}"
                    picture = np.concatenate([picture, _line(picture.shape[1], words, differs)])
                take(picture)
            except TreadleError as error:  # it is none of the environment's, which a replay would tell
                refused.append(error)
                raise Left from error

        yield add
        if refused:
            raise refused[0]


def modes_of(env: Any) -> str:
    """Return the render modes of an environment, as a sentence."""
    modes = (getattr(env, "metadata", None) or {}).get("render_modes") or ()
    name = type(getattr(env, "unwrapped", env)).__name__
    return f"{name} has the modes {', '.join(map(repr, modes))}" if modes else f"{name} has no render modes"


def _rendered(env: Any) -> np.ndarray:
    """Return the environment's picture, uint8[height, width, 3]. Raises UsageError."""
    none = os.environ.get(GL) == NONE
    if none and "mujoco" in str(type(getattr(env, "unwrapped", env)).__mro__):  # else its viewer complains besides
        raise UsageError(ADVICE)
    try:
        picture = np.asarray(env.render())
    except Exception as error:
        if none and "mujoco" in sys.modules:
            raise UsageError(ADVICE) from error
        text = " ".join(f"{type(error).__name__}: {error}".split())
        raise UsageError(f"no film can be made, as render() raised {text}; {modes_of(env)}") from error
    if picture.dtype != np.uint8 or picture.ndim not in (2, 3):
        raise UsageError(f"no film can be made, as render() gives no picture (rgb_array); {modes_of(env)}")
    return np.repeat(picture[..., None], 3, axis=-1) if picture.ndim == 2 else picture[..., :3]


def _enlarged(picture: np.ndarray) -> np.ndarray:
    """Return a copy of a picture; a narrow one is enlarged by a whole number."""
    height, width = picture.shape[:2]
    times = max(1, min(-(-WIDE // width), MOST // max(height, width)))
    return picture.repeat(times, axis=0).repeat(times, axis=1)


def _line(width: int, words: tuple[str, ...], differs: bool) -> np.ndarray:
    """Return the line under a picture, uint8[BAR, width, 3]."""
    images, drawing, font = _pillow()
    bar = images.new("RGB", (width, BAR), RED if differs else DARK)
    for text, at in zip((*words, "differs" if differs else ""), COLUMNS, strict=True):
        drawing.Draw(bar).text((8 + at * width, (BAR - LETTERS) // 2 - 1), text, fill=WHITE, font=font)
    return np.asarray(bar)


@cache
def _pillow() -> tuple[Any, Any, Any]:
    """Return Pillow's module of images, its module that draws, and a font."""
    with needed("the line under a film, which plain=True (--plain) leaves out, needs Pillow", "data"):
        from PIL import Image, ImageDraw, ImageFont
    return Image, ImageDraw, ImageFont.load_default(LETTERS)
