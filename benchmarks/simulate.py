"""How a run goes with more slots than there are here: discrete events, with the real deciders deciding.

    python -m benchmarks.simulate                      # 100 to 10,000 slots: efficiency, tail and waste
    python -m benchmarks.simulate --check              # against real workers whose environments sleep; six minutes

A slot plays one episode after the other; lengths are drawn from a lognormal distribution (heavy-tailed), some slots are
slower (stragglers), whole nodes die and single workers are killed. The caller hands out orders by the rules of
`Orders.give` and `Schedule.share`, one message at a time, each of which takes it a while; a message takes a while
to arrive. What follows a death, and after how long, says `pool.failure.on_death`; what a dead worker was playing goes
first to the one in its place. With a policy that is asked once on each node `sample.batching.BatchFormer` says when,
and with whom. What costs what is in `Costs`; everything else is counted.

`efficiency`: time that slots spent on episodes that were kept, as a share of all their time; `tail`: seconds from when
the first slot had nothing to do for good until the end; `waste`: share of played time that was not kept.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import os
import signal
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

import treadle
from benchmarks.batches import Pace
from treadle.pool.failure import on_death
from treadle.sample.batching import BatchFormer
from treadle.sample.orders import MOST_ORDERS
from treadle.sample.schedule import Schedule
from treadle.wire import bell
from treadle.worker.life import RestartPolicy


@dataclass(frozen=True)
class Costs:
    """Seconds. `message`: until one has arrived; `order`, `result`: of the caller's own time for one; `start`: until a
    worker is there that takes another's place; `step`: of a processor, beside what the environment takes; `late`: by
    which a step ends late besides (timers, being woken); `row`, `batch`: of the caller's own time for a step whose
    action it gives, and for all that it gives at a time."""

    message: float = 1e-3
    order: float = 60e-6
    result: float = 25e-6
    start: float = 0.2
    step: float = 0.0
    late: float = 0.0
    row: float = 0.0
    batch: float = 0.0


COSTS = Costs()
RUNS = 9  # of which the medians are compared: one long episode on a slow slot is a second more or less


@dataclass(frozen=True)
class Run:
    """What is played.

    Attributes:
        slots, node: how many, and how many of them are on one node (which die together).
        cores: of a node; None: one a slot.
        episodes, mean, sigma: how many, steps of the middle one, and the spread of their logarithms.
        step: seconds a step takes.
        slow, factor: share of slots that are slower, and by how much. Who takes their place is not.
        deaths: of nodes, per node and hour; `back`: seconds until one is there again.
        kills: of workers, a step.
        policy: None, or what one that is asked on each node takes.
        lengths: of the episodes, where they are known; else they are drawn.
    """

    slots: int
    node: int = 16
    cores: int | None = None
    episodes: int = 0
    mean: float = 200.0
    sigma: float = 1.0
    step: float = 1e-3
    slow: float = 0.02
    factor: float = 3.0
    deaths: float = 0.0
    back: float = 60.0
    kills: float = 0.0
    policy: Pace | None = None
    lengths: tuple[int, ...] = ()
    seed: int = 0
    costs: Costs = COSTS

    @property
    def each(self) -> float:
        """Seconds a step takes where its node's processors are shared: time on them is longer by those who wait for
        them, too (processor sharing: by 1 / (1 - load ^ cores)), and no more is done than they can do. Where all wait
        for a policy no slot goes on before it has been asked for all of them."""
        cores, costs = self.cores or self.node, self.costs
        mean = self.mean * np.exp(self.sigma**2 / 2)  # steps of an episode
        # of a processor, for a step: its own, its share of workers that start in the place of others, and the caller's
        used, asking = costs.step + self.kills * costs.start, 0.0
        if self.slots <= self.node:  # it is on the same machine
            used += (costs.order + costs.result) / mean + (costs.row if self.policy is not None else 0.0)
            if self.policy is not None:
                asking = self.policy.policy(self.node) + costs.batch + costs.row * self.node
        step = plain = self.step + costs.late
        for _ in range(50):  # the load depends on how long a step takes
            load = min(0.99, self.node * used / (max(step, asking) * cores))
            step = 0.5 * (step + plain + costs.step / (1 - load**cores))
        return float(max(step, self.node * used / cores - asking))


@dataclass
class Slot:
    """`queue`: episodes that it has; `life`: how often it has died; `left`: steps of the episode that it plays."""

    queue: deque[int] = field(default_factory=deque)
    speed: float = 1.0
    life: int = 0
    there: bool = True
    began: float = 0.0
    idle: float = 0.0
    orders: int = 0
    left: int = 0
    barren: int = 0
    first: list[int] = field(default_factory=list)  # what the one before it was playing
    restarts: list[float] = field(default_factory=list)


class Node:
    """Its policy, and who waits for it."""

    def __init__(self, run: Run) -> None:
        self.former, self.busy, self.coming, self.waits = BatchFormer(run.node, run.node), False, 0, False


class Simulation:
    """One run."""

    def __init__(self, run: Run) -> None:
        self.run, self.rng = run, np.random.default_rng(run.seed)
        drawn = self.rng.lognormal(np.log(run.mean), run.sigma, run.episodes)
        self.lengths = np.maximum(1, run.lengths or drawn).astype(int)
        slow = set(self.rng.permutation(run.slots)[: round(run.slow * run.slots)].tolist())
        self.slots = [Slot(speed=run.factor if number in slow else 1.0) for number in range(run.slots)]
        self.nodes = [Node(run) for _ in range(-(-run.slots // run.node))]
        self.schedule, self._numbers = Schedule(run.episodes), itertools.count()
        self.schedule.window = max(self.schedule.window, 64 * run.slots)
        self.events: list[tuple[float, int, Any, tuple[Any, ...]]] = []
        self.now = self.free = self.busy = self.played = self.kept = 0.0  # `free`: when the caller has time again
        self.each = run.each

    def at(self, when: float, what: Any, *data: Any) -> None:
        heapq.heappush(self.events, (when, next(self._numbers), what, data))

    def played_out(self) -> dict[str, float]:
        """Play it; what came of it."""
        run, slots = self.run, self.slots
        self.deal(range(run.slots))
        for first in range(0, run.slots, run.node):
            if run.deaths:
                self.at(self.rng.exponential(3600 / run.deaths), self.node_dies, first)
        while not self.schedule.complete:
            self.now, _, what, data = heapq.heappop(self.events)
            what(*data)
        first_idle = min((slot.idle for slot in slots if not slot.queue and slot.there), default=self.now)
        return {
            "seconds": self.now,
            "efficiency": self.kept / (run.slots * self.now),
            "tail": self.now - first_idle,
            "waste": 1 - self.kept / self.played,
            "caller": min(1.0, self.busy / self.now),
        }

    # -- the caller --------------------------------------------------------------------------------------------------

    def takes(self, seconds: float) -> None:
        """The caller's time."""
        self.free = max(self.free, self.now) + seconds
        self.busy += seconds

    def deal(self, numbers: Any) -> None:
        """Give orders, as `Orders.give` does."""
        for number in numbers:
            slot = self.slots[number]
            size, ahead = self.schedule.share(self.run.slots)
            if not slot.there or len(slot.queue) >= 1 + ahead or slot.orders >= MOST_ORDERS:
                continue
            if slot.first:
                taken = [slot.first.pop()] if not slot.queue and not slot.orders else []
            else:
                taken = list(itertools.islice(iter(self.schedule.take, None), max(size, 1 - len(slot.queue))))
            if taken:
                self.takes(self.run.costs.order)
                slot.orders += 1
                self.at(self.free + self.run.costs.message, self.order, number, slot.life, taken)

    def result(self, number: int, index: int, took: float) -> None:
        self.takes(self.run.costs.result)
        self.kept += took if self.schedule.finish(index, int(self.lengths[index])) else 0.0
        self.at(self.free, self.deal, [number])

    # -- the slots ---------------------------------------------------------------------------------------------------

    def order(self, number: int, life: int, taken: list[int]) -> None:
        slot = self.slots[number]
        if life != slot.life:
            for index in taken:
                self.schedule.lose(index)
            return
        slot.orders -= 1
        idle = not slot.queue
        slot.queue += taken
        if idle:
            self.begin(number)

    def begin(self, number: int) -> None:
        slot, run = self.slots[number], self.run
        if not slot.queue:
            slot.idle = self.now
            return
        slot.began, slot.left = self.now, int(self.lengths[slot.queue[0]])
        fatal = int(self.rng.geometric(run.kills)) if run.kills else slot.left + 1
        if run.policy is not None:
            self.ready(number, slot.life, fatal)
        elif fatal <= slot.left:
            self.at(self.now + fatal * self.each * slot.speed, self.killed, number, slot.life)
        else:
            self.at(self.now + slot.left * self.each * slot.speed, self.end, number, slot.life)

    def end(self, number: int, life: int) -> None:
        slot = self.slots[number]
        if life == slot.life:
            index, slot.barren = slot.queue.popleft(), 0
            self.played += self.now - slot.began
            self.at(self.now + self.run.costs.message, self.result, number, index, self.now - slot.began)
            self.begin(number)

    # -- a policy on each node ---------------------------------------------------------------------------------------

    def ready(self, number: int, life: int, fatal: int) -> None:
        """It waits for an action; `fatal`: the steps that are left to it."""
        node = self.nodes[number // self.run.node]
        node.former.ready((number, life, fatal), self.now)  # type: ignore[arg-type]  # any name of it will do
        self.ask(node)

    def ask(self, node: Node) -> None:
        assert self.run.policy is not None
        if node.busy:
            return
        if rows := node.former.take(self.now, node.coming):
            node.busy = True
            costs = self.run.costs
            seconds = self.run.policy.policy(len(rows)) + costs.batch + costs.row * len(rows)
            self.at(self.now + seconds, self.answered, node, rows, self.now)
        elif (seconds := node.former.wait(self.now)) is not None and not node.waits:
            node.waits = True
            self.at(self.now + seconds + 1e-6, self.patient, node)

    def patient(self, node: Node) -> None:
        node.waits = False
        self.ask(node)

    def answered(self, node: Node, rows: list[Any], began: float) -> None:
        node.busy = False
        node.former.answered(len(rows), began, self.now)
        for number, life, fatal in rows:
            slot = self.slots[number]
            if life == slot.life:
                node.coming += 1
                seconds = self.each * slot.speed
                node.former.stepped(seconds)
                self.at(self.now + seconds + 2 * self.run.costs.message, self.stepped, node, number, life, fatal - 1)
        self.ask(node)

    def stepped(self, node: Node, number: int, life: int, fatal: int) -> None:
        slot = self.slots[number]
        node.coming -= 1
        if life == slot.life:
            slot.left -= 1
            if fatal <= 0:
                self.killed(number, life)
            elif slot.left <= 0:
                self.end(number, life)
            else:
                self.ready(number, life, fatal)
        self.ask(node)

    # -- deaths ------------------------------------------------------------------------------------------------------

    def killed(self, number: int, life: int) -> None:
        """A worker dies, and another takes its place."""
        slot = self.slots[number]
        if life != slot.life:
            return
        slot.barren += 1
        playing = self.lost(number)
        verdict = on_death(RestartPolicy.RESTART, slot.restarts, self.now, None, barren=slot.barren)
        assert verdict.act is RestartPolicy.RESTART
        slot.first += playing
        slot.speed = 1.0
        self.at(self.now + verdict.delay + self.run.costs.start, self.back, [number])

    def lost(self, number: int) -> list[int]:
        """What was waiting there is for others; returns what was being played."""
        slot = self.slots[number]
        self.played += self.now - slot.began if slot.queue else 0.0
        playing = [slot.queue.popleft()] if slot.queue else []
        for index in slot.queue:
            self.schedule.lose(index)
        slot.queue.clear()
        slot.life, slot.there, slot.idle, slot.orders = slot.life + 1, False, self.now, 0
        return playing

    def back(self, numbers: list[int]) -> None:
        for number in numbers:
            slot = self.slots[number]
            slot.there = True
            slot.restarts.append(self.now)
        self.deal(numbers)

    def node_dies(self, first: int) -> None:
        """What its slots had is made by others, and after a while it is there again."""
        run, mine = self.run, list(range(first, min(first + self.run.node, self.run.slots)))
        for number in mine:
            for index in [*self.lost(number), *self.slots[number].first]:
                self.schedule.lose(index)
            self.slots[number].first.clear()
        self.at(self.now + run.back, self.back, mine)
        self.at(self.now + run.back + self.rng.exponential(3600 / run.deaths), self.node_dies, first)
        self.deal([number for number in range(run.slots) if not self.slots[number].queue])


def simulate(run: Run) -> dict[str, float]:
    """One run."""
    return Simulation(run).played_out()


# -- the real thing ----------------------------------------------------------------------------------------------------


class Sleeper(gym.Env):
    """An episode of the length that its seed says, whose steps sleep, and kill with a probability of `kills`. The first
    `slow` of those that are made with one `folder` take `factor` times as long. Infos tell of the process."""

    observation_space, action_space = gym.spaces.Box(0, 1, (1,), np.float32), gym.spaces.Discrete(2)

    def __init__(self, run: Run, folder: str) -> None:
        self._run, self._died = run, Path(folder, "died")
        with open(Path(folder, "made"), "ab") as made:
            made.write(b".")
            made.flush()
            first = made.tell() <= round(run.slow * run.slots)
        self._seconds = run.step * (run.factor if first else 1.0)
        self._chance, self._new = np.random.default_rng(int.from_bytes(os.urandom(8), "little")), True

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        run = self._run
        if self._new and self._died.exists():
            (self._died.parent / "back").write_text(str(time.time()))
        self._new = False
        self._left = max(1, int(np.random.default_rng(seed).lognormal(np.log(run.mean), run.sigma)))
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(self._seconds)
        if self._run.kills and self._chance.random() < self._run.kills:
            self._died.write_text(str(time.time()))
            os.kill(os.getpid(), signal.SIGKILL)
        self._left -= 1
        over = self._left <= 0
        told = {"cpu": time.process_time(), "pid": os.getpid()} if over else {}
        return np.zeros(1, np.float32), 0.0, over, False, told


class Thinker:
    """A policy that sleeps."""

    batched = True

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        time.sleep(self.seconds)
        return np.zeros(len(observations), np.int64)


def real(run: Run, folder: str, **options: Any) -> tuple[float, list[Any], float]:
    """Seconds from the first episode to the last, the episodes, and the caller's own seconds besides its waits."""
    if run.policy is not None:
        options |= {"inference": "caller", "num_envs": run.slots}
    episodes: Iterator[Any] = treadle.collect(
        partial(Sleeper, run, folder), None if run.policy is None else Thinker(run.policy.call),
        episodes=run.episodes, seed=run.seed, workers=run.slots, ordered=False, **options,
    )  # fmt: skip
    with closing(episodes), waits() as waited:  # type: ignore[type-var]  # it is a generator
        first = next(episodes)  # the workers are there
        start, cpu = time.perf_counter(), time.process_time() - waited[0]
        found = [first, *episodes]
        return time.perf_counter() - start, found, time.process_time() - waited[0] - cpu


@contextmanager
def waits() -> Iterator[list[float]]:
    """The time of the processor that the caller's waits take, which it has when nobody else wants it: in a list of one
    number, which grows."""
    taken, ring = [0.0], bell.Waiting.ring

    def timed(self: bell.Waiting, timeout: float) -> bool:
        before = time.thread_time()
        rung = ring(self, timeout)
        taken[0] += time.thread_time() - before
        return rung

    bell.Waiting.ring = timed  # type: ignore[method-assign]
    try:
        yield taken
    finally:
        bell.Waiting.ring = ring  # type: ignore[method-assign]


def measured(step: float) -> Costs:
    """The costs, at 2 slots: of a step by what the workers' processes have used, of the caller by what it has used, and
    of a start by a worker that kills itself."""
    run = Run(2, node=2, episodes=100, mean=20, sigma=0.8, step=step, slow=0.0)
    with tempfile.TemporaryDirectory() as folder:
        seconds, episodes, caller = real(run, folder)
    by_pid: dict[int, list[Any]] = {}
    for episode in episodes:
        by_pid.setdefault(episode.infos[-1]["pid"], []).append((episode.infos[-1]["cpu"], len(episode)))
    cpu = steps = 0.0
    for each in by_pid.values():
        each.sort()
        cpu += each[-1][0] - each[0][0]
        steps += sum(length for _, length in each[1:])
    own = cpu / steps
    late = max(0.0, 2 * seconds / sum(map(len, episodes)) - step - own)
    starts = []
    for seed in range(9):
        with tempfile.TemporaryDirectory() as folder:
            real(replace(run, episodes=40, kills=1 / 200, seed=seed), folder)
            died, back = Path(folder, "died"), Path(folder, "back")
            if back.exists() and float(back.read_text()) > float(died.read_text()):
                starts.append(float(back.read_text()) - float(died.read_text()))
    # steps shorter than the policy: when it has answered somebody is there, as is the rule with many slots
    asking, own_time = replace(run, step=step / 10, policy=Pace(2e-3, 0.0, (step,), 1)), []
    for size in (1, 2):  # batches of one row, and of both
        with tempfile.TemporaryDirectory() as folder:
            _, asked, giving = real(
                asking, folder, inference=treadle.Inference(batch_size=size, max_wait=(size - 1) * 10.0)
            )
        own_time.append(giving / sum(map(len, asked)))
    batch = max(0.0, 2 * (own_time[0] - own_time[1]))
    row, each_episode = max(0.0, own_time[0] - batch), caller / len(episodes)
    start = float(np.median(starts or [COSTS.start]))
    return Costs(2e-4, each_episode / 2, each_episode / 2, start, own, late, row, batch)


def check() -> None:
    """Real workers whose environments sleep, and the simulation of the same run; the costs are those at 2 slots."""
    step = 4e-3
    costs = measured(step)
    print(f"Costs at 2 slots: {costs}\n\n| slots | what | real s | simulated s | difference |\n|---|---|---|---|---|")
    cases = {
        "nothing besides": {"slow": 0.0},
        "stragglers and kills": {"slow": 1 / 8, "kills": 5e-4},
        "a policy in the caller, stragglers, kills": {
            "slow": 1 / 8,
            "kills": 5e-4,
            "policy": Pace(2e-3, 0.0, (step,), 1),
        },
    }
    for (name, case), slots in itertools.product(cases.items(), (16, 64)):
        run = Run(
            slots, node=slots, cores=bell.cores(), episodes=20 * slots, mean=20, sigma=0.8, step=step, costs=costs,
            **case,  # type: ignore[arg-type]
        )  # fmt: skip
        found, model = [], []
        for seed in range(RUNS):
            with tempfile.TemporaryDirectory() as folder:
                seconds, episodes, _ = real(replace(run, seed=seed), folder)
            assert len(episodes) == run.episodes
            found.append(seconds)
            same = replace(run, lengths=tuple(len(each) for each in sorted(episodes, key=lambda each: each.index)))
            model += [simulate(replace(same, seed=luck))["seconds"] for luck in range(5 * seed, 5 * seed + 5)]
        told, wanted = float(np.median(model)), float(np.median(found))
        print(f"| {slots} | {name} | {wanted:.2f} | {told:.2f} | {told / wanted - 1:+.0%} |", flush=True)


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="against real workers whose environments sleep")
    if parser.parse_args().check:
        check()
        return
    print("| slots | nodes | what | efficiency | tail s | waste | caller busy |\n|---|---|---|---|---|---|---|")
    for slots in (100, 1000, 10_000):
        plain = Run(slots, episodes=20 * slots, step=5e-3)
        cases = {
            "heavy tail, stragglers": plain,
            "and 2 deaths a node and hour": replace(plain, deaths=2.0),
            "and a caller 10 times as slow": replace(plain, deaths=2.0, costs=Costs(order=6e-4, result=2.5e-4)),
        }
        if slots < 10_000:  # each step is an event of its own
            thinking = replace(plain, episodes=4 * slots, policy=Pace(2e-3, 1e-4, (5e-3,), 16))
            cases["4 a slot, policy of 2 ms on each node"] = thinking
        for name, run in cases.items():
            found = simulate(run)
            print(
                f"| {slots:,} | {-(-slots // run.node):,} | {name} | {found['efficiency']:.0%} | {found['tail']:.1f} | "
                f"{found['waste']:.1%} | {found['caller']:.0%} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
