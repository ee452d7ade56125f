"""The recipe, the orders and the remarks of slots that make episodes: pure values, which travel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from treadle.checks import check_seconds, check_whole, suggests
from treadle.errors import UsageError
from treadle.program.gym_env import EnvRecipe
from treadle.wire.messages import Raised

SKIPPED = ("reset", "step")  # phases in which an episode's failure is its own
WHERE = ("auto", "worker", "caller", "node")  # a policy is asked
BATCH, BATCH_SECONDS = 64, 0.05  # stored and packed episodes are told of together, but none waits long

Results = list[tuple[int, int, Any]]  # (index, length, what was made); (-1, 0, Pack) stands for several
ResetOptions = Callable[[int], dict[str, Any] | None] | Sequence[dict[str, Any] | None] | None


def options_of(given: ResetOptions, index: int) -> dict[str, Any] | None:
    """Return the reset's options in episode `index`; None: it gets none. Raises UsageError for other than a dict."""
    if given is None:
        return None
    options = given(index) if callable(given) else given[index % len(given)]
    if not isinstance(options, Mapping | None):
        raise UsageError(f"the reset options of episode {index} must be a dict, got {options!r}")
    return options


@dataclass(frozen=True)
class RolloutOrder:
    """An order to a worker to make episodes.

    Attributes:
        root: the run's seed.
        indices: of the episodes to make. (): the episodes of earlier orders are played to their ends.
        batch: number of results that may travel together. It is 1 after a death, so that the loss of a worker loses
            only episodes in play.
        skip: True: an episode that fails in its reset or step becomes a `FailedEpisode`; False: it ends the stream.
        more: True if other orders will follow; then rows need not end together with this one.
        seconds: that a result may wait for others.
    """

    root: int
    indices: tuple[int, ...]
    batch: int = BATCH
    skip: bool = False
    more: bool = False
    seconds: float = BATCH_SECONDS


@dataclass(frozen=True)
class Remark:
    """A worker's remark for the user; travels as a result of length 0.

    Attributes:
        kind: remarks of one kind are made once a run.
        text: one line, which names the episode.
    """

    kind: str
    text: str


@dataclass(frozen=True)
class FailedEpisode:
    """An episode that has failed in an environment that had played no other; a result of length 0.

    Attributes:
        raised: the failure.
    """

    raised: Raised


@suggests
@dataclass(frozen=True, kw_only=True)
class Inference:
    """Where a policy is asked, and for how many environments at a time.

    Attributes:
        where: "worker": in each worker process, for its own environments. With "caller": in the caller, for all
            environments that are ready (`docs/inference.md`). With "node": once on each node of a cluster. With "auto":
            in the caller (or on each node) if the policy has `batched = True`, parameters off the CPU, or more than 256
            MiB. Likewise if the policy cannot be pickled; else in the workers. Speed does not decide.
        batch_size: in the caller: rows to wait for; None: chosen from measurements.
        max_wait: in the caller: seconds that a slot waits for others; None: chosen from measurements.
        pad_to: rows of every batch; copies fill short batches. In the workers, each plays so many environments. None:
            a batch has all rows that are ready; in the workers `num_envs` decides.
        n_action_steps: in the caller: actions of one answer that are played; None: an answer is one action.

    Raises:
        UsageError: `where` is none of these, a number is out of its range, or `batch_size` is above `pad_to`.
    """

    where: str = "auto"
    batch_size: int | None = None
    max_wait: float | None = None
    pad_to: int | None = None
    n_action_steps: int | None = None

    def __post_init__(self) -> None:
        if self.where not in WHERE:
            raise UsageError(f"inference must be 'auto', 'worker', 'caller' or 'node', got {self.where!r}")
        check_whole(batch_size=self.batch_size, pad_to=self.pad_to, n_action_steps=self.n_action_steps)
        check_seconds("max_wait", self.max_wait, none=True, zero=True)
        if self.pad_to is not None and self.batch_size is not None and self.batch_size > self.pad_to:
            raise UsageError(f"batch_size={self.batch_size} is more than pad_to={self.pad_to} rows")

    @classmethod
    def of(cls, given: Inference | str) -> Inference:
        """Return `given`, or the inference whose `where` it is. Raises UsageError."""
        return given if isinstance(given, Inference) else cls(where=given)


@dataclass(frozen=True)
class CallerInference(Inference):
    """How a policy in the caller is asked.

    Attributes:
        policy: as `collect` takes it.
        num_envs: number of environments that are played at a time; None: some for each worker.

    Raises UsageError as `Inference`, and for a `batch_size` above `num_envs`.
    """

    policy: Any
    num_envs: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(num_envs=self.num_envs)
        self.check_batch(self.num_envs)

    def check_batch(self, count: int | None) -> None:
        """Raise UsageError if `batch_size` is above `count`, the number of environments; None: it is not known yet."""
        if count is not None and (self.batch_size or 0) > count:
            raise UsageError(
                f"batch_size={self.batch_size} is more than the {count} environments that are played at "
                "a time: give more of them (num_envs=, --num-envs)"
            )


@dataclass(frozen=True)
class RolloutRecipe:
    """How to set a rollout worker up.

    Attributes:
        env: how the environment is built.
        policy: see `treadle.program.policies`.
        deterministic: True: a policy's `predict` gives its best action; False: it draws.
        rows: number of environments of a worker.
        max_steps: steps of the longest episode, which is cut there; None: the environment decides.
        marks_cuts: True: the last step of an episode that is cut there is truncated. False: it has no end, as in
            garage.
        infos: True: the infos of steps are kept.
        sink: None: episodes are sent to the caller. Else called once in the worker, with (worker slot, observation
            space, action space); the object returned has `add(episode) -> result to send instead`, and `close()`.
        fresh_env: True: build a new environment for each episode.
        reset_options: the options of each episode's reset; see `treadle.sample.run.Run`.
        asking: how the policy is asked in the caller; None: it is asked in the workers.
        packs: True: small episodes are sent together, as a `Pack`, so that the process between need not read them.

    Raises UsageError for other reset options than a function or a sequence with items.
    """

    env: EnvRecipe
    policy: Any = None
    rows: int = 1
    max_steps: int | None = None
    infos: bool = True
    sink: Callable[[int, Any, Any], Any] | None = None
    fresh_env: bool = False
    reset_options: ResetOptions = None
    marks_cuts: bool = True
    asking: CallerInference | None = None
    packs: bool = False
    deterministic: bool = False

    def __post_init__(self) -> None:
        check_reset_options(self.reset_options)


def check_reset_options(given: Any) -> None:
    """Raise UsageError for reset options that are not a function or a sequence with items; None: there are none."""
    if given is not None and not callable(given) and not (isinstance(given, Sequence) and given):
        text = "reset_options is a function of the episode's index, or a sequence of dicts, not an empty one, got"
        raise UsageError(f"{text} {given!r}")


@dataclass
class Shares:
    """Seconds that a worker has spent, by kind: each at least 0, and in sum at most the time that has passed.

    Attributes:
        step, policy, reset: in the environment's steps, the policy, and resets.
        encode: on finished episodes: making, storing and packing them.
    """

    step: float = 0.0
    policy: float = 0.0
    encode: float = 0.0
    reset: float = 0.0

    def played(self, seconds: float, policy: float) -> None:
        """Add a stretch of playing.

        `policy`: the policy's seconds of it, estimated from the calls that were timed. An unusually long call makes the
        estimate too large, so it is at most the stretch.
        """
        policy = min(policy, seconds)
        self.policy += policy
        self.step += seconds - policy

    @classmethod
    def together(cls, parts: Iterable[Shares]) -> Shares:
        """Return the sums of several."""
        parts = list(parts)
        return cls(*(sum(getattr(part, each.name) for part in parts) for each in fields(cls)))

    def over(self, count: int) -> Shares:
        """Return one of `count` equal parts."""
        return Shares(*(getattr(self, each.name) / count for each in fields(self)))

    @property
    def busy(self) -> float:
        """The sum of all kinds."""
        return self.step + self.policy + self.encode + self.reset
