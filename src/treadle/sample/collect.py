"""Collecting: whole episodes from many workers, the same bytes for any number of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from treadle.play.episode import Episode
from treadle.play.recipe import ResetOptions, RolloutRecipe
from treadle.program.gym_env import EnvRecipe
from treadle.sample.arguments import MORE, check_amounts, check_seed, spread
from treadle.sample.inference import asking_of
from treadle.sample.named import env_of
from treadle.sample.schedule import Schedule
from treadle.sample.skipping import Skipping
from treadle.sample.streams import in_order
from treadle.worker.options import check_names


def collect(
    env: str | EnvSpec | Callable[..., gym.Env],
    policy: Any = None,
    *,
    episodes: int | None = None,
    steps: int | None = None,
    seed: int = 0,
    workers: int | str = "auto",
    ordered: bool = True,
    envs_per_worker: int = 1,
    inference: str = "auto",
    num_envs: int | None = None,
    nodes: int | None = None,
    max_episode_steps: int | None = None,
    env_kwargs: dict[str, Any] | None = None,
    wrappers: Sequence[Callable[[gym.Env], gym.Env]] = (),
    imports: Sequence[str] = (),
    infos: bool = True,
    fresh_env: bool = False,
    reset_options: ResetOptions = None,
    on_error: str = "stop",
    max_skipped: int | float | None = None,
    backend: str | None = None,
    progress: bool | None = False,
    **pool_options: Any,
) -> Iterator[Episode]:
    """Play whole episodes in parallel and yield them.

    Episode i is made from (seed, i) alone, so what is yielded is the same bytes in the same order for any number of
    workers. Leaving the loop (or closing the generator) closes the workers.

    Args:
        env: a registered id, "module:Id", an EnvSpec, a callable that returns an environment, or "module:make_env" or
            "file.py:make_env", which name one.
        policy: None for random actions, or see `treadle.program.policies`.
        episodes: how many. With neither this nor `steps` it goes on for ever.
        steps: instead, the shortest prefix of episodes whose lengths add up to at least so many steps.
        seed: the run's root seed.
        workers: worker processes, or "auto": one a core, and more where environments wait (`docs/inference.md`); of
            threads one an environment, or 8 a core. No more are started than there are episodes to make.
        ordered: yield in order of index; False: as they come.
        envs_per_worker: environments each worker plays at once; the policy sees batches of exactly so many rows.
        inference: where the policy is asked. "worker": in each worker process, for its own environments. "caller":
            here, about all environments that are ready at a time (`docs/inference.md`). "auto": here if the policy
            says `batched = True`, has parameters off the CPU, cannot be pickled or is larger than 256 MiB, else in the
            workers; how fast it would be never decides it.
        num_envs: environments that are played at a time. None: `envs_per_worker` a worker, or 8 a worker for a policy
            in the caller.
        max_episode_steps: cut longer episodes (truncated).
        env_kwargs: for `gymnasium.make`, or the callable.
        wrappers: applied to each environment, in order.
        imports: modules to import in the workers first.
        infos: keep step infos?
        fresh_env: build a new environment for every episode (for those that carry something over).
        reset_options: of episode i: `reset_options(i)`, or the i-th of a sequence (which begins again at its end): a
            dict that the environment's reset gets as `options`, or None.
        on_error: "stop": an episode that fails ends the run. "skip": it is left out, with a warning, when it fails in
            its reset or step (after it was tried once more in a new environment), or costs three fresh workers their
            lives or their time (what a dead worker had begun goes first to a fresh one, which plays each by itself).
            What a policy or a constructor raises always ends the run.
        max_skipped: with "skip": how many episodes may be left out, as a number or as a share (0.1) of them; None: 5 %,
            and at least 3 as for every share. More of them, or all of the first ten, end the run.
        backend: "process", "serial" (in this thread) or "thread". None: "process"; on other systems than Linux see
            README.
        progress: True: show on stderr how far it is: rich's bar on a terminal and, with ipywidgets, in a notebook; a
            line every ten seconds elsewhere. None: only on a terminal, where rich is installed.
        pool_options: further arguments of `treadle.pool.pool.Pool`, such as start_method or start_timeout. With
            step_timeout=SECONDS a worker process in which nothing comes to its end for so long (a step, a reset, an
            action of the policy) is killed and its episode made again by another. Dead workers are replaced as often
            as it takes; max_restarts=N allows N replacements a worker in ten minutes, on_failure="raise" none, and
            with on_failure="drop" the other workers go on without the dead one.
            For a policy in the caller besides: batch_size=ROWS to wait for and patience=SECONDS that one waits for
            others (None: chosen by what is measured), pad_to=ROWS of every batch, n_action_steps=STEPS that are played
            of each answer.

    Raises:
        UsageError: contradictory arguments. Also StartupFailed, and CollectionFailed when an environment or policy
            raises, too many episodes fail, workers die that may not be replaced, or three on one episode.
    """
    check_names(collect, pool_options, MORE)
    check_amounts(episodes, steps, workers, envs_per_worker, max_episode_steps)
    check_seed(seed)
    spread(nodes, inference, pool_options)
    asking, workers = asking_of(policy, inference, num_envs, workers, envs_per_worker, pool_options)
    recipe = RolloutRecipe(
        EnvRecipe.of(env_of(env), env_kwargs, wrappers, imports),
        policy,
        envs_per_worker,
        max_episode_steps,
        infos,
        fresh_env=fresh_env,
        reset_options=reset_options,
        asking=asking,
    )
    options = {
        "root": seed,
        "workers": None if workers == "auto" else int(workers),
        "backend": backend,
        "skipping": Skipping.of(on_error, max_skipped),
        **pool_options,
    }
    return in_order(recipe, Schedule(episodes, steps), ordered, progress, options)
