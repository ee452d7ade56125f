"""Which episode or failure is meant: a file, what is in memory, or an index in a run's directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from treadle import seeding
from treadle.errors import UsageError
from treadle.record.merge import load
from treadle.record.run_directory import ARGUMENTS, FAILURES, SUMMARY
from treadle.record.summary import read_summary
from treadle.repro import SUFFIX, Repro
from treadle.spaces import Layout


def open_repro(source: Any, episode: int | None) -> Repro:
    """What is to be replayed.

    Args:
        source: a `Repro`, an error that has one, its file, or the directory of a run.
        episode: of a directory: which; None: the failure that ended the run, or else the last that there was.

    Raises:
        UsageError: there is nothing to be replayed.
    """
    source = getattr(source, "repro", source)
    if isinstance(source, Repro):
        return source
    if source is None:
        raise UsageError("there is no failure to replay: nothing has failed, or recorder=False was given")
    path = Path(source)
    if not path.exists():
        raise UsageError(f"there is no {path}")
    if not path.is_dir():
        return Repro.load(path)
    failures = path / FAILURES
    if episode is None:
        found = sorted(failures.glob(f"*{SUFFIX}"), key=lambda each: each.stat().st_mtime_ns)
        if not found:
            raise UsageError(f"no episode has failed in {path}: say which one to replay (treadle replay {path} 0)")
        return Repro.load(found[-1])
    file = failures / f"episode-{episode}{SUFFIX}"
    return Repro.load(file) if file.exists() else _of_run(path, episode)


def _of_run(path: Path, index: int) -> Repro:
    """An episode of a run that did not fail, as far as its arguments say how it was made."""
    try:
        run = json.loads((path / ARGUMENTS).read_text())["arguments"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is no run's directory ({error})") from error
    if run["episodes"] is not None and not 0 <= index < run["episodes"]:
        raise UsageError(f"{path} has the episodes 0 to {run['episodes'] - 1}, not {index}")
    repro = Repro(
        {
            "face": "episode",
            "title": f"episode {index} of {run['env']}",
            "seed": seeding.episode_env_seed(run["seed"], index),
            "policy_seed": seeding.episode_policy_seed(run["seed"], index),
            "index": index,
            "root": run["seed"],
            "max_steps": run["max_episode_steps"],
            "imports": run["imports"],
            "wrappers": len(run["wrappers"]),
            "stored": str(path.absolute()),
        }
    )
    named = {"env": run["env"], "policy": run["policy"]}
    named |= {f"wrapper {i}": wrapper for i, wrapper in enumerate(run["wrappers"])}
    for name, value in named.items():
        repro.put(name, value)
    repro.put("kwargs", run["env_kwargs"])
    repro._ours = False  # somebody else may have made the directory
    return repro


def add_stored(repro: Repro, observation_space: Any, action_space: Any) -> None:
    """Let an episode of a run be compared with what is stored of it: observations, rewards, ends, and its actions.

    Nothing is added where the dataset does not have it (the run is not complete, or left it out).
    """
    about = repro.about
    if "stored" not in about or "rewards" in repro.arrays:
        return
    path = Path(about["stored"])
    if not (path / SUMMARY).exists():
        return
    summary = read_summary(path / SUMMARY)
    if about["seed"] not in summary.seeds:
        return
    at = summary.seeds.index(about["seed"])
    dataset: Any = load(path)
    if isinstance(dataset, dict):
        _of_npz(repro, dataset, at, summary.lengths, observation_space, action_space)
        return
    episode = next(iter(dataset.iterate_episodes([at])))
    for name, tree, space in (
        ("observation", episode.observations, observation_space),
        ("action", episode.actions, action_space),
    ):
        layout = Layout.of(space)
        for i, (leaf, rows) in enumerate(zip(layout.leaves, layout.flatten(tree), strict=True)):
            if leaf.fixed:
                repro.arrays[f"{name}.{i}"] = np.asarray(rows)
    repro.arrays["rewards"] = np.asarray(episode.rewards)
    repro.arrays["ends"] = np.asarray(episode.terminations) + 2 * np.asarray(episode.truncations).astype(np.uint8)


def _of_npz(
    repro: Repro, arrays: dict[str, np.ndarray], at: int, lengths: list[int], observation_space: Any, action_space: Any
) -> None:
    first, steps = sum(lengths[:at]), lengths[at]

    def rows(name: str, more: int) -> np.ndarray:
        begin = first + more * at
        return arrays[name][begin : begin + steps + more]

    for name, key, space, more in (
        ("observation", "observations", observation_space, 1),
        ("action", "actions", action_space, 0),
    ):
        for i, leaf in enumerate(Layout.of(space).leaves):
            path = "/".join([key, *(f"_index_{each}" if isinstance(each, int) else str(each) for each in leaf.path)])
            if leaf.fixed and path in arrays:
                repro.arrays[f"{name}.{i}"] = rows(path, more)
    repro.arrays["rewards"] = rows("rewards", 0)
    repro.arrays["ends"] = rows("terminations", 0) + 2 * rows("truncations", 0).astype(np.uint8)


__all__ = ["add_stored", "open_repro"]
