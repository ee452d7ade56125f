"""AllenAct's own on-policy trainer on our vector of tasks: trained weights are compared, bit for bit.

    python scripts/allenact_trainer.py FOLDER

trains a small model three times by AllenAct's `OnPolicyRunner`, with validation, advancing scenes and a test at the
end: on AllenAct's own vector, on ours with AllenAct's own tasks, and on ours with tasks whose imports were changed to
ours. It fails unless all checkpoints hold the same weights. With `--die` a task ends its process in the middle of a
rollout, and the trainer goes on (`try_restart_after_task_error`).

It needs an environment of its own, since AllenAct 0.5.4 asks for Gym 0.17: `pip install allenact==0.5.4`, then `pip
install "numpy<2" "scipy<1.14" "moviepy<2" "cloudpickle>=3"`, and Treadle. (Gym asks for an older cloudpickle, which it
needs for nothing that happens here.)
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import allenact.algorithms.onpolicy_sync.engine as engine
import gym
import numpy as np
import torch
from allenact.algorithms.onpolicy_sync.losses import PPO
from allenact.algorithms.onpolicy_sync.losses.ppo import PPOConfig
from allenact.algorithms.onpolicy_sync.runner import OnPolicyRunner
from allenact.base_abstractions.experiment_config import ExperimentConfig, MachineParams
from allenact.embodiedai.models.basic_models import LinearActorCritic
from allenact.utils.experiment_utils import Builder, LinearDecay, PipelineStage, TrainingPipeline

# processes that the runner starts import this file again: what they are to use comes by the environment
if os.environ.get("WALK_TASKS") == "ours":
    from treadle import RLStepResult, Sensor, SensorSuite, Task, TaskSampler
else:
    from allenact.base_abstractions.misc import RLStepResult
    from allenact.base_abstractions.sensor import Sensor, SensorSuite
    from allenact.base_abstractions.task import Task, TaskSampler
if os.environ.get("WALK_VECTOR") == "ours":
    import treadle

    engine.VectorSampledTasks = treadle.VectorSampledTasks
    engine.SingleProcessVectorSampledTasks = treadle.SingleProcessVectorSampledTasks

STEPS = int(os.environ.get("WALK_STEPS", "6000"))
RUNS = {"theirs": ("theirs", "theirs"), "our vector": ("ours", "theirs"), "our vector and tasks": ("ours", "ours")}


class Line:
    """Where the agent stands."""

    def __init__(self) -> None:
        self.at = 0


class Where(Sensor):
    """[where the agent stands, where it is to go]."""

    def __init__(self) -> None:
        super().__init__(uuid="where", observation_space=gym.spaces.Box(-20, 20, (2,), np.float32))

    def get_observation(self, env: Any, task: Any, *args: Any, **kwargs: Any) -> np.ndarray:
        return np.array([env.at, task.task_info["goal"]], np.float32)


class Walk(Task):
    """Left or right, to a goal."""

    @property
    def action_space(self) -> Any:
        return gym.spaces.Discrete(2)

    def _step(self, action: Any) -> Any:
        mark = os.environ.get("WALK_DIE")
        if mark and self.task_info["slot"] == 2 and not os.path.exists(mark):
            Path(mark).touch()
            os._exit(3)
        self.env.at += 2 * int(action) - 1
        reward = 1.0 if self.reached_terminal_state() else -0.1
        return RLStepResult(self.get_observations(), reward, self.is_done(), {})

    def reached_terminal_state(self) -> bool:
        return self.env.at == self.task_info["goal"]

    def metrics(self) -> dict[str, Any]:
        return {"ep_length": self.num_steps_taken(), "success": float(self.reached_terminal_state())}

    def render(self, mode: str = "rgb", *args: Any, **kwargs: Any) -> np.ndarray:
        return np.zeros((4, 4, 3), np.uint8)

    def close(self) -> None:
        """Nothing is open."""


class Walks(TaskSampler):
    """Goals by a seed; `tasks` of them, None: without end."""

    last_sampled_task = None
    all_observation_spaces_equal = True
    total_unique = None

    def __init__(self, seed: int, slot: int, tasks: int | None = None, mp_ctx: Any = None) -> None:
        self.slot, self.tasks, self.suite = slot, tasks, SensorSuite([Where()])
        self.set_seed(seed)
        self.count = 0

    @property
    def length(self) -> float:
        return float("inf") if self.tasks is None else self.tasks - self.count

    def next_task(self, force_advance_scene: bool = False) -> Any:
        if self.length <= 0:
            return None
        self.count += 1
        goal = int(self.random.choice([-4, -3, 3, 4]))
        return Walk(env=Line(), sensors=self.suite, task_info={"goal": goal, "slot": self.slot}, max_steps=20)

    def reset(self) -> None:
        self.set_seed(self.seed)
        self.count = 0

    def set_seed(self, seed: int) -> None:
        self.seed, self.random = seed, np.random.RandomState(seed % 2**31)

    def close(self) -> None:
        """Nothing is open."""


class WalkConfig(ExperimentConfig):
    """Eight samplers for training, two for validation and for the test."""

    @classmethod
    def tag(cls) -> str:
        return "Walk"

    @classmethod
    def training_pipeline(cls, **kwargs: Any) -> TrainingPipeline:
        return TrainingPipeline(
            named_losses={"ppo_loss": PPO(**PPOConfig)},
            pipeline_stages=[PipelineStage(loss_names=["ppo_loss"], max_stage_steps=STEPS)],
            optimizer_builder=Builder(torch.optim.Adam, {"lr": 1e-2}),
            num_mini_batch=2,
            update_repeats=4,
            max_grad_norm=0.5,
            num_steps=32,
            gamma=0.99,
            use_gae=True,
            gae_lambda=0.95,
            advance_scene_rollout_period=3,
            save_interval=2000,
            metric_accumulate_interval=1000,
            lr_scheduler_builder=Builder(torch.optim.lr_scheduler.LambdaLR, {"lr_lambda": LinearDecay(steps=STEPS)}),
        )

    @classmethod
    def machine_params(cls, mode: str = "train", **kwargs: Any) -> MachineParams:
        return MachineParams(nprocesses={"train": 8}.get(mode, 2), devices=[])

    @classmethod
    def create_model(cls, **kwargs: Any) -> Any:
        return LinearActorCritic("where", gym.spaces.Discrete(2), SensorSuite([Where()]).observation_spaces)

    @classmethod
    def make_sampler_fn(cls, **kwargs: Any) -> Walks:
        return Walks(**kwargs)

    def train_task_sampler_args(self, process_ind: int, *args: Any, seeds: Any = None, **kwargs: Any) -> dict[str, Any]:
        return {"seed": seeds[process_ind], "slot": process_ind}

    def valid_task_sampler_args(self, process_ind: int, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return {"seed": 5 + process_ind, "slot": process_ind, "tasks": 10}

    def test_task_sampler_args(self, process_ind: int, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return {"seed": 7 + process_ind, "slot": process_ind, "tasks": 10 + 5 * process_ind}


def checkpoints(folder: Path) -> list[Path]:
    """Of a run, in order."""
    return sorted(folder.glob("**/*.pt"), key=lambda path: path.name)


def train(folder: str) -> None:
    """One run: train, then test the last checkpoint; says what the test gave."""
    common: dict[str, Any] = {"config": WalkConfig(), "output_dir": folder, "loaded_config_src_files": None, "seed": 3}
    runner = OnPolicyRunner(**common, mode="train", disable_config_saving=True)
    runner.start_train(
        max_sampler_processes_per_worker=2, try_restart_after_task_error=bool(os.environ.get("WALK_DIE"))
    )
    last = checkpoints(Path(folder))[-1]
    runner = OnPolicyRunner(**common, mode="test", disable_config_saving=True)
    found = runner.start_test(checkpoint_path_dir_or_pattern=str(last), max_sampler_processes_per_worker=2)
    Path(folder, "tested").write_text(str({k: v for each in found for k, v in each.items() if k != "tasks"}))


def weights(path: Path) -> dict[str, Any]:
    return torch.load(path, weights_only=False)["model_state_dict"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where runs are written; new")
    parser.add_argument("--die", action="store_true", help="a task ends its process, and the trainer goes on")
    options = parser.parse_args()
    options.folder.mkdir(parents=True)
    kept: dict[str, list[Path]] = {}
    for name, (vector, tasks) in RUNS.items():
        folder = options.folder.resolve() / name.replace(" ", "_")
        environ = os.environ | {"WALK_VECTOR": vector, "WALK_TASKS": tasks, "WALK_RUN": str(folder)}
        if options.die:
            environ["WALK_DIE"] = f"{folder}.died"
        with open(f"{folder}.log", "w") as log:
            subprocess.run([sys.executable, __file__], env=environ, stdout=log, stderr=log, check=True)
        kept[name] = checkpoints(folder)
        print(f"{name}: {len(kept[name])} checkpoints; {(folder / 'tested').read_text()}", flush=True)
    if options.die:
        return 0
    first, *others = kept.values()
    for other in others:
        for ours, theirs in zip(other, first, strict=True):
            a, b = weights(ours), weights(theirs)
            if ours.name != theirs.name or a.keys() != b.keys() or not all(torch.equal(a[key], b[key]) for key in a):
                print(f"{ours} and {theirs} differ")
                return 1
    print("all checkpoints hold the same weights")
    return 0


if __name__ == "__main__":
    if os.environ.get("WALK_RUN"):
        train(os.environ["WALK_RUN"])
    else:
        raise SystemExit(main())
