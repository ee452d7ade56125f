"""Chaos: a second process kills, stops and slows workers at random while a pool goes on; then the books are balanced.

Every environment says in each observation which slot, incarnation, episode and step it is, with a checksum over a row
that is long enough to be torn. A ledger follows each slot: a row is a transition that continues the last one, the first
row of an episode, or the end of one that was cut. Nothing else may come, and nothing may be missing.
TREADLE_CHAOS_SECONDS makes it longer than 9 seconds.
"""

import contextlib
import hashlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces as gs

from treadle.pool import failure
from treadle.pool.batch import News
from treadle.pool.pool import Pool
from treadle.program.gym_env import gym_env
from treadle.program.step import OnEnd

SECONDS = float(os.environ.get("TREADLE_CHAOS_SECONDS", "9"))
WIDTH = 2048  # of a row: two pages of int64
SLOTS, VICTIMS = 6, 4  # workers of two slots each; the last one is never hit
RUNS = {mode: seed for seed, mode in enumerate(OnEnd)}

CHAOS = """
import json, os, random, signal, sys, time
from pathlib import Path

folder, seed, seconds, victims = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
rng = random.Random(seed)
end = time.monotonic() + seconds
ended = set()
while time.monotonic() < end:
    time.sleep(rng.uniform(0.01, 0.12))
    slot = rng.randrange(victims)
    what = rng.choice(["SIGKILL", "SIGKILL", "SIGSEGV", "SIGSTOP", "SIGUSR1", "SIGUSR1"])
    pause = rng.uniform(0.001, 0.05)
    try:
        pid = int((folder / f"{slot}.pid").read_text() or 0)
        if pid == 0 or pid in ended:
            continue
        os.kill(pid, getattr(signal, what))
        print(json.dumps([what, slot]), flush=True)
        if what in ("SIGKILL", "SIGSEGV"):
            ended.add(pid)
        if what == "SIGSTOP":
            time.sleep(pause)
            os.kill(pid, signal.SIGCONT)
    except (FileNotFoundError, ProcessLookupError):
        pass
"""


class CounterEnv(gym.Env[np.ndarray, int]):
    """Observes int64[WIDTH]: slot, incarnation, episode, t, checksum, then t again and again. The reward is t.

    SIGUSR1 makes its next step a slow one.
    """

    observation_space = gs.Box(-(2**62), 2**62, (WIDTH,), np.int64)
    action_space = gs.Discrete(2)

    def __init__(self, slot: int, folder: str | None = None) -> None:
        self.slot, self.incarnation, self.episode, self.t = slot, 0, -1, 0
        self.slow = threading.Event()
        if folder is None:
            return
        lives = Path(folder, f"{slot}.lives")
        self.incarnation = len(lives.read_text()) if lives.exists() else 0
        with lives.open("a") as file:  # which a kill leaves as it was, or one longer
            file.write("x")
        signal.signal(signal.SIGUSR1, lambda *_: self.slow.set())
        Path(folder, f"{slot}.pid").write_text(str(os.getpid()))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.episode += 1
        self.t = 0
        self.length = int(self.np_random.integers(1, 30))
        return self.observe(), {}

    def step(self, action: int) -> Any:
        if self.slow.is_set():
            self.slow.clear()
            threading.Event().wait(0.03)
        self.t += 1
        info = {"t": self.t} if self.t % 7 == 0 else {}
        return self.observe(), float(self.t), self.t >= self.length, False, info

    def observe(self) -> Any:
        row = np.full(WIDTH, self.t, np.int64)
        row[:5] = self.slot, self.incarnation, self.episode, self.t, 0
        row[4] = zlib.crc32(row)
        return row


def read(row: np.ndarray, slot: int) -> tuple[int, int, int]:
    """(incarnation, episode, t) of an observation that is whole and this slot's."""
    row = row.copy()
    found, row[4] = int(row[4]), 0
    assert found == zlib.crc32(row), "a torn row"
    assert row[0] == slot
    return int(row[1]), int(row[2]), int(row[3])


class Ledger:
    """Follows one slot."""

    def __init__(self, slot: int, on_end: OnEnd, first: np.ndarray) -> None:
        self.slot, self.on_end = slot, on_end
        self.last = first.copy()
        self.now = read(first, slot)
        self.open = True  # is an episode running?
        self.steps = self.delivered = self.begun = self.aborted = 0

    def began(self, row: np.ndarray) -> None:
        """The first row of an episode: the environment's next one, or the first of a later environment."""
        incarnation, episode, t = read(row, self.slot)
        assert t == 0
        assert (incarnation == self.now[0] and episode == self.now[1] + 1) or (incarnation > self.now[0])
        self.now, self.last, self.open = (incarnation, episode, 0), row.copy(), True

    def step(self, row: np.ndarray, reward: float, ended: bool, cut: bool, valid: bool, news: News, final: Any) -> None:
        """A row of a step's batch."""
        self.steps += 1
        if valid:
            incarnation, episode, t = self.now
            outcome = row if final is None else final[0]
            assert self.open, "a transition between two episodes"
            assert not cut
            assert read(outcome, self.slot) == (incarnation, episode, t + 1), "a gap, or one step twice"
            assert reward == t + 1
            self.now, self.last, self.open = (incarnation, episode, t + 1), outcome.copy(), not ended
            self.delivered += 1
        elif cut:
            assert self.open, "an episode was cut twice, or after its end"
            assert News.ABORTED in news
            assert (row if final is None else final[0]).tobytes() == self.last.tobytes()
            assert reward == 0
            self.open = False
            self.aborted += 1
        else:
            assert self.on_end is OnEnd.NEXT_STEP
            assert not self.open
            assert reward == 0
            self.began(row)
            self.begun += 1
        if final is not None:
            self.began(row)


def drive(pool: Pool, on_end: OnEnd, ledgers: list[Ledger], sha: Any) -> None:
    """One step, and in HOLD mode the resets that follow; the slots that nobody hits go into the hash."""
    batch = pool.step(np.zeros(SLOTS, np.int64))
    valid = pool.lockstep.valid
    for ledger in ledgers:
        slot = ledger.slot
        ledger.step(
            batch.observations[slot],
            float(batch.rewards[slot]),
            bool(batch.terminated[slot]),
            bool(batch.truncated[slot]),
            bool(valid[slot]),
            batch.news.get(slot, News(0)),
            batch.finals.get(slot),
        )
    ended = np.flatnonzero(batch.terminated | batch.truncated).tolist()
    for array in (batch.observations, batch.rewards, batch.terminated, batch.truncated, valid):
        sha.update(np.ascontiguousarray(array[VICTIMS:]).tobytes())
    sha.update(json.dumps([batch.infos.get(slot) for slot in range(VICTIMS, SLOTS)]).encode())
    if on_end is OnEnd.HOLD and ended:
        shown = pool.reset(slots=ended).observations
        for slot in ended:
            if ledgers:
                ledgers[slot].began(shown[slot])


def held() -> tuple[Counter[str], int]:
    """What a leak would raise: open files by kind (the listing's own is gone by then), and threads."""
    kinds: Counter[str] = Counter()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            kinds[os.readlink(f"/proc/self/fd/{name}").partition(":[")[0]] += 1
    return kinds, threading.active_count()


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def chaos(folder: Path, seed: int, seconds: float) -> Iterator[subprocess.Popen[str]]:
    arguments = [sys.executable, "-c", CHAOS, str(folder), str(seed), str(seconds), str(VICTIMS)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
@pytest.mark.timeout(60 + 4 * SECONDS)
@pytest.mark.parametrize("on_end", RUNS)
def test_chaos(on_end: OnEnd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure, "BACKOFF", 0.0)
    monkeypatch.setattr("treadle.pool.recover.log", logging.getLogger("treadle.chaos"))
    seeds = list(range(40, 40 + SLOTS))
    factories = [gym_env(CounterEnv, on_end=on_end, kwargs={"slot": i, "folder": str(tmp_path)}) for i in range(SLOTS)]
    ours, steps, seconds = hashlib.sha256(), 0, SECONDS / len(RUNS)
    with Pool(factories, workers=3, on_failure="restart", max_restarts=10**6) as pool:
        first = pool.reset(seeds=seeds).observations
        ledgers = [Ledger(slot, on_end, first[slot]) for slot in range(SLOTS)]
        with chaos(tmp_path, RUNS[on_end], seconds) as process:
            middle = monotonic() + seconds / 3
            early: tuple[tuple[Counter[str], int], int] | None = None
            while process.poll() is None:
                drive(pool, on_end, ledgers, ours)
                steps += 1
                if early is None and monotonic() > middle:
                    early = held(), resident()
            assert process.stdout is not None
            done = [json.loads(line) for line in process.stdout]
        for _ in range(50):  # and all is calm again
            drive(pool, on_end, ledgers, ours)
            steps += 1
        assert early is not None
        kinds, threads = held()
        assert not kinds - early[0][0], "descriptors that were not there before"
        assert threads == early[0][1]
        assert resident() - early[1] < 24 << 20
        restarts = pool.restarts
    deaths = [0] * SLOTS
    for what, slot in done:
        if what in ("SIGKILL", "SIGSEGV"):
            for each in (slot // 2 * 2, slot // 2 * 2 + 1):
                deaths[each] += 1
    assert min(deaths[:VICTIMS]) >= seconds / 2, "too little chaos to say anything"
    assert restarts == tuple(deaths)
    assert sum(ledger.aborted for ledger in ledgers) > len(done) / 10
    for ledger in ledgers:
        assert ledger.steps == steps == ledger.delivered + ledger.begun + ledger.aborted
        assert ledger.aborted <= deaths[ledger.slot]
    theirs = hashlib.sha256()
    with Pool([gym_env(CounterEnv, on_end=on_end, kwargs={"slot": i}) for i in range(SLOTS)], backend="serial") as calm:
        calm.reset(seeds=seeds)
        for _ in range(steps):
            drive(calm, on_end, [], theirs)
    assert ours.digest() == theirs.digest(), "slots that were not hit are not what they would have been"
