"""Objects are told apart by what they are, and known again in another process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from treadle.errors import UsageError
from treadle.record.dataset import collect_dataset
from treadle.record.identity import compared, digest_of, identities


class Weighs:
    def __init__(self, weights: Any) -> None:
        self.weights = weights

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        return (observations @ self.weights > 0).astype(np.int64)


def test_state_and_code_tell_objects_apart() -> None:
    first, second = digest_of(Weighs(np.ones(4))), digest_of(Weighs(np.zeros(4)))
    assert first != second
    assert first == digest_of(Weighs(np.ones(4)))
    assert digest_of(lambda o: o + 1) != digest_of(lambda o: o + 2)
    assert digest_of(gym.spec("CartPole-v0")) != digest_of(gym.spec("CartPole-v1"))
    assert digest_of("file.py:act") is digest_of(None) is None


SCRIPT = """
import numpy as np
from treadle.record.identity import digest_of

class Policy:
    known = {"a"}
    def __init__(self, weights):
        self.weights = weights
    def __call__(self, observations):
        return self.weights if self.mode() in {"left", "right", "up"} else 0
    def mode(self):
        return "left"

factor = 3
print(digest_of(Policy(np.ones(3))), digest_of(Policy), digest_of(lambda o: o * factor))
"""


def test_a_script_that_is_run_again_has_the_same_objects(tmp_path: Path) -> None:
    said = set()
    for seed, text in (("1", SCRIPT), ("2", SCRIPT), ("3", "\n\n# moved by some lines\n" + SCRIPT)):
        path = tmp_path / f"script{seed}.py"
        path.write_text(text)
        done = subprocess.run(
            [sys.executable, path], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed}, timeout=60
        )
        said.add(done.stdout)
    assert len(said) == 1
    changed = SCRIPT.replace("factor = 3", "factor = 4")
    done = subprocess.run([sys.executable, "-c", changed], capture_output=True, text=True, check=True, timeout=60)
    (before,) = said
    assert [a == b for a, b in zip(before.split(), done.stdout.split(), strict=True)] == [True, True, False]


def test_what_cannot_be_compared_is_said() -> None:
    import threading

    now = identities(env="CartPole-v1", policy=threading.Lock(), wrappers=[len, max])
    assert (now["env"], now["policy"]) == (None, "")
    assert compared(now, now) == ([], ["policy"])
    assert compared({**now, "wrappers 1": "ab"}, now) == (["wrappers 1"], ["policy"])
    assert compared({**now, "by": "python 2"}, now) == ([], ["policy", "wrappers 0", "wrappers 1"])


def test_resuming_with_other_weights_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def run(policy: Any, **more: Any) -> Any:
        return collect_dataset("CartPole-v1", policy, out=tmp_path, episodes=4, workers=1, **more)

    first = run(Weighs(np.ones(4)))
    with pytest.raises(UsageError, match="policy is another object than then, or in another state"):
        run(Weighs(np.zeros(4)), resume=True)
    again = run(Weighs(np.ones(4)), resume=True)
    assert (again.unchanged, again.summary) == (True, first.summary)
    with pytest.raises(UsageError, match="policy was"):
        run(lambda observations: np.zeros(len(observations), np.int64), resume=True)
    run(lambda observations: np.zeros(len(observations), np.int64), resume="replace")
    with pytest.raises(UsageError, match="policy is another object"):
        run(lambda observations: np.ones(len(observations), np.int64), resume=True)
    assert caplog.messages == []
