"""The bridge to dm_env: its environments in Treadle's slots, and Treadle's vectors with its interface.

The two interfaces are equivalent. A step of type LAST is a termination if its discount is 0, else a truncation. The
step after it ignores its action and is of type FIRST, which is Gymnasium's NEXT_STEP autoreset. Any other discount, for
example one below 1 within an episode, travels in the environment's info as "discount".
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces as gs

from treadle import trees
from treadle.errors import UsageError, needed
from treadle.vector.make_vec import vector_of

with needed("treadle.dm_env needs dm_env", "dm-env"):
    import dm_env
    from dm_env import specs

FIRST, MID, LAST = (int(each) for each in dm_env.StepType)


# -- specs and spaces --------------------------------------------------------------------------------------------------


def space_of(spec: Any) -> gym.Space:
    """Return the space of a spec, or of specs in dicts, lists and tuples. Raises UsageError for other kinds."""
    if isinstance(spec, dict):
        return gs.Dict({key: space_of(part) for key, part in spec.items()})
    if isinstance(spec, list | tuple):
        return gs.Tuple([space_of(part) for part in spec])
    if isinstance(spec, specs.DiscreteArray):
        return gs.Discrete(spec.num_values)
    if not isinstance(spec, specs.Array) or spec.dtype.kind not in "biuf":
        raise UsageError(f"no space has the values of {spec}")
    if isinstance(spec, specs.BoundedArray):
        low, high = (np.broadcast_to(bound, spec.shape).astype(spec.dtype) for bound in (spec.minimum, spec.maximum))
        return gs.Box(low, high, spec.shape, spec.dtype.type)
    least, most = (-np.inf, np.inf) if spec.dtype.kind == "f" else (0, 1)
    if spec.dtype.kind in "iu":
        least, most = np.iinfo(spec.dtype).min, np.iinfo(spec.dtype).max
    return gs.Box(least, most, spec.shape, spec.dtype.type)


def spec_of(space: gym.Space, name: str | None = None) -> Any:
    """Return the spec of a space, or of spaces in Dicts and Tuples. Raises UsageError if a space has no fixed shape."""
    if isinstance(space, gs.Dict):
        return {key: spec_of(part, key) for key, part in space.spaces.items()}
    if isinstance(space, gs.Tuple):
        return tuple(spec_of(part) for part in space.spaces)
    if isinstance(space, gs.Discrete) and space.start == 0:
        return specs.DiscreteArray(int(space.n), space.dtype, name)
    if isinstance(space, gs.Discrete | gs.MultiDiscrete):
        counts, start = (space.n, space.start) if isinstance(space, gs.Discrete) else (space.nvec, space.start)
        return specs.BoundedArray(space.shape, space.dtype, start, start + counts - 1, name)
    if isinstance(space, gs.MultiBinary):
        return specs.BoundedArray(space.shape, space.dtype, 0, 1, name)
    if not isinstance(space, gs.Box):
        raise UsageError(f"no spec has the values of {space}")
    if not (space.bounded_below.any() or space.bounded_above.any()):
        return specs.Array(space.shape, space.dtype, name)
    return specs.BoundedArray(space.shape, space.dtype, space.low, space.high, name)


# -- a dm_env environment in a slot ------------------------------------------------------------------------------------


class FromDmEnv(gym.Env):
    """A `dm_env.Environment` as a Gymnasium environment; see `from_dm_env`."""

    def __init__(self, make: Callable[..., Any], seed_by: Callable[[Any, int], Any] | None = None, **kw: Any) -> None:
        self._make, self._seed = partial(make, **kw), seed_by
        self.inner = self._make()
        if not isinstance(self.inner, dm_env.Environment):
            raise UsageError(f"{make!r} made a {type(self.inner).__name__}, which is not a dm_env.Environment")
        self._spec = self.inner.observation_spec()
        self.observation_space, self.action_space = space_of(self._spec), space_of(self.inner.action_spec())

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self._seeded(seed)
        return self._seen(self.inner.reset().observation), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        step = self.inner.step(action)
        if step.first():
            raise UsageError("the episode has ended, or not begun: reset it first")
        discount = 1.0 if step.discount is None else float(step.discount)
        terminated = bool(step.last() and discount == 0.0)
        info = {} if discount == float(not terminated) else {"discount": discount}
        return self._seen(step.observation), float(step.reward), terminated, bool(step.last() and not terminated), info

    def close(self) -> None:
        self.inner.close()

    def _seen(self, observation: Any) -> Any:
        """Return the observation, with Python scalars, which dm_env allows, as arrays of their spec's dtype."""
        return _with_specs(observation, self._spec)

    def _seeded(self, seed: int) -> None:
        if self._seed is not None:
            self._seed(self.inner, seed)
        elif (state := _random_state(self.inner)) is not None:
            state.seed(seed if seed < 2**32 else [seed & 0xFFFFFFFF, seed >> 32])
        elif "seed" in inspect.signature(self._make).parameters:
            self.inner.close()
            self.inner = self._make(seed=seed)
        else:
            warnings.warn(
                f"{type(self.inner).__name__} cannot be seeded, so episodes cannot be made again: let the function "
                "that makes it take seed=, or give from_dm_env(..., seed=function)",
                stacklevel=2,
            )


def _random_state(env: Any) -> np.random.RandomState | None:
    """Return the generator of a dm_control environment: its suite's is in the task, its composer's in the environment.

    None: it has neither.
    """
    for state in (getattr(getattr(env, "task", None), "random", None), getattr(env, "random_state", None)):
        if isinstance(state, np.random.RandomState):
            return state
    return None


def _with_specs(value: Any, spec: Any) -> Any:
    if isinstance(spec, dict):
        return {key: _with_specs(value[key], part) for key, part in spec.items()}
    if isinstance(spec, list | tuple):
        return tuple(_with_specs(*pair) for pair in zip(value, spec, strict=True))
    return value if isinstance(value, np.ndarray | np.generic) else np.asarray(value, spec.dtype)


def from_dm_env(make: Callable[..., Any], *, seed: Callable[[Any, int], Any] | None = None) -> Callable[..., FromDmEnv]:
    """Return a function that makes a Gymnasium environment of a `dm_env.Environment`, for `make_vec`, `collect` etc.

    Args:
        make: returns the environment; called in the process that runs it.
        seed: function that is called as `seed(env, number)` before a reset with a seed. None: the generator of a
            dm_control environment is seeded, as by `suite.load(..., task_kwargs={"random": number})`. Other
            environments are made anew by `make(seed=number)`, if `make` takes `seed`; else a warning says that seeds
            have no effect.

    Raises:
        UsageError: `make` cannot be called. In the worker: `make` does not return a dm_env environment, or its specs
            have no spaces.
    """
    if not callable(make):
        raise UsageError(f"a function that makes a dm_env.Environment is wanted, got {type(make).__name__}")
    return partial(FromDmEnv, make, seed_by=seed)


# -- Treadle's vectors behind dm_env's interface -----------------------------------------------------------------------


class DmVector(dm_env.Environment):
    """n environments as one `dm_env.Environment` whose time steps are batches.

    `step_type` is int64[n] of `dm_env.StepType`, `reward` and `discount` are float64[n]. In rows of type FIRST, the
    reward is 0 and the discount 1. `observation`, actions and specs have arrays [n, ...]. In the step after a row's
    LAST, the row's action is ignored and the row is of type FIRST: rows begin new episodes independently.

    Args:
        env: as for `treadle.make_vec`: an id, a function that returns a Gymnasium environment, or `from_dm_env(...)`.
        num_envs: number of environments.
        **options: as for `treadle.make_vec`. `on_failure` is not "drop", and `autoreset_mode` is not given, or is the
            text "NextStep".

    Raises:
        UsageError: another value of one of these two options, or a space without a fixed shape.
        TreadleError: the errors of `treadle.make_vec`.
    """

    def __init__(self, env: Any, num_envs: int = 1, **options: Any) -> None:
        if options.pop("autoreset_mode", "NextStep") != "NextStep":
            raise UsageError('dm_env begins the next episode in the step after the last one: autoreset_mode="NextStep"')
        if options.get("on_failure") == "drop":
            raise UsageError("dm_env has no word for a row that is gone for good: on_failure is 'raise' or 'restart'")
        self.vec = vector_of(type(self).__name__, env, num_envs, autoreset_mode="NextStep", **options)
        self.vec._pool.calls.again = "reset()"
        self._begun = False
        try:
            self._observation_spec, self._action_spec = (
                spec_of(space, name)
                for space, name in ((self.vec.observation_space, "observation"), (self.vec.action_space, "action"))
            )
        except UsageError:
            self.vec.close()
            raise

    def reset(self, *, seed: Any = None) -> dm_env.TimeStep:
        """Begin an episode in every row; row i gets `seed` + i."""
        observation, _ = self.vec.reset(seed=seed)
        self._begun, n = True, self.vec.num_envs
        return dm_env.TimeStep(np.full(n, FIRST), np.zeros(n), np.ones(n), observation)

    def step(self, action: Any) -> dm_env.TimeStep:
        if not self._begun:
            return self.reset()
        observation, reward, terminated, truncated, infos = self.vec.step(action)
        kind = np.where(terminated | truncated, LAST, np.where(self.vec.valid, MID, FIRST))
        discount = np.where(terminated, 0.0, 1.0)
        if "discount" in infos:
            told = infos["_discount"]
            discount[told] = infos["discount"][told]
        return dm_env.TimeStep(kind, reward, discount, observation)

    def observation_spec(self) -> Any:
        return self._observation_spec

    def action_spec(self) -> Any:
        return self._action_spec

    def reward_spec(self) -> Any:
        return specs.Array((self.vec.num_envs,), np.float64, "reward")

    def discount_spec(self) -> Any:
        return specs.BoundedArray((self.vec.num_envs,), np.float64, 0.0, 1.0, "discount")

    def close(self) -> None:
        self.vec.close()


class DmEnvironment(DmVector):
    """One environment in a worker as a `dm_env.Environment`: a `DmVector` of one, without the batch axis."""

    def __init__(self, env: Any, **options: Any) -> None:
        super().__init__(env, 1, **{"workers": 1, "inline": 0, **options})
        self._observation_spec = spec_of(self.vec.single_observation_space, "observation")
        self._action_spec = spec_of(self.vec.single_action_space, "action")
        self.reward_spec = super(DmVector, self).reward_spec  # type: ignore[method-assign]
        self.discount_spec = super(DmVector, self).discount_spec  # type: ignore[method-assign]

    def reset(self, *, seed: Any = None) -> dm_env.TimeStep:
        return self._row(super().reset(seed=seed))

    def step(self, action: Any) -> dm_env.TimeStep:
        if not self._begun:
            return self.reset()
        return self._row(super().step(trees.map(lambda leaf: np.asarray(leaf)[None], action)))

    def _row(self, batch: dm_env.TimeStep) -> dm_env.TimeStep:
        kind, observation = int(batch.step_type[0]), trees.row(batch.observation, 0)
        if kind == FIRST:
            return dm_env.restart(observation)
        return dm_env.TimeStep(dm_env.StepType(kind), batch.reward[0], batch.discount[0], observation)
