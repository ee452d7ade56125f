"""Parts into a dataset, and a dataset back into memory.

`merge` writes the encoded episodes in the order of their indices, so the result has the same bytes for any number of
workers. It writes beside the final place and renames at the end. So a dataset is there whole or not at all, and the
parts are never touched.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treadle.record import minari as minari_files
from treadle.record.hdf5 import assemble
from treadle.record.journal import EpisodeNote, Record, damaged, journals, read
from treadle.record.parts import KEPT, write_kept
from treadle.record.run_directory import remove
from treadle.record.summary import Summary, digest_of
from treadle.sample.card import CARD, OF_MINARI, card, card_rows
from treadle.whole_file import opened, why

if TYPE_CHECKING:
    from treadle.record.minari import MinariDataset


@dataclass(frozen=True)
class MergeReport:
    """The result of a merge.

    Attributes:
        path: the dataset's directory (`DIR/treadle/<name>`).
        disk_bytes: of all its files.
        data_bytes: of them in the file that holds the episodes.
        hash: blake2b-128 over the episodes' digests in order, 32 hexadecimal digits.
        warnings: a line for each, such as an info key that was left out.
        dataset: its path, from DIR.
        checks: digests of its files that have none of their own, by file.
    """

    path: Path
    disk_bytes: int
    data_bytes: int
    hash: str
    warnings: tuple[str, ...]
    dataset: str
    checks: dict[str, str]

    @property
    def about(self) -> dict[str, Any]:
        """Return its part of a `Summary`."""
        return {name: value for name, value in vars(self).items() if name not in ("path", "warnings")}


def overall_hash(digests: Iterable[str]) -> str:
    """blake2b-128 over hexadecimal digests in order, as 32 hexadecimal digits."""
    return digest_of(b"".join(map(bytes.fromhex, digests)))


def merge(directory: Path, out: Path, episodes: Sequence[EpisodeNote], about: minari_files.About) -> MergeReport:
    """Make the dataset of the parts in `directory`, and beside it what it can be taken apart with (`parts.write_kept`).

    Args:
        directory: where `PartWriter` wrote.
        out: the directory that becomes `MINARI_DATASETS_PATH`. The dataset is made in `out/treadle/<name>/data/`;
            what is there under that name is replaced.
        episodes: notes in the order in which the episodes shall be stored: Minari numbers them 0, 1, ... in this order.
        about: the rest of its description.

    Raises:
        Damaged: an episode asked for cannot be read, or is not the one of the note. Nothing is written.
        MissingExtra: Minari is not installed.
        OSError: when the disk is full or cannot be written, with the path; the parts stay as they are.
    """
    minari_files.require()
    records = select(directory, episodes)
    target = out / minari_files.NAMESPACE / about.name
    temporary = target.with_name(f".{target.name}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        remove(temporary)
        texts = _texts(records)
        data = temporary / "data"
        data.mkdir(parents=True)
        data_bytes = assemble(data / minari_files.DATA_FILE, records)
        seen = minari_files.base_space(about.observation_space, texts, ("observations",))
        about = about._replace(
            observation_space=seen, action_space=minari_files.base_space(about.action_space, texts, ("actions",))
        )
        steps = sum(record.note.length for record in records)
        text = minari_files.describe(about, len(records), steps, data_bytes)
        (data / minari_files.METADATA_FILE).write_text(text)
        rows = card_rows([record.note for record in records], about.env_spec, about.policy)
        told = card(about.name, rows, steps, OF_MINARI, ["minari"])
        (temporary / CARD).write_text(told, encoding="utf-8")
        namespace = target.parent / minari_files.NAMESPACE_FILE
        if not namespace.exists():
            namespace.write_text("{}")
        remove(target)
        os.replace(temporary, target)
        write_kept(out / KEPT, records)
    except OSError as error:
        with contextlib.suppress(OSError):  # the disk may be as broken for this
            remove(temporary)
        raise OSError(error.errno, f"cannot write the dataset: {why(error)}", str(target)) from error
    return MergeReport(
        path=target,
        disk_bytes=data_bytes + len(text) + len(told.encode()),
        data_bytes=data_bytes,
        hash=overall_hash(record.note.digest for record in records),
        warnings=tuple(_left_out(records)),
        dataset=str(target.relative_to(out)),
        checks=checks(target),
    )


def select(directory: Path, episodes: Sequence[EpisodeNote]) -> list[Record]:
    """The records of these episodes among the parts in a directory. Raises Damaged: one cannot be read, or is not the
    one of the note."""
    found: dict[int, Record] = {}
    for path in journals(directory):
        for record in read(path, "hdf5"):
            found.setdefault(record.note.index, record)
    lost = [e.index for e in episodes if e.index not in found or found[e.index].note.digest != e.digest]
    if lost:
        raise damaged(directory, lost, "--resume makes again what cannot be read")
    return [found[each.index] for each in episodes]


def _texts(records: Sequence[Record]) -> dict[str, tuple[int, int, str]]:
    out: dict[str, tuple[int, int, str]] = {}
    for record in records:
        for path, (low, high, characters) in record.extra.get("texts", {}).items():
            a, b, known = out.get(path, (low, high, ""))
            out[path] = (min(a, low), max(b, high), "".join(sorted({*known, *characters})))
    return out


def _left_out(records: Sequence[Record]) -> list[str]:
    counts = Counter(key for record in records for key in record.note.left_out)
    return [
        f"info {json.dumps(key)} left out of {count} of {len(records)} episodes: it has no fixed shape and is not JSON"
        for key, count in counts.items()
    ]


def checks(dataset: Path) -> dict[str, str]:
    """Digests of the files beside a run's data that have none of their own, by file. `dataset`: its folder."""
    found = {}
    for path in (dataset / "data" / minari_files.METADATA_FILE, dataset.parent / minari_files.NAMESPACE_FILE):
        if path.exists():
            with opened(path) as file:
                found[path.name] = digest_of(file.read())
    return found


def altered(dataset: Path, summary: Summary) -> list[str]:
    """A line for each of those files that is not what the summary was written of."""
    now = checks(dataset).items()
    return [f"{name} is not what was written" for name, digest in now if summary.checks.get(name, digest) != digest]


def data_file(dataset: Path) -> Path:
    """Of a dataset's folder the file that holds its episodes."""
    return dataset / "data" / minari_files.DATA_FILE


def load(directory: str | Path) -> MinariDataset:
    """Return the Minari dataset that a run or `merge_shards` made in `directory`.

    Args:
        directory: the `out` of the run, or the directory of one dataset if `out` has several.

    Raises:
        FileNotFoundError: `directory` has no dataset.
        ValueError: `directory` has several datasets; the message names them.
        MissingExtra: Minari is not installed.
    """
    directory = Path(directory)
    found = [path.parent.parent for path in sorted((directory / minari_files.NAMESPACE).glob("[!.]*/data/*.json"))]
    if (directory / "data" / minari_files.METADATA_FILE).exists():
        found.append(directory)
    if not found:
        parts = any(journals(directory / ".parts"))
        hint = ": its episodes are not merged yet; the command that began the run does that with --resume"
        raise FileNotFoundError(f"no dataset in {directory}{hint if parts else ''}")
    if len(found) > 1:
        raise ValueError(f"several datasets in {directory}: load one of {', '.join(map(str, found))}")
    return minari_files.load_minari(found[0] / "data")
