"""What was typed, as plain data, and its meaning for the library."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from treadle.errors import UsageError
from treadle.sample.inference import INFERENCE
from treadle.sample.named import Named, env_of


@dataclass(frozen=True)
class PlayOptions:
    """What every command that plays episodes takes. The names are those of the options."""

    env: str
    policy: str
    seed: int
    workers: str
    envs_per_worker: int
    max_episode_steps: int | None
    env_kwargs: str
    wrap: tuple[str, ...]
    imports: tuple[str, ...]
    fresh_env: bool
    step_timeout: float | None
    memory_limit: str | None
    max_episodes_per_worker: int | None
    inference: str
    num_envs: int | None
    pad_to: int | None
    n_action_steps: int | None
    batch_size: int | None
    patience: float | None
    nodes: int | None
    cpus_per_node: int | None
    ray_address: str | None
    quiet: bool
    json: bool
    debug: bool

    def arguments(self) -> dict[str, Any]:
        """The arguments of the library's functions. Raises UsageError for what cannot be meant."""
        if self.seed < 0:
            raise UsageError(f"--seed must not be negative, got {self.seed}")
        if self.step_timeout is not None and not self.step_timeout > 0:
            raise UsageError(f"--step-timeout must be more than 0 seconds, got {self.step_timeout:g}")
        if self.inference not in INFERENCE:
            raise UsageError(f"--inference is auto, worker, caller or node, got {self.inference!r}")
        if self.patience is not None and not self.patience >= 0:
            raise UsageError(f"--patience must be at least 0 seconds, got {self.patience:g}")
        asking = {
            name: _at_least_one(f"--{name.replace('_', '-')}", getattr(self, name))
            for name in ("pad_to", "n_action_steps", "batch_size")
        }
        return {
            "env": env_of(self.env),
            "seed": self.seed,
            "workers": _workers(self.workers),
            "envs_per_worker": _at_least_one("--envs-per-worker", self.envs_per_worker),
            "max_episode_steps": _at_least_one("--max-episode-steps", self.max_episode_steps),
            "env_kwargs": _env_kwargs(self.env_kwargs),
            "wrappers": tuple(_reference("--wrap", text) for text in self.wrap),
            "imports": self.imports,
            "fresh_env": self.fresh_env,
            "step_timeout": self.step_timeout,
            "memory_limit": self.memory_limit,
            "max_episodes_per_worker": _at_least_one("--max-episodes-per-worker", self.max_episodes_per_worker),
            "inference": self.inference,
            "num_envs": _at_least_one("--num-envs", self.num_envs),
            "patience": self.patience,
            "nodes": _at_least_one("--nodes", self.nodes),
            "cpus_per_node": _at_least_one("--cpus-per-node", self.cpus_per_node),
            "ray_address": self.ray_address,
            **asking,
        }


@dataclass(frozen=True)
class CollectOptions(PlayOptions):
    """Of `treadle collect`."""

    episodes: int | None
    steps: int | None
    out: Path | None
    force: bool
    resume: bool
    verify: int
    infos: bool
    format: str
    on_error: str
    max_skipped: str | None
    max_deaths: int
    retry_skipped: bool
    shard: str | None
    shared_out: bool

    def arguments(self) -> dict[str, Any]:
        """See `PlayOptions.arguments`."""
        arguments = super().arguments()
        if (self.episodes is None) == (self.steps is None):
            raise UsageError("give either --episodes N or --steps N" + (", not both" if self.steps else ""))
        if self.force and self.resume:
            raise UsageError("--force starts again and --resume continues: give one of them")
        if self.out is None:
            raise UsageError("say where the dataset goes: --out DIR")
        if self.format not in ("hdf5", "npz"):
            raise UsageError(f"--format is hdf5 or npz, got {self.format!r}")
        if self.verify < 0:
            raise UsageError(f"--verify must not be negative, got {self.verify}")
        if self.on_error not in ("stop", "skip"):
            raise UsageError(f"--on-error is stop or skip, got {self.on_error!r}")
        if self.max_skipped is not None and self.on_error != "skip":
            raise UsageError("--max-skipped is for --on-error skip")
        if self.retry_skipped and not self.resume:
            raise UsageError("--retry-skipped is for a run that is resumed: give --resume too")
        return arguments | {
            "policy": self.policy,
            "episodes": _at_least_one("--episodes", self.episodes),
            "steps": _at_least_one("--steps", self.steps),
            "out": self.out,
            "force": self.force,
            "resume": self.resume,
            "verify": self.verify,
            "infos": self.infos,
            "format": self.format,
            "on_error": self.on_error,
            "max_skipped": _amount("--max-skipped", self.max_skipped),
            "max_deaths": _at_least_one("--max-deaths", self.max_deaths),
            "retry_skipped": self.retry_skipped,
            "shard": self.shard,
            "shared_out": self.shared_out,
        }


@dataclass(frozen=True)
class EvalOptions(PlayOptions):
    """Of `treadle eval`."""

    against: str | None
    episodes: int
    success_key: str | None
    reset_options: str | None
    keep_built: int

    def arguments(self) -> dict[str, Any]:
        """See `PlayOptions.arguments`. Without the policies."""
        own: dict[str, Any] = {
            "episodes": _at_least_one("--episodes", self.episodes),
            "success_key": self.success_key,
            "keep_built": _at_least_one("--keep-built", self.keep_built),
        }
        if self.reset_options is not None:
            own["reset_options"] = _reference("--reset-options", self.reset_options)
        if "," in self.env:
            own["env"] = {name.strip(): env_of(name.strip()) for name in self.env.split(",") if name.strip()}
        return super().arguments() | own


@dataclass(frozen=True)
class PlanOptions:
    """Of `treadle plan`."""

    env: str
    algo: str
    budget: int
    horizon: int
    dt: int
    discount: float
    games: int
    max_steps: int | None
    seed: int
    workers: str
    env_kwargs: str
    wrap: tuple[str, ...]
    imports: tuple[str, ...]
    out: Path | None
    force: bool
    quiet: bool
    json: bool
    debug: bool

    def check(self) -> None:
        """Raises UsageError for what cannot be meant."""
        if self.algo not in ("random-shooting", "mcts"):
            raise UsageError(f"--algo is random-shooting or mcts, got {self.algo!r}")
        if self.seed < 0:
            raise UsageError(f"--seed must not be negative, got {self.seed}")
        if not 0 < self.discount <= 1:
            raise UsageError(f"--discount is above 0 and at most 1, got {self.discount}")
        for name in ("budget", "horizon", "dt", "games", "max_steps"):
            _at_least_one(f"--{name.replace('_', '-')}", getattr(self, name))
        if self.out is not None and self.out.exists() and not self.force and any(self.out.iterdir()):
            raise UsageError(f"there is something in {self.out}: --force replaces what this run writes")

    def env_arguments(self) -> dict[str, Any]:
        """The arguments of `treadle.plan.make`."""
        workers = _workers(self.workers)
        return {
            "id": env_of(self.env),
            "n_workers": workers,
            "env_kwargs": _env_kwargs(self.env_kwargs),
            "wrappers": tuple(_reference("--wrap", text) for text in self.wrap),
            "imports": self.imports,
        }


@dataclass(frozen=True)
class CheckOptions:
    """Of `treadle check`."""

    env: str
    steps: int
    seed: int
    seconds: float
    timeout: float
    env_kwargs: str
    wrap: tuple[str, ...]
    imports: tuple[str, ...]

    def arguments(self) -> dict[str, Any]:
        """The arguments of `check_env`. Raises UsageError for what cannot be meant."""
        _at_least_one("--steps", self.steps)
        if not (self.seed >= 0 and self.seconds > 0 and self.timeout > 0):
            raise UsageError("--seed must not be negative, --seconds and --timeout must be more than 0")
        return {
            **{name: value for name, value in vars(self).items() if name != "wrap"},
            "env_kwargs": _env_kwargs(self.env_kwargs),
            "wrappers": tuple(_reference("--wrap", text) for text in self.wrap),
        }


def _workers(text: str) -> int | str:
    if text == "auto":
        return "auto"
    try:
        count = int(text)
    except ValueError:
        raise UsageError(f"--workers is 'auto' or a number, got {text!r}") from None
    return _at_least_one("--workers", count)


def _amount(name: str, text: str | None) -> int | float | None:
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


def _env_kwargs(text: str) -> dict[str, Any]:
    if not text:
        return {}
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UsageError(f"--env-kwargs is not JSON: {error}; got {text!r}") from None
    if not isinstance(found, dict):
        raise UsageError(f"--env-kwargs must be a JSON object such as '{{\"frameskip\": 1}}', got {text}")
    return found


def _at_least_one(name: str, value: Any) -> Any:
    if value is not None and value < 1:
        raise UsageError(f"{name} must be at least 1, got {value}")
    return value


def _reference(option: str, text: str) -> Named:
    module, _, attribute = text.rpartition(":")
    if not module or not attribute:
        raise UsageError(f"{option} takes module:attribute or file.py:attribute, got {text!r}")
    return Named(text)
