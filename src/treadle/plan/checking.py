"""`check_state`, which tests that an environment's state is complete: equal states and actions give equal results."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec

from treadle.checks import check_whole
from treadle.errors import StateDiffers, UsageError
from treadle.plan.env import PlanEnv
from treadle.program.gym_env import EnvRecipe
from treadle.states.keeper import Keeper

FIELDS = ("observation", "reward", "terminated", "truncated", "info")


@dataclass(frozen=True)
class StateReport:
    """The result of `check_state`.

    Attributes:
        kind: the kind of the states.
        points: the number of states that were put back.
        steps: the number of steps that were compared.
        nbytes: size of the largest state; 0 for states without `nbytes`, such as tuples.
        get_us, set_us: mean microseconds to take a state and to put it back.
    """

    kind: str
    points: int
    steps: int
    nbytes: int
    get_us: float
    set_us: float


def check_state(
    env: gym.Env | PlanEnv | str | EnvSpec | Callable[[], Any],
    *,
    steps: int = 60,
    points: int = 3,
    seed: int = 0,
    actions: Sequence[Any] | None = None,
    ignore: Iterable[str] = ("['episode']['t']",),
    **keeper: Any,
) -> StateReport:
    """Test that an environment's states are complete, or raise the first difference.

    The check takes `points` states along an episode. From each it plays `steps` steps, then plays other steps, puts the
    state back and plays the first steps again. Episodes that end are followed by a reset without a seed. Given an id, a
    spec or a callable, it also puts the state into a second, new environment, as workers do.

    Args:
        env: a Gymnasium environment, a `PlanEnv`, or an id, spec or callable that makes one. An environment keeps the
            state that it has after the check.
        steps: the number of steps to compare from each state.
        points: the number of states.
        seed: seed of the first reset and of the random actions.
        actions: the actions to compare with, instead of random ones; `steps` is then their number.
        ignore: ends of the names of fields in infos that may differ, such as times.
        **keeper: arguments of `Keeper` for a Gymnasium environment: `randomness` and `global_rngs`.

    Raises:
        UsageError: nothing to compare, or an invalid argument.
        StateDiffers: a result differs; the error names the step and the field.
        StateError: the state cannot be captured.
    """
    check_whole(none=False, steps=steps, points=points)
    check_whole(0, seed=seed)
    if actions is not None and not (isinstance(actions, Sequence | np.ndarray) and len(actions)):
        raise UsageError(f"check_state compares at least one step: actions is a sequence of them, got {actions!r}")
    if isinstance(ignore, str) or not isinstance(ignore, Iterable):
        raise UsageError(f"ignore is a list of ends of names, got {ignore!r}")
    first = _Player(_made(env), keeper)
    again = None if isinstance(env, gym.Env | PlanEnv) else _Player(_made(env), keeper)
    try:
        return _check(first, again, steps, points, seed, actions, tuple(ignore))
    finally:
        for player in (first, again):
            if player is not None and not isinstance(env, gym.Env | PlanEnv):
                player.env.close()


def _check(
    player: _Player,
    second: _Player | None,
    steps: int,
    points: int,
    seed: int,
    actions: Sequence[Any] | None,
    ignore: tuple[str, ...],
) -> StateReport:
    player.reset(seed)
    player.space.seed(seed)
    compared, nbytes, took = 0, 0, [0.0, 0.0]
    for point in range(points):
        for _ in range(7 * point):  # the first state follows the reset, the others come later
            player.step(player.space.sample())
        played = [player.space.sample() for _ in range(steps)] if actions is None else list(actions)
        began = perf_counter()
        state = player.get()
        took[0] += perf_counter() - began
        nbytes = max(nbytes, getattr(state, "nbytes", 0))
        kept = copy.deepcopy(state)
        expected = [player.step(action) for action in played]
        for other in (player, second):
            if other is None:
                continue
            for _ in range(5):  # values that the state lacks must change before it is put back
                other.step(player.space.sample())
            began = perf_counter()
            other.set(kept)
            took[1] += perf_counter() - began
            where = "" if other is player else " in a second environment"
            for number, (action, before) in enumerate(zip(played, expected, strict=True)):
                found = other.step(action)
                for field, a, b in zip(FIELDS, before, found, strict=True):
                    _compare(number, field, a, b, ignore, where)
                compared += 1
        player.set(kept)
        player.step(played[0])
    sets = points * (1 if second is None else 2)
    return StateReport(player.kind, points, compared, nbytes, took[0] / points * 1e6, took[1] / sets * 1e6)


def _compare(step: int, field: str, first: Any, again: Any, ignore: tuple[str, ...], where: str) -> None:
    found = difference(first, again, field, ignore)
    if found is None or (ignore and not isinstance(first, dict) and found.field.endswith(ignore)):
        return
    told = element(found)
    hint = (
        "the same state and actions must give the same. The environment may draw from global generators "
        "(global_rngs=True keeps them). It may hold something outside its attributes, or leave something out (its own "
        "get_state, randomness=False). treadle.plan.Replayed keeps Gymnasium environments by seed and actions"
    )
    raise StateDiffers(
        f"the state is incomplete: at step {step}{where} the {told.field} is {_short(told.again)} where it was "
        f"{_short(told.first)}; {hint}",
        step=step,
        field=found.field,
        first=found.first,
        again=found.again,
    )


def _short(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."


class _Player:
    """One interface to Gymnasium environments and `PlanEnv`; `step` begins the next episode when one ends."""

    def __init__(self, env: Any, keeper: dict[str, Any]) -> None:
        self.env = env
        self._plan = isinstance(env, PlanEnv)
        if self._plan and keeper:
            raise UsageError(f"{sorted(keeper)} belong to the PlanEnv's own construction")
        self._keeper = None if self._plan else Keeper(env, **keeper)
        self.space = copy.deepcopy(env.action_space)

    @property
    def kind(self) -> str:
        return self.env.name if self._keeper is None else self._keeper.kind

    def reset(self, seed: int) -> None:
        if self._plan:
            seeding = getattr(self.env, "seed", None)
            if callable(seeding):
                seeding(seed)
            self.env.reset()
        else:
            self.env.reset(seed=seed)

    def get(self) -> Any:
        return self.env.get_state() if self._keeper is None else self._keeper.get()

    def set(self, state: Any) -> None:
        if self._keeper is None:
            self.env.set_state(state)
        else:
            self._keeper.set(state)

    def step(self, action: Any) -> tuple[Any, ...]:
        data = self.env.step(action, return_state=False) if self._plan else self.env.step(action)
        observation, reward, terminated, truncated, info = copy.deepcopy(data)
        if (terminated or truncated) and ((self._plan and not self.env.autoreset) or not self._plan):
            self.env.reset()
        return observation, reward, bool(terminated), bool(truncated), info


def _made(env: Any) -> Any:
    if isinstance(env, gym.Env | PlanEnv):
        return env
    if not (isinstance(env, str | EnvSpec) or callable(env)):
        raise UsageError(f"check_state takes an environment, an id, a spec or a callable that makes one, got {env!r}")
    made: Any = EnvRecipe(env).build() if isinstance(env, str | EnvSpec) else env()
    made.reset()  # some environments cannot be stepped before their first reset
    return made


class Difference(NamedTuple):
    """A field (such as "['a'][2]") that differs, and its two values."""

    field: str
    first: Any
    again: Any


def difference(first: Any, again: Any, field: str, ignore: tuple[str, ...] = ()) -> Difference | None:
    """Return the first difference, None if the values are equal.

    Arrays are compared by dtype, shape and bytes; NaN equals NaN. `ignore`: ends of the names of dict entries that are
    not compared.
    """
    if isinstance(first, dict) and isinstance(again, dict):
        for key in [*first, *(key for key in again if key not in first)]:
            name = f"{field}[{key!r}]"
            if ignore and name.endswith(ignore):
                continue
            if key not in first or key not in again:
                return Difference(name, first.get(key, "nothing"), again.get(key, "nothing"))
            if (found := difference(first[key], again[key], name, ignore)) is not None:
                return found
        return None
    if isinstance(first, list | tuple) and isinstance(again, list | tuple) and len(first) == len(again):
        for index, (one, other) in enumerate(zip(first, again, strict=True)):
            if (found := difference(one, other, f"{field}[{index}]")) is not None:
                return found
        return None
    if isinstance(first, np.ndarray) or isinstance(again, np.ndarray):
        a, b = np.asarray(first), np.asarray(again)
        if a.dtype.hasobject or b.dtype.hasobject:
            return difference(a.tolist(), b.tolist(), field)
        same = (a.dtype, a.shape) == (b.dtype, b.shape) and a.tobytes() == b.tobytes()
        return None if same else Difference(field, first, again)
    try:
        same = bool(first == again) or (first != first and again != again)
    except Exception:  # noqa: BLE001 - a foreign __eq__ may raise, or return a value without a truth value
        same = first is again
    return None if same else Difference(field, first, again)


def element(found: Difference) -> Difference:
    """Return the first element that differs in two arrays of one dtype and shape; other differences unchanged."""
    a, b = found.first, found.again
    if not (isinstance(a, np.ndarray) and isinstance(b, np.ndarray)) or (a.dtype, a.shape) != (b.dtype, b.shape):
        return found
    bytewise = np.frombuffer(a.tobytes(), np.uint8) != np.frombuffer(b.tobytes(), np.uint8)
    index = np.unravel_index(int(bytewise.argmax()) // a.itemsize, a.shape)
    where = f"[{', '.join(map(str, index))}]" if index else ""
    return Difference(f"{found.field}{where}", a[index], b[index])
