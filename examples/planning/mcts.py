"""Monte Carlo tree search over states.

Every node has a state. A round chooses some leaves, steps them all to new nodes in one batch, plays
from those at random in another, and adds what came of it to every node above:

    choose:  from the root, the child with the highest  value + c * sqrt(ln(visits of the parent) / visits)
             (UCT; Kocsis and Szepesvari, 2006), values scaled to 0..1 by the lowest and highest seen in the tree
    expand:  an action that was not tried yet
    play:    `horizon` random actions from there
    add:     reward + discount * what follows, all the way up

That several leaves are chosen before any result is known is what makes it parallel; a visit is counted when a leaf is
chosen, so that the next one is drawn elsewhere (a virtual loss). The most visited action of the root is taken, and its
part of the tree serves the next decision.
"""

from __future__ import annotations

from math import log, sqrt
from typing import Any

import gymnasium as gym
from search import Branch, Decision, Draws, batches_of, whole

from treadle import ParallelEnv, UsageError


class Node:
    """A state in the tree. `total` is the sum of what followed its visits; `reward` was earned on the way to it."""

    __slots__ = ("action", "children", "over", "parent", "reward", "state", "total", "untried", "visits")

    def __init__(self, parent: Node | None, action: Any, state: Any, untried: list[int]) -> None:
        self.parent, self.action, self.state, self.untried = parent, action, state, untried
        self.children: list[Node] = []
        self.visits, self.total, self.reward, self.over = 0, 0.0, 0.0, False

    @property
    def value(self) -> float:
        """Reward and mean of what followed."""
        return self.reward + (self.total / self.visits if self.visits else 0.0)


class MCTS:
    """Args:
    env: steps the nodes. Its actions must be Discrete.
    budget: steps of the environment for one decision; the round of leaves that reaches it is finished.
    horizon: random actions from a new node.
    dt: how often each action is applied.
    discount: of rewards, for each action.
    explore: c above.
    leaves: chosen in one round; None: eight for each worker. Another number grows another tree.
    """

    def __init__(
        self,
        env: ParallelEnv,
        *,
        budget: int = 2000,
        horizon: int = 50,
        dt: int = 1,
        discount: float = 1.0,
        explore: float = 1.0,
        leaves: int | None = None,
    ) -> None:
        space = batches_of(env).action_space
        if not isinstance(space, gym.spaces.Discrete):
            raise UsageError(f"tree search needs discrete actions, this environment has {space}: use random shooting")
        self._actions = list(range(int(space.start), int(space.start + space.n)))
        self.env, self.dt = env, whole(dt, "dt")
        self.budget, self.horizon = whole(budget, "budget"), whole(horizon, "horizon")
        self.discount, self.explore = discount, explore
        self.leaves = whole(8 * env.n_workers if leaves is None else leaves, "leaves")
        self._draws = Draws(space)
        self._root: Node | None = None

    def begin(self, seed: int) -> None:
        """A new game."""
        self._draws.seed(seed)
        self._forget()

    def plan(self, state: Any) -> Decision:
        """The most visited action from `state`. Raises what batches raise; the tree is gone then."""
        root = self._root = self._root_of(state)
        spent = 0
        try:
            while spent < self.budget:
                spent += self._round(root)
        except BaseException:
            self._forget()
            raise
        best = max(root.children, key=lambda child: (child.visits, child.value))
        decision = Decision(best.action, best.value, spent, *_branches(root))
        root.children.remove(best)
        best.parent, self._root = None, best
        _let_go(root)
        return decision

    def _root_of(self, state: Any) -> Node:
        """The node of the last tree that is in this state, or a new one."""
        node = self._root
        if node is not None and not node.over and node.state == state:
            return node
        self._forget()
        return Node(None, None, state, self._shuffled())

    def _forget(self) -> None:
        """Let go of the last tree."""
        root, self._root = self._root, None
        if root is not None:
            _let_go(root)

    def _round(self, root: Node) -> int:
        """Choose, expand, play, add. Returns the steps it took."""
        chosen: list[tuple[Node, int]] = []
        low, high = _bounds(root)
        for _ in range(self.leaves):
            node = self._choose(root, low, high - low or 1.0)
            if node.over:
                _add(node, 0.0, self.discount)
            elif node.untried:
                chosen.append((node, node.untried.pop()))
            else:  # its actions are all on their way, chosen before in this round
                _take_back(node)
        if not chosen:
            return self.leaves  # nothing but ends: that costs no steps, and must not go on for ever
        parents = [node for node, _ in chosen]
        actions = [action for _, action in chosen]
        made = self.env.step_batch(actions, [node.state for node in parents], self.dt, True)
        alive = []
        for node, action, state, _, reward, end, cut, _ in zip(parents, actions, *made, strict=True):
            child = Node(node, action, state, self._shuffled())
            child.reward, child.over, child.visits = float(reward), bool(end or cut), 1
            node.children.append(child)
            if child.over:
                _add(child, 0.0, self.discount)
            else:
                alive.append(child)
        return len(chosen) * self.dt + self._play(alive)  # not what the infos say: `process_info` may change them

    def _play(self, nodes: list[Node]) -> int:
        """Play from new nodes at random. Returns the steps it took."""
        if not nodes:
            return 0
        sequences = self._draws.sequences(len(nodes), self.horizon)
        played = self.env.rollout_batch([node.state for node in nodes], sequences, self.dt)
        for node, rewards in zip(nodes, played.rewards.tolist(), strict=True):
            followed = 0.0
            for reward in reversed(rewards):
                followed = reward + self.discount * followed
            _add(node, followed, self.discount)
        return int(played.lengths.sum()) * self.dt

    def _choose(self, root: Node, low: float, scale: float) -> Node:
        """Down to a node with an action that was not tried, or where the episode is over. Counts the visit."""
        node = root
        node.visits += 1
        while node.children and not node.untried:
            around = log(node.visits)
            node = max(
                node.children,
                key=lambda child: (child.value - low) / scale + self.explore * sqrt(around / max(1, child.visits)),
            )
            node.visits += 1
        return node

    def _shuffled(self) -> list[int]:
        return [self._actions[i] for i in self._draws.rng.permutation(len(self._actions))]


def _add(node: Node | None, followed: float, discount: float) -> None:
    """A visit to `node` was followed by this."""
    while node is not None:
        node.total += followed
        followed = node.reward + discount * followed
        node = node.parent


def _take_back(node: Node | None) -> None:
    """A visit that came to nothing."""
    while node is not None:
        node.visits -= 1
        node = node.parent


def _bounds(root: Node) -> tuple[float, float]:
    """The lowest and the highest value in the tree."""
    values = [child.value for node in _all(root) for child in node.children]
    return (min(values), max(values)) if values else (0.0, 0.0)


def _all(root: Node) -> list[Node]:
    nodes = [root]
    for node in nodes:
        nodes.extend(node.children)
    return nodes


def _let_go(root: Node) -> None:
    """Take a tree apart, so that its states are free at once: parents and children hold each other."""
    for node in _all(root):
        node.parent, node.children = None, []


def _branches(root: Node) -> tuple[list[Branch], list[int]]:
    """The tree as a list, and the way of most visits through it."""
    branches: list[Branch] = []
    number = {id(root): -1}
    for node in _all(root):
        for child in node.children:
            number[id(child)] = len(branches)
            branches.append(Branch(number[id(node)], child.action, child.visits, child.value))
    path, node = [], root
    while node.children:
        node = max(node.children, key=lambda child: (child.visits, child.value))
        path.append(number[id(node)])
    return branches, path
