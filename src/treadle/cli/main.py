"""The command `treadle`: what can be typed. What it does is in one file per command. The only file that imports typer.

Exit codes: 0 all went well; 1 the run failed; 2 the command was wrong (nothing was done); 130 Ctrl-C or SIGTERM.
"""

import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from treadle.cli import failures
from treadle.cli.options import CheckOptions, CollectOptions, EvalOptions, PlanOptions

COLLECT_HELP = """Play whole episodes in parallel and store them as a dataset.

  treadle collect CartPole-v1 --episodes 1000 --out data

  treadle collect ALE/Pong-v5 --steps 100000 --workers 8 --out pong

  treadle collect my_env.py:make_env --episodes 50 --policy my_policy.py:act --out mine

  treadle collect Hopper-v5 --episodes 100 --policy my_policy.py:load_ppo --out hopper --resume

ENV is an id that Gymnasium knows (packages behind ALE/, MiniGrid- and BabyAI- are imported by themselves), "module:Id",
or a function that returns an environment: "module:make_env" or "file.py:make_env".

THE SEED. Episode i is made from (seed, i) alone: the environment's reset, the policy's randomness, and the worker's
random, numpy and torch generators. So the same command gives the same episodes in the same order, with any number of
workers, on a busy or an idle machine, also when a worker died or the run was resumed. Episodes are taken by their
index, never because they were ready first, so short ones are not over-represented.

MORE ENVIRONMENTS THAN WORKERS. With --envs-per-worker K the policy is asked with batches of exactly K rows; rows
without an episode hold copies. Environments, random policies and policies that take rng still repeat exactly. A network
in float32 gives rows that differ in the last bits between batch sizes, so K is part of what decides the data; global
generators (random, np.random) are shared by the K episodes that a worker plays, so a policy that uses them does not
repeat when K > 1.

ONE POLICY FOR ALL. A policy that says `batched = True` (a large network, one on a GPU) is asked in this process, about
all environments that are ready at a time: --inference caller, --num-envs 32. Nobody waits for the longest episode: a
slot whose episode has ended begins the next one. Episodes are the same for any number of environments as long as a
row's action does not depend on the rows beside it; for networks in float32 that takes --pad-to 8 or a multiple of it.

STOPPING. Every finished episode is on disk at once. Ctrl-C (or SIGTERM) merges those from the first to the first one
missing and says how many; --resume continues, also after a crash or kill -9, and ends with the same bytes. With more
--episodes or --steps it makes a run larger, also a complete one.

EPISODES THAT FAIL. An episode that raises in its reset or step, or costs --max-deaths fresh workers their lives or
their time (--step-timeout), ends the run, or with --on-error skip is left out: the dataset has the others, numbered
without gaps, and the closing table and summary.json say which are missing and why. What raises is tried once more in a
new environment first. More than --max-skipped of them, or all of the first ten, end the run; so does, always, what a
policy or a constructor raises. --resume leaves out what was left out; with --retry-skipped it tries again.

Exit codes: 0 done, 1 failed, 2 wrong command, 130 Ctrl-C."""

EVAL_HELP = """Play whole episodes and say how good a policy is, or which of two is better.

  treadle eval CartPole-v1 --policy my_policy.py:act

  treadle eval Hopper-v5 --policy my_policy.py:load_ppo --against random --episodes 200

  treadle eval lift.py:Lift,lift.py:Stack --policy my_policy.py:Policy --num-envs 32

Prints the mean return with its 95% bootstrap interval, the rate of success with Wilson's where environments tell of it
(is_success or success in an episode's last info, or --success-key), and a table of episodes. With --against both
policies play the same episodes (the same seeds), and the difference is given with its interval over the pairs. Several
ENVs with commas between them are tasks of one run, --episodes of each, and each has a line of its own. The
result is the same for any number of workers. ENV, --policy and the seed are explained in: treadle collect --help.

Exit codes: 0 done, 1 failed, 2 wrong command, 130 Ctrl-C."""

MERGE_HELP = """Put the shards of a run together.

  treadle collect ALE/Pong-v5 --episodes 1000 --shard 0/4 --out part0        (and 1/4, 2/4, 3/4 on other machines)

  treadle dataset merge part0 part1 part2 part3 --out pong

The files are those of a run without --shard, but for times in the summary; DIR can be resumed like any other. A shard
that is missing, there twice, unfinished or of another run is named, and nothing is done.

Exit codes: 0 done, 1 failed, 2 wrong command, 130 Ctrl-C."""

PLAN_HELP = """Play an environment by planning: try out what would happen, and do what looks best.

  treadle plan CartPole-v1 --algo random-shooting

  treadle plan ALE/MsPacman-v5 --algo mcts --dt 4 --horizon 10 --budget 1000 --games 10 --out pacman

In every state the planner steps copies of the environment from there, --budget steps for one decision, in batches on
all workers. It knows the state and nothing else: no network, no training. random-shooting plays random plans of
--horizon actions and begins the best one. mcts grows a tree of states by UCT, with --horizon random actions from each
new one; it needs discrete actions, finishes the round of leaves that reaches the budget, and grows another tree with
another number of --workers. --dt applies each action that often.

Game i begins with seed SEED + i; random play of the same seeds is what it is compared with. With --out DIR there is a
video of the first game (game.mp4 with imageio-ffmpeg, else an animated game.png) and a picture of a search, search.svg.
ENV is explained in: treadle collect --help.

Exit codes: 0 done, 1 failed, 2 wrong command, 130 Ctrl-C."""


REPLAY_HELP = """Play a failure again, or any episode of a run, and stop where it failed.

  treadle replay data --pdb

  treadle replay data 5 --render episode.mp4

  treadle replay data/failures/episode-7.repro --step 299

The environment is built in this process, from the same seeds, and given the same actions; where none were recorded (the
worker died) the policy is asked again. What it raises is shown with its own frames. A death is replayed in a process of
its own and its last line shown; a step that hangs is stopped after the limit of the run (--timeout). Rewards, ends and
observations are compared with what was recorded on the way: the first step and field that differ are told.

A run leaves what its failures are replayed from in DIR/failures. Such a file opens no pickle unless --trust says so.

Exit codes: 0 all was as recorded, 1 it was not, 2 wrong command, 130 Ctrl-C."""


CHECK_HELP = """Play an environment before a run is begun with it, and say what cannot be trusted.

  treadle check CartPole-v1

  treadle check my_env.py:make_env --env-kwargs '{"size": 8}'

It is built and played in worker processes: spaces and dtypes at reset and in random steps, to the last bit; the same
episode under the same seed, in another process, beside another environment and after other episodes; global generators;
observations that are written over; what it prints, leaves running and keeps in memory; how long steps and resets take;
whether its state can be taken and put back; what Gymnasium's own checker says; and it is made to raise, and killed. A
FAULT breaks runs or makes them impossible to repeat; a WARNING will surprise somebody. Each says what to do.

Exit codes: 0 no fault, 1 faults were found, 2 wrong command, 130 Ctrl-C."""


CHECK_VECTOR_HELP = """Try a vector of environments out, anybody's, and say what is not as it should be.

  treadle check-vector my_vector.py:make

MAKE names a function that takes a list of functions, each of which makes an environment, and returns the vector, with
reset, step and close as Gymnasium's (and step_async and step_wait, if it can). Its environments know the truth, and one
of them goes wrong in each drill: it raises, ends its process, hangs, returns what its space does not allow. Each drill
runs in a process of its own. See docs/faults.md.

Exit codes: 0 no fault, 1 faults were found, 2 wrong command, 130 Ctrl-C."""


EXPORT_HELP = """Write a collected dataset in another format.

  treadle dataset export run out --fps 10 --task "push the block onto the target"

SOURCE is what was --out of treadle collect, or the directory of any Minari dataset. OUT is a directory that is not
there yet, and will hold a LeRobotDataset v3.0, for LeRobotDataset("me/name", root=OUT). Pictures become videos, nearly
as they were; everything else is stored as it is. It needs pyarrow, and imageio-ffmpeg where there are pictures: pip
install 'treadle[lerobot]'.

Exit codes: 0 done, 1 failed, 2 wrong command, 130 Ctrl-C."""


COMMANDS = ("collect", "eval", "dataset", "plan", "replay", "check", "check-vector")
POLICY = "random|module:attr|file.py:attr|model.zip"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command and end the process with its exit code. `arguments`: None for those of the process."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    sys.exit(failures.guarded(lambda: _run(given), debug="--debug" in given))


def _run(given: list[str]) -> int:
    given = given or ["--help"]
    app = _app(given)
    import typer

    click_error: Any = typer.BadParameter.__mro__[2]  # click's own base of errors, wherever typer keeps click
    try:
        chosen = app(given, standalone_mode=False)
    except click_error as error:
        words = given[:2] if given[0] == "dataset" and given[1:2] in (["merge"], ["export"]) else given[:1]
        command = f"{' '.join(words)} " if given[0] in COMMANDS else ""
        message = error.format_message().rstrip(".")
        failures.say(f"{message}{'' if message.endswith('?') else '.'} Try: treadle {command}--help")
        return 2
    except typer.Abort:
        return 130
    return chosen() if callable(chosen) else 0


def _app(given: list[str]) -> Callable[..., Any]:
    """Takes the words and gives the chosen command, to be called where click does not see its errors."""
    try:
        import typer
    except ImportError as error:
        raise failures.missing("the command line needs typer", error) from error

    # work directories are on the path of `python script.py`; last, so that a file there never hides a library
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)

    Env = Annotated[str, typer.Argument(metavar="ENV", help="Which environment; see above.", show_default=False)]
    Policy = Annotated[
        str,
        typer.Option(metavar=POLICY, help="Who acts: a function of a batch of observations, an object with predict, "
                     "get_action or get_actions, a class or function that makes one, or a model that "
                     "Stable-Baselines3 has saved."),
    ]  # fmt: skip
    Seed = Annotated[int, typer.Option(help="Decides everything random in the run; see above.")]
    Workers = Annotated[str, typer.Option(metavar="auto|N", help="Processes; auto: one a core. No more than episodes.")]
    PerWorker = Annotated[int, typer.Option(metavar="K", help="Environments each worker plays at once.")]
    MaxSteps = Annotated[int | None, typer.Option(metavar="N", help="Cut longer episodes (truncated).")]
    Kwargs = Annotated[str, typer.Option(metavar="JSON", help="Arguments for the environment, such as "
                       "'{\"frameskip\": 1}'.")]  # fmt: skip
    Wrap = Annotated[list[str], typer.Option(metavar="module:attr", help="A wrapper; repeat it for more, inner first.")]
    Import = Annotated[list[str], typer.Option("--import", metavar="PKG", help="A module that registers environments.")]
    Fresh = Annotated[bool, typer.Option("--fresh-env", help="Build a new environment for every episode.")]
    StepTimeout = Annotated[float | None, typer.Option(metavar="SECONDS", help="Replace a worker in which no step or "
                            "reset comes to its end for so long, and make its episode again; the third time on one "
                            "episode ends the run. Without it one warning is given, after a minute.")]  # fmt: skip
    MemoryLimit = Annotated[str | None, typer.Option(metavar="SIZE", help="Private memory of a worker, such as 2GB: "
                            "one that has more is replaced after its episode, one that has twice as much is killed, "
                            "and its episode made again. The episodes stay the same.")]  # fmt: skip
    PerLife = Annotated[int | None, typer.Option("--max-episodes-per-worker", metavar="N", help="Replace a worker "
                        "after so many episodes, for simulators that wear out.")]  # fmt: skip
    Inference = Annotated[str, typer.Option(metavar="auto|worker|caller|node", help="Who asks the policy: each worker "
                          "for its own environments, this process for all that are ready, or (with --nodes) each node; "
                          "see above.")]  # fmt: skip
    NumEnvs = Annotated[int | None, typer.Option(metavar="N", help="Environments that are played at a time.")]
    PadTo = Annotated[int | None, typer.Option(metavar="K", help="In the caller: ask with exactly K rows, the last of "
                      "them copies where fewer are ready.")]  # fmt: skip
    ActionSteps = Annotated[int | None, typer.Option(metavar="H", help="In the caller: an answer is a plan, [rows, "
                            "steps, ...], of which H steps are played.")]  # fmt: skip
    BatchSize = Annotated[int | None, typer.Option(metavar="K", show_default="measured", help="In the caller: wait for "
                          "so many rows.")]  # fmt: skip
    Patience = Annotated[float | None, typer.Option(metavar="SECONDS", show_default="measured", help="In the caller: "
                         "ask after so long with whoever is ready.")]  # fmt: skip
    Nodes = Annotated[int | None, typer.Option(metavar="N", help="Play on N nodes of a Ray cluster, with a pool of "
                      "workers on each; the episodes stay the same.")]  # fmt: skip
    PerNode = Annotated[int | None, typer.Option("--cpus-per-node", metavar="C", help="With --nodes: CPUs, and "
                        "workers, of each; without it a pool has a node to itself.")]  # fmt: skip
    RayAddress = Annotated[str | None, typer.Option(metavar="auto|HOST:PORT", help="With --nodes: where the cluster "
                           "is; without it there is one on this machine, for the time of the run.")]  # fmt: skip
    Quiet = Annotated[bool, typer.Option("--quiet", help="Only warnings and errors.")]
    Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON, and nothing else, to stdout.")]
    Debug = Annotated[bool, typer.Option("--debug", help="Show whole tracebacks.")]

    @app.callback(invoke_without_command=True)
    def root(version: Annotated[bool, typer.Option("--version", help="Print the version and end.")] = False) -> None:
        """Step many environments at once."""
        if version:
            from treadle import __version__

            print(__version__)
            raise typer.Exit(0)

    @app.command(help=COLLECT_HELP)
    def collect(
        env: Env,
        episodes: Annotated[int | None, typer.Option(metavar="N", help="How many.")] = None,
        steps: Annotated[int | None, typer.Option(metavar="N", help="Instead: the fewest episodes, from the first one "
                         "on, that have so many steps together.")] = None,
        policy: Policy = "random",
        seed: Seed = 0,
        workers: Workers = "auto",
        envs_per_worker: PerWorker = 1,
        max_episode_steps: MaxSteps = None,
        env_kwargs: Kwargs = "",
        wrap: Wrap = [],  # noqa: B006 - typer reads it, nobody changes it
        import_: Import = [],  # noqa: B006
        out: Annotated[Path | None, typer.Option(metavar="DIR", help="Where to; one run a directory.")] = None,
        force: Annotated[bool, typer.Option("--force", help="Replace what is in DIR.")] = False,
        resume: Annotated[bool, typer.Option("--resume", help="Continue the run in DIR, or make it larger; begins it "
                          "if there is none, does nothing if it is complete.")] = False,
        verify: Annotated[int, typer.Option(metavar="K", help="Make K random episodes again, in fresh environments, "
                          "and warn if one differs.")] = 1,
        no_infos: Annotated[bool, typer.Option("--no-infos", help="Leave the step infos out.")] = False,
        fresh_env: Fresh = False,
        step_timeout: StepTimeout = None,
        memory_limit: MemoryLimit = None,
        max_episodes_per_worker: PerLife = None,
        inference: Inference = "auto",
        num_envs: NumEnvs = None,
        pad_to: PadTo = None,
        n_action_steps: ActionSteps = None,
        batch_size: BatchSize = None,
        patience: Patience = None,
        nodes: Nodes = None,
        cpus_per_node: PerNode = None,
        ray_address: RayAddress = None,
        on_error: Annotated[str, typer.Option(metavar="stop|skip", help="What becomes of the run when an episode fails "
                            "in its reset or step; see above.")] = "stop",
        max_skipped: Annotated[str | None, typer.Option(metavar="N|P%", show_default="5%, at least 3", help="Fail when "
                               "more are left out.")] = None,
        max_deaths: Annotated[int, typer.Option(metavar="N", help="An episode has failed when so many fresh workers "
                              "died of it, or were late.")] = 3,
        retry_skipped: Annotated[bool, typer.Option("--retry-skipped", help="With --resume: try again what was left "
                                 "out.")] = False,
        shard: Annotated[str | None, typer.Option(metavar="I/N", help="Make only the episodes I, I + N, I + 2N, ...: "
                         "treadle dataset merge puts the shards together.")] = None,
        shared_out: Annotated[bool, typer.Option("--shared-out", help="With --nodes: all nodes see DIR, and write "
                              "there what they have made.")] = False,
        format: Annotated[str, typer.Option(metavar="hdf5|npz", help="A Minari dataset, or one file of arrays.")]
        = "hdf5",
        quiet: Quiet = False,
        json: Json = False,
        debug: Debug = False,
    ) -> Callable[[], int]:  # fmt: skip
        from treadle.cli.collect import run

        options = CollectOptions(
            env, policy, seed, workers, envs_per_worker, max_episode_steps, env_kwargs, tuple(wrap), tuple(import_),
            fresh_env, step_timeout, memory_limit, max_episodes_per_worker, inference, num_envs, pad_to, n_action_steps,
            batch_size, patience, nodes, cpus_per_node, ray_address, quiet, json, debug, episodes, steps, out, force,
            resume, verify, not no_infos, format, on_error, max_skipped, max_deaths, retry_skipped, shard, shared_out,
        )  # fmt: skip
        return partial(run, options, given)

    @app.command(name="eval", help=EVAL_HELP)
    def evaluate(
        env: Env,
        policy: Policy = "random",
        against: Annotated[str | None, typer.Option(metavar=POLICY,
                           help="A second policy, on the same episodes.")] = None,
        episodes: Annotated[int, typer.Option(metavar="N", help="How many.")] = 100,
        success_key: Annotated[str | None, typer.Option(metavar="KEY", show_default="is_success or success",
                               help="What of an episode's last info says whether it was a success.")] = None,
        reset_options: Annotated[str | None, typer.Option(metavar="MODULE:ATTR",
                                 help="A function: the reset options of episode i, such as its initial state.")] = None,
        keep_built: Annotated[int, typer.Option(metavar="N",
                              help="With several ENVs: how many each slot keeps built.")] = 1,
        seed: Seed = 0,
        workers: Workers = "auto",
        envs_per_worker: PerWorker = 1,
        max_episode_steps: MaxSteps = None,
        env_kwargs: Kwargs = "",
        wrap: Wrap = [],  # noqa: B006
        import_: Import = [],  # noqa: B006
        fresh_env: Fresh = False,
        step_timeout: StepTimeout = None,
        memory_limit: MemoryLimit = None,
        max_episodes_per_worker: PerLife = None,
        inference: Inference = "auto",
        num_envs: NumEnvs = None,
        pad_to: PadTo = None,
        n_action_steps: ActionSteps = None,
        batch_size: BatchSize = None,
        patience: Patience = None,
        nodes: Nodes = None,
        cpus_per_node: PerNode = None,
        ray_address: RayAddress = None,
        quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
        json: Json = False,
        debug: Debug = False,
    ) -> Callable[[], int]:  # fmt: skip
        from treadle.cli.eval import run

        return partial(
            run,
            EvalOptions(
                env, policy, seed, workers, envs_per_worker, max_episode_steps, env_kwargs, tuple(wrap),
                tuple(import_), fresh_env, step_timeout, memory_limit, max_episodes_per_worker, inference, num_envs,
                pad_to, n_action_steps, batch_size, patience, nodes, cpus_per_node, ray_address, quiet, json, debug,
                against, episodes, success_key, reset_options, keep_built,
            ),
        )  # fmt: skip

    @app.command(name="plan", help=PLAN_HELP)
    def plan(
        env: Env,
        algo: Annotated[str, typer.Option(metavar="random-shooting|mcts", help="How to search.")] = "random-shooting",
        budget: Annotated[int, typer.Option(metavar="N", help="Steps of the environment for one decision.")] = 2000,
        horizon: Annotated[int, typer.Option(metavar="N", help="Actions to look ahead.")] = 50,
        dt: Annotated[int, typer.Option(metavar="N", help="How often each action is applied.")] = 1,
        discount: Annotated[float, typer.Option(metavar="G", help="Of rewards, for each action.")] = 1.0,
        games: Annotated[int, typer.Option(metavar="N", help="How many to play.")] = 1,
        max_steps: Annotated[int | None, typer.Option(metavar="N", help="Stop a game there.")] = None,
        seed: Seed = 0,
        workers: Annotated[str, typer.Option(metavar="auto|N", help="Processes; auto: one a core.")] = "auto",
        env_kwargs: Kwargs = "",
        wrap: Wrap = [],  # noqa: B006
        import_: Import = [],  # noqa: B006
        out: Annotated[Path | None, typer.Option(metavar="DIR", help="Where the video and the picture go.")] = None,
        force: Annotated[bool, typer.Option("--force", help="Replace those in DIR.")] = False,
        quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
        json: Json = False,
        debug: Debug = False,
    ) -> Callable[[], int]:  # fmt: skip
        from treadle.cli.plan import run

        return partial(
            run,
            PlanOptions(
                env, algo, budget, horizon, dt, discount, games, max_steps, seed, workers, env_kwargs, tuple(wrap),
                tuple(import_), out, force, quiet, json, debug,
            ),
        )  # fmt: skip

    @app.command(name="replay", help=REPLAY_HELP)
    def replay(
        source: Annotated[Path, typer.Argument(metavar="FILE|DIR", help="A .repro file, or the directory of a run.")],
        episode: Annotated[int | None, typer.Argument(metavar="[EPISODE]", help="Of a directory: which; without it the "
                           "failure that ended the run.")] = None,
        env: Annotated[str | None, typer.Option(metavar="ENV", help="The environment, where the file cannot name it.")]
        = None,
        pdb: Annotated[bool, typer.Option("--pdb", help="Stop in a debugger at the line that raised; before the step "
                       "that ended the worker; with --step before that one.")] = False,
        step: Annotated[int | None, typer.Option(metavar="N", help="Stop after step N.")] = None,
        render: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a video, .mp4 or .png.")] = None,
        policy: Annotated[bool, typer.Option("--policy", help="Ask the episode's own policy, although its actions were "
                          "recorded.")] = False,
        other_policy: Annotated[str | None, typer.Option(metavar=POLICY, help="Ask this one instead.")] = None,
        trust: Annotated[bool, typer.Option("--trust", help="Open what the file holds as pickles. That runs code of "
                         "the file's: only for files of your own.")] = False,
        timeout: Annotated[float | None, typer.Option(metavar="SECONDS", help="A step that takes longer hangs.")]
        = None,
        json: Json = False,
        debug: Debug = False,
    ) -> Callable[[], int]:  # fmt: skip
        from treadle.cli.replay import ReplayOptions, run

        chosen = other_policy or policy or None
        return partial(run, ReplayOptions(source, episode, env, chosen, step, pdb, render, trust, timeout, json))

    @app.command(name="check", help=CHECK_HELP)
    def check(
        env: Env,
        steps: Annotated[int, typer.Option(metavar="N", help="Random steps.")] = 1000,
        seed: Seed = 0,
        seconds: Annotated[float, typer.Option(metavar="S", help="Fewer steps where they take longer.")] = 10.0,
        timeout: Annotated[float, typer.Option(metavar="S", help="What takes so much longer hangs.")] = 30.0,
        env_kwargs: Kwargs = "",
        wrap: Wrap = [],  # noqa: B006
        import_: Import = [],  # noqa: B006
        json: Json = False,
        debug: Debug = False,
    ) -> Callable[[], int]:  # fmt: skip
        from treadle.cli.check import run
        from treadle.testing.env_check import check_env

        options = CheckOptions(env, steps, seed, seconds, timeout, env_kwargs, tuple(wrap), tuple(import_))
        return lambda: run(partial(check_env, **options.arguments()), json)

    @app.command(name="check-vector", help=CHECK_VECTOR_HELP)
    def check_vector(
        make: Annotated[str, typer.Argument(metavar="MAKE", help="module:function or file.py:function.")],
        drill: Annotated[list[str], typer.Option(metavar="NAME", help="Some of the drills; repeat it.")] = [],  # noqa: B006
        limit: Annotated[float, typer.Option(metavar="S", help="Seconds of one drill.")] = 20.0,
        json: Json = False,
        debug: Debug = False,
    ) -> Callable[[], int]:  # fmt: skip
        from treadle.cli.check import run
        from treadle.testing.vector_check import check_vector_env

        return lambda: run(partial(check_vector_env, make, drills=drill or None, limit=limit), json)

    dataset = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
    app.add_typer(dataset, name="dataset", help="Do something with datasets that are there.")

    @dataset.command(name="merge", help=MERGE_HELP)
    def merge(
        shards: Annotated[list[Path], typer.Argument(metavar="DIR ...", help="The directories of all shards.")],
        out: Annotated[Path, typer.Option(metavar="DIR", help="Where to; the directory of the whole run.")],
        force: Annotated[bool, typer.Option("--force", help="Replace what is in DIR.")] = False,
        quiet: Quiet = False,
        json: Json = False,
        debug: Debug = False,
    ) -> Callable[[], int]:
        from treadle.cli.merge import run

        return partial(run, shards, out, force, quiet, json, given)

    @dataset.command(name="export", help=EXPORT_HELP)
    def export(
        source: Annotated[Path, typer.Argument(metavar="SOURCE", help="What was collected.")],
        out: Annotated[Path, typer.Argument(metavar="OUT", help="Where to.")],
        format: Annotated[str, typer.Option(metavar="lerobot", help="The format.")] = "lerobot",
        fps: Annotated[int, typer.Option(metavar="N", help="Steps a second: it decides the timestamps.")] = 30,
        task: Annotated[str | None, typer.Option(metavar="TEXT", show_default="the environment's id", help="What was "
                        "to be done, in words.")] = None,
        debug: Debug = False,
    ) -> Callable[[], int]:  # fmt: skip
        from treadle.cli.dataset import export as run

        return partial(run, source, out, format, fps, task)

    return app
