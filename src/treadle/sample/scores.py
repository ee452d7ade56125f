"""Scores of a sampler's evaluation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from treadle import seeding
from treadle.sample.evaluate import Evaluation, Score, evaluation_of
from treadle.sample.haul import Haul
from treadle.sample.step_type import StepType


def evaluated(policy: str, hauls: Sequence[Haul], seed: int) -> Evaluation:
    """The evaluation of rollouts 0, 1, 2, ... of the root `seed`, in order."""
    scores = []
    singles = [haul.part(i, i + 1) for haul in hauls for i in range(len(haul.rollouts))]
    for index, haul in enumerate(singles):
        rewards, last = haul.columns["rewards"], haul.codes[-1]
        terminated = bool(last == StepType.TERMINAL)
        scores.append(
            Score(
                index,
                seeding.episode_env_seed(seed, index),
                float(np.sum(rewards)),
                len(rewards),
                terminated,
                not terminated,
            )
        )
    return evaluation_of(policy, scores, seed)
