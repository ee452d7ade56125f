"""Reset orders: seeds, options and masks as Gymnasium's vectors take them, made into one order a slot."""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from treadle.checks import check_seed
from treadle.errors import UsageError
from treadle.vector.core import WrongType
from treadle.vector.env_slot import Kept, Once

Seeds = int | Sequence[int | None] | None
Options = dict[str, Any] | Sequence[dict[str, Any] | None]


class Orders(NamedTuple):
    """Arguments of `Lockstep.reset`. `slots`: None for all."""

    seeds: list[int | None]
    options: list[Any]
    slots: list[int] | None


def orders_of_all(n: int, seed: Seeds, options: Options | None, gone: Collection[int] = ()) -> Orders:
    """Return the orders for all n slots, or for those of options["reset_mask"], without the `gone`.

    A dropped slot ends its episode in its last row, so code that resets ended slots goes on. The caller's options are
    not changed."""
    seeds, slots = _seeds(seed, n), None
    if isinstance(options, dict) and "reset_mask" in options:
        mask = _mask(options["reset_mask"], n)
        options = {key: value for key, value in options.items() if key != "reset_mask"}
        if not mask.all():
            slots = [slot for slot in np.flatnonzero(mask).tolist() if slot not in gone]
            seeds = [seeds[slot] for slot in slots]
    return Orders(seeds, _each_options(options, len(seeds)), slots)


def orders_of_some(slots: list[int], seed: Seeds, options: Options | None) -> Orders:
    """For some slots; `seed` and `options` are for each of them."""
    return Orders(_seeds(seed, len(slots)), _each_options(options, len(slots)), slots)


def chosen_slots(slots: int | Sequence[int], n: int) -> list[int]:
    """Slot numbers as a list. Raises UsageError unless they are distinct and in 0..n-1."""
    chosen = [slots] if isinstance(slots, int | np.integer) else list(slots)
    whole = all(isinstance(slot, int | np.integer) and not isinstance(slot, bool) for slot in chosen)
    if not chosen or not whole or len(set(chosen)) != len(chosen) or any(not 0 <= slot < n for slot in chosen):
        raise UsageError(f"slots must be distinct integers in 0..{n - 1}, at least one, got {chosen}")
    return [operator.index(slot) for slot in chosen]


def _seeds(seed: Any, count: int) -> list[int | None]:
    if seed is None:
        return [None] * count
    check_seed(seed)
    if isinstance(seed, int | np.integer):
        return [int(seed) + i for i in range(count)]
    try:
        seeds = [None if each is None else operator.index(each) for each in seed]
    except TypeError:
        raise UsageError(f"a seed is a whole number or None, or one of these for each slot, got {seed!r}") from None
    if len(seeds) != count:
        raise UsageError(
            f"If seeds are passed as a list the length must match num_envs={count} but got length={len(seeds)}."
        )
    for place, each in enumerate(seeds):
        check_seed(each, f"seed[{place}]")
    return seeds


def _each_options(options: Any, count: int) -> list[Any]:
    if options is None or isinstance(options, dict):
        return [options] * count
    if not isinstance(options, Sequence) or not all(isinstance(each, Mapping | Once | None) for each in options):
        raise UsageError(f"reset options are a dict, or a dict (or None) for each slot, got {options!r}")
    if len(options) != count:
        raise UsageError(f"{len(options)} reset options for {count} slots")
    return [each if each is None or isinstance(each, Once) else Kept(dict(each)) for each in options]


def _mask(mask: Any, n: int) -> np.ndarray:
    if not isinstance(mask, np.ndarray):
        raise WrongType(f"`options['reset_mask']` must be a numpy array, got {type(mask)}")
    if mask.shape != (n,):
        raise UsageError(f"`options['reset_mask']` must have shape `({n},)`, got {mask.shape}")
    if mask.dtype != np.bool_:
        raise WrongType(f"`options['reset_mask']` must have `dtype=np.bool_`, got {mask.dtype}")
    if not mask.any():
        raise UsageError(
            f"`options['reset_mask']` must contain a boolean array with at least one True value, got reset_mask={mask}"
        )
    return mask
