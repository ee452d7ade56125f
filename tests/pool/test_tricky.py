"""Environments with which nothing is wrong, but which make it hard for the one that runs them."""

import os
from typing import Any

import numpy as np
import pytest
from kit import ACTIONS, EVERYWHERE, FAULTY, Pool, show, until, warm, with_fault, within
from scripts import alive

from treadle.errors import (
    WorkerDied,
)
from treadle.wire.line import BOX
from zoo import faults


@pytest.mark.parametrize("setup", EVERYWHERE, ids=show)
def test_reused_buffers_do_not_show(setup: dict[str, Any]) -> None:
    with Pool(with_fault(faults.ReusesItsBuffer), **setup) as pool:
        held = [warm(pool, 1), *(pool.step(ACTIONS) for _ in range(23))]
        assert [int(batch.observations[FAULTY, 2]) for batch in held] == [*range(1, 20), 0, 1, 2, 3, 4]
        steps = [b.finals[1][1]["list"] if 1 in b.finals else b.infos[1]["list"] for b in held]
        assert steps == [[t] for t in range(1, 25)]
        assert held[19].finals[FAULTY][0].tolist() == [8, 0, 20, 1]


def test_ten_megabytes_of_output(capfd: pytest.CaptureFixture[str]) -> None:
    """A worker never blocks on what it prints, and every line says whose it is."""
    with Pool(with_fault(faults.Chatters, megabytes=10), workers=2) as pool:
        warm(pool, 2)
        assert pool.step(ACTIONS).rewards.tolist() == [3] * 4
    out, err = capfd.readouterr()
    lines = err.splitlines()
    assert len(lines) == 10 * 1024
    assert set(lines) == {"[slots 0-1] " + "." * 1023}
    assert len(out) == 10 * 2**20


def test_what_an_environment_does_to_its_process_stays_there() -> None:
    state, cwd = np.random.get_state()[1].tobytes(), os.getcwd()
    with Pool(with_fault(faults.ChangesItsProcess), workers=2, close_timeout=2.0) as pool:
        warm(pool, 3)
        assert pool.step(ACTIONS).rewards.tolist() == [4] * 4
        with within(1.5):
            pool.close()
    assert (np.random.get_state()[1].tobytes(), os.getcwd()) == (state, cwd)


def test_an_environment_that_closes_all_descriptors() -> None:
    """It steps on, or it dies with a name; the caller neither hangs nor crashes, and close comes to an end."""
    with Pool(with_fault(faults.ClosesDescriptors), workers=2, close_timeout=1.0) as pool:
        warm(pool, 3)
        assert pool.step(ACTIONS).rewards.tolist() == [4] * 4
        pool.reset(seeds=range(4))  # what is small needs no descriptor
        with pytest.raises(WorkerDied, match=r"slot 0 .* in reset"):
            pool.reset(options=[{"large": bytes(BOX)}] * 4)
        with within(2.5):
            pool.close()


def test_children_of_environments_end_with_them() -> None:
    with Pool(with_fault(faults.HasChildren), workers=2) as pool:
        batch = warm(pool, 0)
        children = batch.infos[FAULTY]["children"]
        assert all(os.path.exists(f"/proc/{pid}") for pid in children)
    until(lambda: not any(alive(pid) for pid in children))
