"""Seeds: golden numbers, refusals, and global generators that are put back."""

from __future__ import annotations

import random
import sys
import types
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies

from conftest import require
from treadle import seeding

# Written down once. A change of any of these numbers changes every data set that was ever collected with a seed.
GOLDEN = {
    (0,): 3527577169254209511,
    (0, 0, 0): 8336741271172393109,
    (0, 0, 1): 6158085015386229076,
    (0, 1, 0): 7756059465738455783,
    (123, 0, 7): 8068599572834452249,
    (123, 1, 7): 9063536955851384556,
    (123, 2, 3, 1): 4513311499993194606,
    (2**63 - 1, 0, 2**32 - 1): 63201043887766391,
}


@pytest.mark.parametrize("path", GOLDEN)
def test_golden_numbers(path: tuple[int, ...]) -> None:
    assert seeding.derive(*path) == GOLDEN[path]


@given(strategies.integers(0, 2**140), strategies.lists(strategies.integers(0, 2**32 - 1), max_size=4))
def test_a_seed_is_what_numpys_seed_sequence_gives(root: int, path: list[int]) -> None:
    high, low = np.random.SeedSequence(root, spawn_key=tuple(path)).generate_state(2, np.uint32).tolist()
    assert seeding.derive(root, *path) == (high << 32 | low) & (2**63 - 1)


def test_the_named_seeds_are_the_documented_paths() -> None:
    assert seeding.episode_env_seed(123, 7) == GOLDEN[123, 0, 7]
    assert seeding.episode_policy_seed(123, 7) == GOLDEN[123, 1, 7]
    assert seeding.restart_seed(123, 3, 1) == GOLDEN[123, 2, 3, 1]


def test_seeds_are_distinct_python_ints_of_63_bits() -> None:
    seeds = [seeding.derive(root, a, b) for root in range(5) for a in range(3) for b in range(40)]
    assert len(set(seeds)) == len(seeds)
    assert all(type(seed) is int and 0 <= seed < 2**63 for seed in seeds)
    assert max(seeds) >= 2**62


def test_numpy_integers_are_integers() -> None:
    assert seeding.derive(np.uint8(123), np.int64(0), np.int32(7)) == GOLDEN[123, 0, 7]


@pytest.mark.parametrize("root", [-1, np.int64(-1), 1.0, "1", None, True, np.bool_(True), np.array([1])])
def test_a_root_that_is_no_seed_is_refused(root: Any) -> None:
    with pytest.raises(ValueError, match="a seed must"):
        seeding.derive(root, 0, 1)


@pytest.mark.parametrize("entry", [-1, 2**32, 0.5, None])
def test_an_entry_of_the_path_that_would_collide_or_is_no_index_is_refused(entry: Any) -> None:
    with pytest.raises(ValueError, match="an entry of a seed's path must"):
        seeding.derive(1, 0, entry)


def draws() -> tuple[float, float]:
    return random.random(), float(np.random.random())


def test_seed_globals_is_repeatable_and_uses_every_bit() -> None:
    with seeding.keep_globals():
        seeding.seed_globals(5)
        first = draws()
        seeding.seed_globals(5)
        assert draws() == first
        seeding.seed_globals(5 + 2**40)
        other = draws()
    assert other[0] != first[0]
    assert other[1] != first[1]


@pytest.mark.parametrize("seed", [-1, 2**63, 1.5])
def test_seed_globals_refuses_what_is_no_seed(seed: Any) -> None:
    with pytest.raises(ValueError, match="a seed must"):
        seeding.seed_globals(seed)


def test_keep_globals_restores_even_when_the_block_raises() -> None:
    with seeding.keep_globals():
        seeding.seed_globals(11)
        expected = draws()
        seeding.seed_globals(11)
        with pytest.raises(RuntimeError, match="inside"), seeding.keep_globals():
            seeding.seed_globals(99)
            draws()
            raise RuntimeError("inside")
        assert draws() == expected


class FakeTorch(types.ModuleType):
    """As much of torch as the module touches: one number for the CPU's generator, one per GPU."""

    def __init__(self, *, cuda: bool) -> None:
        super().__init__("torch")
        self.cpu, self.gpus = 1, [2, 3]
        self.default_generator = types.SimpleNamespace(manual_seed=self.set_rng_state)
        self.cuda = types.SimpleNamespace(
            is_initialized=lambda: cuda,
            manual_seed_all=lambda seed: self._set_gpus([seed] * 2),
            get_rng_state_all=lambda: list(self.gpus),
            set_rng_state_all=self._set_gpus,
        )

    def get_rng_state(self) -> int:
        return self.cpu

    def set_rng_state(self, state: int) -> None:
        self.cpu = state

    def _set_gpus(self, states: list[int]) -> None:
        self.gpus = list(states)


@pytest.mark.parametrize("cuda", [False, True])
def test_torch_is_seeded_and_kept_where_it_is_imported(monkeypatch: pytest.MonkeyPatch, cuda: bool) -> None:
    torch = FakeTorch(cuda=cuda)
    monkeypatch.setitem(sys.modules, "torch", torch)
    with seeding.keep_globals():
        seeding.seed_globals(42)
        assert torch.cpu == 42
        assert torch.gpus == ([42, 42] if cuda else [2, 3])
    assert torch.cpu == 1
    assert torch.gpus == [2, 3]


def test_torch_is_not_imported_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    with seeding.keep_globals():
        seeding.seed_globals(1)
    assert "torch" not in sys.modules


@pytest.mark.heavy
def test_real_torch() -> None:
    torch = require("torch")
    before = torch.get_rng_state()
    with seeding.keep_globals():
        seeding.seed_globals(2**62 + 1)
        first = torch.rand(3)
        seeding.seed_globals(2**62 + 1)
        assert torch.equal(torch.rand(3), first)
    assert torch.equal(torch.get_rng_state(), before)
