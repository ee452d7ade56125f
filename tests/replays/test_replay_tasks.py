"""Slots of vectors of tasks that failed: replayed from their sampler's first task."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import treadle

sys.path.insert(0, str(Path(__file__).parent.parent / "tasks"))

from small_tasks import RAISE, samplers, vector


@pytest.mark.parametrize("how", ["forkserver-2", "single"])
def test_a_slot_of_tasks_is_replayed_over_all_its_tasks(how: str, tmp_path: Path) -> None:
    made = vector(how, samplers(3))
    try:
        for step in range(25):
            made.step([step % 2, [1.0, 2.0], 1])
        with pytest.raises(KeyError, match="no luck") as failed:
            made.step([0, 0, RAISE])
    finally:
        made.close()
    error: Any = failed.value
    result = treadle.replay(error)
    assert type(result.error) is KeyError
    assert result.as_recorded, str(result)
    assert result.episode > 1
    path = error.repro.save(tmp_path / "slot")
    assert treadle.replay(path, trust=True).as_recorded
