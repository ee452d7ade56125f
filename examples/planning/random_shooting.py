"""Random shooting: try many random plans from here, and begin the best one.

Every plan is a sequence of `horizon` actions, all played from the same state in one round trip. The best plan of the
last decision, less the action that was taken, is tried again: what was found once is not forgotten. Of plans that earn
the same, the one that lives longest is taken, and of those one that begins with what is best on average: where many
plans do well, an action that forgives mistakes is better than one that does not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from search import Branch, Decision, Draws, batches_of, whole

from treadle import ParallelEnv, UsageError

LIFE = 1e-6  # of a plan's value for each action that it lives


class RandomShooting:
    """Args:
    env: steps the plans.
    budget: steps of the environment for one decision; `budget // (horizon * dt)` plans are tried.
    horizon: actions in a plan.
    dt: how often each action is applied.
    discount: of rewards, for each action.
    """

    def __init__(
        self, env: ParallelEnv, *, budget: int = 2000, horizon: int = 50, dt: int = 1, discount: float = 1.0
    ) -> None:
        self.env, self.dt = batches_of(env), whole(dt, "dt")
        self.horizon = whole(horizon, "horizon")
        self.plans = whole(budget, "budget") // (self.horizon * self.dt)
        if self.plans < 2:
            raise UsageError(f"a budget of {budget} steps is less than two plans of {horizon} actions, {dt} steps each")
        self._discounts = discount ** np.arange(self.horizon)
        self._draws = Draws(env.action_space)
        self._best: list[Any] | None = None

    def begin(self, seed: int) -> None:
        """A new game."""
        self._draws.seed(seed)
        self._best = None

    def plan(self, state: Any) -> Decision:
        """The first action of the best plan from `state`."""
        plans = self._draws.sequences(self.plans, self.horizon)
        if self._best is not None:
            plans[0] = [*self._best, plans[0][-1]]
        found = self.env.rollout_batch([state], plans, dt=self.dt, repeat=len(plans))
        values = found.rewards @ self._discounts + LIFE * found.lengths
        best = self._best_of(plans, values)
        self._best = list(plans[best][1:])
        steps = int(found.lengths.sum()) * self.dt
        branches = _branches(plans, found, self._discounts)
        begin = int(found.lengths[:best].sum())
        path = list(range(begin, begin + int(found.lengths[best])))
        return Decision(plans[best][0], float(values[best]), steps, branches, path)

    def _best_of(self, plans: Any, values: np.ndarray) -> int:
        """The best plan; of equal ones that whose first action is best on average, over all the plans that begin so."""
        equal = np.flatnonzero(values == values.max())
        if len(equal) == 1 or not isinstance(plans, np.ndarray):
            return int(equal[0])
        firsts = plans[:, 0]
        return int(max(equal, key=lambda plan: values[firsts == firsts[plan]].mean()))


def _branches(plans: Any, found: Any, discounts: np.ndarray) -> list[Branch]:
    """Every plan as a chain of branches; a branch's value is what the plan has earned up to there."""
    branches = []
    earned = np.cumsum(found.rewards * discounts, axis=1)
    for plan, length, values in zip(plans, found.lengths.tolist(), earned.tolist(), strict=True):
        parent = -1
        for at in range(length):
            branches.append(Branch(parent, plan[at], 1, values[at]))
            parent = len(branches) - 1
    return branches
