"""The same scenarios on every backend: in the caller, in threads, in processes started in three ways, with one worker
for all slots, two, or one for each."""

from __future__ import annotations

import queue
import time
from typing import Any

import numpy as np
import pytest
from small_tasks import OWN_WORDS, Lengths, every_way, samplers, vector, where

from treadle.errors import UsageError
from treadle.tasks.core import CALLBACK_KEY, METRICS_KEY
from treadle.tasks.vectors import SampledTasks


def numbers(vec: SampledTasks) -> list[int]:
    """Which task each unpaused slot is at."""
    return [info["number"] for info in vec.attr("task_info")]


@every_way
def test_the_done_step_belongs_to_two_tasks(how: str) -> None:
    with vector(how, samplers(steps=[2, 3, 2], tasks=5), callback_sensors=[Lengths()]) as vec:
        assert vec.num_unpaused_tasks == 3
        assert where(vec.get_observations()) == [[slot, 1, 0, -1] for slot in range(3)]
        first = vec.step([1, 2, 3])
        assert where([r.observation for r in first]) == [[slot, 1, 1, -1] for slot in range(3)]
        assert [r.reward for r in first] == [1.0, 2.0, 3.0]
        assert [r.done for r in first] == [False] * 3
        assert [r.info for r in first] == [{"terminated": False, "truncated": False}] * 3
        second = vec.step([1, 2, 7])
        assert [r.done for r in second] == [True, False, True]
        assert where([r.observation for r in second]) == [[0, 2, 0, -1], [1, 1, 2, -1], [2, 2, 0, -1]]
        assert [r.reward for r in second] == [1.0, 2.0, 7.0]
        by_limit, solved = second[0].info, second[2].info
        assert by_limit["final_observation"]["where"].tolist() == [0, 1, 2, -1]
        assert (by_limit["terminated"], by_limit["truncated"]) == (False, True)
        assert (solved["terminated"], solved["truncated"]) == (True, False)
        assert by_limit[METRICS_KEY]["ep_length"] == 2
        assert by_limit[METRICS_KEY]["reward"] == 2.0
        assert by_limit[CALLBACK_KEY] == {"lengths": {"slot": 0, "length": 2}}
        assert set(second[1].info) == {"terminated", "truncated"}
        assert numbers(vec) == [2, 1, 2]


@every_way
def test_exhaustion_at_different_times(how: str) -> None:
    with vector(how, samplers(steps=1, tasks=[1, 2, 3])) as vec:
        assert where([r.observation for r in vec.step([0, 0, 0])]) == [None, [1, 2, 0, -1], [2, 2, 0, -1]]
        with pytest.raises(UsageError, match=r"slot 0: its sampler is exhausted.*Nothing was sent"):
            vec.step([0, 0, 0])
        with pytest.raises(UsageError, match="slot 0"):
            vec.attr("task_info")
        assert vec.command("sampler_attr", ["length"] * 3) == [0, 0, 1]  # a sampler is there all the same
        vec.pause_at(0)
        results = vec.step([0, 0])
        assert where([r.observation for r in results]) == [None, [2, 3, 0, -1]]
        assert results[0].done
        assert results[0].info[METRICS_KEY]["ep_length"] == 1
        vec.pause_at(0)
        assert vec.step([0])[0].observation is None
        vec.pause_at(0)
        assert vec.num_unpaused_tasks == 0
        assert vec.step([]) == []
        assert vec.next_task() == []
        assert vec.render("raw_rgb_list") == []
        vec.resume_all()
        vec.set_seeds([5, 6, 7])
        assert vec.reset_all() is None
        assert where(vec.get_observations()) == [[0, 1, 0, 5], [1, 1, 0, 6], [2, 1, 0, 7]]


@every_way
@pytest.mark.parametrize("order", [[2, 1, 0], [0, 0, 0], [1, 0], [1]])
def test_pausing(how: str, order: list[int]) -> None:
    with vector(how, samplers(steps=50)) as vec:
        live = [0, 1, 2]
        for at in order:
            vec.pause_at(at)
            live.pop(at)
            results = vec.step([1] * len(live))
            assert [r.observation["where"][0] for r in results] == live
            assert vec.num_unpaused_tasks == len(live)
            assert vec.call("num_steps_taken") == [r.observation["where"][2] for r in results]
        vec.resume_all()
        steps = [order_of(order, slot) for slot in range(3)]
        assert where(vec.get_observations()) == [[slot, 1, steps[slot], -1] for slot in range(3)]
        assert vec.stats().steps.tolist() == steps


def order_of(order: list[int], slot: int) -> int:
    """How many steps a slot took before it was paused."""
    live = [0, 1, 2]
    for count, at in enumerate(order):
        if live.pop(at) == slot:
            return count
    return len(order)


@every_way
def test_metrics_wait_in_a_queue_that_nobody_has_given(how: str) -> None:
    with vector(how, samplers(n=2, steps=2)) as vec:
        assert vec.metrics_out_queue.empty()
        results = [vec.step([1, 1]) for _ in range(2)][1]
        assert [vec.metrics_out_queue.get_nowait() for _ in results] == [r.info[METRICS_KEY] for r in results]


@every_way
def test_next_task_in_mid_episode_has_no_metrics(how: str) -> None:
    seen: Any = queue.Queue()
    with vector(how, samplers(steps=3), metrics_out_queue=seen) as vec:
        vec.step([1, 1, 1])
        assert where(vec.next_task(force_advance_scene=True)) == [[slot, 2, 0, -1] for slot in range(3)]
        assert vec.attr("task_info")[1]["forced"] is True
        assert where(vec.next_task_at(1)) == [[1, 3, 0, -1]]
        assert numbers(vec) == [2, 3, 2]
        assert seen.empty()
        vec.step([1, 1, 1])
        vec.step([1, 1, 1])
        vec.step([1, 1, 1])
        assert [seen.get_nowait()["task_info"]["number"] for _ in range(3)] == [2, 3, 2]


@every_way
def test_a_step_under_way_and_other_calls(how: str) -> None:
    with vector(how, samplers(steps=2)) as vec:
        vec.async_step([1, 2, 3])
        assert vec.call("add", [[5], [6, 7], [8]]) == [5, 113, 208]
        assert where(vec.get_observations()) == [[slot, 1, 1, -1] for slot in range(3)]
        vec.async_step([4, 5, 7])
        assert [r.reward for r in vec.step([9, 9, 9])] == [9.0, 9.0, 9.0]
        assert [r.reward for r in vec.wait_step()] == [1.0, 2.0, 3.0]
        second = vec.wait_step()
        assert [r.reward for r in second] == [4.0, 5.0, 7.0]
        assert [r.done for r in second] == [True, True, True]
        with pytest.raises(UsageError, match="without an async_step"):
            vec.wait_step()
        vec.async_step([1, 1, 1])
        vec.pause_at(1)  # the step's results are of all that were unpaused then
        assert len(vec.wait_step()) == 3


@every_way
def test_many_agents_and_other_actions(how: str) -> None:
    with vector(how, samplers(steps=2, agents=2)) as vec:
        results = vec.step([[1, 2], 5, np.int64(3)])
        assert [r.reward for r in results] == [[3.0, 4.0], [5.0, 6.0], [3.0, 4.0]]
        assert results[1].info["shared"] == 1
        metrics = [r.info[METRICS_KEY] for r in vec.step([1, 1, 1])]
        assert [each["reward"] for each in metrics] == [5.0, 7.0, 5.0]  # means over the agents
        assert vec.attr("cumulative_reward") == [0.0] * 3


@every_way
def test_nested_observations_are_snapshots(how: str) -> None:
    with vector(how, samplers(steps=3, sensors=("where", "nested"))) as vec:
        first = vec.step([1, 1, 1])
        second = vec.step([1, 1, 1])
        for t, results in ((1, first), (2, second)):
            for slot, result in enumerate(results):
                nested = result.observation["nested"]
                assert nested["picture"].shape == (4, 5, 3)
                assert (nested["picture"] == 10 * slot + t).all()
                assert nested["level"] == t
                assert type(nested["level"]) is int
                assert nested["share"].shape == ()
                assert nested["share"].dtype == np.float32
        ended = vec.step([1, 1, 1])
        final = ended[2].info["final_observation"]["nested"]
        assert (final["picture"] == 23).all()
        assert final["level"] == 3
        assert (ended[2].observation["nested"]["picture"] == 20).all()


@every_way
def test_what_fits_no_row_goes_by_message(how: str) -> None:
    with vector(how, samplers(steps=4, tasks=2, sensors=("where", "mission", "sloppy"))) as vec:
        shown = [each["sloppy"] for each in vec.get_observations()]
        assert all(value.dtype == np.float32 for value in shown)
        wanted = [np.array([0.1, 1e300]), None, [1, "two"], np.zeros(2, np.float32)]
        for t in range(4):
            results = vec.step([1, 1, 1])
            assert [r.observation["mission"] for r in results] == [f"go to {1 + t // 3}"] * 3
            last = [r.observation if t < 3 else r.info["final_observation"] for r in results]
            assert where(last) == [[slot, 1, t + 1, -1] for slot in range(3)]
            for each in last:
                np.testing.assert_equal(each["sloppy"], wanted[t])
                assert type(each["sloppy"]) is type(wanted[t])
                assert getattr(each["sloppy"], "dtype", None) == getattr(wanted[t], "dtype", None)


@every_way
def test_done_is_not_always_the_end(how: str) -> None:
    with vector(how, samplers(steps=9)) as vec:
        results = vec.step([8, 6, 5])
        assert [r.done for r in results] == [True, False, False]
        assert [r.info["truncated"] for r in results] == [False, False, False]
        assert numbers(vec) == [1, 1, 1]
        assert "final_observation" not in results[0].info
        results[2].info["shared"] = 2  # the task's own info is another one
        assert vec.step([5, 5, 5])[2].info["shared"] == 1


@every_way
def test_a_tasks_own_words_are_no_news(how: str) -> None:
    """An object was dropped, a plan aborted: what a task tells is never taken for what the vector has to tell."""
    metrics: queue.Queue[Any] = queue.Queue()
    kept = {f"task_{name}": value for name, value in OWN_WORDS.items() if name not in ("held", "task_held")}
    kept |= {"task_held": 9, "task_task_held": 5}
    with vector(how, samplers(n=2, steps=3), metrics_out_queue=metrics, callback_sensors=[Lengths()]) as vec:
        for t in range(3):
            mine, other = vec.step([6, 1])
            assert (mine.reward, mine.done) == (6.0, t == 2)
            assert mine.observation["where"].tolist() == ([0, 1, t + 1, -1] if t < 2 else [0, 2, 0, -1])
            assert {key: value for key, value in mine.info.items() if key.startswith("task_")} == kept
            ours = {key: value for key, value in mine.info.items() if not key.startswith("task_")}
            if t < 2:
                assert ours == other.info == {"terminated": False, "truncated": False}
                assert metrics.empty()
            else:
                assert (ours["terminated"], ours["truncated"]) == (False, True)
                assert ours["final_observation"]["where"].tolist() == [0, 1, 3, -1]
                assert ours[METRICS_KEY]["ep_length"] == 3
                assert ours[CALLBACK_KEY]["lengths"] == {"slot": 0, "length": 3}
                assert "aborted" not in ours
                assert "dropped" not in ours
        assert metrics.qsize() == 2
        assert vec.stats().steps.tolist() == [3, 3]
        assert vec.step([1, 1])[0].observation["where"].tolist() == [0, 2, 1, -1]
        assert OWN_WORDS["aborted"] == 1
        assert "task_aborted" not in OWN_WORDS


@pytest.mark.parametrize("how", ["single", "serial-1", "thread-2"])
def test_objects_of_the_callers_own_process_are_no_copies(how: str) -> None:
    """A handle that cannot be pickled is handed over, and what is changed is changed."""
    args = samplers(n=2, steps=9, sensors=("where", "nested"))
    with vector(how, args) as vec:
        handle = vec.call("lock")[1]["lock"]
        assert not handle.locked()
        for env in (vec.attr_at(1, "env"), vec.command_at(1, "sampler_attr", "env")):
            assert env is vec.attr("env")[1]
        vec.attr_at(1, "task_info")["number"] = 70
        assert numbers(vec) == [1, 70]
        vec.attr_at(0, "env")["handle"] = handle
        assert vec.attr("env")[0]["handle"] is handle
        assert vec.command_at(0, "call_sampler", ("own_env", None)) is vec.attr_at(0, "env")
        first = vec.get_observations()
        again = vec.call("get_observations")
        vec.step([1, 1])
        assert [each["nested"]["picture"].max() for each in [*first, *again]] == [0, 10, 0, 10], "the caller's to keep"


@every_way
def test_commands(how: str) -> None:
    with vector(how, samplers(steps=3, tasks=4)) as vec:
        assert vec.command(["step", "next_task", "attr"], [2, {"force_advance_scene": True}, "max_steps"])[2] == 3
        assert vec.command_at(0, "step", 1).observation["where"].tolist() == [0, 1, 2, -1]
        assert vec.command_at(1, "next_task")["where"].tolist() == [1, 3, 0, -1]
        assert vec.command("call_sampler", [("twice", [4])] * 3) == [8, 8, 8]
        assert vec.command_at(2, "sampler_attr", "length") == 3
        assert vec.command("seed", [1, 2, 3]) == ["done"] * 3
        assert vec.command("reset") == ["done"] * 3
        assert where(vec.get_observations()) == [[slot, 1, 0, slot + 1] for slot in range(3)]
        assert vec.command_at(1, "observation_space") == vec.observation_space
        assert vec.command("action_space") == vec.action_spaces
        assert vec.command_at(0, "render", ((), {"mode": "rgb", "add": 4}))[0, 0, 0] == 5
        assert vec.step_at(2, 7)[0].done
        assert vec.call_at(1, "add", [1, 2]) == 103
        assert vec.attr_at(-1, "max_steps") == 3
        with pytest.raises(NotImplementedError, match="is not a command"):
            vec.command_at(0, "explode")
        image = vec.render("rgb_array")
        assert image.shape == (8, 10, 3)
        assert image[::4, ::5, 0].tolist() == [[1, 2], [3, 0]]
        with pytest.raises(NotImplementedError):
            vec.render("ascii")


@every_way
def test_slots_that_wait_for_each_other(how: str) -> None:
    with vector(how, samplers(steps=[1, 2, 3], tasks=[2, 1, 2]), auto_resample_when_done=False) as vec:
        first = vec.step([1, 1, 1])
        assert [r.done for r in first] == [True, False, False]
        assert first[0].observation["where"].tolist() == [0, 1, 1, -1]
        assert METRICS_KEY in first[0].info
        assert first[0].info["truncated"]
        with pytest.raises(UsageError, match="slot 0: its task is done"):
            vec.step([1, 1, 1])
        with pytest.raises(UsageError, match="slot 0"):
            vec.step_at(0, None)
        second = vec.step([None, 1, 1])
        assert (second[0].reward, second[0].done, second[0].info["held"]) == (0.0, True, True)
        assert second[0].observation["where"].tolist() == [0, 1, 1, -1]
        assert METRICS_KEY not in second[0].info
        third = vec.step([None, None, 1])
        assert where([r.observation for r in third]) == [[0, 2, 0, -1], None, [2, 2, 0, -1]]
        assert where([r.info["final_observation"] for r in third]) == [[0, 1, 1, -1], [1, 1, 2, -1], [2, 1, 3, -1]]
        assert [r.reward for r in third] == [0.0, 0.0, 1.0]
        assert METRICS_KEY in third[2].info
        vec.pause_at(1)
        assert [r.done for r in vec.step([1, 1])] == [True, False]
        vec.pause_at(0)  # it is done, and paused: it does not hold up the others, nor move on
        for _ in range(2):
            last = vec.step([1])
        assert last[0].observation is None
        vec.resume_all()
        assert vec.attr_at(0, "task_info")["number"] == 2


@every_way
def test_nothing_of_the_caller_is_changed(how: str) -> None:
    args = samplers(steps=2)
    before = [dict(each) for each in args]
    with vector(how, args, callback_sensors=[Lengths()]) as vec:
        actions = [1, 1, 1]
        vec.step(actions)
        contexts = vec.command("sampler_attr", ["number"] * 3)
        assert contexts == [1, 1, 1]
        assert actions == [1, 1, 1]
    assert args == before
    vec.close()
    assert vec.is_closed
    with pytest.raises(UsageError, match="closed"):
        vec.step([1, 1, 1])


def test_steps_that_are_begun_and_waited_for_are_judged() -> None:
    with vector("forkserver-2", samplers(steps=9)) as vec:
        vec.step([1, 1, 1])
        for _ in range(3):
            vec.async_step([1, 1, 1])
            time.sleep(0.02)
            vec.wait_step()
        found = vec._measured.judged()
    assert found.calls == 3
    assert found.elapsed >= 0.06
    assert found.away >= 0.06
