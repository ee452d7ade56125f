"""`python -m benchmarks.nodes`: what Ray costs a pool, and what people use instead, on this one machine.

    python -m benchmarks.nodes --write        # about 6 minutes; the tables of docs/scaling-reference.md

One, two, then four Ray nodes stand on this machine (`ray.cluster_utils.Cluster`), and W workers are played with: all in
a pool without Ray, or dealt to the nodes. There are no more cores for more nodes, so what is seen is overhead, not
scaling: four nodes are four sets of Ray's own processes, too. Contestants are interleaved. A rate is environment steps
in what the caller has received, from the first of it to the last; starting is not in it, the end is, where some workers
have nothing left to do.

`people`: 8 CartPoles with random actions (drawn many at a time), everything returned to the caller: actors with
Gymnasium's SyncVectorEnv that play fragments of 64 steps, two fragments of each always under way; the same with a
Treadle vector and `rollout(64)`; `treadle.collect` and `RaySampler` on one node, which return whole episodes; one actor
an environment, stepped in lockstep.

`driver`: a process of its own for each number of nodes receives the same episodes: its CPU time for each of them, and
its private memory at most, beyond what it had before.
"""

import argparse
import datetime
import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import numpy as np

from benchmarks.dataset import dataset
from benchmarks.measure import Measure, private_mib
from benchmarks.report import Spread, figure, machine, progress, publish, take_turns
from benchmarks.sampling import policy_for
from benchmarks.workloads import SEED, WORKLOADS
from treadle.worker.options import WorkerOptions

PAGE = Path(__file__).parents[1] / "docs" / "scaling-reference.md"
BEGIN, END = "<!-- nodes:begin -->", "<!-- nodes:end -->"
NODES, WORKERS = (0, 1, 2, 4), 4  # 0: without Ray
# of steps, about: how much is asked for; of Pong, whose episodes are long, more, or all of it would be its end
RATES = {"cartpole": 100_000, "pong": 30_000, "sample": 100_000}
PONG = 900  # steps of an episode, about
ENVS, FRAGMENT = 8, 64
ROWS = ("cartpole", "pong", "sample", "people", "driver")


def named(nodes: int) -> str:
    return f"{nodes} node{'s' if nodes > 1 else ''}" if nodes else "no Ray"


@contextmanager
def cluster(count: int) -> Iterator[str]:
    """So many nodes; yields their address."""
    import ray
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": WORKERS, "include_dashboard": False})
    try:
        for _ in range(count - 1):
            nodes.add_node(num_cpus=WORKERS)
        ray.init(address=nodes.address, logging_level=logging.ERROR, log_to_driver=False)
        yield nodes.address
    finally:
        ray.shutdown()
        nodes.shutdown()


def shares(nodes: int) -> dict[str, Any]:
    """The same number of workers, wherever they are."""
    from treadle import Cluster

    return {"cluster": Cluster(nodes), "workers": WORKERS // nodes} if nodes else {"workers": WORKERS}


# -- collecting and sampling -------------------------------------------------------------------------------------------


def collecting(nodes: int, seconds: float) -> Measure:
    """CartPole, episodes received by the caller as they come."""
    return received(seconds, **shares(nodes))


def received(seconds: float, **options: Any) -> Measure:
    """From the first episode that the caller has to the last."""
    import treadle

    wanted, steps, cpu, start = int(RATES["cartpole"] * seconds), -1, 0.0, 0.0
    run = treadle.collect("CartPole-v1", steps=wanted, seed=SEED, ordered=False, **options)
    for episode in run:
        if steps < 0:
            steps, cpu, start = 0, process_time(), perf_counter()
            continue
        steps += len(episode)
    return Measure(steps, perf_counter() - start, process_time() - cpu)


def recording(nodes: int, seconds: float) -> Measure:
    """Pong into a dataset: encoded where it is played, written by the caller."""

    seen: list[tuple[int, float, float]] = []

    def watch(now: Any) -> None:
        if now.episodes:
            seen.append((now.steps, perf_counter(), process_time()))

    episodes = max(2 * WORKERS, round(RATES["pong"] * seconds / PONG))
    with tempfile.TemporaryDirectory(prefix="bench-nodes-") as out:
        dataset(WORKLOADS["pong"].make, out, episodes=episodes, seed=SEED, progress=watch, **shares(nodes))
    (first, start, cpu), (last, end, cpu_end) = seen[0], seen[-1]
    return Measure(last - first, end - start, cpu_end - cpu)


@contextmanager
def sampling(
    nodes: int, seconds: float, *, agent: Any = None, workers: int = WORKERS
) -> Iterator[Callable[[], Measure]]:
    """CartPole with an agent (None: the small policy): a batch a turn, all by the same workers, after one that warms
    up."""
    from treadle import Cluster, MultiprocessingSampler, RaySampler

    options: dict[str, Any] = {"max_episode_length": np.inf, "seed": SEED, "n_workers": workers, "progress": False}
    kind: Any = MultiprocessingSampler
    if nodes:
        kind = partial(RaySampler, cluster=Cluster(nodes))
    wanted = int(RATES["sample"] * seconds)
    with kind(agent or policy_for("cartpole"), WORKLOADS["cartpole"].make, **options) as sampler:

        def turn() -> Measure:
            cpu, start = process_time(), perf_counter()
            steps = len(sampler.obtain_samples(0, wanted, None))
            return Measure(steps, perf_counter() - start, process_time() - cpu)

        turn()
        yield turn


@contextmanager
def begun(run: Callable[[int, float], Measure], nodes: int, seconds: float) -> Iterator[Callable[[], Measure]]:
    """What has nothing to keep between its turns."""
    yield partial(run, nodes, seconds)


# -- what people use ---------------------------------------------------------------------------------------------------


class Fragments:
    """An actor with a vector of CartPoles. `options`: of Treadle's; None: Gymnasium's SyncVectorEnv."""

    def __init__(self, options: dict[str, Any] | None, envs: int) -> None:
        import gymnasium as gym

        if options is not None:
            import treadle

            self.envs: Any = treadle.make_vec("CartPole-v1", envs, **options)
        else:
            self.envs = gym.vector.SyncVectorEnv([partial(gym.make, "CartPole-v1") for _ in range(envs)])
        self.observation, _ = self.envs.reset(seed=SEED)
        self.rng = np.random.default_rng(SEED)

    def rollout(self, steps: int) -> Any:
        actions = iter(self.rng.integers(2, size=(steps, self.envs.num_envs)))
        made = self.envs.rollout(lambda _: next(actions), steps=steps)
        return made.observations, made.actions, made.rewards, made.terminated, made.truncated

    def fragment(self, steps: int) -> Any:
        """What a loop around `step` keeps."""
        kept: tuple[list[Any], ...] = ([], [], [], [], [])
        for action in self.rng.integers(2, size=(steps, self.envs.num_envs)):
            before = self.observation
            self.observation, *found, _ = self.envs.step(action)
            for rows, value in zip(kept, (before, action, *found), strict=True):
                rows.append(value)
        return tuple(np.stack(rows) for rows in kept)

    def close(self) -> None:
        self.envs.close()


class Single:
    """An actor with one environment."""

    def __init__(self) -> None:
        import gymnasium as gym

        self.env = gym.make("CartPole-v1")
        self.env.reset(seed=SEED)

    def step(self, action: int) -> Any:
        observation, reward, terminated, truncated, _ = self.env.step(action)
        if terminated or truncated:
            observation, _ = self.env.reset()
        return observation, reward, terminated, truncated


@contextmanager
def fragments(options: dict[str, Any] | None, actors: int, seconds: float) -> Iterator[Callable[[], Measure]]:
    """Actors with equal parts of the environments, asked again as soon as they have answered."""
    import ray

    remote: Any = ray.remote(num_cpus=0)(Fragments)
    there: list[Any] = [remote.remote(options, ENVS // actors) for _ in range(actors)]
    method = "fragment" if options is None else "rollout"

    def ask(actor: Any) -> Any:
        return getattr(actor, method).remote(FRAGMENT)

    def turn() -> Measure:
        under_way = {ask(actor): actor for actor in there for _ in range(2)}
        steps, cpu, start = 0, process_time(), perf_counter()
        while perf_counter() - start < seconds:
            (done,), _ = ray.wait(list(under_way))
            steps += ray.get(done)[2].size
            actor = under_way.pop(done)
            under_way[ask(actor)] = actor
        found = Measure(steps, perf_counter() - start, process_time() - cpu)
        ray.get(list(under_way))
        return found

    try:
        ray.get([ask(actor) for actor in there])
        yield turn
        ray.get([actor.close.remote() for actor in there])
    finally:
        for actor in there:
            ray.kill(actor)


@contextmanager
def one_each(seconds: float) -> Iterator[Callable[[], Measure]]:
    """One actor an environment, stepped together."""
    import ray

    remote: Any = ray.remote(num_cpus=0)(Single)
    there: list[Any] = [remote.remote() for _ in range(ENVS)]
    rng = np.random.default_rng(SEED)

    def step() -> None:
        actions = rng.integers(2, size=ENVS).tolist()
        ray.get([actor.step.remote(action) for actor, action in zip(there, actions, strict=True)])

    def turn() -> Measure:
        steps, cpu, start = 0, process_time(), perf_counter()
        while perf_counter() - start < seconds:
            step()
            steps += ENVS
        return Measure(steps, perf_counter() - start, process_time() - cpu)

    try:
        step()
        yield turn
    finally:
        for actor in there:
            ray.kill(actor)


def whole_episodes(nodes: int, seconds: float) -> Measure:
    """Eight environments in the pool of one node."""
    from treadle import Cluster

    return received(seconds, cluster=Cluster(nodes), workers=2, num_envs=ENVS)


class Random:
    """An agent of garage's protocol: actions drawn a thousand at a time."""

    def __init__(self) -> None:
        self.rng, self.left = np.random.default_rng(SEED), list[int]()

    def reset(self, do_resets: Any = None) -> None:
        """Nothing is remembered."""

    def get_action(self, observation: Any) -> tuple[int, dict[str, Any]]:
        if not self.left:
            self.left = self.rng.integers(2, size=1000).tolist()
        return self.left.pop(), {}


Contestant = Callable[[float], AbstractContextManager[Callable[[], Measure]]]
PEOPLE: dict[str, Contestant] = {
    "Treadle, `collect(cluster=Cluster(1))`": partial(begun, whole_episodes, 1),
    "Treadle, `RaySampler` with 2 workers": partial(sampling, 1, agent=Random(), workers=2),
    "Treadle, a vector of 8 in an actor, `rollout(64)`": partial(fragments, {}, 1),
    "Treadle, a vector of 4 in each of two actors": partial(
        fragments, {"worker_options": WorkerOptions(backend="serial")}, 2
    ),
    "SyncVectorEnv of 8 in an actor, fragments of 64": partial(fragments, None, 1),
    "SyncVectorEnv of 4 in each of two actors, fragments of 64": partial(fragments, None, 2),
    "one actor an environment, in lockstep": one_each,
}


# -- the driver --------------------------------------------------------------------------------------------------------


def drive(nodes: int, address: str, wanted: int) -> dict[str, float]:
    """In a process of its own: receive so many steps of CartPole, and look at this process meanwhile."""
    import treadle

    episodes, cpu, before, most = -1, 0.0, 0.0, 0.0
    over, mine = threading.Event(), os.getpid()

    def look() -> None:
        nonlocal most
        while not over.wait(0.1):
            most = max(most, private_mib(mine))

    if nodes:
        import ray

        ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
    watcher = threading.Thread(target=look)
    for _ in treadle.collect("CartPole-v1", steps=wanted, seed=SEED, ordered=False, **shares(nodes)):
        if episodes < 0:
            episodes, cpu, before = 0, process_time(), private_mib(mine)
            watcher.start()
            continue
        episodes += 1
    cpu = process_time() - cpu
    over.set()
    watcher.join()
    return {"us": 1e6 * cpu / episodes, "mib": most - before, "episodes": episodes}


def driven(nodes: int, address: str, wanted: int) -> dict[str, float]:
    given = json.dumps([nodes, address, wanted])
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.nodes", "--drive", given], stdout=subprocess.PIPE, text=True, check=True
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    progress(f"driver {named(nodes)}: {found['us']:.0f} us an episode, {found['mib']:.0f} MiB")
    return found


# -- tables ------------------------------------------------------------------------------------------------------------


def spread(values: Sequence[float]) -> str:
    found = Spread.of(values)
    return f"{figure(found.median)} ({figure(found.low)} to {figure(found.high)})"


def in_turns(row: str, contestants: Mapping[str, Contestant], rounds: int, seconds: float) -> dict[str, list[Measure]]:
    """All are there at once, and one of them is at work."""
    with ExitStack() as there:
        return take_turns(row, {who: there.enter_context(each(seconds)) for who, each in contestants.items()}, rounds)


def against_no_ray(row: str, nodes: int, run: Callable[..., Any], rounds: int, seconds: float) -> str:
    """Line of a row: so many nodes as a share of the same round without Ray."""
    near, far = in_turns(row, {named(n): partial(run, n) for n in (0, nodes)}, rounds, seconds).values()
    here, there = ([each.steps_per_s for each in measures] for measures in (near, far))
    share = median(b / a for a, b in zip(here, there, strict=True))
    callers = " | ".join(f"{median(each.cores for each in measures):.0%}" for measures in (near, far))
    return f"| {row} | {named(nodes)} | {spread(here)} | {spread(there)} | {share:.2f} | {callers} |"


def against_people(rounds: int, seconds: float) -> list[str]:
    """Lines: each as a multiple of the better SyncVectorEnv of the same round."""
    found = in_turns("people", PEOPLE, rounds, seconds)
    rates = {name: [each.steps_per_s for each in measures] for name, measures in found.items()}
    best = [max(pair) for pair in zip(*(each for name, each in rates.items() if "Sync" in name), strict=True)]
    return [
        f"| {name} | {spread(each)} | {median(a / b for a, b in zip(each, best, strict=True)):.2f} |"
        for name, each in rates.items()
    ]


def tables(rows: Sequence[str], rounds: int, seconds: float) -> str:
    kinds: dict[str, tuple[str, Callable[..., Any]]] = {
        "cartpole": ("collect CartPole", partial(begun, collecting)),
        "pong": ("collect Pong into a dataset", partial(begun, recording)),
        "sample": ("sample CartPole, a small policy", sampling),
    }
    lines: dict[str, list[str]] = {key: [] for key in (*kinds, "people", "driver")}
    for nodes in NODES[1:]:
        with cluster(nodes) as address:
            for key, (row, run) in kinds.items():
                if key in rows:
                    lines[key].append(against_no_ray(row, nodes, run, rounds, seconds))
            if nodes == 1 and "people" in rows:
                lines["people"] = against_people(rounds, seconds)
            for count in (0, 1) if nodes == 1 else (nodes,):
                if "driver" in rows:
                    found = driven(count, address, int(2 * RATES["cartpole"] * seconds))
                    told = f"{found['us']:.0f} | {found['mib']:.0f} | {found['episodes']:,.0f}"
                    lines["driver"].append(f"| {named(count)} | {told} |")
    text: list[str] = []
    if each := [line for key in kinds for line in lines[key]]:
        head = f"| {WORKERS} workers | where | no Ray, steps/s | steps/s | of no Ray | caller's CPU without | with |"
        text += [head, "|---|---|---:|---:|---:|---:|---:|", *each, ""]
    if lines["people"]:
        head = f"| {ENVS} CartPoles | steps/s | x the better SyncVectorEnv |"
        text += [head, "|---|---:|---:|", *lines["people"], ""]
    if lines["driver"]:
        head = "| the caller's process | CPU us/episode | MiB at most | episodes |"
        text += [head, "|---|---:|---:|---:|", *lines["driver"], ""]
    return "\n".join(text)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (None: the process's own)."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nodes", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="turns of each contestant (3)")
    parser.add_argument("--seconds", type=float, default=1.5, help="of a turn, about (1.5)")
    parser.add_argument("--only", default=",".join(ROWS), help="rows (%(default)s)")
    parser.add_argument("--write", action="store_true", help=f"put the tables into {PAGE.parent.name}/{PAGE.name}")
    parser.add_argument("--drive", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.drive:
        print(json.dumps(drive(*json.loads(options.drive))))
        return 0
    if unknown := set(options.only.split(",")) - set(ROWS):
        parser.error(f"no rows {', '.join(sorted(unknown))}; there are {', '.join(ROWS)}")
    facts = machine()
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    text = (
        f"{datetime.date.today().isoformat()}. {facts['cpu']}, {facts['cores']} cores, {facts['system']}; {versions}. "
        f"{options.rounds} rounds of about {options.seconds:g} s, contestants interleaved, load average at start "
        f"{facts['load_at_start']:g}; medians, lowest to highest in brackets.\n\n"
    ) + tables(options.only.split(","), options.rounds, options.seconds).rstrip()
    publish(text, PAGE if options.write else None, BEGIN, END)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
