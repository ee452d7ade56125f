"""What the command writes where: no codes in pipes, few words about many workers, no more workers than episodes."""

from __future__ import annotations

import os
from pathlib import Path

from command import ZOO, summary, treadle

COLOURS = {**os.environ, "FORCE_COLOR": "1", "TTY_COMPATIBLE": "1"}


def test_no_codes_in_pipes(tmp_path: Path) -> None:
    warns = f"{ZOO}:Warns"
    for arguments in (
        ("collect", warns, "--episodes", 3, "--out", tmp_path / "o"),
        ("eval", warns, "--episodes", 3),
        ("plan", warns, "--budget", 40, "--horizon", 5, "--max-steps", 2),
        ("collect", "--help"),
        ("no-such-command",),
    ):
        done = treadle(*arguments, env=COLOURS)
        assert "\x1b" not in done.stdout + done.stderr, arguments
        if warns in arguments:
            assert "WARN: something is odd" in done.stderr
