"""Directories as runs leave them, made by hand."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from treadle.record.journal import FILE_HEAD, EpisodeNote, record_of


def directory_of(path: Path, lines: Sequence[Mapping[str, Any]], **more: Any) -> Path:
    """One of an evaluation: `.episodes`, `run.json`, `summary.json` (`summary`), and each episode's rewards.

    More: `arguments` of `run.json`; `rewards`: by index. Without a summary what was left out is in `.parts`.
    """
    path.mkdir(parents=True, exist_ok=True)
    played = sorted((each for each in lines if "cause" not in each), key=lambda each: each["index"])
    with (path / ".episodes").open("wb") as file:
        file.write(FILE_HEAD["kept"])
        for each in played:
            file.writelines(record_of(_note(each), b"", ()))
    arguments = {
        "env": "reach.py:Reach",
        "policy": "weak",
        "episodes": len(lines),
        "seed": 0,
        **more.get("arguments", {}),
    }
    (path / "run.json").write_text(json.dumps({"arguments": arguments}), encoding="utf-8")
    lost = {"skipped": [each for each in lines if "cause" in each]}
    if (summary := more.get("summary")) is not None:
        (path / "summary.json").write_text(json.dumps({**lost, **summary}), encoding="utf-8")
    elif lost["skipped"]:
        (path / ".parts").mkdir()
        (path / ".parts" / "skipped.json").write_text(json.dumps(lost), encoding="utf-8")
    if rewards := more.get("rewards"):
        with h5py.File(path / "steps.hdf5", "w") as file:
            for number, (index, row) in enumerate(sorted(rewards.items())):
                group = file.create_group(f"episode_{number}")
                group["rewards"] = np.asarray(row, np.float64)
                group.attrs["episode_index"] = index
    return path


def _note(each: Mapping[str, Any]) -> EpisodeNote:
    total, ended = each["return"], each["end"] == "terminated"
    return EpisodeNote(
        each["index"], each["seed"], each["length"], math.nan if total is None else total, ended, not ended, 0,
        "0" * 32, success=each["success"], about={"seconds": each["seconds"]},
    )  # fmt: skip


def line(index: int, total: float | None = 1.0, **more: Any) -> dict[str, Any]:
    """What is known of an episode that was played."""
    return {
        "index": index, "seed": 2**62 + index, "return": total, "length": 5, "end": "terminated", "success": None,
        "seconds": 0.25, **more,
    }  # fmt: skip


def failing(index: int, kind: str, message: str = "", place: str = "") -> dict[str, Any]:
    """That of an episode that was left out."""
    file, _, number = place.rpartition(":")
    return {
        "index": index, "seed": 2**62 + index, "cause": f"{kind}: {message} {place}", "kind": kind, "message": message,
        "file": file, "line": int(number) if number else None,
    }  # fmt: skip


def evaluation(path: Path, count: int, seed: int = 0, **more: Any) -> Path:
    """So many episodes, of which some succeed and every 19th could not be played, with the rewards of all others."""
    rng = np.random.default_rng(seed)
    rewards = {i: rng.normal(0.1, 1.0, int(rng.integers(5, 80))) for i in range(count) if i % 19 != 18}
    lines = []
    for i in range(count):
        if i not in rewards:
            lines.append(failing(i, "KeyError", "'corner'", "work/reach.py:31"))
            continue
        row = rewards[i]
        cut = bool(rng.random() < 0.3)
        lines.append(
            line(
                i, float(row.sum()), length=len(row), end="truncated" if cut else "terminated",
                success=bool(rng.random() < 0.4), seconds=round(float(rng.random()), 4),
            )
        )  # fmt: skip
    return directory_of(path, lines, rewards=rewards, summary={"env_id": "Reach-v0", "policy": "weak"}, **more)
