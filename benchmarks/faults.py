"""What a caller sees when an environment in a vector goes wrong: Gymnasium's, Stable-Baselines3's, Tianshou's,
TorchRL's and our vectors under the drills of `vector_drills.py`.

    python -m benchmarks.faults                 print the table (10 minutes on two cores, most of it TorchRL's)
    python -m benchmarks.faults --write         and put it into docs/faults.md
    python -m benchmarks.faults --only sb3      those whose name begins so; with --write the others' lines stay

Each contestant is a function that makes a vector of functions that make environments, brought to Gymnasium's interface
by as little as it takes; whoever is not installed is left out, and that is said.
"""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Callable
from datetime import date
from importlib import metadata, util
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from benchmarks.vector_check import TITLES, check_vector_env
from treadle.testing import Report
from treadle.worker.options import WorkerOptions

DOCS = Path(__file__).parent.parent / "docs" / "faults.md"
PACKAGES = ("gymnasium", "stable-baselines3", "tianshou", "torchrl", "torch", "numpy")
EMPTY = "\n\n" * 3
BEGIN, END = "<!-- faults:begin -->", "<!-- faults:end -->"
Make = list[Callable[[], Any]]


# -- contestants: each is made in a process of its own -----------------------------------------------------------------


def gymnasium_sync(envs: Make) -> Any:
    from gymnasium.vector import SyncVectorEnv

    return SyncVectorEnv(envs)


def gymnasium_async(envs: Make) -> Any:
    from gymnasium.vector import AsyncVectorEnv

    return AsyncVectorEnv(envs)


def treadle(envs: Make) -> Any:
    from treadle import VectorEnv

    return VectorEnv(envs, workers=2, step_timeout=2)


def treadle_async(envs: Make) -> Any:
    from treadle import AsyncVectorEnv

    return AsyncVectorEnv(envs, workers=2, step_timeout=2)


def treadle_inline(envs: Make) -> Any:
    from treadle import VectorEnv

    return VectorEnv(envs, worker_options=WorkerOptions(backend="serial"))


def sb3_dummy(envs: Make) -> Any:
    from stable_baselines3.common.vec_env import DummyVecEnv

    return StableBaselines(DummyVecEnv(envs))


def sb3_subproc(envs: Make) -> Any:
    from stable_baselines3.common.vec_env import SubprocVecEnv

    return StableBaselines(SubprocVecEnv(envs))


def tianshou_dummy(envs: Make) -> Any:
    from tianshou.env import DummyVectorEnv

    return Tianshou(DummyVectorEnv(envs))


def tianshou_subproc(envs: Make) -> Any:
    from tianshou.env import SubprocVectorEnv

    return Tianshou(SubprocVectorEnv(envs))


def tianshou_shmem(envs: Make) -> Any:
    from tianshou.env import ShmemVectorEnv

    return Tianshou(ShmemVectorEnv(envs))


def torchrl_serial(envs: Make) -> Any:
    from torchrl.envs import SerialEnv

    return TorchRL(SerialEnv, envs)


def torchrl_parallel(envs: Make) -> Any:
    from torchrl.envs import ParallelEnv

    return TorchRL(ParallelEnv, envs)


class StableBaselines:
    """SB3's interface as Gymnasium's: done in one, the last observation in each info."""

    def __init__(self, vector: Any) -> None:
        self.vector, self.metadata = vector, {}
        self.close = vector.close

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.vector.seed(seed)
        return self.vector.reset(), {}

    def step(self, actions: Any) -> Any:
        observed, rewards, dones, infos = self.vector.step(actions)
        told: dict[str, Any] = {}
        if dones.any():
            told["final_obs"] = [info.get("terminal_observation") for info in infos]
            told["final_info"] = infos
            told["_final_obs"] = told["_final_info"] = dones
        return observed, rewards, dones, np.zeros(len(dones), bool), told


class Tianshou:
    """Tianshou's interface as Gymnasium's: environments are reset by whoever steps them."""

    def __init__(self, vector: Any) -> None:
        self.vector, self.metadata = vector, {"autoreset_mode": AutoresetMode.DISABLED}
        self.close = vector.close

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if options is not None:
            chosen = np.flatnonzero(options["reset_mask"])
            self.seen = self.seen.copy()
            self.seen[chosen] = self.vector.reset(chosen)[0]
            return self.seen, {}
        # all environments of one call get the same seed
        seeds = [None if seed is None else seed + i for i in range(len(self.vector))]
        self.seen = np.concatenate([self.vector.reset([i], seed=each)[0] for i, each in enumerate(seeds)])
        return self.seen, {}

    def step(self, actions: Any) -> Any:
        self.seen, rewards, terminated, truncated, _ = self.vector.step(actions)
        return self.seen, rewards, terminated, truncated, {}


class TorchRL:
    """TorchRL's interface as Gymnasium's: `step` shows the last observation, and the caller resets those that ended."""

    def __init__(self, kind: Any, envs: Make) -> None:
        import torch
        from torchrl.envs import GymWrapper

        self.torch, self.n = torch, len(envs)
        self.metadata = {"autoreset_mode": AutoresetMode.DISABLED}
        self.vector = kind(self.n, [lambda env=env: GymWrapper(env()) for env in envs])

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if options is not None:
            mask = self.torch.as_tensor(options["reset_mask"]).unsqueeze(-1)
            self.now = self.vector.reset(self.now.set("_reset", mask))
        else:
            self.vector.set_seed(seed)
            self.now = self.vector.reset()
        return self.now["observation"].numpy(), {}

    def step(self, actions: Any) -> Any:
        chosen = self.torch.nn.functional.one_hot(self.torch.as_tensor(actions), 4)
        self.now = self.vector.step(self.now.set("action", chosen))["next"].clone()
        read = [self.now[name].numpy() for name in ("observation", "reward", "terminated", "truncated")]
        return read[0], read[1][:, 0], read[2][:, 0], read[3][:, 0], {}

    def close(self) -> None:
        if not self.vector.is_closed:
            self.vector.close()


CONTESTANTS: dict[str, tuple[str, Callable[[Make], Any]]] = {
    "Treadle": ("treadle", treadle),
    "Treadle Async": ("treadle", treadle_async),
    "Treadle serial": ("treadle", treadle_inline),
    "Gymnasium Sync": ("gymnasium", gymnasium_sync),
    "Gymnasium Async": ("gymnasium", gymnasium_async),
    "SB3 Dummy": ("stable_baselines3", sb3_dummy),
    "SB3 Subproc": ("stable_baselines3", sb3_subproc),
    "Tianshou Dummy": ("tianshou", tianshou_dummy),
    "Tianshou Subproc": ("tianshou", tianshou_subproc),
    "Tianshou Shmem": ("tianshou", tianshou_shmem),
    "TorchRL Serial": ("torchrl", torchrl_serial),
    "TorchRL Parallel": ("torchrl", torchrl_parallel),
}


# -- the table ---------------------------------------------------------------------------------------------------------


def cell(report: Report, name: str) -> str:
    """What one of them did in a drill, in a few words."""
    drill = report.details[name]
    told = drill.told
    if name == "contract":
        words = [report.facts.get("autoreset", "fails"), *sorted({about for _, about, _ in drill.odd})]
    elif name == "caught timeout":
        stale = told.get("stale steps")
        words = ["no timeouts" if stale is None else f"**older results in {stale} steps**" if stale else "sound"]
    elif name == "orphaned":
        words = [] if drill.left else ["all gone"]
    elif "passed" in told:
        words = ["**silently wrong**"]
    elif "raised" in told:
        words = [told["raised"].partition("[")[0], f"{told['error took']:.1f} s"]
        words += [word for word, key in (("names it", "names"), ("cause", "cause")) if told[key]]
        words += [f"closed in {told['close took']:.1f} s"] if "close took" in told else []
    else:
        words = [drill.seen]
    words += ["**close hangs**"] if drill.hung == "close" else []
    words += [f"**{drill.left} processes left**"] if drill.left else []
    words += [f"**{drill.shm} files left**"] if drill.shm else []
    return ", ".join(words)


def table(reports: dict[str, Report], missing: list[str], before: str) -> str:
    """A line a contestant; in three tables, as one would be too wide. `before`: tables with lines of others."""
    parts = []
    earlier = before.split("\n\n")
    for at, names in enumerate((list(TITLES)[:5], list(TITLES)[5:9], list(TITLES)[9:])):
        parts.append("| | " + " | ".join(TITLES[name] for name in names) + " |\n" + "|---" * (len(names) + 1) + "|")
        lines = {line.split(" | ")[0].removeprefix("| "): line for line in earlier[at].splitlines()[2:]}
        for who, report in reports.items():
            lines[who] = f"| {who} | " + " | ".join(cell(report, name) for name in names) + " |"
        parts += [lines[who] for who in CONTESTANTS if who in lines]
        parts.append("")
    versions = [f"{name} {metadata.version(name)}" for name in PACKAGES if util.find_spec(name.replace("-", "_"))]
    where = f"{date.today()}, Python {platform.python_version()}, {os.cpu_count()} cores, {platform.system()}"
    parts.append(f"{where}: {', '.join(versions)}.")
    if missing:
        parts.append(f"Not installed here: {', '.join(missing)}.")
    return "\n".join(parts)


def main() -> None:
    """Run the drills, and print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="NAME", help="contestants whose name begins so")
    parser.add_argument("--write", action="store_true", help="put the table into docs/faults.md")
    parser.add_argument("--limit", type=float, default=20.0, metavar="SECONDS", help="of one drill")
    given = parser.parse_args()
    reports, missing = {}, []
    for name, (package, make) in CONTESTANTS.items():
        if not name.lower().startswith(given.only.lower()):
            continue
        if util.find_spec(package) is None:
            missing.append(name)
            continue
        reports[name] = check_vector_env(f"benchmarks.faults:{make.__name__}", limit=given.limit)
        print(reports[name], flush=True)
    before, _, rest = DOCS.read_text().partition(BEGIN)
    known, _, after = rest.partition(END)
    print(table(reports, missing, EMPTY))
    if given.write:
        DOCS.write_text(f"{before}{BEGIN}\n{table(reports, missing, known.strip() or EMPTY)}\n{END}{after}")


if __name__ == "__main__":
    main()
