"""A Gymnasium environment in a slot: built from an id, a callable or a spec, stepped into the full record."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from treadle.errors import UsageError
from treadle.program.base import Description, Program
from treadle.program.ids import import_package, registered
from treadle.program.registered import own_registrations, register_missing
from treadle.program.step import OnEnd, StepResult, settle


@dataclass(frozen=True)
class EnvRecipe:
    """How to build one environment, anywhere.

    Attributes:
        env: a registered id ("CartPole-v1"), "module:Id", an EnvSpec, or a callable that returns an environment.
        kwargs: for `gymnasium.make` or the callable.
        wrappers: applied in order, each called with the environment.
        imports: modules to import first (they register environments).
        registrations: the caller's registry (`program.registered`), so that its ids are known where this is built.
    """

    env: str | EnvSpec | Callable[..., gym.Env]
    kwargs: dict[str, Any] = field(default_factory=dict)
    wrappers: tuple[Callable[[gym.Env], gym.Env], ...] = ()
    imports: tuple[str, ...] = ()
    registrations: bytes | None = field(default_factory=own_registrations, repr=False, compare=False)

    def build(self) -> gym.Env:
        """The environment. Raises UsageError or MissingExtra for a wrong recipe, else what building raises."""
        register_missing(self.registrations)
        for name in self.imports:
            importlib.import_module(name)
        if isinstance(self.env, str):
            import_package(self.env)
            with registered(self.env):
                env: Any = gym.make(self.env, **self.kwargs)
        elif isinstance(self.env, EnvSpec):
            import_package(self.env.id)
            env = gym.make(self.env, **self.kwargs)
        elif callable(self.env):
            env = self.env(**self.kwargs)
        else:
            raise UsageError(f"an environment is an id, an EnvSpec or a callable, got {type(self.env).__name__}")
        for wrapper in self.wrappers:
            env = wrapper(env)
        if not (hasattr(env, "step") and hasattr(env, "reset")):
            raise UsageError(f"{self.env!r} made a {type(env).__name__}, which is not a Gymnasium environment")
        missing = [name for name in ("observation_space", "action_space") if not hasattr(env, name)]
        if missing:
            raise UsageError(
                f"{self.env!r} made a {type(env).__name__} without {' and '.join(missing)}: its constructor must set "
                "what it observes and what it takes, as gymnasium.spaces"
            )
        return env


class GymEnv(Program):
    """Runs one `gymnasium.Env`, or anything that has its `reset`, `step` and two spaces.

    Args:
        recipe: how to build it.
        on_end: what happens when an episode ends.
    """

    def __init__(self, recipe: EnvRecipe, on_end: OnEnd = OnEnd.NEXT_STEP) -> None:
        self.env = recipe.build()
        self.on_end = on_end
        self.step = self.env.step
        self._options: dict[str, Any] | None = None

    def describe(self) -> Description:
        env: Any = self.env
        about = {
            "metadata": dict(getattr(env, "metadata", None) or {}),
            "render_mode": getattr(env, "render_mode", None),
            "spec": portable_spec(env),
        }
        return Description(
            env.observation_space,
            env.action_space,
            finals=self.on_end is OnEnd.SAME_STEP,
            begins_next=self.on_end is not OnEnd.HOLD,
            metadata=about,
        )

    def begin(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.step = self.env.step
        return self.env.reset(seed=seed, options=options)

    def ended(
        self, observation: Any, reward: Any, terminated: bool, truncated: bool, info: dict[str, Any]
    ) -> StepResult:
        record = settle(self.on_end, self.begin, observation, reward, terminated, truncated, info)
        if self.on_end is OnEnd.HOLD:
            self.step = self._held
        return record

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An attribute of the environment (looked up through its wrappers); called when it can be."""
        attribute = getattr(self.env, "get_wrapper_attr", partial(getattr, self.env))(name)
        return attribute(*args, **kwargs) if callable(attribute) else attribute

    def close(self) -> None:
        close_env(self.env)

    def _held(self, action: Any) -> Any:
        raise UsageError("this episode has ended and nothing moves on by itself here: reset the slot first")


def gym_env(
    env: str | EnvSpec | Callable[..., gym.Env],
    *,
    on_end: OnEnd = OnEnd.NEXT_STEP,
    kwargs: dict[str, Any] | None = None,
    wrappers: Sequence[Callable[[gym.Env], gym.Env]] = (),
    imports: Sequence[str] = (),
) -> Callable[[], GymEnv]:
    """A factory of `GymEnv` programs for a pool; see `EnvRecipe` for the arguments."""
    recipe = EnvRecipe(env, dict(kwargs or {}), tuple(wrappers), tuple(imports))
    return lambda: GymEnv(recipe, on_end)


def close_env(env: Any) -> None:
    """Close an environment that can be closed."""
    if hasattr(env, "close"):
        env.close()


def portable_spec(env: gym.Env) -> str | None:
    """The environment's spec as JSON, None when it has none or one that JSON cannot hold."""
    spec = getattr(env, "spec", None)
    if spec is None:
        return None
    try:
        return spec.to_json()
    except Exception:  # noqa: BLE001 - a spec with lambdas in it raises whatever its kwargs raise
        return None
