"""MuJoCo's state. The only file that imports mujoco.

The integration state (time, positions, velocities, controls, warm start) decides where the next `mj_step`
goes. But environments also read derived arrays between two steps (the torso's position before a step, for the speed),
and after `mj_step` those belong to the time *before* the last integration, so computing them anew would not give them
back. So all arrays of `MjData` whose size the model decides are kept. Contacts are not: they are made by each step.
"""

from __future__ import annotations

from typing import Any

import numpy as np


class MujocoState:
    """Keeps the simulation of a layer that has one in `model` and `data`."""

    fixed = ("model", "data", "mujoco_renderer")

    def __init__(self, layer: Any, randomness: bool | None) -> None:
        self._layer = layer
        self._model: Any = None

    @staticmethod
    def fits(layer: Any) -> bool:
        """Is there a simulation in it?"""
        return type(layer.__dict__.get("data")).__name__ == "MjData" and "model" in layer.__dict__

    def get(self) -> np.ndarray:
        """Integration state and derived arrays in one vector of float64 (whole numbers fit exactly)."""
        import mujoco

        model, data = self._layer.model, self._layer.data
        self._know(model)
        vector = np.empty(self._size)
        mujoco.mj_getState(model, data, vector[: self._core], self._spec)
        at = self._core
        for name, size, _ in self._derived:
            vector[at : at + size] = getattr(data, name).ravel()
            at += size
        return vector

    def set(self, vector: np.ndarray) -> None:
        """Put it back."""
        import mujoco

        model, data = self._layer.model, self._layer.data
        self._know(model)
        mujoco.mj_setState(model, data, vector[: self._core], self._spec)
        at = self._core
        for name, size, shape in self._derived:
            getattr(data, name)[...] = vector[at : at + size].reshape(shape)
            at += size

    def _know(self, model: Any) -> None:
        if self._model is model:
            return
        import mujoco

        self._spec = mujoco.mjtState.mjSTATE_INTEGRATION
        self._core = mujoco.mj_stateSize(model, self._spec)
        empty = mujoco.MjData(model)  # without contacts, so that only what the model sizes has a size
        self._derived = []
        for name in sorted(dir(empty)):
            value = getattr(empty, name) if not name.startswith("_") else None
            if isinstance(value, np.ndarray) and value.size and value.flags.writeable and value.dtype.kind in "fiub":
                self._derived.append((name, value.size, value.shape))
        self._size = self._core + sum(size for _, size, _ in self._derived)
        self._model = model
