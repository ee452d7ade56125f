"""Ids that the caller has registered, made known to workers.

Workers start clean: what a script registers (itself, or by importing ale_py, say) is unknown to them, and a factory
such as `lambda: gymnasium.make("Mine-v0")` would fail there. So the caller's registry travels along (some 20 kB): also
the ids of Gymnasium itself, which the caller may have registered anew. A class defined in `__main__` travels by value.
"""

from __future__ import annotations

import os
import pickle
import warnings
from functools import lru_cache
from typing import Any

from gymnasium.envs.registration import registry

from treadle import pickling


def own_registrations() -> bytes:
    """The caller's specs, for `register_missing`. What cannot be pickled stays behind."""
    specs = list(registry.values())
    try:
        return pickling.dumps((os.getpid(), specs))
    except Exception:  # noqa: BLE001 - pickling runs foreign code
        return pickling.dumps((os.getpid(), [spec for spec in specs if _pickles(spec)]))


@lru_cache(maxsize=4)  # every slot of a worker asks
def register_missing(pickled: bytes | None) -> None:
    """Register what is not registered here, or in another way."""
    if pickled is None:
        return
    pid, specs = pickle.loads(pickled)
    if pid == os.getpid():
        return  # the caller's own slots have its registry already
    for spec in specs:
        if registry.get(spec.id) != spec:
            registry[spec.id] = spec
    # a package that registers them once more when it is imported here does no wrong: hundreds of lines for ale_py
    warnings.filterwarnings("ignore", r".*Overriding environment .* already in registry", UserWarning)


def _pickles(spec: Any) -> bool:
    try:
        pickling.dumps(spec)
    except Exception:  # noqa: BLE001 - as above
        return False
    return True
