"""`treadle tune`: which arrangements are tried, which one is named, and that its last line is code that runs."""

import json
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import treadle
from treadle.cli.main import main
from treadle.testing import tuning
from treadle.testing.tuning import Arrangement, Tuning, meant, worth_trying
from treadle.vector.shares import Measured

COMPUTES = Measured(step=1e-3, share=0.0, wake=5e-5, stood=0.0)
WAITS = replace(COMPUTES, share=0.95)
ALONE = Arrangement(None, 8)


@pytest.mark.parametrize(
    ("n", "cores", "found", "tried"),
    [
        (
            8,
            2,
            COMPUTES,
            ["inline=8", "workers=1, inline=4", "workers=2, inline=0", "workers=2, inline=0, recv(min=4)"],
        ),
        (8, 2, None, ["inline=8", "workers=1, inline=4", "workers=2, inline=0", "workers=2, inline=0, recv(min=4)"]),
        (8, 2, WAITS, ["inline=8", "workers=2, inline=0", "workers=8, inline=0", "workers=8, inline=0, recv(min=4)"]),
        (1, 4, COMPUTES, ["inline=1", "workers=1, inline=0"]),
        (8, 1, COMPUTES, ["inline=8", "workers=1, inline=0"]),
    ],
)
def test_what_is_tried_first_follows_from_a_step(n: int, cores: int, found: Any, tried: list[str]) -> None:
    assert [str(each) for each in worth_trying(n, cores, found)] == tried


@pytest.mark.parametrize(
    ("change", "now", "arrangement"),
    [
        ("workers=6", ALONE, Arrangement(6)),
        ("workers=20", ALONE, Arrangement(8)),
        ("inline=8", Arrangement(2), ALONE),
        ("inline=4", Arrangement(2), None),
        ("recv(min=6)", Arrangement(4), Arrangement(4, 0, 6)),
        ("recv(min=6)", ALONE, None),
        ("batch_size=8", Arrangement(2), None),
    ],
)
def test_a_verdict_s_change_is_an_arrangement(change: str, now: Arrangement, arrangement: Arrangement | None) -> None:
    assert meant(change, 8, now) == arrangement


def test_the_simplest_of_those_that_are_level_is_best() -> None:
    rates = {ALONE: [98.0, 97.5, 50.0], Arrangement(2): [100.0, 99.0, 101.0], Arrangement(8): [80.0, 90.0, 200.0]}
    found = Tuning("'CartPole-v1'", 8, rates, dict.fromkeys(rates, "env-bound 94 %"), others=1.4)
    assert found.best == ALONE
    *_, busy, code = str(found).splitlines()
    assert "1.4 cores" in busy
    assert code == "envs = treadle.make_vec('CartPole-v1', num_envs=8, inline=8)"
    slower = replace(found, rates={**rates, ALONE: [90.0, 91.0, 92.0]}, others=0.0)
    assert slower.best == Arrangement(2)
    assert "cores" not in str(slower)


def test_rounds_on_a_slow_machine_change_no_standing() -> None:
    # the rates halve from the third round on: the medians alone would prefer what was tried in the first rounds only
    rates = {ALONE: [60.0, 60.0], Arrangement(2): [100.0, 100.0, 50.0, 50.0, 50.0]}
    found = Tuning("'CartPole-v1'", 8, rates, dict.fromkeys(rates, ""))
    assert found.standings == {ALONE: 0.6, Arrangement(2): 1.0}
    assert found.best == Arrangement(2)


class Waits(gym.Env[Any, Any]):
    """A step that leaves its core idle is what workers gain on; an event with a limit stands for a simulator."""

    observation_space = gym.spaces.Box(0, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        import threading

        threading.Event().wait(0.001)
        return np.zeros(1, np.float32), 0.0, False, False, {}


def still(observations: Any) -> Any:
    return np.zeros(len(observations), np.int64)


@pytest.mark.parametrize(("env", "policy"), [("CartPole-v1", None), (Waits, still)])
def test_the_last_line_makes_a_vector(env: Any, policy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.wire.bell.cores", lambda: 2)  # with one, no partial batch is tried
    monkeypatch.setattr(tuning, "TURN", 0.02)
    doing: list[str] = []
    found = treadle.tune(env, policy, num_envs=4, seconds=0.1, progress=doing.append)
    assert 2 <= len(found.rates) <= tuning.MOST
    assert all(len(rates) >= tuning.ROUNDS and min(rates) > 0 for rates in found.rates.values())
    assert found.rates.keys() == found.verdicts.keys()
    assert any(each.least for each in found.rates)
    assert f"starting {found.best}" in doing
    assert "round 1" in doing
    names: dict[str, Any] = {"treadle": treadle, "Waits": Waits}
    exec(str(found).splitlines()[-1], names)
    try:
        assert names["envs"].num_envs == 4
    finally:
        names["envs"].close()


def test_the_command_prints_json(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(tuning, "TURN", 0.01)
    monkeypatch.setattr(tuning.tune, "__kwdefaults__", {**(tuning.tune.__kwdefaults__ or {}), "seconds": 0.1})
    with pytest.raises(SystemExit) as ended:
        main(["tune", "CartPole-v1", "--num-envs", "2", "--json"])
    assert ended.value.code == 0
    said = json.loads(capfd.readouterr().out)
    assert said["best"] in {row["arrangement"] for row in said["rows"]}
    assert said["code"].startswith("envs = treadle.make_vec('CartPole-v1', num_envs=2, ")
