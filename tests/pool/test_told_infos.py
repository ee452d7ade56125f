"""An info that nobody can hand on, or whose copying runs code that leaves, is its own slot's failure."""

import sys
import threading
from functools import partial
from typing import Any

import pytest
from kit import ACTIONS, EVERYWHERE, FAULTY, Pool, show, warm, with_fault

from treadle import VectorEnv, collect
from treadle.errors import TaskRaised
from treadle.sample.failed import CollectionFailed
from treadle.wire.messages import checked_info
from treadle.worker.options import WorkerOptions
from zoo.faults import Outcome, Sound


class Leaving:
    """Ends whoever pickles or copies it."""

    def __reduce__(self) -> Any:
        sys.exit(3)

    def __deepcopy__(self, memo: Any) -> Any:
        sys.exit(4)


class BadKey(str):
    __slots__ = ()

    def __repr__(self) -> str:
        sys.exit(5)


def itself(**more: Any) -> dict[str, Any]:
    info: dict[str, Any] = {"a": 1, **more}
    info["deeper"] = {"me": info}
    return info


def deep() -> dict[str, Any]:
    info: dict[str, Any] = {}
    for _ in range(5000):
        info = {"x": info}
    return info


ODD: dict[str, tuple[Any, str]] = {
    "list": (lambda: [1, 2], "an info must be a dict, got list"),
    "text": (lambda: "words", "an info must be a dict, got str"),
    "itself": (itself, "must not hold itself"),
    "itself and a lock": (lambda: itself(lock=threading.Lock()), "must not hold itself"),
    "deep": (deep, "recursion"),
    "leaving": (lambda: {"x": [Leaving()]}, r"\['x'\]\[0\] cannot be sent to the caller: 3"),
    "leaving, and so does its key": (lambda: {BadKey("k"): Leaving()}, r"\[<BadKey>\] cannot be sent to the caller"),
}


class Odd(Sound):
    """Its step and its reset return an odd info when they are told to."""

    def __init__(self, at: int = 3, what: str = "", end: bool = False) -> None:
        super().__init__(at)
        self.what, self.end = what, end

    def at_step(self, sound: Outcome) -> Outcome:
        return *sound[:2], self.end, False, ODD[self.what][0]()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = super().reset(seed=seed)
        return observation, info if not options else ODD[options["what"]][0]()

    def give(self, what: str) -> Any:
        return ODD[what][0]()


@pytest.mark.parametrize("setup", EVERYWHERE, ids=show)
@pytest.mark.parametrize("what", ODD)
@pytest.mark.parametrize("end", [False, True], ids=["within", "at the end"])
def test_it_is_one_slots_failure(what: str, end: bool, setup: dict[str, Any]) -> None:
    with Pool(with_fault(Odd, what=what, end=end), **setup) as pool:
        warm(pool, 2)
        with pytest.raises(TaskRaised, match=ODD[what][1]) as caught:
            pool.step(ACTIONS)
        assert (caught.value.where.slot, caught.value.where.phase) == (FAULTY, "step")
        assert caught.value.partial.rewards.tolist() == [3, 0, 3, 3]
        assert pool.lockstep.valid.tolist() == [True, False, True, True]
        with pytest.raises(TaskRaised, match=ODD[what][1]) as caught:
            pool.reset(slots=[FAULTY], options=[{"what": what}])
        assert (caught.value.where.slot, caught.value.where.phase) == (FAULTY, "reset")
        pool.reset(slots=[FAULTY])
        assert pool.step(ACTIONS).rewards.tolist() == [4, 1, 4, 4]


@pytest.mark.parametrize("setup", EVERYWHERE, ids=show)
@pytest.mark.parametrize("what", ["itself and a lock", "deep", "leaving"])
def test_results_of_calls_that_cannot_be_sent(what: str, setup: dict[str, Any]) -> None:
    """A result may be anything, one that holds itself included; only what cannot be copied is refused."""
    with Pool(with_fault(Odd), **setup) as pool:
        warm(pool, 1)
        with pytest.raises(TaskRaised, match=r"cannot be sent to the caller") as caught:
            pool.lockstep.call("give", what, slots=[FAULTY])
        assert caught.value.where.slot == FAULTY
        (result,) = pool.lockstep.call("give", "itself", slots=[FAULTY])
        assert result["deeper"]["me"] is result
        assert pool.step(ACTIONS).rewards.tolist() == [2] * 4


@pytest.mark.parametrize("backend", ["serial", "thread", "process"])
def test_a_vector_and_a_collection_name_it(backend: str) -> None:
    for what in ("list", "itself"):
        vector = VectorEnv([Sound, partial(Odd, what=what)], worker_options=WorkerOptions(backend=backend), workers=1)
        vector.reset(seed=1)
        vector.step([0, 0])
        vector.step([0, 0])
        with pytest.raises(TaskRaised, match=rf"slot 1 .*{ODD[what][1]}"):
            vector.step([0, 0])
        vector.close()
        with pytest.raises(CollectionFailed, match=rf"episode 0 .*step 3.*{ODD[what][1]}"):
            list(collect(partial(Odd, what=what), episodes=1, workers=1, worker_options=WorkerOptions(backend=backend)))


def test_the_same_dict_twice_does_not_hold_itself() -> None:
    inner: dict[str, Any] = {"x": 1}
    for _ in range(60):  # two at each level: 2 ** 60 ways down
        inner = {"left": inner, "right": inner}
    assert checked_info(inner) is inner
