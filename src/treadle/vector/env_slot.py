"""A Gymnasium environment in a slot of a vector: what a vector asks of it beyond reset and step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, ClassVar

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from treadle.checks import check_whole
from treadle.errors import UsageError
from treadle.program.base import OnEnd, StepResult
from treadle.program.gym_env import EnvRecipe, GymEnv
from treadle.program.ids import own_registrations, register_missing
from treadle.states.keeper import Keeper
from treadle.states.simulators import AleState
from treadle.states.state import EnvState

EnvLike = str | EnvSpec | Callable[..., gym.Env]

# what would move an environment behind the back of the pool, which keeps its rows
REFUSED = frozenset({"reset", "step", "close", "_setattr", "_check_spaces"})


_BY_ITSELF: Any = object()  # in place of reset options: nobody gave any, the slot moves on


class EnvOp(StrEnum):
    """Operations of the slot itself. The names are not identifiers, so they hide no attribute of an environment."""

    CALL = "treadle: call"
    SET_ATTR = "treadle: set attribute"
    OVER = "treadle: has the episode ended?"
    GET_STATE = "treadle: get state"
    SET_STATE = "treadle: set state"


@dataclass(frozen=True)
class Kept:
    """Reset options that also serve the resets that the slot makes by itself, until the next `begin` from outside.

    `lasting` says the same to the pool, which gives them to a fresh environment in a dead one's place.
    """

    options: dict[str, Any]
    lasting: ClassVar[bool] = True


class Once(dict[str, Any]):
    """Reset options that serve one reset only, in a sequence of them, whose dicts are kept for autoresets otherwise."""


@dataclass(frozen=True)
class SlotState:
    """The state of one slot of a vector, to be kept and given back.

    Attributes:
        env: of its environment.
        over: has its episode ended, and the next not begun?
        options: that serve its own resets.
    """

    env: EnvState
    over: bool = False
    options: dict[str, Any] | None = None


class EnvSlot(GymEnv):
    """Runs one environment of a vector.

    Args:
        recipe: how to build it.
        on_end: what happens when an episode ends.
        registrations: of the caller, from `own_registrations`.
    """

    def __init__(self, recipe: EnvRecipe, on_end: OnEnd, registrations: bytes | None = None) -> None:
        register_missing(registrations)
        super().__init__(recipe, on_end)
        self._kept: dict[str, Any] | None = None
        self._over, self._next_step = False, on_end is OnEnd.NEXT_STEP
        self.begins_next_now: bool | None = None
        self._keeper: Keeper | None = None
        if AleState.fits(getattr(self.env, "unwrapped", self.env)):  # it is listened to from the beginning
            self._keeper = Keeper(self.env)

    def begin(self, seed: int | None = None, options: Any = _BY_ITSELF) -> tuple[Any, dict[str, Any]]:
        """Start an episode: `options` are a dict, `Kept` or None from outside, and left out when the slot moves on."""
        if options is _BY_ITSELF:
            options = self._kept
        elif isinstance(options, Kept):
            options = self._kept = options.options
        else:
            self._kept = None
        self._over, self.step = False, self.env.step
        return self.env.reset(seed=seed, options=None if options is None else dict(options))

    def ended(
        self, observation: Any, reward: Any, terminated: bool, truncated: bool, info: dict[str, Any]
    ) -> StepResult:
        self._over = True
        if self._next_step:
            return StepResult(observation, reward, terminated, truncated, info, None, None, True)
        return super().ended(observation, reward, terminated, truncated, info)

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if name == EnvOp.CALL:
            attribute, args, kwargs = args
            if callable(attribute):
                return attribute(self.env, *args, **kwargs)
            return super().call(attribute, args, kwargs)
        if name == EnvOp.SET_ATTR:
            attribute, value = args
            getattr(self.env, "set_wrapper_attr", partial(setattr, self.env))(attribute, value)
            self.step = self.env.step if self.step != self._held else self.step  # it may be what was set
            return None
        if name == EnvOp.OVER:
            return self._over
        if name == EnvOp.GET_STATE:
            return SlotState(self._kept_by().get(), self._over, self._kept)
        if name == EnvOp.SET_STATE:
            return self._put(args[0])
        raise UsageError(f"{name!r} is nothing that a vector asks of its slots")

    def hands_over(self, name: str, args: tuple[Any, ...]) -> bool:
        return name == EnvOp.CALL  # as Gymnasium's `SyncVectorEnv` does it

    def _kept_by(self) -> Keeper:
        if self._keeper is None:
            self._keeper = Keeper(self.env)
        return self._keeper

    def _put(self, state: SlotState) -> None:
        self._kept_by().set(state.env)
        self._over, self._kept = state.over, state.options
        self.step = self._held if state.over and self.on_end is OnEnd.HOLD else self.env.step
        self.begins_next_now = state.over and self.on_end is OnEnd.NEXT_STEP


def slots_of(
    envs: EnvLike | Sequence[EnvLike],
    num_envs: int | None,
    on_end: OnEnd,
    *,
    env_kwargs: dict[str, Any] | None = None,
    wrappers: Sequence[Callable[[gym.Env], gym.Env]] = (),
) -> list[partial[EnvSlot]]:
    """One factory of a program a slot. Raises UsageError when the number of environments is not clear."""
    if isinstance(envs, str | EnvSpec) or callable(envs) or not isinstance(envs, Iterable):
        if num_envs is None:
            raise UsageError("one environment and no number: give num_envs, or a sequence of environments")
        check_whole(num_envs=num_envs)
        each = [envs] * num_envs
    else:
        each = list(envs)
        if num_envs is not None and num_envs != len(each):
            raise UsageError(f"{len(each)} environments, but num_envs={num_envs}")
    if not each:
        raise UsageError("a vector needs at least one environment")
    recipes = [EnvRecipe.of(env, env_kwargs, wrappers) for env in each]
    registrations = own_registrations()
    return [partial(EnvSlot, recipe, on_end, registrations) for recipe in recipes]
