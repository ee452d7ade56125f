"""Torch modules as policies that are asked in the caller. The only file that imports torch."""

from __future__ import annotations

from typing import Any

import numpy as np

from treadle import trees
from treadle.errors import MissingExtra, UsageError

SAMPLES = ("categorical", "normal")


def library(what: str) -> Any:
    """Return the package torch. Raises MissingExtra; `what` begins its text, such as "a policy of torch needs"."""
    try:
        import torch
    except ModuleNotFoundError as error:
        raise MissingExtra(f"{what} PyTorch: pip install torch") from error
    return torch


def torch_policy(module: Any, device: Any = None, dtype: Any = None, sample: str | None = None) -> TorchPolicy:
    """A torch module as a policy for `inference="caller"`: batches of NumPy in, NumPy out.

    Args:
        module: called with a tensor [k, ...] (a dict or tuple of them where the space nests) in `torch.inference_mode`.
            It is moved to the device and put into evaluation mode.
        device: device on which the module computes; None: that of its first parameter, or the CPU without parameters.
        dtype: dtype of floating-point observations; None: that of the module's first parameter, or float32 without
            parameters. Observations of whole numbers keep their dtype.
        sample: None: the module's output is the actions. With "categorical" its output is logits [k, n]; one action is
            drawn for each row, int64[k]. With "normal" it is (means, standard deviations), both [k, m]. The
            episodes' own generators draw, so actions do not depend on the other rows of a batch.

    Raises:
        UsageError: `sample` is another value, or `module` is not a torch module.
        MissingExtra: torch is missing.
    """
    if sample is not None and sample not in SAMPLES:
        raise UsageError(f"sample is None, 'categorical' or 'normal', got {sample!r}")
    return (TorchPolicy if sample is None else DrawingTorchPolicy)(module, device, dtype, sample)


class TorchPolicy:
    """See `torch_policy`.

    Attributes:
        module: on `device`, in evaluation mode.
        device, dtype: as torch has them.
    """

    batched = True

    def __init__(self, module: Any, device: Any, dtype: Any, sample: str | None) -> None:
        torch = library("a policy of torch needs")
        if not isinstance(module, torch.nn.Module):
            raise UsageError(f"module is a torch.nn.Module, got {module!r}")
        first = next(iter(module.parameters()), None)
        default = (torch.device("cpu"), torch.float32) if first is None else (first.device, first.dtype)
        self.device = default[0] if device is None else torch.device(device)
        self.dtype = default[1] if dtype is None else dtype
        self.module = module.to(self.device).eval()
        self._sample = sample
        self._pinned: dict[int, Any] = {}  # leaf -> memory that the device copies from

    def parameters(self) -> Any:
        """Return the module's parameters."""
        return self.module.parameters()

    def __call__(self, observations: Any) -> Any:
        return trees.map(lambda tensor: tensor.cpu().numpy(), self._forward(observations))

    def _forward(self, observations: Any) -> Any:
        torch = library("a policy of torch needs")
        with torch.inference_mode():
            number = iter(range(1 << 30))
            return self.module(trees.map(lambda leaf: self._tensor(torch, next(number), leaf), observations))

    def _tensor(self, torch: Any, number: int, leaf: Any) -> Any:
        if not isinstance(leaf, np.ndarray):
            return leaf
        found = torch.from_numpy(np.ascontiguousarray(leaf))
        if self.device.type == "cuda":
            pinned = self._pinned.get(number)
            if pinned is None or len(pinned) < len(found) or pinned.shape[1:] != found.shape[1:]:
                pinned = self._pinned[number] = torch.empty(found.shape, dtype=found.dtype, pin_memory=True)
            found = pinned[: len(found)].copy_(found).to(self.device, non_blocking=True)
        elif self.device.type != "cpu":
            found = found.to(self.device)
        return found.to(self.dtype) if found.is_floating_point() else found


class DrawingTorchPolicy(TorchPolicy):
    """See `torch_policy`; actions are drawn from the rows' own generators."""

    def __call__(self, observations: Any, rng: Any = None) -> Any:
        said = self._forward(observations)
        rngs = rng if isinstance(rng, list) else [rng]
        if self._sample == "categorical":
            return draw_categorical(said.softmax(-1).double().cpu().numpy(), rngs)
        means, deviations = (each.cpu().numpy() for each in said)
        return draw_normal(means, deviations, rngs)


def draw_categorical(shares: np.ndarray, rngs: list[np.random.Generator]) -> np.ndarray:
    """Return int64[k]: an index drawn by the shares of each row of `shares`, float64[k, n].

    It is drawn by inversion, from one number of the row's own generator. Rows need not sum to exactly 1.
    """
    sums = shares.cumsum(axis=-1)
    drawn = [
        int(np.searchsorted(row, rng.random() * row[-1], side="right")) for row, rng in zip(sums, rngs, strict=True)
    ]
    return np.minimum(np.array(drawn, np.int64), shares.shape[-1] - 1)


def draw_normal(means: np.ndarray, deviations: np.ndarray, rngs: list[np.random.Generator]) -> np.ndarray:
    """Return actions of the shape of `means` [k, ...], each row drawn from its own generator."""
    noise = np.stack([rng.standard_normal(means.shape[1:]) for rng in rngs]).astype(means.dtype)
    return means + deviations * noise
