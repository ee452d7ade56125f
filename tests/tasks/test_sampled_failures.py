"""What goes wrong in a vector of tasks: who is told, what is kept, what can still be done."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces as gs
from small_tasks import (
    DIE,
    GATE,
    LEFT,
    NAP,
    RAISE,
    SLOW,
    CountSampler,
    CountTask,
    every_way,
    samplers,
    vector,
    where,
)

from treadle.errors import BrokenPool, StartupFailed, TaskRaised, UsageError, WorkerDied, WorkerTimeout
from treadle.pool import failure
from treadle.tasks.core import METRICS_KEY
from treadle.tasks.vectors import SingleProcessVectorSampledTasks, VectorSampledTasks
from treadle.worker.options import WorkerOptions

# -- bad input -------------------------------------------------------------------------------------------------------


@every_way
def test_wrong_arguments_send_nothing(how: str) -> None:
    with vector(how, samplers(steps=5)) as vec:
        for call in (
            lambda: vec.step([1, 1]),
            lambda: vec.step([1] * 4),
            lambda: vec.async_step([1]),
            lambda: vec.set_seeds([1]),
            lambda: vec.call(["add"] * 2),
            lambda: vec.call("add", [[1]]),
            lambda: vec.attr(["max_steps"]),
            lambda: vec.command("step", [1]),
        ):
            with pytest.raises(UsageError, match=r"for 3 unpaused slots. Nothing was sent"):
                call()
        for call, message in (
            (lambda: vec.step(None), "actions .* NoneType"),  # type: ignore[arg-type]
            (lambda: vec.step(1), "actions .* int"),  # type: ignore[arg-type]
            (lambda: vec.set_seeds(None), "seeds .* NoneType"),  # type: ignore[arg-type]
            (lambda: vec.set_seeds("123"), "seeds .* str"),  # type: ignore[arg-type]
            (lambda: vec.attr(5), "attribute names .* int"),  # type: ignore[arg-type]
            (lambda: vec.call("add", [1, 2, 3]), "list of arguments .* int"),
            (lambda: vec.command("call", ["add"] * 3), "pair .* 'add'"),
            (lambda: vec.command_at(0, "call"), "pair .* None"),
            (lambda: vec.command_at(0, "render", 5), "pair .* 5"),
        ):
            with pytest.raises(UsageError, match=message):
                call()
        for index in (slice(0, 2), 1.0, None):
            for call in (lambda: vec.step_at(index, 1), lambda: vec.pause_at(index)):  # noqa: B023 - called at once
                with pytest.raises(IndexError, match="no slot has the index"):
                    call()
        vec.pause_at(1)
        for call in (
            lambda: vec.step_at(2, 1),
            lambda: vec.next_task_at(5),
            lambda: vec.attr_at(-3, "max_steps"),
            lambda: vec.pause_at(2),
            lambda: vec.command_at("one", "attr", "max_steps"),
        ):
            with pytest.raises(IndexError, match=r"2 are unpaused \(1 of 3 are paused\)"):
                call()
        assert [r.observation["where"][2] for r in vec.step([1, 1])] == [1, 1]


@pytest.mark.parametrize("args", [None, []])
def test_no_samplers_at_all(args: Any) -> None:
    with pytest.raises(UsageError, match="greater than 0"):
        VectorSampledTasks(CountSampler, args)
    with pytest.raises(UsageError, match="greater than 0"):
        SingleProcessVectorSampledTasks(CountSampler, args)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_processes": 0}, "max_processes must be a whole number of at least 1"),
        ({"multiprocessing_start_method": "thread"}, "must be one of .*cannot find context for 'thread'"),
        ({"multiprocessing_start_method": None}, "Exactly one of"),
        ({"on_failure": "shrug"}, "on_failure must be"),
        ({"worker_options": WorkerOptions(backend="quantum")}, "backend must be one of"),
    ],
)
def test_arguments_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        VectorSampledTasks(CountSampler, samplers(1), **options)


def refusing(slot: int, **kwargs: Any) -> Any:
    """Raises in slot 1, and makes something that is no sampler in slot 2."""
    if slot == 1:
        raise ValueError("no sampler for slot 1")
    return [] if slot == 2 else CountSampler(slot, **kwargs)


@every_way
def test_samplers_that_cannot_be_made(how: str) -> None:
    with pytest.raises(StartupFailed, match=r"slot 1.*ValueError: no sampler for slot 1"):
        vector(how, samplers(2), refusing)
    with pytest.raises(StartupFailed, match=r"list, which is not a task sampler.*slot 0"):
        vector(how, [{"slot": 2}], refusing)
    with pytest.raises(RuntimeError, match=r"slot 1.*had `None` as it's first task") as caught:
        vector(how, samplers(3, tasks=[1, 0, 1]))
    assert isinstance(caught.value, StartupFailed)


def differing(slot: int) -> CountSampler:
    """Observation spaces that differ in their layout (slot 1) or only in their bounds (slot 2)."""
    sampler = CountSampler(slot)
    shape, high = ((5,), 9) if slot == 1 else ((4,), 5 if slot == 2 else 2**31)
    sampler.sensors[0].observation_space = gs.Box(-1, high, shape, np.int64)
    return sampler


@every_way
@pytest.mark.parametrize("other", [1, 2])
def test_observation_spaces_that_differ(how: str, other: int) -> None:
    with pytest.raises(NotImplementedError, match=r"observation spaces.*not equal.*slot 1"):
        vector(how, [{"slot": 0}, {"slot": other}], differing)


def without_spaces(slot: int) -> CountSampler:
    """Tasks without a Gymnasium space for anything, and observations of any kind."""

    class Bare(CountTask):
        observation_space = None
        action_space = "whatever you like"

        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.observation_space = None

        def get_observations(self, **kwargs: Any) -> Any:
            return [self.env["slot"], self.num_steps_taken()]

    sampler = CountSampler(slot)
    first, sampler.next_task = sampler.next_task, None  # type: ignore[assignment]

    def next_task(**kwargs: Any) -> Any:
        task = first(**kwargs)
        return Bare(task.env, task.sensor_suite, task.task_info, task.max_steps)

    sampler.next_task = next_task  # type: ignore[assignment]
    return sampler


@every_way
def test_tasks_without_spaces(how: str) -> None:
    with vector(how, samplers(2), without_spaces) as vec:
        assert vec.observation_space is None
        assert vec.action_spaces == ["whatever you like"] * 2
        assert [r.observation for r in vec.step([1, {"b": 2} and 2])] == [[0, 1], [1, 1]]
        vec.step([1, 1])
        ended = vec.step([1, 1])
        assert [r.observation for r in ended] == [[0, 0], [1, 0]]
        assert [r.info["final_observation"] for r in ended] == [[0, 3], [1, 3]]


# -- tasks that raise ------------------------------------------------------------------------------------------------


@every_way
def test_a_task_that_raises_is_alone(how: str) -> None:
    with vector(how, samplers(steps=9)) as vec:
        with pytest.raises(KeyError, match=r"slot 1.*no luck with this action") as caught:
            vec.step([1, RAISE, 1])
        error = caught.value
        assert isinstance(error, TaskRaised)
        assert error.where.slot == 1
        assert [each and each.observation["where"].tolist() for each in error.partial] == [
            [0, 1, 1, -1],
            None,
            [2, 1, 1, -1],
        ]
        with pytest.raises(UsageError, match=r"slot 1 moved on.*Nothing was sent"):
            vec.step([1, 1, 1])
        assert vec.call("num_steps_taken") == [1, 0, 1]  # it can be looked at
        vec.pause_at(1)
        assert [r.observation["where"][2] for r in vec.step([1, 1])] == [2, 2]
        vec.resume_all()
        with pytest.raises(UsageError, match="slot 1 moved on"):
            vec.step([1, 1, 1])
        assert where(vec.next_task_at(1)) == [[1, 2, 0, -1]]
        assert where([r.observation for r in vec.step([1, 1, 1])]) == [[0, 1, 3, -1], [1, 2, 1, -1], [2, 1, 3, -1]]


@every_way
def test_calls_that_fail_are_errors_and_no_deaths(how: str) -> None:
    with vector(how, samplers(steps=9)) as vec:
        with pytest.raises(ValueError, match=r"slot 1.*does not like") as caught:
            vec.call("fail")
        assert caught.value.where.slot == 1  # type: ignore[attr-defined]  # it is a TaskRaised too
        assert vec.call(["add"] * 3, [[1], [2], [3]]) == [1, 102, 203]
        with pytest.raises(AttributeError, match="slot 0"):
            vec.attr("no_such_thing")
        with pytest.raises(AttributeError, match="slot 2") as missing:
            vec.attr(["max_steps", "max_steps", "no_such_thing"])
        assert missing.value.partial == [9, 9, None]  # type: ignore[attr-defined]
        with pytest.raises(TypeError):
            vec.call_at(0, "add", [1, 2, 3])
        with pytest.raises(TypeError):
            vec.next_task(no_such_argument=1)
        assert [r.done for r in vec.next_task() and vec.step([1, 1, 1])] == [False] * 3


@pytest.mark.parametrize(
    "how",
    ["forkserver-2", *(each for each in LEFT if "thread" not in each.values[0] and "serial" not in each.values[0])],
)
def test_results_that_cannot_be_sent(how: str) -> None:
    with vector(how, samplers(steps=9)) as vec:
        with pytest.raises(TaskRaised, match=r"slot 0.*result\['lock'\] cannot be sent") as caught:
            vec.call(["lock", "num_steps_taken", "num_steps_taken"])
        assert caught.value.partial == [None, 0, 0]
        assert [r.reward for r in vec.step([1, 2, 3])] == [1.0, 2.0, 3.0]


@every_way
def test_a_step_that_failed_unseen(how: str) -> None:
    with vector(how, samplers(steps=9)) as vec:
        vec.async_step([1, RAISE, 1])
        assert vec.attr("max_steps") == [9, 9, 9]
        with pytest.raises(KeyError, match="slot 1"):
            vec.wait_step()
        assert where(vec.next_task_at(1)) == [[1, 2, 0, -1]]
        assert len(vec.step([1, 1, 1])) == 3


class NoSecond(CountSampler):
    """Raises where its second task is due."""

    def next_task(self, force_advance_scene: bool = False) -> CountTask | None:
        if self.slot == 1 and self.number == 1:
            self.number += 1
            raise OSError("the scene cannot be loaded")
        return super().next_task(force_advance_scene)


@every_way
def test_a_sampler_that_raises(how: str) -> None:
    with vector(how, samplers(steps=1), NoSecond) as vec:
        with pytest.raises(OSError, match=r"slot 1.*the scene cannot be loaded") as caught:
            vec.step([1, 1, 1])
        assert [each and each.observation["where"][1] for each in caught.value.partial] == [2, None, 2]  # type: ignore[attr-defined]
        assert where(vec.next_task_at(1)) == [[1, 3, 0, -1]]
        assert [r.done for r in vec.step([1, 1, 1])] == [True] * 3


class NoneAfterReset(CountSampler):
    """Forgets its tasks when it is reset."""

    def reset(self) -> None:
        self.number = 99


@every_way
def test_a_sampler_without_tasks_after_its_reset(how: str) -> None:
    with vector(how, samplers(steps=1, tasks=2), NoneAfterReset) as vec:
        with pytest.raises(RuntimeError, match=r"slot 0.*no new tasks"):
            vec.reset_all()
        assert vec.num_unpaused_tasks == 3


# -- deaths and deadlines --------------------------------------------------------------------------------------------


def test_a_death_is_an_end_of_file_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.lockstep.recover.LAST_CALL", 20.0)  # the others are to answer, however late
    with vector("forkserver-n", samplers(steps=9)) as vec:
        with pytest.raises(EOFError, match=r"slot 1.*exited with code 3") as caught:
            vec.step([1, DIE, 1])
        assert isinstance(caught.value, WorkerDied)
        assert [each and each.reward for each in caught.value.partial] == [1.0, None, 1.0]
        with pytest.raises(EOFError, match="broken by") as later:
            vec.step([1, 1, 1])
        assert isinstance(later.value, BrokenPool)


@pytest.mark.parametrize(
    "how",
    [
        "forkserver-n",
        pytest.param("spawn-n", marks=pytest.mark.slow),
        pytest.param("fork-n", marks=pytest.mark.slow),
    ],
)
def test_late_answers_are_dropped(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = tmp_path / "gate"
    monkeypatch.setenv(GATE, str(gate))
    with vector(how, samplers(steps=9), read_timeout=2.0) as vec:
        with pytest.raises(TimeoutError, match="slot 1") as caught:
            vec.step([1, SLOW, 1])
        assert isinstance(caught.value, WorkerTimeout)
        assert [each and each.observation["where"][2] for each in caught.value.partial] == [1, None, 1]
        with pytest.raises(UsageError, match="slot 1"):
            vec.step([1, 1, 1])
        vec.pause_at(1)
        assert vec.call("num_steps_taken") == [1, 1]
        gate.touch()
        vec.resume_all()
        first = None
        while first is None:  # it may still wait: its next task comes when it has answered
            try:
                first = where(vec.next_task_at(1))
            except TimeoutError:
                continue
        results = vec.step([4, 5, 6])
        assert [r.reward for r in results] == [4.0, 5.0, 6.0]
        assert results[1].observation["where"][2] == 1
        assert [r.observation["where"][2] for r in (results[0], results[2])] == [2, 2]


def test_a_limit_in_the_caller_is_only_measured() -> None:
    with vector("thread-n", samplers(steps=9), read_timeout=NAP / 3) as vec:
        assert [r.reward for r in vec.step([1, SLOW, 1])] == [1.0, float(SLOW), 1.0]


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No waiting between restarts."""
    monkeypatch.setattr(failure, "backoff", lambda k: 0.0)


@pytest.mark.parametrize("processes", ["n", "2"])
def test_restarted_samplers_go_on_where_they_were(processes: str, at_once: None) -> None:
    args = samplers(steps=2, tasks=4, sensors=("where", "nested", "mission"))
    with vector(f"forkserver-{processes}", args, on_failure="restart") as vec:
        vec.step([1, 1, 1])
        vec.step([1, 1, 1])  # all at their second task
        vec.next_task_at(0)  # slot 0 at its third
        before = vec.step([1, 1, 1])
        assert where([r.observation for r in before]) == [[0, 3, 1, -1], [1, 2, 1, -1], [2, 2, 1, -1]]
        cut = vec.step([1, 1, DIE])
        result = cut[2]
        assert (result.reward, result.done) == (0.0, True)
        assert result.info["aborted"]
        assert result.info["restarted"]
        assert result.info["truncated"]
        assert METRICS_KEY not in result.info
        assert result.info["final_observation"]["where"].tolist() == [2, 2, 1, -1]
        assert result.observation["where"].tolist() == [2, 3, 0, -1]
        assert result.observation["mission"] == "go to 3"
        assert cut[0].observation["where"].tolist() == [0, 4, 0, -1]
        vec.step([1, 1, 1])
        ended = vec.step([1, 1, 1])
        assert ended[2].observation["where"].tolist() == [2, 4, 0, -1]
        assert "restarted" not in ended[2].info
        assert ended[0].observation is None
        assert vec.stats().restarts.tolist() == [0, 0, 1]


def test_a_restart_keeps_seeds_and_resets(at_once: None) -> None:
    with vector("forkserver-n", samplers(2, steps=2, tasks=3), on_failure="restart") as vec:
        vec.next_task()
        vec.set_seeds([70, 80])
        vec.reset_all()
        vec.step([1, 1])
        vec.step([1, 1])
        vec.set_seeds([71, 81])
        cut = vec.step([DIE, 1])
        assert where([r.observation for r in cut]) == [[0, 3, 0, 71], [1, 2, 1, 80]]
        vec.step([1, 1])
        assert where([r.observation for r in vec.step([1, 1])]) == [None, [1, 3, 1, 81]]


def test_streams_without_end_get_a_seed_of_their_own(at_once: None) -> None:
    with vector("forkserver-n", samplers(2, steps=2), on_failure="restart") as vec:
        vec.set_seeds([7, 8])
        vec.next_task()
        cut = vec.step([DIE, 1])
        slot, _, steps, seed = cut[0].observation["where"].tolist()
        assert (slot, steps) == (0, 0)
        assert seed not in (-1, 7, 8)
        assert cut[1].observation["where"].tolist() == [1, 2, 1, 8]


def test_a_death_in_a_call_and_while_paused(at_once: None) -> None:
    with vector("forkserver-n", samplers(steps=3, tasks=5), on_failure="restart") as vec:
        vec.step([1, 1, 1])
        with pytest.raises(EOFError, match="slot 1"):
            vec.command("call", [("num_steps_taken", None), ("harm", [DIE]), ("num_steps_taken", None)])
        vec.pause_at(1)
        assert [r.observation["where"][2] for r in vec.step([1, 1])] == [2, 2]
        vec.resume_all()
        results = vec.step([1, 1, 1])
        assert results[1].info["restarted"]
        assert results[1].observation["where"].tolist() == [1, 2, 1, -1]


def test_dropped_slots(at_once: None) -> None:
    with vector("forkserver-n", samplers(steps=3), on_failure="drop") as vec:
        vec.step([1, 1, 1])
        results = vec.step([1, DIE, 1])
        assert results[1].observation is None
        assert results[1].done
        assert results[1].info["dropped"]
        assert results[1].info["final_observation"]["where"].tolist() == [1, 1, 1, -1]
        with pytest.raises(UsageError, match="slot 1"):
            vec.step([1, 1, 1])
        first, second, third = vec.next_task()
        assert second is None
        assert where([first, third]) == [[0, 2, 0, -1], [2, 2, 0, -1]]
        vec.reset_all()
        for call in (lambda: vec.step([1, 1, 1]), lambda: vec.step_at(1, 1), vec.get_observations):
            with pytest.raises(UsageError, match="slot 1 was dropped when its worker died"):
                call()
        assert vec.stats().episodes.tolist() == [3, 1, 3]
        vec.pause_at(1)
        assert where([r.observation for r in vec.step([1, 1])]) == [[0, 1, 1, -1], [2, 1, 1, -1]]


# -- arguments of both generations -----------------------------------------------------------------------------------


def test_older_and_newer_positions() -> None:
    context = __import__("multiprocessing").get_context("spawn")
    with VectorSampledTasks(CountSampler, samplers(1, steps=1), False, None, context, None, False, 1) as vec:
        assert vec.mp_ctx is context
        assert vec.step([1])[0].done
        assert vec.max_processes == 1
    with VectorSampledTasks(CountSampler, samplers(1), None, True, "forkserver", None, False, 1, 33) as vec:
        assert vec.read_timeout == 33
        assert vec.mp_ctx.get_start_method() == "forkserver"
        assert vec.command_at(0, "sampler_attr", "mp_ctx").get_start_method() == "forkserver"
    with SingleProcessVectorSampledTasks(CountSampler, samplers(1), True, False, None) as single:
        assert single.mp_ctx is None
        assert single.should_log is False
        assert single.command_at(0, "sampler_attr", "mp_ctx") is None
    with pytest.raises(TypeError, match="by position"):
        SingleProcessVectorSampledTasks(CountSampler, samplers(1), None, True, False, 1)


def plain_sampler(slot: int) -> CountSampler:
    """Takes no `mp_ctx`."""
    return CountSampler(slot)


def test_a_context_alone_is_enough() -> None:
    context = __import__("multiprocessing").get_context("spawn")
    with VectorSampledTasks(plain_sampler, samplers(1), mp_ctx=context, should_log=False) as vec:
        assert vec.mp_ctx is context
    for method in ("fork", "forkserver", "spawn"):  # as AllenAct: also where they agree
        with pytest.raises(UsageError, match=r"Exactly one of .* \(mp_ctx starts by 'spawn'"):
            VectorSampledTasks(plain_sampler, samplers(1), mp_ctx=context, multiprocessing_start_method=method)
    with pytest.raises(UsageError, match="Exactly one of"):
        VectorSampledTasks(plain_sampler, samplers(1), multiprocessing_start_method=None)


@pytest.mark.parametrize("how", ["single", "thread-2", "forkserver-2"])
def test_failures_tell_which_task_it_was(how: str) -> None:
    for done in (0, 1):
        with vector(how, samplers(2, steps=3)) as vec:
            for _ in range(3 * done + 1):
                vec.step([1, 1])
            with pytest.raises(KeyError, match=rf"slot 1 .* in step 2 of episode {done}"):
                vec.step([1, RAISE])
        if how == "forkserver-2":
            with vector(how, samplers(2, steps=3)) as vec:
                for _ in range(3 * done + 1):
                    vec.step([1, 1])
                with pytest.raises(WorkerDied, match=rf"slot 1 .* in step 2 of episode {done}"):
                    vec.step([1, DIE])


@pytest.mark.parametrize("kind", [VectorSampledTasks, SingleProcessVectorSampledTasks])
def test_one_dict_is_no_list_of_dicts(kind: Any) -> None:
    with pytest.raises(UsageError, match=r"one dict for each sampler, got one dict with 'slot'. Put it into a list"):
        kind(CountSampler, {"slot": 0})


@pytest.mark.parametrize("how", ["thread-1", "thread-2", "forkserver-1"])
def test_an_interrupt_in_a_constructor_is_its_slots_own(how: str) -> None:
    """No death, and not the first slot's."""
    with pytest.raises(StartupFailed, match=r"^slot 1 \(worker 0.*KeyboardInterrupt: now") as caught:
        vector(how, samplers(n=3), make=Interrupts)
    assert not isinstance(caught.value, EOFError)


class Interrupts(CountSampler):
    """Its second one raises what Ctrl-C does."""

    def __init__(self, slot: int, **kwargs: Any) -> None:
        if slot == 1:
            raise KeyboardInterrupt("now")
        super().__init__(slot, **kwargs)


def test_an_interrupt_is_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with vector("single", samplers(2, steps=2, tasks=5)) as vec:

        def interrupted(self: Any, action: Any) -> None:
            raise KeyboardInterrupt

        vec.step([1, 1])
        with monkeypatch.context() as patch:
            patch.setattr(CountTask, "harm", interrupted)
            with pytest.raises(KeyboardInterrupt):
                vec.step([1, 1])
        with pytest.raises(UsageError, match="slot 0 moved on"):
            vec.step([1, 1])
        assert where(vec.next_task()) == [[0, 2, 0, -1], [1, 2, 0, -1]]
        assert len(vec.step([1, 1])) == 2


def test_samplers_are_closed(tmp_path: Path) -> None:
    def make(slot: int) -> CountSampler:
        sampler = CountSampler(slot)
        sampler.close = lambda: (tmp_path / str(slot)).touch()  # type: ignore[method-assign]
        return sampler

    with vector("forkserver-2", samplers(3), make):
        assert os.listdir(tmp_path) == []
    assert sorted(os.listdir(tmp_path)) == ["0", "1", "2"]


def test_gymnasium_ids_of_the_caller_are_known_in_workers() -> None:
    gym.register("Mine-v0", "gymnasium.envs.classic_control:CartPoleEnv")
    try:
        from treadle.tasks.gym import GymTaskSampler

        with VectorSampledTasks(GymTaskSampler, [{"env": "Mine-v0"}] * 2, should_log=False, max_processes=1) as vec:
            assert vec.step([0, 1])[0].observation["observation"].shape == (4,)
    finally:
        del gym.registry["Mine-v0"]
