"""Chaos on every face: workers are killed, crashed, stopped, slowed, hung and made to raise at random moments while a
face goes on; then the books are balanced.

    python -m treadle.testing.chaos --face all --minutes 1

Every observation says which seed, episode and step it is of, over a row long enough to be torn, with a checksum. Faces
whose episodes or items go by index must return, in full and once, what they return in calm, to the last bit. In the
others each row must be the next step of its slot's episode, the first of another one, or tell that one was cut.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import random
import signal
import sys
import tempfile
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces as gs
from gymnasium.vector import AutoresetMode

from treadle.errors import TaskRaised
from treadle.plan import GymPlanEnv, ParallelEnv
from treadle.pool import failure
from treadle.progress import print_table
from treadle.sample.collect import collect
from treadle.sample.evaluate import evaluate
from treadle.sample.samplers.default_worker import DefaultWorker
from treadle.sample.samplers.multiprocessing_sampler import MultiprocessingSampler
from treadle.sample.samplers.worker_factory import WorkerFactory
from treadle.tasks.gym import GymTaskSampler
from treadle.tasks.vectors import VectorSampledTasks
from treadle.testing.processes import runs
from treadle.vector.gymnasium import VectorEnv
from treadle.vector.refusals import NothingPending

WIDTH = 1024  # of a row: two pages of int64
SEED, EPISODE, T, SUM = range(4)
DEATHS = ("SIGKILL", "SIGKILL", "SIGSEGV", "SIGABRT", "SIGSTOP", "slow", "hang")
LIMIT = 1.0  # seconds of a step: what hangs is killed
N = 4  # slots, in two workers
ITEMS = 16  # of a batch of planning
FOLDER, CALLER = "TREADLE_CHAOS", "TREADLE_CHAOS_CALLER"  # environment variables

_due = ""  # what the next step in this process does


def _noted(*_: Any) -> None:
    global _due
    _due = Path(os.environ[FOLDER], "what").read_text()


class Chaotic(gym.Env):
    """Observes int64[WIDTH]: seed, episode, step, checksum, then the step again and again; the reward is the step.

    SIGUSR1 has its process raise, sleep or hang in the next step, as a file says.
    """

    observation_space = gs.Box(-(2**62), 2**62, (WIDTH,), np.int64)
    action_space = gs.Discrete(2)

    def __init__(self) -> None:
        self.seed_given, self.episode, self.t, self.length = 0, -1, 0, 1

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        if seed is not None:  # so that all depends on it alone
            self.seed_given, self.episode = seed % 2**62, -1
        self.episode, self.t, self.length = self.episode + 1, 0, int(self.np_random.integers(5, 40))
        if os.environ[CALLER] != str(os.getpid()):
            signal.signal(signal.SIGUSR1, _noted)
            Path(os.environ[FOLDER], f"{os.getpid()}.pid").touch()
        return self._row(), {}

    def step(self, action: Any) -> Any:
        global _due
        if _due:
            _due, what = "", _due
            if what == "raise":
                raise ArithmeticError("chaos")
            time.sleep(3600 if what == "hang" else 0.05)
        self.t += 1
        return self._row(), float(self.t), self.t >= self.length, False, {}

    def _row(self) -> np.ndarray:
        row = np.full(WIDTH, self.t, np.int64)
        row[:4] = self.seed_given, self.episode, self.t, 0
        row[SUM] = zlib.crc32(row.tobytes())
        return row


@dataclass
class Ledger:
    """What one face was asked for, and what came of it. Memory in bytes, of the caller; the last three are what was
    there at the end and not before."""

    sent: int = 0
    received: int = 0
    lost: int = 0
    duplicated: int = 0
    torn: int = 0
    cut: int = 0
    raised: int = 0
    unequal: int = 0
    strikes: Counter[str] = field(default_factory=Counter)
    descriptors: int = 0
    processes: int = 0
    memory: int = 0

    @property
    def balanced(self) -> bool:
        """Nothing lost, doubled, torn, unlike calm, or left behind; and something came."""
        wrong = self.lost + self.duplicated + self.torn + self.unequal + self.processes + max(0, self.descriptors)
        return not wrong and self.received > 0 and self.memory < 100e6

    def cells(self, name: str) -> list[str]:
        """As a line of a table."""
        deaths = sum(self.strikes[each] for each in ("SIGKILL", "SIGSEGV", "SIGABRT", "hang"))
        counts = [self.sent, self.received, self.lost, self.duplicated, self.torn, self.cut, self.raised, self.unequal]
        left = [self.descriptors, self.processes]
        said = [sum(self.strikes.values()), deaths, *counts, *left]
        return [name, *(f"{n:,}" for n in said), f"{self.memory / 1e6:+.0f} MB", "yes" if self.balanced else "NO"]


HEADER = ("face", "strikes", "deaths", "sent", "received", "lost", "doubled", "torn", "cut", "raised", "unlike calm",
          "descriptors", "processes", "memory", "balanced")  # fmt: skip


class Storm:
    """A thread that strikes processes of `Chaotic` environments, while it is `on`.

    Args:
        folder: where they say which they are.
        seed: of what happens when.
        kinds: what happens.
    """

    def __init__(self, folder: Path, seed: int, kinds: tuple[str, ...], strikes: Counter[str]) -> None:
        self._folder, self._rng, self._kinds, self._strikes = folder, random.Random(seed), kinds, strikes
        self.on, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._blow)
        self._thread.start()

    def _blow(self) -> None:
        while not self._over.wait(self._rng.uniform(0.02, 0.3)):
            pids = self.living()
            if self.on.is_set() and pids:
                self._strike(self._rng.choice(pids), self._rng.choice(self._kinds))

    def _strike(self, pid: int, kind: str) -> None:
        with contextlib.suppress(ProcessLookupError):
            if kind in ("raise", "slow", "hang"):
                Path(self._folder, "what").write_text(kind)
                os.kill(pid, signal.SIGUSR1)
            else:
                os.kill(pid, getattr(signal, kind))
            if kind == "SIGSTOP":
                self._over.wait(self._rng.uniform(0.001, 0.1))
                os.kill(pid, signal.SIGCONT)
            self._strikes[kind] += 1

    def living(self) -> list[int]:
        """Processes that are there; ended ones are forgotten."""
        found = []
        for file in self._folder.glob("*.pid"):
            if runs(int(file.stem)):
                found.append(int(file.stem))
            else:
                file.unlink(missing_ok=True)
        return sorted(found)

    def end(self) -> None:
        self._over.set()
        self._thread.join()


# -- faces whose rows continue -----------------------------------------------------------------------------------------


class Slots:
    """Follows the rows of slots."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._now: dict[int, tuple[int, int, int]] = {}

    def read(self, row: Any) -> tuple[int, int, int]:
        """(seed, episode, step) of an observation, which must be whole."""
        row = np.array(row)
        found, row[SUM] = int(row[SUM]), 0
        self._ledger.torn += int(found != zlib.crc32(row) or bool((row[4:] != row[T]).any()))
        return int(row[SEED]), int(row[EPISODE]), int(row[T])

    def began(self, slot: int, row: Any) -> None:
        """A row that shows a first observation, or tells of a cut."""
        self._now[slot] = self.read(row)

    def stepped(self, slot: int, row: Any, reward: float) -> None:
        """A transition's row. In SAME_STEP mode it may show the next episode's beginning."""
        ledger, before, now = self._ledger, self._now[slot], self.read(row)
        ledger.received += 1
        t = int(reward)
        ledger.unequal += now[2] not in (0, t) or (now[2] == t and now[:2] != before[:2])
        ledger.lost += max(0, t - before[2] - 1)
        ledger.duplicated += t <= before[2]
        self._now[slot] = now

    def take(self, ids: Any, observed: Any, rewards: Any, valid: Any, infos: Any) -> None:
        """Rows of a batch."""
        nobody = np.zeros(len(ids), bool)
        aborted = infos.get("aborted", nobody) | infos.get("final_info", {}).get("aborted", nobody)
        for row, slot in enumerate(ids):
            if valid[row]:
                self.stepped(slot, observed[row], float(rewards[row]))
            else:
                self._ledger.cut += bool(aborted[row])
                self.began(slot, observed[row])


Face = Callable[[Ledger, Storm, Callable[[], bool]], None]
OPTIONS: dict[str, Any] = {"on_failure": "restart", "max_restarts": 10**6, "step_timeout": LIMIT}


def _vector(mode: AutoresetMode) -> VectorEnv:
    return VectorEnv([Chaotic] * N, workers=2, inline=0, autoreset_mode=mode, worker_output="keep", **OPTIONS)


def stepping(mode: AutoresetMode) -> Face:
    """`VectorEnv.step` in one of the three modes."""

    def run(ledger: Ledger, storm: Storm, more: Callable[[], bool]) -> None:
        with contextlib.closing(_vector(mode)) as env:
            slots, shown = Slots(ledger), None
            while more():
                storm.on.set()
                try:
                    if shown is None:
                        shown = env.reset(seed=ledger.raised)[0]
                        for slot in range(N):
                            slots.began(slot, shown[slot])
                    ledger.sent += N
                    observed, rewards, terminated, truncated, infos = env.step(np.zeros(N, np.int64))
                    slots.take(range(N), observed, rewards, env.valid, infos)
                    over = terminated | truncated
                    if mode is AutoresetMode.DISABLED and over.any():
                        fresh = env.reset(options={"reset_mask": over})[0]
                        for slot in np.flatnonzero(over).tolist():
                            slots.began(slot, fresh[slot])
                except TaskRaised:
                    ledger.raised, shown = ledger.raised + 1, None

    return run


def rollouts(ledger: Ledger, storm: Storm, more: Callable[[], bool]) -> None:
    """`VectorEnv.rollout`."""
    with contextlib.closing(_vector(AutoresetMode.NEXT_STEP)) as env:
        slots, shown = Slots(ledger), env.reset(seed=1)[0]
        for slot in range(N):
            slots.began(slot, shown[slot])
        while more():
            storm.on.set()
            ledger.sent += 32 * N
            found = env.rollout(lambda _: np.zeros(N, np.int64), steps=32)
            for t in range(32):
                slots.take(range(N), found.following[t], found.rewards[t], found.valid[t], found.infos[t])


def partial(ledger: Ledger, storm: Storm, more: Callable[[], bool]) -> None:
    """`VectorEnv.send` and `recv`: whoever is ready first."""
    with contextlib.closing(_vector(AutoresetMode.NEXT_STEP)) as env:
        slots = Slots(ledger)
        env.async_reset(seed=1)
        while more():
            observed, rewards, _, _, infos = env.recv(min=1, max=N)
            ids = infos["env_id"].tolist()
            slots.take(ids, observed, rewards, infos["valid"], infos)
            ledger.sent += len(ids)
            storm.on.set()
            env.send(np.zeros(len(ids), np.int64), ids)
        with contextlib.suppress(NothingPending):
            while True:
                env.recv()


def tasks(ledger: Ledger, storm: Storm, more: Callable[[], bool]) -> None:
    """`VectorSampledTasks`: a task ends, and the row shows the next one."""
    given = [{"env": Chaotic, "seed": slot} for slot in range(N)]
    with VectorSampledTasks(
        GymTaskSampler, given, read_timeout=LIMIT, on_failure="restart", max_restarts=10**6, worker_output="keep"
    ) as env:
        slots = Slots(ledger)
        for slot, shown in enumerate(env.get_observations()):
            slots.began(slot, _row_of(shown))
        while more():
            storm.on.set()
            ledger.sent += N
            for slot, result in enumerate(env.step([0] * N)):
                if (result.info or {}).get("aborted"):
                    ledger.cut += 1
                    slots.began(slot, _row_of(result.observation))
                else:
                    slots.stepped(slot, _row_of(result.observation), float(result.reward or 0.0))


def _row_of(observation: Any) -> Any:
    return next(iter(observation.values())) if isinstance(observation, dict) else observation


def arriving(ledger: Ledger, storm: Storm, more: Callable[[], bool]) -> None:
    """`MultiprocessingSampler` in order of arrival: whole episodes, whoever has played them."""
    factory: Any = WorkerFactory(seed=1, max_episode_length=50, n_workers=2, worker_class=DefaultWorker)
    slots = Slots(ledger)
    with MultiprocessingSampler(factory, Calm(), Chaotic(), worker_output="keep", **OPTIONS) as sampler:
        while more():
            storm.on.set()
            ledger.sent += 1000
            for each in sampler.obtain_samples(0, 1000, Calm()).split():
                seen = [slots.read(row)[2] for row in each.observations]
                ledger.received += len(seen)
                ledger.unequal += seen != [*range(len(seen))] or each.rewards.tolist() != [*range(1, len(seen) + 1)]


# -- faces that go by index: the same as in calm -----------------------------------------------------------------------


def by_index(made: Callable[[int], Iterator[tuple[int, bytes]]]) -> Face:
    """A face that makes (index, bytes) of a round: first in calm, then in a storm."""

    def run(ledger: Ledger, storm: Storm, more: Callable[[], bool]) -> None:
        number = 0
        while more() or not number:
            storm.on.clear()
            calm = dict(made(number))
            storm.on.set()
            seen = Counter[int]()
            for index, data in made(number):
                seen[index] += 1
                ledger.unequal += calm.get(index) != data
            ledger.sent += len(calm)
            ledger.received += sum(seen.values())
            ledger.lost += len(calm.keys() - seen.keys())
            ledger.duplicated += sum(count - 1 for count in seen.values())
            number += 1

    return run


class Calm:
    """A policy of a batch, or of one observation."""

    def __init__(self, batched: bool = False) -> None:
        self.batched = batched

    def __call__(self, observations: Any) -> Any:
        return np.zeros(len(observations), np.int64)

    def reset(self, do_resets: Any = None) -> None:
        """Nothing is remembered."""

    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        return 0, {}


def collecting(**how: Any) -> Callable[[int], Iterator[tuple[int, bytes]]]:
    """`collect`, with the policy in the workers or in the caller."""

    def made(number: int) -> Iterator[tuple[int, bytes]]:
        policy = Calm(batched="num_envs" in how)
        options: dict[str, Any] = {
            "max_deaths": 10**6,
            "step_timeout": LIMIT,
            "worker_output": "keep",
            "workers": 2,
            "seed": number,
        }
        for each in collect(Chaotic, policy, episodes=200, **options, **how):
            yield each.index, each.observations.tobytes() + each.rewards.tobytes()

    return made


def sampling(number: int) -> Iterator[tuple[int, bytes]]:
    """`MultiprocessingSampler` in its deterministic schedule."""
    factory: Any = WorkerFactory(seed=number, max_episode_length=50, n_workers=2, worker_class=DefaultWorker)
    options: dict[str, Any] = {"schedule": "deterministic", "worker_output": "keep", **OPTIONS}
    with MultiprocessingSampler(factory, Calm(), Chaotic(), **options) as sampler:
        for index, each in enumerate(sampler.obtain_exact_episodes(100, Calm()).split()):
            yield index, each.observations.tobytes() + each.rewards.tobytes()


def evaluating(number: int) -> Iterator[tuple[int, bytes]]:
    """`evaluate`: the scores."""
    options: dict[str, Any] = {"step_timeout": LIMIT, "worker_output": "keep", "workers": 2, "seed": number}
    for score in evaluate(Chaotic, Calm(), episodes=200, **options).scores:
        yield score.index, repr(score).encode()


def planning(ledger: Ledger, storm: Storm, more: Callable[[], bool]) -> None:
    """`ParallelEnv.step_batch` from one state."""
    with ParallelEnv(GymPlanEnv, Chaotic, n_workers=2, worker_output="keep", **OPTIONS) as env:
        state, *_ = env.reset()

        def made(dt: int) -> list[bytes]:
            _, shown, rewards, *_ = env.step_batch([0] * ITEMS, [state] * ITEMS, dt=dt)
            return [np.asarray(row).tobytes() + repr(float(r)).encode() for row, r in zip(shown, rewards, strict=True)]

        calm = [made(dt) for dt in range(1, 5)]
        while more():
            storm.on.set()
            for dt, expected in enumerate(calm, 1):
                found = made(dt)
                ledger.sent += ITEMS
                ledger.received += len(found)
                ledger.unequal += sum(a != b for a, b in zip(found, expected, strict=True))


FACES: dict[str, tuple[Face, tuple[str, ...]]] = {
    "step NEXT_STEP": (stepping(AutoresetMode.NEXT_STEP), (*DEATHS, "raise")),
    "step SAME_STEP": (stepping(AutoresetMode.SAME_STEP), (*DEATHS, "raise")),
    "step DISABLED": (stepping(AutoresetMode.DISABLED), (*DEATHS, "raise")),
    "rollouts": (rollouts, DEATHS),
    "partial": (partial, DEATHS),
    "tasks": (tasks, DEATHS),
    "arrival": (arriving, DEATHS),
    "sampling": (by_index(sampling), DEATHS),
    "planning": (planning, DEATHS),
    "collect": (by_index(collecting()), DEATHS),
    "eval": (by_index(evaluating), DEATHS),
    "caller": (by_index(collecting(inference="caller", num_envs=N)), DEATHS),
}


def brave(name: str, seconds: float, seed: int = 0) -> Ledger:
    """Run a face in a storm for so long, and balance its books."""
    face, kinds = FACES[name]
    ledger = Ledger()
    with tempfile.TemporaryDirectory() as folder:
        before = {FOLDER: os.environ.get(FOLDER), CALLER: os.environ.get(CALLER)}
        os.environ.update({FOLDER: folder, CALLER: str(os.getpid())})
        backoff, failure.BACKOFF = failure.BACKOFF, 0.0
        storm = Storm(Path(folder), seed, kinds, ledger.strikes)
        begin, third = time.monotonic(), list[int]()

        def more() -> bool:
            passed = time.monotonic() - begin
            if not third and passed > seconds / 3:
                third.append(_resident())
            return passed < seconds

        try:
            for _ in collect(Chaotic, episodes=1, workers=1, worker_output="keep"):
                continue  # starts what lasts as long as the caller: a fork server, say
            files = len(os.listdir("/proc/self/fd"))
            face(ledger, storm, more)
            ledger.memory = _resident() - third[0] if third else 0
            storm.on.clear()
            ledger.descriptors = len(os.listdir("/proc/self/fd")) - files
            end = time.monotonic() + 2
            while (left := storm.living()) and time.monotonic() < end:
                time.sleep(0.02)
            ledger.processes = len(left)
        finally:
            storm.end()
            failure.BACKOFF = backoff
            for key, value in before.items():
                os.environ.pop(key) if value is None else os.environ.update({key: value})
    return ledger


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    """The command: a line for each face; exit code 1 when books are not balanced."""
    parser = argparse.ArgumentParser(prog="python -m treadle.testing.chaos", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--face", default="all", choices=["all", *FACES])
    parser.add_argument("--minutes", type=float, default=1.0, help="for each face")
    parser.add_argument("--seed", type=int, default=0, help="of what happens when")
    given = parser.parse_args()
    logging.getLogger("treadle").setLevel(logging.ERROR)
    names = list(FACES) if given.face == "all" else [given.face]
    ledgers = {name: brave(name, 60 * given.minutes, given.seed) for name in names}
    print_table([ledger.cells(name) for name, ledger in ledgers.items()], HEADER)
    sys.exit(0 if all(ledger.balanced for ledger in ledgers.values()) else 1)


__all__ = ["FACES", "Chaotic", "Ledger", "brave"]

if __name__ == "__main__":
    from treadle.testing.chaos import main as run  # under its own name, for workers

    run()
