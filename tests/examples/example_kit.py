"""The examples as modules to be looked into, and as the scripts that users run."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from conftest import scaled

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(name: str) -> ModuleType:
    """The example as a module."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their own module up
    spec.loader.exec_module(module)
    return module


def run_script(name: str, *arguments: str, save: Path, timeout: float) -> list[dict[str, Any]]:
    """As a user runs it, in a process of its own: torch's threads and generator are global. What it saved."""
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments, "--save", str(save)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=scaled(timeout))
    assert done.returncode == 0, done.stderr
    return json.loads(save.read_text())
