"""The program whose episodes are played with actions from the caller: it resets, steps and records, and what it makes
of an episode is what a worker makes that asks the policy by itself (`rounds.py`), byte for byte.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
from gymnasium.vector.utils import batch_space

from treadle import seeding
from treadle.errors import UsageError, attributes_of
from treadle.play.player import Player
from treadle.play.recipe import RolloutRecipe
from treadle.play.rounds import RolloutSlot
from treadle.play.slot import Globals
from treadle.program.base import Description, StepResult

RESULTS = "results"  # the key of an info under which results travel
LOOKS = 4  # steps of each episode in which is looked whether it draws from global generators


@dataclass(frozen=True)
class Begin:
    """Reset options. index: of the episode. root: the run's seed. anew: build a new environment first."""

    index: int
    root: int
    anew: bool = False


class AskedSlot(RolloutSlot):
    """Args:
    recipe: what is played; its policy is not asked.
    slot: its number.
    globals: what becomes of the process's global generators.
    shared: does its process play other slots, too? Then an environment that draws from global generators, as its first
        steps show, gets its own ones back for each of its steps.
    n_action_steps: steps that each action from the caller is for; None: one, and it has no axis for them.
    """

    def __init__(
        self,
        recipe: RolloutRecipe,
        slot: int,
        globals: Globals,
        n_action_steps: int | None = None,
        shared: bool = False,
    ) -> None:
        self._n = n_action_steps
        super().__init__(recipe, slot, globals)
        self._shared = shared and globals is Globals.SEED
        self._draws = False  # is it known to draw from global generators?
        self._player: Player = self._players[0]
        self._infos: list[dict[str, Any] | None] = []  # of the policy, for the steps of the next action
        self._row = [
            np.zeros((1, *(leaf.shape or ())), leaf.dtype) if leaf.fixed else None for leaf in self._actions.leaves
        ]
        self.step = self._act if n_action_steps is None else self._act_all

    def describe(self) -> Description:
        about = super().describe()
        space: Any = about.action_space
        if self._n is not None:
            if self._actions.loose:
                raise UsageError("n_action_steps is for actions of fixed shape")
            space = batch_space(space, self._n)
        metadata = {**about.metadata, "action_space": about.action_space}
        return Description(about.observation_space, space, begins_next=False, metadata=metadata)

    def begin(self, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        order: Begin = options
        self._infos = []
        if order.anew:
            self._player.rebuild()
        if self._shared:
            self._own = None
        with self._turn():
            observation = self._player.begin(order.index, order.root)
        if self._shared:
            self._first = seeding.GlobalState()
            self._own = seeding.OwnGlobals(self._first)
        return observation, {}

    def note(self, infos: list[dict[str, Any] | None]) -> None:
        """What the policy says of the steps of its next action."""
        self._infos = infos

    def _act(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        began, player = perf_counter(), self._player
        info = self._infos.pop(0) if self._infos else None
        ended: Any = None
        with self._turn():
            try:
                observation = player.send((action, info))
            except StopIteration as end:
                ended = end.value
            except BaseException as error:
                attributes_of(error)["treadle_trail"] = player.record.trail(True)
                raise
        if self._shared and not self._draws and self._own is not None and player.record.length >= LOOKS:
            assert self._own.state is not None
            self._draws = not self._own.state.same(self._first)
            self._own = self._own if self._draws else None  # it takes longer than a small environment's step
        self.shares.step += perf_counter() - began
        if ended is None:
            return observation, 0.0, False, False, {}
        episode = self._finished(player, *ended)
        if episode is None:  # it has only grown suspiciously long
            return player.go_on(), 0.0, False, False, {RESULTS: [self._remark_endless(player.record)]}
        last, player.send = player.record.last, None
        terminated, truncated = bool(episode.terminated[-1]), bool(episode.truncated[-1])
        return last, 0.0, terminated, truncated, {RESULTS: self._ended(episode)}

    def _act_all(self, actions: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Several steps, until the episode ends."""
        assert self._n is not None
        leaves = [np.asarray(leaf) for leaf in self._actions.flatten(actions)]
        told: list[Any] = []
        for step in range(self._n):
            for row, leaf in zip(self._row, leaves, strict=True):
                row[0] = leaf[step]  # type: ignore[index]  # all leaves are fixed
            (action,) = self._actions.batch_reader(self._row, 0, 1)(None)
            result = self._act(action)
            told += result[4].get(RESULTS, [])
            if self._player.send is None:
                break
        return (*result[:4], {RESULTS: told} if told else {})

    def ended(
        self, observation: Any, reward: Any, terminated: bool, truncated: bool, info: dict[str, Any]
    ) -> StepResult:
        return StepResult(observation, reward, terminated, truncated, info)

    def _turn(self) -> Any:
        """A turn with global generators of its own: in the caller's thread, and where others are played beside it."""
        return contextlib.nullcontext() if self._own is None else self._own.turn()
