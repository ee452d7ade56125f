"""Episodes that fail and are left out: which, how often they are tried first, and what never is."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import assume, given, strategies

from treadle import seeding
from treadle.cli.options import amount
from treadle.errors import UsageError, Where, WorkerDied, WorkerTimeout
from treadle.play.episode import Episode
from treadle.sample import failed, skipping
from treadle.sample.collect import collect
from treadle.sample.failed import CollectionFailed, cause_of, crash_of
from treadle.sample.skipping import Cause, Skipped, Skipping, grouped, remedy
from treadle.worker.options import WorkerOptions

BAD = (3, 11, 29)  # of 30
BAD_SEEDS = [seeding.episode_env_seed(0, index) for index in BAD]
SKIP: dict[str, Any] = {"episodes": 30, "on_error": "skip"}


class Walk(gym.Env):
    """Episodes of 3 to 8 steps; `strike` is called in step 2 (or the reset) of bad ones."""

    observation_space = gym.spaces.Box(-1e9, 1e9, (2,), np.float64)
    action_space = gym.spaces.Discrete(3)
    in_reset = False

    def __init__(self, folder: Path | None = None) -> None:
        self.folder, self.begun = folder, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.begun += 1
        self.t, self.end, self.seed, self.bad = 0, int(self.np_random.integers(3, 9)), seed, seed in BAD_SEEDS
        if self.bad and self.in_reset:
            self.note()
        return self.look(), {}

    def look(self) -> np.ndarray:
        return np.array([self.t, self.np_random.random()])

    def step(self, action: Any) -> Any:
        self.t += 1
        if self.bad and self.t == 2:
            self.note()
        return self.look(), 1.0, self.t >= self.end, False, {}

    def note(self) -> None:
        if self.folder is not None:
            with open(self.folder / str(BAD_SEEDS.index(self.seed)), "a") as file:
                file.write(f"{os.getpid()}\n")
        self.strike()

    def strike(self) -> None:
        return


class Raises(Walk):
    def strike(self) -> None:
        raise ValueError("boom")


class RaisesInReset(Raises):
    in_reset = True


class Exits(Walk):
    def strike(self) -> None:
        raise SystemExit(3)


class WrongObservation(Walk):
    def look(self) -> Any:
        return "nothing" if self.bad and self.t == 2 else super().look()


class WrongReward(Walk):
    def step(self, action: Any) -> Any:
        observation, reward, *rest = super().step(action)
        return observation, "much" if self.bad else reward, *rest


class Dies(Walk):
    def strike(self) -> None:
        os._exit(3)


class Hangs(Walk):
    """In one of the bad episodes alone: each hang takes as long as the limit."""

    def strike(self) -> None:
        if self.seed == BAD_SEEDS[0]:
            time.sleep(3600)


def key(episode: Episode) -> tuple[int, bytes]:
    return episode.index, episode.observations.tobytes()


@pytest.fixture
def each_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every failure has a line of its own, however fast they come."""
    monkeypatch.setattr(failed, "APART", 0.0)


@pytest.fixture(scope="module")
def good() -> list[tuple[int, bytes]]:
    """All episodes but the bad ones."""
    return [
        key(episode)
        for episode in collect(Walk, episodes=30, worker_options=WorkerOptions(backend="serial"))
        if episode.index not in BAD
    ]


# -- what raises -------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("each_line")
@pytest.mark.parametrize("env", [Raises, RaisesInReset, Exits, WrongObservation, WrongReward])
@pytest.mark.parametrize(
    "options",
    [
        {"workers": 1},
        {"workers": 3},
        {"workers": 2, "num_envs": 6},
        {"workers": 2, "ordered": False},
        {"workers": 1, "fresh_env": True},
        {"worker_options": WorkerOptions(backend="serial"), "workers": 1, "num_envs": 2},
        {"worker_options": WorkerOptions(backend="thread"), "workers": 2},
    ],
    ids=str,
)
def test_what_raises_is_left_out_and_the_others_are_what_they_are(
    env: type[Walk], options: dict[str, Any], good: list[tuple[int, bytes]], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "treadle"):
        found = [key(episode) for episode in collect(env, **SKIP, **options)]
    assert sorted(found) == good
    assert found == good or not options.get("ordered", True)
    lines = sorted((r.getMessage() for r in caplog.records), key=lambda line: int(line.split()[1]))
    assert [line.split(" (seed")[0] for line in lines] == [f"episode {index}" for index in BAD]
    assert all(line.endswith("; it is left out") for line in lines)


def test_an_episode_is_tried_again_in_a_new_environment_only_where_the_old_one_was_used(tmp_path: Path) -> None:
    list(collect(lambda: Raises(tmp_path), workers=1, **SKIP))
    assert [len((tmp_path / str(i)).read_text().split()) for i in range(3)] == [2, 2, 2]
    list(collect(lambda: Raises(tmp_path), workers=1, fresh_env=True, **SKIP))
    assert [len((tmp_path / str(i)).read_text().split()) for i in range(3)] == [3, 3, 3]


class WornOut(Walk):
    """Every fifth episode of one environment fails."""

    def step(self, action: Any) -> Any:
        if self.begun % 5 == 0:
            raise OSError("out of handles")
        return super().step(action)


def test_a_worn_environment_is_not_taken_for_a_bad_episode(caplog: pytest.LogCaptureFixture) -> None:
    found = [key(episode) for episode in collect(WornOut, workers=2, **SKIP)]
    assert found == [
        key(episode) for episode in collect(Walk, episodes=30, worker_options=WorkerOptions(backend="serial"))
    ]
    assert not caplog.records


class CannotBeBuiltAgain(Raises):
    def __init__(self, folder: Path) -> None:
        super().__init__()
        (folder / "built").mkdir()


def refuse(observations: np.ndarray) -> np.ndarray:
    if observations[0, 0] == 2:
        raise KeyError("weights")
    return np.zeros(len(observations), np.int64)


class RefusesToStart:
    def reset(self, seed: int) -> None:
        if seed == seeding.episode_policy_seed(0, BAD[0]):
            raise KeyError("start")

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        return np.zeros(len(observations), np.int64)


@pytest.mark.parametrize("fresh_env", [False, True])
def test_what_a_policy_or_a_constructor_raises_is_never_left_out(fresh_env: bool, tmp_path: Path) -> None:
    for policy, said in ((refuse, "policy before step 3: KeyError: 'weights'"), (RefusesToStart(), "'start'")):
        with pytest.raises(CollectionFailed, match=said) as caught:
            list(collect(Walk, policy, workers=2, fresh_env=fresh_env, **SKIP))
        assert caught.value.where.phase == "policy"
        assert "on_error" not in str(caught.value)
    with pytest.raises(CollectionFailed, match="init: FileExistsError") as caught:
        list(collect(lambda: CannotBeBuiltAgain(tmp_path), workers=1, fresh_env=fresh_env, **SKIP))
    assert caught.value.where.phase == "init"


@pytest.mark.parametrize("env", [Raises, RaisesInReset])
def test_the_failure_that_ends_a_run_names_the_option(env: type[Walk]) -> None:
    with pytest.raises(CollectionFailed, match=r'on_error="skip" \(--on-error skip\) leaves such an episode out'):
        list(collect(env, episodes=30, workers=1))


# -- deaths and hangs --------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("each_line")
@pytest.mark.parametrize("rows", [1, 3])
def test_a_death_is_tried_three_times_on_fresh_workers(
    rows: int, good: list[tuple[int, bytes]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = collect(lambda: Dies(tmp_path), workers=2, num_envs=2 * rows, **SKIP)
    assert [key(episode) for episode in found] == good
    for i in range(3):
        pids = (tmp_path / str(i)).read_text().split()
        assert len(pids) == len(set(pids)) >= 3
    lost = [r.getMessage() for r in caplog.records if r.getMessage().endswith("it is left out")]
    assert sorted(int(line.split()[1]) for line in lost) == list(BAD)
    assert all("has cost 3 fresh workers their lives; the last time the worker exited with code 3" in x for x in lost)


@pytest.fixture
def one_death(monkeypatch: pytest.MonkeyPatch) -> None:
    """Says that an episode has failed."""
    monkeypatch.setattr(skipping, "DEATHS", 1)


def test_how_many_workers_an_episode_costs(good: list[tuple[int, bytes]], tmp_path: Path, one_death: None) -> None:
    found = collect(lambda: Dies(tmp_path), workers=1, **SKIP)
    assert [key(episode) for episode in found] == good
    for i in range(3):
        assert len((tmp_path / str(i)).read_text().split()) <= 2  # the worn worker's, and a fresh one's
    with pytest.raises(CollectionFailed, match=r"has cost a fresh worker its life: .*--on-error skip"):
        list(collect(Dies, episodes=30, workers=1))


class Crashes(Walk):
    """At one line."""

    def strike(self) -> None:
        import ctypes

        ctypes.string_at(0)


class CrashesElsewhere(Crashes):
    """In one step and at another line each time, as far as there are lines."""

    def strike(self) -> None:
        import ctypes

        assert self.folder is not None
        tries = len((self.folder / str(BAD_SEEDS.index(self.seed))).read_text().split())
        if tries == 1:
            ctypes.string_at(1)
        elif tries == 2:
            ctypes.string_at(2)
        elif tries == 3:
            ctypes.string_at(3)
        else:
            ctypes.string_at(4)


class CrashesLater(Crashes):
    """At one line and in another step each time: episodes with these seeds have three steps at least."""

    def step(self, action: Any) -> Any:
        assert self.folder is not None
        if self.bad:
            path = self.folder / str(BAD_SEEDS.index(self.seed))
            tries = len(path.read_text().split()) if path.exists() else 0
            if self.t == tries % 3:
                self.note()
        return super().step(action) if not self.bad else (self.tick(), 1.0, False, False, {})

    def tick(self) -> np.ndarray:
        self.t += 1
        return self.look()


ASKED = {"inference": "caller", "num_envs": 4, "workers": 2}


@pytest.mark.parametrize("options", [{"workers": 1}, {"workers": 3}, ASKED], ids=str)
def test_a_crash_at_the_same_place_is_tried_twice(
    options: dict[str, Any], good: list[tuple[int, bytes]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = collect(lambda: Crashes(tmp_path), "random" if options is not ASKED else still, **SKIP, **options)
    assert [episode.index for episode in found] == [index for index, _ in good]
    assert [len((tmp_path / str(i)).read_text().split()) for i in range(3)] == [2, 2, 2]
    assert "workers their lives; the last time the worker was ended by SIGSEGV in step 2" in caplog.text


@pytest.mark.parametrize("env", [CrashesElsewhere, CrashesLater])
def test_crashes_at_other_places_are_tried_as_other_deaths(
    env: type[Walk], good: list[tuple[int, bytes]], tmp_path: Path
) -> None:
    found = collect(lambda: env(tmp_path), workers=2, **SKIP)
    assert [key(episode) for episode in found] == good
    assert all(len((tmp_path / str(i)).read_text().split()) in (3, 4) for i in range(3)), "three fresh workers"


def still(observations: np.ndarray) -> np.ndarray:
    return np.zeros(len(observations), np.int64)


HERE, THERE = ("here",), ("there",)


@pytest.mark.parametrize(
    ("most", "deaths", "enough"),
    [
        (3, [(True, None)] * 2, 0),
        (3, [(True, None)] * 3, 3),
        (3, [(False, None), (True, None), (True, None)], 0),
        (3, [(True, HERE)], 0),
        (3, [(True, HERE), (True, HERE)], 2),
        (3, [(False, HERE), (True, HERE)], 2),
        (3, [(True, HERE), (True, THERE)], 0),
        (3, [(True, HERE), (True, THERE), (True, HERE)], 3),
        (1, [(True, HERE)], 1),
        (1, [(False, HERE), (True, None)], 1),
        (2, [(False, HERE), (True, HERE)], 2),
        (5, [(True, HERE)] * 3, 0),
        (5, [(True, HERE)] * 4, 4),
    ],
)
def test_when_an_episode_is_given_up(most: int, deaths: list[tuple[bool, Any]], enough: int) -> None:
    assert Skipping(True, deaths=most).hopeless(deaths) == enough


def test_what_hangs_is_left_out(caplog: pytest.LogCaptureFixture, one_death: None) -> None:
    found = [key(episode) for episode in collect(Hangs, workers=2, step_timeout=2.0, **SKIP)]
    plain = collect(Walk, episodes=30, worker_options=WorkerOptions(backend="serial"))
    assert found == [key(episode) for episode in plain if episode.index != BAD[0]]
    assert "its life: no step came to its end for " in caplog.text


class Old(Walk):
    """Dies in every k-th episode of a process."""

    begun_here = 0
    k = 2

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        Old.begun_here += 1
        if Old.begun_here % self.k == 0:
            os._exit(7)
        return super().reset(seed=seed)


@pytest.mark.parametrize(("on_error", "rows"), [("raise", 1), ("skip", 1), ("skip", 3)])
def test_a_simulator_that_wears_out_loses_no_episode(on_error: str, rows: int) -> None:
    options: dict[str, Any] = {"workers": 2, "on_error": on_error, "num_envs": 2 * rows}
    found = [key(episode) for episode in collect(Old, episodes=12, **options)]
    assert found == [
        key(episode) for episode in collect(Walk, episodes=12, worker_options=WorkerOptions(backend="serial"))
    ]


def crash(observations: np.ndarray) -> np.ndarray:
    import ctypes

    if observations[0, 0] == 2:
        ctypes.string_at(0)
    return np.zeros(len(observations), np.int64)


def stall(observations: np.ndarray) -> np.ndarray:
    time.sleep(3600 if observations[0, 0] == 2 else 0)
    return np.zeros(len(observations), np.int64)


@pytest.mark.parametrize("policy", [crash, stall])
def test_a_policy_that_ends_its_worker_is_never_left_out(policy: Callable[..., Any], one_death: None) -> None:
    with pytest.raises(CollectionFailed, match="has cost a fresh worker its life") as caught:
        list(collect(Walk, policy, workers=1, step_timeout=0.5, **SKIP))
    assert "on_error" not in str(caught.value)


# -- how many ----------------------------------------------------------------------------------------------------------


def test_more_than_allowed_end_the_run() -> None:
    with pytest.raises(
        CollectionFailed,
        match=r"3 of 30 episodes have failed, more than the 2 of max_skipped \(--max-skipped\): 3 x ValueError: boom "
        r"test_skipping.py:\d+ \(episodes 3, 11, 29\); the last: ",
    ) as caught:
        list(collect(Raises, workers=1, max_skipped=2, **SKIP))
    assert caught.value.resumed == "--max-skipped 10%"
    assert "the last: episode 29 (seed " in str(caught.value)
    assert "ValueError: boom" in caught.value.reason
    assert len(list(collect(Raises, workers=1, max_skipped=3, **SKIP))) == 27
    with pytest.raises(CollectionFailed, match="the episode has failed"):
        list(collect(Raises, episodes=1, seed=0, on_error="skip", wrappers=(always_bad,)))


class Bad(gym.Wrapper):
    def reset(self, **options: Any) -> Any:
        found = self.env.reset(**options)
        self.env.bad, self.env.seed = True, BAD_SEEDS[0]
        return found


def always_bad(env: gym.Env) -> gym.Env:
    return Bad(env)


@pytest.mark.parametrize(
    ("most", "skipped", "episodes", "made", "said"),
    [
        (0.05, {1, 2, 3}, 30, 0, ""),
        (0.05, {1, 2, 3, 4}, 30, 0, "4 of 30 episodes have failed, more than the 3"),
        (0.05, set(range(1, 51)), 1000, 0, ""),
        (0.05, set(range(1, 52)), 1000, 0, "51 of 1000"),
        (0.5, {1, 2, 3, 4}, 8, 0, ""),
        (0, {1}, 1000, 0, "1 of 1000"),
        (500, set(range(10)), 1000, 0, "all of the first 10 episodes"),
        (500, set(range(9)), 1000, 0, ""),
        (500, {0, 1, 2}, 3, 0, "all of the first 3 episodes"),
        (500, {0}, 1, 0, "the episode has failed"),
        (0.05, {1, 2, 3, 4}, None, 76, ""),
        (0.05, {1, 2, 3, 4}, None, 75, "4 of 79"),
    ],
)
def test_how_many_may_be_left_out(
    most: int | float, skipped: set[int], episodes: int | None, made: int, said: str
) -> None:
    found = Skipping(True, most).too_many(skipped, episodes, made)
    assert found.startswith(said)
    assert bool(found) == bool(said)


@given(
    skipped=strategies.sets(strategies.integers(0, 120), min_size=1),
    episodes=strategies.none() | strategies.integers(1, 130),
    made=strategies.integers(0, 130),
)
def test_what_is_said_to_help_helps(skipped: set[int], episodes: int | None, made: int) -> None:
    """Whatever has failed so far: with the option that is named the same run may go on."""
    if episodes is not None:
        skipped = {index for index in skipped if index < episodes}
        made = min(made, episodes - len(skipped))
    assume(skipped)
    option, _, value = remedy(skipped, episodes, made).partition(" ")
    if option == "--retry-skipped":
        assert "have failed" in Skipping(True, 10**6).too_many(skipped, episodes, made) or episodes == 1
        return
    allowed = Skipping.of("skip", amount(option, value))
    assert allowed.too_many(skipped, episodes, made) == ""
    if episodes is not None and made:  # and to its end, if the share that fails stays the same
        more = range(1000, 1000 + len(skipped) * episodes // (made + len(skipped)) - len(skipped))
        assert allowed.too_many({*skipped, *more}, episodes, episodes - len(skipped) - len(more)) == ""


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"on_error": "ignore"}, "on_error is 'raise' or 'skip'"),
        ({"max_skipped": 3}, "max_skipped is for on_error='skip'"),
        ({"on_error": "skip", "max_skipped": 1.5}, "max_skipped is a number of episodes, or a share"),
        ({"on_error": "skip", "max_skipped": -1}, "max_skipped is a number"),
        ({"on_error": "skip", "max_skipped": True}, "max_skipped is a number"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_the_call(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        collect(Walk, episodes=3, **given)


# -- replacements ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("each_line")
def test_a_worker_is_replaced_as_often_as_allowed(caplog: pytest.LogCaptureFixture) -> None:
    for most in (0, 2):
        caplog.clear()
        with pytest.raises(CollectionFailed, match="the worker exited with code 7"):
            list(collect(Old, episodes=30, workers=1, worker_options=WorkerOptions(max_restarts=most)))
        assert caplog.text.count("worker 0 is replaced") == most


def test_without_the_workers_that_died_the_others_go_on(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    def env() -> gym.Env:
        return DiesOnce(tmp_path)

    found = [key(episode) for episode in collect(env, episodes=30, workers=3, on_failure="drop")]
    assert found == [
        key(episode) for episode in collect(Walk, episodes=30, worker_options=WorkerOptions(backend="serial"))
    ]
    assert len([r for r in caplog.records if "is dropped: the worker exited with code 3" in r.getMessage()]) == 1
    assert "is replaced" not in caplog.text
    with pytest.raises(CollectionFailed, match="the worker exited with code 7"):
        list(collect(Old, episodes=30, workers=2, on_failure="drop"))


class DiesOnce(Dies):
    def strike(self) -> None:
        try:
            (self.folder / "struck").touch(exist_ok=False)
        except FileExistsError:
            return
        super().strike()


# -- how they are told -------------------------------------------------------------------------------------------------


def test_failures_of_one_cause_have_one_line_a_second(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And all are told at the end, grouped."""
    monkeypatch.setattr(failed, "APART", 3600.0)
    list(collect(Raises, workers=2, **SKIP))
    first, last = [record.getMessage() for record in caplog.records]
    assert first.endswith("; it is left out")
    line = "ValueError: boom test_skipping.py:" + first.partition("test_skipping.py:")[2].partition(")")[0]
    assert last == f"workers replaced in all: 0; episodes left out: 3 x {line} (episodes 3, 11, 29)"
    caplog.clear()
    monkeypatch.setattr(skipping, "DEATHS", 1)
    list(collect(Dies, workers=1, **SKIP))
    assert [record.getMessage().count("is replaced") for record in caplog.records].count(1) == 1
    assert "episodes left out: 3 x exit code 3 (episodes 3, 11, 29)" in caplog.records[-1].getMessage()


def test_a_failure_that_has_a_line_is_not_told_again(caplog: pytest.LogCaptureFixture) -> None:
    class Once(Raises):
        def strike(self) -> None:
            if self.seed == BAD_SEEDS[0]:
                super().strike()

    list(collect(Once, workers=1, **SKIP))
    assert len(caplog.records) == 1


def skipped(index: int, kind: str, line: int | None, message: str = "") -> Skipped:
    return Skipped(index, 7, "in one line", kind, message, 3, "/me/reach.py" if line else "", line)


def test_episodes_are_grouped_by_cause() -> None:
    many = [skipped(4 * i, "KeyError", 31, "'corner'") for i in range(10)]
    others = [skipped(41, "hang", 39), skipped(3, "SIGSEGV", 41), skipped(2, "SIGSEGV", 41), skipped(7, "SIGSEGV", 42)]
    assert grouped([*others, *reversed(many)]) == [
        "10 x KeyError: 'corner' reach.py:31 (episodes 0, 4, 8, 12, 16, ...)",
        "2 x SIGSEGV reach.py:41 (episodes 2, 3)",
        "1 x SIGSEGV reach.py:42 (episode 7)",
        "1 x hang reach.py:39 (episode 41)",
    ]
    assert grouped([]) == []


def test_hangs_in_one_function_are_one_cause() -> None:
    def hung(index: int, line: int, function: str = "step") -> Skipped:
        return replace(skipped(index, "hang", line), function=function)

    assert grouped([hung(i, 30 + i % 3) for i in range(4)]) == [
        "4 x hang in step reach.py:30, 31, 32 (episodes 0, 1, 2, 3)"
    ]
    assert grouped([hung(0, 39), hung(1, 12, "look"), hung(2, 40)]) == [
        "2 x hang in step reach.py:39, 40 (episodes 0, 2)",
        "1 x hang in look reach.py:12 (episode 1)",
    ]
    assert len(grouped([hung(i, i) for i in range(100)])[0]) < 100
    for text in (stack(("/me/reach.py", 39)), 'Traceback:\n  File "/me/reach.py", line 39, in step\n    wait()\n'):
        cause = cause_of(WorkerTimeout("late", where=Where(0, 0), elapsed=1.0, limit=1.0, stack=text))
        assert (cause.function, str(cause)) == ("step", "hang in step reach.py:39")
        assert cause == Cause("hang", "/me/reach.py", 39)


def test_texts_that_differ_do_not_make_causes_of_their_own() -> None:
    several = [skipped(i, "ValueError", 31, f"row {i} is bad") for i in range(3)]
    assert grouped(several) == ["3 x ValueError reach.py:31 (episodes 0, 1, 2)"]
    (line,) = grouped([skipped(0, "ValueError", 31, "x" * 5000)])
    assert len(line) < 200


def test_what_an_older_version_has_left_out_is_told_too() -> None:
    old = [Skipped(i, 7, "ValueError: boom (env.py:12)") for i in (1, 2)]
    assert grouped(old) == ["2 x ValueError: boom (env.py:12) (episodes 1, 2)"]


LIBRARY = "/venv/lib/python3.11/site-packages/gymnasium/core.py"
OURS = Path(failed.__file__).parent / "collect.py"


def stack(*frames: tuple[Any, int], first: bool = True) -> str:
    head = "Current thread 0x1 (most recent call first):" if first else "Traceback (most recent call last):"
    return "\n".join([head, *(f'  File "{file}", line {line} in step' for file, line in frames)])


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (stack(("/me/reach.py", 41), ("/me/make.py", 3), (OURS, 9)), ("/me/reach.py", 41)),
        (stack((LIBRARY, 5), ("/me/reach.py", 41), (OURS, 9)), ("/me/reach.py", 41)),
        (stack((LIBRARY, 5), ("/usr/lib/python3.11/ctypes/__init__.py", 2), (OURS, 9)), (LIBRARY, 5)),
        (stack((OURS, 9), ("<frozen runpy>", 2)), ("", None)),
        (stack((f"{OURS.parent.parent}_envs/reach.py", 41)), (f"{OURS.parent.parent}_envs/reach.py", 41)),
        (f"Thread 0x2 (most recent call first):\n{stack(('/me/other.py', 1))}", ("/me/other.py", 1)),
        (
            'Thread 0x2 (most recent call first):\n  File "/me/other.py", line 1 in run\n\n'
            + stack(("/me/reach.py", 41)),
            ("/me/reach.py", 41),
        ),
        (
            f'  File "{OURS}", line 9, in play\n  File "/me/make.py", line 3\n  File "/me/reach.py", line 41\n',
            ("/me/reach.py", 41),
        ),
        ("", ("", None)),
    ],
)
def test_the_place_is_the_innermost_frame_of_the_users_code(text: str, place: tuple[str, int | None]) -> None:
    at = Where(0, 0, 1, "step", 3, 7, 9)
    died = WorkerDied("it died", where=at, signal="SIGSEGV", stack=text)
    assert cause_of(died) == Cause("SIGSEGV", *place)
    assert cause_of(WorkerTimeout("late", where=at, elapsed=1.0, limit=1.0, stack=text)) == Cause("hang", *place)
    raised = WorkerDied("it died", where=at, exit_code=3)
    assert cause_of(raised) == Cause("exit code 3")
    assert (crash_of(died, 7) is None) == (place[1] is None)
    assert crash_of(died, 8) is crash_of(raised, 7) is None
    assert crash_of(WorkerTimeout("late", where=at, stack=text), 7) is None


def test_the_place_of_what_was_raised_is_the_innermost_too() -> None:
    with pytest.raises(CollectionFailed) as caught:
        list(collect(Raises, episodes=30, workers=1))
    cause = caught.value.cause
    assert (cause.kind, cause.message, cause.file) == ("ValueError", "boom", __file__)
    assert "ValueError" in Path(__file__).read_text().splitlines()[(cause.line or 0) - 1]
