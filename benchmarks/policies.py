"""What acts in the caller between two steps: nobody (ready-made actions), a torch network, something that waits.

- `mlp`: two layers of 64 on flat observations; `cnn`: the three convolutions that agents play Atari with. Untrained,
  actions drawn from what they say. `@2` after the name: torch with two threads, else one.
- `wait`: 1.5 ms in which nothing is computed here, as when an accelerator is asked; `wait0.2`: 0.2 ms.
- `burn1`: about 1 ms of plain Python.

A policy is called with a batch of observations and the numbers of their envs, and returns a batch of actions. Those
that look at nothing return the ready-made ones.
"""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.workloads import TURNS_PER_100_US, Workload, compute

Act = Callable[[Any, Any], np.ndarray]
DEVICE_MS = 1.5


@dataclass(frozen=True)
class Policy:
    """kind: "mlp", "cnn", "wait" or "burn". threads: torch's. ms: how long one call waits or computes."""

    name: str
    kind: str
    threads: int = 1
    ms: float = 0.0

    def set_threads(self) -> None:
        """Gives torch, where it is needed, the policy's threads: as scripts do at their top, before all else."""
        if self.kind in ("mlp", "cnn"):
            import torch

            torch.set_num_threads(self.threads)

    def make(self, workload: Workload, n_envs: int) -> Act:
        """Ready to act for the workload's envs; imports torch where it needs it."""
        if self.kind in ("mlp", "cnn"):
            return _network(self.kind, workload)
        batches = workload.actions(n_envs)
        return _waiting(batches, self.ms) if self.kind == "wait" else _burning(batches, self.ms)


def parse_policy(name: str) -> Policy:
    """Raises ValueError for a name that is none."""
    found = re.fullmatch(r"(mlp|cnn)(?:@(\d+))?|(wait|burn)([\d.]+)?", name)
    if found is None:
        raise ValueError(f"no policy {name!r}: mlp, mlp@2, cnn, cnn@2, wait, wait0.2 or burn1 (milliseconds)")
    network, threads, other, ms = found.groups()
    return Policy(name, network, int(threads or 1)) if network else Policy(name, other, ms=float(ms or DEVICE_MS))


def ready_made(batches: Sequence[np.ndarray]) -> Act:
    """The batches in a cycle."""
    at, most = -1, len(batches)

    def act(observations: Any, slots: Any) -> np.ndarray:
        nonlocal at
        at = (at + 1) % most
        return batches[at] if slots is None else batches[at][slots]

    return act


def _waiting(batches: Sequence[np.ndarray], ms: float) -> Act:
    choose, seconds, sleep = ready_made(batches), ms / 1e3, time.sleep

    def act(observations: Any, slots: Any) -> np.ndarray:
        sleep(seconds)
        return choose(observations, slots)

    return act


def _burning(batches: Sequence[np.ndarray], ms: float) -> Act:
    choose, turns = ready_made(batches), int(10 * ms * TURNS_PER_100_US)

    def act(observations: Any, slots: Any) -> np.ndarray:
        compute(turns, 1)
        return choose(observations, slots)

    return act


def _network(kind: str, workload: Workload) -> Act:
    import torch
    from torch import nn

    torch.manual_seed(0)
    env = workload.make()
    space = env.observation_space[workload.seen] if workload.seen else env.observation_space
    env.close()
    out = workload.n_actions or workload.reach[0]
    if kind == "mlp":
        first = nn.Linear(int(np.prod(space.shape)), 64)
        net = nn.Sequential(nn.Flatten(), first, nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, out))
    else:
        seeing: list[Any] = [nn.Conv2d(min(space.shape), 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU()]
        seeing += [nn.Conv2d(64, 64, 3, 1), nn.ReLU(), nn.Flatten(), nn.Linear(64 * 7 * 7, 512), nn.ReLU()]
        net = nn.Sequential(*seeing, nn.Linear(512, out))
    last = kind == "cnn" and space.shape[0] != min(space.shape)  # channels stand last
    scale, high, seen = (1 / 255 if kind == "cnn" else 1.0), workload.reach[1], workload.seen

    @torch.inference_mode()  # type: ignore[untyped-decorator,unused-ignore]
    def act(observations: Any, slots: Any) -> np.ndarray:
        x = torch.from_numpy(np.asarray(observations[seen] if seen else observations)).to(torch.float32)
        said = net((x.permute(0, 3, 1, 2) if last else x) * scale)
        if high:
            return (high * torch.tanh(said + torch.randn_like(said))).numpy()
        return torch.multinomial(said.softmax(-1), 1).squeeze(-1).numpy()

    return act
