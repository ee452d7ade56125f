"""Infos whose keys and types change in mid-run, between slots, and at ends and resets: as Gymnasium's own vector."""

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st
from small_envs import assert_same, copied

from treadle.vector.gymnasium import VectorEnv
from treadle.vector.infos import InfoStyle, columns
from treadle.worker.options import WorkerOptions

N = 5


class Scripted(gym.Env[np.ndarray, int]):
    """Says what is written in `script`: (info, does the episode end?) for each step, and in `begun`."""

    observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)
    script: Any = ()
    begun: Any = None
    a_row = 0  # does a reset take a row of its own? So that slots that have ended do not fall behind in the script
    at = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.at = self.at + self.a_row if seed is None else 0
        return np.zeros(1, np.float32), self.begun or {}

    def step(self, action: int) -> Any:
        info, over = self.script[self.at]
        self.at += 1
        return np.zeros(1, np.float32), 0.0, over, False, info


# what a key may have; Gymnasium's own columns take one of them a batch
KINDS: list[Any] = [float, int, bool, np.bool_, np.float64, np.float32, np.float16, np.int64, np.int8, np.uint64, str]
KINDS += ["array", "picture", "flags", "text", "none", "dict", "deep"]


def value_of(kind: Any, number: int) -> Any:
    if isinstance(kind, type):
        return kind(number)
    return {
        "array": np.array([number, 0.5], np.float32),
        "picture": np.full((2, 3), number, np.uint8)[:, ::-1],
        "flags": np.array([True, number > 9]),
        "text": "n" * number,
        "none": None,
        "dict": {"a": number, "b": np.float32(number)},
        "deep": {"in": {"x": number / 3}, "y": np.arange(2)},
    }[kind]


@st.composite
def batches_of_infos(draw: Any, steps: int) -> list[list[dict[str, Any]]]:
    """Infos of all slots for each step: keys come and go, a key's type may be another in the next step."""
    out = []
    kinds: dict[str, Any] = {}
    for _ in range(steps):
        if not kinds or draw(st.integers(0, 2)) == 0:
            chosen = draw(st.lists(st.sampled_from(KINDS), max_size=6))
            many = draw(st.sampled_from([0, 0, 0, 30, 100]))
            kinds = {f"key {i}": kind for i, kind in enumerate(chosen)}
            kinds |= {f"key {i}": float for i in range(len(chosen), many)}
        number = draw(st.integers(0, 20))
        infos = []
        for slot in range(N):
            holes = draw(st.sampled_from([(), (), (), ("key 0",), ("key 1", "key 3"), tuple(kinds)]))
            infos.append({key: value_of(kind, number + slot) for key, kind in kinds.items() if key not in holes})
        out.append(infos)
    return out


@st.composite
def runs(draw: Any) -> tuple[list[Any], list[Any]]:
    """Each slot's script, and what each says when it begins."""
    steps = draw(st.integers(1, 6))
    told, resets = draw(batches_of_infos(steps)), draw(batches_of_infos(1))[0]
    ends = draw(st.lists(st.sampled_from([(), (), (0,), (1, 4), range(N)]), min_size=steps, max_size=steps))
    scripts = [[(told[t][slot], slot in ends[t]) for t in range(steps)] for slot in range(N)]
    # a reset and a step meet in a batch: under one key only with one type, as Gymnasium's columns want it
    begun = [{f"begun {key}": value for key, value in resets[slot].items()} for slot in range(N)]
    if draw(st.booleans()):
        for info, (slot, script) in [(info, each) for each in enumerate(scripts) for info, _ in each[1]]:
            info["both"] = np.float64(slot + len(script)) / 3
        for slot in range(N):
            begun[slot] = {"both": np.float64(slot), **begun[slot]}
    return scripts, begun


SETUPS: list[dict[str, Any]] = [{"workers": 2, "inline": 1}, {"worker_options": WorkerOptions(backend="serial")}]


@pytest.fixture(scope="module", params=AutoresetMode, ids=lambda mode: mode.value)
def vectors(request: Any) -> Iterator[list[gym.vector.VectorEnv]]:
    mode = request.param
    made = [VectorEnv([Scripted] * N, autoreset_mode=mode, **setup) for setup in SETUPS]
    yield [SyncVectorEnv([Scripted] * N, autoreset_mode=mode), *made]
    for each in made:
        each.close()


def play(vector: gym.vector.VectorEnv, run: tuple[list[Any], list[Any]]) -> list[Any]:
    scripts, begun = run
    vector.set_attr("script", scripts)
    vector.set_attr("begun", begun)
    vector.set_attr("a_row", int(vector.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP))
    seen = [vector.reset(seed=1)]
    kept = copied(seen)
    for _ in range(len(scripts[0])):
        seen.append(vector.step(np.zeros(N, np.int64)))
        kept.append(copied(seen[-1]))
        over = seen[-1][2] | seen[-1][3]
        if vector.metadata["autoreset_mode"] is AutoresetMode.DISABLED and over.any():
            seen.append(vector.reset(options={"reset_mask": over}))
            kept.append(copied(seen[-1]))
    if isinstance(vector, VectorEnv):
        assert_same(seen, kept, "what was handed out has changed: ")
    return kept


@given(run=runs())
@settings(max_examples=60)
def test_as_gymnasium(vectors: list[gym.vector.VectorEnv], run: Any) -> None:
    theirs, *ours = vectors
    expected = play(theirs, run)
    for vector in ours:
        assert_same(play(vector, run), expected)


def without_ends(run: tuple[list[Any], list[Any]]) -> tuple[list[Any], list[Any]]:
    scripts, begun = run
    return [[(info, False) for info, _ in script] for script in scripts], begun


def exactly(found: Any, expected: Any) -> None:
    """The same types, order of keys and bytes; and none of it the environment's own."""
    assert type(found) is type(expected)
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        assert not expected or found is not expected
        for key in expected:
            exactly(found[key], expected[key])
    elif isinstance(expected, np.ndarray):
        assert (found.dtype, found.shape, found.tobytes()) == (expected.dtype, expected.shape, expected.tobytes())
        assert not np.may_share_memory(found, expected)
    else:
        assert found == expected


@pytest.mark.parametrize("setup", SETUPS)
def test_lists_give_back_what_was_said(setup: dict[str, Any]) -> None:
    vector = VectorEnv([Scripted] * N, infos=InfoStyle.LIST, **setup)

    @given(run=runs().map(without_ends))
    @settings(max_examples=30)
    def check(run: Any) -> None:
        scripts, begun = run
        told = [infos for *_, infos in play(vector, run)]
        for slot in range(N):
            for t, info in enumerate([begun[slot], *(info for info, _ in scripts[slot])]):
                exactly(told[t][slot], info)

    try:
        check()
    finally:
        vector.close()


@pytest.mark.parametrize("setup", SETUPS)
def test_partial_batches_have_the_columns_of_their_rows(setup: dict[str, Any]) -> None:
    vector = VectorEnv([Scripted] * N, **setup)

    @given(run=runs().map(without_ends), most=st.integers(1, N))
    @settings(max_examples=30)
    def check(run: Any, most: int) -> None:
        scripts, begun = run
        vector.set_attr("script", scripts)
        vector.set_attr("begun", begun)
        vector.async_reset(seed=1)
        left = dict.fromkeys(range(N), 0)
        while left:
            *_, infos = vector.recv(min=min(most, len(left)), max=most)
            slots = infos.pop("env_id").tolist()
            infos.pop("valid")
            said = [scripts[slot][left[slot] - 1][0] if left[slot] else begun[slot] for slot in slots]
            assert_same(infos, columns(len(slots), {row: info for row, info in enumerate(said) if info}))
            for slot in slots:
                left[slot] += 1
                if left[slot] > len(scripts[slot]):
                    del left[slot]
            again = [slot for slot in slots if slot in left]
            if again:
                vector.send(np.zeros(len(again), np.int64), again)

    try:
        check()
    finally:
        vector.close()
