"""The files of an evaluation: a line for each episode at once, and the steps that each can be replayed from.

```
DIR/episodes.jsonl   a line for each episode, as it is finished; in the order of indices when the run is complete
DIR/steps.hdf5       actions, rewards and ends of every step, as a dataset has them (`treadle.record.hdf5`)
```

The other files are those of every run's directory (`treadle.record.run_directory`).
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from treadle.evaluation.remarks import remarks_of
from treadle.program.policies import policy_name
from treadle.record.hdf5 import assemble
from treadle.record.journal import EpisodeNote
from treadle.record.making import Product
from treadle.record.merge import MergeReport, overall_hash, select
from treadle.record.outcomes import Outcome
from treadle.record.parts import KEPT, PartWriter, write_kept
from treadle.record.run_directory import LINES
from treadle.record.summary import Summary, digest_of
from treadle.sample.run import Run
from treadle.sample.skipping import Skipped
from treadle.whole_file import opened, why, written

STEPS = "steps.hdf5"


class Results(Product):
    """The results of a run in the directory `folder`.

    Args:
        run: what is played.
        task_of: an episode's task, by its index; "" outside a suite.
        success_keys: of infos.
    """

    def __init__(self, folder: Path, run: Run, task_of: Callable[[int], str], success_keys: tuple[str, ...]) -> None:
        self._folder, self._policy, self._task_of, self._drawn = folder, policy_name(run.policy), task_of, run.drawn
        send = run.cluster is not None  # workers of nodes do not see the directory
        self.writer = partial(PartWriter, stored="scores", success_keys=success_keys, send=send)
        self.output = self.data = folder / STEPS
        self.notes: dict[int, EpisodeNote] = {}
        self.left_out: dict[int, Skipped] = {}
        self._begun = False

    def damage(self) -> str:
        """Of the lines."""
        path = self._folder / LINES
        try:
            with opened(path) as file:
                for line in file:
                    json.loads(line)
        except (OSError, ValueError) as error:
            return f"{path}: {error}"
        return ""

    def begin(self, notes: Sequence[EpisodeNote]) -> None:
        self.notes, self._begun = {note.index: note for note in notes}, True
        self._write()

    def lose(self, skipped: Collection[Skipped]) -> None:
        new = [each for each in skipped if each.index not in self.left_out]
        self.left_out |= {each.index: each for each in new}
        self._append(new)

    def have(self, note: EpisodeNote) -> None:
        self.notes[note.index] = note
        self._append([note])

    def merge(self, parts: Path, notes: list[EpisodeNote], spaces: Any, spec: str | None) -> MergeReport:
        records = select(parts, notes)
        temporary = self.output.with_name(f".{STEPS}.tmp")
        try:
            size = assemble(temporary, records)
            os.replace(temporary, self.output)
            write_kept(self._folder / KEPT, records)
            self.notes |= {note.index: note for note in notes}
            lines = self._write()
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise OSError(error.errno, f"cannot write the results: {why(error)}", str(self.output)) from error
        return MergeReport(
            path=self.output,
            disk_bytes=size + len(lines),
            data_bytes=size,
            hash=overall_hash(record.note.digest for record in records),
            warnings=(),
            dataset=STEPS,
            checks={LINES: digest_of(lines)},
        )

    def remarks(self, notes: Sequence[EpisodeNote], summary: Summary) -> list[dict[str, Any]]:
        left_out = [Skipped(**each) for each in summary.skipped]
        return [vars(each) for each in remarks_of(notes, left_out, summary.verified, self._drawn)]

    def _write(self) -> bytes:
        """Write all lines anew, in the order of indices."""
        found: dict[int, EpisodeNote | Skipped] = {**self.left_out, **self.notes}
        text = b"".join(self._line(each) for _, each in sorted(found.items()))
        with written(self._folder / LINES) as file:
            file.write(text)
        return text

    def _append(self, found: Sequence[EpisodeNote | Skipped]) -> None:
        if found and self._begun:
            with open(self._folder / LINES, "ab", buffering=0) as file:
                file.write(b"".join(map(self._line, found)))

    def _line(self, found: EpisodeNote | Skipped) -> bytes:
        told = {**Outcome.of(found).as_json(), "task": self._task_of(found.index), "policy": self._policy}
        return json.dumps(told).encode() + b"\n"
