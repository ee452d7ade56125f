"""A worker is killed at each line that it runs between an environment's step and its answer, one after the other: what
the caller sees is a whole row, or a cut, and never a row that is torn."""

import os
import signal
import sys
import zlib
from contextlib import closing
from pathlib import Path
from types import FrameType
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces as gs

import treadle
from treadle.pool import failure

WIDTH = 2048  # of a row: four pages of int64
ROOMS = tuple(
    os.path.join(os.path.dirname(treadle.__file__), room, "") for room in ("worker", "wire", "memory", "spaces")
)
AT = 2  # the step in which the line is counted


class Marked(gym.Env[np.ndarray, int]):
    """Observes int64[WIDTH]: step, checksum, and noise. In step AT it has its process killed at the n-th line that is
    run in the worker from there on; n is in a file, beside which the line is noted."""

    observation_space = gs.Box(-(2**62), 2**62, (WIDTH,), np.int64)
    action_space = gs.Discrete(2)

    def __init__(self, file: str | None = None) -> None:
        self.file, self.t = file, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return self.look(), {}

    def look(self) -> np.ndarray:
        row = self.np_random.integers(0, 2**60, WIDTH)
        row[:2] = self.t, 0
        row[1] = zlib.crc32(row)
        return row

    def step(self, action: int) -> Any:
        self.t += 1
        if self.file is not None and self.t == AT:
            self.arm(int(Path(self.file).read_text()))
        elif self.file is not None and self.t == AT + 1:
            sys.settrace(None)
            Path(self.file).with_suffix(".passed").touch()
        return self.look(), float(self.t), False, False, {"t": self.t}

    def arm(self, point: int) -> None:
        """Count lines from when this step has returned. Those of a wait for the next request are left out: they write
        nothing, and there are as many as the caller takes long."""
        assert self.file is not None
        left, noted = point, Path(self.file).with_suffix(".points")

        def trace(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal left
            file = frame.f_code.co_filename
            if event == "line" and file.startswith(ROOMS) and not file.endswith("bell.py"):
                left -= 1
                if left == 0:
                    with noted.open("a") as notes:
                        notes.write(f"{Path(file).name}:{frame.f_lineno} {frame.f_code.co_name}\n")
                    os.kill(os.getpid(), signal.SIGKILL)
            return trace

        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            frame.f_trace = trace
            frame = frame.f_back
        sys.settrace(trace)


def check(row: np.ndarray) -> int:
    """The step of a row that is whole."""
    row = row.copy()
    found, row[1] = int(row[1]), 0
    assert found == zlib.crc32(row), "a torn row"
    return int(row[0])


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_no_line_of_the_write_path_leaves_a_torn_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first slot of a worker arms, so the second one's row is written after it; the third has another worker."""
    monkeypatch.setattr(failure, "BACKOFF", 0.0)
    file = tmp_path / "point"
    envs = [lambda: Marked(str(file)), Marked, Marked]
    file.write_text("0")
    with closing(
        treadle.VectorEnv(
            envs,
            workers=2,
            inline=0,
            on_failure="restart",
            worker_options=treadle.WorkerOptions(max_restarts=10**6, worker_output="keep"),
        )
    ) as vector:
        for point in range(1, 2000):
            file.write_text(str(point))
            file.with_suffix(".passed").unlink(missing_ok=True)
            steps = [check(row) for row in vector.reset(seed=point)[0]]
            assert steps == [0, 0, 0]
            cut = False
            for k in range(1, AT + 3):
                observed, rewards, _, truncated, infos = vector.step([0, 0, 0])
                for slot in range(3):
                    t = check(observed[slot])
                    if vector.valid[slot]:
                        assert t == rewards[slot] == steps[slot] + 1
                        assert not truncated[slot]
                    elif truncated[slot]:
                        assert infos["aborted"][slot]
                        assert (t, rewards[slot]) == (steps[slot], 0)
                        cut = True
                    else:
                        assert (t, rewards[slot]) == (0, 0)
                    steps[slot] = t
                assert vector.valid[2]
                assert steps[2] == k
                if cut and k > AT:
                    break
            if file.with_suffix(".passed").exists() and not cut:
                break
    points = file.with_suffix(".points").read_text().splitlines()
    assert len(points) == point - 1 > 40
    files = {each.partition(":")[0] for each in points}
    assert {"serve.py", "line.py", "loop.py"} <= files, files
