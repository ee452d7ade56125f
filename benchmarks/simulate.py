"""How a run goes with more slots than there are here: discrete events, with the real `Schedule` deciding.

    python -m benchmarks.simulate                      # 100 to 10,000 slots: efficiency, tail and waste
    python -m benchmarks.simulate --check              # against real workers whose environments sleep

A slot plays one episode after the other; lengths are drawn from a lognormal distribution (heavy-tailed), some slots are
slower (stragglers), and whole nodes die and come back. The caller hands out orders by the rules of `Collection._deal`
and `Schedule.share`, one message at a time, each of which takes it a while; a message takes a while to arrive. What
costs what is in `Costs`; everything else is counted.

`efficiency`: time that slots spent on episodes that were kept, as a share of all their time; `tail`: seconds from when
the first slot had nothing to do for good until the end; `waste`: share of played time that was not kept.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import time
from collections import deque
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np

import treadle
from treadle.sample.collect import MOST_ORDERS
from treadle.sample.schedule import Schedule


@dataclass(frozen=True)
class Costs:
    """Seconds. `message`: until one has arrived; `order`, `result`: of the caller's own time for one."""

    message: float = 1e-3
    order: float = 60e-6
    result: float = 25e-6


COSTS = Costs()


@dataclass(frozen=True)
class Run:
    """What is played.

    Attributes:
        slots, node: how many, and how many of them are on one node (which die together).
        episodes, mean, sigma: how many, steps of the middle one, and the spread of their logarithms.
        step: seconds a step takes.
        slow, factor: share of slots that are slower, and by how much.
        deaths: of nodes, per node and hour; `back`: seconds until one is there again.
    """

    slots: int
    node: int = 16
    episodes: int = 0
    mean: float = 200.0
    sigma: float = 1.0
    step: float = 1e-3
    slow: float = 0.02
    factor: float = 3.0
    deaths: float = 0.0
    back: float = 60.0
    seed: int = 0
    costs: Costs = COSTS


@dataclass
class Slot:
    """`queue`: episodes that it has; `life`: how often its node has died."""

    queue: deque[int] = field(default_factory=deque)
    speed: float = 1.0
    life: int = 0
    there: bool = True
    began: float = 0.0
    idle: float = 0.0
    orders: int = 0


def simulate(run: Run) -> dict[str, float]:
    """One run."""
    rng = np.random.default_rng(run.seed)
    lengths = np.maximum(1, rng.lognormal(np.log(run.mean), run.sigma, run.episodes)).astype(int)
    slots = [Slot(speed=run.factor if rng.random() < run.slow else 1.0) for _ in range(run.slots)]
    schedule, numbers = Schedule(run.episodes), itertools.count()
    schedule.window = max(schedule.window, 64 * run.slots)
    events: list[tuple[float, int, str, Any]] = []
    free = now = played = kept = busy = 0.0  # `free`: when the caller has time again

    def at(when: float, what: str, data: Any) -> None:
        heapq.heappush(events, (when, next(numbers), what, data))

    def begin(number: int, when: float) -> None:
        slot = slots[number]
        if slot.queue:
            slot.began = when
            at(when + lengths[slot.queue[0]] * run.step * slot.speed, "end", (number, slot.life))
        else:
            slot.idle = when

    def deal(numbers_: list[int]) -> None:
        nonlocal free, busy
        for number in numbers_:
            slot = slots[number]
            size, ahead = schedule.share(run.slots)
            if not slot.there or len(slot.queue) >= 1 + ahead or slot.orders >= MOST_ORDERS:
                continue
            taken = list(itertools.islice(iter(schedule.take, None), max(size, 1 - len(slot.queue))))
            if taken:
                free = max(free, now) + run.costs.order
                busy += run.costs.order
                slot.orders += 1
                at(free + run.costs.message, "order", (number, slot.life, taken))

    everybody = list(range(run.slots))
    deal(everybody)
    for first in range(0, run.slots, run.node):
        if run.deaths:
            at(rng.exponential(3600 / run.deaths), "death", first)
    while not schedule.complete:
        now, _, what, data = heapq.heappop(events)
        if what == "order":
            number, life, taken = data
            slot = slots[number]
            slot.orders -= 1
            if life != slot.life:
                for index in taken:
                    schedule.lose(index)
                continue
            idle = not slot.queue
            slot.queue += taken
            if idle:
                begin(number, now)
        elif what == "end":
            number, life = data
            slot = slots[number]
            if life != slot.life:
                continue
            index = slot.queue.popleft()
            played += now - slot.began
            at(now + run.costs.message, "result", (number, index, now - slot.began))
            begin(number, now)
        elif what == "result":
            number, index, took = data
            free = max(free, now) + run.costs.result
            busy += run.costs.result
            kept += took if schedule.finish(index, int(lengths[index])) else 0.0
            at(free, "deal", number)
        elif what == "deal":
            deal([data])
        elif what == "death":
            for number in range(data, min(data + run.node, run.slots)):
                slot = slots[number]
                played += now - slot.began if slot.queue else 0.0
                for index in slot.queue:
                    schedule.lose(index)
                slot.queue.clear()
                slot.life, slot.there, slot.idle = slot.life + 1, False, now
            at(now + run.back, "back", data)
            deal([number for number in everybody if not slots[number].queue])
        else:
            for number in range(data, min(data + run.node, run.slots)):
                slots[number].there = True
            at(now + rng.exponential(3600 / run.deaths), "death", data)
            deal(list(range(data, min(data + run.node, run.slots))))
    first_idle = min((slot.idle for slot in slots if not slot.queue and slot.there), default=now)
    return {
        "seconds": now,
        "efficiency": kept / (run.slots * now),
        "tail": now - first_idle,
        "waste": 1 - kept / played,
        "caller": min(1.0, busy / now),
    }


class Sleeper(gym.Env):
    """An episode of the length that its seed says, whose steps sleep."""

    observation_space, action_space = gym.spaces.Discrete(2), gym.spaces.Discrete(2)

    def __init__(self, step: float, mean: float, sigma: float) -> None:
        self._step, self._mean, self._sigma = step, mean, sigma

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        self._left = max(1, int(np.random.default_rng(seed).lognormal(np.log(self._mean), self._sigma)))
        return 0, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        time.sleep(self._step)
        self._left -= 1
        return 0, 0.0, self._left <= 0, False, {}


def check() -> None:
    """Real workers whose environments sleep, and the simulation of the same run; the costs are not touched."""
    print("| slots | real s | simulated s | difference |\n|---|---|---|---|")
    for slots in (2, 16, 64):
        run = Run(slots, episodes=20 * slots, mean=20, sigma=0.8, step=4e-3, slow=0.0)
        found = []
        for seed in range(3):
            episodes = treadle.collect(
                partial(Sleeper, run.step, run.mean, run.sigma), episodes=run.episodes, seed=seed, workers=slots,
                ordered=False,
            )  # fmt: skip
            next(episodes)  # the workers are there
            start = time.perf_counter()
            lengths = [len(episode) for episode in episodes]
            found.append(time.perf_counter() - start)
        told = [simulate(replace(run, seed=seed, costs=Costs(message=2e-4)))["seconds"] for seed in range(9)]
        real, simulated = float(np.median(found)), float(np.median(told))
        print(f"| {slots} | {real:.2f} | {simulated:.2f} | {simulated / real - 1:+.0%} |", flush=True)
        assert len(lengths) == run.episodes - 1


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
        for name, run in cases.items():
            found = simulate(run)
            print(
                f"| {slots:,} | {-(-slots // run.node):,} | {name} | {found['efficiency']:.0%} | {found['tail']:.1f} | "
                f"{found['waste']:.1%} | {found['caller']:.0%} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
