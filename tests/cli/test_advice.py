"""What a person is told to do about an environment that cannot be built, or does not repeat."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from command import ZOO, one_line, treadle

from treadle.cli.main import main

pytestmark = pytest.mark.usefixtures("command_server")

COMMANDS = {
    "collect": ("--episodes", 2, "--out", "o"),
    "eval": ("--episodes", 2),
}
NO_IDS = {
    "Foo-v0": "environment 'Foo-v0' is unknown; did you mean",
    "CartPole-v9": "environment 'CartPole-v9' is unknown; did you mean CartPole-v1",
    "Taxi-v2": "environment 'Taxi-v2' is unknown: .*Please use `Taxi-v4`",
    "nowhere:Foo-v0": "environment 'nowhere:Foo-v0' is unknown: No module named 'nowhere'",
    "a b": "environment 'a b' is unknown: Malformed environment ID",
    ":CartPole-v1": "':CartPole-v1' is not an environment: module:Id is",
    "gymnasium:": "'gymnasium:' is not an environment: module:Id is",
}


@pytest.mark.parametrize("env", NO_IDS)
@pytest.mark.parametrize("command", [*COMMANDS, "check"])
def test_what_is_no_id_is_a_wrong_command(
    command: str, env: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as done:
        main([command, *map(str, COMMANDS.get(command, ())), "--", env])
    assert done.value.code == 2
    *warned, last = capfd.readouterr().err.splitlines()
    assert re.match(f"treadle: {NO_IDS[env]}", last)
    assert all("registration.py" in line or "deprecation" in line for line in warned)  # Gymnasium's, of Taxi


def test_the_constructors_own_errors_are_no_wrong_command(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import gymnasium\ndef make():\n    raise gymnasium.error.Error('my own')\n")
    done = treadle("eval", "mine.py:make", cwd=tmp_path)
    assert done.returncode == 1
    assert "could not be built: Error: my own (mine.py:3)" in one_line(done.stderr)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_constructor_that_lacks_an_argument_names_env_kwargs(command: str, tmp_path: Path) -> None:
    done = treadle(command, f"{ZOO}:NeedsLevel", *COMMANDS[command], "--env-kwargs", '{"size": 3}', cwd=tmp_path)
    assert done.returncode == 2
    told = one_line(done.stderr)
    assert "NeedsLevel needs the argument 'level': --env-kwargs '{\"level\": ...}'" in told


def test_what_it_does_not_take_is_told_as_well(tmp_path: Path) -> None:
    done = treadle("eval", f"{ZOO}:NeedsLevel", "--env-kwargs", '{"levl": 3}', cwd=tmp_path)
    told = one_line(done.stderr)
    assert "needs the arguments 'level' and 'size'" in told
    assert "unexpected keyword argument 'levl'" in told


def test_a_fault_in_its_body_is_not_taken_for_one_of_the_command(tmp_path: Path) -> None:
    done = treadle("eval", f"{ZOO}:needs_less", "--env-kwargs", '{"level": 3}', cwd=tmp_path)
    assert done.returncode == 1
    told = one_line(done.stderr)
    assert "missing 1 required positional argument: 'size' (envs.py:" in told
    assert "--env-kwargs" not in told


@pytest.mark.parametrize("fresh", [(), ("--fresh-env",)])
def test_an_environment_that_no_seed_reaches_is_told_so(fresh: tuple[str, ...], tmp_path: Path) -> None:
    done = treadle("collect", f"{ZOO}:Unseeded", "--episodes", 4, "--verify", 2, "--out", tmp_path / "o", *fresh)
    assert done.returncode == 0
    lines = done.stderr.splitlines()
    assert len(lines) == 2
    for line in lines:
        assert "the seed does not decide it. In reset(seed=...) the environment must seed all that it draws" in line
        assert "fresh-env" not in line
        assert "policy" not in line


def test_a_policy_of_one_observation_is_told_that_it_gets_batches(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def one(observation):\n    return int(observation[2] > 0)\n")
    told = one_line(treadle("eval", "CartPole-v1", "--policy", "mine.py:one", "--episodes", 2, cwd=tmp_path).stderr)
    assert "IndexError" in told
    assert "(mine.py:2); a policy gets a batch of observations" in told


def test_what_names_no_policy_is_told_what_would(tmp_path: Path) -> None:
    told = one_line(treadle("eval", "CartPole-v1", "--policy", "ppo", "--episodes", 2, cwd=tmp_path).stderr)
    assert "expected random, model.zip, module:attribute or file.py:attribute, got 'ppo'" in told


def test_a_complete_run_may_be_made_larger(tmp_path: Path) -> None:
    command = ("collect", "CartPole-v1", "--out", "out", "--quiet", "--episodes")
    assert treadle(*command, 2, cwd=tmp_path).returncode == 0
    told = one_line(treadle(*command, 3, cwd=tmp_path).stderr)
    assert "resume=True (--resume) asks for more, resume='replace' (--force) starts again" in told
    assert treadle(*command, 3, "--resume", cwd=tmp_path).returncode == 0


def test_an_observation_of_another_dtype_is_told_what_casts_it(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        """
from gymnasium.envs.classic_control import CartPoleEnv
class Wide(CartPoleEnv):
    def step(self, action):
        observation, *rest = super().step(action)
        return observation.astype(float), *rest
"""
    )
    told = one_line(treadle("eval", "mine.py:Wide", "--episodes", 2, cwd=tmp_path).stderr)
    assert "expected float32[4], got float64[4]" in told
    assert "gymnasium.wrappers.DtypeObservation can cast" in told


def test_an_observation_of_another_shape_is_not_told_to_be_cast(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        """
from gymnasium.envs.classic_control import CartPoleEnv
class Short(CartPoleEnv):
    def step(self, action):
        observation, *rest = super().step(action)
        return observation[:2], *rest
"""
    )
    told = one_line(treadle("eval", "mine.py:Short", "--episodes", 2, cwd=tmp_path).stderr)
    assert "expected float32[4], got float32[2]" in told
    assert "cast" not in told


def test_a_policy_that_predicts_otherwise_is_told_how_it_is_asked(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("class Model:\n    def predict(self, batch):\n        return [0] * len(batch)\n")
    told = one_line(treadle("eval", "CartPole-v1", "--policy", "mine.py:Model", "--episodes", 2, cwd=tmp_path).stderr)
    assert "predict(observations, deterministic=False)" in told
    assert "Model's takes no `deterministic`" in told


def test_a_module_of_torchs_is_told_what_makes_a_policy_of_it(tmp_path: Path) -> None:
    raises = "raise TypeError(\"linear(): argument 'input' (position 1) must be Tensor, not numpy.ndarray\")"
    (tmp_path / "mine.py").write_text(f"def net(observations):\n    {raises}\n")  # as torch words it
    told = one_line(treadle("eval", "CartPole-v1", "--policy", "mine.py:net", "--episodes", 2, cwd=tmp_path).stderr)
    assert "treadle.torch_policy(module)" in told


def test_ctrl_c_while_the_command_is_imported_is_told_in_a_line() -> None:
    script = """
import sys
class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == "treadle.cli.options":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupts())
import treadle.cli.main
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "treadle: interrupted\n")


def test_commands_are_listed_with_whole_sentences() -> None:
    listed = " ".join(treadle("--help").stdout.split())
    assert "..." not in listed.partition("Commands:")[2]
    assert "check Play an environment before a run, and list its faults." in listed
