"""The states of simulators: of the Atari emulator, with the part that it does not show, and of MuJoCo.

**ALE.** `cloneState` has the console and the counters, and with `include_rng` the emulator's own generator, which
decides sticky actions and nothing else. The generator is 7 kB of the state's 14 and half of the time of putting it
back. Without sticky actions it is left out.

`cloneState` lacks the action that would be repeated. With probability p a frame ignores its action and repeats the one
before, which cannot be read anywhere. So the emulator's calls of `act` are recorded. Every act draws twice from the
generator, a Mersenne Twister that the state shows as text, once for each player. From the generator's state at the last
known moment and the actions since, the effective action follows exactly. It matters only where the next draw repeats (a
share of p of the states); then the state names it. Putting such a state back begins at a moment whose next draw does
not repeat. From there the emulator plays a frame with that action, and then takes the state.

The screen is drawn from the next frame on: `render` right after putting a state back shows the screen before it.

**MuJoCo**, which only this file imports. The integration state (time, positions, velocities, controls, warm start)
decides where the next `mj_step` goes. But environments also read derived arrays between two steps, such as the torso's
position before a step, for the speed. After `mj_step` those belong to the time *before* the last integration, so
computing them anew would not give them back. So all arrays of `MjData` whose size the model decides are kept. Contacts
are not: they are made by each step.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from treadle.errors import StateError

WORDS = 624
TAIL = 8  # bytes after the generator's text: two counters
NOOP = (0, 1.0)
REMEMBERED = 64  # acts; that all of them are ignored (p ** 64) does not happen


class Listening:
    """An emulator that records its actions, with everything else as it is."""

    def __init__(self, ale: Any) -> None:
        self._ale = ale
        for name in dir(ale):
            if not name.startswith("_") and name not in ("act", "reset_game", "loadROM", "restoreState"):
                setattr(self, name, getattr(ale, name))
        self._act = ale.act
        self.base: tuple[bytes, tuple[Any, float]] | None = None  # (generator, effective action) at a known moment
        self.acts: deque[tuple[Any, float]] = deque(maxlen=REMEMBERED)  # the latest since then
        self.count = 0  # how many acts there were since then
        self.calm: Any = None  # a state whose next draw does not repeat

    def act(self, action: Any, strength: float = 1.0) -> Any:
        """Play one frame."""
        self.acts.append((action, strength))
        self.count += 1
        return self._act(action, strength)

    def reset_game(self) -> None:
        """Begin a new game, which has no action to repeat."""
        self._ale.reset_game()
        self.know(generator_of(self._ale.cloneState(include_rng=True)), NOOP)

    def loadROM(self, path: Any) -> None:
        """Load another cartridge, which begins another generator: nothing is known until the game begins."""
        self._ale.loadROM(path)
        self.base = self.calm = None

    def restoreState(self, state: Any) -> None:
        """Put a state back for other code. Such a state does not hold the last action, which is then unknown."""
        self._ale.restoreState(state)
        self.base = None

    def know(self, generator: bytes, action: tuple[Any, float]) -> None:
        """Note the generator's present state, and the action that would be repeated."""
        self.base, self.count = (generator, action), 0
        self.acts.clear()

    def effective(self, probability: float) -> tuple[Any, float]:
        """Return the action that a frame would repeat now. Raises StateError when that cannot be known."""
        if self.base is None:
            raise StateError(
                "which action the emulator would repeat is not known (sticky actions): reset the environment once "
                "after its keeper is made"
            )
        text, action = self.base
        kept = len(self.acts)
        draws = _doubles(twister(text), 2 * self.count)[::2][self.count - kept :]
        taken = np.flatnonzero(draws >= probability)
        return self.acts[taken[-1]] if len(taken) else action


class AleState:
    """Keeps the emulator of a layer that has one in `ale`.

    Args:
        layer: the environment.
        randomness: keep the emulator's generator too; None: when there are sticky actions.
    """

    fixed = ("ale",)

    def __init__(self, layer: Any, randomness: bool | None) -> None:
        self._layer = layer
        self._randomness = randomness
        self._kind: Any = None  # the class of the emulator's states
        self._probability: float = layer.ale.getFloat("repeat_action_probability")
        if self._sticky() and not isinstance(layer.ale, Listening):
            layer.ale = Listening(layer.ale)

    @staticmethod
    def fits(layer: Any) -> bool:
        """Return True if it holds an emulator."""
        return hasattr(layer.__dict__.get("ale"), "cloneState")

    def get(self) -> bytes | tuple[bytes, tuple[Any, float]]:
        """Return the emulator's state as bytes, with the action that is repeated next, if one is."""
        ale = self._layer.ale
        if not self._sticky():
            return ale.cloneState(include_rng=bool(self._randomness)).__getstate__()
        state = ale.cloneState(include_rng=True)
        text = generator_of(state)
        before, following = _around(text)
        action = None
        if following < self._probability:
            heeded = ale.base is not None and ale.acts and before is not None and before >= self._probability
            action = ale.acts[-1] if heeded else ale.effective(self._probability)
        ale.know(text, action or NOOP)  # any action will do where the next draw does not repeat it
        data = state.__getstate__()
        return data if action is None else (data, (getattr(action[0], "value", action[0]), action[1]))

    def set(self, kept: bytes | tuple[bytes, tuple[Any, float]]) -> None:
        """Put a state back."""
        data, action = (kept, None) if isinstance(kept, bytes) else kept
        ale = self._layer.ale
        if self._kind is None:
            self._kind = type(ale.cloneState())
        state = self._kind.__new__(self._kind)
        state.__setstate__(data)
        if not self._sticky():
            ale.restoreState(state)
            return
        inner = ale._ale
        if action is not None:
            if ale.calm is None:
                ale.calm = _calm(inner, self._probability)
            inner.restoreState(ale.calm)
            inner.act(type(inner.getMinimalActionSet()[0])(action[0]), action[1])
        inner.restoreState(state)
        ale.know(generator_of(state), action or NOOP)

    def _sticky(self) -> bool:
        return self._probability > 0 and self._randomness is not False


def generator_of(state: Any) -> bytes:
    """Return the text of the emulator's generator in one of its states: 624 words and a position.

    Raises StateError for a version of ale-py that writes states in another way.
    """
    data = state.__getstate__()
    end = len(data) - TAIL
    start = data.rfind(b"\0", 0, end) + 1
    text = data[start:end]
    if int.from_bytes(data[start - 4 : start], "little") != len(text):
        raise StateError("this version of ale-py writes its states in a way that is not known here")
    return text


def twister(text: bytes) -> np.random.MT19937:
    """Return NumPy's generator in the emulator's state: the same algorithm, so the same draws."""
    words = np.array(text.split(), np.uint64)
    if len(words) != WORDS + 1:
        raise StateError(f"the emulator's generator has {len(words)} words, not {WORDS + 1}")
    generator = np.random.MT19937(0)
    generator.state = {
        "bit_generator": "MT19937",
        "state": {"key": words[:WORDS].astype(np.uint32), "pos": int(words[WORDS])},
    }
    return generator


def _around(text: bytes) -> tuple[float | None, float]:
    """Return the draw that decided the last act (None: it is gone), and the one that will decide the next.

    A Mersenne Twister's draws are its words, tempered; there are two to an act.
    """
    position = int(text[text.rfind(b" ") + 1 :])
    if position >= WORDS:
        return None, _doubles(twister(text), 1)[0]
    words = text.split(b" ", position + 1)
    return _tempered(int(words[position - 2])) if position >= 2 else None, _tempered(int(words[position]))


def _tempered(word: int) -> float:
    """Return the draw in [0, 1) that a word of the twister gives (Matsumoto and Nishimura, 1998)."""
    word ^= word >> 11
    word ^= word << 7 & 0x9D2C5680
    word ^= word << 15 & 0xEFC60000
    return (word ^ word >> 18) / 2.0**32


def _doubles(generator: np.random.MT19937, count: int) -> np.ndarray:
    """Return the emulator's next draws, in [0, 1)."""
    return np.asarray(generator.random_raw(count)) / 2.0**32


def _calm(ale: Any, probability: float) -> Any:
    """Return a state whose next draw does not repeat; the emulator is left in another state."""
    while True:
        state = ale.cloneState(include_rng=True)
        if _doubles(twister(generator_of(state)), 1)[0] >= probability or probability >= 1:
            return state
        ale.act(ale.getMinimalActionSet()[0])


class MujocoState:
    """Keeps the simulation of a layer that has one in `model` and `data`."""

    fixed = ("model", "data", "mujoco_renderer")

    def __init__(self, layer: Any, randomness: bool | None) -> None:
        self._layer = layer
        self._model: Any = None

    @staticmethod
    def fits(layer: Any) -> bool:
        """Return True if it holds a simulation."""
        return type(layer.__dict__.get("data")).__name__ == "MjData" and "model" in layer.__dict__

    def get(self) -> np.ndarray:
        """Return integration state and derived arrays in one vector of float64 (whole numbers fit exactly)."""
        model, data = self._layer.model, self._layer.data
        mujoco = self._know(model)
        vector = np.empty(self._size)
        mujoco.mj_getState(model, data, vector[: self._core], self._spec)
        at = self._core
        for name, size, _ in self._derived:
            vector[at : at + size] = getattr(data, name).ravel()
            at += size
        return vector

    def set(self, vector: np.ndarray) -> None:
        """Put a state back."""
        model, data = self._layer.model, self._layer.data
        mujoco = self._know(model)
        mujoco.mj_setState(model, data, vector[: self._core], self._spec)
        at = self._core
        for name, size, shape in self._derived:
            getattr(data, name)[...] = vector[at : at + size].reshape(shape)
            at += size

    def _know(self, model: Any) -> Any:
        """Find the arrays of a model that must be kept. Returns the module mujoco."""
        import mujoco

        if self._model is model:
            return mujoco
        self._spec = mujoco.mjtState.mjSTATE_INTEGRATION
        self._core = mujoco.mj_stateSize(model, self._spec)
        empty = mujoco.MjData(model)  # without contacts, so that only arrays whose size the model decides have a size
        self._derived = []
        for name in sorted(dir(empty)):
            value = getattr(empty, name) if not name.startswith("_") else None
            if isinstance(value, np.ndarray) and value.size and value.flags.writeable and value.dtype.kind in "fiub":
                self._derived.append((name, value.size, value.shape))
        self._size = self._core + sum(size for _, size, _ in self._derived)
        self._model = model
        return mujoco
