"""Everything that may be a policy becomes an actor, and repeats from its seed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces as gs

from treadle.errors import BadAction, UsageError
from treadle.program.actors import build_actor
from treadle.program.policies import load_object, policy_name
from treadle.sample.named import env_of

SEEN = gs.Box(-1, 1, (3,), np.float32)
ACTS = gs.Discrete(4)


def played(policy: Any, rows: int = 1, steps: int = 40, seed: int = 5, space: gym.Space = ACTS) -> list[list[Any]]:
    actor = build_actor(policy, SEEN, space, rows)
    for row in range(rows):
        actor.start(row, seed + row)
    rng = np.random.default_rng(0)
    out = [actor.act([rng.uniform(-1, 1, 3).astype(np.float32) for _ in range(rows)])[0] for _ in range(steps)]
    actor.close()
    return out


@pytest.mark.parametrize(
    "space",
    [
        gs.Discrete(4, start=-1),
        gs.Box(-2, 3, (2,), np.float32),
        gs.Box(-np.inf, np.inf, (2,), np.float64),
        gs.MultiDiscrete([3, 5]),
        gs.MultiBinary(4),
        gs.Dict(a=gs.Discrete(3), b=gs.Tuple((gs.Box(0, 255, (2,), np.uint8), gs.Text(5)))),
    ],
    ids=str,
)
def test_random_actions_are_in_the_space_and_come_from_the_seed(space: gym.Space) -> None:
    first = [row for (row,) in played("random", space=space, steps=300)]
    assert all(space.contains(action if not isinstance(action, int) else np.int64(action)) for action in first)
    assert repr(first) == repr([row for (row,) in played(None, space=space, steps=300)])
    assert repr(first) != repr([row for (row,) in played(None, space=space, steps=300, seed=6)])


def test_random_actions_of_a_row_do_not_depend_on_its_neighbours() -> None:
    alone = [row for (row,) in played("random", seed=9)]
    assert [rows[2] for rows in played("random", rows=3, seed=7)] == alone


def test_random_actions_are_uniform() -> None:
    counts = np.bincount([row for (row,) in played("random", steps=8000)], minlength=4)
    assert ((counts - 2000) ** 2 / 2000).sum() < 21.1  # chi squared with 3 degrees of freedom, p = 0.0001


class Predicts:
    """As Stable-Baselines3's policies."""

    def predict(self, observation: np.ndarray, deterministic: bool = False) -> tuple[np.ndarray, None]:
        assert not deterministic
        return (observation.sum(axis=1) > 0).astype(np.int64), None


class GetsAction:
    def __init__(self, observation_space: gym.Space, action_space: gym.Space) -> None:
        assert (observation_space, action_space) == (SEEN, ACTS)

    def get_action(self, observation: np.ndarray) -> tuple[int, dict[str, float]]:
        return int(observation.sum() > 0), {"sum": float(observation.sum())}


class GetsActions:
    def get_actions(self, observations: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        return (observations.sum(axis=1) > 0).astype(np.int64), {"sum": observations.sum(axis=1)}


def sign(observations: np.ndarray) -> np.ndarray:
    return (observations.sum(axis=1) > 0).astype(np.int64)


def make_sign(action_space: gym.Space) -> Any:
    assert action_space == ACTS
    return sign


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("policy", [Predicts(), Predicts, GetsAction, GetsActions(), make_sign, lambda o: sign(o)])
def test_every_kind_of_policy_gives_the_same_actions(policy: Any, rows: int) -> None:
    assert played(policy, rows) == played(sign, rows)


def test_infos_of_a_policy_come_one_a_row() -> None:
    for policy in (GetsAction, GetsActions()):
        actor = build_actor(policy, SEEN, ACTS, 2)
        _, infos = actor.act([np.full(3, x, np.float32) for x in (0.5, -0.5)])
        assert infos is not None
        assert [info["sum"] for info in infos] == [1.5, -1.5]


def test_a_policy_sees_full_batches_also_when_rows_rest() -> None:
    shapes = []

    def policy(observations: np.ndarray) -> np.ndarray:
        shapes.append(observations.shape)
        return np.zeros(len(observations), np.int64)

    actor = build_actor(policy, SEEN, ACTS, 3)
    actor.act([None, np.ones(3, np.float32), None])
    assert set(shapes) == {(3, 3)}


def test_rng_is_the_episodes_own() -> None:
    def policy(observations: np.ndarray, rng: Any) -> np.ndarray:
        rngs = rng if isinstance(rng, list) else [rng]
        return np.array([each.integers(4) for each in rngs])

    assert played(policy, seed=3) == played(policy, seed=3) != played(policy, seed=4)
    assert [rows[1] for rows in played(policy, rows=2, seed=2)] == [row for (row,) in played(policy, seed=3)]


def test_reset_gets_the_seed() -> None:
    class Seeded:
        def reset(self, seed: int) -> None:
            self.rng = np.random.default_rng(seed)

        def __call__(self, observations: np.ndarray) -> np.ndarray:
            return self.rng.integers(0, 4, len(observations))

    assert played(Seeded, seed=3) == played(Seeded, seed=3) != played(Seeded, seed=4)


@pytest.mark.parametrize(
    "answer", [np.zeros((1, 2), np.int64), np.array([0.5]), np.array([4]), np.zeros(2, np.int64), "left"], ids=repr
)
def test_an_action_that_does_not_fit_is_refused(answer: Any) -> None:
    actor = build_actor(lambda observations: answer, SEEN, ACTS)
    with pytest.raises(BadAction, match="the policy's actions do not fit the action space"):
        actor.act([np.zeros(3, np.float32)])


def test_a_wrong_dtype_is_told_with_what_mends_it() -> None:
    actor = build_actor(lambda observations: np.array([0.5]), SEEN, ACTS)
    with pytest.raises(BadAction, match=r"\(policy policy; actions.astype\(np.int64\) casts\)"):
        actor.act([np.zeros(3, np.float32)])
    actor = build_actor(lambda observations: np.zeros((1, 2), np.int64), SEEN, ACTS)
    with pytest.raises(BadAction, match=r"\(policy policy\)$"):
        actor.act([np.zeros(3, np.float32)])


class Tensor:
    """As torch's are, as far as anybody here looks."""

    def numpy(self) -> np.ndarray:
        return np.zeros(1, np.int64)


@pytest.mark.parametrize(
    ("answer", "mends"), [(1, "a policy gets a batch of observations"), (Tensor(), r"its .numpy\(\) is an array")]
)
def test_one_action_and_a_tensor_are_told_what_is_wanted(answer: Any, mends: str) -> None:
    actor = build_actor(lambda observations: answer, SEEN, ACTS)
    with pytest.raises(BadAction, match=mends):
        actor.act([np.zeros(3, np.float32)])


class ResetsRows:
    """One object for all rows: its reset is told which."""

    def __init__(self) -> None:
        self.rngs: dict[int, Any] = {}

    def reset(self, seed: int, row: int) -> None:
        self.rngs[row] = np.random.default_rng(seed)

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        return np.array([self.rngs[row].integers(4) for row in range(len(observations))])


class ResetsItself:
    """Knows no rows."""

    def reset(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        assert len(observations) == 1
        return self.rng.integers(0, 4, 1)


SHARED = ResetsItself()


@pytest.mark.parametrize("policy", [ResetsRows(), ResetsRows, ResetsItself, lambda: ResetsItself()])
def test_reset_is_called_for_every_row(policy: Any) -> None:
    alone = [row for (row,) in played(ResetsItself, seed=7)]
    assert [rows[2] for rows in played(policy, rows=3, seed=5)] == alone


@pytest.mark.parametrize("policy", [ResetsItself(), lambda: SHARED])
def test_one_object_that_knows_no_rows_is_refused_for_several(policy: Any) -> None:
    with pytest.raises(UsageError, match=r"has a reset that takes no `row`.*one environment a worker"):
        build_actor(policy, SEEN, ACTS, 2)
    assert played(policy)


def test_what_is_no_policy_is_refused() -> None:
    with pytest.raises(UsageError, match="a policy is callable or has predict"):
        build_actor(7, SEEN, ACTS)


def test_objects_are_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text("class Deep:\n    value = 7\n")
    monkeypatch.chdir(tmp_path)
    assert load_object("mine.py:Deep.value") == 7
    assert load_object("os.path:join")("a", "b") == "a/b"
    for reference, said in [
        ("mine.py:Other", "has no 'Other'"),
        ("gone.py:x", "file gone.py does not exist"),
        ("no_such_module:x", "module 'no_such_module' is not on the import path"),
        ("nocolon", "expected module:attribute"),
    ]:
        with pytest.raises(UsageError, match=said):
            load_object(reference)


def test_the_module_of_a_file_has_one_name_in_all_processes(tmp_path: Path) -> None:
    """What one process pickles by reference, another that has loaded the file can unpickle."""
    (tmp_path / "mine.py").write_text("class Thing:\n    value = 7\n")
    said = []
    code = "from treadle.program.policies import load_object as l; print(l('mine.py:Thing').__module__)"
    for seed in "12":
        env = {**os.environ, "PYTHONHASHSEED": seed}
        said.append(subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True).stdout)
    assert said[0] == said[1]
    assert said[0].startswith(b"treadle_user_mine_")


def test_names() -> None:
    names = [policy_name(each) for each in (None, "random", "a/b.py:Act", sign, Predicts(), lambda o: o)]
    assert names == ["random", "random", "act", "sign", "predicts", "policy"]


def test_a_file_or_module_alone_lists_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    source = "import numpy as np\nraise SystemExit\nclass P: pass\ndef act(o): ...\nlinear = P()\n_x = SEED = 1\n"
    Path("some_policies.py").write_text(source)
    for reference in ("some_policies.py", "some_policies.py:", "some_policies"):
        with pytest.raises(UsageError, match=r"it has: P, act, linear; as in some_policies(\.py)?:P"):
            load_object(reference)
    with pytest.raises(UsageError, match=r"file nothing\.py does not exist"):
        load_object("nothing.py")
    with pytest.raises(UsageError, match=r"It has: P, act, linear\. As in some_policies\.py:P"):
        env_of("some_policies.py")
