"""A snapshot of a `ParallelEnv` goes on in a new process, byte for byte."""

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from plan_envs import Walk, same

from treadle.errors import UsageError
from treadle.plan import GymPlanEnv, ParallelEnv
from treadle.states import snapshot_file

HERE = Path(__file__).parent


def steps(env: ParallelEnv) -> list[Any]:
    rows: list[Any] = []
    for _ in range(50):
        rows.append(env.step(env.sample_action()))
        rows.append(env.step_batch([env.sample_action() for _ in range(4)], return_state=True))
    return pickle.loads(pickle.dumps(rows))


if __name__ == "__main__":  # the new process
    with ParallelEnv(GymPlanEnv, Walk, n_workers=2) as env:
        env.restore(sys.argv[1])
        Path(sys.argv[2]).write_bytes(pickle.dumps(steps(env)))


def test_a_hundred_steps_follow_in_a_new_process(tmp_path: Path) -> None:
    with ParallelEnv(GymPlanEnv, Walk, n_workers=2) as env:
        env.action_space.seed(1)
        env.seed(2)
        env.reset()
        steps(env)
        env.snapshot(tmp_path / "snap")
        expected = steps(env)
        (tmp_path / "bad").write_bytes(pickle.dumps({}))
        with pytest.raises(UsageError, match="no snapshot of a ParallelEnv"):
            env.restore(tmp_path / "bad")
    import conftest

    paths = os.pathsep.join([str(HERE), str(Path(conftest.__file__).parent), *sys.path])
    arguments = [sys.executable, __file__, str(tmp_path / "snap"), str(tmp_path / "out")]
    subprocess.run(arguments, check=True, timeout=90, env={**os.environ, "PYTHONPATH": paths})
    same(pickle.loads((tmp_path / "out").read_bytes()), expected)
    with (
        ParallelEnv(GymPlanEnv, Walk, n_workers=1, backend="serial") as other,
        pytest.raises(UsageError, match="2 workers, this has 1"),
    ):
        other.restore(tmp_path / "snap")


def test_a_snapshot_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="pickle"):
        snapshot_file.write(tmp_path / "kept", "any", unpicklable=(each for each in ()))
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError, match="taken"):
        snapshot_file.write(tmp_path / "taken", "any")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]
