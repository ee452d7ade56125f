"""Ids that the caller has registered, made known to workers.

Workers start clean: what a script registers (itself, or by importing ale_py, say) is unknown to them, and a factory
such as `lambda: gymnasium.make("Mine-v0")` would fail there. So the caller's registrations travel along, except those
of Gymnasium itself. A class defined in `__main__` travels by value.
"""

from __future__ import annotations

import pickle
from functools import lru_cache
from typing import Any

import cloudpickle
from gymnasium.envs.registration import EnvSpec, registry


def own_registrations() -> bytes | None:
    """The specs that are not Gymnasium's own, for `register_missing`; None when there are none.

    Specs that cannot be pickled stay behind: they matter only to those who make them.
    """
    specs = [spec for spec in registry.values() if not _is_gymnasiums(spec)]
    if not specs:
        return None
    try:
        return cloudpickle.dumps(specs)
    except Exception:  # noqa: BLE001 - pickling runs foreign code
        return cloudpickle.dumps([spec for spec in specs if _pickles(spec)])


@lru_cache(maxsize=4)  # every slot of a worker asks
def register_missing(pickled: bytes | None) -> None:
    """Register what is not registered here yet."""
    for spec in pickle.loads(pickled) if pickled is not None else ():
        registry.setdefault(spec.id, spec)


def _is_gymnasiums(spec: EnvSpec) -> bool:
    return isinstance(spec.entry_point, str) and spec.entry_point.startswith("gymnasium.envs.")


def _pickles(spec: Any) -> bool:
    try:
        cloudpickle.dumps(spec)
    except Exception:  # noqa: BLE001 - as above
        return False
    return True
