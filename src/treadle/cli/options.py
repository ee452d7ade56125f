"""What can be typed: each command's options once, with their help, and what they mean to the library.

A command is a dataclass. Its fields are its arguments and options, under their own names (`max_episode_steps` is
--max-episode-steps), and its docstring is what `--help` says, of each of them under "Attributes:"; `main.py` makes the
commands of them. Combinations that make no sense are the library's to refuse.

What needs NumPy or Gymnasium is imported where it is used: `treadle --help` needs neither.
"""
# ruff: noqa: RUF009 - `typed` makes a field

from __future__ import annotations

import contextlib
import inspect
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

from treadle.errors import UsageError

POLICY = "random|module:attr|file.py:attr|model.zip"

# what `--help` shows together, of commands that play: title -> fields; others have one list
PANELS = {
    "What to play": ("env", "env_kwargs", "max_episode_steps", "reset_options", "fresh_env", "seed", "success_key"),
    "How many": ("episodes", "steps", "keep", "kept", "shard"),
    "Where to": ("out", "name", "force", "resume", "verify", "no_infos", "report", "trace"),
    "When it fails": ("on_error", "max_skipped", "retry_skipped", "step_timeout"),
    "The policy": ("policy", "against", "stochastic", "inference", "pad_to"),
    "Workers and cluster": ("workers", "num_envs", "nodes"),
    "What is shown": ("quiet", "json", "debug", "help"),
}
Meaning = Callable[[str, Any], Any]  # of an option: its name and what was typed -> what the library is given


def typed(default: Any, metavar: str | None = None, **about: Any) -> Any:
    """A field that can be typed.

    Args:
        default: MISSING: it must be given.
        metavar: what stands for its value in `--help`.
        about: `name`: how it is typed, where not by the field's name. `position`: is it an argument, and no option?
            `shown`: what `--help` says of the default. `means`: its `Meaning`, which raises UsageError; None: the
            library does not get it. `argument`: the library's name for it. `least`: the least number that it takes.
    """
    kind = "default_factory" if default is list else "default"
    return field(**{kind: default, "metadata": {"metavar": metavar, **about}})


def help_of(command: type) -> tuple[str, dict[str, str]]:
    """What `--help` says of a command, and of each of its fields, as docstrings have it."""
    said: dict[str, str] = {}
    for kind in command.__mro__:
        _, _, fields = (inspect.getdoc(kind) or "").partition("\n\nAttributes:\n")
        for name, text in re.findall(r"^    (\w+): (.*(?:\n        .*)*)", fields, re.MULTILINE):
            said.setdefault(name, " ".join(text.split()))
    return (inspect.getdoc(command) or "").partition("\n\nAttributes:\n")[0], said


def option_name(name: str, about: Any) -> str:
    """How a field is typed."""
    return about.get("name") or f"--{name.replace('_', '-')}"


def workers(name: str, text: str) -> int | str:
    """A number of workers, or "auto", which is the library's to refuse."""
    return int(text) if text.lstrip("-").isdecimal() else text


def amount(name: str, text: str | None) -> int | float | None:
    """A number, or a share of all: "7", "5%"."""
    if text is None:
        return None
    with contextlib.suppress(ValueError):  # told below
        if not text.endswith("%"):
            count = int(text)
            if count >= 0:
                return count
        elif 0 < float(text[:-1]) < 100:
            return float(text[:-1]) / 100
    raise UsageError(f"{name} is a number of episodes such as 7, or a share of them such as 5%, got {text!r}")


def json_object(name: str, text: str) -> dict[str, Any]:
    """A dict of JSON; nothing is {}."""
    try:
        found = json.loads(text or "{}")
    except ValueError as error:
        raise UsageError(f"{name} is not JSON: {error}; got {text!r}") from None
    if not isinstance(found, dict):
        raise UsageError(f"{name} must be a JSON object such as '{{\"frameskip\": 1}}', got {text}")
    return found


def reference(name: str, text: str | None) -> Any:
    """What "module:attribute" or "file.py:attribute" names, or None."""
    from treadle.sample.named import Named

    if text is None:
        return None
    module, _, attribute = text.rpartition(":")
    if not module or not attribute:
        raise UsageError(f"{name} takes module:attribute or file.py:attribute, got {text!r}")
    return Named(text)


def indices(name: str, text: str) -> tuple[int, ...]:
    """Numbers with commas between them."""
    if not re.fullmatch(r"(\d+(,\d+)*)?", text):
        raise UsageError(f"{name} takes numbers of episodes such as 4,17, got {text!r}")
    return tuple(map(int, filter(None, text.split(","))))


def environment(name: str, text: str) -> Any:
    """One environment."""
    from treadle.sample.named import env_of

    return env_of(text)


def suite(name: str, text: str) -> Any:
    """One environment, or several with commas between them."""
    names = [each.strip() for each in text.split(",") if each.strip()]
    return {each: environment(name, each) for each in names} if "," in text else environment(name, text)


@dataclass(frozen=True, kw_only=True)
class Command:
    """What all commands take.

    Attributes:
        words: All that was typed.
        json: Print the result as JSON, and nothing else, to stdout.
        debug: Show whole tracebacks.
    """

    words: Sequence[str] = ()
    json: bool = typed(False, means=None)
    debug: bool = typed(False, means=None)

    def arguments(self) -> dict[str, Any]:
        """The arguments of the library's function. Raises UsageError for what cannot be meant."""
        found = {}
        for each in fields(self):
            about, value = each.metadata, getattr(self, each.name)
            means = about.get("means", lambda name, value: value) if about else None
            if means is not None:
                found[about.get("argument", each.name)] = means(option_name(each.name, about), value)
        return found


@dataclass(frozen=True, kw_only=True)
class EnvCommand(Command):
    """What all commands take that build an environment.

    Attributes:
        env: Which environment; see above.
        seed: Decides everything random in the run; see above.
        env_kwargs: Arguments for the environment, such as '{"frameskip": 1}'.
    """

    env: str = typed(MISSING, "ENV", position=True, means=environment)
    seed: int = typed(0, "N", least=0)
    env_kwargs: str = typed("", "JSON", means=json_object)


@dataclass(frozen=True, kw_only=True)
class PlayCommand(EnvCommand):
    """What all commands take that play episodes.

    Attributes:
        policy: Who acts: a function of a batch of observations, an object with predict, get_action or get_actions,
            a class or function that makes one, or a model that Stable-Baselines3 has saved.
        workers: Processes; auto: one a core, more where environments wait. No more than episodes.
        max_episode_steps: Cut longer episodes (truncated).
        fresh_env: Build a new environment for every episode.
        step_timeout: Replace a worker in which no step or reset comes to its end for so long, and make its episode
            again; the third time on one episode ends the run. Without it one warning is given, after a minute.
        inference: Who asks the policy: each worker for its own environments, this process for all that are ready,
            or (with --nodes) each node; see above.
        num_envs: Environments that are played at a time, by all workers.
        pad_to: Ask with exactly K rows, the last of them copies where fewer are ready. In the workers each plays K
            environments.
        nodes: Play on N nodes of a Ray cluster, with a pool of workers on each; the episodes stay the same. The
            environment variable RAY_ADDRESS says where it is; without it there is one on this machine, for the run.
        quiet: Only warnings and errors.
        trace: Write when each worker steps, resets, asks and waits, for https://ui.perfetto.dev; .gz compresses. It
            has the last 100,000 events of each.
    """

    policy: str = typed("random", POLICY)
    workers: str = typed("auto", "auto|N", means=workers)
    max_episode_steps: int | None = typed(None, "N", least=1)
    fresh_env: bool = typed(False)
    step_timeout: float | None = typed(None, "SECONDS", least=0.001)
    inference: str = typed("auto", "auto|worker|caller|node")
    num_envs: int | None = typed(None, "N", least=1)
    pad_to: int | None = typed(None, "K", least=1)
    nodes: int | None = typed(None, "N", least=1)
    force: bool = typed(False)
    resume: bool = typed(False)
    on_error: str = typed("raise", "raise|skip")
    max_skipped: str | None = typed(None, "N|P%", shown="5%, at least 3", means=amount)
    quiet: bool = typed(False, means=None)
    report: bool = typed(False, means=None)
    trace: Path | None = typed(None, "FILE", means=None)

    def arguments(self) -> dict[str, Any]:
        """With those of the policy and of the cluster in their objects, and all ways to go on in one."""
        from treadle.nodes.placing import Cluster
        from treadle.play.recipe import Inference

        found = super().arguments()
        found["inference"] = Inference(where=found["inference"], pad_to=found.pop("pad_to"))
        nodes = found.pop("nodes")
        if self.trace is not None and nodes is not None:
            raise UsageError("--trace has the workers of this machine: it does not go with --nodes")
        found["cluster"] = None if nodes is None else Cluster(nodes)
        retries = found.pop("retry_skipped", False)
        if found.pop("force"):
            if retries or self.resume:
                other = "--retry-skipped" if retries else "--resume"
                raise UsageError(f"--force starts again and {other} continues: give one of them")
            found["resume"] = "replace"
        elif retries:
            found["resume"] = "retry"
        return found


@dataclass(frozen=True, kw_only=True)
class Collect(PlayCommand):
    """Play whole episodes in parallel and store them as a dataset.

      treadle collect CartPole-v1 --episodes 1000 --out data

      treadle collect ALE/Pong-v5 --steps 100000 --workers 8 --out pong

      treadle collect my_env.py:make_env --episodes 50 --policy my_policy.py:act --out mine

      treadle collect Hopper-v5 --episodes 100 --policy my_policy.py:load_ppo --out hopper --resume

    ENV is an id that Gymnasium knows (packages behind ALE/, MiniGrid- and BabyAI- are imported by themselves),
    "module:Id", or a function that returns an environment: "module:make_env" or "file.py:make_env".

    THE SEED. Episode i is made from (seed, i) alone: the environment's reset, the policy's randomness, and the
    worker's random, numpy and torch generators. So the same command gives the same episodes in the same order, with
    any number of workers, on a busy or an idle machine, also when a worker died or the run was resumed. Episodes
    are taken by their index, never because they were ready first, so short ones are not over-represented.

    MORE ENVIRONMENTS THAN WORKERS. With --workers W --num-envs N each worker plays K = N / W environments, and the
    policy is asked with batches of exactly K rows; rows without an episode hold copies. Environments, random policies
    and policies that take rng still repeat exactly. A network in float32 gives rows that differ in the last bits
    between batch sizes, so K is part of what decides the data; global generators (random, np.random) are shared by
    the K episodes that a worker plays, so a policy that uses them does not repeat when K > 1.

    ONE POLICY FOR ALL. A policy that says `batched = True` (a large network, one on a GPU) is asked in this
    process, about all environments that are ready at a time: --inference caller, --num-envs 32. Nobody waits for
    the longest episode: a slot whose episode has ended begins the next one. Episodes are the same for any number of
    environments as long as a row's action does not depend on the rows beside it; for networks in float32 that takes
    --pad-to 8 or a multiple of it.

    STOPPING. Every finished episode is on disk at once. Ctrl-C (or SIGTERM) merges those from the first to the
    first one missing and says how many; --resume continues, also after a crash or kill -9, and ends with the same
    bytes. With more --episodes or --steps it makes a run larger, also a complete one.

    EPISODES THAT FAIL. An episode that raises in its reset or step, or costs three fresh workers their lives
    or their time (--step-timeout), ends the run, or with --on-error skip is left out: the dataset has the others,
    numbered without gaps, and the closing table and summary.json say which are missing and why. What raises is
    tried once more in a new environment first. More than --max-skipped of them, or all of the first ten, end the
    run; so does, always, what a policy or a constructor raises. --resume leaves out what was left out; with
    --retry-skipped it tries again.

    Exit codes: 0 done, 1 failed, 2 wrong command, 130 Ctrl-C.

    Attributes:
        episodes: How many.
        steps: Instead: the fewest episodes, from the first one on, that have so many steps together.
        keep: Store only episodes that qualify: 'success and length<50', or module:attr, a function of an Episode.
        kept: With --keep: the first N, of at most --episodes. Without those the run fails after 100 N, at least 1,000.
        out: Where to; one run a directory.
        name: Of the dataset, which Minari loads as treadle/NAME. A run that is resumed keeps its name.
        force: Replace what is in DIR.
        resume: Continue the run in DIR, or make it larger; begins it if there is none, does nothing if it is
            complete.
        verify: Make K random episodes again, in fresh environments, and warn if one differs; with --resume also of a
            run that is complete.
        no_infos: Leave the step infos out.
        on_error: What becomes of the run when an episode fails in its reset or step; see above.
        max_skipped: Fail when more are left out.
        retry_skipped: Continue as --resume does, and try again what was left out.
        shard: Make only the episodes I, I + N, I + 2N, ...: treadle dataset merge puts the shards together.
        report: Write DIR/report.html at the end; see treadle report --help.
    """

    episodes: int | None = typed(None, "N", least=1)
    steps: int | None = typed(None, "N", least=1)
    keep: str | None = typed(None, "WHAT")
    kept: int | None = typed(None, "N", least=1)
    out: Path = typed(MISSING, "DIR")
    name: str | None = typed(None, "NAME", shown="of ENV and POLICY")
    verify: int = typed(1, "K", least=0)
    no_infos: bool = typed(False, means=lambda name, value: not value, argument="infos")
    retry_skipped: bool = typed(False)
    shard: str | None = typed(None, "I/N")


@dataclass(frozen=True, kw_only=True)
class Eval(PlayCommand):
    """Play whole episodes and say how good a policy is, or which of two is better.

      treadle eval CartPole-v1 --policy my_policy.py:act

      treadle eval Hopper-v5 --policy my_policy.py:load_ppo --against random --episodes 200

      treadle eval lift.py:Lift,lift.py:Stack --policy my_policy.py:Policy --num-envs 32

    Prints the mean return with its 95% bootstrap interval, the rate of success with Wilson's where environments
    tell of it (is_success or success in an episode's last info, or --success-key), and a table of episodes. With
    --against both policies play the same episodes (the same seeds), and the difference is given with its interval
    over the pairs. Several ENVs with commas between them are tasks of one run, --episodes of each, and each has a
    line of its own. The result is the same for any number of workers. Where a network's rows depend on one another in
    their last bits, a line says so and names --pad-to 8. ENV, --policy and the seed are explained in: treadle collect
    --help.

      treadle eval reach.py:make --out result --on-error skip

    KEPT. With --out every finished episode is a line of DIR/episodes.jsonl at once, and what it can be replayed from
    is on disk, without its policy; --resume continues, also after a crash or kill -9, and ends with the same result.
    Whatever ends a run, what was finished is printed.

    Exit codes: 0 done, 1 failed, 2 wrong command, 130 Ctrl-C.

    Attributes:
        env: Which environment, or several; see above.
        reset_options: A function: the reset options of episode i, such as its initial state.
        against: A second policy, on the same episodes.
        episodes: How many.
        success_key: What of an episode's last info says whether it was a success.
        stochastic: Draw a model's actions; without it a model of SB3 gives its best ones.
        out: Keep the evaluation there; one a directory.
        force: Replace what is in DIR.
        resume: Continue the evaluation in DIR, or make it larger; begins it if there is none.
        verify: With --out: play K random episodes again, and say whether one differs.
        on_error: What becomes of the run when an episode fails in its reset or step; see treadle collect --help.
        max_skipped: Fail when more are left out.
        report: With --out: write DIR/report.html at the end; see treadle report --help.
        quiet: No progress and no table of episodes.
    """

    env: str = typed(MISSING, "ENV", position=True, means=suite)
    reset_options: str | None = typed(None, "MODULE:ATTR", means=reference)
    against: str | None = typed(None, POLICY, means=None)
    episodes: int = typed(100, "N", least=1)
    success_key: str | None = typed(None, "KEY", shown="is_success or success")
    stochastic: bool = typed(False, means=lambda name, value: not value, argument="deterministic")
    out: Path | None = typed(None, "DIR")
    verify: int = typed(0, "K", least=0)


@dataclass(frozen=True, kw_only=True)
class Replay(Command):
    """Play a failure again, or any episode of a run, and stop where it failed.

      treadle replay data --pdb

      treadle replay data 5 --render episode.mp4

      treadle replay data/failures/episode-7.repro --step 299

      treadle replay data --best 2 --worst 2 --failed 3 --episodes 4,17 --render films

    The environment is built in this process, from the same seeds, and given the same actions; where none were
    recorded (the worker died) the policy is asked again. What it raises is shown with its own frames. A death is
    replayed in a process of its own and its last line shown; a step that hangs is stopped after the limit of the
    run (--timeout). Rewards, ends and observations are compared with what was recorded on the way: the first step
    and field that differ are told.

    FILMS. With --best, --worst, --failed or --episodes the episodes of a run are chosen by their results, played
    again in processes of their own and rendered off-screen, each into a film of its own in the folder --render
    (default: DIR/films): an .mp4, or without treadle[video] an animated PNG. A film whose episode
    differs from what was recorded has red edges from there on. MuJoCo needs no display: MUJOCO_GL,
    EGL and OSMesa are tried.

    A run leaves what its failures are replayed from in DIR/failures. Files of your own runs are trusted but for
    their pickles; of those of others only installed environments are built, unless --trust says otherwise.

    Exit codes: 0 all was as recorded, 1 it was not, 2 wrong command, 130 Ctrl-C.

    Attributes:
        source: A .repro file, or the directory of a run.
        episode: Of a directory: which; without it the failure that ended the run.
        env: The environment, where the file cannot name it.
        pdb: Stop in a debugger at the line that raised; before the step that ended the worker; with --step before
            that one.
        step: Stop after step N.
        render: Write a film: a file, .mp4 or .png; or a folder, for films of several.
        plain: Leave out the line under a film with step, reward and return.
        best: Film N of the episodes with the largest returns.
        worst: Film N of those with the smallest.
        failed: Film the first N that were no success or raised.
        episodes: Film these.
        policy: Ask the episode's own policy, although its actions were recorded.
        other_policy: Ask this one instead.
        trust: Run all that the file names, and open its pickles. That runs code of the file's.
        timeout: A step that takes longer hangs.
    """

    source: Path = typed(MISSING, "FILE|DIR", position=True)
    episode: int | None = typed(None, "[EPISODE]", position=True)
    env: str | None = typed(None, "ENV")
    pdb: bool = typed(False)
    step: int | None = typed(None, "N")
    render: Path | None = typed(None, "FILE|FOLDER")
    plain: bool = typed(False)
    best: int = typed(0, "N", least=0)
    worst: int = typed(0, "N", least=0)
    failed: int = typed(0, "N", least=0)
    episodes: str = typed("", "I,J,...", means=indices)
    policy: bool = typed(False)
    other_policy: str | None = typed(None, POLICY, means=None)
    trust: bool = typed(False)
    timeout: float | None = typed(None, "SECONDS")


@dataclass(frozen=True, kw_only=True)
class Check(EnvCommand):
    """Play an environment before a run is begun with it, and say what cannot be trusted.

      treadle check CartPole-v1

      treadle check my_env.py:make_env --env-kwargs '{"size": 8}'

      treadle check my_env.py:make_env --steps 20000 --seconds 60 --timeout 5

    The environment is built and played in worker processes, in these parts: random steps; the same steps again,
    beside a second environment, and in a spawned process; a hundred short episodes with a seed each; taking and
    putting back its state; Gymnasium's own checker; an exception in a step; closing; and a kill of its worker.

    FINDINGS. The worst comes first, each with what to do. A FAULT breaks runs or makes them impossible to repeat: it
    raises (with the seed, the step and the line), hangs, ends its process, returns what its spaces or Gymnasium do
    not allow, or plays another episode under the same seed. A WARNING will surprise somebody: it writes over its
    observations, changes its process, keeps memory, files, threads or processes, never ends, or prints much. After
    an exception the check goes on with other seeds, after a lost worker with the next part.
    docs/faults.md explains each word.

    Exit codes: 0 no fault (perhaps warnings), 1 faults were found, 2 wrong command, 130 Ctrl-C.

    Attributes:
        env: An id that Gymnasium knows, "module:make_env" or "file.py:make_env".
        seed: Of the first episode; further ones follow from it, or have the next ones.
        steps: Random steps; more of them find what is rare.
        seconds: Fewer steps where they take longer. All parts together take some three times as long at most.
        timeout: A constructor, step, reset or close that takes longer hangs, which is a fault.
    """

    env: str = typed(MISSING, "ENV", position=True)
    steps: int = typed(1000, "N", least=1)
    seconds: float = typed(10.0, "S", least=0.001)
    timeout: float = typed(30.0, "S", least=0.001)


@dataclass(frozen=True, kw_only=True)
class Info(Command):
    """Show what an issue should name of this machine, and what makes it slow or unsafe.

      treadle info

      treadle info --json

    Versions, cores and their quota, memory and /dev/shm, open files, start methods, variables for threads, and extras
    that are installed. Each WARNING has its remedy. No user, host or path is named.
    """
