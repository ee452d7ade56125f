"""The options of `treadle dataset`: see `options.py`."""
# ruff: noqa: RUF009 - `typed` makes a field

from __future__ import annotations

from dataclasses import MISSING, dataclass
from pathlib import Path

from treadle.cli.options import Command, typed


@dataclass(frozen=True, kw_only=True)
class Merge(Command):
    """Put the shards of a run together.

      treadle collect ALE/Pong-v5 --episodes 1000 --shard 0/4 --out part0        (and 1/4, 2/4, 3/4 on other machines)

      treadle dataset merge part0 part1 part2 part3 --out pong

    The files equal those of a run without --shard, except for times in the summary. DIR can be resumed like any other.
    A shard that is missing, named twice, unfinished, damaged or of another run is an error, and nothing is written.
    With --allow-missing the other shards are put together, for example when an allocation is used up. The table and
    summary.json then list the missing episodes, and the hash ends with "-incomplete". The run's command, without
    --shard and with --resume --out DIR, makes them.

    Exit codes: 0 done, 1 failed, 2 wrong command, 130 Ctrl-C.

    Attributes:
        shards: The directories of all shards.
        out: The directory of the whole run.
        allow_missing: Go on without shards that are missing, and with the finished episodes of unfinished ones.
        force: Replace the contents of DIR.
        quiet: Only warnings and errors.
    """

    shards: list[Path] = typed(MISSING, "DIR", position=True)
    out: Path = typed(MISSING, "DIR")
    allow_missing: bool = typed(False)
    force: bool = typed(False)
    quiet: bool = typed(False, means=None)


@dataclass(frozen=True, kw_only=True)
class Info(Command):
    """Show a run and its closing table, also of a shard or an unfinished run.

      treadle dataset info out

    For an unfinished run it shows how many episodes are finished, left out and damaged. It changes and locks nothing.

    Exit codes: 0 done, 1 failed, 2 wrong command, 130 Ctrl-C.

    Attributes:
        source: The directory that treadle collect had as --out.
    """

    source: Path = typed(MISSING, "DIR", position=True)


@dataclass(frozen=True, kw_only=True)
class Verify(Info):
    """Name the stored episodes, and files beside them, that no longer fit their digests.

      treadle dataset verify out

    Every episode is read, also those of an unfinished run. The command finds accidents, not
    forgery: a digest may be changed together with its data.

    Exit codes: 0 all is as it was written, 1 something is not, 2 wrong command, 130 Ctrl-C.

    Attributes:
        quiet: Show no progress.
    """

    quiet: bool = typed(False, means=None)


@dataclass(frozen=True, kw_only=True)
class Export(Command):
    """Write a collected dataset in another format.

      treadle dataset export run out --fps 10 --task "push the block onto the target"

    SOURCE is what was --out of treadle collect, or the directory of any Minari dataset. OUT is a directory that is
    not there yet, and will hold a LeRobotDataset v3.0, for LeRobotDataset("me/name", root=OUT). Pictures become
    videos, nearly as they were; everything else is stored as it is. It needs pyarrow, and imageio-ffmpeg where
    there are pictures: pip install 'treadle[lerobot]'.

    Exit codes: 0 done, 1 failed, 2 wrong command, 130 Ctrl-C.

    Attributes:
        source: What was collected.
        out: Where to.
        format: The format.
        fps: Steps a second: it decides the timestamps.
        task: What was to be done, in words.
    """

    source: Path = typed(MISSING, "SOURCE", position=True)
    out: Path = typed(MISSING, "OUT", position=True)
    format: str = typed("lerobot", "lerobot", means=None)
    fps: int = typed(30, "N")
    task: str | None = typed(None, "TEXT", shown="the environment's id")
