"""What Gymnasium's own tests of its vectors assert, and what is ours beyond it: spaces, calls, attributes, infos."""

import logging
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces as gs
from gymnasium.vector import SyncVectorEnv
from gymnasium.vector.utils import batch_differing_spaces
from small_envs import Counter, Echo, Parrot, Word, assert_same, of

from treadle.errors import StartupFailed, UsageError
from treadle.vector.gymnasium import VectorEnv
from treadle.vector.infos import InfoStyle
from treadle.vector.make_vec import AsyncVectorEnv
from treadle.worker.options import WorkerOptions

SPACES: dict[str, gs.Space] = {
    "box0": gs.Box(-1.0, 1.0, (), np.float64),
    "box": gs.Box(np.array([-1, 0], np.float32), np.array([1, 2], np.float32)),
    "float16": gs.Box(-1, 1, (3,), np.float16),
    "image": gs.Box(0, 255, (8, 8, 3), np.uint8),
    "discrete": gs.Discrete(5, start=-2),
    "multidiscrete": gs.MultiDiscrete([3, 4]),
    "multidiscrete2": gs.MultiDiscrete([[2, 3], [4, 5]]),
    "multibinary": gs.MultiBinary([2, 3]),
    "text": gs.Text(6),
    "graph": gs.Graph(gs.Box(-1, 1, (2,)), gs.Discrete(3)),
    "sequence": gs.Sequence(gs.Box(0, 1, (2,))),
    "stacked": gs.Sequence(gs.Box(0, 1, (2,)), stack=True),
    "oneof": gs.OneOf([gs.Discrete(3), gs.Box(0, 1, (2,))]),
    "tuple": gs.Tuple([gs.Discrete(3), gs.Box(0, 1, (2,)), gs.Text(3)]),
    "dict": gs.Dict(position=gs.Dict(x=gs.Discrete(29), y=gs.Box(0, 1, (2, 2))), pair=gs.Tuple([gs.MultiBinary(2)])),
    "loose dict": gs.Dict(graph=gs.Graph(gs.Box(-1, 1, (2,)), None), n=gs.Discrete(4)),
}


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
@pytest.mark.parametrize("name", SPACES)
def test_every_space_as_observation_and_action(name: str, mode: str) -> None:
    """Batches are in the batched spaces and equal SyncVectorEnv's; every action arrives in the space it came from."""
    envs = [of(Echo, SPACES[name], SPACES[name])] * 3
    theirs = SyncVectorEnv(envs, autoreset_mode=mode)
    ours = VectorEnv(envs, autoreset_mode=mode, workers=1, inline=1)
    try:
        assert ours.observation_space == ours.action_space == theirs.observation_space
        ours.action_space.seed(3)
        observations, _ = ours.reset(seed=5)
        assert observations in ours.observation_space
        assert_same(_plain(observations), _plain(theirs.reset(seed=5)[0]))
        for _ in range(5):
            actions = ours.action_space.sample()
            found, expected = ours.step(actions), theirs.step(actions)
            assert found[0] in ours.observation_space
            assert_same(_plain(found), _plain(expected))
            for final in found[4].get("final_obs", ()):
                assert final is None or final in ours.single_observation_space
    finally:
        ours.close()


def _plain(tree: Any) -> Any:
    """Named tuples (graphs) as tuples, so that both sides compare by their parts."""
    if isinstance(tree, dict):
        return {key: _plain(part) for key, part in tree.items()}
    if isinstance(tree, tuple | list):
        return tuple(_plain(part) for part in tree)
    if isinstance(tree, np.ndarray) and tree.dtype.hasobject:
        return tuple(_plain(part) for part in tree)
    return tree


@pytest.mark.parametrize("inline", [0, 1])
def test_spaces_of_ones_own(inline: int) -> None:
    vector = VectorEnv([Parrot] * 4, workers=1, inline=inline)
    assert isinstance(vector.single_action_space, Word)
    assert isinstance(vector.action_space, gs.Tuple)
    assert vector.reset()[0] == ("reset",) * 4
    assert vector.step(("a", "b", "c", "d"))[0] == ("step(a)", "step(b)", "step(c)", "step(d)")
    vector.close()


class Bounded(Echo):
    def __init__(self, high: float, shape: tuple[int, ...] = (5,)) -> None:
        super().__init__(gs.Box(0, high, shape))


def test_bounds_that_differ() -> None:
    spaces = [gs.Box(0, i, (5,)) for i in (1, 2, 3)]
    envs = [of(Bounded, i) for i in (1, 2, 3)]
    custom = gs.Box(0, np.repeat(np.arange(1, 4, dtype=np.float32), 5).reshape(3, 5), (3, 5)), gs.Box(0, 1, (5,))
    for mode in ("different", custom):
        vector = VectorEnv(envs, worker_options=WorkerOptions(backend="serial"), observation_mode=mode)
        assert vector.observation_space == batch_differing_spaces(spaces)
        assert vector.single_observation_space == spaces[0]
        assert vector.reset()[0] in vector.observation_space
        vector.close()


@pytest.mark.parametrize(
    ("envs", "mode", "match"),
    [
        (
            [of(Bounded, 1), of(Bounded, 2)],
            "same",
            r"not equivalent\. .*If this is intentional, use `obs",
        ),
        ([of(Bounded, 1), of(Bounded, 1, (4,))], "same", "slot 1"),
        ([of(Bounded, 1), of(Bounded, 1, (4,))], "different", "slot 1"),
        ([of(Bounded, 1), of(Bounded, 1)], (gs.Box(0, 1, (2, 4)), gs.Box(0, 1, (4,))), "Slot 0"),
        ([of(Bounded, 1), of(Echo, gs.Discrete(5))], "different", "slot 1"),
        ([of(Bounded, 1), of(Echo, gs.Dict(a=gs.Discrete(2)))], "same", "slot 1"),
        ([of(Echo, gs.Discrete(5), gs.Discrete(i)) for i in (2, 3)], "same", "action space"),
    ],
)
def test_spaces_that_do_not_go_together(envs: Any, mode: Any, match: str) -> None:
    with pytest.raises(RuntimeError, match=match):
        VectorEnv(envs, workers=1, inline=0, observation_mode=mode)


def test_wrong_observation_mode() -> None:
    with pytest.raises(ValueError, match=r"Invalid `observation_mode`.* actual got odd"):
        VectorEnv([Counter], worker_options=WorkerOptions(backend="serial"), observation_mode="odd")
    with pytest.raises(TypeError, match="both elements of observation_mode"):
        VectorEnv([Counter], worker_options=WorkerOptions(backend="serial"), observation_mode=(gs.Discrete(2), 3))  # type: ignore[arg-type]


def test_calls_and_attributes() -> None:
    vector = VectorEnv("CartPole-v1", 4, workers=2, inline=1, env_kwargs={"render_mode": "rgb_array"})
    try:
        assert vector.render_mode == "rgb_array"
        vector.reset(seed=0)
        frames = vector.render()
        assert [frame.shape for frame in frames] == [(400, 600, 3)] * 4
        assert_same(vector.call("render"), frames)
        assert vector.get_attr("gravity") == (9.8,) * 4
        vector.set_attr("gravity", [9.81, 3.72, 8.87, 1.62])
        assert vector.get_attr("gravity") == vector.call("gravity") == (9.81, 3.72, 8.87, 1.62)
        vector.set_attr("gravity", 5.0)
        vector.set_attr_at(2, "gravity", 1.0)
        vector.set_attr_at([3, 0], "gravity", [7.0, 8.0])
        assert vector.get_attr("gravity") == (8.0, 5.0, 1.0, 7.0)
        assert vector.get_attr_at(3, "gravity") == 7.0
        assert vector.get_attr_at([3, 2], "gravity") == (7.0, 1.0)
        assert vector.call_at(1, "get_wrapper_attr", name="gravity") == 5.0
        assert vector.call_at([0], "has_wrapper_attr", "gravity") == (True,)
        assert vector.np_random_seed == (0, 1, 2, 3)
        states = [generator.bit_generator.state for generator in vector.np_random]
        assert len({str(state) for state in states}) == 4
        vector.reset()
        assert vector.np_random_seed == (0, 1, 2, 3)
    finally:
        vector.close()


@pytest.mark.parametrize(
    "options",
    [
        {"worker_options": WorkerOptions(backend="serial")},
        {"worker_options": WorkerOptions(backend="thread")},
        {"workers": 1, "inline": 1},
    ],
)
def test_objects_of_the_callers_own_process_are_no_copies(options: dict[str, Any]) -> None:
    ours = VectorEnv([of(Counter, 3)] * 2, **options)
    theirs = SyncVectorEnv([of(Counter, 3)] * 2)
    try:
        for vector in (ours, theirs):
            vector.reset(seed=1)
            assert vector.get_attr("np_random")[0] is vector.call("get_wrapper_attr", "np_random")[0]
            assert isinstance(vector.call("get_wrapper_attr", "step")[0].__self__, Counter)
    finally:
        ours.close()
        theirs.close()


def test_calls_that_are_refused() -> None:
    vector = VectorEnv([Counter] * 2, worker_options=WorkerOptions(backend="serial"))
    for name in ("reset", "step", "close"):
        with pytest.raises(ValueError, match=f"use `{name}` directly"):
            vector.call(name)
    with pytest.raises(ValueError, match="Got `3` values for 2 environments"):
        vector.set_attr("length", [1, 2, 3])
    with pytest.raises(AttributeError, match=r"slot 0.*no_such_thing"):
        vector.get_attr("no_such_thing")
    for slots in (2, -1, [0, 0], []):
        with pytest.raises(UsageError, match=r"in 0\.\.1"):
            vector.call_at(slots, "length")  # type: ignore[arg-type]
    assert vector.get_attr("length") == (3, 3)
    vector.close()


def test_arguments_of_calls_may_have_any_name() -> None:
    class Named(Counter):
        def say(self, slots: int, name: str) -> str:
            return f"{slots} {name}"

    vector = VectorEnv([Named] * 2, workers=1, inline=1)
    assert vector.call("say", slots=3, name="x") == ("3 x", "3 x")
    vector.close()


def test_steps_that_a_set_attribute_changes() -> None:
    """`set_attr` may replace what is bound, the step itself included."""
    vector = VectorEnv([of(Counter, 9)] * 2, worker_options=WorkerOptions(backend="serial"))
    vector.reset()
    vector.set_attr("count", [4, 6])
    assert vector.step([0, 0])[0].tolist() == [5, 7]
    vector.close()


def test_batches_are_the_callers_to_keep() -> None:
    vector = VectorEnv([of(Counter, 50)] * 2, workers=1, inline=1)
    held = [vector.reset()[0], *(vector.step([1, 2])[0] for _ in range(20))]
    held[3][:] = -1
    vector.step([0, 0])
    vector.close()
    assert [each.tolist() for each in held] == [[t, t] if t != 3 else [-1, -1] for t in range(21)]


def test_valid_and_stats() -> None:
    vector = VectorEnv([of(Counter, 2), of(Counter, 3)], workers=1, inline=0)
    try:
        assert not vector.valid.any()
        vector.reset()
        assert vector.valid.tolist() == [False, False]
        seen = []
        for _ in range(6):
            vector.step([0, 0])
            seen.append(vector.valid.tolist())
        assert seen == [[True, True], [True, True], [False, True], [True, False], [True, True], [False, True]]
        stats = vector.stats()
        assert stats.steps.tolist() == [4, 5]
        assert stats.episodes.tolist() == [3, 2]
        assert stats.restarts.tolist() == [0, 0]
        assert set(stats.busy) == {0}
        assert 0 < stats.busy[0] <= 1
        assert stats.elapsed > 0
    finally:
        vector.close()


@pytest.mark.parametrize("mode", ["SameStep", "Disabled"])
def test_stats_where_every_row_is_a_transition(mode: str) -> None:
    vector = VectorEnv([of(Counter, 2)] * 2, worker_options=WorkerOptions(backend="serial"), autoreset_mode=mode)
    vector.reset()
    for _ in range(2):
        vector.step([0, 0])
    vector.reset_at(1)
    assert vector.stats().steps.tolist() == [2, 2]
    assert vector.stats().episodes.tolist() == ([2, 3] if mode == "SameStep" else [1, 2])
    vector.close()


def test_what_runs_in_the_caller_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "treadle")
    vector = VectorEnv([Counter] * 4, workers=1, inline=2)
    vector.reset()
    vector.step([0] * 4)
    vector.close()
    said = [record.getMessage() for record in caplog.records if "caller" in record.getMessage()]
    assert said == ["slots 0 to 1 of 4 are stepped in the caller's own process (inline=2)"]


def test_nothing_runs_in_the_caller_where_something_is_promised() -> None:
    import os

    class Where(Counter):
        def pid(self) -> int:
            return os.getpid()

    for vector in (VectorEnv([Where] * 2, step_timeout=30), AsyncVectorEnv([Where] * 2)):
        assert os.getpid() not in vector.call("pid")
        vector.close()


def test_list_infos() -> None:
    vector = VectorEnv(
        [of(Counter, 2, infos=False), of(Counter, 1)],
        worker_options=WorkerOptions(backend="serial"),
        infos=InfoStyle.LIST,
    )
    assert vector.reset(seed=4)[1] == [{}, {"seed": 5, "options": None}]
    assert vector.step([0, 0])[4] == [{}, {"count": 1, "of": {"length": 1}}]
    vector.close()
    quiet = VectorEnv(
        [of(Counter, infos=False)] * 2, worker_options=WorkerOptions(backend="serial"), infos=InfoStyle.LIST
    )
    quiet.reset()
    assert quiet.step([0, 0])[4] == [{}, {}]
    quiet.close()


def test_legacy_infos() -> None:
    vector = VectorEnv([of(Counter, 1), of(Counter, 2)], worker_options=WorkerOptions(backend="serial"), infos="legacy")
    assert vector.metadata["autoreset_mode"] is gym.vector.AutoresetMode.SAME_STEP
    vector.reset()
    infos = vector.step([0, 0])[4]
    assert infos["final_observation"].tolist() == [1, None]
    assert infos["final_info"].tolist() == [{"count": 1, "of": {"length": 1}}, None]
    assert infos["seed"].tolist() == [-1, 0]
    vector.close()
    with pytest.raises(UsageError, match="SAME_STEP"):
        VectorEnv([Counter], infos="legacy", autoreset_mode="NextStep")


def test_a_subclass_may_override_step() -> None:
    class Doubled(VectorEnv):
        def step(self, actions: Any) -> Any:
            observations, rewards, *rest = super().step(actions)
            return observations, rewards * 2, *rest

    vector = Doubled([Counter] * 2, worker_options=WorkerOptions(backend="serial"))
    vector.reset()
    assert vector.step([1, 2])[1].tolist() == [2, 4]
    vector.close()


def test_numbers_of_environments() -> None:
    with pytest.raises(UsageError, match="num_envs"):
        VectorEnv("CartPole-v1")
    with pytest.raises(UsageError, match="2 environments, but num_envs=3"):
        VectorEnv([Counter] * 2, 3)
    for none in ([], ()):
        with pytest.raises(UsageError, match="at least one"):
            VectorEnv(none)


def test_an_environment_that_cannot_be_built() -> None:
    class Broken(Counter):
        def __init__(self) -> None:
            raise KeyError("no such level")

    with pytest.raises(StartupFailed, match=r"slot 1.*no such level"):
        VectorEnv([Counter, Broken], workers=1, inline=0)


class Registered(Counter):
    """Known by an id in this process only."""


def test_ids_that_the_caller_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gym.registry, "Mine-v0", gym.envs.registration.EnvSpec("Mine-v0", entry_point=Registered))
    for envs in ("Mine-v0", lambda: gym.make("Mine-v0")):
        vector = VectorEnv(envs, 2, workers=1, inline=0)
        assert vector.reset(seed=1)[1]["seed"].tolist() == [1, 2]
        vector.close()


def test_a_registration_that_cannot_travel_stays_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    for name, kwargs in (("Mine-v0", {}), ("Stuck-v0", {"a": threading.Lock()})):
        spec = gym.envs.registration.EnvSpec(name, entry_point=Registered, kwargs=kwargs)
        monkeypatch.setitem(gym.registry, name, spec)
    vector = VectorEnv("Mine-v0", 1, workers=1, inline=0)
    vector.reset()
    vector.close()


@pytest.mark.parametrize("backend", ["process", "serial"])
def test_a_function_is_called_with_each_environment(backend: str) -> None:
    vector = VectorEnv(
        [of(Counter), lambda: gym.wrappers.TimeLimit(Counter(), 9)], worker_options=WorkerOptions(backend=backend)
    )
    try:
        assert vector.call(lambda env, more: (type(env).__name__, more), 5) == (("Counter", 5), ("TimeLimit", 5))
        assert vector.call_at(1, lambda env: env.unwrapped.__class__.__name__) == "Counter"
        with pytest.raises(ZeroDivisionError, match="slot 1"):
            vector.call_at([1], lambda env: 1 / 0)
    finally:
        vector.close()
