"""`python -m benchmarks.sb3`: Stable-Baselines3's PPO acts, and its own vectors or ours step eight environments.

In each row all contestants are built once, and stand still while others are measured: windows of `--seconds` in turn,
`--rounds` of them. Between two steps PPO's policy computes actions, values and log-probabilities, as when it learns.
The limit of lockstep on two cores is measured beside them: p, what the policy takes for a batch, and e, what the
environments (with their wrappers) take one after the other in a process that does nothing else. One process alone does
p + e for a batch, two share the environments: (p + e) / (p + e/2) times as fast. Lockstep waits for the slower half of
each batch, though, and where an episode ends one half resets: h is the mean of the slower half, e/2 if there were no
such, and p + h what two processes that never talk take at least.
"""

import argparse
import datetime
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, median
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.report import machine, progress, publish

PAGE = Path(__file__).parents[1] / "docs" / "coming-from-sb3.md"
BEGIN, END = "<!-- sb3:begin -->", "<!-- sb3:end -->"
N = 8


def breakout(**kwargs: Any) -> Any:
    """The game, wherever it is built: SB3's worker processes know no ids of packages."""
    import ale_py
    import gymnasium

    gymnasium.register_envs(ale_py)
    return gymnasium.make("ALE/Breakout-v5", **kwargs)


# name -> what makes the vector, of what, and the policy
ROWS: dict[str, tuple[str, Any, str]] = {
    "CartPole": ("make_vec_env", "CartPole-v1", "MlpPolicy"),
    "Atari preprocessed": ("make_atari_env", breakout, "CnnPolicy"),
    "Hopper": ("make_vec_env", "Hopper-v5", "MlpPolicy"),
}
OURS, SUBPROC, DUMMY = "treadle.sb3.VecEnv", "SubprocVecEnv", "DummyVecEnv"


class Runner:
    """One contestant: a vector, PPO's policy before it, and its last observations."""

    def __init__(self, name: str, make: str, env_id: Any, policy: str) -> None:
        import torch
        from stable_baselines3 import PPO
        from stable_baselines3.common import env_util
        from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecTransposeImage

        import treadle.sb3

        torch.set_num_threads(1)
        kinds = {OURS: None, SUBPROC: SubprocVecEnv, DUMMY: DummyVecEnv}
        maker = getattr(treadle.sb3 if name == OURS else env_util, make)
        envs = maker(env_id, n_envs=N, seed=0, vec_env_cls=kinds[name])
        self.name, self._torch = name, torch
        self.envs = VecTransposeImage(envs) if make == "make_atari_env" else envs
        self.model = PPO(policy, self.envs, device="cpu", seed=0)
        self.model.policy.set_training_mode(False)
        self.observations = self.envs.reset()
        self.space = self.envs.action_space

    def act(self) -> np.ndarray:
        """What PPO does before a step."""
        with self._torch.no_grad():
            actions, _, _ = self.model.policy(self.model.policy.obs_to_tensor(self.observations)[0])
        found = actions.cpu().numpy()
        return np.clip(found, self.space.low, self.space.high) if hasattr(self.space, "low") else found

    def step(self) -> None:
        self.observations = self.envs.step(self.act())[0]

    def close(self) -> None:
        self.envs.close()


def per_call(call: Callable[[], Any], seconds: float) -> float:
    """Seconds that one call takes, over a window of `seconds`."""
    calls, start = 0, perf_counter()
    while (now := perf_counter()) < start + seconds:
        call()
        calls += 1
    return (now - start) / calls


def one_after_another(runner: Runner, halves: list[float]) -> Callable[[], None]:
    """A step of the eight environments of SB3's DummyVecEnv, without what the vector does around them. Seconds of each
    batch's slower half are added to `halves`."""
    envs = runner.envs.unwrapped.envs

    def half(some: slice) -> float:
        start = perf_counter()
        for env, action in zip(envs[some], actions[some], strict=True):
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()
        return perf_counter() - start

    def step() -> None:
        halves.append(max(half(slice(N // 2)), half(slice(N // 2, N))))

    actions = runner.act()
    return step


def measured(row: str, rounds: int, seconds: float) -> dict[str, float]:
    """Medians over the rounds: batches a second of each contestant, and p and e in seconds."""
    runners = [Runner(name, *ROWS[row]) for name in (OURS, SUBPROC, DUMMY)]
    found: dict[str, list[float]] = {}
    try:
        for number in range(rounds + 1):  # the first warms up
            for runner in runners:
                rate = 1 / per_call(runner.step, seconds)
                if number:
                    found.setdefault(runner.name, []).append(rate)
            if number:
                found.setdefault("p", []).append(per_call(runners[-1].act, seconds / 2))
                halves: list[float] = []
                found.setdefault("e", []).append(per_call(one_after_another(runners[-1], halves), seconds / 2))
                found.setdefault("h", []).append(fmean(halves))
                progress(
                    f"{row} {number}/{rounds}: "
                    + ", ".join(f"{name} {values[-1]:.4g}" for name, values in found.items())
                )
    finally:
        for runner in runners:
            runner.close()
    spread = max((max(values) - min(values)) / median(values) for name, values in found.items() if len(name) > 1)
    return {name: median(values) for name, values in found.items()} | {"spread": spread}


def line(row: str, found: dict[str, float]) -> str:
    """A row of the table."""
    p, e, h, ours = found["p"], found["e"], found["h"], found[OURS]
    cells = [
        f"{row} x{N}",
        *(f"{found[name] * N:,.0f}" for name in (OURS, SUBPROC, DUMMY)),
        f"{ours / max(found[SUBPROC], found[DUMMY]):.2f}",
        f"{p * 1e3:.2f} / {e * 1e3:.2f} / {h * 1e3:.2f}",
        f"{ours / found[DUMMY]:.2f}",
        f"{(p + e) / (p + e / 2):.2f}",
        f"{(p + e) / (p + h):.2f}",
        f"{found['spread']:.0%}",
    ]
    return "| " + " | ".join(cells) + " |"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (None: the process's own)."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sb3", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="windows of each contestant in each row (5)")
    parser.add_argument("--seconds", type=float, default=1.5, help="of a window (1.5)")
    parser.add_argument("--only", default="", help="rows by parts of their names, with commas between them (all)")
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE.parent.name}/{PAGE.name}")
    options = parser.parse_args(argv)
    rows = [row for row in ROWS if any(part in row for part in options.only.split(","))]
    names = ["row", OURS, SUBPROC, DUMMY, "ours / the better", "p / e / h, ms"]
    names += ["ours / DummyVecEnv", "(p+e)/(p+e/2)", "(p+e)/(p+h)", "spread"]
    head = "| " + " | ".join(names) + " |\n" + "|---" * len(names) + "|"
    lines = [line(row, measured(row, options.rounds, options.seconds)) for row in rows]
    facts = machine() | {
        "date": datetime.date.today().isoformat(),
        "rounds": options.rounds,
        "seconds": options.seconds,
    }
    facts["versions"] = " ".join(f"{name} {version}" for name, version in facts["versions"].items())
    about = ", ".join(f"{name} {value}" for name, value in facts.items())
    text = f"{head}\n" + "\n".join(lines) + f"\n\nEnvironment steps a second, medians; {about}."
    publish(text, PAGE if options.write else None, BEGIN, END)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
