"""Collecting into a dataset: a run whose episodes become a Minari dataset, see `making`."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from treadle.checks import path_of
from treadle.errors import MissingExtra, UsageError
from treadle.program.policies import policy_name
from treadle.progress import EpisodeLog, Log, Shows
from treadle.record import minari as minari_files
from treadle.record.columns import hasher
from treadle.record.hdf5 import deflater
from treadle.record.journal import EpisodeNote
from treadle.record.making import RETRY, Interrupted, Making, Product, Stored, make
from treadle.record.merge import MergeReport, data_file, merge
from treadle.record.parts import PartWriter
from treadle.record.run_directory import FORMAT, RunDirectory
from treadle.record.shards import shard_of
from treadle.sample.named import file_and_name
from treadle.sample.run import Run, StoredKeywords
from treadle.whole_file import read_json

__all__ = ["Interrupted", "Stored", "collect_dataset"]


def collect_dataset(
    env: str | EnvSpec | Callable[..., gym.Env],
    policy: Any = None,
    *,
    out: str | Path,
    name: str | None = None,
    resume: bool | str = False,
    log: Log | None = None,
    progress: Shows = False,
    **run: Unpack[StoredKeywords],
) -> Stored:
    """Collect a dataset into the directory `out`.

    Args:
        env, policy, run: which episodes, and how workers are run: see `treadle.sample.run.Run`. Give one of `episodes`
            and `steps`, or keep="return>=200" and kept=N: the first N episodes that qualify. With on_error="skip" the
            summary's `skipped` lists the episodes that failed. Stored episodes are numbered without gaps, and each has
            its index in the run as `episode_index`. Two runs with the same arguments that leave out the same
            episodes have the same bytes. The nodes of a cluster encode episodes, and the caller writes the bytes.
        out: the directory, which holds one run. For loading, set `MINARI_DATASETS_PATH` to it.
        name: name of the dataset: Minari loads "reach-weak-v1" as "treadle/reach-weak-v1". A name without a version
            gets "-v0". None: the names of the environment and the policy, and "-v0". If the environment is given as
            "file.py:make" or "module:make", the name of the file or module comes first. A resumed run keeps its name.
        resume: how an earlier run in `out` is treated. False: it stays, and this call is an error. True: the run
            continues, with the same arguments or more `episodes` or `steps`. Its finished episodes are kept, and it
            ends with the same bytes as an undisturbed run. If `out` holds no run, one begins. If the run is complete,
            nothing is done; but a removed dataset is made again. Objects (a policy, a function) are compared with the
            earlier run's by their contents, not by name alone. With "retry" it goes on as with True, and the
            episodes that were left out are tried again. With "replace" the run begins again, and the earlier run is
            removed once all environments are built.
        log, progress: as for `collect`.

    Raises:
        UsageError: the arguments contradict one another. Or `out` is in use, is not empty without `resume`, or holds a
            run with other arguments.
        MissingExtra: Minari or h5py is not installed.
        StartupFailed: an environment could not be built. The contents of `out` are untouched.
        CollectionFailed: a failure ended the run; the error's `stored` is a `Stored`.
        Interrupted: Ctrl-C ended the run; the error's `stored` is a `Stored`.
        Damaged: stored episodes differ from the written ones; they are named, and nothing is changed.
        OSError: `out` cannot be made or written; or it was removed, moved or replaced during the run.
    """
    made = Run.of(collect_dataset, StoredKeywords, env, policy, **run)
    return store(made, out, "treadle.collect_dataset(...)", name=name, resume=resume, progress=progress, log=log)


def store(
    made: Run,
    out: str | Path,
    command: str,
    *,
    name: str | None = None,
    verify: int = 1,
    shard: str | None = None,
    **how: Any,
) -> Stored:
    """`collect_dataset` of a run, with the options that only commands have.

    Args:
        command: of the summary.
        verify: how many episodes are made again to see whether the seed alone decides them. The summary's `verified`
            names them, and a difference is among its warnings.
        shard: "i/n": make only the episodes i, i + n, i + 2n, ... of the `episodes`, for machines without a connection.
            `merge_shards` puts the n directories together, with the bytes of a run without shards.
        how: of `Making`, and `log`.
    """
    if made.tried is None and made.steps is None:
        raise UsageError("give either episodes or steps (--episodes N or --steps N)")
    if made.keep is not None and shard is not None:
        raise UsageError("keep (--keep) does not go with shard (--shard): no shard knows what the others keep")
    part = shard_of(shard, made.episodes)
    _require_packages()
    name = None if name is None else minari_files.checked_name(name)
    default = minari_files.dataset_name(file_and_name(made.recipe.env.env), policy_name(made.policy))
    about = {"format": FORMAT} if shard is None else {"format": FORMAT, "shard": shard}
    folder = path_of("out", out).absolute()
    with RunDirectory(out) as place:
        name = place.name_of(name, default) if how.get("resume") in (True, RETRY) else name or default
        stored = "all" if made.infos else "no infos"
        writer = partial(PartWriter, stored=stored, send=made.cluster is not None, keep=made.rule)
        product = _Dataset(folder, name, policy_name(made.policy), writer, how.pop("log", None))
        return make(made, product, place, Making(command, verify=verify, shard=part, **how), about=about)


class _Dataset(Product):
    """The dataset of a run in the directory `folder`. `writer`: a worker's `PartWriter`, but for its
    directory. `log`: counts each episode."""

    packages = ("minari",)

    def __init__(
        self, folder: Path, name: str, policy: str, writer: Callable[..., PartWriter], log: Log | None
    ) -> None:
        self._folder, self._name, self._policy, self.writer, self._log = folder, name, policy, writer, EpisodeLog(log)
        self.output = folder / minari_files.NAMESPACE / name
        self.data = data_file(self.output)
        self._first = True

    def damage(self) -> str:
        """Of its description, without which Minari cannot load it. A person may have changed its words."""
        path = self.output / "data" / minari_files.METADATA_FILE
        try:
            if type(read_json(path)) is not dict:
                return f"{path} is not a JSON object"
        except (OSError, ValueError) as error:
            return f"{path}: {error}"
        return ""

    def begin(self, notes: Sequence[EpisodeNote]) -> None:
        self._first = not notes

    def have(self, note: EpisodeNote) -> None:
        if self._first:
            minari_files.require()  # to merge with: importing it takes 40 ms; the workers play on
            self._first = False
        self._log.add(note.total_reward, note.length, note.success)

    def merge(self, parts: Path, notes: list[EpisodeNote], spaces: Any, spec: str | None) -> MergeReport:
        self._log.flush()
        return merge(
            parts, self._folder, notes, minari_files.About(self._name, self._policy, spaces[0], spaces[1], spec)
        )


def _require_packages() -> None:
    """Before any worker starts: what a dataset needs."""
    deflater()
    hasher()
    for package in ("minari", "h5py"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtra(f"a dataset needs the package {package}: pip install 'treadle[data]'")
