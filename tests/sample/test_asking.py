"""A policy in the caller: what each episode owns, what is cut from an answer, what is seen of it in the first batch."""

import numpy as np
import pytest

from treadle.errors import BadAction, UsageError
from treadle.play.recipe import CallerInference
from treadle.program.asking import CallerPolicy
from treadle.sample.inference import asked_in_caller


def observations(rows: int, at: int = 0) -> np.ndarray:
    return np.arange(at, at + rows * 3, dtype=np.float32).reshape(rows, 3)


def nearest(batch: np.ndarray) -> np.ndarray:
    """A policy whose rows do not depend on their batch."""
    return (batch[:, 0] > 3).astype(np.int64)


def test_a_function_is_asked_with_the_batch_and_answers_for_its_rows() -> None:
    policy = CallerPolicy(nearest, "nearest")
    for slot in range(3):
        policy.start(slot, slot)
    actions, infos = policy.ask(observations(3), [0, 2, 1])
    assert actions.tolist() == [0, 0, 1]
    assert infos is None
    assert policy.told == []


def draw(batch: np.ndarray, rng: list[np.random.Generator]) -> np.ndarray:
    return np.array([each.integers(1_000_000) for each in rng])


def test_each_episode_draws_from_its_own_generator_whoever_is_in_the_batch() -> None:
    alone = CallerPolicy(draw, "draw")
    alone.start(4, 99)
    wanted = [int(alone.ask(observations(1), [4])[0][0]) for _ in range(3)]
    among = CallerPolicy(draw, "draw")
    for slot, seed in enumerate([5, 99, 7]):
        among.start(slot, seed)
    found = [int(among.ask(observations(2), [0, 1])[0][1])]
    among.ask(observations(2), [0, 2])
    found.append(int(among.ask(observations(2), [1, 2])[0][0]))
    found.append(int(among.ask(observations(1), [1])[0][0]))
    assert found == wanted
    among.start(1, 99)  # the same episode again
    assert int(among.ask(observations(1), [1])[0][0]) == wanted[0]


class Counting:
    """Its state counts the steps of each row."""

    def initial_state(self, rows: int) -> dict[str, np.ndarray]:
        return {"steps": np.zeros((rows, 1), np.int64)}

    def __call__(self, batch: np.ndarray, state: dict[str, np.ndarray]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        after = {"steps": state["steps"] + 1}
        return after["steps"][:, 0], after


@pytest.mark.parametrize("pad_to", [None, 8])
def test_a_state_stays_with_its_episode(pad_to: int | None) -> None:
    policy = CallerPolicy(Counting(), "counting", pad_to=pad_to)
    for slot in range(4):
        policy.start(slot, 0)
    assert policy.ask(observations(3), [0, 1, 2])[0].tolist() == [1, 1, 1]
    assert policy.ask(observations(2), [2, 3])[0].tolist() == [2, 1]
    policy.start(2, 0)
    assert policy.ask(observations(4), [3, 2, 1, 0])[0].tolist() == [2, 1, 2, 2]


def test_the_first_look_costs_no_episode_a_draw_or_a_step() -> None:
    looked = CallerPolicy(draw, "draw")
    for slot in (0, 1):
        looked.start(slot, slot)
    first = looked.ask(observations(2), [0, 1])[0]
    expected = [np.random.Generator(np.random.PCG64(seed)).integers(1_000_000) for seed in (0, 1)]
    assert first.tolist() == expected


def test_a_row_that_depends_on_its_batch_is_told_of() -> None:
    policy = CallerPolicy(lambda batch: (batch[:, 0] >= batch[:, 0].mean()).astype(np.int64), "mean")
    policy.start(0, 0)
    policy.start(1, 1)
    policy.ask(observations(2), [0, 1])
    (told,) = policy.told
    assert "mean" in told
    assert "pad_to=8" in told


def test_a_policy_that_draws_from_global_generators_is_told_of() -> None:
    policy = CallerPolicy(lambda batch: np.random.randint(2, size=len(batch)), "careless")
    policy.start(0, 0)
    policy.ask(observations(1), [0])
    assert "rng" in policy.told[0]


def test_short_batches_are_filled_and_the_filling_is_nobodys() -> None:
    asked = []

    def policy(batch: np.ndarray, rng: list[np.random.Generator]) -> np.ndarray:
        asked.append((len(batch), len(rng)))
        return np.array([each.integers(1000) for each in rng])

    padded = CallerPolicy(policy, "padded", pad_to=8)
    padded.start(0, 3)
    actions = [int(padded.ask(observations(1), [0])[0][0]) for _ in range(2)]
    rng = np.random.Generator(np.random.PCG64(3))
    assert actions == [rng.integers(1000), rng.integers(1000)]
    assert set(asked) == {(8, 8)}


def test_of_an_answer_for_several_steps_so_many_are_taken_as_are_played() -> None:
    policy = CallerPolicy(lambda batch: np.zeros((len(batch), 5, 2), np.float32), "chunks", n_action_steps=3)
    policy.start(0, 0)
    assert policy.ask(observations(1), [0])[0].shape == (1, 3, 2)
    short = CallerPolicy(lambda batch: np.zeros((len(batch), 2, 2), np.float32), "chunks", n_action_steps=3)
    short.start(0, 0)
    with pytest.raises(BadAction, match="at least n_action_steps=3 steps each, got 2"):
        short.ask(observations(1), [0])


def test_infos_of_columns_or_of_dicts_are_told_by_row() -> None:
    columns = CallerPolicy(lambda batch: (nearest(batch), {"value": batch[:, 1]}), "columns")
    rows = CallerPolicy(lambda batch: (nearest(batch), [{"value": row[1]} for row in batch]), "rows")
    for policy in (columns, rows):
        policy.start(0, 0)
        policy.start(1, 0)
        _, infos = policy.ask(observations(2), [0, 1])
        assert infos == [{"value": np.float32(1)}, {"value": np.float32(4)}]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (lambda batch: nearest(batch)[:-1], r"actions of 2 rows, got int64\[1\]"),
        (lambda batch: 3, "actions of 2 rows, got a int"),
        (lambda batch: (nearest(batch), {"value": np.zeros(3)}), r"infos\['value'\] of 2 rows"),
        (lambda batch: (nearest(batch), [{}]), "2 infos, got 1"),
    ],
)
def test_an_answer_about_another_number_of_rows_is_refused(policy, expected: str) -> None:
    asked = CallerPolicy(policy, "wrong")
    asked.start(0, 0)
    asked.start(1, 0)
    with pytest.raises(BadAction, match=expected):
        asked.ask(observations(2), [0, 1])


def test_a_state_of_another_shape_is_refused() -> None:
    class Losing(Counting):
        def __call__(self, batch, state):
            return nearest(batch), {"steps": np.zeros((1, 1))}

    policy = CallerPolicy(Losing(), "losing")
    policy.start(0, 0)
    policy.start(1, 0)
    with pytest.raises(BadAction, match=r"2 rows on their first axis, got one of shape \[1, 1\]"):
        policy.ask(observations(2), [0, 1])
    with pytest.raises(BadAction, match=r"\(actions, state\)"):
        silent = CallerPolicy(type("Silent", (Counting,), {"__call__": lambda self, b, s: nearest(b)})(), "silent")
        silent.start(0, 0)
        silent.ask(observations(1), [0])


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (lambda k: {"steps": np.zeros((k, 7))}, r"\(steps \[1\], each row\), got steps \[7\], each row"),
        (lambda k: np.zeros((k, 1)), r"got state \[1\], each row"),
    ],
)
def test_a_state_is_like_the_first_one(state, said: str) -> None:
    class Changing(Counting):
        def __call__(self, batch, before):
            return nearest(batch), state(len(batch))

    policy = CallerPolicy(Changing(), "changing")
    policy.start(0, 0)
    with pytest.raises(BadAction, match=said):
        policy.ask(observations(1), [0])


@pytest.mark.parametrize(
    "wrong",
    [
        {"pad_to": 0}, {"pad_to": 2.5}, {"n_action_steps": 0}, {"n_action_steps": True},
        {"batch_size": 0}, {"batch_size": 1.5}, {"batch_size": True}, {"max_wait": -1.0},
    ],
)  # fmt: skip
def test_bad_numbers_are_refused_by_name(wrong: dict) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        CallerInference(nearest, **wrong)


def test_what_is_no_policy_is_refused() -> None:
    with pytest.raises(UsageError, match="callable on batches"):
        CallerPolicy(3, "three")


def test_where_a_policy_is_asked_follows_from_what_it_is() -> None:
    class Batched:
        batched = True

    assert asked_in_caller(nearest) is None
    assert asked_in_caller(Batched()) is not None
    assert asked_in_caller(Batched) is not None  # a class is read, not built
    assert asked_in_caller(type("Not", (), {"batched": False})()) is None
