"""The commands' options: each once, with its help and its meaning to the library.

A command is a dataclass. Its fields are its arguments and options, under their own names (`max_episode_steps` is
--max-episode-steps). Its docstring is the text of `--help`, with a field's help under "Attributes:". `main.py` makes
the commands of these classes. The library refuses combinations that make no sense.

Functions import NumPy and Gymnasium where they need them: `treadle --help` needs neither.
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

# the panels of `--help`, of commands that play: title -> fields; other commands have one list
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
        about: `position`: True of an argument, False of an option. `shown`: the default as `--help` shows it. `means`:
            its `Meaning`, which raises UsageError; with None the library does not get it. `argument`: the library's
            name for it. `least`: its least number.
    """
    return field(default=default, metadata={"metavar": metavar, **about})


def help_of(command: type) -> tuple[str, dict[str, str]]:
    """Return the help of a command, and of each of its fields, from docstrings."""
    said: dict[str, str] = {}
    for kind in command.__mro__:
        _, _, fields = (inspect.getdoc(kind) or "").partition("\n\nAttributes:\n")
        for name, text in re.findall(r"^    (\w+): (.*(?:\n        .*)*)", fields, re.MULTILINE):
            said.setdefault(name, " ".join(text.split()))
    return (inspect.getdoc(command) or "").partition("\n\nAttributes:\n")[0], said


def option_name(name: str) -> str:
    """Return the name of a field's option."""
    return f"--{name.replace('_', '-')}"


def workers(name: str, text: str) -> int | str:
    """Return a number of workers, or the text as it is ("auto"): the library refuses other text."""
    return int(text) if text.lstrip("-").isdecimal() else text


def amount(name: str, text: str | None) -> int | float | None:
    """A number, or a share of all: "7", "5%"."""
    if text is None:
        return None
    with contextlib.suppress(ValueError):  # refused below
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
    """Return the object that "module:attribute" or "file.py:attribute" names, or None."""
    from treadle.sample.named import Named

    if text is None:
        return None
    module, _, attribute = text.rpartition(":")
    if not module or not attribute:
        raise UsageError(f"{name} takes module:attribute or file.py:attribute, got {text!r}")
    return Named(text)


def indices(name: str, text: str) -> tuple[int, ...]:
    """Return numbers that are separated by commas."""
    if not re.fullmatch(r"(\d+(,\d+)*)?", text):
        raise UsageError(f"{name} takes numbers of episodes such as 4,17, got {text!r}")
    return tuple(map(int, filter(None, text.split(","))))


def environment(name: str, text: str) -> Any:
    """One environment."""
    from treadle.sample.named import env_of

    return env_of(text)


def suite(name: str, text: str) -> Any:
    """Return one environment, or a dict of several that are separated by commas."""
    names = [each.strip() for each in text.split(",") if each.strip()]
    return {each: environment(name, each) for each in names} if "," in text else environment(name, text)


@dataclass(frozen=True, kw_only=True)
class Command:
    """The options of all commands.

    Attributes:
        words: The whole command line.
        json: Print the result as JSON, and nothing else, to stdout.
        debug: Show whole tracebacks.
    """

    words: Sequence[str] = ()
    json: bool = typed(False, means=None)
    debug: bool = typed(False, means=None)

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the library's function. Raises UsageError for a wrong value."""
        found = {}
        for each in fields(self):
            about, value = each.metadata, getattr(self, each.name)
            means = about.get("means", lambda name, value: value) if about else None
            if means is not None:
                found[about.get("argument", each.name)] = means(option_name(each.name), value)
        return found


@dataclass(frozen=True, kw_only=True)
class EnvCommand(Command):
    """The options of all commands that build an environment.

    Attributes:
        env: The environment; see above.
        seed: Seeds everything random in the run; see above.
        env_kwargs: Arguments for the environment, such as '{"frameskip": 1}'.
    """

    env: str = typed(MISSING, "ENV", position=True, means=environment)
    seed: int = typed(0, "N", least=0)
    env_kwargs: str = typed("", "JSON", means=json_object)


@dataclass(frozen=True, kw_only=True)
class PlayCommand(EnvCommand):
    """The options of all commands that play episodes.

    Attributes:
        policy: A function of a batch of observations, or an object with predict, get_action or get_actions. Also a
            class or function that makes one, or a model that Stable-Baselines3 has saved.
        workers: Number of processes; auto: one per core, more if environments wait. There is at most one per episode.
        max_episode_steps: Cut longer episodes (truncated).
        fresh_env: Build a new environment for every episode.
        step_timeout: Replace a worker when its step or reset takes longer, and play its episode again. The third
            time on one episode ends the run. Without this option one warning appears after a minute.
        inference: Where the policy is asked. With worker: in each worker for its own environments. With caller: in this
            process for all that are ready. With node (and --nodes): once on each node. See above.
        num_envs: Environments played at a time, by all workers together.
        pad_to: Ask the policy with exactly K rows; copies fill a batch with fewer. Each worker then plays K
            environments.
        nodes: Play on N nodes of a Ray cluster, with a pool of workers on each; the episodes stay the same. The
            environment variable RAY_ADDRESS names the cluster; without it the run starts one on this machine.
        quiet: Only warnings and errors.
        trace: Write the time of each step, reset, policy call and wait, for https://ui.perfetto.dev; .gz compresses.
            The file has the last 100,000 events of each worker.
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
        """Return them with an `Inference`, a `Cluster`, and one `resume` for all ways to go on."""
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

    ENV is an id that Gymnasium knows, "module:Id", or a function that returns an environment: "module:make_env" or
    "file.py:make_env". The packages behind ALE/, MiniGrid- and BabyAI- are imported automatically.

    THE SEED. (seed, i) alone decides episode i: it seeds the environment's reset, the policy, and the worker's random,
    numpy and torch generators. So a command always gives the same episodes in the same order. The number of workers, a
    busy machine, a worker's death and --resume change nothing. Episodes are taken by their index and not in order of
    arrival, so short episodes are not over-represented.

    MORE ENVIRONMENTS THAN WORKERS. With --workers W --num-envs N each worker plays K = N / W environments. The
    policy is asked with batches of exactly K rows; rows without an episode hold copies. Environments, random policies
    and policies that take rng still repeat exactly. Rows of a float32 network differ in their last bits between batch
    sizes, so the data depends on K. The K episodes of a worker share the global generators (random, np.random): a
    policy that uses them does not repeat when K > 1.

    ONE POLICY FOR ALL. A policy with `batched = True` (a large network, one on a GPU) is asked in this process. Each
    call has all environments that are ready: --inference caller, --num-envs 32. A slot whose episode has ended begins
    the next one at once. The episodes do not depend on the number of environments if a row's action does not depend on
    the other rows. A float32 network needs --pad-to 8 or a multiple of it for that.

    STOPPING. Every finished episode is on disk at once. Ctrl-C (or SIGTERM) merges the episodes before the first
    missing one and prints their number. The option --resume continues, also after a crash or kill -9, and ends with the
    same bytes. With more --episodes or --steps it extends a run, also a complete one.

    EPISODES THAT FAIL. An episode fails when its reset or step raises. It also fails when it kills three fresh workers
    or exceeds --step-timeout in them. A failed episode ends the run. With --on-error skip it is left out, once it has
    also raised in a new environment. The dataset numbers the others without gaps; the closing table and summary.json
    list the failures with their causes. The run ends after more failures than --max-skipped, or when the first ten
    episodes all fail. An exception of a policy or of a constructor always ends it. --resume skips the same episodes;
    --retry-skipped tries them again.

    Exit codes: 0 done, 1 failed, 2 wrong command, 130 Ctrl-C.

    Attributes:
        episodes: Number of episodes.
        steps: In place of --episodes: as many of the first episodes as have at least N steps together.
        keep: Store only episodes that qualify: 'success and length<50', or module:attr, a function of an Episode.
        kept: With --keep: store the first N that qualify, of at most --episodes. Without --episodes the run
            fails after trying 100 N, at least 1,000.
        out: Directory of the run.
        name: Name of the dataset, which Minari loads as treadle/NAME. A resumed run keeps its name.
        force: Replace the contents of DIR.
        resume: Continue or extend the run in DIR. Without a run there, begin one; with a complete one, do nothing.
        verify: Play K random episodes again in fresh environments, and warn if one differs; with --resume also of a
            complete run.
        no_infos: Leave the step infos out.
        on_error: When an episode fails in its reset or step: end the run, or leave it out; see above.
        max_skipped: Fail when more episodes are left out.
        retry_skipped: Continue as --resume does, and try again the episodes that were left out.
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
    """Play whole episodes and score a policy, or compare two.

      treadle eval CartPole-v1 --policy my_policy.py:act

      treadle eval Hopper-v5 --policy my_policy.py:load_ppo --against random --episodes 200

      treadle eval lift.py:Lift,lift.py:Stack --policy my_policy.py:Policy --num-envs 32

    The result is the mean return with its 95% bootstrap interval, the rate of success with Wilson's interval, and a
    table of episodes. Success is is_success or success in an episode's last info, or --success-key. With --against both
    policies play the same episodes (the same seeds), and the difference has its interval over the pairs. Several ENVs,
    separated by commas, are tasks of one run. Each is played for --episodes episodes and has its own line. The result
    is the same for any number of workers. Where a network's rows depend on one another in their last bits, a line says
    so and names --pad-to 8. For ENV, --policy and the seed see: treadle collect --help.

      treadle eval reach.py:make --out result --on-error skip

    KEPT. With --out every finished episode is a line of DIR/episodes.jsonl at once. Its actions are on disk, so it can
    be replayed without its policy. The option --resume continues, also after a crash or kill -9, and ends with the same
    result. However a run ends, its finished episodes are printed.

    Exit codes: 0 done, 1 failed, 2 wrong command, 130 Ctrl-C.

    Attributes:
        env: One environment, or several; see above.
        reset_options: A function of i that returns the reset options of episode i, such as its initial state.
        against: A second policy, on the same episodes.
        episodes: Number of episodes.
        success_key: Key of an episode's last info whose value is its success.
        stochastic: Draw a model's actions at random; without this option a model of SB3 takes its best actions.
        out: Directory of the evaluation.
        force: Replace the contents of DIR.
        resume: Continue or extend the evaluation in DIR; if DIR has none, begin one.
        verify: With --out: play K random episodes again, and say whether one differs.
        on_error: When an episode fails in its reset or step: end the run, or leave it out; see treadle collect --help.
        max_skipped: Fail when more episodes are left out.
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

    The environment is built in this process, from the same seeds, and takes the same actions. Where no actions were
    recorded (the worker died) the policy is asked again. An exception is shown with its own frames. A death is
    replayed in a process of its own, and its last line is shown. A step that hangs is stopped after the limit of the
    run (--timeout). Rewards, ends and observations are compared with the recorded ones, and the first step and field
    that differ are printed.

    FILMS. --best, --worst, --failed and --episodes choose episodes of a run by their results. Each is played again in a
    process of its own and rendered off-screen into a film in the folder --render (default: DIR/films). Films are .mp4
    files, or without treadle[video] animated PNGs. A film whose episode differs from the recorded one has red edges
    from that step on. MuJoCo needs no display: MUJOCO_GL, EGL and OSMesa are tried.

    A run writes the files of its failures to DIR/failures. Files of your own runs are trusted, except for their
    pickles. From files of others only installed environments are built, unless --trust is given.

    Exit codes: 0 everything was as recorded, 1 something differed, 2 wrong command, 130 Ctrl-C.

    Attributes:
        source: A .repro file, or the directory of a run.
        episode: An episode of the directory; without it the failure that ended the run, else the latest.
        env: The environment, where the file cannot name it.
        pdb: Stop in a debugger at the line that raised, or before the step that ended the worker; with --step before
            that step.
        step: Stop after step N.
        render: Write a film: a file, .mp4 or .png; or a folder, for films of several.
        plain: Leave out the line under a film with step, reward and return.
        best: Film N of the episodes with the largest returns.
        worst: Film N of the episodes with the smallest returns.
        failed: Film the first N episodes that raised or were not a success.
        episodes: Film the episodes with these indices.
        policy: Ask the episode's own policy, although its actions were recorded.
        other_policy: Ask this policy instead.
        trust: Run all code that the file names, and open its pickles.
        timeout: Stop at a step that takes longer.
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
    """Play an environment before a run, and list its faults.

      treadle check CartPole-v1

      treadle check my_env.py:make_env --env-kwargs '{"size": 8}'

      treadle check my_env.py:make_env --steps 20000 --seconds 60 --timeout 5

    The environment is built and played in worker processes. The first part takes random steps. Others repeat the steps:
    alone, beside a second environment, and in a spawned process. One plays a hundred short episodes with a seed each.
    The others take and put back its state, run Gymnasium's own checker, raise in a step, close it, and kill its worker.

    FINDINGS. The worst comes first, each with its remedy. A FAULT breaks runs or makes them impossible to repeat. The
    environment raises (with the seed, the step and the line), hangs, or ends its process. Or it returns values that its
    spaces or Gymnasium do not allow, or plays another episode under the same seed. A WARNING costs time later: it
    writes over its observations, changes its process, never ends, prints much, or keeps memory, files, threads or
    processes. After an exception the check goes on with other seeds, after a lost worker with the next part.
    docs/faults.md explains each word.

    Exit codes: 0 no fault (perhaps warnings), 1 faults were found, 2 wrong command, 130 Ctrl-C.

    Attributes:
        env: An id that Gymnasium knows, "module:make_env" or "file.py:make_env".
        seed: Seed of the first episode; those of the others follow from it.
        steps: Number of random steps; more steps find rarer faults.
        seconds: Time limit of the random steps. All parts together take at most about three times as long.
        timeout: A constructor, step, reset or close that takes longer is a fault: it hangs.
    """

    env: str = typed(MISSING, "ENV", position=True)
    steps: int = typed(1000, "N", least=1)
    seconds: float = typed(10.0, "S", least=0.001)
    timeout: float = typed(30.0, "S", least=0.001)


@dataclass(frozen=True, kw_only=True)
class Info(Command):
    """Print what an issue should say about this machine, and what makes it slow or unsafe.

      treadle info

      treadle info --json

    Versions, cores and their quota, memory and /dev/shm, open files, start methods, variables for threads, and extras
    that are installed. Each WARNING has its remedy. No user, host or path is named.
    """
