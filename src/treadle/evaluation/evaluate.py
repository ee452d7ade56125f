"""Evaluating: whole episodes are played and scored, and with a directory nothing that was finished is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from treadle import trees
from treadle.checks import check_names, check_whole, path_of
from treadle.errors import UsageError
from treadle.evaluation.remarks import remarks_of
from treadle.evaluation.results import Results
from treadle.play.episode import SUCCESS_KEYS, Episode
from treadle.play.recipe import ResetOptions, check_reset_options, options_of
from treadle.program.gym_env import TASK, EnvRecipe, Suite, recipe_parts
from treadle.program.policies import policy_name
from treadle.progress import Log, Progress, Shows, Standing
from treadle.record.journal import EpisodeNote, read
from treadle.record.making import Interrupted, Making, make
from treadle.record.parts import KEPT
from treadle.record.run_directory import FORMAT, RunDirectory
from treadle.sample.failed import CollectionFailed, Failures
from treadle.sample.inference import many_at_once
from treadle.sample.named import env_of, reference_of
from treadle.sample.run import EpisodeKeywords, Run, RunKeywords
from treadle.sample.scores import Evaluation, Score, ScoreRemark, SoFar, about_of, digest_of, evaluation_of
from treadle.sample.skipping import Skipped
from treadle.worker.options import chosen


def evaluate(
    env: str | EnvSpec | Callable[..., gym.Env] | Mapping[str, Any],
    policy: Any,
    episodes: int = 100,
    seed: int = 0,
    *,
    success_key: str | None = None,
    deterministic: bool = True,
    out: str | Path | None = None,
    resume: bool | str = False,
    log: Log | None = None,
    progress: Shows = False,
    **run: Unpack[EpisodeKeywords],
) -> Evaluation:
    """Play whole episodes and return how they went. The result is the same for any number of workers.

    Args:
        env: an environment as for `treadle.sample.run.Run`. Or a suite: a dict of task name -> environment, or
            -> (environment, its env_kwargs). All tasks must have the same spaces. One run plays all tasks: task k, from
            0, has the episodes `k * episodes` to `(k + 1) * episodes - 1`. The result has a part for each task. One
            worker builds every task before any is played.
        policy: None for random actions, or see `treadle.program.policies`.
        episodes: number of episodes; for a suite, of each task.
        seed: the run's root seed. Two policies with the same seed meet the same episodes.
        success_key: key of an episode's last info whose value says whether the episode was a success. None:
            "is_success" or "success", whichever is there.
        deterministic: True: a policy's `predict` gives its best action, as in Stable-Baselines3's `evaluate_policy`;
            False: it draws.
        out: a directory that keeps the evaluation. It has a line for each finished episode (`episodes.jsonl`), the
            actions from which the episode is replayed without its policy, `summary.json` and `failures/`. None: nothing
            is kept.
        resume: how an earlier run in `out` is treated, as for `treadle.collect_dataset`.
        log: called at the end with (numbers, steps made). The numbers are "eval/mean_reward", "eval/mean_ep_length"
            and, where the environment has one, "eval/success_rate".
        progress: as for `collect`.
        run: see `treadle.sample.run.Run`; step_timeout=SECONDS bounds what hangs. A network (of torch or
            Stable-Baselines3) is asked about 8 environments at a time, in each worker, unless inference says otherwise.
            For a suite, reset_options are those of episode i of each task, counted from 0 in each, such as the initial
            states of a benchmark.

    Raises:
        UsageError, StartupFailed: as `collect`.
        CollectionFailed: a failure ended the run; the error's `stored` is the Evaluation of the finished episodes, or
            None if there are none.
        Interrupted: Ctrl-C ended the run; the error's `stored` is the same.
        Damaged, OSError: with `out`, as for `treadle.collect_dataset`.
    """
    scored = Scored.of(env, policy, episodes, seed, success_key, deterministic, **run)
    return scored.evaluation(out, "treadle.evaluate(...)", resume=resume, log=log, progress=progress)


@dataclass(frozen=True)
class Scored:
    """A checked run of `evaluate`, and how its episodes are scored.

    Attributes:
        run: of all tasks.
        tasks: names, in order; empty where it is not a suite.
        references: of the tasks' environments, for `run.json`.
        episodes: of each task.
        keys: of infos, whose values say whether an episode was a success.
    """

    run: Run
    tasks: tuple[str, ...]
    references: Mapping[str, Any]
    episodes: int
    keys: tuple[str, ...]

    @classmethod
    def of(
        cls,
        env: Any,
        policy: Any,
        episodes: int,
        seed: int,
        success_key: str | None,
        deterministic: bool,
        **run: Unpack[EpisodeKeywords],
    ) -> Scored:
        """Of what `evaluate` was given. Raises UsageError for what makes no sense."""
        check_names(evaluate, run, EpisodeKeywords.__annotations__)
        check_whole(none=False, episodes=episodes)
        if not isinstance(success_key, str | None):
            raise UsageError(f"success_key is a key of infos, or None, got {success_key!r}")
        tasks = dict(env) if isinstance(env, Mapping) else {}
        references: dict[str, Any] = {}
        if tasks:
            common = recipe_parts(run.pop("env_kwargs", None), run.pop("wrappers", ()))
            env = Suite({name: _task(each, *common) for name, each in tasks.items()})
            references = {name: reference_of(each.env) for name, each in env.tasks.items()}
            run["reset_options"] = _OfTasks(tuple(tasks), episodes, run.get("reset_options"))
        wanted = episodes * max(1, len(tasks))
        given = run.pop("inference", "auto"), run.pop("num_envs", None)
        backend = chosen(run.get("worker_options")).get("backend", "process")
        inference, num_envs = many_at_once(policy, *given, run.get("cluster") is not None, backend)
        asked: Any = {**run, "inference": inference, "num_envs": num_envs}
        made = Run.of(evaluate, RunKeywords, env, policy, episodes=wanted, seed=seed, infos=False, **asked)
        keys = SUCCESS_KEYS if success_key is None else (success_key,)
        return cls(replace(made, deterministic=deterministic), tuple(tasks), references, episodes, keys)

    def evaluation(self, out: str | Path | None, command: str, *, log: Log | None = None, **how: Any) -> Evaluation:
        """Play it, as `evaluate` does. `command`, `how`: of `treadle.record.making.Making`, with `out`."""
        making = Making(command, **how)
        if out is None and (making.resume or making.verify):
            raise UsageError("resume (--resume, --force) and --verify are about a directory: give out (--out) too")
        result = self._play(making.progress) if out is None else self._keep(out, making)
        steps = sum(score.length for score in result.scores)
        values = {"eval/mean_reward": result.mean, "eval/mean_ep_length": steps / len(result.scores)}
        if result.success is not None:
            values["eval/success_rate"] = result.success
        if log is not None:
            log(values, steps)
        return result

    def _keep(self, out: str | Path, how: Making) -> Evaluation:
        """Play it into the directory `out`."""
        folder, so_far = path_of("out", out).absolute(), SoFar()
        results = Results(folder, self.run, self._task_of, self.keys)
        tasks = {"tasks": self.references} if self.tasks else {}
        about = {"format": FORMAT, "kind": "evaluation", "success_keys": list(self.keys), **tasks}

        def tell(now: Standing) -> None:
            now.result = so_far.text(results.notes.values())

        try:
            with RunDirectory(folder) as place:
                summary: Any = make(self.run, results, place, how, about=about, tell=tell).summary
                whole = [record.note for record in read(folder / KEPT, "kept")]
        except (CollectionFailed, Interrupted) as stopped:
            stopped.stored = self._result(results.notes.values(), results.left_out.values())
            raise
        result = self._result(whole, [Skipped(**each) for each in summary.skipped], summary.verified)
        assert result is not None  # a run of which all fails has ended
        said = *result.remarks, *map(ScoreRemark, summary.warnings)
        return replace(result, inference=summary.inference, verdict=summary.verdict, remarks=said)

    def _task_of(self, index: int) -> str:
        return self.tasks[index // self.episodes] if self.tasks else ""

    def _play(self, progress: Shows) -> Evaluation:
        """Play it and keep nothing."""
        shown, failures, notes, so_far = Progress(progress), Failures(), list[EpisodeNote](), SoFar()
        told = shown.tell

        def tell(now: Standing) -> None:
            assert told is not None
            now.result = so_far.text(notes)
            told(now)

        recipe = replace(self.run.recipe, sink=partial(Scorer, self.keys))
        begun: Any = {"recipe": recipe, "tell": told and tell, "failures": failures}
        try:
            with self.run.collection(self.run.schedule(), **begun) as playing, shown:
                for _, _, note in playing:
                    notes.append(note)
                playing.fate.failures.close(playing.tally.restarts)
                why = playing.verdict(playing.shares(), sum(note.length for note in notes))
            asked, said = playing.stats(), playing.notes()
        except CollectionFailed as stopped:
            stopped.stored = self._result(notes, failures.left_out.values())
            raise
        except KeyboardInterrupt:
            raise Interrupted(self._result(notes, failures.left_out.values())) from None
        result = self._result(notes, failures.left_out.values())
        assert result is not None
        return replace(result, inference=asked, verdict=why, remarks=(*result.remarks, *map(ScoreRemark, said)))

    def _result(
        self,
        notes: Iterable[EpisodeNote],
        left_out: Iterable[Skipped],
        verified: Mapping[str, Any] | None = None,
    ) -> Evaluation | None:
        """The result of these episodes; None: there are none."""
        policy, seed = policy_name(self.run.policy), self.run.seed
        played = sorted(notes, key=lambda note: note.index)
        lost = sorted(left_out, key=lambda each: each.index)
        scores = [_score(note) for note in played]
        if not scores:
            return None
        parts = {
            task: evaluation_of(policy, own, seed)
            for task in self.tasks
            if (own := [score for score in scores if self._task_of(score.index) == task])
        }
        remarks = remarks_of(played, lost, verified, self.run.drawn)
        return replace(evaluation_of(policy, scores, seed), tasks=parts, left_out=tuple(lost), remarks=remarks)


def _score(note: EpisodeNote) -> Score:
    return Score(note.index, note.seed, note.total_reward, note.length, note.terminated, note.truncated, note.success)


def _task(given: Any, env_kwargs: dict[str, Any], wrappers: tuple[Callable[[gym.Env], gym.Env], ...]) -> EnvRecipe:
    env, own = given if isinstance(given, tuple) else (given, {})
    return EnvRecipe(env_of(env), {**env_kwargs, **own}, wrappers)


class Scorer:
    """Keeps nothing of an episode but its note. Made in the worker; the spaces, which every sink is given, do not
    matter. Its digests are of actions, rewards and the first and last observation."""

    def __init__(self, success_keys: tuple[str, ...], *_: Any) -> None:
        self._keys = success_keys

    def add(self, episode: Episode) -> EpisodeNote:
        ends = [each[at] for each in trees.leaves(episode.observations) for at in (slice(1), slice(-1, None))]
        digest = digest_of([*trees.leaves(episode.actions), episode.rewards, *ends])
        return EpisodeNote.of(episode, self._keys, nbytes=0, digest=digest, about=about_of(episode, self._keys))

    def close(self) -> None:
        """Nothing is held."""


@dataclass(frozen=True)
class _OfTasks:
    """Reset options of a suite's episodes.

    Attributes:
        tasks: in order.
        episodes: of each.
        given: as of `evaluate`.
    """

    tasks: tuple[str, ...]
    episodes: int
    given: ResetOptions

    def __post_init__(self) -> None:
        check_reset_options(self.given)

    def __call__(self, index: int) -> dict[str, Any]:
        task, own = divmod(index, self.episodes)
        return {TASK: self.tasks[task], "options": options_of(self.given, own)}
