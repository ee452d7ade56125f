"""The benchmark of sampling: it counts what it says it counts. Nothing here looks at how fast anything is."""

import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
if str(ROOT) not in sys.path:  # `benchmarks` is not part of the installed package
    sys.path.insert(0, str(ROOT))

from benchmarks.sampling import play, policy_for, streaming, treadle  # noqa: E402
from benchmarks.workloads import WORKLOADS  # noqa: E402

from tally import Tally  # noqa: E402


def test_the_limits_loop_counts_its_steps(tmp_path: Path) -> None:
    for rows in (1, 7):
        env = Tally(str(tmp_path))
        steps, seconds = play(env, policy_for("cartpole"), np.zeros((rows, 4), np.float32), None)(0.05)
        assert seconds >= 0.05
        assert steps == env.steps > 7
        env.close()


@pytest.mark.parametrize("ordered", [False, True])
def test_a_turn_of_the_samplers_makes_at_least_what_was_wanted(ordered: bool) -> None:
    found = treadle("cartpole", 1, 0.1, ordered=ordered, rates={"cartpole": 5000.0})
    assert found.env_steps >= 500
    assert found.wall_s > 0


def test_both_policies_act_in_their_spaces() -> None:
    assert policy_for("cartpole").get_action(np.zeros(4, np.float32))[0] in (0, 1)
    assert policy_for("pong").get_action(np.zeros((210, 160, 3), np.uint8))[0] in range(6)
    assert WORKLOADS["pong"].n_actions == 6


def test_a_stream_is_measured() -> None:
    assert "episodes/s" in streaming((4,), 20, 2000, 1)
