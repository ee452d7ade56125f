"""The keeper: takes the complete state of an environment and puts it back, here or in another one of its kind.

Complete means: with the same actions the same happens again, resets included. A state has what the environment and
every wrapper hold (a step counter, a stack of frames, statistics), and every random generator. Each layer is kept in
the cheapest way that is known for it:

| layer | how |
|---|---|
| Gymnasium's classic control and stateful wrappers | the few attributes that change (`KNOWN`) |
| ALE, MuJoCo | the simulator's own state (`simulators.py`), and the attributes around it |
| a class with `state_is_all = True` | its own get_state() and set_state(state), and nothing below it |
| anything else (MiniGrid, yours) | all its attributes, pickled together (`Fixed`) |

An attribute that cannot be kept (a running generator, a handle of another library) is an error that names it and its
layer. `Replayed` (`replay.py`) keeps such an environment by its seed and actions. A library cannot know whether the
attributes that it keeps are all there is: `treadle.plan.check_state` tries it out.
"""

from __future__ import annotations

import io
import pickle
import random
from marshal import dumps, loads
from sys import intern
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np

from treadle import pickling
from treadle.errors import StateError
from treadle.states.simulators import AleState, MujocoState
from treadle.states.state import EnvState

SIMULATORS: tuple[Any, ...] = (AleState, MujocoState)
FORMAT = 2  # of marshal: the last one that writes equal values as equal bytes
NONE: list[Any] = []
Name = tuple[Any, ...]  # of an object that stays
PLAIN = frozenset({int, float, bool, str, bytes, type(None), type(...)})
MISSING = ...  # in the place of an attribute that does not exist
VALUES = PLAIN - {type(...)}  # values that stand for themselves
SHORT = 16  # numbers in a vector that is written as a tuple
_FLOAT64 = np.dtype(np.float64)
CHECKER = "gymnasium.wrappers.common.PassiveEnvChecker"
PCG64 = "PCG64"  # the generator of Gymnasium's environments: four numbers

# The attributes of these classes that change while they run are known, so only those are kept: a state of CartPole is
# some 200 bytes. Of any other class all attributes are kept. Class -> the attributes that change; "_np_random" is kept
# for every class.
KNOWN: dict[str, tuple[str, ...]] = {
    "gymnasium.envs.classic_control.cartpole.CartPoleEnv": ("state", "steps_beyond_terminated"),
    "gymnasium.envs.classic_control.acrobot.AcrobotEnv": ("state",),
    "gymnasium.envs.classic_control.mountain_car.MountainCarEnv": ("state",),
    "gymnasium.envs.classic_control.continuous_mountain_car.Continuous_MountainCarEnv": ("state",),
    "gymnasium.envs.classic_control.pendulum.PendulumEnv": ("state", "last_u"),
    "ale_py.env.AtariEnv": (),
    "gymnasium.wrappers.common.TimeLimit": ("_elapsed_steps",),
    "gymnasium.wrappers.common.OrderEnforcing": ("_has_reset", "_has_rendered"),
    "gymnasium.wrappers.common.Autoreset": ("autoreset",),
    # not episode_start_time and time_queue: a clock means nothing at another time
    "gymnasium.wrappers.common.RecordEpisodeStatistics": (
        "episode_count",
        "episode_returns",
        "episode_lengths",
        "return_queue",
        "length_queue",
    ),
    "gymnasium.wrappers.common.PassiveEnvChecker": (),
    # films are not part of the state
    "gymnasium.wrappers.rendering.RecordVideo": (),
    "gymnasium.wrappers.rendering.RenderCollection": (),
    "gymnasium.wrappers.rendering.HumanRendering": (),
}

# of every layer: the inner environment (a layer of its own), and what Gymnasium's Wrapper remembers of it
SKIPPED = frozenset(
    {
        "env",
        "spec",
        "metadata",
        "_saved_kwargs",
        "_action_space",
        "_observation_space",
        "_metadata",
        "_cached_spec",
        "_ezpickle_args",
        "_ezpickle_kwargs",
    }
)


class Keeper:
    """Keeps one environment's state.

    Args:
        env: the environment with its wrappers. It may be wrapped or changed later: its layers are looked up each time.
        randomness: True: keep the generator of ALE's emulator. None: keep it if it decides anything (sticky actions).
            False: do not keep it. Then the steps after a state are random, for a planner that must not foresee sticky
            actions.
        global_rngs: keep `random`'s and NumPy's global generators too, for environments that draw from them (5 kB).
    """

    def __init__(self, env: gym.Env, *, randomness: bool | None = None, global_rngs: bool = False) -> None:
        self.env = env
        self._randomness, self._global_rngs = randomness, global_rngs
        self._layers: list[Any] = []
        self.look()  # replaces the emulators of some layers, which record their actions from now on

    @property
    def kind(self) -> str:
        """The name of the environment whose states it keeps."""
        self.look()
        return self._kind

    @property
    def fixed(self) -> bool:
        """True if no layer is kept whole, with all its attributes. The other layers never change what they wrap."""
        self.look()
        return not self._whole

    def get(self) -> EnvState:
        """Return the present state. Raises StateError, which names the layer and the attribute that cannot be kept."""
        self.look()
        return self.take()

    def take(self) -> EnvState:
        """Do as `get` without looking at the layers: no layer may have come or gone since the latest `get` or `set`."""
        plain = PLAIN
        try:
            named = [
                value if type(value := found.get(name, MISSING)) in plain else encode(value)
                for found, name in self._named
            ]
            held = [found.get(name) for found, name in self._generators]
            generators = [None if each is None else state_of_generator(each) for each in held]
            if self._bare:
                return EnvState(self._kind, dumps((named, generators, NONE, None, None), FORMAT))
            own = [value if type(value := part.get()) in VALUES else encode(value) for part in self._own]
            rest = self._rest() if self._whole else None
            shared = encode((random.getstate(), np.random.get_state())) if self._global_rngs else None
            return EnvState(self._kind, dumps((named, generators, own, rest, shared), FORMAT))
        except StateError:
            raise
        except Exception as error:
            raise StateError(f"the state of {self._kind} cannot be captured: {error}") from error

    def set(self, state: EnvState) -> None:
        """Put the environment into a state.

        Raises:
            StateError: `state` is not an EnvState, or is one of another kind. The environment is not changed.
        """
        if not isinstance(state, EnvState):
            raise StateError(f"a state of {self.kind} is an EnvState, got {type(state).__name__}")
        self.look()
        self.put(state)

    def put(self, state: EnvState) -> None:
        """Do as `set` without looking at the layers: no layer may have come or gone since the latest `get` or `set`."""
        if state.kind != self._kind:
            raise StateError(f"this is a state of {state.kind}, and the environment is {self._kind}")
        named, generators, own, rest, shared = loads(state.data)
        values = VALUES
        for (found, name), value in zip(self._named, named):
            if type(value) in values:
                found[name] = value
            elif value is MISSING:
                found.pop(name, None)
            else:
                found[name] = decode(value)
        for (found, name), value in zip(self._generators, generators):
            if value is not None:
                found[name] = generator_in(found.get(name), value)
            elif found.get(name) is not None:
                found[name] = None
        for checker in self._checkers:
            if not checker.checked_data_reuse:  # it compares first steps with the reset before, which states lack
                checker.checked_reset = checker.checked_step = checker.checked_data_reuse = True
                checker._previous_data = None
        if self._bare:
            return
        for part, value in zip(self._own, own):
            part.set(value if type(value) in values else decode(value))
        if rest is not None:
            self._put_rest(rest)
        if shared is not None:
            python, legacy = decode(shared)
            random.setstate(python)
            np.random.set_state(legacy)

    # -- which layers there are --------------------------------------------------------------------------------------

    def look(self) -> None:
        """Look at the layers, and plan how to keep them if they have changed since the latest look."""
        layer: Any = self.env
        for each in self._layers:
            if each is not layer:
                break
            layer = each.__dict__.get("env")
        else:
            if self._layers:
                return
        self._plan(layers_of(self.env))

    def _plan(self, layers: list[Any]) -> None:
        self._layers = []
        self._named: list[tuple[dict[str, Any], str]] = []
        self._own: list[Any] = []
        self._whole: list[tuple[int, Any, frozenset[str]]] = []
        self._generators: list[tuple[dict[str, Any], str]] = []
        self._checkers = [layer for layer in layers if class_name(layer) == CHECKER]
        for index, layer in enumerate(layers):
            if keeps_itself(layer):
                self._own.append(SimpleNamespace(get=layer.get_state, set=layer.set_state))
                continue
            simulator = next((s for s in SIMULATORS if s.fits(layer)), None)
            if simulator is not None:
                self._own.append(simulator(layer, self._randomness))
            names = KNOWN.get(class_name(layer))
            generators = generators_of(layer) if names is None else ("_np_random",)
            if isinstance(layer, gym.Wrapper):
                generators = tuple(name for name in generators if name != "_np_random" or name in layer.__dict__)
            self._generators.extend((layer.__dict__, name) for name in generators)
            if names is None:
                apart = {*SKIPPED, *generators, *(() if simulator is None else simulator.fixed)}
                self._whole.append((index, layer, frozenset(apart)))
            else:
                self._named.extend((layer.__dict__, name) for name in names)
        inner, around = self.env, []
        while isinstance(inner, gym.Wrapper):
            around.append(type(inner).__name__)
            inner = inner.env
        kind = inner.spec.id if inner.spec is not None else class_name(inner)
        self._kind = "<".join([*around, kind]) + ">" * len(around)
        self._bare = not (self._own or self._whole or self._global_rngs)
        self._layers = layers

    # -- layers that are kept whole ----------------------------------------------------------------------------------

    def _rest(self) -> bytes:
        fixed, kept = self._fixed()
        try:
            return dump(kept, fixed)
        except Exception as error:
            raise self._named_error(kept, fixed, error) from error

    def _put_rest(self, data: bytes) -> None:
        fixed, before = self._fixed()
        after = load(data, fixed)
        for (_, layer, _), old, new in zip(self._whole, before, after, strict=True):
            for name in old.keys() - new.keys():
                delattr(layer, name)
            layer.__dict__.update(new)

    def _fixed(self) -> tuple[Fixed, list[dict[str, Any]]]:
        """Return the objects that stay, and for each layer that is kept whole the attributes that travel."""
        fixed = Fixed()
        kept: list[dict[str, Any]] = []
        for index, layer in enumerate(self._layers):
            fixed.add((index,), layer)
        for index, layer, apart in self._whole:
            travels: dict[str, Any] = {}
            # sorted and interned, as equal states should be equal bytes: a pickle of one object twice is not that of
            # two equal ones
            for name in sorted(layer.__dict__):
                name, value = intern(name), layer.__dict__[name]
                if name in apart:
                    if isinstance(value, gym.Env) or not isinstance(value, str | int | float | tuple | type(None)):
                        fixed.add((index, name), value)
                elif stays(value):
                    fixed.add((index, name), value)
                else:
                    travels[name] = value
            kept.append(travels)
        for index, layer in enumerate(self._layers):  # last, so that a layer is named by its number wherever it is met
            fixed.add((index,), layer)
        return fixed, kept

    def _named_error(self, kept: list[dict[str, Any]], fixed: Fixed, error: Exception) -> StateError:
        for (_, layer, _), attributes in zip(self._whole, kept, strict=True):
            for name, value in attributes.items():
                try:
                    dump(value, fixed)
                except Exception as why:  # noqa: BLE001 - as above
                    return StateError(
                        f"the state of {self._kind} cannot be captured: {type(layer).__name__}.{name} "
                        f"({type(value).__name__}): {why}. Wrap the environment in treadle.plan.Replayed, which keeps "
                        "it by its seed and actions"
                    )
        return StateError(f"the state of {self._kind} cannot be captured: {error}")


# Objects are pickled by value, except for those that stay where they are. The attributes of an environment are part of
# its state. The environment itself, its wrappers, its spaces, its emulator and its window are not: they exist once on
# each side. So the pickling side names the objects that stay (`Fixed`). A reference to one of them travels as its name
# and becomes the receiver's own object of that name. Copying environments instead does not work: Gymnasium's pickle as
# the arguments they were built with, and lose their state.


class Fixed:
    """The objects that stay, by name, on one side."""

    def __init__(self) -> None:
        self.named: dict[Name, Any] = {}
        self._names: dict[int, Name] = {}

    def add(self, name: Name, value: Any) -> None:
        """Make `value` stay, under the name `name`."""
        self.named[name] = value
        self._names[id(value)] = name

    def name_of(self, value: Any) -> Name | None:
        """Return a value's name; None for a value that travels. Raises TypeError for an environment without a name."""
        name = self._names.get(id(value))
        if name is None and isinstance(value, gym.Env):
            raise TypeError(
                f"a {type(value).__name__} inside another environment has a state of its own that cannot be captured"
            )
        return name


def dump(value: Any, fixed: Fixed) -> bytes:
    """Pickle `value`. Raises what pickling raises, and TypeError for a nested environment."""
    try:
        return _dumped(pickle.Pickler, value, fixed)
    except (pickle.PicklingError, AttributeError):  # lambdas and local classes
        return _dumped(pickling.Pickler, value, fixed)


def _dumped(kind: Any, value: Any, fixed: Fixed) -> bytes:
    stream = io.BytesIO()
    pickler = kind(stream, 5)
    pickler.persistent_id = fixed.name_of
    pickler.dump(value)
    return stream.getvalue()


def load(data: bytes, fixed: Fixed) -> Any:
    """Return the value again, with this side's own objects in the place of those that stayed."""
    unpickler: Any = pickle.Unpickler(io.BytesIO(data))
    unpickler.persistent_load = fixed.named.__getitem__
    return unpickler.load()


# windows, surfaces, renderers: an environment's picture does not decide what it does
_SHOWN = ("pygame", "pyglet", "OpenGL", "moviepy", "matplotlib", "cv2", "gymnasium.envs.mujoco.mujoco_rendering")


def stays(value: Any) -> bool:
    """Return True if an attribute's value is machinery that every environment has of its own."""
    if isinstance(value, gym.Space | gym.envs.registration.EnvSpec | ModuleType):
        return True
    if isinstance(value, FunctionType):  # a function that cannot be found by its name
        return "<" in value.__qualname__
    return type(value).__module__.startswith(_SHOWN)


def class_name(value: Any) -> str:
    """Return module and name of an object's class."""
    return f"{type(value).__module__}.{type(value).__qualname__}"


def layers_of(env: gym.Env) -> list[Any]:
    """Return the wrappers from the outermost in, and the environment, up to a layer that keeps its own state."""
    layers: list[Any] = [env]
    while isinstance(env, gym.Wrapper) and not keeps_itself(env):
        env = env.env
        layers.append(env)
    return layers


def keeps_itself(layer: Any) -> bool:
    """Return True if its class has `state_is_all = True`: its get_state() and set_state(state) hold its whole state."""
    return getattr(type(layer), "state_is_all", False)


def generators_of(layer: Any) -> tuple[str, ...]:
    """Return the attributes that are NumPy generators, `_np_random` first, which counts before it exists, too."""
    found = [name for name, value in layer.__dict__.items() if isinstance(value, np.random.Generator)]
    always = [] if isinstance(layer, gym.Wrapper) else ["_np_random"]
    return tuple(dict.fromkeys([*always, *sorted(found)]))


def state_of_generator(generator: np.random.Generator) -> Any:
    """Return a generator's state as plain data."""
    state: Any = generator.bit_generator.state
    if state["bit_generator"] != PCG64:
        return encode(state)
    inner = state["state"]
    return inner["state"], inner["inc"], state["has_uint32"], state["uinteger"]


def generator_in(generator: np.random.Generator | None, state: Any) -> np.random.Generator:
    """Return the generator in that state; a new one where it is of another type than the state."""
    if type(state) is tuple:
        number, inc, flag, half = state
        inner = {"state": number, "inc": inc}
        state = {"bit_generator": PCG64, "state": inner, "has_uint32": flag, "uinteger": half}
    else:
        state = decode(state)
    kind = getattr(np.random, state["bit_generator"])
    if generator is None or type(generator.bit_generator) is not kind:
        generator = np.random.Generator(kind(0))
    generator.bit_generator.state = state
    return generator


# -- values as plain data: what `marshal` writes quickly, and always as the same bytes --------------------------------
# Numbers, text, None and bytes are themselves. A short vector of float64 (the state of classic control) is a tuple of
# its numbers: both ways that takes half as long as its bytes would. Any other array is a list of what it takes to make
# it again, and anything else is pickled. A list is always one of those two, and values that are lists or tuples are
# pickled.


def encode(value: Any) -> Any:
    """Return a value of a type that is not in PLAIN as plain data. Raises what pickling raises."""
    if type(value) is np.ndarray:
        if value.dtype is _FLOAT64 and value.ndim == 1 and len(value) <= SHORT:
            return tuple(value.tolist())
        if not value.dtype.hasobject and value.dtype.names is None:
            return [value.dtype.str, value.shape, value.tobytes()]
    return [pickle.dumps(value, 5)]


def decode(value: Any) -> Any:
    """Return the value again; an array is new and can be written."""
    if type(value) is tuple:
        return np.array(value, _FLOAT64)
    if len(value) == 1:
        return pickle.loads(value[0])
    kind, shape, data = value
    array = np.frombuffer(bytearray(data), kind)
    return array if len(shape) == 1 else array.reshape(shape)
