"""Same seed, same bytes: every backend, any number of workers, against a plain loop over the environments."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from kit import Pool
from plain import Row, Waverer, actions_for, digest, play, rows_of, same

from treadle.program.base import OnEnd
from zoo.programs import gym_env

GOLDEN = Path(__file__).parent.parent / "data" / "golden.json"
N = 6
FEWER = {"pong": 4}  # slots: to build one, with a seed, takes longer than all of its steps

ENVS: dict[str, tuple[Any, dict[str, Any], int]] = {  # what to build, with what, for how many steps
    "cartpole": ("CartPole-v1", {}, 60),
    "pong": ("ALE/Pong-v5", {"max_episode_steps": 12}, 30),
    "minigrid": ("MiniGrid-DoorKey-5x5-v0", {"max_steps": 13}, 40),
    "hopper": ("Hopper-v5", {}, 60),
    "waverer": (Waverer, {}, 60),
}

# every value of each knob at least once, the costly ones not with each other
SETUPS: list[dict[str, Any]] = [
    {"backend": "serial"},
    {"backend": "thread", "workers": 1},
    {"backend": "thread", "workers": 5, "inline": 1},
    {"backend": "process", "workers": 1},
    {"backend": "process", "workers": 2, "inline": 2},
    {"backend": "process", "workers": 5},
]
START_METHODS: list[dict[str, Any]] = [
    {"backend": "process", "workers": 2, "start_method": "spawn"},
    {"backend": "process", "workers": 2, "start_method": "fork"},
    {"backend": "process", "workers": 5, "inline": 1, "start_method": "fork"},
    {"backend": "process", "workers": 2, "inline": 6, "start_method": "forkserver"},
    {"backend": "thread", "workers": 2, "inline": 6},
]


def show(setup: dict[str, Any]) -> str:
    return "-".join(str(value) for value in setup.values())


@cache
def reference(name: str, on_end: OnEnd) -> tuple[list[list[Any]], list[list[Row]]]:
    env, kwargs, steps = ENVS[name]
    n = FEWER.get(name, N)
    actions = actions_for(env, n, steps, kwargs)
    return actions, play(env, n, actions, on_end, kwargs, seed=7)


def run(name: str, on_end: OnEnd, setup: dict[str, Any], actions: list[list[Any]]) -> list[list[Row]]:
    """The pool's version of `play`. What is compared is what is handed out, looked at when all is over."""
    env, kwargs, _ = ENVS[name]
    n = FEWER.get(name, N)
    held: list[tuple[Any, Any]] = []
    with Pool([gym_env(env, on_end=on_end, kwargs=kwargs)] * n, **setup) as pool:
        batch = pool.reset(seeds=range(7, 7 + n))
        held.append((batch, pool.lockstep.valid))
        for row in actions:
            over = [slot for slot in range(n) if batch.terminated[slot] or batch.truncated[slot]]
            if on_end is OnEnd.HOLD and over:
                pool.reset(slots=over)
            batch = pool.step(row)
            held.append((batch, pool.lockstep.valid))
    return [rows_of(batch, valid) for batch, valid in held]


def check(name: str, on_end: OnEnd, setup: dict[str, Any]) -> None:
    actions, expected = reference(name, on_end)
    found = run(name, on_end, setup, actions)
    assert len(found) == len(expected)
    for t, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        for slot, (row, expected_row) in enumerate(zip(ours, theirs, strict=True)):
            same(tuple(row), tuple(expected_row), f"step {t}, slot {slot}: ")


@pytest.mark.parametrize("setup", SETUPS, ids=show)
@pytest.mark.parametrize("on_end", OnEnd, ids=lambda mode: mode.value)
@pytest.mark.parametrize("name", ["cartpole", "waverer"])
def test_light_environments(name: str, on_end: OnEnd, setup: dict[str, Any]) -> None:
    check(name, on_end, setup)


@pytest.mark.parametrize("setup", [SETUPS[0], SETUPS[2], SETUPS[4]], ids=show)
@pytest.mark.parametrize("on_end", OnEnd, ids=lambda mode: mode.value)
@pytest.mark.parametrize(("name", "package"), [("pong", "ale_py"), ("minigrid", "minigrid"), ("hopper", "mujoco")])
def test_real_environments(name: str, package: str, on_end: OnEnd, setup: dict[str, Any], require: Any) -> None:
    require(package)
    check(name, on_end, setup)


@pytest.mark.parametrize("setup", START_METHODS, ids=show)
def test_start_methods_and_shares(setup: dict[str, Any]) -> None:
    check("cartpole", OnEnd.SAME_STEP, setup)


def test_the_runs_do_contain_ends_of_every_kind() -> None:
    """Otherwise the comparisons above would compare little."""
    for name in ("cartpole", "waverer"):
        _, rows = reference(name, OnEnd.NEXT_STEP)
        flat = [row for step in rows for row in step]
        assert any(row.terminated for row in flat)
        assert sum(not row.valid for row in flat) > N
    assert any(row.truncated for step in reference("waverer", OnEnd.NEXT_STEP)[1] for row in step)
    assert any(row.info for step in reference("waverer", OnEnd.NEXT_STEP)[1][1:] for row in step)
    assert any(row.final for step in reference("waverer", OnEnd.SAME_STEP)[1] for row in step)


@pytest.mark.parametrize("on_end", OnEnd, ids=lambda mode: mode.value)
def test_golden(on_end: OnEnd) -> None:
    """CartPole's bytes are those of the day this was written. Its physics is a few float64 operations and its start a
    PCG64 draw, so a change here is a change in Gymnasium's CartPole or in ours, not in the machine."""
    golden = json.loads(GOLDEN.read_text())["CartPole-v1"]
    actions, expected = reference("cartpole", on_end)
    assert digest(expected) == golden[on_end.value], "the plain loop itself gives other bytes: CartPole has changed"
    assert digest(run("cartpole", on_end, {"workers": 2, "inline": 2}, actions)) == golden[on_end.value]
