"""What a person is told to do about an environment that cannot be built, or does not repeat."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import ZOO, one_line, treadle

COMMANDS = {
    "collect": ("--episodes", 2, "--out", "o"),
    "eval": ("--episodes", 2),
    "plan": (),
}


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
    assert "missing 1 required positional argument: 'size' (zoo.py:" in told
    assert "--env-kwargs" not in told


@pytest.mark.parametrize("fresh", [(), ("--fresh-env",)])
def test_an_environment_that_no_seed_reaches_is_told_so(fresh: tuple[str, ...], tmp_path: Path) -> None:
    done = treadle("collect", f"{ZOO}:Unseeded", "--episodes", 4, "--verify", 2, "--out", tmp_path / "o", *fresh)
    assert done.returncode == 0
    lines = done.stderr.splitlines()
    assert len(lines) == 2
    for line in lines:
        assert "the seed does not decide it. reset(seed=...) must seed all that the environment draws from" in line
        assert "fresh-env" not in line
        assert "policy" not in line
