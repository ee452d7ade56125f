"""`treadle.film`: episodes of a run, chosen by their results, each played again in a process of its own and rendered.

Episodes are played as `treadle.replay` plays them: from the recorded actions if there are any, else by the recorded
policy. Each has a process of its own, so that an environment or a driver that harms its process harms one film.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from treadle.checks import check_whole, path_of, several, suggests
from treadle.errors import UsageError
from treadle.program.offscreen import off_screen
from treadle.record.outcomes import ERROR, Outcome, outcomes_of
from treadle.record.run_directory import FAILURES, FILMS
from treadle.replays.opening import kept_out, open_repro
from treadle.replays.replay import in_child
from treadle.replays.result import Replay
from treadle.repro import SUFFIX, Repro
from treadle.wire.bell import cores


class Film(NamedTuple):
    """The film of one episode.

    Attributes:
        path: the file; None: nothing of the episode could be rendered.
        replay: the result of playing the episode. If it is not `as_recorded`, part of the film shows another episode.
            From the first value that differs on, pictures have a red edge, and the line under them is red.
    """

    path: Path | None
    replay: Replay


@suggests
def film(
    source: Any,
    *,
    best: int = 0,
    worst: int = 0,
    failed: int = 0,
    episodes: Sequence[int] = (),
    out: str | Path | None = None,
    plain: bool = False,
    env: str | None = None,
    trust: bool = False,
    timeout: float | None = None,
) -> list[Film]:
    """Film recorded episodes: child processes play them again from their actions and render them off-screen.

    A film has a picture of the reset and one of each step, at the environment's own rate (`render_fps`). It is an .mp4
    or, without the extra `video`, an animated PNG. Its name is "episode-0017_return-20.0_failure": index, return, end.
    Episodes without recorded actions are played by the recorded policy.

    Args:
        source: the directory of a run, complete or not; or another source of `treadle.replay`.
        best, worst: numbers of episodes of a directory with the largest and with the smallest returns to film.
        failed: number of failed episodes (not played to the end, or not a success) to film, the first ones by index.
        episodes: indices of further episodes. Without `best`, `worst`, `failed` and `episodes` the latest failure is
            filmed.
        out: folder for the films; None: `films` in the directory, or beside the file.
        plain: True: leave out the line with step, reward and return.
        env, trust, timeout: see `treadle.replay`; the environment is given by name.

    Returns:
        A `Film` for each chosen episode, in the order of indices.

    Raises:
        UsageError: as `treadle.replay`; or no episode is chosen, or `out` is missing for a failure without a file. Or
            the environment gives no pictures.
        MissingExtra: Pillow is missing, without `plain`.
    """
    check_whole(0, none=False, best=best, worst=worst, failed=failed)
    episodes = several("episodes", episodes, lambda each: isinstance(each, int), "indices")
    if not isinstance(env, str | None):
        raise UsageError(f"films are made in processes of their own: name the environment, got env={env!r}")
    place = path_of("source", source) if isinstance(source, str | os.PathLike) else None
    rows = by_index(place) if place is not None and place.is_dir() else {}
    indices: list[int | None] = [None]
    if best or worst or failed or episodes:
        indices = [*chosen(rows.values(), best=best, worst=worst, failed=failed, episodes=episodes)]
    if not indices:
        lost = sum(row.failed for row in rows.values())
        raise UsageError(f"nothing to film: {len(rows):,} episodes, of which {lost:,} are known to have failed")
    repros = [open_repro(source, index) for index in indices]
    if out is None and place is None:
        raise UsageError("out says which folder films go to, and this failure has none of its own")
    beside = Path(place or "")
    folder = (beside if beside.is_dir() else beside.parent) / FILMS if out is None else path_of("out", out)
    folder.mkdir(parents=True, exist_ok=True)
    options = {"env": env, "plain": plain, "trust": trust}
    with ExitStack() as kept:
        for repro in repros:  # what is refused is refused before anything is played
            kept.enter_context(kept_out(repro, env=env, policy=None, trust=trust))
        kept.enter_context(off_screen())
        threads = ThreadPoolExecutor(min(len(repros), cores()))
        try:
            make = partial(_made, rows=rows, folder=folder, timeout=timeout, options=options)
            return list(threads.map(make, repros))
        finally:
            threads.shutdown(cancel_futures=True)


def _made(repro: Repro, rows: dict[int, Outcome], folder: Path, timeout: float | None, options: dict[str, Any]) -> Film:
    index, failure, rewards = repro.about.get("index", 0), repro.about.get("failed") or {}, repro.arrays.get("rewards")
    ended = failure.get("kind") in ("died", "late")
    limit = timeout if timeout is not None or not ended else failure.get("limit")
    # the step that ended its process would end this one, too, and the film with it
    step = max(0, (failure.get("step") or 0) - 1) if ended else None
    suffix = ".mp4" if find_spec("imageio_ffmpeg") else ".png"
    with tempfile.TemporaryDirectory(prefix=".film-", dir=folder) as place:
        made = Path(place, f"film{suffix}")
        given = options | {"trust": options["trust"] or repro.made_here}
        result = in_child(repro, limit, step=step, render=str(made), **given)
        if not made.exists():
            return Film(None, result)
        row = rows.get(index, Outcome(index))
        if row.total_reward is None:  # the dataset does not have it
            total = result.total_reward if rewards is None else float(np.nansum(rewards))
            row = Outcome(index, total_reward=total, end=ERROR if failure or result.failed else "played")
        path = folder / f"{name_of(row)}{suffix}"
        os.replace(made, path)
    return Film(path, result)


def name_of(each: Outcome) -> str:
    """Return the name of an episode's film without a suffix, such as "episode-0017_return-20.0_failure"."""
    end = each.end if each.success is None or each.end == ERROR else "success" if each.success else "failure"
    total = math.nan if each.total_reward is None else each.total_reward
    known = "" if math.isnan(total) else f"_return-{total:{'.1f' if abs(total) < 1e9 else '.3g'}}"
    return f"episode-{each.index:04}{known}_{end}"


def chosen(
    rows: Iterable[Outcome], *, best: int = 0, worst: int = 0, failed: int = 0, episodes: Sequence[int] = ()
) -> list[int]:
    """Return the indices of the chosen episodes in ascending order, each once.

    Args:
        rows: the outcomes to choose from.
        best, worst: numbers of episodes with the largest and the smallest returns; of equal ones the first count.
            Episodes without a return, or with NaN, are left out.
        failed: number of failed episodes, the first ones.
        episodes: indices of further episodes.
    """
    known = sorted(rows, key=lambda row: row.index)
    ended = [(row.total_reward, row.index) for row in known if row.total_reward is not None]
    ended = [each for each in ended if not math.isnan(each[0])]
    found = [index for _, index in sorted(ended, key=lambda each: -each[0])[:best] + sorted(ended)[:worst]]
    return sorted({*episodes, *found, *[row.index for row in known if row.failed][:failed]})


def by_index(directory: Path) -> dict[int, Outcome]:
    """Return the outcome of each episode that a run has finished or that failed in it, by index.

    The run may be incomplete. Nothing is unpickled.

    Raises:
        UsageError: no outcome can be read, as files of the directory are damaged.
    """
    found, unread = outcomes_of(directory)
    if unread and not found:
        raise UsageError(f"{directory} does not say what came of its episodes ({unread[0]})")
    failures = (path.stem.rpartition("-")[2] for path in (directory / FAILURES).glob(f"episode-*{SUFFIX}"))
    rows = {int(index): Outcome(int(index)) for index in failures if index.isdecimal()}
    return rows | {each.index: each for each in found}
