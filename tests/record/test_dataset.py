"""A run that ends in a dataset: what is stored when it ends before its time. (The rest: `tests/cli`.)"""

from __future__ import annotations

import resource
import shutil
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces as gs

from treadle.errors import ArenaError, StartupFailed, UsageError
from treadle.record.merge import load
from treadle.record.parts import recover
from treadle.record.shards import merge_shards
from treadle.replays.replay import replay
from treadle.sample.failed import CollectionFailed
from treadle.sample.named import Named
from treadle.worker.options import WorkerOptions
from typed_run import collected


class Few(gym.Env[Any, Any]):
    """Episodes of three quick steps; after `LAST` of them in one process, whichever copy played them, reset raises."""

    observation_space = gs.Box(0, 3, (1,), np.float32)
    action_space = gs.Discrete(2)
    LAST = 57
    begun = 0  # of all that a worker has

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        Few.begun += 1
        if Few.begun > Few.LAST:
            raise RuntimeError("no more")
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> Any:
        self.t += 1
        return np.full(1, self.t, np.float32), 1.0, self.t == 3, False, {}


@pytest.mark.parametrize("rows", [1, 3])
def test_quick_episodes_that_wait_to_be_written_are_there_when_the_next_one_raises(rows: int, tmp_path: Path) -> None:
    with pytest.raises(CollectionFailed, match="no more") as caught:
        collected(Few, out=tmp_path, episodes=1000, workers=1, num_envs=rows)
    finished = caught.value.stored.finished
    assert Few.LAST - rows < finished <= Few.LAST, "all but those that the other copies had not ended"
    assert finished == caught.value.stored.summary.episodes == len(recover(tmp_path / ".parts"))


def test_numbers_may_be_numpys(tmp_path: Path) -> None:
    given = {"workers": 1}
    numpys = {"episodes": np.int64(2), "seed": np.int32(3), "max_episode_steps": np.uint8(5)}
    first = collected("CartPole-v1", out=tmp_path / "a", **given, **numpys)
    again = collected("CartPole-v1", out=tmp_path / "b", **given, episodes=2, seed=3, max_episode_steps=5)
    assert first.summary is not None
    assert again.summary is not None
    assert first.summary.hash == again.summary.hash
    assert collected("CartPole-v1", out=tmp_path / "a", resume=True, **given, **numpys).unchanged


class Starts(gym.Env[Any, Any]):
    """It begins where its reset's options say."""

    observation_space = gs.Box(-1, 1e6, (1,), np.float64)
    action_space = gs.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.at = float(options["at"])
        return np.array([self.at]), {}

    def step(self, action: int) -> Any:
        return np.array([self.at]), 1.0, True, False, {}


def at_tenfold(index: int) -> dict[str, Any]:
    return {"at": 10 * index}


@pytest.mark.parametrize("starts", [at_tenfold, [{"at": 10 * i} for i in range(6)]], ids=["function", "list"])
def test_each_episode_begins_with_its_options(starts: Any, tmp_path: Path) -> None:
    given = {"workers": 2, "verify": 2}
    collected(Starts, out=tmp_path, episodes=4, **given, reset_options=starts)
    grown = collected(Starts, out=tmp_path, episodes=6, **given, reset_options=starts, resume=True)
    assert grown.summary is not None
    assert not grown.summary.warnings
    seen = [each.observations[0, 0] for each in load(tmp_path).iterate_episodes()]
    assert seen == [0, 10, 20, 30, 40, 50]
    for other in (lambda index: {"at": index}, [{"at": 1}], None):
        with pytest.raises(UsageError, match="reset_options"):
            collected(Starts, out=tmp_path, episodes=9, **given, reset_options=other, resume=True)


def test_episodes_that_began_with_options_are_replayed_with_them(tmp_path: Path) -> None:
    given = {"workers": 1, "episodes": 3}
    (tmp_path / "starts.py").write_text("def of(index):\n    return {'at': index + 2}\n")
    starts = Named(f"{tmp_path / 'starts.py'}:of")
    collected(Starts, out=tmp_path / "named", **given, reset_options=starts)
    again = replay(tmp_path / "named", 1, trust=True, here=True)
    assert again.difference is None
    assert again.observation.tolist() == [3.0]
    collected(Starts, out=tmp_path / "listed", **given, reset_options=[{"at": 1}])
    with pytest.raises(UsageError, match="list of reset options"):
        replay(tmp_path / "listed", 1, trust=True, here=True)


def test_options_whose_file_has_changed_are_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "starts.py").write_text("def of(index):\n    return {'at': index + 2}\n")
    given = {"workers": 1, "reset_options": Named(f"{tmp_path / 'starts.py'}:of")}
    collected(Starts, out=tmp_path / "run", episodes=2, **given)
    (tmp_path / "starts.py").write_text("def of(index):\n    return {'at': index + 3}\n")
    collected(Starts, out=tmp_path / "run", episodes=3, resume=True, **given)
    assert any("starts.py has changed since the run was begun" in text for text in caplog.messages)


# -- names -------------------------------------------------------------------------------------------------------------

REACH = """
from gymnasium.envs.classic_control import CartPoleEnv as Reach

def make():
    return Reach()

def weak(observations):
    return (observations[:, 0] > 9).astype("int64")

def strong(observations):
    return (observations[:, 2] > 0).astype("int64")
"""
SMALL: dict[str, Any] = {"episodes": 2, "workers": 1, "max_episode_steps": 9}


@pytest.mark.parametrize(
    ("env", "policy", "name", "dataset"),
    [
        ("reach.py:make", "weak", None, "reach-make-weak-v0"),
        ("reach.py:make", "strong", None, "reach-make-strong-v0"),
        ("my.reach.py:Reach", None, None, "reach-Reach-random-v0"),
        ("gymnasium.envs.classic_control.cartpole:CartPoleEnv", None, None, "cartpole-CartPoleEnv-random-v0"),
        ("CartPole-v1", None, None, "CartPole-v1-random-v0"),
        ("reach.py:make", None, "mine", "mine-v0"),
        ("reach.py:make", None, "mine-v12", "mine-v12"),
        ("reach.py:make", None, "-v1", "-v1-v0"),
        ("CartPole-v1", None, "große_2", "große_2-v0"),
        ("CartPole-v1", None, "m" * 200, f"{'m' * 200}-v0"),
    ],
)
def test_a_dataset_is_named_by_its_user_or_by_file_function_and_policy(
    env: str, policy: str | None, name: str | None, dataset: str, tmp_path: Path
) -> None:
    import minari

    for file in ("reach.py", "my.reach.py"):
        (tmp_path / file).write_text(REACH)
    env = f"{tmp_path}/{env}" if ".py" in env else env
    policy = f"{tmp_path}/reach.py:{policy}" if policy else None
    run: dict[str, Any] = {"out": tmp_path / "o", "name": name, **SMALL}
    stored = collected(env, policy, **run)
    assert (stored.path, stored.dataset_id) == (tmp_path / "o" / "treadle" / dataset, f"treadle/{dataset}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "o"))
        assert minari.load_dataset(f"treadle/{dataset}").spec.dataset_id == f"treadle/{dataset}"
    again = collected(env, policy, **{**run, "name": None}, resume=True)
    assert (again.unchanged, again.dataset_id) == (True, stored.dataset_id), "a run that is resumed keeps its name"
    grown = collected(env, policy, **{**run, "name": None, "episodes": 3}, resume=True)
    assert (grown.path, grown.dataset_id) == (stored.path, stored.dataset_id)
    assert [path.name for path in (tmp_path / "o" / "treadle").iterdir() if path.is_dir()] == [dataset]


def test_a_run_that_an_older_version_has_begun_keeps_its_name(tmp_path: Path) -> None:
    """That was made of the function's name alone."""
    (tmp_path / "reach.py").write_text(REACH)
    play: dict[str, Any] = {"env": f"{tmp_path / 'reach.py'}:make", "out": tmp_path / "o", **SMALL}
    collected(**play, name="make-random-v0")
    assert collected(**play, resume=True).dataset_id == "treadle/make-random-v0"


@pytest.mark.parametrize(
    "name", ["", "a/b", "treadle/a-v0", "a b", "..", ".a", "a.npz", "a\n", "m" * 201, "ä" * 101, 7]
)
def test_what_is_no_name_is_refused_before_anything_is_there(name: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"name \(--name\) is letters, digits, - and _, such as .* at most 200 bytes"):
        collected("CartPole-v1", out=tmp_path / "o", name=name, **SMALL)
    assert not (tmp_path / "o").exists()


def test_a_run_that_is_resumed_takes_no_other_name(tmp_path: Path) -> None:
    run: dict[str, Any] = {"out": tmp_path, **SMALL}
    collected("CartPole-v1", name="one", **run)
    for same in ("one", "one-v0"):
        assert collected("CartPole-v1", name=same, resume=True, **run).unchanged
    with pytest.raises(UsageError, match=r"makes the dataset one-v0, not two-v0: resume=True \(--resume\) keeps"):
        collected("CartPole-v1", name="two", resume=True, **run)
    forced = collected("CartPole-v1", name="two", resume="replace", **run)
    assert [path.name for path in tmp_path.glob("treadle/*-v0")] == ["two-v0"]
    assert forced.path == tmp_path / "treadle" / "two-v0"


def test_shards_of_two_names_are_not_put_together(tmp_path: Path) -> None:
    run = {**SMALL}
    for i, name in enumerate(("one", "two", "one")):
        collected("CartPole-v1", out=tmp_path / str(i), name=name, shard=f"{min(i, 1)}/2", **run)
    with pytest.raises(UsageError, match=r"is of another run than .*: --name is '.*', not '.*'$"):
        merge_shards([tmp_path / "0", tmp_path / "1"], tmp_path / "out")
    merge_shards([tmp_path / "0", tmp_path / "2"], tmp_path / "out")
    assert (tmp_path / "out" / "treadle" / "one-v0").exists()


class Vandal(gym.Env[Any, Any]):
    """Its first episode is finished; in the second one the run's directory goes, and then it plays on for ever."""

    observation_space = gs.Box(0, 3, (1,), np.float32)
    action_space = gs.Discrete(2)

    def __init__(self, out: str, how: str) -> None:
        self.out, self.how, self.begun = Path(out), how, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.begun += 1
        if self.begun == 2:
            if self.how == "moved":
                self.out.rename(self.out.with_name("elsewhere"))
            else:
                shutil.rmtree(self.out / ".parts" if self.how == "parts" else self.out)
            if self.how == "replaced":
                (self.out / ".parts").mkdir(parents=True)
                (self.out / "run.json").write_text("somebody else's")
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> Any:
        time.sleep(0.001)  # it waits for a robot, say
        return np.zeros(1, np.float32), 1.0, self.begun == 1, False, {}


@pytest.mark.parametrize("how", ["removed", "moved", "replaced", "parts"])
@pytest.mark.parametrize("backend", ["serial", "thread", "process"])
def test_a_directory_that_goes_ends_the_run(backend: str, how: str, tmp_path: Path) -> None:
    out = tmp_path / "o"
    given: dict[str, Any] = {"episodes": 3, "workers": 1, "worker_options": WorkerOptions(backend=backend)}
    with pytest.raises(FileNotFoundError, match="removed, moved or replaced during the run: put it back") as told:
        collected(Vandal, out=out, env_kwargs={"out": str(out), "how": how}, **given)
    assert told.value.filename == str(out / ".parts" if how == "parts" else out)
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
    replaced = ["o", "o/.parts", "o/run.json"]
    assert how not in ("removed", "replaced") or left == (replaced if how == "replaced" else [])
    if how == "moved":
        assert [note.index for note in recover(tmp_path / "elsewhere" / ".parts")] == [0]


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_a_limit_on_the_size_of_files_is_named(backend: str, tmp_path: Path) -> None:
    """One that the arena of a pool and the messages of its workers fit in, and no thousand episodes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(CollectionFailed, match=r"File too large \(the limit on the size of a file, ulimit -f\)"):
            collected(
                "CartPole-v1",
                out=tmp_path,
                episodes=2000,
                workers=1,
                worker_options=WorkerOptions(backend=backend),
            )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("limit", [0, 4096])
def test_a_limit_that_nothing_can_start_with_is_named(limit: int, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        # whichever is first: messages are files, too
        with pytest.raises((ArenaError, OSError, StartupFailed), match="ulimit -f"):
            collected("CartPole-v1", out=tmp_path, episodes=2, workers=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_directory_without_a_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for call in (lambda: collected("CartPole-v1", out="", episodes=1), lambda: merge_shards(["a"], "")):
        with pytest.raises(UsageError, match="out is a path, got ''"):
            call()
    assert not list(tmp_path.iterdir())
