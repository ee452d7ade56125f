"""A worker's share of the machine: there are as many workers as cores."""

from __future__ import annotations

import sys
from typing import Any


def take_one() -> None:
    """Let torch, if it was imported here, compute on one core. For processes of our own: it holds for all of one."""
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


__all__ = ["take_one"]
