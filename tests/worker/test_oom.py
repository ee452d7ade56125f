"""A worker that is killed while the kernel counts a kill for want of memory is said to have run out of it."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from pool.kit import Pool
from treadle.errors import WorkerDied
from treadle.worker import process as oom
from zoo.faults import Sound
from zoo.programs import gym_env


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the kernel's files, of a machine with both versions of control groups."""
    monkeypatch.setattr(oom, "OWN", tmp_path / "own")
    monkeypatch.setattr(oom, "CGROUP", tmp_path / "cgroup")
    monkeypatch.setattr(oom, "VMSTAT", tmp_path / "vmstat")
    (tmp_path / "own").write_text("4:memory:/box/job\n3:cpuset,memoryless:/\n1:name=systemd:/\n0::/user.slice/job\n")
    (tmp_path / "vmstat").write_text("nr_free_pages 812\noom_kill 7\npgfault 99\n")
    return tmp_path


def put(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_counters_are_read_where_the_groups_are_named(kernel: Path) -> None:
    second = put(kernel / "cgroup/user.slice/job/memory.events", "low 0\nhigh 3\nmax 9\noom 2\noom_kill 1\n")
    first = put(kernel / "cgroup/memory/box/job/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n")
    assert oom.kills() == {str(first): 4, str(second): 1, str(kernel / "vmstat"): 7}


def test_a_container_shows_its_own_group_as_the_root(kernel: Path) -> None:
    second = put(kernel / "cgroup/memory.events", "oom_kill 1\n")
    first = put(kernel / "cgroup/memory/memory.oom_control", "oom_kill 4\n")
    assert oom.kills() == {str(first): 4, str(second): 1, str(kernel / "vmstat"): 7}


def test_where_nobody_counts_there_is_nothing(kernel: Path) -> None:
    for name in ("own", "vmstat"):
        (kernel / name).unlink()
    assert oom.kills() == {}
    put(kernel / "vmstat", "pgfault 99\noom_kill many\n")
    assert oom.kills() == {}


def test_only_what_has_risen_is_told() -> None:
    assert oom.risen({"a": 1, "b": 2}, {"a": 1, "b": 2, "c": 9}) == ""
    assert "3 out-of-memory kills in b" in oom.risen({"a": 1, "b": 2}, {"a": 1, "b": 3})
    assert oom.risen({"a": 1}, {}) == ""


class Killed(Sound):
    """Is killed by `number`, when the kernel has counted up as far as `count`."""

    def __init__(self, file: str, count: int, number: int) -> None:
        super().__init__()
        self.file, self.count, self.number = file, count, number

    def at_step(self, sound: Any) -> None:
        Path(self.file).write_text(f"oom_kill {self.count}\n")
        os.kill(os.getpid(), self.number)


@pytest.mark.parametrize(
    ("count", "number", "ran_out", "said"),
    [
        (8, signal.SIGKILL, True, r"SIGKILL\. Memory ran out: the kernel counts 8 .*vmstat, before it started 7\."),
        (7, signal.SIGKILL, False, r"SIGKILL\. It was killed from outside \(the kernel counts no out-of-memory kill"),
        (8, signal.SIGTERM, False, r"SIGTERM\. The request is lost"),
    ],
)
def test_a_death_by_it_says_so(kernel: Path, count: int, number: int, ran_out: bool, said: str) -> None:
    env = gym_env(Killed, kwargs={"file": str(kernel / "vmstat"), "count": count, "number": number})
    with Pool([env], workers=1) as pool:
        pool.reset()
        pool.step([0])
        pool.step([0])
        with pytest.raises(WorkerDied, match=said) as caught:
            pool.step([0])
        assert caught.value.out_of_memory is ran_out


def test_where_nobody_counts_it_is_said_to_be_possible(kernel: Path) -> None:
    (kernel / "vmstat").unlink()
    env = gym_env(Killed, kwargs={"file": os.devnull, "count": 0, "number": signal.SIGKILL})
    with Pool([env], workers=1) as pool:
        pool.reset()
        pool.step([0])
        pool.step([0])
        with pytest.raises(WorkerDied, match="Perhaps it ran out of memory, or it was killed from outside") as caught:
            pool.step([0])
        assert not caught.value.out_of_memory
