"""A collected dataset of several agents, taken apart: a Minari dataset for each agent, as if it had been alone."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from treadle import trees
from treadle.errors import UsageError
from treadle.pettingzoo.env import AgentsEnv
from treadle.pettingzoo.layout import AgentsLayout
from treadle.record.merge import load_minari_only, merge
from treadle.record.minari import METADATA_FILE
from treadle.record.parts import PartWriter
from treadle.sample.episode import Episode


def export_agents(source: str | Path, out: str | Path, env: Callable[[], AgentsEnv]) -> dict[Any, Path]:
    """Write a dataset that was collected from an `AgentsEnv` as one Minari dataset for each agent.

    An agent's episodes are its lives: from its first action until it is terminated or truncated, or the environment's
    episode ends (truncated); one that comes back begins another. A life of k actions has observations of its own space
    [k + 1, ...], those at which it acted and the one at its end (zeros where the environment gave none), and rewards
    [k]: what the agent got from one action of its own until the next. What it got before its first action, and infos,
    are left out.

    Args:
        source: the run's directory, or that of the dataset.
        out: a directory; the datasets are in `out/treadle/<environment>-<agent>-<policy>-v0`, and replace what is
            there under these names. `MINARI_DATASETS_PATH=out` lets `minari.load_dataset` find them.
        env: what was collected; one is made, for its agents' names and spaces.

    Returns:
        agent -> its dataset's directory, which `treadle.load` takes; without agents that never acted.

    Raises:
        UsageError: `source` is no Minari dataset, or not of such an environment.
    """
    data = load_minari_only(source)
    made = env()
    try:
        layout = getattr(made, "layout", None)
    finally:
        made.close()
    if not isinstance(layout, AgentsLayout) or data.observation_space != layout.observation_space:
        raise UsageError(f"{source} was not collected from {made}: give the AgentsEnv that it was collected from")
    about = json.loads((Path(data.storage.data_path) / METADATA_FILE).read_text())
    policy = about["algorithm_name"]
    name = about["dataset_id"].rpartition("/")[2].removesuffix("-v0").removesuffix(f"-{policy}")
    found = {}
    Path(out).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=".agents-") as scratch:
        spaces = {agent: (layout.observation_spaces[agent], layout.action_spaces[agent]) for agent in layout.agents}
        parts = {agent: tempfile.mkdtemp(dir=scratch) for agent in layout.agents}
        writers = {agent: PartWriter(parts[agent], 0, *spaces[agent], infos=False) for agent in layout.agents}
        lives = Counter[Any]()
        seeds = [each["seed"] for each in data.storage.get_episode_metadata(data.episode_indices)]
        for played, seed in zip(data.iterate_episodes(), seeds, strict=True):
            for i, agent in enumerate(layout.agents):
                for life in _lives(layout, i, played, int(seed)):
                    writers[agent].add(replace(life, index=lives[agent]))
                    lives[agent] += 1
        for agent, writer in writers.items():
            writer.close()
            if lives[agent]:
                seen, done = spaces[agent]
                told = merge(
                    parts[agent],
                    out,
                    env_id=f"{name}-{agent}",
                    policy=policy,
                    observation_space=seen,
                    action_space=done,
                )
                found[agent] = told.path
    return found


def _lives(layout: AgentsLayout, i: int, played: Any, seed: int) -> Iterator[Episode]:
    """What the i-th agent lived through in an episode; their index is to be counted by the caller."""
    rows, agent = played.observations, layout.agents[i]
    acted, terminated, truncated = (
        np.asarray(rows[key])[1:, i].astype(bool) for key in ("acted", "terminations", "truncations")
    )
    ends = sorted({*(np.flatnonzero(terminated | truncated) + 1).tolist(), len(acted)})
    observations = layout.by_agent(rows["observation"], 1)[agent]
    actions, rewards = layout.by_agent(played.actions, 1)[agent], np.asarray(rows["rewards"])[1:, i]
    for begin, end in zip([0, *ends], ends, strict=False):
        steps = (np.flatnonzero(acted[begin:end]) + begin).tolist()
        if steps:
            last = np.arange(len(steps)) == len(steps) - 1
            yield Episode(
                index=0,
                seed=seed,
                observations=trees.map(_rows([*steps, end]), observations),
                actions=trees.map(_rows(steps), actions),
                rewards=np.add.reduceat(rewards[:end], steps),
                terminated=last & terminated[end - 1],
                truncated=last & (truncated[end - 1] | ~terminated[end - 1]),
            )


def _rows(indices: list[int]) -> Callable[[Any], Any]:
    """Takes these rows of an array, or of a list of texts."""
    return lambda leaf: leaf[indices] if isinstance(leaf, np.ndarray) else [leaf[index] for index in indices]
