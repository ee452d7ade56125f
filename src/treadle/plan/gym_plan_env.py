"""`GymPlanEnv`, which makes an environment that carries its state of any Gymnasium environment."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.wrappers import TimeLimit

from treadle.errors import StateError, UsageError
from treadle.plan.env import PROCESSES, PlanEnv, Steps, overrides, plain
from treadle.program.gym_env import EnvRecipe, recipe_parts
from treadle.states.keeper import Keeper
from treadle.states.replay import Replayed
from treadle.states.state import EnvState

log = logging.getLogger("treadle")

GREY = np.array([0.299, 0.587, 0.114])  # ITU-R BT.601
EMULATED = ("ALE/",)  # ids whose environments make every kind of observation themselves
# the methods that a step calls
STEPPED = frozenset(
    {"step", "step_with_dt", "apply_action", "get_state", "set_state", "run_autoreset", "reset", "apply_reset"}
)


class GymPlanEnv(PlanEnv):
    """A Gymnasium environment, by its id, that carries its complete state (see `treadle.states.keeper`).

    Args:
        name: a registered id, an EnvSpec, or a callable that makes the environment.
        frameskip, autoreset, delay_setup, return_image: see `PlanEnv`. `frameskip` counts the environment's own
            steps: those of "ALE/Pong-v5" are four frames each (one frame with `env_kwargs={"frameskip": 1}`).
        wrappers: wrappers to apply, in order. Each is a callable that takes the environment, or (callable, keyword
            arguments).
        remove_time_limit: remove Gymnasium's TimeLimit.
        render_mode: for the environment; None: it does not render.
        obs_type: None or "coords": the environment's own observations. "rgb" or "grayscale": pictures of it. For Atari
            also "ram".
        array_state: use arrays of one object, object[1], as states instead of `EnvState`.
        randomness, global_rngs: see `Keeper`.
        env_kwargs: more arguments for making the environment.
        **kwargs: added to `env_kwargs`.
    """

    STATE_IS_ARRAY = False
    AVAILABLE_RENDER_MODES: ClassVar[frozenset[str | None]] = frozenset({"human", "rgb_array", None})
    AVAILABLE_OBS_TYPES: ClassVar[frozenset[str]] = frozenset({"coords", "rgb", "grayscale", "ram"})
    DEFAULT_OBS_TYPE = "coords"

    def __init__(
        self,
        name: str | EnvSpec | Callable[..., gym.Env],
        frameskip: int = 1,
        autoreset: bool = True,
        delay_setup: bool = False,
        return_image: bool = False,
        *,
        wrappers: Iterable[Any] | None = None,
        remove_time_limit: bool = False,
        render_mode: str | None = None,
        obs_type: str | None = None,
        array_state: bool = False,
        randomness: bool | None = None,
        global_rngs: bool = False,
        env_kwargs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if render_mode not in list(self.AVAILABLE_RENDER_MODES):
            raise UsageError(f"render_mode must be 'human', 'rgb_array' or None, got {render_mode!r}")
        if return_image and render_mode is None and not _emulated(name):
            raise UsageError("return_image=True needs render_mode='rgb_array'")
        if obs_type is not None and obs_type not in self.AVAILABLE_OBS_TYPES:
            raise UsageError(f"obs_type must be one of {sorted(self.AVAILABLE_OBS_TYPES)}, got {obs_type!r}")
        self._env = name
        self._wrappers = named = list(wrappers) if isinstance(wrappers, Iterable) else wrappers or ()
        if isinstance(named, list):
            named = [each[0] if isinstance(each, tuple) and each else each for each in named]
        own, _ = recipe_parts(env_kwargs, named)
        self.remove_time_limit, self.render_mode, self._obs_type = remove_time_limit, render_mode, obs_type
        self._env_kwargs = {**own, **kwargs}
        self._randomness, self._global_rngs = randomness, global_rngs
        self.STATE_IS_ARRAY = array_state  # type: ignore[misc]  # a flag of the object: one class serves both
        self._gym_env: gym.Env | None = None
        self._keeper: Keeper | None = None
        text = name if isinstance(name, str) else name.id if isinstance(name, EnvSpec) else _called(name)
        super().__init__(text, frameskip, autoreset, delay_setup, return_image)

    # -- building ----------------------------------------------------------------------------------------------------

    def setup(self) -> None:
        """Build the environment, wrap it, and reset it once. An earlier one is closed."""
        self.close()
        env = self.init_gym_env()
        if self.remove_time_limit:
            env = without_time_limit(env)
        self._gym_env = env
        self.apply_wrappers(self._wrappers)
        self._keep()
        self._picture = self._picture_space()
        # without pictures our process_obs does nothing: skipping it saves a tenth of a step of CartPole
        ours = type(self).process_obs is GymPlanEnv.process_obs and self._picture is None
        names = [name for name in PROCESSES if not (ours and name == "process_obs")]
        self._processes = overrides(self, PlanEnv, names)

    def init_gym_env(self) -> gym.Env:
        """Make the environment, without the wrappers."""
        kwargs = dict(self._env_kwargs)
        if self.render_mode is not None:
            kwargs["render_mode"] = self.render_mode
        if self._obs_type is not None and _emulated(self._env):
            kwargs["obs_type"] = self._obs_type
        return EnvRecipe(self._env, kwargs, registrations=None).build()

    def apply_wrappers(self, wrappers: Iterable[Any]) -> None:
        """Wrap the environment by each of `wrappers`, in order: a callable, or (callable, arguments).

        Arguments are a dict of keyword arguments, a list or tuple of positional ones, or a single one.
        """
        for item in wrappers:
            wrapper, arguments = item if isinstance(item, tuple) else (item, {})
            if isinstance(arguments, dict):
                self._gym_env = wrapper(self._gym_env, **arguments)
            elif isinstance(arguments, list | tuple):
                self._gym_env = wrapper(self._gym_env, *arguments)
            else:
                self._gym_env = wrapper(self._gym_env, arguments)

    def _keep(self) -> None:
        assert self._gym_env is not None
        keeper = self._keeper = Keeper(self._gym_env, randomness=self._randomness, global_rngs=self._global_rngs)
        self._gym_env.reset()
        try:
            keeper.get()
        except StateError as error:
            log.info("%s is kept by its seed and actions: %s", self.name, error)
            self._gym_env = Replayed(self._gym_env)
            self._gym_env.reset()
            self._keeper = Keeper(self._gym_env, global_rngs=self._global_rngs)

    def _picture_space(self) -> gym.Space | None:
        """Return the space of observations that are pictures; None for the environment's own observations."""
        if self._obs_type not in ("rgb", "grayscale") or _emulated(self._env):
            return None
        shape = self._seen().shape
        return gym.spaces.Box(0, 255, shape if self._obs_type == "rgb" else shape[:2], np.uint8)

    # -- properties --------------------------------------------------------------------------------------------------

    @property
    def gym_env(self) -> gym.Env:
        """The Gymnasium environment with its wrappers, built at the first use."""
        if self._gym_env is None:
            self.setup()
        assert self._gym_env is not None
        return self._gym_env

    @property
    def observation_space(self) -> gym.Space:
        """The space of observations that `step` returns."""
        env = self.gym_env
        return env.observation_space if self._picture is None else self._picture

    @property
    def action_space(self) -> gym.Space:
        """The space of actions that `step` takes."""
        return self.gym_env.action_space

    @property
    def obs_type(self) -> str:
        """The kind of observations."""
        return self._obs_type or ("rgb" if _emulated(self._env) else "coords")

    @property
    def metadata(self) -> dict[str, Any]:
        """The environment's metadata."""
        return self.gym_env.metadata

    @property
    def reward_range(self) -> tuple[float, float] | None:
        """The environment's reward range; None if it has none."""
        return getattr(self.gym_env.unwrapped, "reward_range", None)

    def render(self) -> Any:
        """Return the picture of the environment's own `render`."""
        return self.gym_env.render()

    def get_image(self) -> np.ndarray:
        """Return a picture, uint8[height, width, 3]. Raises UsageError if the environment does not render."""
        ale = getattr(self.gym_env.unwrapped, "ale", None)
        if ale is not None and hasattr(ale, "getScreenRGB"):
            return ale.getScreenRGB()
        return self._seen()

    def _seen(self) -> np.ndarray:
        if self.render_mode is None:
            raise UsageError(f"{self.name} draws nothing: make it with render_mode='rgb_array'")
        image = self.gym_env.render()
        if not isinstance(image, np.ndarray):
            raise UsageError(f"{self.name} with render_mode={self.render_mode!r} gives no picture")
        return image

    # -- playing -----------------------------------------------------------------------------------------------------

    def apply_reset(self, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment."""
        return self.gym_env.reset(seed=seed)

    def apply_action(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment."""
        return (self._gym_env or self.gym_env).step(action)

    def process_obs(self, obs: Any, **step: Any) -> Any:
        """Return the environment's observation, or a picture."""
        if self._picture is None:
            return obs
        image = self._seen()
        return image if self._obs_type == "rgb" else (image @ GREY).astype(np.uint8)

    def plain_walk(self, wanted: bool) -> Steps | None:
        """See `treadle.plan.env.walking`. Return None if a subclass or the object overrides a part of a step."""
        own = not STEPPED.isdisjoint(self.__dict__) or overrides(self, GymPlanEnv, STEPPED)
        if own or self._processes or self._return_image:
            return None
        keeper = self._kept()
        fixed = keeper.fixed
        put_state, take_state = (keeper.put, keeper.take) if fixed else (keeper.set, keeper.get)

        def put(state: Any) -> None:
            if type(state) is EnvState:
                put_state(state)
            else:
                self.set_state(state)

        take: Any = None
        if wanted:
            take = self.get_state if self.STATE_IS_ARRAY else take_state
        return plain(self.gym_env, self.frameskip, put, take, self.run_autoreset)

    def get_state(self) -> Any:
        """Return the complete state: an `EnvState`, or object[1] with `array_state`. Raises StateError."""
        state = self._kept().get()
        return np.fromiter((state,), object, 1) if self.STATE_IS_ARRAY else state

    def set_state(self, state: Any) -> None:
        """Put a state back. Raises StateError for one of another kind."""
        if type(state) is not EnvState and isinstance(state, np.ndarray) and state.shape == (1,):
            state = state[0]
        self._kept().set(state)

    def _kept(self) -> Keeper:
        env = self._gym_env or self.gym_env
        keeper = self._keeper
        assert keeper is not None
        keeper.env = env  # the environment may have been wrapped since
        return keeper

    def close(self) -> None:
        """Close the environment; using it again builds a new one."""
        env, self._gym_env, self._keeper = self.__dict__.get("_gym_env"), None, None
        if env is not None:
            env.close()

    def __getstate__(self) -> dict[str, Any]:
        """Return the arguments and, after `setup`, the state; unpickling builds the environment again."""
        state = self.get_state() if self._gym_env is not None else None
        return {**self.__dict__, "_gym_env": None, "_keeper": None, "_picture": None, "_pickled": state}

    def __setstate__(self, attributes: dict[str, Any]) -> None:
        state: EnvState | None = attributes.pop("_pickled")
        self.__dict__.update(attributes)
        if state is not None:
            self.setup()
            self.set_state(state)


def without_time_limit(env: gym.Env) -> gym.Env:
    """Return the environment without Gymnasium's TimeLimit, at any depth of its wrappers."""
    if isinstance(env, TimeLimit):
        return without_time_limit(env.env)
    if isinstance(env, gym.Wrapper):
        env.env = without_time_limit(env.env)
    return env


def _emulated(name: Any) -> bool:
    return str(name.id if isinstance(name, EnvSpec) else name).startswith(EMULATED)


def _called(maker: Any) -> str:
    return getattr(maker, "__qualname__", type(maker).__name__)
