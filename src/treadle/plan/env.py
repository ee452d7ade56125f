"""`PlanEnv`: an environment that carries its state, so that it can be stepped from any state.

It is a template. A subclass implements a reset, one action, and taking and putting back the state. The base class adds
steps from given states, repeated actions, batches and automatic resets.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, ClassVar, Self

import gymnasium as gym
import numpy as np

from treadle.checks import check_seed
from treadle.interrupts import Closes
from treadle.plan.items import items_of, whole
from treadle.program.base import own_names
from treadle.wire.messages import snapshot

Row = tuple[Any, ...]  # state (None unless wanted), observation, reward, terminal, truncated, info
# called with actions, states (None: the step continues the one before) and dts
Steps = Callable[[Iterable[Any], Iterable[Any], Iterable[int]], Iterator[Row]]

STEP_NAMES = frozenset({"n_step", "dt"})  # keys that a planning step itself adds to its info
PROCESSES = ("process_obs", "process_reward", "process_terminal", "process_info")


def entered(info: Mapping[str, Any], **ours: Any) -> dict[str, Any]:
    """Return an environment's info with a planning step's entries; its own value under such a NAME becomes env_NAME."""
    return {**own_names(info, frozenset(ours), "env"), **ours}


def overrides(env: PlanEnv, base: type[PlanEnv], names: Iterable[str]) -> bool:
    """Return True if the class of `env` overrides one of these names of `base`."""
    return any(getattr(type(env), name) is not getattr(base, name) for name in names)


class PlanEnv(Closes):
    """Base of environments that carry their state.

    A subclass overrides `apply_action`, `apply_reset`, `get_state` and `set_state`, and may override other methods.

    Args:
        name: the environment's name.
        frameskip: number of times that `step` applies its action for each unit of `dt`.
        autoreset: reset after a step that ended an episode. That step returns the end, including its state; the
            environment itself is then at the beginning of the next episode.
        delay_setup: let `setup` build the environment instead of the constructor (`GymPlanEnv` and `ParallelEnv` call
            `setup` in the first `reset`). Before `setup`, the object can be pickled.
        return_image: put `get_image()` as "rgb" into every step's and reset's info.
    """

    STATE_IS_ARRAY: ClassVar[bool] = True
    OBS_IS_ARRAY: ClassVar[bool] = True
    SINGLETON: ClassVar[bool] = False  # True: a process can hold only one such environment
    _given: tuple[tuple[Any, ...], dict[str, Any]]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Keep the constructor's arguments for `clone`."""
        self = super().__new__(cls)
        self._given = args, kwargs
        return self

    def __init__(
        self,
        name: str,
        frameskip: int = 1,
        autoreset: bool = True,
        delay_setup: bool = False,
        return_image: bool = False,
    ) -> None:
        self._name = name
        self.frameskip = whole(frameskip, "frameskip")
        self.autoreset, self.delay_setup = autoreset, delay_setup
        self._return_image = return_image
        self._seed: int | None = None
        self._processes = overrides(self, PlanEnv, PROCESSES)
        if not delay_setup:
            self.setup()

    # -- methods for subclasses --------------------------------------------------------------------------------------

    def setup(self) -> None:
        """Build the objects that the environment needs."""

    def apply_action(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take one step; return observation, reward, terminal, truncated, info."""
        raise NotImplementedError(f"{type(self).__name__} does not implement apply_action")

    def apply_reset(self, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; return observation, info."""
        raise NotImplementedError(f"{type(self).__name__} does not implement apply_reset")

    def get_state(self) -> Any:
        """Return the complete state, as a copy that later steps do not change."""
        raise NotImplementedError(f"{type(self).__name__} does not implement get_state")

    def set_state(self, state: Any) -> None:
        """Put a state back."""
        raise NotImplementedError(f"{type(self).__name__} does not implement set_state")

    def get_image(self) -> np.ndarray | None:
        """Return a picture of the present state: uint8[height, width, 3], or [height, width] in shades of grey."""
        raise NotImplementedError(f"{type(self).__name__} does not implement get_image")

    def process_obs(self, obs: Any, **step: Any) -> Any:
        """Return the observation for `step` and `reset`. `step`: the step's other parts, by name."""
        return obs

    def process_reward(self, reward: Any, **step: Any) -> Any:
        """Return the reward for `step`."""
        return reward

    def process_terminal(self, terminal: bool, **step: Any) -> bool:
        """Return the terminal flag for `step`."""
        return terminal

    def process_info(self, info: dict[str, Any], **step: Any) -> dict[str, Any]:
        """Return the info for `step` and `reset`."""
        return info

    def sample_action(self) -> Any:
        """Return a valid random action."""
        return self.action_space.sample()

    @property
    def observation_space(self) -> gym.Space:
        """The space of observations that `step` returns."""
        raise NotImplementedError(f"{type(self).__name__} does not implement observation_space")

    @property
    def action_space(self) -> gym.Space:
        """The space of actions that `step` takes."""
        raise NotImplementedError(f"{type(self).__name__} does not implement action_space")

    def close(self) -> None:
        """Release the environment's resources. Idempotent."""

    # -- properties --------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The environment's name."""
        return self._name

    @property
    def return_image(self) -> bool:
        """True if every info holds a picture."""
        return self._return_image

    @property
    def unwrapped(self) -> PlanEnv:
        """The object itself: its wrappers are inside."""
        return self

    @property
    def obs_shape(self) -> tuple[int, ...] | None:
        """Shape of the observations; None for spaces without a shape (Dict)."""
        return self.observation_space.shape

    @property
    def action_shape(self) -> tuple[int, ...] | None:
        """Shape of the actions; None for spaces without a shape."""
        return self.action_space.shape

    @cached_property
    def img_shape(self) -> tuple[int, ...] | None:
        """Shape of `get_image()`; None for an environment without pictures."""
        try:
            image = self.get_image()
        except Exception:  # noqa: BLE001 - drawing may raise anything; the environment then has no pictures
            return None
        return None if image is None else image.shape

    # -- playing -----------------------------------------------------------------------------------------------------

    def seed(self, seed: int | None = None) -> None:
        """Use this seed in the next reset. Raises UsageError for a negative one."""
        check_seed(seed)
        self._seed = seed

    def reset(self, return_state: bool = True) -> Any:
        """Begin an episode. Returns (state, observation, info), or (observation, info)."""
        seed, self._seed = self._seed, None
        obs, info = self.apply_reset() if seed is None else self.apply_reset(seed)
        info = entered(info or {}, rgb=self.get_image()) if self._return_image else dict(info or {})
        obs = self.process_obs(obs)
        info = self.process_info(info, obs=obs, reward=0.0, terminal=False)
        return (self.get_state(), obs, info) if return_state else (obs, info)

    def step(self, action: Any, state: Any = None, dt: int = 1, return_state: bool | None = None) -> tuple[Any, ...]:
        """Apply an action `dt * frameskip` times, at most until the episode ends.

        Args:
            action: the action.
            state: the state to begin in; None: the present one.
            dt: number of times to apply the action, in units of `frameskip`.
            return_state: return the state after the step; None: only if `state` is given.

        Returns:
            (state,) observation, reward (summed), terminal, truncated, info. The info has "n_step" (the number of times
            that the action was applied), "dt", and "rgb" with `return_image`. State and observation of a step that ends
            an episode are the terminal ones, from before the automatic reset.
        """
        dt = whole(dt, "dt")
        if state is not None:
            self.set_state(state)
        obs, reward, terminal, truncated, info = self.step_with_dt(action, dt)
        if terminal or truncated:
            # an environment may use its arrays again in the reset that follows
            obs, reward, info = snapshot(obs), snapshot(reward), snapshot(info)
        info = entered(info, dt=dt)
        if self._return_image:
            info = entered(info, rgb=self.get_image())
        if self._processes:
            obs = self.process_obs(obs, reward=reward, terminal=terminal, info=info)
            reward = self.process_reward(reward, obs=obs, terminal=terminal, info=info)
            terminal = self.process_terminal(terminal, obs=obs, reward=reward, info=info)
            info = self.process_info(info, obs=obs, reward=reward, terminal=terminal)
        result: tuple[Any, ...] = (obs, reward, terminal, truncated, info)
        if return_state or (return_state is None and state is not None):
            result = (self.get_state(), *result)
        if terminal or truncated:
            self.run_autoreset(result)
        return result

    def step_with_dt(self, action: Any, dt: int = 1) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Apply an action `dt * frameskip` times, at most until the episode ends, without the rest of `step`.

        Returns observation, reward (summed), terminal, truncated, info (with "n_step").
        """
        times = whole(dt, "dt") * self.frameskip
        obs, total, terminal, truncated, info = self.apply_action(action)
        done = 1
        while done < times and not (terminal or truncated):
            obs, reward, terminal, truncated, info = self.apply_action(action)
            total = total + reward
            done += 1
        return obs, total, bool(terminal), bool(truncated), entered(info, n_step=done)

    def step_batch(
        self, actions: Any, states: Any = None, dt: Any = 1, return_state: bool | None = True
    ) -> tuple[list[Any], ...]:
        """Step many items, one after the other in this environment.

        Args:
            actions: one for each item.
            states: one for each item, or None: each item continues the one before.
            dt: one for all, or one for each.
            return_state: as in `step`.

        Returns:
            A list for each part of `step`'s result.
        """
        items = items_of(actions, states, dt, return_state)
        rows = []
        for item, action in enumerate(items.actions):
            state = None if items.states is None else items.states[item]
            try:
                parts = self.step(action, state, items.dts[item], items.return_state)
            except Exception as error:
                error.add_note(f"item {item} of {len(items)}, in the caller")
                raise
            rows.append([snapshot(part) if isinstance(part, np.ndarray | dict | tuple) else part for part in parts])
        return tuple(list(column) for column in zip(*rows, strict=True))

    def run_autoreset(self, step_data: tuple[Any, ...]) -> None:
        """Reset after a step that ended an episode, if `autoreset` is True."""
        *_, terminal, truncated, _ = step_data
        if (terminal or truncated) and self.autoreset:
            self.reset(return_state=False)

    def clone(self, **kwargs: Any) -> PlanEnv:
        """Return a new environment with the same arguments; `kwargs` replace some. The state is not copied."""
        return type(self)(**{**self._arguments(), **kwargs})

    def _arguments(self) -> dict[str, Any]:
        """Return the constructor's arguments, with present values for those that are attributes."""
        args, kwargs = self._given
        bound = inspect.signature(type(self).__init__).bind(self, *args, **kwargs)
        bound.apply_defaults()
        del bound.arguments["self"]
        known, found = vars(self), dict[str, Any]()
        for name, value in bound.arguments.items():
            if bound.signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
                found |= value
            else:  # the argument `name` may be a class or a spec, the attribute is only its name
                found[name] = value if name == "name" else known.get(name, known.get(f"_{name}", value))
        return found

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, frameskip={self.frameskip}, autoreset={self.autoreset})"


# -- many steps in a row: a worker's work on a chunk ------------------------------------------------------------------
# `PlanEnv.step` is a template whose parts a subclass may override. Checking in every step that nothing is overridden
# costs a third of a step of CartPole. So `walking` checks a `GymPlanEnv` once for each chunk. If nothing is overridden,
# `plain` steps it, with the same results; all other environments are stepped by their own `step`.


def walking(env: Any, wanted: bool) -> Steps:
    """Return a function that steps an environment, as `PlanEnv.step` does. `wanted`: True if it returns states."""
    plain = getattr(env, "plain_walk", None)
    found: Steps | None = None if plain is None else plain(wanted)
    if found is not None:
        return found
    step = env.step

    def steps(actions: Iterable[Any], states: Iterable[Any], dts: Iterable[int]) -> Iterator[Row]:
        for action, state, dt in zip(actions, states, dts):
            row = step(action=action, state=state, dt=dt, return_state=wanted)
            yield row if wanted else (None, *row)

    return steps


def plain(env: Any, frameskip: int, put: Callable[[Any], None], take: Callable[[], Any] | None, reset: Any) -> Steps:
    """Return a function that does what `PlanEnv.step` does if nothing is overridden.

    Args:
        env: the Gymnasium environment.
        frameskip: how often the action is applied for each dt.
        put, take: put a state back; take the state, None if states are not wanted.
        reset: called after a step that ended an episode.
    """

    def steps(actions: Iterable[Any], states: Iterable[Any], dts: Iterable[int]) -> Iterator[Row]:
        for action, state, dt in zip(actions, states, dts):
            if state is not None:
                put(state)
            times = dt * frameskip
            obs, total, terminal, truncated, info = env.step(action)
            done = 1
            while done < times and not (terminal or truncated):
                obs, reward, terminal, truncated, info = env.step(action)
                total = total + reward
                done += 1
            info = (
                {**info, "n_step": done, "dt": dt} if STEP_NAMES.isdisjoint(info) else entered(info, n_step=done, dt=dt)
            )
            if terminal or truncated:
                terminal, truncated = bool(terminal), bool(truncated)
                # an environment may use its arrays again in the reset that follows
                obs, total, info = snapshot(obs), snapshot(total), snapshot(info)
                row = (None if take is None else take(), obs, total, terminal, truncated, info)
                reset(row)
                yield row
            else:
                yield None if take is None else take(), obs, total, False, False, info

    return steps
