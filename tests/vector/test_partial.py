"""Partial batches: whichever slots are ready first, nothing lost, no slot starved, each slot's stream its own."""

from __future__ import annotations

import threading
from contextlib import closing
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces as gs

import treadle
from treadle.vector.core import AlreadyPending, NothingPending, WaitTimeout
from zoo.faults import OsExits, Sound

N, STEPS = 5, 40
ACTIONS = np.random.default_rng(1).integers(0, 2, (N, 200))


def alone(seed: int, actions: np.ndarray, steps: int) -> list[tuple[bytes, float, bool, bool]]:
    """What one CartPole makes of its actions in NEXT_STEP mode, resets included."""
    env = gym.make("CartPole-v1")
    rows = [(env.reset(seed=seed)[0].tobytes(), 0.0, False, False)]
    over = False
    for t in range(steps):
        if over:
            rows.append((env.reset()[0].tobytes(), 0.0, False, False))
            over = False
        else:
            observation, reward, terminated, truncated, _ = env.step(int(actions[t]))
            rows.append((observation.tobytes(), reward, terminated, truncated))
            over = terminated or truncated
    env.close()
    return rows


@pytest.mark.parametrize("options", [{"workers": 1}, {"workers": 2}, {"workers": 5}, {"workers": 1, "inline": 2}])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_every_slots_stream_is_that_of_the_env_alone(options: dict[str, Any], batch_size: int) -> None:
    seen: dict[int, list[Any]] = {slot: [] for slot in range(N)}
    with_inline = {"inline": 0, **options}
    vector = treadle.make_vec("CartPole-v1", N, **with_inline)
    try:
        vector.batch_size = batch_size
        vector.async_reset(seed=7)
        while any(len(rows) <= STEPS for rows in seen.values()):
            observations, rewards, terminated, truncated, infos = vector.recv()
            ids = infos["env_id"].tolist()
            for row, slot in enumerate(ids):
                seen[slot].append(
                    (observations[row].tobytes(), float(rewards[row]), bool(terminated[row]), bool(truncated[row]))
                )
            # a slot whose worker gets no processor may be left behind by any number of steps
            actions = [ACTIONS[slot, (len(seen[slot]) - 1) % ACTIONS.shape[1]] for slot in ids]
            vector.send(np.array(actions), infos["env_id"])
        while vector._partial is not None and vector._partial.open:
            vector.recv(min=1)
    finally:
        vector.close()
    for slot, rows in seen.items():
        assert rows[: STEPS + 1] == alone(7 + slot, ACTIONS[slot], STEPS)


class Gate(gym.Env[Any, Any]):
    """Steps when its gate is open. For the thread backend: the gates are the test's."""

    observation_space = gs.Box(-1, 1000, (2,), np.float32)
    action_space = gs.Discrete(2)
    gates: dict[int, threading.Event] = {}  # noqa: RUF012 - set by the test

    def __init__(self, slot: int) -> None:
        self._slot, self._t = slot, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self._t = 0
        return np.array([self._slot, 0], np.float32), {}

    def step(self, action: int) -> Any:
        assert self.gates[self._slot].wait(20)
        if action == 1:
            raise ValueError(f"slot {self._slot} refuses")
        self._t += 1
        return np.array([self._slot, self._t], np.float32), float(self._t), False, False, {"t": self._t}


@pytest.fixture
def gated() -> Any:
    Gate.gates = {slot: threading.Event() for slot in range(4)}
    vector = treadle.VectorEnv(
        [lambda slot=slot: Gate(slot) for slot in range(4)],
        worker_options=treadle.WorkerOptions(backend="thread"),
        workers=4,
    )
    vector.async_reset()
    assert sorted(vector.recv(min=4)[4]["env_id"].tolist()) == [0, 1, 2, 3]
    yield vector
    for gate in Gate.gates.values():
        gate.set()
    vector.close()


def test_the_first_ready_come_first_and_a_deadline_loses_nothing(gated: Any) -> None:
    gated.send(np.zeros(4, int))
    Gate.gates[2].set()
    observations, _, _, _, infos = gated.recv(min=1)
    assert infos["env_id"].tolist() == [2]
    assert observations.tolist() == [[2, 1]]
    assert infos["t"].tolist() == [1]
    with pytest.raises(WaitTimeout, match="nothing is lost"):
        gated.recv(min=1, timeout=0.05)
    gated.send([0], [2])  # a second chunk while the first is in flight
    assert gated.recv(min=1)[0].tolist() == [[2, 2]]
    Gate.gates[0].set()
    assert gated.recv(min=1)[4]["env_id"].tolist() == [0]
    Gate.gates[1].set()
    Gate.gates[3].set()
    rest = gated.recv(min=3, timeout=20)  # only two are out: both come
    assert sorted(rest[4]["env_id"].tolist()) == [1, 3]


def test_what_cannot_be_is_refused_and_nothing_is_sent(gated: Any) -> None:
    with pytest.raises(NothingPending):
        gated.recv()
    with pytest.raises(treadle.BadAction, match="slot 3"):
        gated.send([0, 5], [1, 3])
    with pytest.raises(treadle.BadAction):
        gated.send([0, 0, 0], [1, 3])
    with pytest.raises(treadle.UsageError, match="distinct"):
        gated.send([0, 0], [1, 1])
    gated.send([0], [1])
    with pytest.raises(treadle.UsageError, match="slot 1 is in flight"):
        gated.send([0, 0], [1, 2])
    with pytest.raises(AlreadyPending, match="recv"):
        gated.step(np.zeros(4, int))
    Gate.gates[1].set()
    assert gated.recv(min=1)[4]["env_id"].tolist() == [1]
    for gate in Gate.gates.values():
        gate.set()
    gated.reset()
    assert gated.step(np.zeros(4, int))[0][:, 1].tolist() == [1, 1, 1, 1], "afterwards it steps in lockstep again"


def test_a_slot_that_raises_is_named_and_the_others_come(gated: Any) -> None:
    for gate in Gate.gates.values():
        gate.set()
    gated.send([0, 1, 0, 0])
    with pytest.raises(ValueError, match="slot 1") as caught:
        for _ in range(4):
            gated.recv(min=1)
    assert caught.value.where.slot == 1
    while gated._partial.open:
        gated.recv(min=1)
    with pytest.raises(treadle.UsageError, match="slot 1 is in need of a reset"):
        gated.send([0], [1])
    gated.async_reset(options={"reset_mask": np.array([False, True, False, False])})
    observations, _, _, _, infos = gated.recv(min=1)
    assert observations.tolist() == [[1, 0]]
    assert infos["valid"].tolist() == [False]


def test_terminal_observations_come_with_their_rows() -> None:
    vector = treadle.make_vec("CartPole-v1", 2, autoreset_mode="SameStep", inline=0, workers=1)
    try:
        vector.async_reset(seed=3)
        vector.batch_size = 2
        for _ in range(60):
            _, _, terminated, _, infos = vector.recv()
            if terminated.any():
                row = int(np.flatnonzero(terminated)[0])
                assert abs(infos["final_obs"][row][2]) > 0.2 or abs(infos["final_obs"][row][0]) > 2.4
                assert infos["_final_obs"].tolist() == terminated.tolist()
                break
            vector.send(np.ones(len(terminated), int), infos["env_id"])
        else:
            pytest.fail("no episode ended")
        while vector._partial is not None and vector._partial.open:
            vector.recv(min=1)
    finally:
        vector.close()


def test_after_a_death_what_is_left_comes_and_then_what_broke_it() -> None:
    """Not that nothing is pending: nothing can be."""
    vector = treadle.VectorEnv([Sound, partial(OsExits, at=2), Sound], workers=3)
    try:
        vector.async_reset(seed=1)
        vector.recv(min=3)
        vector.send([0, 0, 0])
        vector.recv(min=3)
        vector.send([0, 0, 0])
        received, errors = 0, []
        while received < 2 or not errors:
            try:
                received += len(vector.recv(min=1)[1])
            except treadle.WorkerDied as error:
                errors.append(error)
        assert [error.where.slot for error in errors] == [1]
        for ask in (
            vector.recv,
            lambda: vector.send([0, 0, 0]),
            lambda: vector.send([0], [0]),
            lambda: vector.send([0], [1]),
            vector.async_reset,
        ):
            with pytest.raises(treadle.BrokenPool, match=r"broken by: slot 1 .*step 2 of episode 0.*code 3") as caught:
                ask()
            assert caught.value.__cause__ is errors[0]
    finally:
        vector.close()


def test_a_step_and_the_reset_of_a_fresh_worker_in_one_send() -> None:
    """Both slots of a worker lose it; one is begun again, and then both are asked for at once."""
    made = treadle.VectorEnv([Sound, partial(OsExits, at=3)], workers=1, inline=0, on_failure="restart")
    with closing(made) as vector:
        vector.async_reset(seed=[50, 60])
        for _ in range(2):
            vector.recv(min=2)
            vector.send(np.zeros(2, np.int64))
        vector.recv(min=2)
        vector.send(np.zeros(2, np.int64))
        cut: set[int] = set()
        while len(cut) < 2:  # slot 0 may have answered before the worker died: its cut is told by its next row
            infos = vector.recv(min=1)[4]
            ids, aborted = infos["env_id"], infos.get("aborted", np.zeros(len(infos["env_id"]), bool))
            cut.update(ids[aborted].tolist())
            if not aborted.all():
                vector.send(np.zeros(int((~aborted).sum()), np.int64), ids[~aborted])
        vector.send([0], [1])
        observed, *_, infos = vector.recv(min=1)
        assert infos["restarted"].tolist() == [True]
        assert observed[0, 2] == 0
        vector.send([0, 0], [0, 1])
        seen: dict[int, Any] = {}
        while len(seen) < 2:
            observed, _, _, _, infos = vector.recv(min=1)
            seen.update(zip(infos["env_id"].tolist(), observed.tolist()))
        assert [seen[slot][1:3] for slot in (0, 1)] == [[0, 0], [0, 1]]  # episode and step
        assert seen[0][0] not in (-1, 50)  # a fresh environment, seeded anew


def test_a_vector_of_which_no_part_was_asked_still_makes_rollouts() -> None:
    with closing(treadle.make_vec("CartPole-v1", 2, workers=1)) as vector:
        vector.reset(seed=0)
        with pytest.raises(NothingPending):
            vector.recv(min=1)
        with pytest.raises(ValueError, match="in need of a reset"):
            vector.send([1], [0])
        assert vector.rollout(steps=3).rewards.shape == (3, 2)
        vector.async_reset(seed=0)
        vector.recv(min=2)
        with pytest.raises(ValueError, match="use another vector for partial batches"):
            vector.rollout(steps=3)
