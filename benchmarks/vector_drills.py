"""What is done to a vector of environments that is checked; each drill in a process of its own, which may hang.

`main` runs there. What it sees it appends to a file, a line at a time, so that whoever started it knows how far it got.
"""

from __future__ import annotations

import json
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle
import numpy as np

from treadle.sample.failed import user_frame
from zoo.faults import ACTION, SAID, SEED, SLOT, WRONG, T, truthful

N = 3
STEPS = 16
SLOW = 1.5  # seconds of a step of the environment that is slow once
NAMED = re.compile(rf"(slot|env|environment|index|worker|process)[^0-9\n]{{0,12}}{WRONG}\b", re.IGNORECASE)

Make = Callable[[list[Callable[[], Any]]], Any]


class Told:
    """Lines of JSON in a file: (what, value)."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)

    def __call__(self, what: str, value: Any = True) -> None:
        self._file.write(json.dumps([what, value]) + "\n")

    def odd(self, level: str, about: str, text: str) -> None:
        """Something that is not as it should be."""
        self("odd", [level, about, text])

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Say when it begins, and how many seconds it took."""
        self("begins", what)
        start = time.monotonic()
        try:
            yield
        finally:
            self(f"{what} took", time.monotonic() - start)


def actions(k: int) -> np.ndarray:
    """Of step k: the same for all."""
    return np.full(N, k % 4, np.int64)


def rows_of(told: Told, observations: Any, what: str) -> np.ndarray:
    """A batch of observations as float32[N, 5]."""
    rows = np.asarray(observations)
    if rows.shape != (N, 5):
        told.odd("fault", "spaces", f"{what} returns observations of shape {rows.shape}, not {(N, 5)}")
        raise SystemExit
    if rows.dtype != np.float32:
        told.odd("fault", "spaces", f"{what} returns observations of {rows.dtype}, the environments' are float32")
    return rows


# -- drills ------------------------------------------------------------------------------------------------------------


def contract(make: Make, told: Told) -> None:
    """Spaces, seeds, and what follows an episode's end, with the truth at hand."""
    vector = make(truthful(N))
    observations, _ = vector.reset(seed=10)
    rows = rows_of(told, observations, "reset")
    if rows[:, SLOT].tolist() != [0, 1, 2]:
        told.odd("fault", "order", f"reset returns the rows of the environments {rows[:, SLOT].tolist()}")
    seeds = rows[:, SEED].tolist()
    if seeds == [-1] * N:
        told.odd("fault", "seeds", "reset(seed=10) gives the environments no seed")
    elif len(set(seeds)) < N:
        told.odd("warning", "seeds", f"reset(seed=10) gives the environments the seeds {seeds}: some play the same")
    told("seeds", seeds)
    kept, copies = observations, np.array(rows)
    now, over, modes = np.zeros(N, int), [False] * N, set[str]()
    said = str(getattr(getattr(vector, "metadata", {}).get("autoreset_mode"), "name", "")) or None
    for k in range(1, STEPS):
        if said == "DISABLED" and any(over):
            rows = _masked(vector, told, rows, np.array(over))
            now, over = rows[:, T].astype(int), [False] * N
            modes.add(said)
        observations, rewards, terminated, truncated, infos = vector.step(actions(k))
        if not np.array_equal(np.asarray(kept), copies):
            told.odd("warning", "aliasing", "arrays that it has returned are written over by the next step")
        rows = rows_of(told, observations, "step")
        kept, copies = observations, np.array(rows)
        for what, column, kind in (
            ("rewards", rewards, "f"),
            ("terminations", terminated, "b"),
            ("truncations", truncated, "b"),
        ):
            if np.asarray(column).shape != (N,) or np.asarray(column).dtype.kind != kind:
                told.odd(
                    "fault", "spaces", f"step returns {what} of {np.asarray(column).dtype}, {np.asarray(column).shape}"
                )
        for i in range(N):
            row, where = rows[i], f"step {k}, environment {i}"
            if over[i]:
                over[i], now[i] = _after_end(told, row, float(rewards[i]), now[i], where, modes), int(row[T])
                continue
            now[i] += 1
            ended = bool(terminated[i])
            if ended != (now[i] >= 4 + i):
                told.odd("fault", "ends", f"{where}: terminated is {ended} in step {now[i]} of an episode of {4 + i}")
            elif ended and int(row[T]) == 0:
                modes.add("SAME_STEP")
                _final(told, infos, i, now[i], where)
                now[i] = 0
            elif int(row[T]) != now[i] or int(row[ACTION]) != k % 4 or float(rewards[i]) != now[i]:
                seen = f"step {int(row[T])}, action {int(row[ACTION])}, reward {float(rewards[i])}"
                told.odd("fault", "rows", f"{where}: a row of {seen}, where step {now[i]}, action {k % 4} were due")
                now[i] = int(row[T])
            else:
                over[i] = ended
    told("mode", [said, sorted(modes)])
    if len(modes) > 1 or (said and modes and {said} != modes):
        told.odd("fault", "autoreset", f"it says {said} and does {', '.join(sorted(modes))}")
    again = rows_of(told, vector.reset(seed=10)[0], "reset")
    if again[:, [SLOT, SEED, T]].tolist() != [[i, seeds[i], 0] for i in range(N)]:
        told.odd("fault", "seeds", f"reset(seed=10) gives other rows the second time: {again.tolist()}")
    with told.timed("close"):
        vector.close()
    with told.timed("second close"):
        vector.close()


def _after_end(told: Told, row: np.ndarray, reward: float, before: int, where: str, modes: set[str]) -> bool:
    """The row after an end: is the episode still over?"""
    if int(row[T]) == 0:
        modes.add("NEXT_STEP")
        if reward != 0:
            told.odd("fault", "autoreset", f"{where}: the row that begins an episode has the reward {reward}")
        return False
    modes.add("DISABLED")
    if int(row[T]) not in (before, before + 1):
        told.odd("fault", "autoreset", f"{where}: a row of step {int(row[T])} after an end in step {before}")
    return True


def _final(told: Told, infos: Any, slot: int, due: int, where: str) -> None:
    """What infos say of an episode that was followed by the next one within the step."""
    for name, read in (("final_obs", lambda found: int(found[T])), ("final_info", lambda found: int(found["t"]))):
        try:
            mask, column = infos[f"_{name}"], infos[name]
            found = {key: part[slot] for key, part in column.items()} if isinstance(column, dict) else column[slot]
            seen = read(found) if mask[slot] else None
        except (KeyError, TypeError, IndexError) as error:
            told.odd(
                "fault",
                "finals",
                f"infos have no {name} of an episode that has ended ({type(error).__name__}: {error})",
            )
            continue
        if seen != due:
            told.odd("fault", "finals", f"{where}: {name} is of step {seen}, the episode ended in step {due}")


def _masked(vector: Any, told: Told, before: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Reset those whose episodes are over, and no others; returns the rows."""
    before = before.copy()
    after = np.array(rows_of(told, vector.reset(options={"reset_mask": mask})[0], "reset with a mask"))
    if after[mask][:, T].any() or (after[~mask] != before[~mask]).any():
        told.odd("fault", "masks", f"reset_mask={mask.tolist()} leads to the steps {after[:, T].tolist()}")
    return after


def caught_timeout(make: Make, told: Told) -> None:
    """One environment is slow once; the caller's patience ends, and it goes on."""
    vector = make(truthful(N, "SlowOnce", length=50, seconds=SLOW))
    if not hasattr(vector, "step_wait"):
        told("no timeout")
        return
    vector.reset(seed=10)
    vector.step(actions(1))
    vector.step(actions(2))
    vector.step_async(actions(3))
    try:
        vector.step_wait(timeout=SLOW / 5)
    except Exception as error:  # noqa: BLE001 - whatever a library raises then
        told("timeout", type(error).__name__)
    else:
        told("no timeout")
        return
    sent = 3
    try:
        result = vector.step_wait(timeout=10 * SLOW)
        told("waits on")
    except Exception as error:  # noqa: BLE001
        told("then", f"{type(error).__name__}: {error}"[:200])
        sent = 4
        try:
            with told.timed("next step"):
                result = vector.step(actions(sent))
        except Exception as refused:  # noqa: BLE001 - to refuse is an answer
            told("refuses", f"{type(refused).__name__}: {refused}"[:200])
            result = None
    stale = 0
    while result is not None and sent < 7:
        rows = np.asarray(result[0])
        stale += bool((rows[:, ACTION] != sent % 4).any() or (np.asarray(result[1]) != sent).any())
        sent += 1
        result = vector.step(actions(sent))
    told("stale steps", stale)
    with told.timed("close"):
        vector.close()


def goes_wrong(make: Make, told: Told, fault: str) -> None:
    """One environment goes wrong: what does the caller see, and can it close?"""
    broken = truthful(N, FAULTS[fault].kind)
    vector = make(broken) if fault != "init" else None
    try:
        with told.timed("error"):
            vector = make(broken) if vector is None else vector
            vector.reset(seed=10)
            for k in range(1, 6):
                result = vector.step(actions(k))
                if fault in ("shape", "precise") and k == 3:
                    row = np.asarray(result[0], np.float64)[WRONG]
                    told("passed", np.where(np.isfinite(row), row, -9).tolist())
    except BaseException as error:  # noqa: BLE001 - an exit, too
        text = "\n".join([str(error), *getattr(error, "__notes__", ())])
        told("raised", type(error).__name__)
        told("names", bool(NAMED.search(text)))
        told("cause", SAID in "".join(_chain(error)))
        told("text", text[:300])
    else:
        told("no error")
    if vector is not None:
        with told.timed("close"):
            vector.close()


def _chain(error: BaseException | None) -> Iterator[str]:
    while error is not None:
        yield f"{type(error).__name__}: {error}"
        error = error.__cause__ or error.__context__


def orphaned(make: Make, told: Told) -> None:
    """Its caller is killed while environments are stepped: whoever runs this kills it at the word."""
    vector = make(truthful(N, "Hangs"))
    vector.reset(seed=10)
    vector.step(actions(1))
    vector.step(actions(2))
    told("kill me")
    vector.step(actions(3))
    time.sleep(3600)


class Fault(NamedTuple):
    """What goes wrong with an environment. `kind`: of the zoo. `raises`: is it an exception, which has to be told?"""

    kind: str
    title: str
    raises: bool = False


FAULTS = {
    "init": Fault("InitRaises", "a constructor raises", True),
    "reset": Fault("ResetRaises", "a reset raises", True),
    "raise": Fault("StepRaises", "a step raises", True),
    "unpicklable": Fault("RaisesUnpicklable", "a step raises what cannot be pickled", True),
    "two arguments": Fault("RaisesTwoArguments", "a step raises what cannot be unpickled", True),
    "exit": Fault("OsExits", "an environment ends its process"),
    "kill": Fault("KillsItself", "a worker is killed"),
    "hang": Fault("Hangs", "a step never returns"),
    "shape": Fault("WrongShape", "an observation of another shape"),
    "precise": Fault("TooPrecise", "1e300 in float64 for float32"),
}


def main() -> None:
    """Run a drill: the arguments are a file with the pickled `make`, the drill, and the file to write to."""
    made, drill, out = sys.argv[1:]
    make, told = cloudpickle.loads(Path(made).read_bytes()), Told(Path(out))
    try:
        warm = make(truthful(N))  # imports, and what is started once
        warm.reset(seed=0)
        warm.close()
    except Exception as error:
        place = user_frame(traceback.format_exc())
        why = f"{error}{f' ({place})' if place else ''}"
        told("unmade", [type(error).__name__, " ".join(why.split())])
        raise
    told("ready")
    if drill in FAULTS:
        goes_wrong(make, told, drill)
    else:
        {"contract": contract, "caught timeout": caught_timeout, "orphaned": orphaned}[drill](make, told)
    told("done")


if __name__ == "__main__":
    main()
