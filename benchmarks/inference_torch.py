"""`python -m benchmarks.inference_torch`: real networks, asked in the caller and in the workers.

MLPs of three sizes on CartPole and the convolutions that agents play Atari with on frames of 84 x 84 x 4 (of Pong with
`--atari`, else of an environment that computes 1 ms a step and makes frames of its own). Asked in each of the workers,
one a core, about its own environment; or in the caller, about all that are ready. torch computes with one thread in
each process. With `--device cuda` the network asked in the caller is there, and those in the workers stay on the CPU.
"""

from __future__ import annotations

import argparse
import datetime
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import gymnasium as gym
import numpy as np

import treadle
from benchmarks.report import figure, machine, progress, write_between_markers
from benchmarks.workloads import TURNS_PER_100_US, compute

PAGE = Path(__file__).parents[1] / "docs" / "inference-reference.md"
MARK = "<!-- inference-torch{}:{} -->"  # "" or "-cpu", "begin" or "end"
SECONDS = 4.0  # of each measurement
NUM_ENVS = (16, 64)


class Frames(gym.Env[np.ndarray, int]):
    """Frames of Atari's size; a step computes about 1 ms."""

    observation_space = gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    action_space = gym.spaces.Discrete(6)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._t = 0
        self._frames = self.np_random.integers(0, 256, (4, 84, 84), np.uint8)
        return self._frames, {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        compute(10 * TURNS_PER_100_US, 1)
        self._t += 1
        self._frames = np.roll(self._frames, 1, axis=0)
        return self._frames, 1.0, self._t >= 200, False, {}


def pong() -> gym.Env:
    """Pong as agents play it."""
    import ale_py

    gym.register_envs(ale_py)
    env = gym.wrappers.AtariPreprocessing(gym.make("ALE/Pong-v5", frameskip=1), noop_max=1)
    return gym.wrappers.FrameStackObservation(env, 4)


class Network:
    """Built where it is asked. width: of an MLP's two hidden layers; 0: the convolutions."""

    def __init__(self, width: int, device: str = "cpu") -> None:
        self.width, self.device = width, device
        self._asked: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {"width": self.width, "device": "cpu", "_asked": None}

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        if self._asked is None:
            self._asked = treadle.torch_policy(_module(self.width, observations.shape[1:]), self.device)
        return self._asked(observations)


def _module(width: int, shape: tuple[int, ...]) -> Any:
    import torch

    torch.set_num_threads(1)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return _greedy(width, shape)


def _greedy(width: int, shape: tuple[int, ...]) -> Any:
    from torch import nn

    if width:
        body: list[Any] = [nn.Linear(shape[0], width), nn.Tanh(), nn.Linear(width, width), nn.Tanh()]
        outputs = nn.Linear(width, 2)
    else:
        body = [nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU()]
        body += [nn.Flatten(), nn.Linear(64 * 7 * 7, 512), nn.ReLU()]
        outputs = nn.Linear(512, 6)

    class Greedy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(*body, outputs)

        def forward(self, observations: Any) -> Any:
            return self.net(observations.float()).argmax(-1)

    return Greedy()


@dataclass(frozen=True)
class Row:
    """name: shown. env: played. width: see `Network`."""

    name: str
    env: Any
    width: int


def rows(atari: bool) -> list[Row]:
    seen = ("Pong preprocessed", pong) if atari else ("frames (1 ms a step)", Frames)
    frames = Row(f"{seen[0]}, convolutions", seen[1], 0)
    return [*(Row(f"CartPole, MLP of {width}", "CartPole-v1", width) for width in (64, 512, 2048)), frames]


def played(row: Row, device: str, **options: Any) -> float:
    """Steps a second, from the first episode on."""
    network = Network(row.width, device)
    episodes = treadle.collect(row.env, network, seed=1, ordered=False, max_episode_steps=200, **options)
    next(episodes)
    began, steps = time.perf_counter(), 0
    for episode in episodes:
        steps += len(episode)
        seconds = time.perf_counter() - began
        if seconds > SECONDS:
            break
    episodes.close()
    return steps / seconds


def contestants(cores: int, device: str) -> dict[str, Callable[[Row], float]]:
    here = f"caller ({device})" if device != "cpu" else "caller"
    found: dict[str, Callable[[Row], float]] = {
        f"workers, {cores}": lambda row: played(row, "cpu", inference="worker", workers=cores)
    }
    for envs in NUM_ENVS:
        found[f"{here}, {envs} environments"] = lambda row, envs=envs: played(
            row, device, inference="caller", num_envs=envs, workers=cores
        )
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (None: the process's own)."""
    about = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.inference_torch", description=about)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cpu", help="of the network that is asked in the caller")
    parser.add_argument("--atari", action="store_true", help="frames of Pong; wants ale-py and opencv")
    parser.add_argument("--write", action="store_true", help=f"put the table into docs/{PAGE.name}")
    options = parser.parse_args(argv)
    facts, cores = machine(), len(os.sched_getaffinity(0))
    device = ""
    if options.device != "cpu":
        import torch

        device = f", {torch.cuda.get_device_name(options.device)}"
    runs = contestants(cores, options.device)
    text = [
        f"{datetime.date.today()}. {facts['cpu']}, {cores} cores{device}, {facts['system']}; python "
        f"{facts['versions']['python']}, torch {facts['versions'].get('torch')}; one thread of torch a process, "
        f"{SECONDS:g} s each, median of {options.rounds} interleaved rounds. Environment steps a second."
        + ("" if device else " All of it on the CPU."),
        "",
        "| | " + " | ".join(runs) + " |",
        "|---|" + "---:|" * len(runs),
    ]
    measured: dict[tuple[str, str], list[float]] = {}
    for turn in range(options.rounds):
        for row in rows(options.atari):
            for name, run in runs.items():
                measured.setdefault((row.name, name), []).append(run(row))
                progress(f"{turn + 1}/{options.rounds} {row.name}, {name}: {measured[row.name, name][-1]:,.0f} steps/s")
    for row in rows(options.atari):
        medians = [median(measured[row.name, name]) for name in runs]
        cells = [f"**{figure(each)}**" if each == max(medians) else figure(each) for each in medians]
        text.append(f"| {row.name} | " + " | ".join(cells) + " |")
    print("\n".join(text))
    if options.write:
        which = "" if device else "-cpu"
        write_between_markers(PAGE, "\n".join(text), MARK.format(which, "begin"), MARK.format(which, "end"))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
