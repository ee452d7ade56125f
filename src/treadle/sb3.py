"""Stable-Baselines3's interface: `VecEnv` in place of its `SubprocVecEnv` and `DummyVecEnv`.

A `treadle.VectorEnv` in SAME_STEP mode steps the environments; this module turns its five results into SB3's four.
SB3's algorithms read an episode's end in the info of the step that ended it. That info has the last observation under
"terminal_observation"; every info has "TimeLimit.truncated".

Importing this module imports Stable-Baselines3, and so torch. Workers import neither, as functions of this module
travel by value, unless an environment or one of its wrappers does (SB3's `Monitor`, which `make_vec_env` adds).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import wraps
from inspect import signature
from typing import Any

import gymnasium as gym
import numpy as np

from treadle import trees
from treadle.checks import check_names
from treadle.errors import UsageError, needed
from treadle.program.ids import spec_of
from treadle.vector.env_slot import EnvLike, Once
from treadle.vector.gymnasium import VectorEnv
from treadle.vector.infos import InfoStyle, rows_of_infos
from treadle.vector.make_vec import OPTIONS
from treadle.worker.options import started_by

with needed("treadle.sb3 needs Stable-Baselines3", "sb3"):
    from stable_baselines3.common import env_util, vec_env
    from stable_baselines3.common.preprocessing import check_for_nested_spaces

Indices = int | Iterable[int] | None

# options of VectorEnv that would change the interface
FIXED = {
    "autoreset_mode": "SB3's algorithms read the next episode's first observation from the step that ends one",
    "infos": "SB3's algorithms read a list of dicts",
    "observation_mode": "SB3's algorithms want the same spaces everywhere",
    "batch_size": "SB3's algorithms step all environments at once: partial batches are treadle.make_vec's",
}


class VecEnv(vec_env.VecEnv):
    """Steps n environments at once, for the algorithms and wrappers of Stable-Baselines3.

    Use it from one thread at a time. As in `DummyVecEnv`, `step_async` only keeps the actions, and `step_wait` does the
    step: SB3's algorithms do nothing in between.

    Args:
        env_fns: callables that return an environment, or ids; environments are built only in their workers.
        start_method: start method of worker processes: "forkserver", "spawn" or "fork"; None: the default. Scripts need
            no `if __name__ == "__main__"` with any of them.
        **options: options of `treadle.VectorEnv` by name: workers="auto", inline="auto", step_timeout=None, ... With
            on_failure="restart", a worker's death truncates its environments' episodes (their info has "aborted"). New
            episodes begin in new environments, and training goes on.

    Raises:
        UsageError (a ValueError): options that SB3's interface does not allow, two environments that are one object,
            or environments with different render modes.
        NotImplementedError: nested observation spaces, as in SB3.
        TreadleError: the errors of `VectorEnv`. All workers are ended.

    Attributes:
        vector: the `treadle.VectorEnv` that does the work.
        reset_infos: n dicts: the info of each environment's last reset.
    """

    def __init__(self, env_fns: Sequence[EnvLike], start_method: str | None = None, **options: Any) -> None:
        for name in FIXED.keys() & options.keys():
            raise UsageError(f"{name}= cannot be given here: {FIXED[name]}")
        check_names(type(self), options, OPTIONS)
        if options.get("on_failure") == "drop":
            raise UsageError("SB3's algorithms cannot do without some environments: on_failure='raise' or 'restart'")
        mode = gym.vector.AutoresetMode.SAME_STEP
        given = env_fns if callable(env_fns) or isinstance(env_fns, str) else list(env_fns)
        options["worker_options"] = started_by(options.get("worker_options"), start_method, "start_method")
        self.vector = VectorEnv(given, autoreset_mode=mode, infos=InfoStyle.LIST, **options)
        self.vector._pool.calls.again = "reset()"
        self._actions: Any = None
        try:
            _check_distinct(self.vector.call(lambda env: (os.getpid(), id(getattr(env, "unwrapped", env)))))
            spaces = self.vector.single_observation_space, self.vector.single_action_space
            check_for_nested_spaces(spaces[0])
            super().__init__(self.vector.num_envs, *spaces)
        except AssertionError as error:  # SB3's own check of the render modes
            self.vector.close()
            raise UsageError(f"{error}: give all of them the same") from error
        except BaseException:
            self.vector.close()
            raise

    # -- steps -------------------------------------------------------------------------------------------------------

    def reset(self) -> Any:
        """Reset all environments, with the seeds and options that were set since the last reset.

        A step that was begun is dropped. Returns the observations [n, ...]; the infos are in `reset_infos`.
        """
        self._actions = None
        options = [Once(each) if each else None for each in self._options]
        observations, infos = self.vector.reset(seed=self._seeds, options=options)
        self.reset_infos = infos
        self._reset_seeds()
        self._reset_options()
        return observations

    def step_async(self, actions: Any) -> None:
        """Keep the actions of the step that `step_wait` does."""
        self.vector._turns.check_open()
        self._actions = actions

    def step_wait(self) -> Any:
        """Step every environment with the actions of `step_async`.

        Returns:
            observations: [n, ...] arrays in the space's nesting; those of the next episode if one has ended.
            rewards: float32[n].
            dones: bool[n].
            infos: n new dicts, all with "TimeLimit.truncated" (True if the episode was truncated and not terminated).
                At an episode's end also "terminal_observation".

        Raises:
            UsageError: `step_async` was not called.
            BadAction, WorkerError: see `VectorEnv.step`.
        """
        actions, self._actions = self._actions, None
        if actions is None:
            raise UsageError("step_wait() without step_async(actions)")
        observations, rewards, terminated, truncated, infos = self.vector.step(actions)
        dones = terminated | truncated
        ended = dones.nonzero()[0].tolist()
        for slot in ended:
            begun = infos[slot]
            infos[slot] = {**begun.pop("final_info"), "terminal_observation": begun.pop("final_obs")}
            self.reset_infos[slot] = begun
        for info in infos:
            info["TimeLimit.truncated"] = False
        for slot in ended:
            infos[slot]["TimeLimit.truncated"] = bool(truncated[slot] and not terminated[slot])
        return observations, rewards.astype(np.float32), dones, infos

    def close(self) -> None:
        """End all workers. A step that was begun is dropped."""
        self.vector.close()

    # -- calls of the environments -----------------------------------------------------------------------------------

    def env_method(
        self, method_name: str, *method_args: Any, indices: Indices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Call a method of all environments, or of some, looked up through their wrappers.

        Raises UsageError for `reset`, `step` and `close`, which only the vector may call.
        """
        return self._ask(indices, method_name, *method_args, **method_kwargs)

    def get_attr(self, attr_name: str, indices: Indices = None) -> list[Any]:
        """Return an attribute of all environments, or of some, looked up through their wrappers; it must pickle."""
        return self._ask(indices, "get_wrapper_attr", attr_name)

    def set_attr(self, attr_name: str, value: Any, indices: Indices = None) -> None:
        """Set an attribute of the outermost wrapper of all environments, or of some, to one value."""
        self._ask(indices, "__setattr__", attr_name, value)

    def has_attr(self, attr_name: str) -> bool:
        """Return True if all environments, or one of the wrappers of each, have this attribute."""
        return all(self._ask(None, "has_wrapper_attr", attr_name))

    def env_is_wrapped(self, wrapper_class: type[gym.Wrapper], indices: Indices = None) -> list[bool]:
        """Return, for each environment, True if it has a wrapper of this class."""

        def wrapped(env: Any) -> bool:
            while isinstance(env, gym.Wrapper) and not isinstance(env, wrapper_class):
                env = env.env
            return isinstance(env, wrapper_class)

        return self._ask(indices, wrapped)

    def get_images(self) -> list[Any]:
        """Return one RGB picture for each environment. Without render mode "rgb_array", warn; each is then None."""
        if self.render_mode != "rgb_array":
            text = f"no images are made with render_mode={self.render_mode!r}: make the environments with 'rgb_array'"
            warnings.warn(text, stacklevel=2)
            return [None] * self.num_envs
        return list(self.vector.render())

    def _ask(self, indices: Indices, name: Any, *args: Any, **kwargs: Any) -> list[Any]:
        every = range(self.vector.num_envs)
        try:
            slots = [every[index] for index in self._get_indices(indices)]
        except (IndexError, TypeError) as error:
            raise UsageError(f"indices must be integers below {len(every)}, got {indices!r}") from error
        return list(self.vector.call_at(slots, name, *args, **kwargs)) if slots else []


class AgentsVecEnv(VecEnv):
    """Rows of agents in PettingZoo environments, for SB3's algorithms, which train one policy for all agents.

    If an agent ends before its environment, its row has observations of zeros and no rewards until the environment
    begins again. SB3 has no mask for such rows, and learns from them, too.

    Args:
        rows: `treadle.pettingzoo.make_vec(..., form="rows", autoreset_mode="SameStep")`. `close` closes it.

    Raises:
        UsageError: another autoreset mode.
    """

    def __init__(self, rows: Any) -> None:
        if rows.autoreset_mode is not gym.vector.AutoresetMode.SAME_STEP:
            raise UsageError(f'autoreset_mode="SameStep" wanted: {FIXED["autoreset_mode"]}')
        self.vector, self._actions = _RowsInLists(rows), None  # type: ignore[assignment]  # it has all that is used
        vec_env.VecEnv.__init__(self, rows.num_envs, rows.single_observation_space, rows.single_action_space)


class _RowsInLists:
    """A vector of rows whose infos are a list of dicts, and whose environments are called by row."""

    def __init__(self, rows: Any) -> None:
        self.num_envs, self._rows, self._turns = rows.num_envs, rows, rows.vec._turns
        self.close = rows.close

    def reset(self, seed: Any, options: Any) -> tuple[Any, list[Any]]:
        width, n = self._rows.width, self._rows.vec.num_envs
        return self._rows.reset(seed=seed[:n], options=options[::width])[0], [{} for _ in range(self.num_envs)]

    def step(self, actions: Any) -> Any:
        observations, rewards, terminated, truncated, columns = self._rows.step(actions)
        told = rows_of_infos(columns, self.num_envs)
        infos = [told.get(row, {}) for row in range(self.num_envs)]
        for row in np.flatnonzero(terminated | truncated).tolist():
            if "final_obs" not in infos[row]:  # the agent has ended before its environment
                final = trees.row(observations, row)
                infos[row] = {"final_obs": final, "final_info": infos[row]}
        return observations, rewards, terminated, truncated, infos

    def render(self) -> list[Any]:
        return [picture for picture in self._rows.render() for _ in range(self._rows.width)]

    def call_at(self, rows: Sequence[int], name: str, /, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        chosen = [row // self._rows.width for row in rows]
        once = sorted(set(chosen))
        told = dict(zip(once, self._rows.vec.call_at(once, name, *args, **kwargs), strict=True))
        return tuple(told[slot] for slot in chosen)


def _check_distinct(found: Sequence[tuple[int, int]]) -> None:
    """Raise UsageError if two environments are one object. `found`: the pid and address of each environment."""
    for slot, each in enumerate(found):
        if found.index(each) != slot:
            raise UsageError(
                f"environments {found.index(each)} and {slot} are one object: each of env_fns must make an environment "
                "of its own (lambda: gymnasium.make(...), not lambda: env)"
            )


@wraps(env_util.make_vec_env, assigned=())
def make_vec_env(*args: Any, **kwargs: Any) -> Any:
    """SB3's `make_vec_env` with this module's `VecEnv`: n environments, each wrapped in SB3's `Monitor`.

    The arguments are SB3's. `vec_env_cls` defaults to `treadle.sb3.VecEnv`; `vec_env_kwargs` are for its constructor:
    options of `treadle.VectorEnv` by name.
    """
    return _on_ours(env_util.make_vec_env, args, kwargs)


@wraps(env_util.make_atari_env, assigned=())
def make_atari_env(*args: Any, **kwargs: Any) -> Any:
    """SB3's `make_atari_env`, with its arguments and preprocessing, and this module's `VecEnv`; see `make_vec_env`."""
    return _on_ours(env_util.make_atari_env, args, kwargs)


def _on_ours(make: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    check_names(make, kwargs, signature(make).parameters)
    given = signature(make).bind(*args, **kwargs).arguments
    if given.get("vec_env_cls") is None:
        if isinstance(env_id := given["env_id"], str) and ":" not in env_id:
            with suppress(gym.error.Error):  # an unknown id raises in the workers
                spec_of(env_id)  # the id's package registers it in the caller, whose ids the workers get
        given["vec_env_cls"] = VecEnv
    return make(**given)


__all__ = ["AgentsVecEnv", "VecEnv", "make_atari_env", "make_vec_env"]
