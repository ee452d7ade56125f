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


def keep(describe: Describe | None, items: Items, item: int, rollout: str | None, error: WorkerError) -> None:
    """Keep it as the error's `repro`. `describe`: says what builds the environment; None: nothing is kept."""
    if describe is None:
        return
    state = None if items.states is None else items.states[item // items.repeat]
    if type(state) is StateHandle:
        state = state.fetch()
    repro = Repro({"face": "item", "title": f"item {item} of a batch", "failed": failure_of(error)})
    about = {**describe(), "state": state, "dt": int(items.dts[item]), "several": rollout is not None}
    for name, thing in about.items():
        repro.put(name, thing)
    action = np.asarray(items.actions[item])
    if action.dtype.hasobject:
        repro.put("action", items.actions[item])
    else:
        repro.arrays["item"] = action
    note(error, repro)
