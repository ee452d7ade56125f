"""A run as a value: which episodes are made, of what, from which seed, and what a failure of one leads to.

`collect` iterates a run, `evaluate` scores it, `collect_dataset` writes it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from treadle import seeding
from treadle.checks import check_names, check_whole, check_workers
from treadle.errors import UsageError
from treadle.nodes.placing import Cluster, Placement
from treadle.play.episode import Episode
from treadle.play.recipe import Inference, ResetOptions, RolloutRecipe
from treadle.program.gym_env import EnvRecipe
from treadle.program.policies import policy_name
from treadle.sample.collection import Collection
from treadle.sample.inference import asking_of
from treadle.sample.keeping import LEAST, TIMES, Keep
from treadle.sample.named import env_of, reference_of
from treadle.sample.nodes import collection
from treadle.sample.schedule import Schedule
from treadle.sample.skipping import Skipping
from treadle.worker.options import WorkerOptions, chosen

LISTED = "a list"  # what `Run.as_json` says of reset options that are no function


class EpisodeKeywords(TypedDict, total=False):
    """Arguments of every face that plays a run, for type checkers: what they mean, `Run` says."""

    step_timeout: float | None
    on_failure: str
    worker_options: WorkerOptions | None
    workers: int | str
    num_envs: int | None
    inference: Inference | str
    cluster: Cluster | None
    max_episode_steps: int | None
    env_kwargs: Mapping[str, Any] | None
    wrappers: Sequence[Callable[[gym.Env], gym.Env]]
    fresh_env: bool
    reset_options: ResetOptions
    on_error: str
    max_skipped: int | float | None


class RunKeywords(EpisodeKeywords, total=False):
    """See `EpisodeKeywords`: those of `collect` and `collect_dataset`."""

    episodes: int | None
    steps: int | None
    seed: int
    infos: bool


class StoredKeywords(RunKeywords, total=False):
    """See `EpisodeKeywords`: those of `collect_dataset`."""

    keep: str | Callable[[Episode], Any] | None
    kept: int | None


@dataclass(frozen=True, eq=False, kw_only=True)
class Run:
    """Whole episodes, made in parallel. (seed, i) alone decides episode i, so a run is the same bytes for any number of
    workers. `Run.of` makes and checks a run. Two runs are equal if their `as_json` are equal; runs are not hashable.

    Attributes:
        env: a registered id, "module:Id", an EnvSpec, a callable that returns an environment, or "module:make_env" or
            "file.py:make_env", which name such a callable.
        policy: None for random actions, or see `treadle.program.policies`.
        deterministic: True: a policy's `predict` gives its best action; False: it draws.
        episodes: number of episodes; None: `steps` decides, or the run has no end.
        steps: least number of steps, given in place of `episodes`. The run ends with the first episode, by index, at
            which all episodes so far have that many steps; None: `episodes` decides.
        seed: the run's root seed.
        workers: number of workers, or "auto": one a core, and more where environments wait (`docs/inference.md`). With
            threads "auto" is one an environment for a policy in the caller, else 8 a core. At most one worker an
            episode is started.
        num_envs: number of environments that are played at a time; with a cluster, on each node. A policy in the
            workers sees batches of exactly `num_envs` / `workers` rows. None: one a worker, or 8 a worker for a policy
            in the caller.
        inference: where the policy is asked: a `treadle.Inference`, or its `where` alone: "auto", "worker", "caller" or
            "node".
        cluster: play on the nodes of a Ray cluster, each with a pool of workers of its own: a `treadle.Cluster`.
        max_episode_steps: cut longer episodes (truncated).
        env_kwargs: for `gymnasium.make`, or the callable.
        wrappers: applied to each environment, in order.
        infos: True: step infos are kept.
        fresh_env: build a new environment for every episode, for environments that carry state over.
        reset_options: a function of i, or a sequence that begins again at its end. It gives the dict (or None) that the
            reset of episode i takes as `options`. None: no options.
        on_error: what happens when an episode fails. "raise": it ends the run. "skip": it is left out, with a warning.
            An episode fails when its reset or step raises; with "skip", only if it raises in a new environment, too. It
            also fails when it kills three fresh workers or exceeds `step_timeout` in them. The episodes of a dead
            worker go to a fresh one, which plays each by itself. An exception of a policy or a constructor always ends
            the run.
        max_skipped: largest number of episodes that may be left out with on_error="skip", or their share of all
            episodes, such as 0.1. A share always allows at least 3 episodes. None: a share of 5 %. The run ends when
            more episodes fail, or all of the first ten.
        keep: rule by which a dataset's episodes are stored, see `treadle.sample.keeping.Keep`. Other episodes are only
            counted. None: all are stored.
        kept: number of episodes to store with `keep`: the first ones, by index, that satisfy the rule. At most
            `episodes` are tried; the run fails if none of them is stored. Without `episodes` at most 100 * kept are
            tried, or 1,000 if that is more; with too few stored then, the run fails.
        step_timeout: seconds for a step, a reset or an action of the policy. A worker process that takes longer is
            killed, and another makes its episode again. None: no limit.
        on_failure: what happens when a worker dies. With "restart" it is replaced, without limit or as often as
            max_restarts of `worker_options` allows. With "raise" the run ends. With "drop" the other workers go on.
        worker_options: how workers are run: a `treadle.WorkerOptions`.
        recipe: how a worker is set up for the run.
        skipping: how an episode that fails is treated.
        pool: options of the run's pool of workers.
        count: number of workers; None: it is decided at their start.
        rule: `keep` as a `Keep`; None: without `keep`.
    """

    env: str | EnvSpec | Callable[..., gym.Env]
    policy: Any = None
    deterministic: bool = False
    episodes: int | None = None
    steps: int | None = None
    seed: int = 0
    workers: int | str = "auto"
    num_envs: int | None = None
    inference: Inference | str = "auto"
    cluster: Cluster | None = None
    max_episode_steps: int | None = None
    env_kwargs: Mapping[str, Any] | None = None
    wrappers: Sequence[Callable[[gym.Env], gym.Env]] = ()
    infos: bool = True
    fresh_env: bool = False
    reset_options: ResetOptions = None
    on_error: str = "raise"
    max_skipped: int | float | None = None
    keep: str | Callable[[Episode], Any] | None = None
    kept: int | None = None
    step_timeout: float | None = None
    on_failure: str = "restart"
    worker_options: WorkerOptions | None = None
    recipe: RolloutRecipe = field(init=False)
    pool: dict[str, Any] = field(init=False)
    skipping: Skipping = field(init=False)
    count: int | None = field(init=False)
    rule: Keep | None = field(init=False)

    @classmethod
    def of(cls, face: Callable[..., Any], taken: type, env: Any, policy: Any = None, **given: Any) -> Run:
        """Make a run from the arguments of a function that users call, and check them before anything is started.

        Args:
            face: the function that users call, for errors.
            taken: the TypedDict of the keyword arguments that `face` passes on.
            env, policy, given: the arguments, see `Run`.

        Raises:
            UsageError: unknown or contradictory arguments.
        """
        check_names(face, given, taken.__annotations__)
        return cls(env=env, policy=policy, **given)

    def __post_init__(self) -> None:
        if self.episodes is not None and self.steps is not None:
            raise UsageError("give either episodes or steps, not both")
        check_whole(episodes=self.episodes, steps=self.steps, max_episode_steps=self.max_episode_steps)
        if not isinstance(self.workers, str):
            check_workers(self.workers, none=False)
        elif self.workers != "auto":
            raise UsageError(f"workers must be 'auto' or a whole number of at least 1, got {self.workers!r}")
        check_root(self.seed)
        check_whole(kept=self.kept)
        if (self.keep is None) != (self.kept is None):
            raise UsageError("keep (--keep) says which episodes are stored, and kept (--kept) how many: give both")
        if self.keep is not None and (self.steps is not None or self.cluster is not None):
            raise UsageError("keep (--keep) goes with neither steps (--steps) nor nodes (--nodes)")
        skipping = Skipping.of(self.on_error, self.max_skipped)
        pool = {"step_timeout": self.step_timeout, "on_failure": self.on_failure, **chosen(self.worker_options)}
        self._check_place()
        asking, workers, rows = asking_of(self.policy, self.inference, self.num_envs, self.workers)
        recipe = RolloutRecipe(
            EnvRecipe.of(env_of(self.env), self.env_kwargs, self.wrappers),
            self.policy,
            int(rows),
            _int(self.max_episode_steps),
            self.infos,
            fresh_env=self.fresh_env,
            reset_options=self.reset_options,
            asking=asking,
            deterministic=self.deterministic,
        )
        pool |= {} if self.cluster is None else {"placement": Placement.of(self.cluster)}
        count, rule = None if workers == "auto" else int(workers), None if self.keep is None else Keep(self.keep)
        # NumPy's numbers are no JSON
        numbers = {"episodes": _int(self.episodes), "steps": _int(self.steps), "seed": int(self.seed)}
        parts = {"recipe": recipe, "skipping": skipping, "pool": pool, "count": count, "rule": rule}
        for name, value in {**parts, **numbers}.items():
            object.__setattr__(self, name, value)

    def _check_place(self) -> None:
        where = Inference.of(self.inference).where
        if self.cluster is not None and where == "caller":
            raise UsageError(
                "inference='caller' with a cluster would send every observation of every step to one process and back, "
                "which takes longer than the steps. Give inference='node' (asked once on each node) or 'worker'"
            )
        if self.cluster is None and where == "node":
            raise UsageError("inference='node' asks a policy once for each node: it goes with cluster= (--nodes)")

    def __eq__(self, other: object) -> bool:
        return self.as_json() == other.as_json() if isinstance(other, Run) else NotImplemented

    def as_json(self) -> dict[str, Any]:
        """Return all that decides the run's bytes, for `run.json` and the comparison of a resumed run. Objects stand
        there by their names, see `objects`."""
        recipe = self.recipe
        found = {
            "env": reference_of(recipe.env.env),
            "policy": reference_of(self.policy) or "random",
            "episodes": self.tried,
            "steps": self.steps,
            "seed": self.seed,
            "rows": recipe.rows,
            "max_episode_steps": recipe.max_steps,
            "env_kwargs": json.loads(json.dumps(recipe.env.kwargs, default=lambda each: type(each).__qualname__)),
            "wrappers": [reference_of(wrapper) for wrapper in recipe.env.wrappers],
            "infos": self.infos,
            "fresh_env": self.fresh_env,
        }
        if recipe.asking is not None:  # how many are played at a time does not decide
            asking = recipe.asking
            found |= {"inference": "caller", "pad_to": asking.pad_to, "n_action_steps": asking.n_action_steps}
        if recipe.deterministic and self.policy is not None:
            found["deterministic"] = True
        if self.rule is not None:
            found |= {"keep": str(self.rule), "kept": self.kept}
        if self.reset_options is not None:
            listed = isinstance(self.reset_options, Sequence)
            found["reset_options"] = LISTED if listed else reference_of(self.reset_options)
        return found

    def objects(self) -> dict[str, Any]:
        """Return the objects that `as_json` holds by name alone."""
        made_of, given = self.recipe.env, self.reset_options
        found = {"env": made_of.env, "policy": self.policy, "wrappers": list(made_of.wrappers), "env_kwargs": None}
        try:
            json.dumps(made_of.kwargs)
        except (TypeError, ValueError):
            found["env_kwargs"] = made_of.kwargs
        if self.rule is not None:
            found["keep"] = self.rule.given
        if given is not None:
            found["reset_options"] = tuple(given) if isinstance(given, Sequence) else given
        return found

    @property
    def drawn(self) -> bool:
        """Return True if a policy draws its actions."""
        return not self.deterministic and policy_name(self.policy) != "random"

    @property
    def tried(self) -> int | None:
        """The largest number of episodes that are tried; None: `steps` decides, or the run goes on for ever."""
        found: int | None = self.episodes
        return max(LEAST, TIMES * self.kept) if found is None and self.kept is not None else found

    def too_rare(self, kept: int, unfit: int) -> str:
        """Return why a run has failed that kept too few of all the episodes that it may try; "": it has not failed."""
        if self.kept is None or kept >= self.kept or (self.episodes is not None and kept):
            return ""
        more = "episodes=M (--episodes M), more of them, with resume (--resume) goes on"
        tried = kept + unfit
        return f"{kept:,} of {tried:,} episodes are kept ({kept / tried:.2%}), not {self.kept:,}: {self.rule}; {more}"

    def schedule(self, **have: Any) -> Schedule:
        """Return the schedule of the run's episodes. `have`: see `Schedule`."""
        return Schedule(self.tried, self.steps, kept=self.kept, **have)

    def collection(self, schedule: Schedule, *, recipe: RolloutRecipe | None = None, **options: Any) -> Collection:
        """Start the run's workers; return the collection. `recipe`, `options` (of `Collection`) replace the run's."""
        own = {"root": self.seed, "workers": self.count, "skipping": self.skipping, **self.pool}
        return collection(recipe or self.recipe, schedule, **own | options)


def check_root(seed: int) -> None:
    """Raise UsageError for what cannot be the seed of a run."""
    try:
        seeding.derive(seed)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _int(number: int | None) -> int | None:
    return None if number is None else int(number)
