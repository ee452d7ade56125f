"""The result of a replay: its last step, the exception there, and whether all was as recorded.

`Checks` compares the steps with the recorded rewards, ends and check sums, or with a stored episode.
"""

from __future__ import annotations

import sys
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from treadle.errors import UsageError
from treadle.play.episode import Episode
from treadle.record.columns import columns_of, digester
from treadle.repro import UNKNOWN, Repro, fingerprint, spaces_of
from treadle.sample.failed import user_frame
from treadle.spaces import Layout, Mismatch

_HERE = str(Path(__file__).parent.parent)
_END = {0: "going on", 1: "terminated", 2: "truncated", 3: "terminated and truncated"}


class Difference(NamedTuple):
    """The first value that was not as recorded.

    Attributes:
        step: number of the step in the episode, from 1; 0: the reset.
        field: the name of the value, such as "reward".
        recorded, now: the value in the recording and in the replay; None: they cannot be shown in a few words.
        episode: number of the episode since the recorded reset, from 0.
    """

    step: int
    field: str
    recorded: Any
    now: Any
    episode: int = 0

    def plain(self) -> Difference:
        """Return the difference for JSON: values as texts, or None."""
        recorded, now = (None if value is None else str(value) for value in (self.recorded, self.now))
        return self._replace(recorded=recorded, now=now)

    def __str__(self) -> str:
        values = f": it was {self.recorded} and is {self.now}" if self.recorded is not None else ""
        of = f" of episode {self.episode}" if self.episode else ""
        return f"{'the reset' if self.step == 0 else f'step {self.step}'}{of}, {self.field}{values}"


@dataclass
class Replay:
    """The result of a replay.

    Attributes:
        repro: the recording.
        steps: number of steps that were begun in the last episode; the last step may not have ended.
        episode: number of the last episode since the recorded reset, from 0.
        error: the exception in that episode, with its traceback; None: there was none, or the child process ended. From
            a child process it is an Exception with the same name and text, without a traceback.
        died: a sentence about the end of the child process, or about a step that exceeded the limit; "": neither.
        stack: the Python stack at the moment of `died` or `error`, as text; "": there is none.
        difference: the first value that differs from the recorded one; None: no value differs.
        total_reward: sum of the rewards of all played steps, over all episodes since the recorded reset.
        observation: the last observation; None from a child process.
        stopped: True if the replay stopped early: at `step`, or because the user left the debugger.
        left: True if the user left the debugger within the last step.
        asking: True if the policy was being asked about the next step at `error`.
        compared: names of the recorded values that were compared.
    """

    repro: Repro
    steps: int = 0
    episode: int = 0
    error: BaseException | None = None
    died: str = ""
    stack: str = ""
    difference: Difference | None = None
    total_reward: float = 0.0
    observation: Any = None
    stopped: bool = False
    left: bool = False
    asking: bool = False
    compared: list[str] = field(default_factory=list)

    @property
    def failed(self) -> str:
        """The failure of the replay in one line; "" for none."""
        place = user_frame(self.stack)
        at = f" ({place})" if place else ""
        if self.died:
            return f"{self.died}{at}"
        if self.error is None:
            return ""
        text = " ".join(str(self.error).split())
        return f"{type(self.error).__name__}{': ' if text else ''}{text}{at}"

    @property
    def as_recorded(self) -> bool:
        """True if all compared values were the same and the same failure came in the same step.

        If no failure was recorded, there must be none. If the replay `stopped` early, only the values count.
        """
        recorded = self.repro.about.get("failed")
        if self.difference is not None or self.stopped:
            return self.difference is None
        if recorded is None or not self.failed:
            return recorded is None and not self.failed
        same_step = recorded.get("step") in (None, self.steps) or recorded.get("phase") not in ("step", "stream")
        return same_step and self._same_kind(recorded)

    def _same_kind(self, recorded: dict[str, Any]) -> bool:
        if recorded.get("kind") == "raised":
            return self.error is not None and type(self.error).__name__ == recorded.get("error_type")
        ended = recorded.get("signal") or f"code {recorded.get('exit_code')}"
        return bool(self.died) and (recorded.get("kind") == "late" or ended in self.died)

    def __str__(self) -> str:
        recorded = self.repro.about.get("failed")
        at = f"step {self.steps}" if self.steps else "the reset"
        at += f" of episode {self.episode}" if self.episode else ""
        at = f"policy before step {self.steps + 1}" if self.asking else at
        if self.failed:
            text = f"{at}: {self.failed}"
        elif self.stopped:
            text = f"{'left in' if self.left else 'stopped after'} {at}"
        else:
            text = f"{self.steps:,} steps to its end, return {self.total_reward:g}"
            text = f"it did not fail: {text}" if recorded else text
        if self.difference is not None:
            return f"{text}; it first differs from what was recorded in {self.difference}"
        if self.as_recorded:
            return f"{text}, as recorded" if recorded or self.compared else f"{text}; nothing was recorded to compare"
        if recorded is None:
            return f"{text}; no failure was recorded"
        at = f" in step {recorded['step']}" if recorded.get("step") else ""
        return f"{text}; recorded: {recorded.get('reason')}{at}"

    def __repr__(self) -> str:
        return f"<Replay of {self.repro.about['title']}: {self}>"

    def as_dict(self) -> dict[str, Any]:
        """Return the result as a dict for JSON."""
        return {
            "title": self.repro.about["title"],
            "steps": self.steps,
            "failed": self.failed,
            "stack": self.stack,
            "difference": None if self.difference is None else self.difference.plain()._asdict(),
            "compared": self.compared,
            "total_reward": self.total_reward,
            "as_recorded": self.as_recorded,
            "verdict": str(self),
        }


def own_frames(frames: TracebackType | None, *, users: bool = False) -> TracebackType | None:
    """Return a traceback from the first frame that is not this package's to the last one.

    `users`: True: to the last frame that is neither a library's nor Python's own. Without such frames the traceback is
    returned whole.
    """
    chain = []
    while frames is not None:
        chain.append(frames)
        frames = frames.tb_next
    foreign = (_HERE, "<", sys.prefix, sys.base_prefix) if users else _HERE
    ours = [each.tb_frame.f_code.co_filename.startswith(_HERE) for each in chain]
    first = ours.index(False) if False in ours else 0
    last = len(chain)
    while last > first + 1 and chain[last - 1].tb_frame.f_code.co_filename.startswith(foreign):
        last -= 1
    made: TracebackType | None = None
    for each in reversed(chain[first:last]):
        made = TracebackType(made, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return made


def users_stack(frames: str) -> str:
    """Return the frames that are not this package's, of a stack as faulthandler writes it."""
    lines = [line for line in frames.splitlines() if line.startswith("  File")]
    own = [line for line in lines if f'"{_HERE}' not in line and '"<string>"' not in line]
    return "\n".join(["Stack (most recent call first):", *own, ""])


def stack_of(error: BaseException) -> str:
    """Return an error's traceback as text, without this package's frames."""
    return "".join(traceback.format_exception(type(error), error, own_frames(error.__traceback__)))


class Checks:
    """Compares each step with the recording.

    Args:
        repro: the recording. Its arrays "rewards", "ends" (1: terminated, 2: truncated) and "checks" (steps, and the
            check sums of their observations) are compared. Of a stored episode "observation.0", ..., or the "digest"
            of the whole are compared.
        env: the environment that is played.

    Attributes:
        compared: names of what is compared.
        difference: the first value that differs; None: no value has differed.
        at: the step of `difference`, counted over all episodes; 0: there is none, or it is the first reset.
        place: (episode, step of it) of the present comparison; the caller sets it.
    """

    def __init__(self, repro: Repro, env: Any) -> None:
        arrays, self._layout = repro.arrays, Layout.of(env.observation_space)
        self._actions = Layout.of(env.action_space)
        self._digest, self._seen, self._arrays = arrays.get("digest"), list[list[Any]](), arrays
        self._rewards, self._ends = arrays.get("rewards"), arrays.get("ends")
        self._sums = dict(arrays["checks"].T.tolist()) if "checks" in arrays else {}
        stored = {i: arrays.get(f"observation.{i}") for i in range(len(self._layout.leaves))}
        self._stored = {i: rows for i, rows in stored.items() if rows is not None}
        seen = "first observation" if not self._stored and [*self._sums] == [0] else "observations"
        observed = self._sums or self._stored or self._digest
        told: dict[str, Any] = {"rewards": self._rewards, "ends": self._ends, seen: observed}
        self.compared = [name for name, value in told.items() if value is not None]
        self.difference: Difference | None = None
        self.at, self.place = 0, (0, 0)

    def _differs(self, step: int, field: str, recorded: Any, now: Any) -> None:
        if self.difference is None:
            self.at = step
            self.difference = Difference(self.place[1], field, recorded, now, self.place[0])

    def step(self, step: int, reward: float, terminated: bool, truncated: bool) -> None:
        """Compare a step's reward and end. `step`: its number, counted from 1 over all episodes."""
        if self._rewards is None or step > len(self._rewards) or self._rewards[step - 1].tobytes() == UNKNOWN:
            return
        was = float(self._rewards[step - 1])
        if np.float64(was).tobytes() != np.float64(reward).tobytes():
            self._differs(step, "reward", was, reward)
        if self._ends is not None and step <= len(self._ends):
            was_end, end = int(self._ends[step - 1]), bool(terminated) + 2 * bool(truncated)
            if was_end != end:
                self._differs(step, "the end of the episode", _END[was_end], _END[end])

    def observation(self, step: int, observation: Any) -> None:
        """Compare the observation after step `step`, counted over all episodes; 0: the one of the first reset."""
        whole = self._digest is not None
        if self.difference is not None or not (whole or step in self._sums or self._stored):
            return
        try:
            leaves = self._layout.flatten(observation)
        except Mismatch as error:
            self._differs(step, f"observation ({error})", None, None)
            return
        pairs = zip(leaves, self._layout.leaves, strict=True)
        rows = [np.asarray(value, leaf.dtype) if leaf.fixed else None for value, leaf in pairs]
        if whole:
            self._seen.append([None if row is None else row.copy() for row in rows])
        if step in self._sums and fingerprint(rows) != self._sums.pop(step) & 0xFFFFFFFF:  # once, at the first reset
            self._differs(step, "observation", None, None)
        for i, stored in self._stored.items():
            row = rows[i]
            if row is None or step >= len(stored):
                continue
            if row.tobytes() != np.asarray(stored[step], row.dtype).tobytes():
                path = "".join(f"[{each!r}]" for each in self._layout.leaves[i].path)
                self._differs(step, f"observation{path}", *_unlike(stored[step], row))

    def end(self) -> None:
        """Compare the digest of all observations and actions, if the episode was played to its end."""
        seen, rewards, ends = self._seen, self._rewards, self._ends
        actions = [self._arrays.get(f"action.{i}") for i in range(len(self._actions.leaves))]
        if self.difference or self._digest is None or rewards is None or ends is None or len(seen) != len(rewards) + 1:
            return
        if any(each is None for each in (*seen[0], *actions)):  # what has no fixed shape
            return
        trees = self._layout.unflatten(list(map(np.stack, zip(*seen, strict=True)))), self._actions.unflatten(actions)
        episode = Episode(0, 0, *trees, rewards, (ends & 1).astype(bool), (ends & 2).astype(bool))
        if digester()(columns_of(episode, infos=False).columns) != self._digest.tobytes():
            self._differs(self.at, "the digest of all observations", None, None)


def check_spaces(repro: Repro, env: Any) -> None:
    """Raise UsageError if the spaces of the given environment `env` are not those of the recorded one."""
    now = spaces_of([env.observation_space, env.action_space])
    for what, was, own in zip(("observation", "action"), repro.about["spaces"], now, strict=True):
        if was and own and was != own:
            raise UsageError(f"env (--env) is not what was played: its {what} space is {own}, and was {was}")


def _unlike(was: Any, now: np.ndarray) -> tuple[Any, Any]:
    """Return two rows as they are shown to a person; (None, None) if they are long."""
    return (np.asarray(was), now) if now.size <= 8 else (None, None)
