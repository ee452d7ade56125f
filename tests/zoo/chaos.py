"""Chaos on every face: workers are killed, crashed, stopped, slowed, hung and made to raise at random moments while a
face goes on; then the books are balanced.

    PYTHONPATH=tests python -m zoo.chaos --face all --minutes 1

Every observation says which seed, episode and step it is of, over a row long enough to be torn, with a checksum. Faces
whose episodes or items go by index must return, in full and once, what they return in calm, to the last bit. In the
others each row must be the next step of its slot's episode, the first of another one, or tell that one was cut; and two
slots of a vector that are never struck must show what they show in calm, to the last bit.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
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
from dataclasses import dataclass, field, fields
from functools import partial
from hashlib import sha256
from importlib.util import find_spec
from itertools import islice
from operator import gt
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from gymnasium import spaces as gs
from gymnasium.vector import AutoresetMode

from treadle.errors import TaskRaised
from treadle.evaluation.evaluate import evaluate
from treadle.nodes import worker
from treadle.nodes.placing import Cluster
from treadle.plan import GymPlanEnv, ParallelEnv
from treadle.pool import failure
from treadle.progress import print_table
from treadle.sample import skipping
from treadle.sample.collect import collect
from treadle.samplers.pool_sampler import PoolSampler
from treadle.samplers.samplers import MultiprocessingSampler, RaySampler
from treadle.samplers.worker import DefaultWorker
from treadle.samplers.worker_factory import WorkerFactory
from treadle.tasks.gym import GymTaskSampler
from treadle.tasks.vectors import VectorSampledTasks
from treadle.testing.env_probe import parent_of, runs
from treadle.vector.gymnasium import VectorEnv
from treadle.worker.options import WorkerOptions
from zoo.faults import ZOO, Sound

WIDTH = 2048  # of a row: four pages of int64
SEED, EPISODE, T, SUM = range(4)
DEATHS = ("SIGKILL", "SIGKILL", "SIGSEGV", "SIGABRT", "SIGSTOP", "SlowOnce", "Hangs")  # signals, and kinds of the zoo
ENDS = ("SIGKILL", "SIGSEGV", "SIGABRT", "Hangs")
LIMIT = 2.0  # seconds of a step: what hangs is killed
N, SPARED = 6, (4, 5)  # slots, in three workers; the last one's are never struck
ITEMS = 16  # of a batch of planning
AFTERWARDS = 50  # steps in calm after the storm
SLACK = 8  # descriptors that may come and go with workers

_due = ""  # what the next step in this process does
_told = set[str]()  # folders where this process has said that it is there


class Chaotic(Sound):
    """Observes int64[WIDTH]: seed, episode, step, checksum, then the step again and again; the reward is the step.

    Args:
        folder: where its process says with its first step that it is there; None: nowhere, and nobody strikes it.
            SIGUSR1 has the process do in the next step what the kind of the zoo does that its file there names.
        caller: the process that is not to be struck.
    """

    observation_space = gs.Box(-(2**62), 2**62, (WIDTH,), np.int64)
    seconds = 0.05  # of a slow step

    def __init__(self, folder: str | None = None, caller: int = 0) -> None:
        super().__init__()
        self._folder, self._caller = folder, caller

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        shown = super().reset(seed=seed)
        self.length = int(self.np_random.integers(5, 40))
        if self._folder is not None and self._caller != os.getpid():
            signal.signal(signal.SIGUSR1, partial(_noted, self._folder))
        return shown

    def step(self, action: Any) -> Any:
        global _due
        if self._folder is not None and self._folder not in _told and self._caller != os.getpid():
            # not before: an environment of planning is reset while it is built, and a pool that starts is no face
            Path(self._folder, f"{os.getpid()}.pid").touch()
            _told.add(self._folder)
        due, _due = _due, ""  # not in one line with what may take time: an order that comes meanwhile is for the next
        sound = super().step(action)
        return (due and ZOO[due].at_step(self, sound)) or sound

    def observe(self, action: Any) -> np.ndarray:
        row = np.full(WIDTH, self.t, np.int64)
        row[:4] = self.seed_given % 2**62, self.episode, self.t, 0
        row[SUM] = zlib.crc32(row.tobytes())
        return row


def _noted(folder: str, *_: Any) -> None:
    global _due
    _due = Path(folder, f"{os.getpid()}.what").read_text()


@dataclass
class Ledger:
    """What one face was asked for, and what came of it. `missed`: restarts that deaths should have led to. Memory in
    bytes, of the caller; descriptors, threads and processes are what was there at the end and not before."""

    strikes: Counter[str] = field(default_factory=Counter)
    deaths: int = 0
    sent: int = 0
    received: int = 0
    lost: int = 0
    doubled: int = 0
    torn: int = 0
    cut: int = 0
    raised: int = 0
    missed: int = 0
    unlike_calm: int = 0
    descriptors: int = 0
    threads: int = 0
    processes: int = 0
    memory: int = 0

    @property
    def balanced(self) -> bool:
        """Nothing lost, doubled, torn, unlike calm, or left behind; and something came."""
        wrong = self.lost + self.doubled + self.torn + self.missed + self.unlike_calm + self.processes
        left = max(0, self.descriptors) + max(0, self.threads)
        return not wrong + left and self.received > 0 and self.memory < 100e6

    def cells(self, name: str) -> list[str]:
        """As a line of a table; `HEADER` has the words."""
        counts = [self.strikes.total(), *(getattr(self, word) for word in HEADER[2:-2])]
        return [name, *(f"{n:,}" for n in counts), f"{self.memory / 1e6:+.0f} MB", "yes" if self.balanced else "NO"]


HEADER = ("face", *(each.name for each in fields(Ledger)), "balanced")


class Storm:
    """A thread that strikes processes of `Chaotic` environments, while it is `on`.

    Args:
        folder: where they say which they are.
        seed: of what happens when.
        kinds: what happens.
        ledger: where it is written down.
        above: also what these end their names with among their ancestors (`ray::`), which is killed.
    """

    def __init__(self, folder: Path, seed: int, kinds: tuple[str, ...], ledger: Ledger, above: str) -> None:
        self._folder, self._rng, self._kinds, self._ledger = folder, random.Random(seed), kinds, ledger
        self.on, self._over, self._above = threading.Event(), threading.Event(), above
        self._doomed, self._striking = set[int](), threading.Lock()
        self._thread = threading.Thread(target=self._blow)
        self._thread.start()

    def _blow(self) -> None:
        while not self._over.wait(self._rng.uniform(0.02, 0.3)):
            pids = [pid for pid in self.living() if pid not in self._doomed]
            with self._striking, contextlib.suppress(ProcessLookupError):
                if self.on.is_set() and pids:
                    pid, kind = self._rng.choice(pids), self._rng.choice(self._kinds)
                    if self._above and self._rng.random() < 0.1:
                        pid, kind = _ancestor(pid, self._above), "SIGKILL"
                    self._strike(pid, kind)

    def calm(self) -> None:
        """Strike no more; the latest strike is over."""
        with self._striking:
            self.on.clear()

    def _strike(self, pid: int, kind: str) -> None:
        if kind in ZOO:
            Path(self._folder, f"{pid}.what").write_text(kind)  # its own: it may read it late
        os.kill(pid, signal.SIGUSR1 if kind in ZOO else getattr(signal, kind))
        if kind == "SIGSTOP":
            self._over.wait(self._rng.uniform(0.001, 0.1))
            os.kill(pid, signal.SIGCONT)
        if kind in ENDS:
            self._doomed.add(pid)
        self._ledger.strikes[kind] += 1
        self._ledger.deaths = len(self._doomed)

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


def _ancestor(pid: int, named: str) -> int:
    """The next process above that one whose command begins so. Raises ProcessLookupError where there is none."""
    while pid > 1:
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_text().startswith(named):
                return pid
        pid = parent_of(pid)
    raise ProcessLookupError


@dataclass
class Trial:
    """A face in a storm. `env` makes an environment that is struck; `more`: is there time for more?"""

    ledger: Ledger
    storm: Storm
    more: Callable[[], bool]
    env: Callable[[], Chaotic]


# -- faces whose rows continue -----------------------------------------------------------------------------------------

Batch = tuple[Any, Any, Any, Any, Any]  # slots, observations, rewards (None: of a reset), which are valid, infos
OPTIONS: dict[str, Any] = {
    "on_failure": "restart",
    "worker_options": WorkerOptions(max_restarts=10**6, worker_output="keep"),
    "step_timeout": LIMIT,
}
NOBODY = np.zeros(N, bool)


class Slots:
    """Follows the rows of slots. `begun`: of those that nobody strikes, for each seeded reset its seed, how many rows
    came since, and their check sum."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._now: dict[int, tuple[int, int, int]] = {}
        self._rows: dict[int, bytes] = {}
        self.begun: list[list[int]] = []
        self._latest: dict[int, list[int]] = {}

    def read(self, row: Any) -> tuple[int, int, int]:
        """(seed, episode, step) of an observation, which must be whole."""
        row = np.array(row)
        found, row[SUM] = int(row[SUM]), 0
        self._ledger.torn += int(found != zlib.crc32(row) or bool((row[4:] != row[T]).any()))
        return int(row[SEED]), int(row[EPISODE]), int(row[T])

    def take(self, batch: Batch) -> None:
        """Rows of a batch."""
        ids, observed, rewards, valid, infos = batch
        ledger, final = self._ledger, infos.get("_final_obs", NOBODY)
        aborted = infos.get("aborted", NOBODY) | infos.get("final_info", {}).get("aborted", NOBODY)
        for row, slot in enumerate(ids):
            shown, now = observed[row], self.read(observed[row])
            outcome = infos["final_obs"][row] if final[row] else shown
            if aborted[row]:  # nothing has happened since
                ledger.cut += 1
                ledger.unlike_calm += bool(rewards[row]) or np.asarray(outcome).tobytes() != self._rows[slot]
            elif rewards is not None and valid[row]:
                self._stepped(self.read(outcome), self._now[slot], int(rewards[row]))
            self._now[slot], self._rows[slot] = now, np.asarray(shown).tobytes()
            if slot in SPARED:
                if rewards is None and now[1] == 0:
                    self._latest[slot] = [now[0], 0, 0]
                    self.begun.append(self._latest[slot])
                self._latest[slot][1:] = _sum(self._latest[slot], shown, 0.0 if rewards is None else rewards[row])

    def _stepped(self, now: tuple[int, int, int], before: tuple[int, int, int], t: int) -> None:
        """A transition's row. A vector of tasks may show the next one's beginning."""
        ledger = self._ledger
        ledger.received += 1
        ledger.unlike_calm += now[2] not in (0, t) or (now[2] == t and now[:2] != before[:2])
        ledger.lost += max(0, t - before[2] - 1)
        ledger.doubled += t <= before[2]


def _sum(before: list[int], row: Any, reward: float) -> tuple[int, int]:
    return before[1] + 1, zlib.crc32(np.asarray(row).tobytes(), zlib.crc32(repr(float(reward)).encode(), before[2]))


def vector(batches: Callable[[Trial, VectorEnv], Iterator[Batch]], mode: AutoresetMode) -> Callable[[Trial], None]:
    """A face of `VectorEnv`: `batches` goes on until there is no more time, and some steps besides."""

    def run(trial: Trial) -> None:
        ledger, slots = trial.ledger, Slots(trial.ledger)
        made = [Chaotic if slot in SPARED else trial.env for slot in range(N)]
        with contextlib.closing(
            VectorEnv(
                made,
                workers=3,
                inline=0,
                autoreset_mode=mode,
                **OPTIONS,
            )
        ) as env:
            for batch in batches(trial, env):
                slots.take(batch)
                ledger.sent += 0 if batch[2] is None else len(batch[0])
                trial.storm.on.set() if trial.more() else trial.storm.calm()
            ledger.missed = max(0, 2 * ledger.deaths - int(env.stats().restarts.sum()))
        for seed, count, total in slots.begun:
            with contextlib.closing(
                VectorEnv([Chaotic], worker_options=WorkerOptions(backend="serial"), autoreset_mode=mode)
            ) as calm:
                again = [seed, 0, 0]
                for _, shown, rewards, *_ in islice(stepped(calm, seed), count):
                    again[1:] = _sum(again, shown[0], 0.0 if rewards is None else rewards[0])
            ledger.unlike_calm += again[2] != total

    return run


def stepped(env: VectorEnv, seed: int) -> Iterator[Batch]:
    """A vector that is reset, and stepped for ever."""
    ids = range(env.num_envs)
    yield ids, env.reset(seed=seed)[0], None, None, {}
    while True:
        observed, rewards, terminated, truncated, infos = env.step(np.zeros(len(ids), np.int64))
        yield ids, observed, rewards, env.valid, infos
        over = np.flatnonzero(terminated | truncated)
        if env.autoreset_mode is AutoresetMode.DISABLED and len(over):
            yield over.tolist(), env.reset(options={"reset_mask": terminated | truncated})[0][over], None, None, {}


def stepping(trial: Trial, env: VectorEnv) -> Iterator[Batch]:
    """`VectorEnv.step`: what raises is followed by a reset of all."""
    left = AFTERWARDS
    while left:
        try:
            for batch in stepped(env, trial.ledger.raised):
                yield batch
                left -= not trial.more()
                if not left:
                    return
        except TaskRaised:
            trial.ledger.raised += 1
            trial.ledger.sent += N


def rollouts(trial: Trial, env: VectorEnv) -> Iterator[Batch]:
    """`VectorEnv.rollout`."""
    yield range(N), env.reset(seed=1)[0], None, None, {}
    over = False
    while not over:
        over = not trial.more()
        found = env.rollout(lambda _: np.zeros(N, np.int64), steps=AFTERWARDS)
        for t in range(AFTERWARDS):
            yield range(N), found.following[t], found.rewards[t], found.valid[t], found.infos[t]


def partials(trial: Trial, env: VectorEnv) -> Iterator[Batch]:
    """`VectorEnv.send` and `recv`: whoever is ready first."""
    env.async_reset(seed=1)
    ids, observed, owed, begun = [], None, [AFTERWARDS] * N, set[int]()
    while any(owed):
        observed, rewards, _, _, infos = env.recv(min=1, max=N)
        ids = infos["env_id"].tolist()
        for row, slot in enumerate(ids):  # each by itself: the first of each slot are a reset's
            part = {name: infos[name][row : row + 1] for name in ("aborted",) if name in infos}
            first = slot not in begun
            begun.add(slot)
            yield (
                [slot],
                observed[row : row + 1],
                None if first else rewards[row : row + 1],
                infos["valid"][[row]],
                part,
            )
            owed[slot] -= not trial.more() and owed[slot] > 0
        if again := [slot for slot in ids if owed[slot]]:
            env.send(np.zeros(len(again), np.int64), again)


def tasks(trial: Trial) -> None:
    """`VectorSampledTasks`: a task ends, and the row shows the next one."""
    ledger, slots = trial.ledger, Slots(trial.ledger)
    with VectorSampledTasks(
        GymTaskSampler, [{"env": trial.env, "seed": slot} for slot in range(4)], read_timeout=LIMIT,
        on_failure="restart", worker_options=WorkerOptions(max_restarts=10**6, worker_output="keep"),
    ) as env:  # fmt: skip
        slots.take((range(4), list(map(_row_of, env.get_observations())), None, None, {}))
        while trial.more():
            trial.storm.on.set()
            ledger.sent += 4
            found = env.step([0] * 4)
            aborted = np.array([bool((each.info or {}).get("aborted")) for each in found])
            rewards = [float(each.reward or 0.0) for each in found]
            ledger.cut += int(aborted.sum())
            slots.take((range(4), [_row_of(each.observation) for each in found], rewards, ~aborted, {}))


def _row_of(observation: Any) -> Any:
    return next(iter(observation.values())) if isinstance(observation, dict) else observation


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


def _sampler(trial: Trial, seed: int, **how: Any) -> PoolSampler:
    factory: Any = WorkerFactory(seed=seed, max_episode_length=50, n_workers=2, worker_class=DefaultWorker)
    kind: type[PoolSampler] = RaySampler if "cluster" in how else MultiprocessingSampler
    return kind(factory, Calm(), trial.env(), **OPTIONS, **how)


def arriving(trial: Trial) -> None:
    """`MultiprocessingSampler` in order of arrival: whole episodes, whoever has played them."""
    ledger, slots = trial.ledger, Slots(trial.ledger)
    with _sampler(trial, 1) as sampler:
        while trial.more():
            trial.storm.on.set()
            ledger.sent += 1000
            for each in sampler.obtain_samples(0, 1000, Calm()).split():
                seen = [slots.read(row)[2] for row in each.observations]
                ledger.received += len(seen)
                ledger.unlike_calm += seen != [*range(len(seen))] or each.rewards.tolist() != [*range(1, len(seen) + 1)]


# -- faces that go by index: the same as in calm -----------------------------------------------------------------------

Made = Iterator[tuple[int, bytes]]  # index, and what came, or a digest of it


def by_index(made: Callable[..., Made], **how: Any) -> Callable[[Trial], None]:
    """A face that makes a round: first in calm, then in a storm."""

    def run(trial: Trial) -> None:
        ledger, number = trial.ledger, 0
        while not number or trial.more():
            trial.storm.calm()
            calm = dict(made(trial, number, **how))
            trial.storm.on.set()
            seen = Counter[int]()
            for index, data in made(trial, number, **how):
                seen[index] += 1
                if not trial.more():
                    trial.storm.calm()
                ledger.unlike_calm += calm.get(index) != data
            ledger.sent += len(calm)
            ledger.received += seen.total()
            ledger.lost += len(calm.keys() - seen.keys())
            ledger.doubled += seen.total() - len(seen)
            number += 1

    return run


def _digest(episode: Any) -> bytes:
    return sha256(episode.observations.tobytes() + episode.rewards.tobytes()).digest()


def collecting(trial: Trial, number: int, batched: bool = False, episodes: int = 200, **how: Any) -> Made:
    """`collect`, with the policy in the workers, in the caller, or on other nodes."""
    given = {
        "step_timeout": LIMIT,
        "worker_options": WorkerOptions(worker_output="keep"),
        "workers": 2,
        "seed": number,
        **how,
    }
    with patch.object(skipping, "DEATHS", 10**6):  # no episode is to blame
        for each in collect(trial.env, Calm(batched), episodes=episodes, **given):  # type: ignore[arg-type]
            yield each.index, _digest(each)


def sampling(trial: Trial, number: int, **how: Any) -> Made:
    """`MultiprocessingSampler`, or `RaySampler`, in its deterministic schedule."""
    with _sampler(trial, number, ordered=True, **how) as sampler:
        for index, each in enumerate(sampler.obtain_exact_episodes(100, Calm()).split()):
            yield index, _digest(each)


def evaluating(trial: Trial, number: int) -> Made:
    """`evaluate`: the scores."""
    options: dict[str, Any] = {
        "step_timeout": LIMIT,
        "worker_options": WorkerOptions(worker_output="keep"),
        "workers": 2,
        "seed": number,
    }
    for score in evaluate(trial.env, Calm(), episodes=200, **options).scores:
        yield score.index, repr(score).encode()


def planning(trial: Trial, number: int, **how: Any) -> Made:
    """`ParallelEnv.step_batch` from one state, several times."""
    with ParallelEnv(GymPlanEnv, trial.env, n_workers=2, **OPTIONS, **how) as env:
        state, *_ = env.reset()
        for at in range(40):
            _, shown, rewards, *_ = env.step_batch([0] * ITEMS, [state] * ITEMS, dt=1 + at % 4)
            for item, (row, reward) in enumerate(zip(shown, rewards, strict=True)):
                yield at * ITEMS + item, np.asarray(row).tobytes() + repr(float(reward)).encode()


FACES: dict[str, tuple[Callable[[Trial], None], tuple[str, ...]]] = {
    **{f"step {mode.name}": (vector(stepping, mode), (*DEATHS, "StepRaises")) for mode in AutoresetMode},
    "rollouts": (vector(rollouts, AutoresetMode.NEXT_STEP), DEATHS),
    "partial": (vector(partials, AutoresetMode.NEXT_STEP), DEATHS),
    "tasks": (tasks, DEATHS),
    "arrival": (arriving, DEATHS),
    "sampling": (by_index(sampling), DEATHS),
    "planning": (by_index(planning), DEATHS),
    "collect": (by_index(collecting), DEATHS),
    "eval": (by_index(evaluating), DEATHS),
    "caller": (by_index(collecting, batched=True, inference="caller", num_envs=4), DEATHS),
    # it takes seconds to start
    "nodes": (by_index(collecting, cluster=Cluster(2), workers=1, episodes=2000), DEATHS),
    "nodes, sampling": (by_index(sampling, cluster=Cluster(2)), DEATHS),
    "nodes, planning": (by_index(planning, cluster=Cluster(2)), DEATHS),
}
FAR = tuple(name for name in FACES if name.startswith("nodes"))  # on other machines, by Ray


def brave(name: str, seconds: float, seed: int = 0) -> Ledger:
    """Run a face in a storm for so long, and until a worker has died for every four seconds; balance its books."""
    face, kinds = FACES[name]
    ledger, far = Ledger(), name in FAR
    with tempfile.TemporaryDirectory() as folder:
        storm = Storm(Path(folder), seed, kinds, ledger, "ray::" if far else "")
        waits, failure.BACKOFF, worker.LOST_SECONDS = (failure.BACKOFF, worker.LOST_SECONDS), 0.0, 0.5
        begin, looks = 0.0, list[tuple[int, int, int]]()

        def more() -> bool:
            nonlocal begin
            begin = begin or time.monotonic()  # the first time that it is asked
            passed = time.monotonic() - begin
            while passed > (seconds / 3, seconds, float("inf"))[len(looks)]:
                looks.append(_held())
            return passed < seconds or ledger.deaths <= seconds / 4  # a slow machine needs longer for so many

        try:  # what lasts as long as the caller is started first: a fork server, say, or a connection to Ray
            there: dict[str, Any] = {"cluster": Cluster(1)} if far else {}
            for _ in collect(Chaotic, episodes=1, worker_options=WorkerOptions(worker_output="keep"), **there):
                continue
            before = _held()
            face(Trial(ledger, storm, more, partial(Chaotic, folder, os.getpid())))
            storm.calm()
            end, after = time.monotonic() + 10, _held()
            # what ends takes its time, in other threads too
            while (
                (left := storm.living()) or (not far and any(map(gt, after[:2], before)))
            ) and time.monotonic() < end:
                time.sleep(0.02)
                after = _held()
            ledger.processes, ledger.memory = len(left), after[2] - looks[0][2]
            leaks = [max(0, late - early - SLACK) for early, late in zip(*looks, strict=True)]  # while it ran
            if not far:  # Ray's come and go as it likes
                ledger.descriptors, ledger.threads = after[0] - before[0] + leaks[0], after[1] - before[1] + leaks[1]
        finally:
            storm.end()
            failure.BACKOFF, worker.LOST_SECONDS = waits
    return ledger


def _held() -> tuple[int, int, int]:
    """Of this process: descriptors, threads, bytes of memory, but for what is free and the C library keeps."""
    gc.collect()
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return len(os.listdir("/proc/self/fd")), threading.active_count(), resident


def main() -> None:
    """The command: a line for each face; exit code 1 when books are not balanced."""
    parser = argparse.ArgumentParser(prog="python -m zoo.chaos", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--face", default="all", choices=["all", *FACES], help='those of "nodes" want Ray')
    parser.add_argument("--minutes", type=float, default=1.0, help="for each face")
    parser.add_argument("--seed", type=int, default=0, help="of what happens when")
    given = parser.parse_args()
    logging.getLogger("treadle").setLevel(logging.ERROR)
    every = [name for name in FACES if name not in FAR or find_spec("ray")]
    names = every if given.face == "all" else [given.face]
    ledgers = {name: brave(name, 60 * given.minutes, given.seed) for name in names}
    print_table([ledger.cells(name) for name, ledger in ledgers.items()], HEADER)
    sys.exit(0 if all(ledger.balanced for ledger in ledgers.values()) else 1)


if __name__ == "__main__":
    from zoo.chaos import main as run  # under its own name, for workers

    run()
