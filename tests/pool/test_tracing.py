"""Traces: what a recorder keeps, how events become a file, and that nothing stays behind."""

import gzip
import json
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import treadle
from treadle.cli.main import main
from treadle.errors import UsageError
from treadle.pool import tracing
from treadle.pool.tracing import chrome, writes
from treadle.wire.line import BUSY_NS
from treadle.worker import recorder
from treadle.worker.recorder import Recorder, TimedSteps
from treadle.worker.serve import Server

Lanes = dict[tuple[str, str], list[dict[str, Any]]]


def lanes_of(path: Path) -> Lanes:
    """(lane, name of the event) -> events, in order."""
    text = path.read_bytes()
    found = json.loads(gzip.decompress(text) if path.suffix == ".gz" else text)["traceEvents"]
    named = {each["tid"]: each["args"]["name"] for each in found if each["name"] == "thread_name"}
    lanes: Lanes = {}
    for each in found:
        if each["ph"] == "X":
            lanes.setdefault((named[each["tid"]], each["name"]), []).append(each)
    return lanes


def seconds(events: list[dict[str, Any]]) -> float:
    return float(sum(each["dur"] for each in events)) * 1e-6


def test_rows_are_written_between_the_steps_of_slots() -> None:
    first = [(0, "wait", 0, 10), (1, "step", 11, 20), (2, "step", 22, 30), (2, "reset", 31, 40), (0, "step", 10, 45)]
    nested = [(1, "reset", 52, 58), (1, "step", 51, 60), (0, "answer", 46, 47), (0, "step", 50, 62)]
    streamed = [(1, "policy", 71, 72), (1, "step", 73, 80), (0, "stream", 70, 90)]
    found = list(writes([*first, *nested, *streamed]))
    assert found == [(1, "write", 20, 22), (2, "write", 40, 45), (1, "write", 60, 62)]


def test_a_vector_has_one_trace_at_a_time(tmp_path: Path) -> None:
    with closing(treadle.make_vec("CartPole-v1", num_envs=2, workers=1, inline=0)) as envs:
        envs.reset(seed=0)
        with envs.trace(tmp_path / "outer.json"):
            with pytest.raises(UsageError, match="already"), envs.trace(tmp_path / "inner.json"):
                raise AssertionError("unreachable")
            envs.step(np.zeros(2, np.int64))
    assert len(lanes_of(tmp_path / "outer.json")["slot 1", "step"]) == 1
    assert not (tmp_path / "inner.json").exists()


def test_chrome_events_have_lanes_of_their_own_and_begin_at_zero() -> None:
    parts: list[dict[str, Any]] = [
        {"name": "caller", "pid": 7, "lanes": {"0": "caller"}, "events": [(0, "send", 5_000, 9_000)]},
        {
            "name": "worker 0",
            "pid": 8,
            "lanes": {"0": "worker 0", "3": "slot 2"},
            "events": [(3, "step", 6_500, 7_000)],
        },
    ]
    events = chrome(parts)["traceEvents"]
    assert {each["args"]["name"] for each in events if each["ph"] == "M"} == {
        "caller (pid 7)", "worker 0 (pid 8)", "caller", "worker 0", "slot 2",
    }  # fmt: skip
    sent, step = (each for each in events if each["ph"] == "X")
    assert (sent["ts"], sent["dur"], step["ts"], step["dur"]) == (0.0, 4.0, 1.5, 0.5)
    assert sent["pid"] != step["pid"]
    assert step["tid"] - step["pid"] == 3


def test_a_recorder_puts_back_what_it_replaced(tmp_path: Path) -> None:
    class Thing:
        def work(self) -> int:
            return 3

    thing, kept = Thing(), Recorder(str(tmp_path / "one.json"), "thing")
    kept.swap(0, "works", thing, "work")
    assert thing.work() == 3
    kept.end()
    assert vars(thing) == {}
    ((lane, name, start, end),) = json.loads((tmp_path / "one.json").read_text())["events"]
    assert (lane, name) == (0, "works")
    assert start <= end


def test_the_last_events_are_kept_and_the_file_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "LAST", 3)
    monkeypatch.setattr(tracing, "LAST", 3)
    kept = Recorder(str(tmp_path / "one.json"), "worker 4")
    for at in range(5):
        kept.note((0, "wait", at, at + 1))
    kept.end()
    part = json.loads((tmp_path / "one.json").read_text())
    assert [event[2] for event in part["events"]] == [2, 3, 4]
    assert chrome([part])["otherData"]["more than that"] == ["worker 4"]


def test_steps_are_timed_whatever_takes_their_place(tmp_path: Path) -> None:
    kept = Recorder(str(tmp_path / "one.json"), "worker")
    steps = TimedSteps([lambda action: action], kept, 1)
    steps[0] = lambda action: -action
    assert [step(2) for step in steps] == [-2]
    assert steps.plain[0](2) == -2
    kept.end()
    assert [event[:2] for event in json.loads((tmp_path / "one.json").read_text())["events"]] == [[1, "step"]]


def same(one: Any, other: Any) -> None:
    for mine, others in zip(one[:4], other[:4], strict=True):
        np.testing.assert_array_equal(mine, others)


@pytest.mark.parametrize("how", [{"workers": 2, "inline": 0}, {"workers": 1, "inline": 4}, {"backend": "thread"}])
def test_a_vector_is_traced(tmp_path: Path, how: dict[str, Any]) -> None:
    """A worker's steps last as long as it counts itself busy, and results are those of a vector without a trace."""
    given = {"worker_options": treadle.WorkerOptions(**how)} if "backend" in how else how
    path, actions = tmp_path / "trace.json.gz", np.zeros(8, np.int64)
    envs, plain = (treadle.make_vec("CartPole-v1", 8, **given) for _ in range(2))
    try:
        envs.reset(seed=0)
        plain.reset(seed=0)
        lines = [worker.line for worker in envs._pool.workers if worker.line is not None]
        with envs.trace(path):
            same(envs.step(actions), plain.step(actions))  # the beginning of the trace is counted after its answer
            before = sum(line.words[BUSY_NS] for line in lines)
            for _ in range(100):
                same(envs.step(actions), plain.step(actions))
            busy = sum(line.words[BUSY_NS] for line in lines) - before
        same(envs.step(actions), plain.step(actions))
        assert not any("post_bare" in vars(line) for line in lines)
        assert {"send", "recv"}.isdisjoint(vars(envs))
    finally:
        envs.close()
        plain.close()
    lanes = lanes_of(path)
    steps = [events for (lane, name), events in lanes.items() if lane.startswith("worker") and name == "step"]
    assert [len(each) for each in steps] == [101] * len(lines)
    assert sum(seconds(each[1:]) for each in steps) == pytest.approx(busy * 1e-9, rel=0.02)
    for slot in range(8):
        assert len(lanes[f"slot {slot}", "step"]) == len(lanes[f"slot {slot}", "write"]) == 101
        assert lanes[f"slot {slot}", "reset"]
    assert len(lanes["caller", "step"]) == 101
    assert len(lanes["caller", "policy"]) == 100
    assert lanes["caller", "send"]


def test_partial_batches_are_traced_while_slots_are_under_way(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    envs = treadle.make_vec("CartPole-v1", 4, workers=2, inline=0)
    try:
        with envs.trace(path):
            envs.async_reset(seed=0)
            for _ in range(20):
                *_, infos = envs.recv(min=2)
                envs.send(np.zeros(len(infos["env_id"]), np.int64), infos["env_id"])
        seen = 0
        while seen < 4:  # nothing that was under way is lost
            seen += len(envs.recv(min=1)[-1]["env_id"])
        assert seen == 4
    finally:
        envs.close()
    lanes = lanes_of(path)
    assert len(lanes["caller", "recv"]) >= 20
    assert sum(len(lanes[f"slot {slot}", "step"]) for slot in range(4)) >= 36


def test_a_server_that_is_not_traced_has_plain_parts() -> None:
    class Still(treadle.program.base.Program):
        def step(self, action: Any) -> Any:
            return action

    server = Server((0,), [Still()])
    assert type(server._steps) is list
    assert "step" not in vars(server)


def test_there_is_no_trace_without_its_folder(tmp_path: Path) -> None:
    envs = treadle.make_vec("CartPole-v1", 1)
    try:
        with pytest.raises(UsageError, match="does not exist"), envs.trace(tmp_path / "missing" / "trace.json"):
            pytest.fail("the block ran")
    finally:
        envs.close()


@pytest.mark.parametrize("asked", ["worker", "caller"])
def test_a_command_is_traced(tmp_path: Path, asked: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "acts.py").write_text("def act(observations):\n    return (observations[:, 2] > 0).astype(int)\n")
    path = tmp_path / "trace.json.gz"
    words = ["eval", "CartPole-v1", "--policy", f"{tmp_path}/acts.py:act", "--episodes", "20", "--num-envs", "4"]
    with pytest.raises(SystemExit) as ended:
        main([*words, "--workers", "2", "--inference", asked, "--trace", str(path), "--json"])
    assert ended.value.code == 0
    assert f"trace: {path}" in capsys.readouterr().err
    assert tracing.current is None
    lanes = lanes_of(path)
    text = gzip.decompress(path.read_bytes()).decode()
    assert str(Path.home()) not in text
    assert str(tmp_path) not in text
    assert any(name == "step" for lane, name in lanes if lane.startswith("slot"))
    assert any(name == "encode" for lane, name in lanes if lane.startswith("slot"))
    if asked == "caller":
        assert lanes["caller", "policy"]
        assert any(name.endswith("rows") for lane, name in lanes if lane == "batch former")
    else:
        assert any(name == "policy" for lane, name in lanes if lane.startswith("slot"))
        assert any(name == "stream" for lane, name in lanes if lane.startswith("worker"))


def test_a_trace_does_not_go_with_nodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["eval", "CartPole-v1", "--episodes", "2", "--nodes", "2", "--trace", str(tmp_path / "trace.json")])
    assert ended.value.code == 2
    assert "--trace" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
