"""`PlanEnv`: an environment that carries its state, so that it can be stepped from anywhere.

A template: a subclass says how to reset, to apply one action, and to take and put back its state, and gets steps from
given states, repeated actions, batches and automatic resets.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, ClassVar, Self

import gymnasium as gym
import numpy as np

from treadle.checks import check_seed
from treadle.plan.items import items_of, whole
from treadle.program.base import own_names
from treadle.wire.copies import snapshot

Row = tuple[Any, ...]  # state (None where none is wanted), observation, reward, terminal, truncated, info
# called with actions, states (None: it goes on) and dts
Steps = Callable[[Iterable[Any], Iterable[Any], Iterable[int]], Iterator[Row]]

STEP_NAMES = frozenset({"n_step", "dt"})  # what a planning step itself puts into its info
PROCESSES = ("process_obs", "process_reward", "process_terminal", "process_info")


def told(info: Mapping[str, Any], **ours: Any) -> dict[str, Any]:
    """An environment's info with a planning step's entries: its own value under such a NAME is kept as env_NAME."""
    return {**own_names(info, frozenset(ours), "env"), **ours}


def overrides(env: PlanEnv, base: type[PlanEnv], names: Iterable[str]) -> bool:
    """Return True if the class of `env` defines one of these anew, after `base`."""
    return any(getattr(type(env), name) is not getattr(base, name) for name in names)


class PlanEnv:
    """Base of environments that carry their state.

    A subclass overrides `apply_action`, `apply_reset`, `get_state`, `set_state`, and what it likes of the rest.

    Args:
        name: what it is called.
        frameskip: how often `step` applies its action for each dt.
        autoreset: reset by itself after a step that ended an episode. That step returns the end, its state
            included; the environment itself stands at the beginning of the next episode by then.
        delay_setup: do not build anything yet: `setup` does (`GymPlanEnv` and `ParallelEnv` call it themselves in the
            first `reset`). Until then it can be pickled.
        return_image: put `get_image()` as "rgb" into every step's and reset's info.
    """

    STATE_IS_ARRAY: ClassVar[bool] = True
    OBS_IS_ARRAY: ClassVar[bool] = True
    SINGLETON: ClassVar[bool] = False  # may there be only one of it in a process?
    _given: tuple[tuple[Any, ...], dict[str, Any]]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Notes what it is built with, for `clone`."""
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

    # -- what a subclass says ----------------------------------------------------------------------------------------

    def setup(self) -> None:
        """Build what the environment needs."""

    def apply_action(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step once: observation, reward, terminal, truncated, info."""
        raise NotImplementedError(f"{type(self).__name__} does not say how to apply an action")

    def apply_reset(self, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode: observation, info."""
        raise NotImplementedError(f"{type(self).__name__} does not say how to reset")

    def get_state(self) -> Any:
        """The complete state, a value of its own: nothing that happens later changes it."""
        raise NotImplementedError(f"{type(self).__name__} does not say how to take its state")

    def set_state(self, state: Any) -> None:
        """Put a state back."""
        raise NotImplementedError(f"{type(self).__name__} does not say how to put a state back")

    def get_image(self) -> np.ndarray | None:
        """What it looks like now: uint8[height, width, 3], or [height, width] in shades of grey."""
        raise NotImplementedError(f"{type(self).__name__} has no picture of itself")

    def process_obs(self, obs: Any, **step: Any) -> Any:
        """The observation that `step` and `reset` return. `step`: the step's other parts, by name."""
        return obs

    def process_reward(self, reward: Any, **step: Any) -> Any:
        """The reward that `step` returns."""
        return reward

    def process_terminal(self, terminal: bool, **step: Any) -> bool:
        """The terminal flag that `step` returns."""
        return terminal

    def process_info(self, info: dict[str, Any], **step: Any) -> dict[str, Any]:
        """The info that `step` and `reset` return."""
        return info

    def sample_action(self) -> Any:
        """A valid action, at random."""
        return self.action_space.sample()

    @property
    def observation_space(self) -> gym.Space:
        """Of what `step` returns."""
        raise NotImplementedError(f"{type(self).__name__} does not say its observation_space")

    @property
    def action_space(self) -> gym.Space:
        """Of what `step` takes."""
        raise NotImplementedError(f"{type(self).__name__} does not say its action_space")

    def close(self) -> None:
        """Give back what it holds. Idempotent."""

    # -- about it ----------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """Its name."""
        return self._name

    @property
    def return_image(self) -> bool:
        """Whether every info holds a picture."""
        return self._return_image

    @property
    def unwrapped(self) -> PlanEnv:
        """Itself: wrappers are inside."""
        return self

    @property
    def obs_shape(self) -> tuple[int, ...] | None:
        """Shape of the observations; None for spaces that have none (Dict)."""
        return self.observation_space.shape

    @property
    def action_shape(self) -> tuple[int, ...] | None:
        """Shape of the actions; None for spaces that have none."""
        return self.action_space.shape

    @cached_property
    def img_shape(self) -> tuple[int, ...] | None:
        """Shape of `get_image()`; None where there is no picture."""
        try:
            image = self.get_image()
        except Exception:  # noqa: BLE001 - drawing may fail in any way, and then there is no picture
            return None
        return None if image is None else image.shape

    # -- playing -----------------------------------------------------------------------------------------------------

    def seed(self, seed: int | None = None) -> None:
        """The next reset is given this seed. Raises UsageError for a negative one."""
        check_seed(seed)
        self._seed = seed

    def reset(self, return_state: bool = True) -> Any:
        """Begin an episode. Returns (state, observation, info), or (observation, info)."""
        seed, self._seed = self._seed, None
        obs, info = self.apply_reset() if seed is None else self.apply_reset(seed)
        info = told(info or {}, rgb=self.get_image()) if self._return_image else dict(info or {})
        obs = self.process_obs(obs)
        info = self.process_info(info, obs=obs, reward=0.0, terminal=False)
        return (self.get_state(), obs, info) if return_state else (obs, info)

    def step(self, action: Any, state: Any = None, dt: int = 1, return_state: bool | None = None) -> tuple[Any, ...]:
        """Apply an action `dt * frameskip` times, at most until the episode ends.

        Args:
            action: which.
            state: to begin in; None: where the environment is.
            dt: how often, in units of `frameskip`.
            return_state: return the state that it leads to? None: where `state` was given.

        Returns:
            (state,) observation, reward (summed), terminal, truncated, info. In info: "n_step", how often the action
            was applied, "dt", and "rgb" with `return_image`. State and observation of a step that ends an episode are
            the terminal ones; an automatic reset follows them.
        """
        dt = whole(dt, "dt")
        if state is not None:
            self.set_state(state)
        obs, reward, terminal, truncated, info = self.step_with_dt(action, dt)
        if terminal or truncated:
            # an environment may use its arrays again in the reset that follows
            obs, reward, info = snapshot(obs), snapshot(reward), snapshot(info)
        info = told(info, dt=dt)
        if self._return_image:
            info = told(info, rgb=self.get_image())
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
        """Apply an action `dt * frameskip` times, at most until the episode ends, and nothing else.

        Returns observation, reward (summed), terminal, truncated, info (with "n_step").
        """
        times = whole(dt, "dt") * self.frameskip
        obs, total, terminal, truncated, info = self.apply_action(action)
        done = 1
        while done < times and not (terminal or truncated):
            obs, reward, terminal, truncated, info = self.apply_action(action)
            total = total + reward
            done += 1
        return obs, total, bool(terminal), bool(truncated), told(info, n_step=done)

    def step_batch(
        self, actions: Any, states: Any = None, dt: Any = 1, return_state: bool | None = True
    ) -> tuple[list[Any], ...]:
        """`step` for many items, one after the other on this environment.

        Args:
            actions: one for each item.
            states: one for each item, or None: each item goes on where the one before has ended.
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
        """Reset after a step that ended an episode, where `autoreset` says so."""
        *_, terminal, truncated, _ = step_data
        if (terminal or truncated) and self.autoreset:
            self.reset(return_state=False)

    def clone(self, **kwargs: Any) -> PlanEnv:
        """Another one, built with the same arguments (`kwargs` replace some). It begins anew: no state is copied."""
        return type(self)(**{**self._arguments(), **kwargs})

    def _arguments(self) -> dict[str, Any]:
        """The arguments that it was built with, those that are attributes as they are now."""
        args, kwargs = self._given
        bound = inspect.signature(type(self).__init__).bind(self, *args, **kwargs)
        bound.apply_defaults()
        del bound.arguments["self"]
        known, found = vars(self), dict[str, Any]()
        for name, value in bound.arguments.items():
            if bound.signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
                found |= value
            else:  # what was given as a name may be more than that: a class, a spec
                found[name] = value if name == "name" else known.get(name, known.get(f"_{name}", value))
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, frameskip={self.frameskip}, autoreset={self.autoreset})"


# -- many steps in a row: what a worker does with a chunk -------------------------------------------------------------
# `PlanEnv.step` is a template whose parts a subclass may change, and finding out that nothing was changed costs as much
# as a third of a step of CartPole, in every step anew. So a `GymPlanEnv` that changes nothing is asked once for each
# chunk, and then stepped by `plain`, which does what the template would. Everything else is stepped by its own `step`.


def walking(env: Any, wanted: bool) -> Steps:
    """Return a function that steps an environment, as `PlanEnv.step` does. `wanted`: whether it returns states."""
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
    """`PlanEnv.step` where nothing was changed.

    Args:
        env: the Gymnasium environment.
        frameskip: how often the action is applied for each dt.
        put, take: put a state back; take it, None when no state is wanted.
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
            info = {**info, "n_step": done, "dt": dt} if STEP_NAMES.isdisjoint(info) else told(info, n_step=done, dt=dt)
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
