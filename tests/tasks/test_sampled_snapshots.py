"""Snapshots of vectors of tasks: the same hundred steps follow in a new process, byte for byte."""

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_tasks import DIE, CountSampler, samplers

import conftest
from treadle.errors import StateError, UsageError
from treadle.plan.checking import difference
from treadle.tasks.gym import GymTaskSampler
from treadle.tasks.vectors import SampledTasks, SingleProcessVectorSampledTasks, VectorSampledTasks
from treadle.vector.gymnasium import VectorEnv

HERE = Path(__file__).parent


def vector(name: str, backend: str = "serial", n: int = 2, hold: bool = False, **more: Any) -> SampledTasks:
    make: Any = GymTaskSampler if name == "cartpole" else CountSampler
    if name == "cartpole":  # slot 1 runs out of tasks
        args: Any = [{"env": "CartPole-v1", "max_steps": 13, "seed": 3}, *[{"env": "CartPole-v1", "seeds": [1, 2]}] * n]
        args = args[:n]
    else:
        args = samplers(n, steps=[[3, 5, 40]] + [[4, 9]] * (n - 1), sensors=("where", "nested", "mission"))
    options: Any = {"should_log": False, "auto_resample_when_done": not hold}
    if backend == "serial":
        return SingleProcessVectorSampledTasks(make, args, **options)
    return VectorSampledTasks(make, args, max_processes=2, **options, **more)


def steps(tasks: SampledTasks, rng: np.random.Generator, count: int) -> list[Any]:
    """What `count` steps return; slots that run out of tasks are paused."""
    rows: list[Any] = []
    waits = [False] * tasks.num_unpaused_tasks
    for _ in range(count):
        waits = held(tasks)
        actions = [int(action) for action in rng.integers(2, size=2)][: len(waits)]
        results = tasks.step([None if wait else action for wait, action in zip(waits, actions)])
        rows.append(pickle.loads(pickle.dumps([tuple(result) for result in results])))
        for index in reversed(range(len(results))):
            if results[index].observation is None:
                tasks.pause_at(index)
    return rows


def held(tasks: SampledTasks) -> list[bool]:
    """Which unpaused slots wait for the others."""
    return [bool(done) and not tasks._resample for done in tasks.call("is_done")]


def hundred(tasks: SampledTasks) -> list[Any]:
    """Everything that can be seen of a vector in a hundred steps, from where it stands."""
    seen: list[Any] = [tasks.num_unpaused_tasks, tasks.get_observations(), held(tasks)]
    seen.append(steps(tasks, np.random.default_rng(5), 100))
    stats = tasks.stats()
    tasks.resume_all()
    lengths = tasks.command("sampler_attr", ["length"] * tasks.num_unpaused_tasks)
    tasks.reset_all()
    return [*seen, stats.steps, stats.episodes, lengths, tasks.get_observations()]


CASES = [("count", "serial", False), ("count", "process", True), ("cartpole", "process", False)]
CASES.append(("cartpole", "serial", False))

if __name__ == "__main__":  # the new process
    name, backend, hold, path, out = sys.argv[1:]
    with vector(name, backend, hold=hold == "True") as tasks:
        tasks.restore(path)
        Path(out).write_bytes(pickle.dumps(hundred(tasks)))


@pytest.mark.parametrize(("name", "backend", "hold"), CASES)
def test_a_hundred_steps_follow_in_a_new_process(name: str, backend: str, hold: bool, tmp_path: Path) -> None:
    with vector(name, backend, hold=hold) as tasks:
        tasks.set_seeds([8, 9])
        early = 10 if hold else 61  # by then a slot waits; by then one has run out and is paused
        steps(tasks, np.random.default_rng(1), early)
        if name == "count" and not hold:
            tasks.pause_at(0)
        assert tasks.num_unpaused_tasks == (2 if hold else 1)
        assert not hold or held(tasks) == [True, False]
        tasks.snapshot(tmp_path / "snap")
        assert [each.name for each in tmp_path.iterdir()] == ["snap"]
        expected = hundred(tasks)
    # the other backend takes it as well
    arguments = [name, "serial" if backend == "process" else backend, str(hold)]
    if (name, backend) == ("cartpole", "process"):
        arguments[1] = "process"
    paths = os.pathsep.join([str(HERE), str(Path(conftest.__file__).parent), *sys.path])
    command = [sys.executable, __file__, *arguments, str(tmp_path / "snap"), str(tmp_path / "out")]
    subprocess.run(command, check=True, timeout=90, env={**os.environ, "PYTHONPATH": paths})
    where = difference(expected, pickle.loads((tmp_path / "out").read_bytes()))
    assert where is None, where


def test_states_are_for_any_slot_and_leave_the_rest_alone() -> None:
    with vector("count") as tasks:
        steps(tasks, np.random.default_rng(0), 2)
        states = pickle.loads(pickle.dumps(tasks.get_states()))
        before = tasks.get_observations()
        steps(tasks, np.random.default_rng(0), 9)
        tasks.set_states([states[0]], slots=[1])
        assert difference(tasks.get_observations()[1], before[0]) is None
        tasks.set_states(states)
        assert difference(tasks.get_observations(), before) is None
        with pytest.raises(UsageError, match="1 states for 2 slots"):
            tasks.set_states(states[:1])
        with pytest.raises(StateError, match="slot 1: give what"):
            tasks.set_states([states[0], 3])  # type: ignore[list-item]
        tasks.async_step([1, 1])
        with pytest.raises(UsageError, match="wait for wait_step"):
            tasks.set_states(states)
        assert len(tasks.wait_step()) == 2
        with vector("cartpole") as other, pytest.raises(StateError, match="no state of a GymTaskSampler"):
            other.set_states(states)


def test_a_state_brings_back_what_a_death_has_cut() -> None:
    with vector("count", "process", on_failure="restart") as tasks:
        steps(tasks, np.random.default_rng(0), 5)
        states, before = tasks.get_states(), tasks.get_observations()
        expected = steps(tasks, np.random.default_rng(2), 8)
        tasks.set_states(states)
        assert tasks.step([1, DIE])[1].info["aborted"]  # type: ignore[index]
        tasks.set_states(states)
        assert difference(tasks.get_observations(), before) is None
        assert difference(steps(tasks, np.random.default_rng(2), 8), expected) is None


def test_what_is_no_snapshot_of_this(tmp_path: Path) -> None:
    with vector("count") as tasks:
        env = VectorEnv(["CartPole-v1"] * 2, backend="serial")
        env.reset(seed=1)
        env.snapshot(tmp_path / "env")
        with pytest.raises(UsageError, match=r"no snapshot of a vector of tasks .it says 'treadle vector snapshot 2'"):
            tasks.restore(tmp_path / "env")
        tasks.snapshot(tmp_path / "snap")
        with pytest.raises(UsageError, match="no snapshot of a vector of environments"):
            env.restore(tmp_path / "snap")
        env.close()
        (tmp_path / "text").write_text("nothing of the kind")
        with pytest.raises(UsageError, match="is no snapshot"):
            tasks.restore(tmp_path / "text")
        with vector("count", n=3) as other, pytest.raises(UsageError, match="has 2 slots, this vector has 3"):
            other.restore(tmp_path / "snap")
        with vector("cartpole") as stranger, pytest.raises(StateError, match="is of tasks that show"):
            stranger.restore(tmp_path / "snap")
        steps(tasks, np.random.default_rng(0), 3)  # nothing of it did harm
