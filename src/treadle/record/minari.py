"""Everything that needs Minari: the description beside the data, and loading. The only file that imports it.

Minari names Box, Discrete, MultiDiscrete, MultiBinary, Text, Dict and Tuple. Another space whose values are text (such
as MiniGrid's MissionSpace) is stored as the Text space of the texts that occurred. Any other space cannot be stored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium as gym
from gymnasium import spaces as gs

from treadle.errors import UsageError, needed
from treadle.interrupts import Later
from treadle.record.columns import leaves
from treadle.record.hdf5 import library
from treadle.spaces import Layout
from treadle.whole_file import opened, read_json

if TYPE_CHECKING:
    from minari import MinariDataset

NAMESPACE = "treadle"
DATA_FILE = "main_data.hdf5"
METADATA_FILE = "metadata.json"
NAMESPACE_FILE = "namespace_metadata.json"
LONGEST = 200  # bytes of a name: it is a file's, too


def require() -> Any:
    """The package. Raises MissingExtra."""
    # later: modules of Cython make other errors of a Ctrl-C that comes while they begin
    with needed("datasets need Minari and h5py", "data"), Later():
        library()  # Minari reads with it, but does not depend on it
        import minari
    return minari


def dataset_name(env_id: str, policy: str) -> str:
    """`<env>-<policy>-v0`, with every character that Minari does not take in a name replaced by "-"."""

    def plain(text: str) -> str:
        return re.sub(r"-{2,}", "-", re.sub(r"[^A-Za-z0-9_-]", "-", text)).strip("-") or "unnamed"

    return f"{plain(env_id)}-{plain(policy)}-v0"


def checked_name(name: Any) -> str:
    """A dataset's name as Minari takes it, of one that a person gives, with or without a version. Raises UsageError."""
    if not isinstance(name, str) or not re.fullmatch(r"[-\w]+", name) or len(name.encode()) > LONGEST:
        text = "is letters, digits, - and _, such as reach-weak or reach-weak-v1"
        raise UsageError(f"name (--name) {text}, and at most {LONGEST} bytes of them; got {name!r}")
    return name if re.search(r".-v[0-9]+$", name) else f"{name}-v0"


class About(NamedTuple):
    """A dataset's description, without the number of episodes.

    Attributes:
        name: of the dataset, as `checked_name` returns it.
        policy: its name.
        observation_space, action_space: of the environment; in a file those that Minari can name.
        env_spec: of the environment that `recover_environment` makes, as JSON; None without a spec.
    """

    name: str
    policy: str
    observation_space: gym.Space
    action_space: gym.Space
    env_spec: str | None = None


def describe(about: About, episodes: int, steps: int, nbytes: int) -> str:
    """The text of `metadata.json` as Minari writes it: of so many episodes, with so many steps, in a data file of so
    many bytes."""
    from minari.serialization import serialize_space

    metadata: dict[str, Any] = {
        "total_episodes": episodes,
        "total_steps": steps,
        "data_format": "hdf5",
        "jpeg_encoding": False,
        "observation_space": serialize_space(about.observation_space),
        "action_space": serialize_space(about.action_space),
    }
    if about.env_spec is not None:
        metadata["env_spec"] = about.env_spec
    metadata |= {"dataset_size": round(nbytes / 1e6, 1), "algorithm_name": about.policy}
    metadata |= {"dataset_id": f"{NAMESPACE}/{about.name}", "minari_version": require().__version__}
    return json.dumps(metadata)


def described(data: Path) -> list[Any]:
    """Of a dataset's description: observation space, action space, and the environment's spec as JSON (None: none)."""
    require()
    from minari.serialization import deserialize_space

    metadata = read_json(data / METADATA_FILE)
    spaces = [deserialize_space(metadata[name]) for name in ("observation_space", "action_space")]
    return [*spaces, metadata.get("env_spec")]


def load_minari(data: Path) -> MinariDataset:
    """The dataset whose files lie in `data`. Says nothing to the environment: Minari takes the path itself."""
    for name in (DATA_FILE, METADATA_FILE):
        opened(data / name).close()  # the library would wait for a pipe
    return require().MinariDataset(data)


_NAMED = (gs.Box, gs.Discrete, gs.MultiDiscrete, gs.MultiBinary, gs.Text)


def _leaves(space: gym.Space, path: tuple[str, ...]) -> list[tuple[tuple[str, ...], gym.Space]]:
    layout = Layout.of(space)
    return [(where, layout.leaves[index].space) for where, index in leaves(layout.plan, path)]


def check_storable(space: gym.Space, name: str) -> None:
    """Raise TypeError, naming the place, when values of `space` have no place in a dataset."""
    for path, leaf in _leaves(space, (name,)):
        where = "/".join(path)
        text = leaf.dtype is not None and leaf.dtype.kind == "U"
        if not (text or isinstance(leaf, _NAMED)):
            raise TypeError(f"{where} is a {type(leaf).__name__} space, which a dataset cannot store; flatten it first")
        if any("/" in key or key in ("", ".") for key in path):
            raise TypeError(f"{where}: a key with '/' or an empty one cannot name an array in a dataset")


def foreign_texts(space: gym.Space) -> list[tuple[str, ...]]:
    """The paths of text leaves whose space Minari cannot name."""
    return [path for path, leaf in _leaves(space, ()) if not isinstance(leaf, _NAMED)]


def base_space(space: gym.Space, texts: Mapping[str, Sequence[Any]], path: tuple[str, ...]) -> gym.Space:
    """Return `space` with each leaf that Minari cannot name replaced by a Text space of the texts that occurred.

    Args:
        space: checked by `check_storable`.
        texts: by path (joined by "/"): shortest length, longest length, characters. Leaves with an entry are always
            replaced: the space may come from another dataset.
        path: the place of `space`: ("observations",) or ("actions",).
    """
    if isinstance(space, gs.Dict):
        return gs.Dict({key: base_space(inner, texts, (*path, str(key))) for key, inner in space.spaces.items()})
    if isinstance(space, gs.Tuple):
        return gs.Tuple([base_space(inner, texts, (*path, f"_index_{i}")) for i, inner in enumerate(space.spaces)])
    if isinstance(space, _NAMED) and "/".join(path) not in texts:
        return space
    shortest, longest, characters = texts.get("/".join(path), (0, 1, ""))
    return gs.Text(max(1, longest), min_length=min(1, shortest), charset=characters or " ")
