"""The benchmark harness: it counts what it says it counts. No test here looks at how fast anything is."""

import math
import pickle
import subprocess
import sys
from functools import partial
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from conftest import require

ROOT = Path(__file__).parents[1]
if str(ROOT) not in sys.path:  # `benchmarks` is not part of the installed package
    sys.path.insert(0, str(ROOT))

from benchmarks import vectors  # noqa: E402
from benchmarks.contestants import Contestant, ours, peers  # noqa: E402
from benchmarks.limit import Loop, RowsLoop  # noqa: E402
from benchmarks.measure import Measure, measure  # noqa: E402
from benchmarks.report import BEGIN, END, figure, summarise, write_between_markers  # noqa: E402
from benchmarks.run import main  # noqa: E402
from benchmarks.workloads import (  # noqa: E402
    DEFAULT_ROWS,
    EPISODE_STEPS,
    WORKLOADS,
    ImageEnv,
    NestedEnv,
    Workload,
    parse_row,
)

from tally import Tally  # noqa: E402 - a file of its own: processes that import it must stay without Treadle


@pytest.mark.parametrize("contestant", [*peers(), *ours()], ids=lambda contestant: contestant.name)
def test_a_contestant_reports_exactly_the_steps_its_envs_made(contestant: Contestant, tmp_path: Path) -> None:
    # CartPole under random actions ends every 20 steps or so: miscounted resets would show at once.
    workload = Workload("tally", "CartPole-v1 that counts", partial(Tally, str(tmp_path)), 2)
    refusal = contestant.refusal(workload)
    if refusal is not None:
        pytest.skip(refusal)
    session = contestant.setup(workload, 3, 2)
    try:
        first, second = session.run(0.1), session.run(0.2)
    finally:
        session.close()
    assert first.env_steps > 0
    assert second.env_steps > 0
    assert second.wall_s >= 0.2
    assert second.cpu_s > 0
    assert sum(int(path.read_text()) for path in tmp_path.iterdir()) == first.env_steps + second.env_steps


VECTORS = [
    vectors.Vector("steps", workers=2),
    vectors.Vector("keeps", workers=2, inline=0, copy=False, keep=vectors.copied),
    vectors.Rollouts("rollouts", workers=2),
    vectors.Stored("stores", gym.vector.SyncVectorEnv),
]


@pytest.mark.parametrize("contestant", VECTORS, ids=lambda contestant: contestant.name)
def test_a_vector_reports_exactly_the_steps_its_envs_made(contestant: Contestant, tmp_path: Path) -> None:
    workload = Workload("tally", "CartPole-v1 that counts", partial(Tally, str(tmp_path)), 2)
    session = contestant.setup(workload, 3, 2)
    try:
        steps = session.run(0.1).env_steps + session.run(0.2).env_steps
    finally:
        session.close()
    assert steps > 0
    assert sum(int(path.read_text()) for path in tmp_path.iterdir()) == steps


def test_partial_batches_report_the_steps_that_were_received(tmp_path: Path) -> None:
    workload = Workload("tally", "CartPole-v1 that counts", partial(Tally, str(tmp_path)), 2)
    session = vectors.Partial("partial", batch=2, workers=2, inline=0).setup(workload, 3, 2)
    try:
        steps = session.run(0.1).env_steps + session.run(0.2).env_steps
    finally:
        session.close()
    made = sum(int(path.read_text()) for path in tmp_path.iterdir())
    assert 0 <= made - steps <= 3  # at the end each env had one out


def test_the_limit_of_vectorised_envs_counts_no_resets(tmp_path: Path) -> None:
    envs = gym.vector.SyncVectorEnv([partial(Tally, str(tmp_path))] * 3)
    loop = RowsLoop(envs, 1, np.ones((4, 3), np.int64))
    steps = loop.run(0.1)[0] + loop.run(0.0)[0] + loop.run(0.1)[0]
    envs.close()
    assert sum(int(path.read_text()) for path in tmp_path.iterdir()) == steps


def test_the_limits_loop_keeps_nested_observations() -> None:
    env = NestedEnv(0)
    loop = Loop([env], [1], WORKLOADS["dict10us"].actions(1))
    loop.run(0.0)
    leaves = {path: np.asarray(row) for path, row in loop._rows[0].leaves}
    assert sorted(leaves) == [("body", "joints"), ("body", "speed"), ("goal",), ("view",)]
    np.testing.assert_array_equal(leaves["body", "joints"], np.full(8, env._x / 2**31, np.float32))
    np.testing.assert_array_equal(leaves["view",], np.full((7, 7, 3), env._x, np.uint8))


def test_every_table_is_found_by_name() -> None:
    tables = vectors.chosen_tables("")
    assert len({table.name for table in tables}) == len(tables)
    assert [table.name for table in vectors.chosen_tables("owned cartpole-128, safe")] == [
        "safe images-32",
        "owned cartpole-128",
    ]
    with pytest.raises(ValueError, match="no table 'chess'"):
        vectors.chosen_tables("chess")


def test_the_vectors_command_prints_a_line_per_contestant(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--only", "owned cartpole-128", "--rounds", "1", "--seconds", "0.05", "--warmup", "0"]
    assert vectors.main([*options, "--contestants", "limit,inline=0"]) == 0
    out = capsys.readouterr().out
    assert "| owned cartpole-128 | limit |" in out
    assert "| owned cartpole-128 | make_vec, owned=True, inline=0 |" in out


def test_the_limits_loop_keeps_every_result_in_its_row() -> None:
    envs = [ImageEnv(), ImageEnv()]
    loop = Loop(envs, [1, 2], WORKLOADS["images"].actions(2))
    steps, wall = loop.run(0.0)
    assert steps == 2
    assert wall >= 0
    assert loop.observations.shape == (2, 84, 84, 4)
    for row, env in zip(loop.observations, envs, strict=True):
        np.testing.assert_array_equal(row, env.observe(0))
    np.testing.assert_array_equal(loop.rewards, [1.0, 1.0])
    assert not loop.terminated.any()
    assert not loop.truncated.any()


def test_the_limits_loop_stores_as_many_steps_as_it_is_told() -> None:
    env = ImageEnv()
    loop = Loop([env], [1], WORKLOADS["images"].actions(1), kept=3)
    assert [loop.run(0.0)[0] for _ in range(3)] == [1, 1, 1]
    assert loop.observations.shape == (3, 84, 84, 4)
    assert [int(row[0, 0, 0]) for row in loop.observations] == [85 * ((env._left + back) & 3) for back in (2, 1, 0)]


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=lambda workload: workload.name)
def test_a_workload_travels_and_steps_as_its_spaces_say(workload: Workload) -> None:
    if workload.name == "pong":
        require("ale_py")
    actions = workload.actions(5)
    assert actions.shape == (64, 5)
    np.testing.assert_array_equal(actions, workload.actions(5))
    env = pickle.loads(pickle.dumps(workload)).make()
    try:
        assert env.action_space == gym.spaces.Discrete(workload.n_actions)
        assert env.reset(seed=0)[0] in env.observation_space
        for action in actions[:, 0].tolist()[:3]:
            assert env.step(action)[0] in env.observation_space
    finally:
        env.close()


def test_synthetic_episodes_end_within_their_bounds_in_both_ways() -> None:
    env = ImageEnv()
    endings = set()
    for seed in range(8):
        env.reset(seed=seed)
        length = 0
        over = cut = False
        while not (over or cut):
            _, _, over, cut, _ = env.step(0)
            length += 1
        assert EPISODE_STEPS[0] <= length < EPISODE_STEPS[1]
        assert over != cut
        endings.add(over)
    assert endings == {True, False}


def test_cpu_time_of_a_child_is_counted() -> None:
    burn = "import time; input()\nwhile time.process_time() < 0.3: pass\nprint(); input()"
    child = subprocess.Popen([sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin is not None
    assert child.stdout is not None
    stdin, stdout = child.stdin, child.stdout

    def stretch() -> tuple[int, float]:
        stdin.write("\n")
        stdin.flush()
        stdout.readline()
        return 1, 1.0

    try:
        result = measure(stretch)
    finally:
        child.communicate("\n")
    assert result.cpu_s > 0.15  # it had used some before it was told to go, and ticks are coarse


def test_the_limit_imports_nothing_of_treadle() -> None:
    check = "import sys, benchmarks.limit; sys.exit(any(m.partition('.')[0] == 'treadle' for m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", check], cwd=ROOT, check=False).returncode == 0


def test_a_share_is_taken_round_by_round() -> None:
    limit = [Measure(100, 1.0, 2.0), Measure(200, 1.0, 2.0), Measure(400, 1.0, 2.0)]
    other = [Measure(50, 1.0, 1.0), Measure(180, 1.0, 1.0), Measure(100, 1.0, 1.0)]
    _, line = summarise("row-1", {"limit": limit, "other": other})
    assert line.share is not None
    assert (line.share.median, line.share.low, line.share.high) == (0.5, 0.25, 0.9)
    assert (line.rate.median, line.rate.low, line.rate.high) == (100, 50, 180)
    assert math.isclose(line.cpu_us, 1e6 / 100)
    assert line.cores == 1.0
    assert summarise("row-1", {"other": other})[0].share is None


def test_rows_are_read_by_name() -> None:
    assert [parse_row(name).name for name in DEFAULT_ROWS] == list(DEFAULT_ROWS)
    for wrong in ("cartpole", "cartpole-0", "cartpole-x", "chess-8", ""):
        with pytest.raises(ValueError, match="no row"):
            parse_row(wrong)


def test_figures_have_three_digits() -> None:
    assert [figure(value) for value in (251234.5, 6.14159, 99.96, 0.5)] == ["251,000", "6.14", "100", "0.5"]


def test_the_table_goes_between_the_markers(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"a\n{BEGIN}\nold\n{END}\nb\n")
    write_between_markers(page, "new")
    assert page.read_text() == f"a\n{BEGIN}\nnew\n{END}\nb\n"
    page.write_text(f"a\n{END}\n{BEGIN}\n")
    with pytest.raises(ValueError, match="once each"):
        write_between_markers(page, "new")


def test_the_command_prints_a_line_per_contestant(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--only", "cartpole-2", "--contestants", "limit,sync", "--rounds", "1", "--seconds", "0.1"]
    assert main([*options, "--warmup", "0"]) == 0
    out = capsys.readouterr().out
    assert "| cartpole-2 | limit |" in out
    assert "| cartpole-2 | Gymnasium Sync |" in out
