"""Vectors of environments with several agents: both forms, against a plain loop over the same environments."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from small_agents import Countdown, Crowd, Dies

import treadle
from treadle import pettingzoo
from treadle.errors import StartupFailed, UsageError

N, STEPS = 3, 40
AGENTS = Crowd.possible_agents


def actions_of(t: int, n: int = N) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(t)
    return {agent: rng.integers(1, 5, n) for agent in AGENTS}


def plain(env: Any, slot: int, seed: int, actions: Any = actions_of, steps: int = STEPS) -> Iterator[dict[str, Any]]:
    """What one environment tells, in a loop as PettingZoo's documentation has it; NEXT_STEP where it is over."""
    observations, _ = env.reset(seed=seed)
    yield {"seen": observations, "alive": set(env.agents), "acted": set(), "r": {}, "te": {}, "tr": {}}
    for t in range(steps):
        if not env.agents:
            observations, _ = env.reset()
            yield {"seen": observations, "alive": set(env.agents), "acted": set(), "r": {}, "te": {}, "tr": {}}
            continue
        acting = set(env.agents)
        given = {agent: actions(t)[agent][slot] for agent in env.agents}
        observations, rewards, terminated, truncated, _ = env.step(given)
        yield {
            "seen": observations,
            "alive": set(env.agents),
            "acted": acting,
            "r": rewards,
            "te": terminated,
            "tr": truncated,
        }


def check(told: dict[str, Any], vector: Any, batch: Any, slot: int) -> None:
    observations, rewards, terminations, truncations = batch
    for i, agent in enumerate(vector.agents):
        row = observations[agent][slot]
        wanted = told["seen"].get(agent, np.zeros_like(row))
        assert row.dtype == wanted.dtype
        assert row.tobytes() == wanted.tobytes()
        assert rewards[agent][slot] == told["r"].get(agent, 0.0)
        assert terminations[agent][slot] == bool(told["te"].get(agent))
        assert truncations[agent][slot] == bool(told["tr"].get(agent))
        assert vector.alive[slot, i] == (agent in told["alive"])
        assert vector.acted[slot, i] == (agent in told["acted"])


@pytest.mark.parametrize("differ", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {"workers": 1, "inline": 0},
        {"workers": 2, "inline": 1},
        {"worker_options": treadle.WorkerOptions(backend="serial")},
    ],
    ids=str,
)
def test_grouped_is_a_plain_loop_bit_by_bit(differ: bool, options: dict[str, Any]) -> None:
    loops = [plain(Crowd(differ), slot, 5 + slot) for slot in range(N)]
    vector = pettingzoo.make_vec(Crowd, N, differ=differ, **options)
    try:
        observations, _ = vector.reset(seed=5)
        nothing = {agent: np.zeros(N) for agent in AGENTS}
        for slot, loop in enumerate(loops):
            check(next(loop), vector, (observations, nothing, nothing, nothing), slot)
        for t in range(STEPS):
            *batch, _ = vector.step(actions_of(t))
            for slot, loop in enumerate(loops):
                check(next(loop), vector, batch, slot)
    finally:
        vector.close()


def test_rows_are_the_same_batch_cut_another_way() -> None:
    grouped, rows = (pettingzoo.make_vec(Crowd, N, form=form, workers=1, inline=1) for form in ("grouped", "rows"))
    try:
        assert isinstance(rows, gym.vector.VectorEnv)
        assert rows.num_envs == N * 3
        assert rows.agent_id.tolist() == [0, 1, 2] * N
        assert rows.env_id.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
        (by_agent, _), (by_row, _) = grouped.reset(seed=5), rows.reset(seed=5)
        ends = 0
        for t in range(STEPS):
            for i, agent in enumerate(AGENTS):
                assert (by_row[i::3] == by_agent[agent]).all()
            assert (rows.alive == grouped.alive).all()
            assert (rows.valid.reshape(N, 3) == grouped.acted).all()
            given = actions_of(t)
            by_agent, r, te, tr, _ = grouped.step(given)
            by_row, rewards, terminated, truncated, _ = rows.step(np.stack(list(given.values()), 1).ravel())
            over = ~grouped.alive.any(1) & grouped.acted.any(1)
            for i, agent in enumerate(AGENTS):
                assert (rewards[i::3] == r[agent]).all()
                assert (terminated[i::3] == te[agent]).all()
                # who ended before its environment is cut with it, so that nothing is bootstrapped across
                assert (truncated[i::3] == tr[agent] | (over & ~te[agent])).all()
            ends += int(over.sum())
        assert ends > N
    finally:
        grouped.close()
        rows.close()


def test_each_agents_episode_is_told_at_its_own_end() -> None:
    rows = pettingzoo.make_vec(Crowd, N, form="rows", workers=1)
    try:
        rows.reset(seed=1)
        returns, lengths = np.zeros(N * 3), np.zeros(N * 3, int)
        told = 0
        for t in range(STEPS):
            _, rewards, terminated, truncated, infos = rows.step(np.stack(list(actions_of(t).values()), 1).ravel())
            returns, lengths = returns + rewards, lengths + rows.valid
            ended = (terminated | truncated) & rows.valid
            assert ended.any() == ("episode" in infos)
            if ended.any():
                assert (infos["_episode"] == ended).all()
                assert np.allclose(infos["episode"]["r"][ended], returns[ended], rtol=1e-12)
                assert (infos["episode"]["l"][ended] == lengths[ended]).all()
                told += int(ended.sum())
            returns[ended], lengths[ended] = 0, 0
            assert (infos["t"][infos["_t"]] > 0).all() if "t" in infos else not rows.valid.any()
        assert told > 2 * N
    finally:
        rows.close()


@pytest.mark.parametrize("form", ["grouped", "rows"])
def test_same_step_shows_the_next_episode_and_keeps_the_last_row(form: str) -> None:
    there, then = (
        pettingzoo.make_vec(
            Crowd, N, form=form, worker_options=treadle.WorkerOptions(backend="serial"), autoreset_mode=mode
        )
        for mode in ("SameStep", "NextStep")
    )

    def given(t: int) -> Any:
        return actions_of(t) if form == "grouped" else np.stack(list(actions_of(t).values()), 1).ravel()

    try:
        there.reset(seed=3)
        then.reset(seed=3)
        for t in range(8 + 6):
            a, b = there.step(given(t)), then.step(given(t))
            over = ~then.alive.any(1)
            if not over.any():
                continue
            slot = int(np.flatnonzero(over)[0])
            if form == "grouped":
                for agent in AGENTS:
                    assert [x[agent][slot] for x in a[1:4]] == [x[agent][slot] for x in b[1:4]]
                    assert (a[4]["final_obs"][slot][agent] == b[0][agent][slot]).all()
                assert a[4]["final_info"]["a"]["episode"]["r"][slot] == b[4]["a"]["episode"]["r"][slot]
            else:
                for row in range(slot * 3, slot * 3 + 3):
                    assert [x[row] for x in a[1:4]] == [x[row] for x in b[1:4]]
                    assert (a[4]["final_obs"][row] == b[0][row]).all()
                assert a[4]["final_info"]["episode"]["r"][slot * 3] == b[4]["episode"]["r"][slot * 3]
            assert there.alive[slot].tolist() == [True, False, True]
            assert there.acted[slot].any()
            break
        else:
            pytest.fail("no episode ended")
    finally:
        there.close()
        then.close()


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_rollouts_have_what_steps_have(mode: str) -> None:
    grouped, rows = (
        pettingzoo.make_vec(Crowd, N, form=form, workers=1, inline=1, autoreset_mode=mode)
        for form in ("grouped", "rows")
    )
    seen: list[Any] = []

    def act(observations: np.ndarray) -> np.ndarray:
        seen.append(observations.copy())
        return (np.abs(observations[:, 0] * 1e4).astype(np.int64) % 4) + 1

    try:
        rows.reset(seed=9)
        grouped.reset(seed=9)
        made = rows.rollout(act, steps=20)
        other = grouped.rollout(lambda batch: {agent: act(part) for agent, part in batch.items()}, steps=20)
        assert made.observations.shape == (20, N * 3, 3)
        assert (made.observations == np.array(seen[:20])).all()
        assert made.valid.any()
        for i, agent in enumerate(AGENTS):
            for mine, theirs in (
                (made.observations, other.observations),
                (made.actions, other.actions),
                (made.rewards, other.rewards),
                (made.terminated, other.terminated),
                (made.valid, other.valid),
                (made.next_obs, other.next_obs),
            ):
                assert (mine[:, i::3] == theirs[agent]).all()
        assert (made.terminated.any(0)).all()
        assert (rows.alive == grouped.alive).all()
        # returns that were told are sums of the rollout's rewards
        assert made.rewards[~made.valid].sum() == 0
    finally:
        rows.close()
        grouped.close()


@pytest.mark.parametrize("form", ["grouped", "rows"])
def test_partial_batches_give_each_environment_its_own_stream(form: str) -> None:
    steps = 25
    vector = pettingzoo.make_vec(Crowd, N, form=form, workers=2, inline=0)
    streams: dict[int, list[Any]] = {slot: [] for slot in range(N)}
    try:
        vector.async_reset(seed=5)
        while min(map(len, streams.values())) <= steps:
            observations, rewards, *_, infos = vector.recv(min=1)
            ids = infos["env_id"] if form == "grouped" else infos["env_id"][::3]
            given: list[Any] = []
            for m, slot in enumerate(ids.tolist()):
                row = observations["a"][m] if form == "grouped" else observations[m * 3]
                paid = rewards["a"][m] if form == "grouped" else rewards[m * 3]
                given.append({agent: actions_of(len(streams[slot]))[agent][slot] for agent in AGENTS})
                streams[slot].append((row.tobytes(), paid))
            grouped = {agent: np.array([each[agent] for each in given]) for agent in AGENTS}
            rows = np.stack(list(grouped.values()), 1).ravel()
            vector.send(grouped if form == "grouped" else rows, infos["env_id"])
        while vector.vec._partial.open:
            vector.recv(min=1)
        if form == "grouped":
            vector.send({agent: actions[1:2] for agent, actions in actions_of(0).items()}, 1)
            assert vector.recv(min=1)[4]["env_id"].tolist() == [1]
        else:
            with pytest.raises(treadle.UsageError, match="each environment 3 times"):
                vector.send(rows, [0, 1])
        for wrong in ([N], [-1], [], [0.0], [True], ["a"]):
            with pytest.raises(treadle.UsageError, match="distinct integers"):
                vector.send(rows if form == "rows" else grouped, np.repeat(wrong, 1 if form == "grouped" else 3))
    finally:
        vector.close()
    for slot, stream in streams.items():
        loop = plain(Crowd(), slot, 5 + slot, steps=steps)
        wanted = [(told["seen"]["a"].tobytes(), told["r"].get("a", 0.0)) for told in loop]
        assert stream[: len(wanted)] == wanted


def test_a_game_in_turns_has_one_agent_alive() -> None:
    vector = pettingzoo.make_vec(Countdown, 2, turns=True, workers=1)
    try:
        observations, _ = vector.reset(seed=0)
        assert vector.alive.tolist() == [[True, False]] * 2
        assert observations["first"].tolist() == [[7, 0]] * 2
        assert observations["second"].tolist() == [[0, 0]] * 2
        moves = [[3, 1], [3, 1], [1, 1]]
        for t, (mine, other) in enumerate(moves):
            turn = "first" if t % 2 == 0 else "second"
            observations, rewards, terminations, truncations, infos = vector.step({turn: np.array([mine, other])})
        assert rewards == {"first": pytest.approx([1.0, 0.0]), "second": pytest.approx([-1.0, 0.0])}
        assert terminations["first"].tolist() == terminations["second"].tolist() == [True, False]
        assert not truncations["first"].any()
        assert observations["second"].tolist() == [[0, 1], [4, 1]]
        assert vector.alive.tolist() == [[False, False], [False, True]]
        assert infos["first"]["episode"]["l"][0] == 2
        assert infos["second"]["episode"]["r"][0] == -1.0
    finally:
        vector.close()


def test_after_a_death_all_agents_are_truncated_and_a_new_episode_begins() -> None:
    vector = pettingzoo.make_vec(Dies, 2, form="rows", workers=2, inline=0, on_failure="restart")
    try:
        vector.reset(seed=0)
        vector.step(np.full(6, 1))
        _, rewards, terminated, truncated, _ = vector.step(np.array([4, 1, 1, 1, 1, 1]))
        assert truncated.tolist() == [True] * 3 + [False] * 3
        assert not terminated.any()
        assert vector.valid.tolist() == [False] * 3 + [True, False, True]
        assert rewards[:3].tolist() == [0, 0, 0]
        for _ in range(3):
            vector.step(np.full(6, 1))
        assert vector.valid.reshape(2, 3)[:, 0].all()
    finally:
        vector.close()


def test_a_dataset_has_a_group_for_each_agents_columns(tmp_path: Any) -> None:
    stored = treadle.collect_dataset(
        partial(pettingzoo.AgentsEnv, Crowd), out=tmp_path / "crowd", episodes=3, seed=1, workers=1
    )
    assert stored.complete
    assert stored.summary is not None
    assert stored.summary.episodes == 3


# -- bad input ---------------------------------------------------------------------------------------------------------


def test_bad_input_is_one_clear_line() -> None:
    with pytest.raises(UsageError, match="a function that makes a PettingZoo environment is wanted"):
        pettingzoo.make_vec(Crowd(), 2)
    with pytest.raises(UsageError, match='form is "grouped" or "rows"'):
        pettingzoo.make_vec(Crowd, 2, form="flat")
    with pytest.raises(
        StartupFailed, match="Countdown is an AEC environment: say turns=True, or give its parallel_env"
    ):
        pettingzoo.make_vec(Countdown, 2, workers=1)
    with pytest.raises(StartupFailed, match="Crowd is a parallel environment: say turns=False"):
        pettingzoo.make_vec(Crowd, 2, turns=True, workers=1)
    with pytest.raises(UsageError, match=r'rows need agents whose spaces are equal .* use form="grouped"'):
        pettingzoo.make_vec(partial(Crowd, differ=True), 2, form="rows", workers=1)
    with pytest.raises(UsageError, match='infos="gymnasium" only'):
        pettingzoo.make_vec(Crowd, 2, infos="legacy")


def test_wrong_actions_and_masks_are_refused() -> None:
    with_rows = pettingzoo.make_vec(
        Crowd, 2, form="rows", worker_options=treadle.WorkerOptions(backend="serial"), autoreset_mode="Disabled"
    )
    grouped = pettingzoo.make_vec(Crowd, 2, worker_options=treadle.WorkerOptions(backend="serial"))
    try:
        with pytest.raises(UsageError, match=r"before the first reset\(\)"):
            _ = grouped.alive
        with_rows.reset(seed=0)
        grouped.reset(seed=0)
        with pytest.raises(UsageError, match="6 rows want as many actions"):
            with_rows.step(np.ones(5, int))
        with pytest.raises(treadle.BadAction):
            with_rows.step(np.full(6, 9))
        with pytest.raises(UsageError, match="reset_mask has all of its rows, or none"):
            with_rows.reset(options={"reset_mask": np.arange(6) < 2})
        with pytest.raises(UsageError, match=r"\{agent: \[n, ...\]\} in the grouped form, got ndarray"):
            grouped.step(np.ones(6, int))
        with pytest.raises(UsageError, match="'d' is not an agent; the agents are a, b, c"):
            grouped.step({"d": np.ones(2, int)})
        with pytest.raises(UsageError, match="agent 'c' acts, but its actions are missing"):
            grouped.step({"a": np.ones(2, int)})
        with pytest.raises(UsageError, match="2 slots want as many actions of each agent"):
            grouped.step({"a": np.ones(3, int), "c": np.ones(2, int)})
        grouped.step({"a": np.ones(2, int), "c": np.ones(2, int)})
        with pytest.raises(treadle.errors.StateError, match="pickles as what it was built with"):
            grouped.vec.get_states()
    finally:
        with_rows.close()
        grouped.close()
