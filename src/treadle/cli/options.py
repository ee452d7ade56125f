"""What was typed, as plain data, and its meaning for the library."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from treadle.errors import UsageError
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
    quiet: bool
    json: bool
    debug: bool

    def arguments(self) -> dict[str, Any]:
        """The arguments of the library's functions. Raises UsageError for what cannot be meant."""
        if self.seed < 0:
            raise UsageError(f"--seed must not be negative, got {self.seed}")
        if self.step_timeout is not None and not self.step_timeout > 0:
            raise UsageError(f"--step-timeout must be more than 0 seconds, got {self.step_timeout:g}")
        return {
            "env": env_of(self.env),
            "seed": self.seed,
            "workers": self._workers(),
            "envs_per_worker": _at_least_one("--envs-per-worker", self.envs_per_worker),
            "max_episode_steps": _at_least_one("--max-episode-steps", self.max_episode_steps),
            "env_kwargs": self._env_kwargs(),
            "wrappers": tuple(_reference("--wrap", text) for text in self.wrap),
            "imports": self.imports,
            "fresh_env": self.fresh_env,
            "step_timeout": self.step_timeout,
        }

    def _workers(self) -> int | str:
        if self.workers == "auto":
            return "auto"
        try:
            count = int(self.workers)
        except ValueError:
            raise UsageError(f"--workers is 'auto' or a number, got {self.workers!r}") from None
        if count < 1:
            raise UsageError(f"--workers must be at least 1, got {count}")
        return count

    def _env_kwargs(self) -> dict[str, Any]:
        if not self.env_kwargs:
            return {}
        try:
            found = json.loads(self.env_kwargs)
        except ValueError as error:
            raise UsageError(f"--env-kwargs is not JSON: {error}; got {self.env_kwargs!r}") from None
        if not isinstance(found, dict):
            raise UsageError(
                f"--env-kwargs must be a JSON object such as '{{\"frameskip\": 1}}', got {self.env_kwargs}"
            )
        return found


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
        }


@dataclass(frozen=True)
class EvalOptions(PlayOptions):
    """Of `treadle eval`."""

    against: str | None
    episodes: int

    def arguments(self) -> dict[str, Any]:
        """See `PlayOptions.arguments`. Without the policies."""
        return super().arguments() | {"episodes": _at_least_one("--episodes", self.episodes)}


def _at_least_one(name: str, value: Any) -> Any:
    if value is not None and value < 1:
        raise UsageError(f"{name} must be at least 1, got {value}")
    return value


def _reference(option: str, text: str) -> Named:
    module, _, attribute = text.rpartition(":")
    if not module or not attribute:
        raise UsageError(f"{option} takes module:attribute or file.py:attribute, got {text!r}")
    return Named(text)
