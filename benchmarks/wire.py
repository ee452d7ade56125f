"""`python -m benchmarks.wire`: what goes over the wire between a caller and its nodes, counted in the caller.

    python -m benchmarks.wire --write         # half a minute; the tables of docs/scaling.md

Counted are the messages (calls of actors) and their bytes: pickles and buffers, each way, without what Ray adds to a
call; and what is put into the object store, which each node pulls once. Two Ray nodes stand on this machine; the counts
do not depend on its speed, but for how many messages they come in. The second table reckons from the first what a
caller of more nodes has to do.
"""

import argparse
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import treadle
from benchmarks.report import write_between_markers
from benchmarks.sampling import policy_for
from benchmarks.workloads import SEED, WORKLOADS
from treadle.nodes.placing import Placement
from treadle.nodes.ray_cluster import Cluster
from treadle.nodes.travel import Batch

PAGE = Path(__file__).parents[1] / "docs" / "scaling.md"
BEGIN, END = "<!-- wire:begin -->", "<!-- wire:end -->"
NODES = 2
CALL = 0.5e-3  # seconds of the caller's own time for a call and its answer, at most
LINK = 1.25e9  # bytes a second: 10 Gbit/s
RATE = 50_000  # steps a second of a node with many cores, for the reckoning


@dataclass
class Wire:
    """Counts. `put`: bytes that each node pulls once."""

    calls: int = 0
    out: int = 0
    back: int = 0
    put: int = 0


def size(value: Any) -> int:
    if isinstance(value, Batch):
        return value.body.nbytes + sum(len(message.head) for message in value.messages)
    return 0


@contextmanager
def counted() -> Iterator[Wire]:
    """Count what this process sends and receives meanwhile."""
    wire, call, put = Wire(), Cluster.call, Cluster.put

    def counting(self: Cluster, actor: Any, method: str, *args: Any, then: Callable[..., None]) -> None:
        def heard(result: Any, error: BaseException | None) -> None:
            wire.back += size(result)
            then(result, error)

        wire.calls += 1
        wire.out += sum(map(size, args))
        call(self, actor, method, *args, then=heard)

    def putting(self: Cluster, value: Any) -> Any:
        wire.put += value.nbytes
        return put(self, value)

    Cluster.call, Cluster.put = counting, putting  # type: ignore[method-assign]
    try:
        yield wire
    finally:
        Cluster.call, Cluster.put = call, put  # type: ignore[method-assign]


@dataclass(frozen=True)
class Face:
    """What was counted for one way to use nodes. `version`: bytes that each node pulls for new weights."""

    name: str
    wire: Wire
    steps: int
    episodes: int
    version: int = 0


def collecting(wanted: int) -> Face:
    with counted() as wire:
        lengths = [len(each) for each in treadle.collect("CartPole-v1", episodes=wanted, seed=SEED, nodes=NODES)]
    return Face("`collect`, CartPole", wire, sum(lengths), len(lengths))


def evaluating(wanted: int) -> Face:
    with counted() as wire:
        found = treadle.evaluate("CartPole-v1", policy, wanted, nodes=NODES)
    return Face("`evaluate`, CartPole", wire, sum(score.length for score in found.scores), wanted)


def policy(observations: np.ndarray) -> np.ndarray:
    return (observations[:, 2] > 0).astype(np.int64)


def recording(name: str, wanted: int, shared: bool = False) -> Face:
    with tempfile.TemporaryDirectory(prefix="bench-wire-") as out, counted() as wire:
        made = treadle.collect_dataset(
            WORKLOADS[name].make, out=out, episodes=wanted, seed=SEED, nodes=NODES, verify=0, shared_out=shared
        )
    assert made.summary is not None
    where = "`shared_out`" if shared else "`collect_dataset`"
    return Face(f"{where}, {name}", wire, made.summary.steps, made.summary.episodes)


def sampling(wanted: int) -> Face:
    """Two batches with an update before each; what the first costs besides, as the policy itself, is not in it."""
    agent = policy_for("cartpole")
    options: dict[str, Any] = {"max_episode_length": 500, "seed": SEED, "n_workers": NODES, "progress": False}
    with treadle.RaySampler(
        agent, WORKLOADS["cartpole"].make, placement=Placement(NODES, shared=True), **options
    ) as sampler:
        sampler.obtain_samples(0, 1000, agent)
        with counted() as wire:
            made = sampler.obtain_samples(0, wanted, agent)
    return Face("`RaySampler`, CartPole", wire, len(made), len(made.lengths), version=wire.put)


def planning(batches: int) -> Face:
    """Batches of 64 steps, with their states out and back."""
    n = 64
    with closing(treadle.plan.make("CartPole-v1", NODES, nodes=NODES)) as env:
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
        "| steps a message | bytes a node and version |",
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
            number(face.version) if face.version else "",
        ]
        lines.append("| " + " | ".join([face.name, *cells]) + " |")
    return lines


def reckoned(faces: Sequence[Face]) -> list[str]:
    """What a caller of N nodes has to take a second, each face with its own bytes and messages."""
    lines = [
        f"For N nodes of {RATE:,} steps a second each: MB/s = N x {RATE:,} x bytes a step / 10^6, of which a link of "
        f"10 Gbit/s carries {LINK / 1e6:,.0f}; the caller's time for calls = N x {RATE:,} / steps a message x "
        f"{CALL * 1e3:g} ms. Bold: more than there is.",
        "",
        "| face | 10 nodes | 100 | 1,000 | nodes that fill the link |",
        "|---|---:|---:|---:|---:|",
    ]
    for face in faces:
        each, steps = (face.wire.back + face.wire.out) / face.steps, face.steps / face.wire.calls
        cells = []
        for nodes in (10, 100, 1000):
            link, share = nodes * RATE * each, nodes * RATE / steps * CALL
            text = f"{link / 1e6:,.4g} MB/s, {share:.0%}"
            cells.append(f"**{text}**" if link > LINK or share > 1 else text)
        most = min(LINK / (RATE * each), steps / (RATE * CALL))
        lines.append("| " + " | ".join([face.name, *cells, number(most)]) + " |")
    versions = [face for face in faces if face.version]
    for face in versions:
        mlp = 1_000_000
        parts = ", ".join(f"{nodes * mlp / LINK:.3g} s for {nodes:,}" for nodes in (10, 100, 1000))
        lines += [
            "",
            f"A version is put once ({face.version:,} bytes above) and pulled by every node, at worst from the caller: "
            f"N x bytes / {LINK / 1e6:,.0f} MB/s, so weights of 1 MB take {parts} nodes.",
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
        ray.init(address=nodes.address, logging_level="error", log_to_driver=False)
        faces = [
            collecting(scaled(10_000)),
            recording("cartpole", scaled(10_000)),
            recording("pong", scaled(8)),
            recording("pong", scaled(8), shared=True),
            evaluating(scaled(4_000)),
            sampling(scaled(100_000)),
            planning(scaled(200)),
        ]
    finally:
        ray.shutdown()
        nodes.shutdown()
    text = "\n".join([*measured(faces), "", *reckoned(faces)])
    print(text)
    if options.write:
        write_between_markers(PAGE, text, BEGIN, END)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
