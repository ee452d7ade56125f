"""The wheel, as somebody installs it: into an empty environment with each extra, which there does what it is for.

Everything else here is tested in an environment that has all the libraries, where a missing requirement goes unseen.
Installing takes a minute or two, so this is heavy. uv is used where it is there, and pip where uv cannot: only pip
reads pip's configuration.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(400)]

ROOT = Path(__file__).parent.parent
PLAY = ROOT / "examples" / "planning" / "play.py"
CLOSING = "MINARI_DATASETS_PATH=d python -c "  # how the line that reads the dataset begins

STEP = """
import treadle
envs = treadle.make_vec("CartPole-v1", num_envs=4)
envs.reset(seed=0)
for _ in range(10):
    observations, *_ = envs.step(envs.action_space.sample())
envs.close()
assert observations.shape == (4, 4)
assert len(list(treadle.collect("CartPole-v1", episodes=3))) == 3
"""
STORE = """
import treadle
stored = treadle.collect_dataset("CartPole-v1", out="d", episodes=5)
dataset = treadle.load("d")
assert dataset.total_episodes == 5
dataset.recover_environment().close()
"""
ATARI = """
import treadle
(episode,) = treadle.load("d").iterate_episodes()
assert episode.observations.shape == (51, 210, 160, 3)
"""
MINIGRID = """
import treadle
(episode,) = treadle.collect("MiniGrid-Empty-5x5-v0", episodes=1, max_episode_steps=5)
assert episode.observations["image"].shape[1:] == (7, 7, 3)
"""
MUJOCO = """
import treadle
assert treadle.evaluate("Hopper-v5", None, episodes=2).mean > 0
"""
PIXELS = "import gymnasium as gym; env = gym.make('Hopper-v5', render_mode='rgb_array'); env.close()"

# extra -> (shell commands that do its job, in this order; their last output must hold this)
JOBS: dict[str, tuple[list[str], str]] = {
    "": ([f"python -c '{STEP}'", "treadle --help 2>&1 || true"], "pip install 'treadle[cli]'"),
    "cli": (["treadle eval CartPole-v1 --episodes 5"], "mean"),
    "data": ([f"python -c '{STORE}'", "python -c 'import treadle; print(treadle.load(\"d\"))'"], "MinariDataset"),
    "cli,data": (["treadle collect CartPole-v1 --episodes 5 --out d | tee told", "sh -c \"$(tail -n 1 told)\""],
                 "MinariDataset"),
    "cli,data,atari": (["treadle collect ALE/Pong-v5 --episodes 1 --max-episode-steps 50 --out d",
                        f"python -c '{ATARI}'", "echo read"], "read"),
    "minigrid": ([f"python -c '{MINIGRID}'", "echo stepped"], "stepped"),
    "mujoco": ([f"python -c '{MUJOCO}'", f'python -c "{PIXELS}"', "echo stepped"], "stepped"),
    "atari,video": ([f"python {PLAY} ALE/Pong-v5 --budget 60 --horizon 5 --max-steps 8 --out p"], "p/game.mp4"),
}  # fmt: skip


def run(*command: object, cwd: Path | None = None, path: str = "") -> str:
    """What a command prints, of both streams. Nothing of this checkout can be imported in it."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    env["PATH"] = f"{path}:{env['PATH']}" if path else env["PATH"]
    done = subprocess.run(
        [*map(str, command)], cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}"
    return done.stdout


@pytest.fixture(scope="module", name="wheel")
def built_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of what git would give: what lies about in the checkout is not in it."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for name in ("src", "pyproject.toml", "README.md", "LICENSE"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", out, source, cwd=out)
    (wheel,) = out.glob("*.whl")
    return wheel


def install(python: Path, what: str) -> None:
    uv = shutil.which("uv")
    if uv is not None:
        done = subprocess.run([uv, "pip", "install", "-q", "--python", python, what], check=False, capture_output=True)
        if done.returncode == 0:
            return
    run(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--disable-pip-version-check", what)


@pytest.mark.parametrize("extra", JOBS)
def test_an_extra_does_its_job_in_an_empty_environment(extra: str, wheel: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv")
    folder = tmp_path / "venv" / "bin"
    install(folder / "python", f"{wheel}[{extra}]" if extra else str(wheel))
    (work := tmp_path / "work").mkdir()
    commands, expected = JOBS[extra]
    told = ""
    for command in commands:
        told = run("sh", "-ec", command, cwd=work, path=str(folder))
    assert expected in told
