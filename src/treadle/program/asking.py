"""A policy that is asked in the caller, with batches of the slots that are ready.

The policy may be one of these, also as coroutines:
- a callable `policy(observations)`, or an object with `get_actions` or Stable-Baselines3's `predict`. Observations are
  arrays [k, ...], dicts and tuples of them where the space nests, and lists for values without a fixed shape;
- one that draws: `policy(observations, rng=...)` gets k generators, each its episode's own;
- one with a state: `initial_state(k)` and `policy(observations, state)` -> (actions, state). The state is a tree whose
  leaves are arrays or tensors with first axis k. A row gets its own part of the state in its next call;
- one that plans ahead: with `n_action_steps` its actions are [k, h, ...], of which so many are played.

A policy may also return infos, as (actions, infos) or (actions, state, infos). Infos are a dict of [k] (or, planning
ahead, [k, h]), or k dicts.
"""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from treadle import trees
from treadle.coroutines import Settled
from treadle.errors import BadAction, UsageError
from treadle.program.policies import _parameters, asker_of, predicted
from treadle.program.saved import drawn_actions
from treadle.seeding import GlobalState

# networks on a processor give a row the same bits in every place of a batch of so many, or of several times
MULTIPLE = 8


class CallerPolicy:
    """A policy in the caller, behind one interface.

    Args:
        policy: built already.
        name: of the policy, for messages.
        pad_to: rows of every batch; copies fill short ones. None: all rows that are ready.
        n_action_steps: number of actions of each answer that are played; None: an answer is one action.
        deterministic: the argument of `predict`.

    Attributes:
        told: remarks for the user, from the first batches.

    Raises:
        UsageError: `policy` cannot be asked with batches.
    """

    def __init__(
        self,
        policy: Any,
        name: str,
        *,
        pad_to: int | None = None,
        n_action_steps: int | None = None,
        deterministic: bool = False,
    ) -> None:
        self.pad_to, self.n_action_steps, self._deterministic = pad_to, n_action_steps, deterministic
        self.told: list[str] = []
        self._rngs: dict[int, np.random.Generator] = {}
        self._seeds: dict[int, int] = {}
        self._states: dict[int, Any] = {}
        self._outline: list[tuple[trees.Path, tuple[int, ...]]] | None = None  # of a state
        self._settled = Settled()
        self.ask_from_now(policy, name)

    def ask_from_now(self, policy: Any, name: str) -> None:
        """Ask this policy from now on, also in episodes that have begun, whose generators and states stay.

        Raises UsageError as the class does.
        """
        self.name = name
        initial = getattr(policy, "initial_state", None)
        self._initial = initial if callable(initial) else None
        self._call, self._draws = _caller(policy, name, self._deterministic, self.told)
        self._looked = False

    def close(self) -> None:
        """Give back the share of the event loop for coroutines. The policy's own `close` is not called."""
        self._settled.close()

    def start(self, slot: int, seed: int) -> None:
        """Begin an episode of a slot; `seed`: of the generator that the policy draws from."""
        self._seeds[slot] = seed
        self._rngs.pop(slot, None)
        self._states.pop(slot, None)

    def ask(self, batch: Any, slots: Sequence[int]) -> tuple[Any, list[dict[str, Any]] | None]:
        """Return (tree of actions [k, ...], k infos or None) for these k slots.

        `batch`: the slots' observations, a tree of [k, ...]. With `n_action_steps`, actions are [k, steps, ...].

        Raises BadAction for an answer of another form or number of rows, and what the policy raises.
        """
        if not self._looked:
            self._looked = True
            self._look(batch, slots)
        return self._ask(batch, slots)

    def _ask(self, batch: Any, slots: Sequence[int]) -> tuple[Any, list[dict[str, Any]] | None]:
        rows = len(slots)
        padding = 0 if self.pad_to is None else self.pad_to - rows
        rngs = [self._rng(slot) for slot in slots] if self._draws else []
        state = self._joined([self._state(slot) for slot in slots], padding) if self._initial else None
        if padding:
            batch = trees.map(lambda leaf: _padded(leaf, padding), batch)
            rngs += [copy.deepcopy(rngs[0]) for _ in range(padding)] if rngs else []
        actions, after, infos = self._parted(self._settled(self._call(batch, rngs, state)), rows + padding)
        if self._initial:
            for slot, each in zip(slots, self._split(after, rows + padding), strict=False):
                self._states[slot] = each
        actions = trees.map(lambda leaf: self._cut(leaf, rows, rows + padding), actions)
        return actions, None if infos is None else infos[:rows]

    # -- what comes back ---------------------------------------------------------------------------------------------

    def _parted(self, answer: Any, rows: int) -> tuple[Any, Any, list[dict[str, Any]] | None]:
        """Return (actions, state, infos by row) of the policy's answer; state or infos are None if it has none."""
        state = infos = None
        if self._initial:
            if not isinstance(answer, tuple) or len(answer) not in (2, 3):
                raise self._bad("(actions, state) or (actions, state, infos)", _outline(answer))
            answer, state, *rest = answer
            infos = rest[0] if rest else None
        elif isinstance(answer, tuple) and len(answer) == 2 and _is_infos(answer[1]):
            answer, infos = answer
        return _as_numpy(answer), state, None if infos is None else self._by_row(infos, rows)

    def _by_row(self, infos: Any, rows: int) -> list[dict[str, Any]]:
        if isinstance(infos, dict):
            infos = _as_numpy(infos)
            for key, value in infos.items():
                if len(value) != rows:
                    raise self._bad(f"infos[{key!r}] of {rows} rows", _outline(value))
            return [{key: value[row] for key, value in infos.items()} for row in range(rows)]
        if len(infos) != rows:
            raise self._bad(f"{rows} infos", f"{len(infos)}")
        return [dict(info) for info in infos]

    def _cut(self, leaf: Any, rows: int, asked: int) -> Any:
        """Return a leaf of actions without the rows of the padding, and with the steps that are played."""
        if not hasattr(leaf, "__len__") or len(leaf) != asked:
            raise self._bad(f"actions of {asked} rows", _outline(leaf))
        leaf = leaf[:rows]
        if self.n_action_steps is None:
            return leaf
        if np.ndim(leaf) < 2 or leaf.shape[1] < self.n_action_steps:
            got = f"{leaf.shape[1]}" if np.ndim(leaf) >= 2 else _outline(leaf)
            raise self._bad(f"actions [k, h, ...] of at least n_action_steps={self.n_action_steps} steps each", got)
        return leaf[:, : self.n_action_steps]

    def _bad(self, expected: str, got: str) -> BadAction:
        return BadAction(f"the policy {self.name} must return {expected}, got {got}", expected=expected, got=got)

    # -- what belongs to an episode ----------------------------------------------------------------------------------

    def _rng(self, slot: int) -> np.random.Generator:
        found = self._rngs.get(slot)
        if found is None:
            found = self._rngs[slot] = np.random.Generator(np.random.PCG64(self._seeds[slot]))
        return found

    def _state(self, slot: int) -> Any:
        if slot not in self._states:
            assert self._initial is not None
            self._states[slot] = state = self._initial(1)
            if self._outline is None:
                self._outline = self._outline_of(state)
        return self._states[slot]

    def _joined(self, states: list[Any], padding: int) -> Any:
        states = states + [copy.deepcopy(states[0]) for _ in range(padding)]

        def join(*leaves: Any) -> Any:
            if type(leaves[0]).__module__.startswith("torch"):
                return sys.modules["torch"].cat(leaves)
            return np.concatenate(leaves)

        return trees.map(join, states[0], *states[1:])

    def _split(self, state: Any, rows: int) -> list[Any]:

        def checked(leaf: Any) -> Any:
            shape = tuple(getattr(leaf, "shape", ()))
            if shape[:1] != (rows,):
                expected = f"a state whose leaves have {rows} rows on their first axis"
                raise self._bad(expected, f"one of shape {list(shape)}")
            return leaf

        trees.map(checked, state)
        outline = self._outline_of(state)
        if outline != self._outline:
            named = (f"{_shapes_text(each)}, each row" for each in (self._outline, outline))
            raise self._bad(f"a state like that of initial_state ({next(named)})", next(named))
        return [trees.map(lambda leaf, row=row: leaf[row : row + 1], state) for row in range(rows)]

    def _outline_of(self, state: Any) -> list[tuple[trees.Path, tuple[int, ...]]]:
        """Return paths and shapes of a state's leaves, without the axis of rows."""
        shapes = [tuple(getattr(leaf, "shape", ())) for leaf in trees.leaves(state)]
        return [(path, of[1:]) for path, of in zip(trees.paths(state), shapes, strict=True)]

    # -- the first look ----------------------------------------------------------------------------------------------

    def _look(self, batch: Any, slots: Sequence[int]) -> None:
        """Find out in the first batch whether rows depend on one another, and whether the policy draws from globals.

        The episodes' own generators and states stay as they were. Findings are added to `told`.
        """
        rows = len(slots)
        before = GlobalState()
        first = self._tried(batch, slots)
        if not before.same(GlobalState()):
            self.told.append(
                f"the policy {self.name} draws from the global generator of NumPy, torch or random: its actions "
                "depend on earlier calls. Take `rng`, one generator a row, for the same episodes every time"
            )
            return
        if rows < 2:
            return
        order = list(range(rows))[::-1]
        turned = self._tried(trees.map(lambda leaf: _taken(leaf, order), batch), [slots[row] for row in order])
        same = trees.equal(first, trees.map(lambda leaf: _taken(leaf, order), turned))
        if same and self.pad_to is None:
            alone = self._tried(trees.map(lambda leaf: _taken(leaf, [0]), batch), slots[:1])
            same = trees.equal(trees.map(lambda leaf: _taken(leaf, [0]), first), alone)
        if not same:
            how = f"--pad-to {MULTIPLE} (pad_to={MULTIPLE}) or a multiple of it" if self.pad_to is None else "another"
            self.told.append(
                f"the actions of the policy {self.name} for an observation depend on its batch, in their last bits "
                f"at least. Episodes may differ with the number of environments; {how} may mend it"
            )

    def _tried(self, batch: Any, slots: Sequence[int]) -> Any:
        kept = {slot: copy.deepcopy(rng) for slot, rng in self._rngs.items()}, dict(self._states)
        try:
            return self._ask(batch, slots)[0]
        finally:
            self._rngs, self._states = kept


def _caller(
    policy: Any, name: str, deterministic: bool, told: list[str]
) -> tuple[Callable[[Any, list[Any], Any], Any], bool]:
    """Return (function that asks the policy with a batch, generators and a state; True if it takes generators)."""
    stateful = callable(getattr(policy, "initial_state", None))
    drawn = not deterministic and not stateful
    if drawn and callable(getattr(getattr(policy, "policy", None), "get_distribution", None)):
        return partial(_drawn, policy, told), True  # of Stable-Baselines3
    if not stateful and (asker := asker_of(policy, deterministic)) is not None:
        return lambda batch, rngs, state: asker.ask(batch, rngs), asker.draws
    if not callable(policy):
        raise UsageError(
            f"a policy that is asked in the caller is callable on batches, or has get_actions or predict; {name} is a "
            f"{type(policy).__name__}"
        )
    draws = "rng" in (_parameters(policy if inspect.isroutine(policy) else policy.__call__) or [])
    return lambda batch, rngs, state: policy(batch, state, **({"rng": rngs} if draws else {})), draws


def _drawn(policy: Any, told: list[str], batch: Any, rngs: list[Any], state: Any) -> Any:
    found = drawn_actions(policy, batch, rngs, told)
    return predicted(policy, batch, False) if found is None else found


def _as_numpy(tree: Any) -> Any:
    return trees.map(_array, tree)


def _array(leaf: Any) -> Any:
    if type(leaf).__module__.startswith("torch"):
        return leaf.detach().cpu().numpy()
    return leaf


def _padded(leaf: Any, padding: int) -> Any:
    if isinstance(leaf, np.ndarray):
        return np.concatenate([leaf, np.repeat(leaf[:1], padding, axis=0)])
    return [*leaf, *[leaf[0]] * padding]


def _taken(leaf: Any, rows: list[int]) -> Any:
    return leaf[rows] if isinstance(leaf, np.ndarray) else [leaf[row] for row in rows]


def _is_infos(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and all(isinstance(each, dict) for each in value))


def _shapes_text(outline: Any) -> str:
    return ", ".join(f"{'.'.join(map(str, path)) or 'state'} {list(shape)}" for path, shape in outline)


def _outline(value: Any) -> str:
    shape = getattr(value, "shape", None)
    if shape is not None:
        return f"{getattr(value, 'dtype', '')}{list(shape)}"
    return f"a {type(value).__name__}" + (f" of {len(value)}" if hasattr(value, "__len__") else "")
