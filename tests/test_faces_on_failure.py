"""`on_failure`, `max_restarts` and `step_timeout` mean the same through every face: the same environment dies, hangs or
raises under each of them, and each face says the same error, or goes on and says so in its own terms."""

import os
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces as gs

import treadle
from treadle.errors import TaskRaised, WorkerDied, WorkerError, WorkerTimeout
from treadle.worker.options import PoolOptions

FAULTS = ("dies", "hangs", "raises")
DEADLY = ("dies", pytest.param("hangs", marks=pytest.mark.slow))
LIMIT = 0.3  # seconds of a step, where one hangs and nothing else is looked at
LONG = 2.0  # where one hangs and the others are to go on
PATIENCE = 60.0  # where nothing hangs
LENGTH, STEPS = 5, 12


class Fated(gym.Env[np.ndarray, int]):
    """Observes its step and its last seed. The first of all that come to their third step do what is in the file."""

    observation_space = gs.Box(-1, 2**62, (2,), np.float64)
    action_space = gs.Discrete(2)

    def __init__(self, order: str) -> None:
        self.order = order
        self.t, self.given = 0, -1

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.t, self.given = 0, -1 if seed is None else seed % 1000
        return self.observe(), {}

    def step(self, action: int) -> Any:
        self.t += 1
        if self.t == 3:
            self.meet_fate()
        return self.observe(), 1.0, self.t >= LENGTH, False, {}

    def observe(self) -> np.ndarray:
        return np.array([self.t, self.given], np.float64)

    def meet_fate(self) -> None:
        try:
            os.rename(self.order, f"{self.order}.met")  # one of them alone
        except FileNotFoundError:
            return
        fate = Path(f"{self.order}.met").read_text()
        if fate == "dies":
            os._exit(5)
        if fate == "hangs":
            threading.Event().wait()
        raise ValueError("told to raise")


def still(observations: Any) -> np.ndarray:
    return np.zeros(len(observations), np.int64)


class Still:
    def reset(self, do_resets: Any = None) -> None:
        pass

    def get_action(self, observation: Any) -> tuple[int, dict[str, Any]]:
        return 0, {}


# -- the faces: (environment, pool options) -> what has come, (cut rows, rows of slots that were dropped) -------------


@dataclass
class Seen:
    """`again`: what a sound run returns as well, as everything lost is made again. The others tell of it: `cut` rows,
    and of them those of which nothing follows, `dropped`."""

    again: Any = None
    cut: int = 0
    dropped: int = 0


def told(*infos: Any) -> Seen:
    """Of the columns of steps."""
    seen = Seen()
    for each in infos:  # where a slot moves on within the step, the end of its episode is told beside its final row
        final = each.get("final_info", {})
        cut = np.asarray(each.get("aborted", False)) | final.get("aborted", False)
        seen.cut += int(cut.sum())
        seen.dropped += int((cut & (each.get("dropped", False) | np.asarray(final.get("dropped", False)))).sum())
    return seen


def vector(env: Any, mode: str, options: dict[str, Any], **more: Any) -> treadle.VectorEnv:
    return treadle.VectorEnv([env] * 3, workers=3, inline=0, autoreset_mode=mode, **more, **options)


def lockstep(mode: str, env: Any, **options: Any) -> Seen:
    with closing(vector(env, mode, options)) as envs:
        envs.reset(seed=0)
        infos = []
        for _ in range(STEPS):
            _, _, terminated, truncated, info = envs.step(np.zeros(3, np.int64))
            infos.append(info)
            if mode == "Disabled" and (terminated | truncated).any():
                envs.reset(options={"reset_mask": terminated | truncated})
        return told(*infos)


def rollout(mode: str, env: Any, **options: Any) -> Seen:
    with closing(vector(env, mode, options)) as envs:
        return told(*envs.rollout(still, steps=STEPS).infos)


def partial_batches(env: Any, **options: Any) -> Seen:
    with closing(vector(env, "NextStep", options)) as envs:
        envs.async_reset(seed=0)
        infos = []
        for _ in range(3 * STEPS):
            infos.append(envs.recv(min=1)[4])
            envs.send(np.zeros(len(infos[-1]["env_id"]), np.int64), infos[-1]["env_id"])
        while envs._partial is not None and envs._partial.open:
            infos.append(envs.recv(min=1)[4])
        return told(*infos)


def tasks(env: Any, step_timeout: float, **options: Any) -> Seen:
    samplers = treadle.VectorSampledTasks(
        treadle.tasks.GymTaskSampler, [{"env": env} for _ in range(3)], read_timeout=step_timeout, **options
    )
    with closing(samplers) as envs:
        infos: list[dict[str, Any]] = []
        for _ in range(STEPS):
            last = [dict(each.info or {}) for each in envs.step([0] * envs.num_unpaused_tasks)]
            infos += last
            for slot, info in enumerate(last):
                if "dropped" in info:
                    envs.pause_at(slot)
        return Seen(
            cut=sum("aborted" in info for info in infos),
            dropped=sum("dropped" in info and "aborted" in info for info in infos),
        )


def sampler(ordered: bool, env: Any, **options: Any) -> Seen:
    with treadle.MultiprocessingSampler(
        Still(), env, max_episode_length=LENGTH, n_workers=2, seed=0, ordered=ordered, **options
    ) as sampling:
        if ordered:
            batch = sampling.obtain_samples(0, 6 * LENGTH, None)
            return Seen(again=(list(batch.lengths), batch.observations.tolist()))
        if options["on_failure"] == "drop":  # whoever is left has to do it
            batch = sampling.obtain_samples(0, 6 * LENGTH, None)
        else:  # all have to, else nobody might wait for the one that has failed
            batch = sampling.obtain_exact_episodes(3, None)
    return Seen(again=list(batch.lengths))


def planning(env: Any, **options: Any) -> Seen:
    with treadle.ParallelEnv(treadle.GymPlanEnv, env, n_workers=2, **options) as planned:
        state, _, _ = planned.reset()
        found = planned.step_batch([0] * 6, states=[state] * 6, dt=[LENGTH] * 6)
    return Seen(again=[np.asarray(each, np.float64).tolist() for each in found[1:4]])


def collecting(env: Any, **options: Any) -> Seen:
    episodes = list(treadle.collect(env, still, episodes=6, workers=2, **options))
    return Seen(again=[(each.index, each.seed, each.observations.tolist()) for each in episodes])


def evaluating(env: Any, **options: Any) -> Seen:
    found = treadle.evaluate(env, still, 6, workers=2, **options)
    return Seen(again=found.scores)


MARKED: dict[str, Callable[..., Seen]] = {
    "step, next step": partial(lockstep, "NextStep"),
    "step, same step": partial(lockstep, "SameStep"),
    "step, disabled": partial(lockstep, "Disabled"),
    "rollout, same step": partial(rollout, "SameStep"),
    "rollout, disabled": partial(rollout, "Disabled"),
    "partial batches": partial_batches,
    "tasks": tasks,
}
MADE_AGAIN: dict[str, Callable[..., Seen]] = {
    "sampler by arrival": partial(sampler, False),
    "sampler by index": partial(sampler, True),
    "planning": planning,
    "collect": collecting,
    "evaluate": evaluating,
    "policy in the caller": partial(collecting, inference="caller", num_envs=4),
}
FACES = {**MARKED, **MADE_AGAIN}
KINDS = {"dies": WorkerDied, "hangs": WorkerTimeout, "raises": TaskRaised}
SAYS = {"dies": "exited with code 5", "hangs": f"(limit {LIMIT:g} s)", "raises": "ValueError: told to raise"}


@pytest.fixture
def fated(tmp_path: Path) -> Callable[[str], Any]:
    def arm(fate: str) -> Any:
        order = tmp_path / "order"
        if fate:
            order.write_text(fate)
        return partial(Fated, str(order))

    return arm


@pytest.fixture(autouse=True)
def who_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PoolOptions.__init__.__kwdefaults__, "close_timeout", 0.2)


def played(face: str, env: Any, on_failure: str, limit: float = PATIENCE, **fields: Any) -> Seen:
    return FACES[face](
        env,
        on_failure=on_failure,
        step_timeout=limit,
        worker_options=treadle.WorkerOptions(**fields),
    )


@cache
def sound(face: str) -> Seen:
    """What it returns where nothing fails."""
    return played(face, partial(Fated, "nowhere"), "raise")


def failed(face: str, env: Any, on_failure: str, **options: Any) -> WorkerError:
    """What it raises, as the engine put it (collecting says it in its own words, and keeps this as the cause)."""
    with pytest.raises(WorkerError) as caught:
        played(face, env, on_failure, **options)
    error = caught.value
    return error.__cause__ if isinstance(error.__cause__, WorkerError) else error


def only_of_a_hang(fate: str, limit: float) -> float:
    """A short limit: where nothing hangs, a sound step that is late must not be taken for a hang."""
    return limit if fate == "hangs" else PATIENCE


def check(error: WorkerError, fate: str) -> None:
    assert isinstance(error, KINDS[fate]), repr(error)
    assert SAYS[fate] in str(error)
    assert error.where.worker is not None
    assert error.where.pid is not None


@pytest.mark.parametrize("fate", FAULTS)
@pytest.mark.parametrize("face", FACES)
def test_under_raise_the_worker_is_named_and_what_became_of_it(face: str, fate: str, fated: Any) -> None:
    check(failed(face, fated(fate), "raise", limit=only_of_a_hang(fate, LIMIT)), fate)


@pytest.mark.parametrize("on_failure", ["restart", "drop"])
@pytest.mark.parametrize("fate", DEADLY)
@pytest.mark.parametrize("face", MARKED)
def test_rows_that_are_lost_are_told_once(face: str, fate: str, on_failure: str, fated: Any) -> None:
    seen = played(face, fated(fate), on_failure, only_of_a_hang(fate, LONG))
    assert (seen.cut, seen.dropped) == (1, int(on_failure == "drop"))


@pytest.mark.parametrize("on_failure", ["restart", "drop"])
@pytest.mark.parametrize("fate", DEADLY)
@pytest.mark.parametrize("face", MADE_AGAIN)
def test_what_has_a_number_is_made_again(face: str, fate: str, on_failure: str, fated: Any) -> None:
    assert played(face, fated(fate), on_failure, only_of_a_hang(fate, LONG)) == sound(face)


@pytest.mark.parametrize("fate", DEADLY)
@pytest.mark.parametrize("face", FACES)
def test_restarts_that_are_used_up_end_it(face: str, fate: str, fated: Any) -> None:
    error = failed(face, fated(fate), "restart", limit=only_of_a_hang(fate, LIMIT), max_restarts=0)
    check(error, fate)
    assert "no restart: WorkerOptions(max_restarts=0) in ten minutes are used up" in error.__notes__


@pytest.mark.parametrize("on_failure", ["restart", "drop"])
@pytest.mark.parametrize("face", FACES)
def test_what_raises_is_raised_as_the_worker_lives(face: str, on_failure: str, fated: Any) -> None:
    """But by a sampler, whose `on_failure` is about both; as the references' do."""
    env = fated("raises")
    if face.startswith("sampler"):
        assert played(face, env, on_failure) == sound(face)
    else:
        check(failed(face, env, on_failure), "raises")


@pytest.mark.parametrize("face", FACES)
def test_another_word_is_refused(face: str, fated: Any) -> None:
    with pytest.raises(treadle.UsageError, match="on_failure must be 'raise', 'restart' or 'drop', got"):
        played(face, fated(""), "ignore")
