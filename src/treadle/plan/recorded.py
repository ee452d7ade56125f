"""What an item of a batch that planning stepped is replayed from: its state, and its action or actions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from treadle.errors import WorkerError
from treadle.plan.items import Items
from treadle.plan.store import StateHandle
from treadle.repro import Repro, failure_of, note

Describe = Callable[[], dict[str, Any]]


def keep(describe: Describe | None, items: Items, some: range, rollout: str | None, error: WorkerError) -> None:
    """Keep it as the error's `repro`. `describe`: says what builds the environment; None: nothing is kept. `some`: the
    item that raised, or those that a worker was given of which one ended it."""
    if describe is None:
        return
    states = [None if items.states is None else items.states[item // items.repeat] for item in some]
    states = [state.fetch() if type(state) is StateHandle else state for state in states]
    which = f"item {some[0]}" if len(some) == 1 else f"one of the items {some[0]} to {some[-1]}"
    repro = Repro({"face": "item", "title": f"{which} of a batch", "failed": failure_of(error)})
    dts = [int(items.dts[item]) for item in some]
    for name, thing in {**describe(), "state": states, "dts": dts, "several": rollout is not None}.items():
        repro.put(name, thing)
    actions = [items.actions[item] for item in some]
    array = np.asarray(actions) if len({np.shape(action) for action in actions}) == 1 else np.array(None)
    if array.dtype.hasobject:
        repro.put("actions", actions)
    else:
        repro.arrays["item"] = array
    note(error, repro)
