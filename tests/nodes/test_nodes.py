"""Collecting and evaluating on several Ray nodes: the bytes of a serial run, whatever happens to the nodes."""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import treadle
import treadle.nodes.worker
from treadle.errors import UsageError
from treadle.nodes import ray_cluster as ray_cluster_module

# a cluster of two nodes takes 90 s for what it does in 35 s alone, beside three busy processes
LIMIT = 250  # seconds of a script; its test has a little more
pytestmark = [pytest.mark.heavy, pytest.mark.ray, pytest.mark.timeout(LIMIT + 50)]


One = partial(treadle.RaySampler, cluster=treadle.Cluster(1))
Two = partial(treadle.RaySampler, cluster=treadle.Cluster(2))


def told(episodes: Any) -> list[tuple[int, int, bytes, bytes]]:
    return [(each.index, each.seed, each.observations.tobytes(), each.actions.tobytes()) for each in episodes]


def lose_a_node(cluster: Any) -> None:
    """Its processes are killed."""
    doomed = next(node for node in cluster.list_all_nodes() if node is not cluster.head_node)
    cluster.remove_node(doomed, allow_graceful=False)


@pytest.fixture(scope="module")
def serial() -> list[tuple[int, int, bytes, bytes]]:
    return told(
        treadle.collect("CartPole-v1", episodes=1500, seed=3, worker_options=treadle.WorkerOptions(backend="serial"))
    )


@pytest.mark.parametrize(
    ("cluster", "options"),
    [
        (treadle.Cluster(1), {}),
        (treadle.Cluster(2), {"workers": 2}),
        (treadle.Cluster(5, cpus_per_node=1), {}),
    ],
)
def test_the_same_bytes_for_any_number_of_nodes(cluster: treadle.Cluster, options: dict[str, Any], serial: Any) -> None:
    """Of five the cluster has room for three: the others are waited for, and nobody waits for them."""
    assert told(treadle.collect("CartPole-v1", episodes=300, seed=3, cluster=cluster, **options)) == serial[:300]


def test_a_node_that_is_lost_costs_time_and_one_that_joins_is_used(
    ray_cluster: Any, serial: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    monkeypatch.setattr("treadle.sample.collect.MOST_WAITING", 1 << 18)
    with caplog.at_level(logging.WARNING, "treadle"):
        for episode in treadle.collect("CartPole-v1", episodes=1500, seed=3, cluster=treadle.Cluster(nodes=3)):
            made.append(episode)
            if len(made) == 100:
                lose_a_node(ray_cluster)
                ray_cluster.add_node(num_cpus=1)
    assert told(made) == serial
    assert "is replaced" in caplog.text
    assert "node 1" in caplog.text  # its address


class Slow(gym.Wrapper):
    """A step takes a millisecond."""

    def step(self, action: Any) -> Any:
        time.sleep(1e-3)
        return super().step(action)


def test_a_node_is_lost_in_the_middle_of_a_sampling(ray_cluster: Any, caplog: pytest.LogCaptureFixture) -> None:
    def make() -> gym.Env:
        return Slow(gym.make("CartPole-v1"))

    given = {"seed": 5, "max_episode_length": 500, "ordered": True, "on_failure": "restart"}
    with treadle.RaySampler(Weights(), make, n_workers=3, **given) as sampler:
        made = [sampler.obtain_samples(0, 500, None)]
        lose_a_node(ray_cluster)
        while len(made) < 3 or not any(sampler._sampling.pool.restarts):
            made.append(sampler.obtain_samples(0, 500, None))
    ray_cluster.add_node(num_cpus=1)
    with treadle.LocalSampler(Weights(), lambda: gym.make("CartPole-v1"), **given) as sampler:
        wanted = [sampler.obtain_samples(0, 500, None) for _ in made]
    for one, other in zip(wanted, made, strict=True):
        assert one.observations.tobytes() == other.observations.tobytes()
        assert one.lengths.tolist() == other.lengths.tolist()
    assert "is replaced" in caplog.text


class Dies(gym.Wrapper):
    """Ends its process in the first step of an episode whose seed is divisible by 7."""

    def reset(self, **kwargs: Any) -> Any:
        self.doomed = kwargs["seed"] % 7 == 0
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        if self.doomed:
            os._exit(3)
        return super().step(action)


def test_a_deadly_episode_is_judged_on_its_node_as_everywhere(caplog: pytest.LogCaptureFixture) -> None:
    here = {"wrappers": [Dies], "episodes": 20, "seed": 1, "on_error": "skip", "max_skipped": 20}
    with caplog.at_level(logging.ERROR, "treadle"):
        near = list(treadle.collect("CartPole-v1", workers=1, **here))
        far = list(treadle.collect("CartPole-v1", cluster=treadle.Cluster(nodes=2), **here))
    assert told(near) == told(far)
    assert 0 < len(far) < 20
    with pytest.raises(treadle.CollectionFailed, match=r"has cost 3 fresh workers .* \(on node [\d.]+\)") as failed:
        list(treadle.collect("CartPole-v1", cluster=treadle.Cluster(nodes=2), wrappers=[Dies], episodes=20, seed=1))
    assert failed.value.where.episode is not None


class Crashes(gym.Wrapper):
    """Ends its process by a segfault in the first step of an episode whose seed is divisible by 7, and notes it."""

    def __init__(self, env: gym.Env, notes: str) -> None:
        super().__init__(env)
        self.notes = notes

    def reset(self, **kwargs: Any) -> Any:
        self.seed = kwargs["seed"]
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        if self.seed % 7 == 0:
            with open(self.notes, "a") as file:
                file.write(f"{self.seed}\n")
            ctypes.string_at(0)
        return super().step(action)


def test_a_crash_at_the_same_place_is_tried_twice_on_a_node_as_everywhere(tmp_path: Path) -> None:
    run: dict[str, Any] = {"episodes": 20, "seed": 1, "on_error": "skip", "max_skipped": 20}
    found = []
    for place, how in (("near", {"workers": 1}), ("far", {"cluster": treadle.Cluster(2)})):
        notes = tmp_path / place
        wrappers = [partial(Crashes, notes=str(notes))]
        stored = treadle.collect_dataset("CartPole-v1", out=tmp_path / f"{place} run", wrappers=wrappers, **run, **how)
        assert stored.summary is not None
        assert stored.summary.skipped
        tries = Counter(map(int, notes.read_text().split()))
        assert tries == dict.fromkeys((each["seed"] for each in stored.summary.skipped), 2)
        found.append((stored.summary.hash, [{**each, "cause": ""} for each in stored.summary.skipped]))
        assert {(each["kind"], each["step"], each["file"]) for each in stored.summary.skipped} == {
            ("SIGSEGV", 1, __file__)
        }
    assert found[0] == found[1]


class Raises(gym.Wrapper):
    def step(self, action: Any) -> Any:
        raise KeyError("the valve is stuck")


def test_what_raises_is_told_with_its_episode_and_node() -> None:
    with pytest.raises(treadle.CollectionFailed, match=r"episode 0 .*step 1: KeyError.*\(on node") as failed:
        list(treadle.collect("CartPole-v1", cluster=treadle.Cluster(nodes=2), wrappers=[Raises], episodes=20))
    assert failed.value.where.episode == 0
    assert f"(on node {failed.value.where.node})" in str(failed.value)
    assert isinstance(failed.value.__cause__, treadle.TaskRaised)


class Weights:
    """A policy with weights, asked about batches."""

    def __init__(self) -> None:
        self.weights = np.linspace(-1, 1, 4)

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        return (observations @ self.weights > 0).astype(np.int64)


def test_policies_over_nodes() -> None:
    wanted = told(
        treadle.collect("CartPole-v1", Weights(), episodes=40, worker_options=treadle.WorkerOptions(backend="serial"))
    )
    for inference in ("worker", "node"):
        made = treadle.collect(
            "CartPole-v1", Weights(), episodes=40, cluster=treadle.Cluster(nodes=2), inference=inference, ordered=True
        )
        assert told(made) == wanted, inference
    near = treadle.evaluate("CartPole-v1", Weights, 30)
    assert (
        treadle.evaluate("CartPole-v1", Weights, 30, cluster=treadle.Cluster(nodes=2), inference="node").scores
        == near.scores
    )
    with pytest.raises(UsageError, match="would send every observation"):
        treadle.collect("CartPole-v1", Weights(), episodes=1, cluster=treadle.Cluster(nodes=1), inference="caller")
    with pytest.raises(UsageError, match="goes with cluster="):
        treadle.collect("CartPole-v1", Weights(), episodes=1, inference="node")


def test_a_dataset_from_nodes_one_of_which_is_lost(ray_cluster: Any, tmp_path: Path) -> None:
    run: dict[str, Any] = {"episodes": 400, "seed": 2}
    near = treadle.collect_dataset("CartPole-v1", out=tmp_path / "near", workers=1, **run)
    seen = []

    def watch(now: Any) -> None:
        if now.episodes > 20 and not seen:
            seen.append(now.episodes)
            lose_a_node(ray_cluster)
            ray_cluster.add_node(num_cpus=1)

    far = treadle.collect_dataset(
        "CartPole-v1", out=tmp_path / "far", cluster=treadle.Cluster(nodes=3), progress=watch, **run
    )
    assert far.summary is not None
    assert near.summary is not None
    assert (far.summary.hash, far.summary.warnings) == (near.summary.hash, [])
    name = f"{near.summary.dataset}/data/main_data.hdf5"
    assert (tmp_path / "near" / name).read_bytes() == (tmp_path / "far" / name).read_bytes()


def test_a_node_is_lost_while_planning(ray_cluster: Any) -> None:
    """Batches with states go on elsewhere: rewards and states are those of workers at hand."""
    plans = np.random.default_rng(0).integers(0, 2, (30, 24))
    found = []
    for options in ({}, {"cluster": treadle.Cluster(3)}):
        with closing(treadle.plan.make("CartPole-v1", 3, on_failure="restart", **options)) as env:
            state, _, _ = env.reset()
            env.set_state(state if not found else found[0][0])
            states = [found[0][0] if found else state] * 24
            told = [states[0], []]
            for at, actions in enumerate(plans):
                states, observations, rewards, *_ = env.step_batch(actions, states, return_state=True)
                told[1].append((np.array(observations).tobytes(), list(rewards)))
                if options and at == 5:
                    lose_a_node(ray_cluster)
                    ray_cluster.add_node(num_cpus=1)
            found.append(told)
    assert found[0][1] == found[1][1]


def lose_a_worker(pool: Any) -> list[Any]:
    """A process of one node's pool is killed; returns what its and the other workers' actors are."""
    os.kill(pool.workers[1].pid, signal.SIGKILL)
    return [worker._actor for worker in pool.workers]


def check_replaced(pool: Any, actors: list[Any], pids: list[int]) -> None:
    """One process is another one, in the same actor."""
    assert [worker._actor for worker in pool.workers] == actors
    assert not any(actor.gone for actor in actors)
    assert [worker.pid == pid for worker, pid in zip(pool.workers, pids, strict=True)] == [True, False, True]
    assert pool.restarts == (0, 1, 0)


def test_a_worker_that_dies_while_sampling_is_replaced_on_its_node(caplog: pytest.LogCaptureFixture) -> None:
    """Three on two nodes; it has to be told the latest agent again."""
    given = {"seed": 5, "max_episode_length": 500, "ordered": True, "on_failure": "restart"}
    updates = [None, Weights(), None, Weights(), None]
    updates[1].weights[:] = 1.0  # type: ignore[union-attr]
    large = Weights()
    large.more = np.ones(100_000)  # type: ignore[attr-defined]  # goes along in a file
    updates[3] = large
    made: dict[type, list[Any]] = {}
    for kind in (treadle.LocalSampler, Two):
        where = {"n_workers": 3} if kind is Two else {}
        with kind(Weights(), lambda: gym.make("CartPole-v1"), **given, **where) as sampler:
            made[kind] = [sampler.obtain_samples(0, 500, update) for update in updates[:2]]
            if where:
                pool = sampler._sampling.pool
                pids = [worker.pid for worker in pool.workers]
                actors = lose_a_worker(pool)
                assert len({id(actor) for actor in actors}) == 2
            made[kind] += [sampler.obtain_samples(0, 500, update) for update in updates[2:]]
            while where and (pool.workers[1].changing or not pool.restarts[1]):  # its death takes a while to be heard
                made[kind].append(sampler.obtain_samples(0, 500, None))
            if where:
                check_replaced(pool, actors, pids)
            else:
                made[kind] += [sampler.obtain_samples(0, 500, None) for _ in range(20)]
    for one, other in zip(*made.values(), strict=False):
        assert one.observations.tobytes() == other.observations.tobytes()
    address = actors[1].machine.address
    assert f"worker 1 is replaced: the worker on node {address} was ended by SIGKILL" in caplog.text


def test_a_worker_that_dies_while_planning_is_replaced_on_its_node() -> None:
    plans = np.random.default_rng(0).integers(0, 2, (12, 24))
    found: list[Any] = []
    for options in ({}, {"cluster": treadle.Cluster(2)}):
        with closing(treadle.plan.make("CartPole-v1", 3, on_failure="restart", **options)) as env:
            state, _, _ = env.reset()
            first = found[0][0] if found else state
            states, told = [first] * 24, []
            for at, actions in enumerate(plans):
                if options and at == 5:
                    pool = env._workers.pool
                    pids = [worker.pid for worker in pool.workers]
                    actors = lose_a_worker(pool)
                states, observations, rewards, *_ = env.step_batch(actions, states, return_state=True)
                told.append((np.array(observations).tobytes(), list(rewards)))
            while options and pool.workers[1].changing:
                env.step_batch(plans[0], states)
            if options:
                check_replaced(pool, actors, pids)
            found.append((first, told))
    assert found[0][1] == found[1][1]


class ActsOnOne(gym.Wrapper):  # type: ignore[type-arg]
    """What action 1 does is said when it is made."""

    def __init__(self, env: gym.Env, deed: Callable[[], Any]) -> None:
        super().__init__(env)
        self.deed = deed

    def step(self, action: Any) -> Any:
        if action == 1:
            self.deed()
        return super().step(action)


def dies() -> None:
    os._exit(3)


def raises() -> None:
    raise KeyError("the valve is stuck")


@pytest.mark.parametrize(("deed", "kind"), [(dies, treadle.WorkerDied), (raises, treadle.TaskRaised)])
def test_planning_is_told_which_item_has_failed_and_on_which_node(deed: Callable[[], None], kind: type) -> None:
    wrappers = [partial(ActsOnOne, deed=deed)]
    actions = [0] * 24
    actions[13] = 1
    with closing(treadle.plan.make("CartPole-v1", 3, wrappers=wrappers, cluster=treadle.Cluster(nodes=2))) as env:
        state, _, _ = env.reset()
        with pytest.raises(kind) as failed:
            env.step_batch(actions, [state] * 24)
        workers = env._workers.pool.workers
        where = failed.value.where
        assert where.item == 13
        assert where.node == workers[where.worker]._actor.machine.address
        assert f"node {where.node})" in str(failed.value)
        assert "item 13 of" in str(failed.value)


def test_a_sampler_is_told_on_which_node_its_worker_has_died() -> None:
    given = {"seed": 5, "max_episode_length": 500, "n_workers": 2, "on_failure": "raise"}
    make = partial(ActsOnOne, gym.make("CartPole-v1"), dies)
    with Two(lambda batch: [1] * len(batch), make, **given) as sampler:
        with pytest.raises(treadle.WorkerDied) as failed:
            sampler.obtain_samples(0, 100, None)
        where = failed.value.where
        assert where.node == sampler._sampling.pool.workers[where.worker]._actor.machine.address


def test_a_constructor_that_raises_is_told_once_for_all_workers_of_a_node(tmp_path: Path) -> None:
    given = {"seed": 5, "max_episode_length": 500, "n_workers": 4}
    for name in "ab":
        Path(tmp_path, name).touch()
    with pytest.raises(treadle.StartupFailed, match="no third one") as failed:
        One(Weights(), lambda: BuiltOnce(str(tmp_path)), **given)
    slots = [each.where.slot for each in failed.value.failures]
    assert len(slots) == len(set(slots))


class BuiltOnce(gym.Wrapper):  # type: ignore[type-arg]
    """Can be made once by each process's predecessor only: a folder remembers."""

    def __init__(self, folder: str) -> None:
        if len(os.listdir(folder)) == 2:
            raise ValueError("no third one")
        Path(folder, str(os.getpid())).touch()
        super().__init__(gym.make("CartPole-v1"))


def test_a_constructor_that_raises_when_a_worker_is_replaced_is_told(tmp_path: Path) -> None:
    """With its own error, as soon as it has raised: nobody waits for such a worker."""
    given = {
        "seed": 5,
        "max_episode_length": 500,
        "on_failure": "restart",
        "worker_options": treadle.WorkerOptions(start_timeout=500.0),
    }
    with One(Weights(), lambda: BuiltOnce(str(tmp_path)), n_workers=2, **given) as sampler:
        sampler.obtain_samples(0, 100, None)
        os.kill(sampler._sampling.pool.workers[1].pid, signal.SIGKILL)
        with pytest.raises(ValueError, match="no third one"):
            while True:
                sampler.obtain_samples(0, 100, None)


def test_a_sampler_over_nodes_asks_its_agent_in_the_workers() -> None:
    made = {"seed": 5, "max_episode_length": 500, "n_workers": 1}
    for kind, where in ((treadle.RaySampler, "caller"), (treadle.MultiprocessingSampler, "node")):
        with pytest.raises(UsageError, match="is asked in its workers"):
            kind(Weights(), lambda: gym.make("CartPole-v1"), inference=where, **made)


def test_what_is_for_one_machine_is_refused() -> None:
    with pytest.raises(UsageError, match="backend='thread' is for one machine"):
        treadle.plan.make(
            "CartPole-v1", 2, cluster=treadle.Cluster(nodes=1), worker_options=treadle.WorkerOptions(backend="thread")
        )
    for after in ("2GB", (500, "2GB")):
        worn = treadle.WorkerOptions(recycle_after=after)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="recycle_after a size is for workers of this machine"):
            treadle.plan.make("CartPole-v1", 2, cluster=treadle.Cluster(nodes=1), worker_options=worn)


def test_an_actor_that_dies_alone_is_replaced_on_the_same_node(caplog: pytest.LogCaptureFixture) -> None:
    """Its workers end with it, and all of them are replaced."""
    with closing(treadle.plan.make("CartPole-v1", 2, on_failure="restart", cluster=treadle.Cluster(nodes=1))) as env:
        state, _, _ = env.reset()
        wanted = env.step_batch([0] * 8, [state] * 8)
        workers = env._workers.pool.workers
        before, node = workers[0]._actor, workers[0]._actor.machine.id
        pids = [worker.pid for worker in workers]
        os.kill(ancestor(pids[0]), signal.SIGKILL)
        for _ in range(3):
            made = env.step_batch([0] * 8, [state] * 8)
            assert np.array(made[1]).tobytes() == np.array(wanted[1]).tobytes()
        assert workers[0]._actor is workers[1]._actor is not before
        assert workers[0]._actor.machine.id == node


def ancestor(pid: int) -> int:
    """The process above it that is an actor."""
    while not Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::"):
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid


@pytest.mark.slow
def test_reinforce_learns_cartpole_over_two_nodes_one_of_which_is_lost(require: Any, tmp_path: Path) -> None:
    require("torch")
    script = Path(__file__).parents[2] / "examples" / "reinforce_cartpole.py"
    options = ["--nodes", "2", "--lose-one", "--seeds", "1", "--iterations", "30", "--save", "curve.json"]
    done = subprocess.run(
        [sys.executable, script, *options], cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert done.returncode == 0, done.stderr
    (run,) = json.loads((tmp_path / "curve.json").read_text())
    assert run["evaluation"] > 195
    assert "is replaced" in done.stderr


def test_the_command_line_takes_nodes(ray_cluster: Any, tmp_path: Path) -> None:
    command = ["collect", "CartPole-v1", "--episodes", "5", "--nodes", "2"]
    done = subprocess.run(
        [sys.executable, "-m", "treadle", *command, "--out", str(tmp_path / "out"), "--quiet"],
        capture_output=True, text=True, timeout=LIMIT, check=False,
        env=os.environ | {"RAY_ADDRESS": ray_cluster.address},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "summary.json").exists()


def test_a_loop_that_is_left_leaves_nothing() -> None:
    for episode in treadle.collect("CartPole-v1", cluster=treadle.Cluster(nodes=2)):
        if episode.index == 5:
            break


def test_an_address_is_that_of_the_cluster_that_the_program_is_connected_to(ray_cluster: Any) -> None:
    host, _, port = ray_cluster.address.rpartition(":")
    for same in ("auto", ray_cluster.address):
        cluster = treadle.Cluster(nodes=1, address=same)
        assert len(list(treadle.collect("CartPole-v1", episodes=2, cluster=cluster))) == 2
    for other in (f"{host}:{int(port) + 1}", "local", "10.255.255.1:6379", "no such host:6379"):
        with pytest.raises(UsageError, match=f"connected to Ray at {ray_cluster.address}, and address is '{other}'"):
            list(treadle.collect("CartPole-v1", episodes=2, cluster=treadle.Cluster(nodes=1, address=other)))


def test_what_answers_and_is_not_ray_is_told_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray itself would try for minutes, and end the process."""
    monkeypatch.setattr(ray_cluster_module, "CONNECT_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as mute, pytest.raises(OSError, match="timed out"):
        ray_cluster_module._check_answers(f"127.0.0.1:{mute.getsockname()[1]}")


def test_a_node_whose_cpus_are_with_others_is_told(
    ray_cluster: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import ray

    class Other:
        def here(self) -> None:
            """It has begun."""

    monkeypatch.setattr(treadle.nodes.worker, "SLOW_SECONDS", 0.0)
    others = [ray.remote(num_cpus=1)(Other).remote() for _ in ray_cluster.list_all_nodes()]
    ray.get([other.here.remote() for other in others])

    def end() -> None:
        """When it has been told, the others give their CPUs back."""
        limit = time.monotonic() + 60
        while "others may hold its CPUs" not in caplog.text and time.monotonic() < limit:
            time.sleep(0.05)
        for other in others:
            ray.kill(other)

    ends = threading.Thread(target=end)
    ends.start()
    assert len(list(treadle.collect("CartPole-v1", episodes=2, cluster=treadle.Cluster(nodes=1, cpus_per_node=1)))) == 2
    ends.join()
    assert "others may hold its CPUs" in caplog.text


def test_the_callers_mistakes_are_told_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="no node has cpus_per_node=64 CPUs"):
        list(treadle.collect("CartPole-v1", episodes=1, cluster=treadle.Cluster(nodes=1, cpus_per_node=64)))
    here = threading.Lock()
    with pytest.raises(UsageError, match="cannot be sent"):
        list(treadle.collect("CartPole-v1", lambda batch: here.locked(), episodes=1, cluster=treadle.Cluster(nodes=1)))
    version = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "0.0.1" if name == "treadle" else version(name))
    with pytest.raises(UsageError, match=r"treadle is 0\.1\.0 on [\d.]+ and 0\.0\.1 in the caller"):
        list(treadle.collect("CartPole-v1", episodes=1, cluster=treadle.Cluster(nodes=1)))


class Wide(gym.Env):
    """Episodes of a megabyte. The first one (`held`: its seed) waits for a file; each adds a byte to another file."""

    observation_space = gym.spaces.Box(0, 255, (100_000,), np.uint8)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, folder: str, held: int) -> None:
        self.folder, self.held = Path(folder), held

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.left = 9
        with open(self.folder / "begun", "ab") as begun:
            begun.write(b".")
        while seed == self.held and not (self.folder / "go").exists():
            time.sleep(0.01)
        return np.zeros(100_000, np.uint8), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        return np.zeros(100_000, np.uint8), 0.0, self.left == 0, False, {}


def test_what_waits_in_the_caller_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the first episode is not there all others wait for their turn: the nodes stop making more, and go on."""
    room, plenty = 100, 300  # megabytes, which are episodes; and what would be made soon if nothing stopped it
    monkeypatch.setattr("treadle.sample.collect.MOST_WAITING", room << 20)
    (first,) = treadle.collect(
        "CartPole-v1", episodes=1, seed=5, worker_options=treadle.WorkerOptions(backend="serial")
    )
    assert first.seed is not None
    begun, most = tmp_path / "begun", 0

    def watch() -> None:
        """Until nothing has been begun for a second, as there is little room: before that some node may be starting."""
        nonlocal most
        still, limit = 0, time.monotonic() + LIMIT
        while still < 20 and most < plenty and time.monotonic() < limit and not over.wait(0.05):
            now = begun.stat().st_size if begun.exists() else 0
            still = still + 1 if now == most and now > room // 2 else 0
            most = now
        (tmp_path / "go").touch()

    over = threading.Event()
    watcher = threading.Thread(target=watch)
    watcher.start()
    made = []
    try:
        for episode in treadle.collect(
            Wide, seed=5, cluster=treadle.Cluster(nodes=3), workers=1, infos=False,
            env_kwargs={"folder": str(tmp_path), "held": first.seed},
        ):  # fmt: skip
            made.append(episode.index)
            if len(made) == 2 * room:
                break
    finally:
        over.set()
        watcher.join()
    assert made == list(range(2 * room))
    assert room // 2 < most <= room + 8


FULL = """
import numpy as np, ray, treadle

class Heavy:
    def __init__(self):
        self.weights = np.ones(25_000_000)

    def __call__(self, observations):
        return np.zeros(len(observations), np.int64)

# what does not fit would go to the disk, were it not full from its first byte on
disk = {"local_fs_capacity_threshold": 0.0, "automatic_object_spilling_enabled": False}
given = {"num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False, "logging_level": "error"}
ray.init(address="local", log_to_driver=False, _system_config=disk, **given)
try:
    list(treadle.collect("CartPole-v1", Heavy(), episodes=2, cluster=treadle.Cluster(1), workers=1))
except treadle.UsageError as error:
    print(error)
"""


def test_a_full_object_store_is_told_in_a_line() -> None:
    done = subprocess.run([sys.executable, "-c", FULL], capture_output=True, text=True, timeout=LIMIT, check=False)
    (line,) = done.stdout.splitlines() or [done.stderr]
    assert line.startswith("Ray's object store is full, and 200,")
    assert "--object-store-memory" in line


DRIVER = """
import sys, ray, treadle
ray.init(address=sys.argv[1], logging_level="error", log_to_driver=False)
for episode in treadle.collect("CartPole-v1", cluster=treadle.Cluster(2), workers=1):
    if episode.index == 0:
        print("playing", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_drivers_end_is_everybodys(ray_cluster: Any, number: int, tmp_path: Path) -> None:
    """`no_residue` sees to it that no actor and no worker stays."""
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    with subprocess.Popen([sys.executable, script, ray_cluster.address], stdout=subprocess.PIPE) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == b"playing\n"
        driver.send_signal(number)
        driver.wait(100)


def test_a_cluster_of_ones_own_ends_with_the_run() -> None:
    """In a process that has not connected to Ray by itself."""
    script = (
        "import os, sys, treadle\n"
        "here = {'cluster': treadle.Cluster(1), 'workers': 1}\n"
        "print(sum(len(each) for each in treadle.collect('CartPole-v1', episodes=20, seed=1, **here)))\n"
        "import ray; print(ray.is_initialized())\n"
        "os.environ['RAY_ADDRESS'] = '127.0.0.1:1'\n"
        "try: list(treadle.collect('CartPole-v1', episodes=1, cluster=treadle.Cluster(1)))\n"
        "except treadle.UsageError as error: print(str(error)[:40])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=LIMIT, check=False)
    steps = sum(
        len(each)
        for each in treadle.collect(
            "CartPole-v1", episodes=20, seed=1, worker_options=treadle.WorkerOptions(backend="serial")
        )
    )
    assert done.stdout.split("\n")[:3] == [str(steps), "False", "Ray does not answer at 127.0.0.1:1: Conn"], done.stderr


ALONE = """
import sys, treadle, treadle.nodes.worker, treadle.record.summary
treadle.nodes.worker.SLOW_SECONDS = 0.0
here = {"cluster": treadle.Cluster(1), "workers": 1}
stored = treadle.collect_dataset("CartPole-v1", out=sys.argv[1], episodes=5, **here)
for row in treadle.record.summary.summary_rows(stored.summary):
    print(*row)
summary = stored.summary
print(summary.start_seconds > 0.5 and abs(summary.steps_per_second * summary.seconds - summary.steps) < 1e-6)
"""


def test_a_cluster_of_ones_own_is_started_outside_the_rate_and_nobody_else_is_suspected(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ALONE, tmp_path / "out"], capture_output=True, text=True, timeout=LIMIT, check=False
    )
    *rows, right = done.stdout.splitlines() or [done.stderr]
    assert right == "True"
    (start,) = (row for row in rows if row.startswith("start "))
    assert start.endswith("for Ray and the first node")
    assert "has not begun yet: Ray is still starting its process" in done.stderr
    assert "others may have" not in done.stderr


def test_a_page_of_the_docs_begins_a_cluster_of_its_own_beside_another(ray_cluster: Any) -> None:
    page = Path(__file__).parents[2] / "docs" / "scaling.md"
    (line,) = (line for line in page.read_text().splitlines() if line.startswith("ray.init("))
    script = f"import ray\n{line}\nprint(len(ray.nodes()), ray.cluster_resources()['CPU'])"
    done = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "RAY_ADDRESS": ray_cluster.address},
        capture_output=True, text=True, timeout=LIMIT, check=False,
    )  # fmt: skip
    assert done.stdout == "1 2.0\n", done.stderr
