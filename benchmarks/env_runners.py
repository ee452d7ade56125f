"""`python -m benchmarks.env_runners`: 8 CartPoles by RLlib's EnvRunners, and by what `benchmarks.nodes` has.

It runs in RLlib's own environment (`make test-foreign ARGS=rllib`, half a minute). Random actions, 64 steps of each
environment at a time, everything returned to the caller. The EnvRunners are asked by `foreach_env_runner`, which waits
for all of them; the others always have two fragments under way.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from statistics import median
from time import perf_counter, process_time

from benchmarks.measure import Measure
from benchmarks.nodes import ENVS, FRAGMENT, Contestant, fragments, in_turns, spread

ROUNDS, SECONDS = 3, 2.0


@contextmanager
def env_runners(count: int, seconds: float) -> Iterator[Callable[[], Measure]]:
    """So many, with equal parts of the environments."""
    from ray.rllib.algorithms.ppo import PPOConfig

    config = PPOConfig().environment("CartPole-v1")
    config = config.env_runners(num_env_runners=count, num_envs_per_env_runner=ENVS // count, num_cpus_per_env_runner=0)
    algorithm = config.build_algo()
    group, steps_each = algorithm.env_runner_group, FRAGMENT * ENVS // count

    def fragment() -> int:
        made = group.foreach_env_runner(
            lambda runner: runner.sample(num_timesteps=steps_each, random_actions=True), local_env_runner=False
        )
        return sum(len(episode) for episodes in made for episode in episodes)

    def turn() -> Measure:
        steps, cpu, start = 0, process_time(), perf_counter()
        while perf_counter() - start < seconds:
            steps += fragment()
        return Measure(steps, perf_counter() - start, process_time() - cpu)

    try:
        fragment()
        yield turn
    finally:
        algorithm.stop()


CONTESTANTS: dict[str, Contestant] = {
    "RLlib, one EnvRunner of 8": partial(env_runners, 1),
    "RLlib, two EnvRunners of 4": partial(env_runners, 2),
    "SyncVectorEnv of 8 in an actor": partial(fragments, None, 1),
    "Treadle, a vector of 8 in an actor": partial(fragments, {}, 1),
}


def main() -> None:
    """Runs the command line."""
    import ray

    ray.init(address="local", num_cpus=4, include_dashboard=False, logging_level="error", log_to_driver=False)
    try:
        found = in_turns("env_runners", CONTESTANTS, ROUNDS, SECONDS)
    finally:
        ray.shutdown()
    rates = {name: [each.steps_per_s for each in measures] for name, measures in found.items()}
    best = max(median(each) for name, each in rates.items() if "RLlib" in name)
    print(f"| {ENVS} CartPoles | steps/s | x the better EnvRunners |\n|---|---:|---:|")
    for name, each in rates.items():
        print(f"| {name} | {spread(each)} | {median(each) / best:.2f} |")


if __name__ == "__main__":
    main()
