"""Partial batches that go on after a worker's death: what was sent comes back, cut and marked as in lockstep."""

import contextlib
import os
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import treadle
from injector import Pressed
from pool.kit import limit_next
from pool.mortal import LENGTH, LIFE, SEED, Mortal, T, doom
from treadle.errors import BrokenPool, UsageError, WorkerDied, WorkerTimeout
from treadle.lockstep.slots import Slot
from treadle.seeding import restart_seed
from treadle.vector.core import NothingPending

MODES = ["NextStep", "SameStep", "Disabled"]
N = 3


def mortals(folder: Path, mode: str = "NextStep", on_failure: str = "restart", **options: Any) -> treadle.VectorEnv:
    """Three slots, a worker each."""
    envs = [lambda i=i: Mortal(i, str(folder)) for i in range(N)]
    return treadle.VectorEnv(envs, **{"workers": N, "autoreset_mode": mode, "on_failure": on_failure, **options})


class Rows:
    """What `recv` hands out, slot by slot."""

    def __init__(self, vector: treadle.VectorEnv) -> None:
        self.vector = vector
        self.of: dict[int, list[dict[str, Any]]] = {slot: [] for slot in range(vector.num_envs)}

    def take(self, at_least: int) -> None:
        """Until so many rows have come."""
        while at_least > 0:
            observations, rewards, terminated, truncated, infos = self.vector.recv(min=1)
            for row, slot in enumerate(infos["env_id"].tolist()):
                told = {
                    key: column if isinstance(column, dict) else column[row]
                    for key, column in infos.items()
                    if f"_{key}" in infos and infos[f"_{key}"][row] and key != "options"
                }
                self.of[slot].append(
                    {"seen": observations[row].tolist(), "reward": rewards[row], "valid": infos["valid"][row],
                     "ends": (bool(terminated[row]), bool(truncated[row])), **told}
                )  # fmt: skip
                at_least -= 1

    def last(self, slot: int) -> dict[str, Any]:
        return self.of[slot][-1]


def begun(vector: treadle.VectorEnv, steps: int = 2) -> Rows:
    """After a reset with seed 3 and some steps of all."""
    rows = Rows(vector)
    vector.async_reset(seed=3)
    rows.take(N)
    for _ in range(steps):
        vector.send(np.zeros(N, int))
        rows.take(N)
    return rows


CUT = {"reward": 0.0, "valid": False, "ends": (False, True)}


def test_next_step(tmp_path: Path) -> None:
    with closing(mortals(tmp_path)) as vector:
        rows = begun(vector)
        doom(tmp_path, 1, "step")
        vector.send([0], [1])
        rows.take(1)
        assert rows.last(1) == {"seen": [4, 0, 2, 0, 0], **CUT, "aborted": True}
        vector.send([0], [1])
        rows.take(1)
        told = rows.last(1)
        assert told == {"seen": [restart_seed(3, 1, 1), 0, 0, 0, 1], "reward": 0.0, "valid": False,
                        "ends": (False, False), "restarted": True}  # fmt: skip
        vector.send([2], [1])
        rows.take(1)
        assert rows.last(1)["seen"][T] == 1
        assert rows.last(1)["valid"]
        assert vector.stats().restarts.tolist() == [0, 1, 0]


def test_same_step(tmp_path: Path) -> None:
    with closing(mortals(tmp_path, "SameStep")) as vector:
        rows = begun(vector)
        doom(tmp_path, 1, "step", "kill")
        vector.send([0], [1])
        rows.take(1)
        told = rows.last(1)
        assert told["seen"] == [restart_seed(3, 1, 1), 0, 0, 0, 1]
        assert {key: told[key] for key in CUT} == CUT
        assert told["restarted"]
        assert "aborted" not in told
        assert told["final_obs"].tolist() == [4, 0, 2, 0, 0]
        assert told["final_info"]["aborted"].tolist() == [True]


def test_disabled(tmp_path: Path) -> None:
    with closing(mortals(tmp_path, "Disabled")) as vector:
        rows = begun(vector)
        doom(tmp_path, 1, "step")
        vector.send([0], [1])
        rows.take(1)
        assert rows.last(1) == {"seen": [4, 0, 2, 0, 0], **CUT, "aborted": True}
        with pytest.raises(UsageError, match="slot 1 is in need of a reset"):
            vector.send([0], [1])
        mask = np.array([False, True, False])
        vector.async_reset(options={"reset_mask": mask})
        rows.take(1)
        assert rows.last(1)["seen"] == [restart_seed(3, 1, 1), 0, 0, 0, 1]
        vector.send(np.zeros(N, int))
        rows.take(N)
        assert [rows.last(slot)["seen"][T] for slot in range(N)] == [3, 1, 3]


@pytest.mark.parametrize("mode", MODES)
def test_the_row_of_a_dropped_slot_is_its_last(tmp_path: Path, mode: str) -> None:
    with closing(mortals(tmp_path, mode, "drop")) as vector:
        rows = begun(vector)
        doom(tmp_path, 1, "step")
        vector.send(np.zeros(N, int))
        rows.take(N)
        told = rows.last(1)
        final = told.pop("final_info", None)
        if mode == "SameStep":
            assert (final["aborted"].any(), final["dropped"].any()) == (True, True)
            del told["final_obs"]
        assert told == {"seen": [4, 0, 2, 0, 0], **CUT, "aborted": True, "dropped": True}
        vector.send(np.zeros(N, int))
        rows.take(2)
        assert not vector._partial.open
        assert [len(rows.of[slot]) for slot in range(N)] == [5, 4, 5]
        vector.async_reset(options={"reset_mask": np.array([False, True, False])})
        assert not vector._partial.open
        vector.async_reset(seed=0)
        rows.take(2)
        assert [len(rows.of[slot]) for slot in range(N)] == [6, 4, 6]


@pytest.mark.parametrize("on_failure", ["restart", "drop"])
def test_a_slot_that_was_not_asked_is_told_of_by_its_next_row(tmp_path: Path, on_failure: str) -> None:
    with closing(mortals(tmp_path, on_failure=on_failure)) as vector:
        rows = begun(vector)
        vector.call_at(1, "fate", "nothing")
        victim = vector._pool.by_slot[1]
        os.kill(victim.pid or 0, 9)
        while victim.state.value == "idle" and not victim.restarts:  # all of it may happen within one `recv`
            vector.send([0], [0])  # whoever waits hears of it
            rows.take(1)
        vector.send([0], [1])
        rows.take(1)
        assert rows.last(1)["aborted"]
        assert {key: rows.last(1)[key] for key in CUT} == CUT
        assert rows.last(1)["seen"] == [4, 0, 2, 0, 0]
        assert rows.last(1).get("dropped", False) is np.True_ if on_failure == "drop" else True


def test_what_a_reset_asked_for_is_asked_again(tmp_path: Path) -> None:
    with closing(mortals(tmp_path)) as vector:
        doom(tmp_path, 1, "reset")
        rows = begun(vector, 1)
        assert [row["seen"][SEED] for row in rows.of[1]] == [4, 4]
        assert [row["seen"][LIFE] for row in rows.of[1]] == [1, 1]
        assert [row["valid"] for row in rows.of[1]] == [False, True]


def test_an_episode_that_was_to_begin_is_begun_in_a_fresh_environment(tmp_path: Path) -> None:
    with closing(mortals(tmp_path)) as vector:
        rows = begun(vector, LENGTH)
        assert rows.last(1)["ends"] == (True, False)
        doom(tmp_path, 1, "reset")
        vector.send([0], [1])
        rows.take(1)
        assert rows.last(1) == {"seen": [restart_seed(3, 1, 1), 0, 0, 0, 1], "reward": 0.0, "valid": False,
                                "ends": (False, False), "restarted": True}  # fmt: skip


def test_a_slot_that_hangs_is_cut_by_its_deadline(tmp_path: Path) -> None:
    with closing(mortals(tmp_path, step_timeout=60)) as vector:
        rows = begun(vector)
        doom(tmp_path, 1, "step", "hang")
        limit_next(vector._pool.by_slot[1], 0.5)
        vector.send(np.zeros(N, int))
        rows.take(N)
        assert rows.last(1)["aborted"]
        assert all(rows.last(slot)["valid"] for slot in (0, 2))


def test_when_restarts_are_used_up_the_error_comes_once_and_what_has_arrived_first(tmp_path: Path) -> None:
    with closing(mortals(tmp_path, worker_options=treadle.WorkerOptions(max_restarts=0))) as vector:
        rows = begun(vector)
        doom(tmp_path, 1, "step")
        vector.send(np.zeros(N, int))
        with pytest.raises(WorkerDied, match="slot 1") as caught:
            rows.take(N)
        assert any("max_restarts=0" in note for note in caught.value.__notes__)
        rows.take(4 - len(rows.of[0]) + 4 - len(rows.of[2]))
        with pytest.raises(BrokenPool, match="slot 1"):
            vector.send([0], [0])
        with pytest.raises(BrokenPool, match="slot 1"):
            vector.recv()


def test_a_hang_under_raise_is_a_timeout_once_and_a_reset_brings_the_slot_back(tmp_path: Path) -> None:
    with closing(mortals(tmp_path, on_failure="raise", step_timeout=60)) as vector:
        rows = begun(vector)
        doom(tmp_path, 1, "step", "wait")
        limit_next(vector._pool.by_slot[1], 0.5)
        vector.send(np.zeros(N, int))
        with pytest.raises(WorkerTimeout, match="slot 1"):
            rows.take(N)
        rows.take(4 - len(rows.of[0]) + 4 - len(rows.of[2]))
        (tmp_path / "1.go").touch()
        vector.async_reset(options={"reset_mask": np.array([False, True, False])})
        rows.take(1)
        assert rows.last(1)["seen"][T] == 0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("options", [{"workers": 3}, {"workers": 1}, {"workers": 1, "inline": 1}])
def test_as_many_rows_come_as_were_asked_for_whoever_dies(tmp_path: Path, mode: str, options: dict[str, int]) -> None:
    rng = np.random.default_rng(0)
    with closing(mortals(tmp_path, mode, worker_options=treadle.WorkerOptions(max_restarts=None), **options)) as vector:
        rows, asked = begun(vector), np.full(N, 3)
        for turn in range(30):
            if turn % 10 == 5:
                doom(tmp_path, int(rng.integers(1, N)), ["step", "reset"][turn // 10 % 2])
            over = [slot for slot in range(N) if mode == "Disabled" and any(rows.last(slot)["ends"])]
            if over:
                vector.async_reset(options={"reset_mask": np.isin(np.arange(N), over)})
                asked[over] += 1
                rows.take(len(over))
            chosen = rng.permutation(N)[: rng.integers(1, N + 1)]
            chosen = [slot for slot in chosen.tolist() if vector._lockstep.life.state(slot) is not Slot.WAITS]
            if chosen:
                vector.send(np.zeros(len(chosen), int), chosen)
                asked[chosen] += 1
                rows.take(len(chosen))
        assert [len(rows.of[slot]) for slot in range(N)] == asked.tolist()
        for slot in range(N):  # within a life nothing is missing and nothing comes twice
            seen: dict[int, list[Any]] = {}
            for row in rows.of[slot]:
                if row["valid"]:
                    seen.setdefault(row["seen"][LIFE], []).append((row["seen"][1], row["seen"][T]))
            for steps in seen.values():
                assert steps == sorted(set(steps))


def test_what_was_done_is_counted(tmp_path: Path) -> None:
    with closing(mortals(tmp_path)) as vector:
        rows = begun(vector, LENGTH + 2)
        vector.send([0], [2])
        rows.take(1)
        assert vector.stats().steps.tolist() == [LENGTH + 1, LENGTH + 1, LENGTH + 2]
        assert vector.stats().episodes.tolist() == [2, 2, 2]


@pytest.mark.parametrize("on_failure", ["raise", "restart"])
@pytest.mark.parametrize("every", [11, pytest.param(1, marks=pytest.mark.slow)])
def test_ctrl_c_at_every_moment_loses_no_slot(tmp_path: Path, on_failure: str, every: int) -> None:
    with closing(mortals(tmp_path, on_failure=on_failure, workers=2)) as vector:
        pressed, rows = Pressed(), begun(vector)

        def work() -> None:
            vector.send(np.zeros(N, int))
            for _ in range(N):
                vector.recv(min=1)

        points = pressed.count(work)
        for point in range(1, points + 1, every):
            pressed.run(work, point)
            with contextlib.suppress(NothingPending):
                while True:
                    vector.recv(min=1)
            vector.async_reset(seed=5)
            rows.take(N)
            assert [rows.last(slot)["seen"][:1] + rows.last(slot)["seen"][2:4] for slot in range(N)] == [
                [5 + slot, 0, 0] for slot in range(N)
            ], pressed.moment
            vector.send(np.full(N, 3))
            rows.take(N)
            assert [rows.last(slot)["seen"][2:4] for slot in range(N)] == [[1, 3]] * N, pressed.moment
    assert points > 50
