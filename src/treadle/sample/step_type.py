"""What a step is to its episode: its first, one in the middle, or one of two kinds of last."""

from __future__ import annotations

import enum

import numpy as np


class StepType(enum.IntEnum):
    """The place of a step in its episode. The *first* step is the one that the first action made, so an episode of one
    step has no FIRST: its only step is TERMINAL or TIMEOUT.

    FIRST: the first step. MID: neither the first nor the last. TERMINAL: the environment ended the episode. TIMEOUT: a
    time limit of the environment ended it. An episode that a worker's own `max_episode_length` cuts keeps the type its
    last step had.
    """

    FIRST = 0
    MID = 1
    TERMINAL = 2
    TIMEOUT = 3

    @classmethod
    def get_step_type(cls, step_cnt: int, max_episode_length: int | float | None, done: bool) -> StepType:
        """The type of step number `step_cnt` (from 1) of an episode that may last `max_episode_length` steps (None: for
        ever); `done`: did the environment end it? At the limit TIMEOUT wins over TERMINAL.

        Raises:
            ValueError: `step_cnt` is below 1.
        """
        if max_episode_length is not None and step_cnt >= max_episode_length:
            return cls.TIMEOUT
        if done:
            return cls.TERMINAL
        if step_cnt < 1:
            raise ValueError(
                f"Expect step_cnt to be >= 1, but got {step_cnt} instead. Did you forget to call `reset()`?"
            )
        return cls.FIRST if step_cnt == 1 else cls.MID


_MEMBERS = np.array(list(StepType), dtype=object)


def codes_of(step_types: np.ndarray) -> np.ndarray:
    """uint8[T] of an object array of StepType: what travels between processes."""
    return step_types.astype(np.uint8)


def types_of(codes: np.ndarray) -> np.ndarray:
    """The object array of StepType that uint8[T] stands for."""
    return _MEMBERS[codes]
