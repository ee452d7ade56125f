"""`python -m benchmarks.wire`: what goes over the wire between a caller and its nodes, counted in the caller.

    python -m benchmarks.wire --write         # a minute; the tables of docs/scaling-reference.md

Counted are the messages (calls of actors) and their bytes: pickles and buffers, each way, without what Ray adds to a
call; and what is put into the object store, which each node pulls once. Besides, the caller's CPU time. Each figure is
what a longer run has more than a shorter one, so that starts and ends are not in it. Two Ray nodes stand on this
machine; the bytes do not depend on its speed. The second table reckons from the first what a caller of more nodes has
to do.
"""

import argparse
import logging
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np

import treadle
from benchmarks.dataset import dataset
from benchmarks.report import publish
from benchmarks.sampling import policy_for
from benchmarks.workloads import SEED, WORKLOADS
from treadle.nodes.ray_cluster import RayCluster
from treadle.nodes.travel import MessageBatch

PAGE = Path(__file__).parents[1] / "docs" / "scaling-reference.md"
BEGIN, END = "<!-- wire:begin -->", "<!-- wire:end -->"
NODES = 2
FEW = 100  # episodes: what the caller's time for one is cannot be told from so few
WEIGHTS = 1 << 18  # numbers of an update, a megabyte
LINK = 1.25e9  # bytes a second: 10 Gbit/s
RATE = 50_000  # steps a second of a node with many cores, for the reckoning


@dataclass
class Wire:
    """Counts. `put`: bytes that each node pulls once; `cpu`: seconds of this process."""

    calls: int = 0
    out: int = 0
    back: int = 0
    put: int = 0
    cpu: float = 0.0


def size(value: Any) -> int:
    return value.body.nbytes if isinstance(value, MessageBatch) else 0


@contextmanager
def counted() -> Iterator[Wire]:
    """Count what this process sends and receives meanwhile."""
    wire, call, get, put = Wire(), RayCluster.call, RayCluster.get, RayCluster.put

    def counting(
        self: RayCluster, actor: Any, method: str, *args: Any, then: Callable[..., None], values: int = 1
    ) -> None:
        def heard(result: Any, error: BaseException | None) -> None:
            wire.back += size(result[1] if type(result) is tuple else result)  # pieces come by themselves
            then(result, error)

        wire.calls += 1
        wire.out += sum(map(size, args))
        call(self, actor, method, *args, then=heard, values=values)

    def getting(self: RayCluster, references: list[Any]) -> list[Any]:
        pieces = get(self, references)
        wire.back += sum(map(len, pieces))
        return pieces

    def putting(self: RayCluster, value: Any) -> Any:
        wire.put += value.nbytes
        return put(self, value)

    RayCluster.call, RayCluster.get, RayCluster.put = counting, getting, putting  # type: ignore[method-assign]
    wire.cpu -= process_time()
    try:
        yield wire
    finally:
        wire.cpu += process_time()
        RayCluster.call, RayCluster.get, RayCluster.put = call, get, put  # type: ignore[method-assign]


@dataclass(frozen=True)
class Face:
    """What was counted for one way to use nodes."""

    name: str
    wire: Wire
    steps: int
    episodes: int


def more(face: Callable[[int], Face], amount: int) -> Face:
    """What a run has more than one of a fifth."""
    less, whole = face(max(1, amount // 5)), face(amount)
    name, wire = whole.name, Wire(put=whole.wire.put)
    for count in ("calls", "out", "back", "cpu"):
        setattr(wire, count, getattr(whole.wire, count) - getattr(less.wire, count))
    return Face(name, wire, whole.steps - less.steps, whole.episodes - less.episodes)


def collecting(wanted: int) -> Face:
    with counted() as wire:
        lengths = [
            len(each)
            for each in treadle.collect("CartPole-v1", episodes=wanted, seed=SEED, cluster=treadle.Cluster(nodes=NODES))
        ]
    return Face("`collect`, CartPole", wire, sum(lengths), len(lengths))


def evaluating(wanted: int) -> Face:
    with counted() as wire:
        found = treadle.evaluate("CartPole-v1", policy, wanted, cluster=treadle.Cluster(nodes=NODES))
    return Face("`evaluate`, CartPole", wire, sum(score.length for score in found.scores), wanted)


def policy(observations: np.ndarray) -> np.ndarray:
    return (observations[:, 2] > 0).astype(np.int64)


def recording(name: str, wanted: int) -> Face:
    with tempfile.TemporaryDirectory(prefix="bench-wire-") as out, counted() as wire:
        made = dataset(
            WORKLOADS[name].make,
            out,
            episodes=wanted,
            seed=SEED,
            cluster=treadle.Cluster(nodes=NODES),
        )
    assert made.summary is not None
    return Face(f"`collect_dataset`, {name}", wire, made.summary.steps, made.summary.episodes)


def sampling(wanted: int) -> Face:
    """A batch with an update of a megabyte before it."""
    agent: Any = policy_for("cartpole")
    agent.more = np.ones(WEIGHTS, np.float32)
    options: dict[str, Any] = {"max_episode_length": 500, "seed": SEED, "n_workers": NODES, "progress": False}
    options["cluster"] = treadle.Cluster(NODES)
    with treadle.RaySampler(agent, WORKLOADS["cartpole"].make, **options) as sampler:
        sampler.obtain_samples(0, 1000, None)
        with counted() as wire:
            made = sampler.obtain_samples(0, wanted, agent)
    return Face("`RaySampler`, CartPole", wire, len(made), len(made.lengths))


def planning(batches: int) -> Face:
    """Batches of 64 steps, with their states out and back."""
    n = 64
    with closing(treadle.plan.make("CartPole-v1", NODES, cluster=treadle.Cluster(nodes=NODES))) as env:
        state, _, _ = env.reset()
        states: Any = [state] * n
        with counted() as wire:
            for actions in np.random.default_rng(SEED).integers(0, 2, (batches, n)):
                states, *_ = env.step_batch(actions, states, return_state=True)
    return Face(f"`plan`, CartPole, batches of {n}", wire, batches * n, 0)


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def measured(faces: Sequence[Face]) -> list[str]:
    lines = [
        "| face | steps an episode | bytes back a step | bytes back an episode | bytes out an episode "
        "| steps a message | caller's CPU us a step |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for face in faces:
        wire, each = face.wire, max(1, face.episodes)
        cells = [
            number(face.steps / each) if face.episodes else "",
            number(wire.back / face.steps),
            number(wire.back / each) if face.episodes else "",
            number(wire.out / each) if face.episodes else f"{number(wire.out / face.steps)} a step",
            number(face.steps / wire.calls),
            "" if 0 < face.episodes < FEW else f"{1e6 * wire.cpu / face.steps:.2g}",
        ]
        lines.append("| " + " | ".join([face.name, *cells]) + " |")
    return lines


def reckoned(faces: Sequence[Face], version: int) -> list[str]:
    """What a caller of N nodes has to take a second, each face with its own bytes and time. `version`: bytes of one."""
    first = faces[0]
    each, cpu = (first.wire.back + first.wire.out) / first.steps, 1e6 * first.wire.cpu / first.steps
    lines = [
        f"For N nodes of {RATE:,} steps a second each: MB/s = N x {RATE:,} x bytes a step, back and out. A link of "
        f"10 Gbit/s carries {LINK / 1e6:,.0f} MB/s. Cores of the caller = N x {RATE:,} x its CPU time a step. "
        f"The caller has one core. For {first.name} and 10 nodes: 10 x {RATE:,} x {each:.3g} bytes = "
        f"{10 * RATE * each / 1e6:,.3g} MB/s, and 10 x {RATE:,} x {cpu:.2g} us = {10 * RATE * cpu / 1e6:.2g} cores. "
        "Bold figures are more than the link or the caller's core can carry. The last column has the largest number of "
        "nodes for one caller, and the resource that limits it.",
        "",
        "| face | 10 nodes: MB/s, cores | 100 | 1,000 | nodes at most |",
        "|---|---:|---:|---:|---:|",
    ]
    for face in faces:
        each, cpu = (face.wire.back + face.wire.out) / face.steps, face.wire.cpu / face.steps
        timed = not 0 < face.episodes < FEW
        cells = []
        for nodes in (10, 100, 1000):
            link, cores = nodes * RATE * each, nodes * RATE * cpu if timed else 0.0
            share = "" if not timed else f", {cores:.2g}" if cores < 10 else f", {number(cores)}"
            text = number(link / 1e6) + share
            cells.append(f"**{text}**" if link > LINK or cores > 1 else text)
        by_link, by_cpu = LINK / (RATE * each), 1 / (RATE * cpu)
        slow = timed and by_cpu < by_link
        most = f"{number(by_cpu)}, time" if slow else f"{number(by_link)}, the link"
        lines.append("| " + " | ".join([face.name, *cells, most]) + " |")
    parts = ", ".join(f"{nodes * version / LINK:.2g} s for {nodes:,}" for nodes in (10, 100, 1000))
    lines += [
        "",
        f"A version of weights of {WEIGHTS * 4:,} bytes was put into the object store once, as {version:,} bytes, "
        f"whatever the number of workers. Each node pulls it. At worst all nodes pull from the caller. That takes "
        f"N x {version:,} / {LINK / 1e6:,.0f} MB/s = {parts} nodes.",
    ]
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (None: the process's own)."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wire", description=__doc__.splitlines()[0])
    parser.add_argument("--scale", type=float, default=1.0, help="how much is played, times the usual (1)")
    parser.add_argument("--write", action="store_true", help=f"put the tables into {PAGE.parent.name}/{PAGE.name}")
    options = parser.parse_args(argv)
    import ray
    from ray.cluster_utils import Cluster as Several

    def scaled(amount: int) -> int:
        return max(4, int(amount * options.scale))

    nodes = Several(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        for _ in range(NODES - 1):
            nodes.add_node(num_cpus=1)
        ray.init(address=nodes.address, logging_level=logging.ERROR, log_to_driver=False)
        faces = [
            more(collecting, scaled(50_000)),
            more(partial(recording, "cartpole"), scaled(30_000)),
            more(partial(recording, "pong"), scaled(10)),
            more(evaluating, scaled(25_000)),
            more(sampling, scaled(200_000)),
            more(planning, scaled(300)),
        ]
    finally:
        ray.shutdown()
        nodes.shutdown()
    text = "\n".join([*measured(faces), "", *reckoned(faces, max(face.wire.put for face in faces))])
    publish(text, PAGE if options.write else None, BEGIN, END)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
