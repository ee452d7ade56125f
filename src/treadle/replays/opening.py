"""Which episode or failure is meant: a file, what is in memory, or an index in a run's directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from treadle import seeding
from treadle.checks import path_of
from treadle.errors import UsageError
from treadle.record.merge import load
from treadle.record.run_directory import FAILURES, LISTED, SUMMARY, begun_in
from treadle.record.summary import Summary, read_summary
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
    if source is None:
        why = "nothing has failed, recorder=False was given, or an item of planning's failed, which is not recorded"
        raise UsageError(f"there is no failure to replay: {why}")
    found = source if isinstance(source, Repro) else _from_disk(path_of("source", source), episode)
    if found.about.get("face") == "item":
        raise UsageError("it is of an item of a planning batch, which this version does not replay")
    if "unkept" in found.about:
        raise UsageError(f"it cannot be replayed: {found.about['unkept']}")
    return found


def _from_disk(path: Path, episode: int | None) -> Repro:
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
        content, doubt = begun_in(path)
        repro = _of_arguments(path, index, content["arguments"])
    except UsageError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UsageError(f"{path} is no run's directory ({error})") from error
    repro.doubt, repro.made_here, repro.stored = doubt, False, path
    return repro


def _of_arguments(path: Path, index: int, run: dict[str, Any]) -> Repro:
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
        }
    )
    named = {"env": run["env"], "policy": run["policy"]}
    named |= {f"wrapper {i}": wrapper for i, wrapper in enumerate(run["wrappers"])}
    for name, value in named.items():
        repro.put(name, value)
    repro.put("kwargs", run["env_kwargs"])
    starts = run.get("reset_options")
    if starts == LISTED:
        raise UsageError(f"{path} was made with a list of reset options, which it does not keep")
    repro.put("reset_options", starts)
    return repro


def stored_episode(repro: Repro) -> tuple[Path, Summary, int] | None:
    """The run's directory, its summary, and where in its dataset the episode is; None where that does not have it."""
    path = repro.stored
    if path is None or not (path / SUMMARY).exists():
        return None
    summary = read_summary(path / SUMMARY)
    seed = repro.about["seed"]
    return (path, summary, summary.seeds.index(seed)) if seed in summary.seeds else None


def add_stored(repro: Repro, observation_space: Any, action_space: Any) -> None:
    """Let an episode of a run be compared with what is stored of it: observations, rewards, ends, and its actions.

    Nothing is added where the dataset does not have it (the run is not complete, or left it out).
    """
    found = stored_episode(repro)
    if found is None or "rewards" in repro.arrays:
        return
    path, summary, at = found
    dataset: Any = load(path)
    first, steps = sum(summary.lengths[:at]), summary.lengths[at]
    flat = isinstance(dataset, dict)  # rows of all episodes, one after the other
    episode = dataset if flat else vars(next(iter(dataset.iterate_episodes([at]))))

    def rows(values: Any, more: int = 0) -> np.ndarray:
        """Of this episode, which has `more` rows than steps."""
        begin = first + more * at if flat else 0
        return np.asarray(values)[begin : begin + steps + more]

    for name, space, more in (("observation", observation_space, 1), ("action", action_space, 0)):
        layout, key = Layout.of(space), f"{name}s"
        leaves = [None] * len(layout.leaves) if flat else layout.flatten(episode[key])
        for i, (leaf, values) in enumerate(zip(layout.leaves, leaves, strict=True)):
            if flat:
                parts = (f"_index_{each}" if isinstance(each, int) else str(each) for each in leaf.path)
                values = episode.get("/".join([key, *parts]))
            if leaf.fixed and values is not None:
                repro.arrays[f"{name}.{i}"] = rows(values, more)
    repro.arrays["rewards"] = rows(episode["rewards"])
    repro.arrays["ends"] = rows(episode["terminations"]) + 2 * rows(episode["truncations"]).astype(np.uint8)
