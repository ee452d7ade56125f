"""Ids of environments: the packages behind them, the error about an unknown one, and the caller's registry in workers.

Workers start clean: they lack the ids that a script registers, itself or by importing ale_py, say. A factory such as
`lambda: gymnasium.make("Mine-v0")` would fail there. So the caller's registry travels along (some 20 kB), with the ids
of Gymnasium itself, which the caller may have registered anew. A class defined in `__main__` travels by value.
"""

from __future__ import annotations

import difflib
import importlib
import os
import pickle
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec, registry

from treadle import pickling
from treadle.errors import MissingExtra, UsageError
from treadle.packages import PACKAGES


def import_package(env_id: str) -> None:
    """Import the package behind an id, if `PACKAGES` has one. Raises MissingExtra if it is not installed."""
    for prefix, (package, extra) in PACKAGES.items():
        if env_id.startswith(prefix):
            try:
                module = importlib.import_module(package)
            except ModuleNotFoundError as error:
                if error.name != package:
                    raise
                name = f"'treadle[{extra}]'" if extra else package
                raise MissingExtra(f"{env_id} needs the package {package}: pip install {name}") from error
            gym.register_envs(module)


# what Gymnasium says of an id that is none, and of a module of "module:Id" that is not there
NO_ID = ("Malformed environment ID", "Environment registration via importing a module failed")


@contextmanager
def registered(env_id: str) -> Iterator[None]:
    """Run a block that calls `gymnasium.make(env_id)`.

    Raises UsageError for an unknown id, and names the nearest ones. Likewise for a text that is not an id, and for a
    missing module of "module:Id". Other errors of the block are raised unchanged.
    """
    module, colon, name = env_id.rpartition(":")
    if colon and not (module and name):
        raise UsageError(
            f"{env_id!r} is not an environment: module:Id is a module that registers environments, and an id"
        )
    try:
        yield
    except gym.error.UnregisteredEnv as error:
        if name in gym.registry:
            raise  # it is there, and what its constructor wants is not
        found = nearest_ids(env_id)
        hint = f"did you mean {' or '.join(found)}?" if found else "gymnasium.pprint_registry() lists them"
        raise UsageError(f"environment {env_id!r} is unknown; {hint}") from error
    except (gym.error.Error, ModuleNotFoundError) as error:
        if isinstance(error, gym.error.DeprecatedEnv) or any(text in str(error) for text in NO_ID):
            raise UsageError(f"environment {env_id!r} is unknown: {error}") from error
        raise


def spec_of(env_id: str) -> EnvSpec:
    """Return the spec that is registered under an id; the package behind the id is imported first.

    Raises UsageError, MissingExtra, and what Gymnasium raises.
    """
    import_package(env_id)
    with registered(env_id):
        return gym.spec(env_id)


def nearest_ids(env_id: str, count: int = 3) -> list[str]:
    """Return at most `count` registered ids that look like `env_id`. Packages of `PACKAGES` that work are imported
    first."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of packages that nobody has asked for
        for prefix, (package, _) in PACKAGES.items():
            if find_spec(package) is not None:
                with suppress(Exception):  # a broken package has no ids, and nobody has asked for it
                    import_package(prefix)
    known = {name.lower(): name for name in gym.registry}
    bare: dict[str, str] = {}
    for name in gym.registry:  # the newest version of a name comes last
        bare[name.rpartition("/")[2].lower()] = name
    text = env_id.rpartition(":")[2].lower()
    close = [known[each] for each in difflib.get_close_matches(text, known, count)]
    close += [bare[each] for each in difflib.get_close_matches(text.rpartition("/")[2], bare, count)]
    return list(dict.fromkeys(close))[:count]


def own_registrations() -> bytes:
    """Return a pickle of the caller's specs for `register_missing`, without those that cannot be pickled."""
    specs = list(registry.values())
    try:
        return pickling.dumps((os.getpid(), specs))
    except Exception:  # noqa: BLE001 - pickling runs foreign code
        return pickling.dumps((os.getpid(), [spec for spec in specs if _pickles(spec)]))


@lru_cache(maxsize=4)  # every slot of a worker asks
def register_missing(pickled: bytes | None) -> None:
    """Register the specs of `own_registrations` that this process lacks or has otherwise; None: there are none."""
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
