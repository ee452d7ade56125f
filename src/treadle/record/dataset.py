"""Collecting into a dataset: a run whose episodes become a Minari dataset, see `making`."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Collection, Sequence
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
from treadle.record.making import RETRY, Interrupted, Making, Stored, make
from treadle.record.merge import MergeReport, data_file, merge
from treadle.record.parts import PartWriter
from treadle.record.run_directory import FORMAT, RunDirectory
from treadle.record.shards import shard_of
from treadle.sample.named import file_and_name
from treadle.sample.run import Run, StoredKeywords
from treadle.sample.skipping import Skipped
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
        env, policy, run: which episodes, and how workers are run: see `treadle.sample.run.Run`. One of `episodes` and
            `steps` is given, or keep="return>=200" and kept=N: the first N episodes that are so. With on_error="skip"
            others are in the summary's `skipped`. Stored episodes are numbered without gaps, and each has its index in
            the run as `episode_index`. The bytes are those of any run
            that leaves out the same episodes. With a cluster, episodes are encoded on its nodes, and their bytes
            written here unless it is one with `shared_out`.
        out: the directory; `MINARI_DATASETS_PATH` for loading. It holds one run.
        name: of the dataset, "reach-weak" or "reach-weak-v1", which Minari loads as "treadle/reach-weak-v1"; None: made
            of the environment's name, with its file's before it where it is named by one, and the policy's. A run that
            is resumed keeps its name.
        resume: what becomes of what an earlier run left in `out`. False: it stays, and this is refused. True: the run
            goes on that was begun with the same arguments, or with more `episodes` or `steps` now:
            its finished episodes are kept, and it ends with the same bytes as if it had not been stopped. With nothing
            there it begins one, with a complete run there it does nothing, unless its dataset was removed,
            which is then made again. Objects (a policy, a function) are compared by what they are made of, not by name
            alone. "retry": and those that were left out are tried again, which else stay so. "replace": it begins
            again; what is there is removed when all environments could be built.
        log, progress: as for `collect`.

    Raises:
        UsageError: contradictory arguments; `out` in use, or not empty without `resume`, or begun with
            other arguments. MissingExtra: no Minari or h5py.
        StartupFailed: an environment could not be built. What was in `out` is untouched.
        CollectionFailed: the run was stopped; its `stored` (a `Stored`) says what is there.
        Interrupted: the same for Ctrl-C.
        Damaged: episodes that are there are not what was written; they are named, and nothing is changed.
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
    """`collect_dataset` of a run, and what is typed alone.

    Args:
        command: of the summary.
        verify: how many episodes are made again to see whether the seed alone decides them; the summary's `verified`
            says which, and a difference is among its warnings.
        shard: "i/n": make only the episodes i, i + n, i + 2n, ... of the `episodes`, for machines that know nothing of
            one another; `merge_shards` puts the n directories together, with the bytes of a run without.
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
        sends = made.cluster is not None and not made.cluster.shared_out
        writer = partial(PartWriter, infos=made.infos, send=sends, keep=made.rule)
        product = _Dataset(folder, name, policy_name(made.policy), writer, how.pop("log", None))
        return make(made, product, place, Making(command, verify=verify, shard=part, **how), about=about)


class _Dataset:
    """The dataset of a run in the directory `folder`: a `Product`. `writer`: a worker's `PartWriter`, but for its
    directory. `log`: counts each episode."""

    packages: Sequence[str] = ("minari",)

    def __init__(
        self, folder: Path, name: str, policy: str, writer: Callable[..., PartWriter], log: Log | None
    ) -> None:
        self._folder, self._name, self._policy, self._writer, self._log = folder, name, policy, writer, EpisodeLog(log)
        self.output = folder / minari_files.NAMESPACE / name
        self.data = data_file(self.output)
        self._first = True

    def sink(self, parts: Path) -> Callable[[int, Any, Any], Any]:
        return partial(self._writer, str(parts))

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

    def lose(self, skipped: Collection[Skipped]) -> None:
        """The directory knows."""

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
