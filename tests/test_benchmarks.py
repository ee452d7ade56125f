"""The benchmark harness: it counts what it says it counts. No test here looks at how fast anything is."""

import math
import pickle
import subprocess
import sys
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from conftest import require

ROOT = Path(__file__).parents[1]
if str(ROOT) not in sys.path:  # `benchmarks` is not part of the installed package
    sys.path.insert(0, str(ROOT))

from benchmarks import real, vectors  # noqa: E402
from benchmarks.contestants import Contestant  # noqa: E402
from benchmarks.field import everyone  # noqa: E402
from benchmarks.judge import judge, overview, regret  # noqa: E402
from benchmarks.limit import LimitSession, Loop  # noqa: E402
from benchmarks.measure import Measure, measure, private_mib  # noqa: E402
from benchmarks.ours import Partial, Rollouts, Treadle  # noqa: E402
from benchmarks.policies import parse_policy  # noqa: E402
from benchmarks.report import BEGIN, END, figure, summarise, write_between_markers  # noqa: E402
from benchmarks.rows import Row, parse_row  # noqa: E402
from benchmarks.workloads import EPISODE_STEPS, WORKLOADS, ImageEnv, NestedEnv, Workload  # noqa: E402

from tally import Tally  # noqa: E402 - a file of its own: processes that import it must stay without Treadle


def tally(directory: Path, policy: str | None = None) -> Row:
    """A row of three CartPoles that count. Under random actions one ends every 20 steps: miscounted resets show."""
    make = partial(Tally, str(directory))
    return Row(Workload("tally", "CartPole-v1 that counts", make, 2), 3, parse_policy(policy) if policy else None)


def counted(directory: Path) -> int:
    return sum(int(path.read_text()) for path in directory.iterdir())


def of_three(directory: Path) -> set[int]:
    """What three of the envs have counted together; "auto" builds another one, to see what it is like."""
    return {sum(three) for three in combinations([int(path.read_text()) for path in directory.iterdir()], 3)}


def contestants() -> list[Any]:
    """All of them; who needs a library that `make setup` does not install is heavy."""
    needs = {each: (getattr(each, "library", None) or "").partition(".")[0] for each in everyone()}
    heavy = {each: [pytest.mark.heavy] if needs[each] not in ("", "gymnasium", "treadle") else [] for each in needs}
    return [pytest.param(each, marks=heavy[each], id=each.name) for each in needs]


@pytest.mark.parametrize("policy", [None, "wait0.1"])
@pytest.mark.parametrize("contestant", contestants())
def test_a_contestant_reports_exactly_the_steps_its_envs_made(
    contestant: Contestant, policy: str | None, tmp_path: Path
) -> None:
    row = tally(tmp_path, policy)
    library = (getattr(contestant, "library", None) or "").partition(".")[0]
    if library not in ("", "pufferlib"):  # which `make setup-heavy` does not install
        require(library)
    if (refusal := contestant.refusal(row)) is not None:
        pytest.skip(refusal)
    session = contestant.setup(row, 2)
    try:
        first, second = session.run(0.1), session.run(0.2)
    finally:
        session.close()
    assert first.env_steps > 0
    assert second.env_steps > 0
    assert second.wall_s >= 0.2
    assert second.cpu_s > 0
    if not contestant.name.startswith("limit"):
        assert second.p50_ms is not None
        assert second.p99_ms is not None
        assert 0 < second.p50_ms <= second.p99_ms
    steps = first.env_steps + second.env_steps
    # in partial batches each env may have one out at the end
    out = 3 if contestant.name == "Treadle partial" else 0
    assert any(0 <= made - steps <= out for made in of_three(tmp_path))


VECTORS = [
    Treadle("steps", workers=2),
    Treadle("keeps", workers=2, inline=0, keep=vectors.copied),
    Rollouts("rollouts", workers=2),
    vectors.Stored("stores", gym.vector.SyncVectorEnv),
]


@pytest.mark.parametrize("contestant", VECTORS, ids=lambda contestant: contestant.name)
def test_a_vector_reports_exactly_the_steps_its_envs_made(contestant: Contestant, tmp_path: Path) -> None:
    session = contestant.setup(tally(tmp_path), 2)
    try:
        steps = session.run(0.1).env_steps + session.run(0.2).env_steps
    finally:
        session.close()
    assert steps > 0
    assert counted(tmp_path) == steps


def test_partial_batches_report_the_steps_that_were_received(tmp_path: Path) -> None:
    session = Partial("partial", batch=2, workers=2, inline=0).setup(tally(tmp_path), 2)
    try:
        steps = session.run(0.1).env_steps + session.run(0.2).env_steps
    finally:
        session.close()
    assert 0 <= counted(tmp_path) - steps <= 3  # at the end each env had one out


def test_the_limits_processes_have_a_policy_each(tmp_path: Path) -> None:
    row = tally(tmp_path)
    sessions = [LimitSession(row.workload, 4, 2, policy=parse_policy("wait50"), groups=groups) for groups in (1, 2)]
    try:
        steps = [session.run(0.2).env_steps for session in sessions]
    finally:
        for session in sessions:
            session.close()
    assert counted(tmp_path) == sum(steps)
    # one answer takes 50 ms: four in that time and one that was under way, for two envs or (in groups) for one
    assert 0 < steps[0] <= 2 * 5 * 2
    assert 0 < steps[1] <= 2 * 6 * 1


@pytest.mark.parametrize(
    "policy", [*(pytest.param(name, marks=pytest.mark.heavy) for name in ("mlp", "mlp@2", "cnn")), "wait0.1", "burn0.1"]
)
@pytest.mark.parametrize("workload", ["cartpole", "halfcheetah", "images", "minigrid"])
def test_a_policy_says_actions_of_the_space(workload: str, policy: str) -> None:
    if policy == "cnn" and workload != "images":
        pytest.skip("not a picture")
    if policy[:3] in ("mlp", "cnn"):
        require("torch")
    for name in {"halfcheetah": ("mujoco",), "minigrid": ("minigrid",)}.get(workload, ()):
        require(name)
    chosen = WORKLOADS[workload]
    env = chosen.make()
    try:
        observation = env.reset(seed=0)[0]
    finally:
        env.close()
    seen = observation[chosen.seen] if chosen.seen else observation
    batch = np.stack([seen] * 3)
    act = parse_policy(policy).make(chosen, 3)
    for slots in (None, np.array([2, 0, 1])):
        actions = act({chosen.seen: batch} if chosen.seen else batch, slots)
        assert len(actions) == 3
        assert all(chosen.action_space.contains(action) for action in actions)


def test_the_limits_loop_keeps_nested_observations() -> None:
    env = NestedEnv(0)
    loop = Loop([env], [1], WORKLOADS["dict10us"].actions(1))
    loop.run(0.0)
    leaves = {path: np.asarray(row) for path, row in loop._rows[0].leaves}
    assert sorted(leaves) == [("body", "joints"), ("body", "speed"), ("goal",), ("view",)]
    assert all(np.shares_memory(leaves[path], array) for path, array in loop.observations.items())
    np.testing.assert_array_equal(leaves["body", "joints"], np.full(8, env._x / 2**31, np.float32))
    np.testing.assert_array_equal(leaves["view",], np.full((7, 7, 3), env._x, np.uint8))


def test_every_table_is_found_by_name() -> None:
    tables = vectors.chosen_tables("")
    assert len({table.name for table in tables}) == len(tables)
    assert [table.name for table in vectors.chosen_tables("safe, partial sleep")] == [
        "partial sleep1ms-8",
        "safe images-32",
    ]
    with pytest.raises(ValueError, match="no table 'chess'"):
        vectors.chosen_tables("chess")


def test_the_vectors_command_prints_a_line_per_contestant(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--only", "rollouts images-32", "--rounds", "1", "--seconds", "0.05", "--warmup", "0"]
    assert vectors.main([*options, "--contestants", "limit,inline=0"]) == 0
    out = capsys.readouterr().out
    assert "| rollouts images-32 | limit |" in out
    assert "| rollouts images-32 | make_vec, rollout, inline=0 |" in out


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
    needed = {"pong": ("ale_py",), "atari": ("ale_py", "cv2"), "minigrid": ("minigrid",)}
    needed |= dict.fromkeys(("halfcheetah", "hopper", "humanoid"), ("mujoco",))
    for module in needed.get(workload.name, ()):
        require(module)
    actions = workload.actions(5)
    assert actions.shape[:2] == (64, 5)
    np.testing.assert_array_equal(actions, workload.actions(5))
    env = pickle.loads(pickle.dumps(workload)).make()
    try:
        assert env.action_space == workload.action_space
        assert env.reset(seed=0)[0] in env.observation_space
        for action in actions[:3, 0]:
            assert action in env.action_space
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
    burn = (
        "import time; input(); start = time.process_time()\n"
        "while time.process_time() < start + 0.3: pass\nprint(); input()"
    )
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
    assert result.cpu_s > 0.15  # ticks are coarse


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
    names = [*real.ROWS, *real.BUSY, *real.QUICK, "cartpole-2+mlp+busy"]
    assert [parse_row(name).name for name in names] == names
    assert len(set(real.ROWS)) == len(real.ROWS)
    for wrong in ("cartpole", "cartpole-0", "cartpole-x", "chess-8", "", "cartpole-8+chess", "cartpole-8+wait+burn1"):
        with pytest.raises(ValueError, match=r"no (row|policy)"):
            parse_row(wrong)


def seat(rates: list[float]) -> dict[str, object]:
    taken = [{"env_steps": rate, "wall_s": 1.0, "cpu_s": 0.5, "p50_ms": 1.0, "p99_ms": 2.0} for rate in rates]
    start = {"import_s": 0.1, "first_batch_s": 0.2, "worker_mib": None, "workers": 0}
    return {"start": start, "taken": taken, "foreign": [0.0] * len(rates), "again": 0}


def test_a_row_is_judged_round_by_round() -> None:
    rates = {
        "limit": [100.0, 200.0, 400.0],
        "Gymnasium Sync": [20.0, 90.0, 100.0],
        "PufferLib Serial": [25.0, 100.0, 160.0],
        "SB3 Subproc": [50.0, 125.0, 200.0],
        "Treadle auto": [50.0, 150.0, 160.0],
    }
    judged = judge("cartpole-8", {name: seat(found) for name, found in rates.items()})
    by_name = {standing.name: standing for standing in judged.standings}
    auto = by_name["Treadle auto"]
    assert auto.share is not None
    assert (auto.share.median, auto.share.low, auto.share.high) == (0.5, 0.4, 0.75)
    assert auto.loop == 1.5  # of PufferLib: 2, 1.5 and 1
    assert auto.peer == 1.0  # of Subproc: 1, 1.2 and 0.8
    assert by_name["PufferLib Serial"].loop == 1.0
    assert judged.regret is None  # there is nothing that it could have chosen
    line = overview([judged]).splitlines()[-1]
    assert "| 0.40 PufferLib Serial | 0.50 SB3 Subproc | 0.50 | 1.50 | 1.00 |" in line


def test_the_regret_of_auto_is_not_measured_where_the_best_was_chosen() -> None:
    # two arms that are the same but for luck: each is the better one in the rounds in which it is chosen
    lucky = {"Treadle auto": [100.0] * 4, "a": [110.0, 90.0, 110.0, 90.0], "b": [90.0, 110.0, 90.0, 110.0]}
    found = regret(lucky)
    assert found is not None
    assert found.median < 0
    found = regret({"Treadle auto": [90.0] * 4, "a": [100.0] * 4, "b": [80.0] * 4})
    assert found is not None
    assert found.best == "a"
    assert found.median == pytest.approx(0.1)
    assert regret({"Treadle auto": [90.0] * 4}) is None
    assert regret({"a": [90.0] * 4}) is None


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


@pytest.mark.slow
def test_the_command_prints_a_line_per_contestant(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    kept = tmp_path / "measures.json"
    options = ["--contestants", "limit,sync,treadle serial", "--rounds", "2", "--seconds", "0.1", "--json", str(kept)]
    assert real.main(["--rows", "cartpole-2", *options]) == 0
    assert real.main(["--rows", "dict10us-2+wait0.1+busy", *options, "--against", str(ROOT)]) == 0
    capfd.readouterr()
    assert real.main(["--show", "--json", str(kept)]) == 0
    out = capfd.readouterr().out
    for row in ("cartpole-2", "dict10us-2+wait0.1+busy"):
        for name in ("limit", "Gymnasium Sync", "Treadle serial"):
            assert f"| {row} | {name} |" in out
    assert "| dict10us-2+wait0.1+busy | Treadle serial (against) |" in out
    assert "| dict10us-2+wait0.1+busy | limit, two groups |" in out


def test_a_contestant_that_cannot_is_named_with_its_reason(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    broken = tmp_path / "src" / "treadle"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ZeroDivisionError('not today')")
    options = ["--contestants", "limit,treadle serial", "--rounds", "1", "--seconds", "0.1"]
    assert real.main(["--rows", "cartpole-2", *options, "--source", str(tmp_path)]) == 1
    out, err = capfd.readouterr()
    assert "Treadle serial cannot step cartpole-2: ZeroDivisionError('not today')." in out
    assert "Traceback" in err, "what it wrote to stderr is shown then"


def test_what_environments_warn_of_is_not_printed(capfd: pytest.CaptureFixture[str]) -> None:
    require("mujoco")
    options = ["--contestants", "limit,treadle serial", "--rounds", "1", "--seconds", "0.1"]
    assert real.main(["--rows", "halfcheetah-2", *options]) == 0
    told = capfd.readouterr().err.splitlines()
    assert len(told) == 2, told
    assert all("steps/s" in line for line in told)


def test_memory_of_a_process_that_has_ended_is_none() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert private_mib(child.pid) > 0
    child.communicate(b"\n")
    assert private_mib(child.pid) == 0
