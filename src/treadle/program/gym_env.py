"""A Gymnasium environment in a slot: built from an id, a callable or a spec, and stepped.

A suite is an environment whose episodes have different environments, each built when it is needed. Environments of
coroutines are called on an event loop. A worker thread with a time limit takes no other environments, as a thread
cannot be killed.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec, load_env_creator

from treadle.checks import parameters_of, several
from treadle.coroutines import Owner, Settled
from treadle.errors import UsageError
from treadle.program.base import Description, OnEnd, Program, StepResult, settle
from treadle.program.ids import import_package, own_registrations, register_missing, registered, spec_of

CALLS = ("reset", "step", "close")


def recipe_parts(kwargs: Mapping[str, Any] | None, wrappers: Iterable[Any]) -> tuple[dict[str, Any], tuple[Any, ...]]:
    """Return (dict of arguments, tuple of wrappers) that an environment is built with.

    None or an empty value: none. Raises UsageError unless `kwargs` is a mapping and all wrappers can be called.
    """
    if kwargs and not isinstance(kwargs, Mapping):
        raise UsageError(f"env_kwargs are a dict of the environment's arguments, got {kwargs!r}")
    return dict(kwargs or {}), several("wrappers", wrappers, callable, "callables")


@dataclass(frozen=True)
class EnvRecipe:
    """How to build one environment, anywhere.

    Attributes:
        env: a registered id ("CartPole-v1"), "module:Id", an EnvSpec, or a callable that returns an environment.
        kwargs: for `gymnasium.make` or the callable.
        wrappers: applied in order, each called with the environment.
        registrations: the caller's registry (`program.ids`), so that its ids are known where this is built; None: they
            are not needed.

    Raises:
        UsageError: `env` is none of these.
    """

    env: str | EnvSpec | Callable[..., gym.Env]
    kwargs: dict[str, Any] = field(default_factory=dict)
    wrappers: tuple[Callable[[gym.Env], gym.Env], ...] = ()
    registrations: bytes | None = field(default_factory=own_registrations, repr=False, compare=False)

    @classmethod
    def of(cls, env: Any, kwargs: Mapping[str, Any] | None, wrappers: Iterable[Any]) -> EnvRecipe:
        """Return a recipe of a caller's arguments. Raises UsageError as the class and `recipe_parts` do."""
        return cls(env, *recipe_parts(kwargs, wrappers))

    def __post_init__(self) -> None:
        """Raise UsageError unless `env` can build environments."""
        if isinstance(self.env, str) and not self.env:
            raise UsageError("an environment is an id such as CartPole-v1, and this one is empty")
        if isinstance(self.env, str | EnvSpec) or (callable(self.env) and not isinstance(self.env, gym.Env)):
            return
        text = f"an environment is an id, an EnvSpec or a callable that builds it, got {type(self.env).__name__}"
        if hasattr(self.env, "step") and hasattr(self.env, "reset"):
            text += ", which is built already and cannot be built again in a worker: give its id or its class, or a "
            text += "function that returns it"
        raise UsageError(text)

    def check_id(self) -> None:
        """Raise UsageError or MissingExtra as `build` would for an unknown id. Nothing is built."""
        if isinstance(self.env, str) and ":" not in self.env:
            register_missing(self.registrations)
            with suppress(gym.error.Error):
                spec_of(self.env)

    def build(self) -> gym.Env:
        """Build the environment. Raises UsageError or MissingExtra for a wrong recipe, else what building raises."""
        with Owner.untimed() as timed:  # those within it are its own affair
            env: Any = self._built()
        layer = env
        while isinstance(layer, gym.Wrapper) and not isinstance(layer, Awaited):
            layer = layer.env
        if timed and not isinstance(layer, Awaited):
            close_env(env)
            raise UsageError(
                f"step_timeout with backend='thread' needs an environment with coroutines (async def) as reset and "
                f"step, not {type(layer).__name__}: a thread cannot be killed. Use backend='process'"
            )
        return env  # type: ignore[no-any-return]

    def _built(self) -> gym.Env:
        register_missing(self.registrations)
        if isinstance(self.env, str):
            import_package(self.env)
            with registered(self.env), complete(partial(_creator, self.env), self.env, self.kwargs):
                env: Any = gym.make(self.env, **self.kwargs)
        elif isinstance(self.env, EnvSpec):
            import_package(self.env.id)
            with complete(partial(_creator, self.env), self.env.id, self.kwargs):
                env = gym.make(self.env, **self.kwargs)
        else:
            env = construct(self.env, self.kwargs)
            if of_coroutines(env):
                env = Awaited(env)
        for wrapper in self.wrappers:
            env = wrapper(env)
        made = f"{self.env!r} made a {type(env).__name__}"
        if not (hasattr(env, "step") and hasattr(env, "reset")):
            raise UsageError(f"{made}, which is not a Gymnasium environment: it has no step and reset")
        for name in ("observation_space", "action_space"):
            if not hasattr(env, name):
                raise UsageError(f"{made} without an {name}: its class or its constructor must set self.{name}")
        return env


def construct(builder: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
    """Return `builder(**kwargs)`. Raises UsageError if arguments are missing, else what the builder raises."""
    with complete(lambda: (builder, {}), getattr(builder, "__name__", repr(builder)), kwargs):
        return builder(**kwargs)


@contextmanager
def complete(find: Callable[[], tuple[Any, Mapping[str, Any]]], name: str, kwargs: Mapping[str, Any]) -> Iterator[None]:
    """Run a block that builds an environment with `kwargs`. Raises UsageError that names missing arguments.

    `find`: returns the builder, and its arguments besides `kwargs`. `name`: of the environment, for the text. Other
    errors of the block are raised unchanged.
    """
    try:
        yield
    except TypeError as error:
        builder, besides = find()
        lacking = _lacking(builder, {**besides, **kwargs})
        if not lacking:
            raise
        names = " and ".join(map(repr, lacking))
        example = json.dumps(dict.fromkeys(lacking, "...")).replace('"..."', "...")
        besides_that = f" ({error})" if "unexpected keyword" in str(error) else ""
        raise UsageError(
            f"{name} needs the argument{'s' if len(lacking) > 1 else ''} {names}: --env-kwargs '{example}' on the "
            "command line, env_kwargs= in Python (by name for make_vec)" + besides_that
        ) from error


def _creator(env: str | EnvSpec) -> tuple[Any, Mapping[str, Any]]:
    """Return the function that `gymnasium.make` calls for an environment, and the arguments of its registration."""
    spec = env if isinstance(env, EnvSpec) else gym.spec(env.rpartition(":")[2])
    creator = load_env_creator(spec.entry_point) if isinstance(spec.entry_point, str) else spec.entry_point
    return creator, spec.kwargs


def _lacking(builder: Any, given: Mapping[str, Any]) -> list[str]:
    """Return the names of a builder's arguments without a default that are not `given`."""
    many = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    wanted = [p.name for p in parameters_of(builder) or () if p.default is p.empty and p.kind not in many]
    return [name for name in wanted if name not in given]


class GymEnv(Program):
    """Runs one `gymnasium.Env`, or an object with its `reset`, `step` and two spaces.

    Args:
        recipe: how the environment is built.
        on_end: what happens when an episode ends.

    Raises UsageError if `reset` does not take `seed` and `options`, and as `EnvRecipe.build`.
    """

    def __init__(self, recipe: EnvRecipe, on_end: OnEnd = OnEnd.NEXT_STEP) -> None:
        self.env = recipe.build()
        check_reset(self.env, "seed", "options")
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
            numpy_integers=wants_numpy_integers(env),
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
        """Return an attribute of the environment or of a wrapper, or the result of calling it if it can be called."""
        attribute = getattr(self.env, "get_wrapper_attr", partial(getattr, self.env))(name)
        return attribute(*args, **kwargs) if callable(attribute) else attribute

    def close(self) -> None:
        close_env(self.env)

    def _held(self, action: Any) -> Any:
        raise UsageError("this episode has ended and nothing moves on by itself here: reset the slot first")


def of_coroutines(env: Any) -> bool:
    """Return True if `reset`, `step` or `close` of an environment, or of a class of environments, is a coroutine."""
    env = env.func if isinstance(env, partial) else env
    return any(inspect.iscoroutinefunction(getattr(env, name, None)) for name in CALLS)


class Awaited(gym.Wrapper):
    """Gymnasium's interface of an environment with coroutines (any of `reset`, `step` and `close`).

    While one environment waits, others of the same process go on. Raises UsageError unless `env` is a `gymnasium.Env`.
    """

    def __init__(self, env: Any) -> None:
        if not isinstance(env, gym.Env):
            raise UsageError(f"an environment of coroutines derives from gymnasium.Env; {type(env).__name__} does not")
        super().__init__(env)
        self._settled, self._closed = Settled(), False
        self.reset = self._waiting(env.reset)  # type: ignore[method-assign]
        self.step = self._waiting(env.step)  # type: ignore[method-assign]

    def _waiting(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            return self._settled(method(*args, **kwargs))

        return call

    def close(self) -> None:
        if self._closed:
            return
        self._closed, owner = True, Owner.mine()
        try:
            end = self._settled if owner is None or not owner.over else self._settled.begin
            end(self.env.close())  # type: ignore[func-returns-value]
        finally:
            self._settled.close()


def check_reset(env: Any, *names: str) -> None:
    """Raise UsageError for an environment whose `reset` does not take these keyword arguments.

    Gymnasium's own wrappers pass arguments on, so the first layer below them is checked.
    """
    while isinstance(env, gym.Wrapper) and type(env).__module__.startswith("gymnasium."):
        env = env.env
    parameters = parameters_of(env.reset)
    if parameters is None or any(p.kind is p.VAR_KEYWORD for p in parameters):
        return
    taken = {p.name for p in parameters if p.kind is not p.POSITIONAL_ONLY}
    for name in names:
        if name not in taken:
            raise UsageError(
                f"{type(env).__name__}.reset() takes no `{name}`: Gymnasium's environments have "
                "reset(*, seed=None, options=None). Add it, or wrap the environment in one that has it"
            )


def wants_numpy_integers(env: Any) -> bool:
    """Return True for Gymnasium's own environments without a table `P`; they get NumPy integers as actions.

    They check that their space contains the action. With a NumPy integer the check takes half the time: 0.7 us less, of
    6 for a step of CartPole. Other environments get Python's integers. Some compare the action with an enum, which
    takes 60 times as long with NumPy's (MiniGrid: 4 us a comparison). Others look it up in a table `P`.
    """
    env = getattr(env, "unwrapped", env)
    return type(env).__module__.startswith("gymnasium.envs.") and not hasattr(env, "P")


def close_env(env: Any) -> None:
    """Close an environment, if it has `close`."""
    if hasattr(env, "close"):
        env.close()


def portable_spec(env: gym.Env) -> str | None:
    """Return the environment's spec as JSON; None: it has none, or JSON cannot hold it."""
    spec = getattr(env, "spec", None)
    if spec is None:
        return None
    try:
        return spec.to_json()
    except Exception:  # noqa: BLE001 - a spec with lambdas in it raises whatever its kwargs raise
        return None


TASK = "task"  # the key of a reset's options, and of its info, that names the task


@dataclass(frozen=True)
class Suite:
    """Makes a `SuiteEnv` in the process that calls it.

    Attributes:
        tasks: name of a task -> how its environment is built. A slot has one of them built at a time.
    """

    tasks: Mapping[str, EnvRecipe]

    def __call__(self) -> gym.Env:
        return SuiteEnv(self)


class SuiteEnv(gym.Env):
    """An environment whose resets choose a task.

    `reset` takes options {"task": name, "options": those of the task's own reset, or None}; None: the first task. The
    info of a reset has the name under "task". Raises UsageError for a task whose spaces are not the first one's.
    """

    def __init__(self, suite: Suite) -> None:
        self._suite = suite
        self._first = next(iter(suite.tasks))
        self._built: dict[str, Any] = {}  # the one that is played, by its name
        self._now = self._of(self._first)
        self.observation_space, self.action_space = self._now.observation_space, self._now.action_space
        self.spec = getattr(self._now, "spec", None)

    def check(self) -> None:
        """Build every task once, so that a wrong task fails before any is played.

        Raises UsageError for a task that has other spaces, and what building raises.
        """
        for recipe in self._suite.tasks.values():  # the quick ones first
            recipe.check_id()
        for task in [*self._suite.tasks][1:]:
            self._of(task)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        task = self._first if options is None else options[TASK]
        own = None if options is None else options["options"]
        self._now = self._of(task)
        observation, info = self._now.reset(seed=seed, **({} if own is None else {"options": own}))
        return observation, {**info, TASK: task}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        return self._now.step(action)  # type: ignore[no-any-return]

    def close(self) -> None:
        while self._built:
            close_env(self._built.popitem()[1])

    def _of(self, task: str) -> Any:
        if task in self._built:
            return self._built[task]
        self.close()
        env = self._suite.tasks[task].build()
        for name in ("observation_space", "action_space") if task != self._first else ():
            got, expected = getattr(env, name), getattr(self, name)
            if got != expected:
                close_env(env)
                raise UsageError(f"tasks of one run have one {name}: {task} has {got}, {self._first} has {expected}")
        self._built[task] = env
        return env
