"""Models that Stable-Baselines3 has saved, such as `ppo.zip`. No other file imports Stable-Baselines3 for a policy.

A saved model does not name its algorithm, but its file lists the algorithm's own settings, which identify it. It is
loaded to act and not to learn: on the processor, without a replay buffer.
"""

from __future__ import annotations

import importlib
import json
import zipfile
from pathlib import Path
from typing import Any

from treadle.errors import MissingExtra, UsageError

ENDING = ".zip"

# a setting that no algorithm above it has -> (package, algorithm); DDPG is a TD3 with other defaults, and acts as that
ALGORITHMS = {
    "cg_max_steps": ("sb3_contrib", "TRPO"),
    "clip_range": ("stable_baselines3", "PPO"),
    "top_quantiles_to_drop_per_net": ("sb3_contrib", "TQC"),
    "target_entropy": ("stable_baselines3", "SAC"),
    "policy_delay": ("stable_baselines3", "TD3"),
    "exploration_rate": ("stable_baselines3", "DQN"),
    "delta_std": ("sb3_contrib", "ARS"),
    "gae_lambda": ("stable_baselines3", "A2C"),
}
# by the module of the policy, where the settings are those of another algorithm
BY_POLICY = {
    "sb3_contrib.qrdqn.": ("sb3_contrib", "QRDQN"),
    "sb3_contrib.common.maskable.": ("sb3_contrib", "MaskablePPO"),
}
RECURRENT = "sb3_contrib.common.recurrent."


def load_model(path: str) -> Any:
    """Return the model of a file, which has `predict`.

    Raises:
        UsageError: the file is missing, is not a model that Stable-Baselines3 has saved, or is of an unknown algorithm.
            Or the model carries a state from step to step.
        MissingExtra: Stable-Baselines3 or torch is not installed.
    """
    package, algorithm = algorithm_of(path)
    try:
        kind = getattr(importlib.import_module(package), algorithm)
    except ImportError as error:
        name = package.replace("_", "-")
        raise MissingExtra(
            f"{path} is a {algorithm} of Stable-Baselines3, which cannot be imported ({error}): pip install {name}"
        ) from error
    # what only learning needs: the room of a replay buffer, and functions that another Python could not read
    instead: dict[str, Any] = {"buffer_size": 1, "learning_rate": 0.0, "lr_schedule": _constant}
    instead |= {"clip_range": _constant, "clip_range_vf": None, "exploration_schedule": _constant}
    return kind.load(path, device="cpu", custom_objects=instead)


def drawn_actions(model: Any, observations: Any, rngs: list[Any], told: list[str]) -> Any:
    """Return stochastic actions [k, ...] of a Stable-Baselines3 model, each row drawn from its own generator.

    None: the model's policy is not a categorical or a normal distribution over actions (those of PPO and A2C are). If
    actions are clipped, a remark is added to `told`.
    """
    policy = getattr(model, "policy", None)
    if not callable(getattr(policy, "get_distribution", None)):
        return None
    from treadle.program.torch_policy import draw_categorical, draw_normal, library

    assert policy is not None
    torch = library("a model of Stable-Baselines3 needs")
    policy.set_training_mode(False)
    with torch.inference_mode():
        found = policy.get_distribution(policy.obs_to_tensor(observations)[0]).distribution
        shares: Any = getattr(found, "probs", None)
        if isinstance(found, torch.distributions.Categorical) and shares.ndim == 2:
            return draw_categorical(shares.double().cpu().numpy(), rngs)
        if not isinstance(found, torch.distributions.Normal):
            return None
        means, deviations = found.mean.cpu().numpy(), found.stddev.cpu().numpy()
    actions, space = draw_normal(means, deviations, rngs).reshape(-1, *policy.action_space.shape), policy.action_space
    if policy.squash_output:
        return policy.unscale_action(actions)
    if (actions < space.low).any() or (actions > space.high).any():
        told.append("actions that were drawn beyond the bounds of the action space are clipped")
    return actions.clip(space.low, space.high)


def algorithm_of(path: str) -> tuple[str, str]:
    """Return (package, name) of the algorithm of a saved model. Nothing of the file is run. Raises UsageError."""
    if not Path(path).exists():
        raise UsageError(f"file {path} does not exist")
    try:
        with zipfile.ZipFile(path) as archive:
            settings = json.loads(archive.read("data"))
        policy = str(settings["policy_class"].get("__module__", ""))
    except (zipfile.BadZipFile, KeyError, ValueError, AttributeError, TypeError) as error:
        raise UsageError(f"{path} is not a model that Stable-Baselines3 has saved ({error})") from error
    if policy.startswith(RECURRENT):
        raise UsageError(f"{path} is recurrent: give a class whose reset clears its state (--policy file.py:Class)")
    for module, found in BY_POLICY.items():
        if policy.startswith(module):
            return found
    for setting, found in ALGORITHMS.items():
        if setting in settings:
            return found
    raise UsageError(f"{path} is of an algorithm that is not known here: load it in a function (--policy file.py:load)")


def _constant(_: float) -> float:
    return 0.0
