"""Verdicts tried: workloads that are known to be bound by one kind, what the verdict says of each, and what its advice
brings when it is followed.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

import treadle
from treadle.verdict import Kind, Verdict

SECONDS = 2.5  # of each run
NEVER = 10**9


class Slow(gym.Env[Any, Any]):
    """Waits and computes as long as it is told to.

    Args:
        wait: seconds a step.
        work: seconds of processor time a step.
        rare: share of steps that wait ten times as long.
        reset: seconds that a reset waits.
        length: steps of an episode.
        floats: numbers in an observation.
        product: rows of matrices that are multiplied at each step.
    """

    def __init__(
        self,
        wait: float = 0.0,
        work: float = 0.0,
        rare: float = 0.0,
        reset: float = 0.0,
        length: int = NEVER,
        floats: int = 4,
        product: int = 0,
    ) -> None:
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (floats,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self._wait, self._work, self._rare, self._reset, self._length = wait, work, rare, reset, length
        self._seen, self._matrix = np.zeros(floats, np.float32), np.ones((product, product))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._left = self._length if self._length == NEVER else int(self.np_random.integers(1, 2 * self._length))
        time.sleep(self._reset)
        return self._seen, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._left -= 1
        if self._wait:
            time.sleep(self._wait * (10 if self.np_random.random() < self._rare else 1))
        if self._work:
            end = time.thread_time() + self._work
            while time.thread_time() < end:
                pass
        if len(self._matrix):
            self._matrix @ self._matrix
        return self._seen, 0.0, self._left <= 0, False, {}


Env = Callable[[], gym.Env] | str
Judged = tuple[str, float, float]  # kind, change, gain, and rows a second


@dataclass
class Workload:
    """Attributes:
    kind: that binds it.
    envs: one a slot of a vector; or one alone, of which episodes are collected.
    think: seconds that the caller thinks between two batches; of episodes, that a call of the policy takes.
    options: of the vector or the collection.
    """

    kind: Kind
    envs: Sequence[Env] | Env
    think: float = 0.0
    options: dict[str, Any] = field(default_factory=dict)

    def run(self, change: str = "") -> tuple[Verdict | str, float]:
        """Run it, with a change of the verdict's or as it is: the verdict, and rows a second."""
        options, least = dict(self.options), 0
        if found := re.fullmatch(r"(\w+)=(\d+)", change):
            options.pop("workers", None)
            options[found[1]] = int(found[2])
        elif found := re.fullmatch(r"recv\(min=(\d+)\)", change):
            least = int(found[1])
        if not isinstance(self.envs, list):
            return self._collected(options)
        envs = treadle.VectorEnv(self.envs, **options)
        try:
            return self._partly(envs, least) if least else self._stepped(envs)
        finally:
            envs.close(terminate=True)

    def _stepped(self, envs: treadle.VectorEnv) -> tuple[Verdict, float]:
        envs.reset(seed=0)
        actions, rows = envs.action_space.sample(), 0
        envs.step(actions)
        began = time.perf_counter()
        while time.perf_counter() - began < SECONDS:
            time.sleep(self.think)
            envs.step(actions)
            rows += envs.num_envs
        return envs.stats().verdict, rows / (time.perf_counter() - began)

    def _partly(self, envs: treadle.VectorEnv, least: int) -> tuple[Verdict, float]:
        envs.async_reset(seed=0)
        rows, began = -3 * envs.num_envs, time.perf_counter()
        while time.perf_counter() - began < SECONDS or rows <= 0:
            *_, infos = envs.recv(min=least)
            before, rows = rows, rows + len(infos["env_id"])
            if before < 0 <= rows:  # until then they were in step
                rows, began = 0, time.perf_counter()
            time.sleep(self.think)
            envs.send(np.zeros(len(infos["env_id"]), np.int64), infos["env_id"])
        rate, verdict = rows / (time.perf_counter() - began), envs.stats().verdict
        while True:
            try:
                envs.recv(min=1)
            except treadle.UsageError:
                return verdict, rate

    def _collected(self, options: dict[str, Any]) -> tuple[str, float]:
        if size := options.pop("batch_size", 0):
            options["inference"] = treadle.Inference(where="caller", batch_size=size)

        def policy(observations: Any) -> Any:
            time.sleep(self.think)
            return np.zeros(len(observations), np.int64)

        with tempfile.TemporaryDirectory() as folder:
            asked: Any = policy if self.think else None
            stored = treadle.collect_dataset(self.envs, asked, out=Path(folder) / "run", **options)
        assert stored.summary is not None
        return stored.summary.verdict, stored.summary.steps_per_second


def many(n: int = 8, **options: Any) -> list[Env]:
    return [partial(Slow, **options) for _ in range(n)]


def with_one(times: float, n: int = 8, **options: Any) -> list[Env]:
    """n environments, one of which waits so many times as long."""
    return [partial(Slow, **{**options, "wait": options["wait"] * (times if at == 3 else 1)}) for at in range(n)]


EIGHT = {"OMP_NUM_THREADS": "8"}
WORKLOADS = {
    "two cores at work": Workload(Kind.ENV, many(work=3e-3)),
    "waiting in turns": Workload(Kind.ENV, many(wait=4e-3), options={"workers": 1}),
    "MuJoCo": Workload(Kind.ENV, ["HalfCheetah-v5"] * 16),
    "long resets": Workload(Kind.RESET, many(wait=2e-3, reset=0.12, length=40)),
    "a reset every third step": Workload(Kind.RESET, many(4, wait=1e-3, reset=8e-3, length=3)),
    "long resets, collected": Workload(
        Kind.RESET, partial(Slow, wait=1e-3, reset=0.2, length=20), options={"workers": 2, "episodes": 60}
    ),
    "a thinking caller": Workload(Kind.POLICY, ["CartPole-v1"] * 8, think=8e-3),
    "a thinking caller, waiting envs": Workload(Kind.POLICY, many(4, wait=2e-3), think=0.015),
    "a slow policy in the workers": Workload(
        Kind.POLICY, "CartPole-v1", think=4e-3, options={"workers": 2, "episodes": 60, "inference": "worker"}
    ),
    "one slot of eight": Workload(Kind.STRAGGLER, with_one(3.1, wait=6e-3)),
    "one slot of four": Workload(Kind.STRAGGLER, with_one(6, 4, wait=3e-3)),
    "now this, now that one": Workload(Kind.STRAGGLER, many(12, wait=3e-3, rare=0.04)),
    "CartPole in eight workers": Workload(Kind.TRANSPORT, ["CartPole-v1"] * 8, options={"workers": 8, "inline": 0}),
    "FrozenLake in four workers": Workload(Kind.TRANSPORT, ["FrozenLake-v1"] * 4, options={"workers": 4, "inline": 0}),
    "observations of 4 MB": Workload(Kind.TRANSPORT, many(4, floats=1_000_000)),
    "sixteen workers": Workload(Kind.OVERSUBSCRIBED, many(16, work=2e-3), options={"workers": 16}),
    "twelve workers": Workload(Kind.OVERSUBSCRIBED, many(12, work=6e-3), options={"workers": 12}),
    "eight threads each": Workload(
        Kind.OVERSUBSCRIBED,
        many(4, product=400),
        options={"workers": 4, "worker_options": treadle.WorkerOptions(worker_environ=EIGHT)},
    ),
    "a moment of MuJoCo": Workload(
        Kind.START, "HalfCheetah-v5", options={"workers": 4, "max_episode_steps": 100, "episodes": 8}
    ),
    "a moment of spawned workers": Workload(
        Kind.START,
        partial(Slow, wait=1e-3, length=20),
        options={"workers": 6, "episodes": 8, "worker_options": treadle.WorkerOptions(start_method="spawn")},
    ),
    "a moment of Atari": Workload(
        Kind.START, "ALE/Pong-v5", options={"workers": 2, "max_episode_steps": 20, "episodes": 4}
    ),
    "large observations stored": Workload(
        Kind.ENCODE, partial(Slow, floats=200_000, length=20), options={"workers": 2, "episodes": 60}
    ),
    "frames stored": Workload(
        Kind.ENCODE, partial(Slow, floats=50_000, length=50), options={"workers": 2, "episodes": 60}
    ),
    "long episodes stored": Workload(
        Kind.ENCODE, partial(Slow, floats=20_000, length=200), options={"workers": 2, "episodes": 40}
    ),
}  # fmt: skip


def parsed(verdict: Verdict | str) -> tuple[str, str, float]:
    """Kind, change and promised gain of a verdict, or of its text."""
    text = str(verdict)
    found = re.search(r"; (\S+) -> about ([\d.]+) times", text)
    return re.split(r"-bound|[ :]", text)[0], found[1] if found else "", float(found[2]) if found else 1.0


def main(names: Sequence[str]) -> None:
    """Try the workloads whose names hold one of these, or all."""
    print("| workload | known to be | found | advice | promised | measured |\n|---|---|---|---|---:|---:|")
    right = tried = 0
    for name, workload in WORKLOADS.items():
        if names and not any(each in name for each in names):
            continue
        verdict, rate = workload.run()
        kind, change, promised = parsed(verdict)
        measured = f"{workload.run(change)[1] / rate:.2f}" if change else ""
        tried, right = tried + 1, right + (kind == workload.kind.value)
        share = re.search(r"\d+ %", str(verdict))
        found = f"{kind} {share[0] if share else ''}".strip()
        told = (f"`{change}`", f"{promised:.1f}") if change else ("", "")
        print(f"| {name} | {workload.kind.value} | {found} | {told[0]} | {told[1]} | {measured} |", flush=True)
    print(f"\n{right} of {tried} have the right kind")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="parts of the names of workloads; default: all workloads")
    main(parser.parse_args().names)
