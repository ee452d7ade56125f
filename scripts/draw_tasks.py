"""Draw docs/tasks.png: nine MiniGrid tasks as `VectorSampledTasks.render` tiles them.

usage: PYTHONPATH=src python scripts/draw_tasks.py [FILE]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from treadle.tasks.gym import GymTaskSampler
from treadle.tasks.vectors import VectorSampledTasks

ENVS = (
    "MiniGrid-Empty-8x8-v0",
    "MiniGrid-DoorKey-8x8-v0",
    "MiniGrid-FourRooms-v0",
    "MiniGrid-MultiRoom-N4-S5-v0",
    "MiniGrid-LavaCrossingS9N2-v0",
    "MiniGrid-Dynamic-Obstacles-8x8-v0",
    "MiniGrid-KeyCorridorS4R3-v0",
    "MiniGrid-UnlockPickup-v0",
    "MiniGrid-PutNear-8x8-N3-v0",
)
SIDE = 240  # pixels of one task


class Framed(GymTaskSampler):
    """Tasks whose pictures are of one size, with a dark frame."""

    def next_task(self, force_advance_scene: bool = False) -> Any:
        task: Any = super().next_task(force_advance_scene)
        whole = task.render

        def render(mode: str = "rgb", *args: Any, **kwargs: Any) -> np.ndarray:
            from PIL import Image

            picture = Image.fromarray(whole(mode))
            picture.thumbnail((SIDE - 8, SIDE - 8))
            frame = np.full((SIDE, SIDE, 3), 40, np.uint8)
            y, x = (SIDE - picture.height) // 2, (SIDE - picture.width) // 2
            frame[y : y + picture.height, x : x + picture.width] = picture
            return frame

        task.render = render
        return task


def make(env: str, seed: int) -> Framed:
    """A sampler of one task."""
    return Framed(env, only_image, seeds=[seed], env_kwargs={"render_mode": "rgb_array"})


def only_image(env: Any) -> list[Any]:
    """All these environments show their tasks the same picture, but not the same mission."""
    from treadle.tasks.gym import GymObservation

    return [GymObservation(env.observation_space["image"], "image", "image")]


def main(file: str = str(Path(__file__).parents[1] / "docs" / "tasks.png")) -> None:
    """Write the picture."""
    from PIL import Image

    args = [{"env": env, "seed": 3 + i} for i, env in enumerate(ENVS)]
    with VectorSampledTasks(make, args, max_processes=2, should_log=False) as tasks:
        picture: Any = tasks.render("rgb_array")
    Image.fromarray(picture).quantize(128).save(file, optimize=True)
    print(f"{file}: {picture.shape[1]} x {picture.shape[0]}, {Path(file).stat().st_size} bytes")


if __name__ == "__main__":
    main(*sys.argv[1:])
