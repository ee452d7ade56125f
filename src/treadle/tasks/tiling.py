"""Pictures of many tasks in one: an array to be looked at, or a window."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from treadle.errors import MissingExtra, UsageError


def tile(images: Sequence[Any]) -> np.ndarray:
    """One image of many, row by row from the top left; as many rows as columns, or one column fewer.

    Args:
        images: at least one, [height, width, channels]; [height, width] is grey, shown in three channels. Smaller ones
            than the largest, and places without an image, are padded with zeros (black).

    Returns:
        [rows * height, columns * width, channels] of the images' dtype.

    Raises:
        UsageError: there is no image, something that is none, or images of different numbers of channels.
    """
    if not images:
        raise UsageError("there is no task to be rendered: all are paused")
    pictures = [_with_channels(np.asarray(image), i) for i, image in enumerate(images)]
    channels = pictures[0].shape[2]
    for i, picture in enumerate(pictures):
        if picture.shape[2] != channels:
            raise UsageError(f"picture {i} has {picture.shape[2]} channels, picture 0 has {channels}")
    rows = math.ceil(math.sqrt(len(pictures)))
    columns = math.ceil(len(pictures) / rows)
    height, width = (max(picture.shape[axis] for picture in pictures) for axis in (0, 1))
    out = np.zeros((rows * height, columns * width, channels), np.result_type(*pictures))
    for i, picture in enumerate(pictures):
        y, x = i // columns * height, i % columns * width
        out[y : y + picture.shape[0], x : x + picture.shape[1]] = picture
    return out


def _with_channels(image: np.ndarray, i: int) -> np.ndarray:
    if image.ndim == 2:
        image = np.repeat(image[:, :, None], 3, axis=2)
    if image.ndim != 3 or image.dtype.kind not in "uifb":
        raise UsageError(f"picture {i} is {image.dtype}{list(image.shape)}, not [height, width, channels]")
    return image


def show(image: np.ndarray, title: str = "vectask") -> None:
    """Show an RGB image in a window and return at once. Raises MissingExtra without OpenCV."""
    try:
        import cv2
    except ImportError as error:
        raise MissingExtra("render('human') needs OpenCV: pip install opencv-python") from error
    cv2.imshow(title, image[:, :, ::-1])
    cv2.waitKey(1)


__all__ = ["show", "tile"]
