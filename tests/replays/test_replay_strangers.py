"""Files that somebody else has written: nothing of them runs without --trust, and all that is refused is named."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import shutil
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import WrapperSpec

import treadle
from treadle.cli.main import main
from treadle.errors import UsageError
from treadle.record.shards import merge_shards
from treadle.repro import Repro
from typed_run import collected

sys.path.insert(0, str(Path(__file__).parent))

from drills import Corridor

TRAP = "trapped"  # a file in the current folder, which any code of a hostile file makes
EVIL = f"""
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

open({TRAP!r}, "w").close()
gymnasium.register("Evil-v0", entry_point="gymnasium.envs.classic_control:CartPoleEnv")


def make(*args, **kwargs):
    return CartPoleEnv()


def options(index):
    return None


class Policy:
    def get_action(self, observation):
        return 0, {{}}
"""
RUNS = {"name": "numpy.testing:runstring"}
ASTR = {"astr": f"open({TRAP!r}, 'w')", "dict": {}}
EPISODE = {"face": "episode", "title": "a trap", "seed": 1, "policy_seed": 1, "wrappers": 0, "max_steps": 3}
CARTPOLE = {"env": {"name": "CartPole-v1"}}
ACTIONS = {"action.0": np.zeros(3, np.int64)}


class Pickled:
    """Its pickle makes the trap."""

    def __reduce__(self) -> Any:
        return open, (TRAP, "w")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that came as an archive: the current one, and on the import path, as the command does it."""
    place = tmp_path / "archive"
    place.mkdir()
    (place / "evil.py").write_text(EVIL)
    (place / "pickled.npy").write_bytes(pickle.dumps(Pickled()))
    (place / "evil.xml").write_text("<mujoco/>")
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "path", [*sys.path, str(place)])
    yield place
    forget()
    gym.registry.pop("Evil-v0", None)


def forget() -> None:
    """Imported once more, it makes the trap once more."""
    for name in [name for name in sys.modules if name.startswith("evil") or "_evil_" in name]:
        del sys.modules[name]


@contextlib.contextmanager
def somebody_else() -> Iterator[None]:
    """Another user, who has a key, too."""
    before = os.environ["XDG_STATE_HOME"]
    os.environ["XDG_STATE_HOME"] = f"{before}/of-somebody-else"
    try:
        yield
    finally:
        os.environ["XDG_STATE_HOME"] = before


def hostile(about: dict[str, Any], arrays: dict[str, np.ndarray] | None = None) -> Path:
    """A file of somebody else's in the current folder."""
    repro = Repro({**EPISODE, **about}, arrays)
    for name, entry in about.items():
        if isinstance(entry, dict) and "object" in entry:
            repro.objects[name] = Pickled()
    with somebody_else():
        return repro.save(Path("trap.repro"))


def refused(source: Path, *words: str, **options: Any) -> str:
    """What is said when it is replayed, which runs nothing; by the command and from Python the same."""
    before = sys.path[:]
    with pytest.raises(UsageError) as told:
        treadle.replay(source, **options)
    said, errors = str(told.value), io.StringIO()
    with contextlib.redirect_stderr(errors), pytest.raises(SystemExit, match="2"):
        given = [f"--{name.replace('_', '-')}" for name, value in options.items() if value is True]
        main(["replay", str(source), *([str(options["episode"])] if "episode" in options else []), *given])
    assert errors.getvalue() == f"treadle: {said}\n"
    assert sys.path == before
    assert not Path(TRAP).exists()
    assert "evil" not in sys.modules
    for word in words:
        assert word in said
    return said


# what is in the file -> what the error has of it; each of these makes the trap when it is trusted
HOSTILE: dict[str, tuple[dict[str, Any], list[str]]] = {
    "a function that runs its argument": (
        {"env": RUNS, "kwargs": {"value": ASTR}},
        ['env "numpy.testing:runstring"', 'argument "astr" = "open(', 'argument "dict" = {}'],
    ),
    "the same, said as a value": (
        {"env": {"value": RUNS["name"]}, "kwargs": {"value": ASTR}},
        ['env "numpy.testing:runstring"'],
    ),
    "a pickle beside it": (
        {"env": {"name": "numpy:load"}, "kwargs": {"value": {"file": "pickled.npy", "allow_pickle": True}}},
        ['env "numpy:load"', 'argument "file" = "pickled.npy"'],
    ),
    "an item of planning that is none": (
        {"env": RUNS, "env_class": {"value": None}, "kwargs": {"value": ASTR}},
        ['env "numpy.testing:runstring"'],
    ),
    "a policy in a file": ({**CARTPOLE, "policy": {"name": "evil.py:Policy"}}, ['policy "evil.py:Policy"']),
    "a policy in a module": ({**CARTPOLE, "policy": {"value": "evil:Policy"}}, ['policy "evil:Policy"']),
    "a pickled policy": ({**CARTPOLE, "policy": {"object": "a policy"}}, ['policy "a pickle of a policy"']),
    "reset options": ({**CARTPOLE, "index": 0, "reset_options": {"name": "evil:options"}}, ['"evil:options"']),
    "module:Id": ({"env": {"name": "evil:Evil-v0"}}, ['env "evil:Evil-v0"']),
    "a file": ({"env": {"name": "evil.py:make"}}, ['env "evil.py:make"']),
    "a module": ({"env": {"name": "evil:make"}}, ['env "evil:make"']),
    "part of Python": (
        {"env": {"name": "os:system"}, "kwargs": {"value": {"command": f"touch {TRAP}"}}},
        ['env "os:system"', f'argument "command" = "touch {TRAP}"'],
    ),
    "part of Python by another's name": (
        {"env": {"name": "treadle.repro:os.system"}, "kwargs": {"value": {"command": f"touch {TRAP}"}}},
        ['env "treadle.repro:os.system"'],
    ),
    "a wrapper": ({**CARTPOLE, "wrappers": 1, "wrapper 0": {"name": "evil:make"}}, ['wrapper 0 "evil:make"']),
    "pickled arguments": ({**CARTPOLE, "kwargs": {"object": "a dict"}}, ['arguments "a pickle of a dict"']),
    "a pickled environment": ({"env": {"object": "a function"}}, ['env "a pickle of a function"']),
    "pickled options of resets": (
        {**CARTPOLE, "options": {"object": "a dict"}},
        ['reset options "a pickle of a dict"'],
    ),
    "a sampler of tasks": (
        {"face": "slot", "autoreset": "Disabled", "resample": False, "make": {"name": "evil:make"}},
        ['make "evil:make"'],
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_file_of_somebody_elses_runs_nothing(case: str, folder: Path) -> None:
    about, words = HOSTILE[case]
    path = hostile(about)
    said = refused(path, *words)
    assert said.startswith("trap.repro may be another user's (its signature is not this user's")
    assert ". treadle replay trap.repro --trust (trust=True) runs all of it as you" in said
    assert ("; --env ENV (env=) names an environment by hand" in said) == any(each[:4] == "env " for each in words)
    with contextlib.suppress(Exception):
        treadle.replay(path, trust=True)
    assert Path(TRAP).exists(), "or the trap is none"


@pytest.mark.parametrize(
    ("about", "word"),
    [
        (
            {"env": {"name": "HalfCheetah-v5"}, "kwargs": {"value": {"xml_file": "./evil.xml"}}},
            '"xml_file" = "./evil.xml"',
        ),
        ({"env": {"name": "GymV26Environment-v0"}, "kwargs": {"value": {"env_id": "evil:Evil-v0"}}}, "env_id"),
        ({"env": {"name": "GymV21Environment-v0"}}, "builds another environment"),
        ({**CARTPOLE, "kwargs": {"value": {"additional_wrappers": [{"entry_point": "evil:make"}]}}}, "evil:make"),
        ({**CARTPOLE, "kwargs": {"value": {"entry_point": "evil:make"}}}, '"entry_point" = "evil:make"'),
        ({**CARTPOLE, "kwargs": {"value": {"render_mode": "../../evil"}}}, '"render_mode" = "../../evil"'),
        ({**CARTPOLE, "kwargs": {"value": {"render_mode": ["human"]}}}, '"render_mode" = ["human"]'),
        ({**CARTPOLE, "kwargs": {"name": "evil:make"}}, 'arguments "evil:make"'),
        ({**CARTPOLE, "kwargs": {"value": ["evil"]}}, 'arguments ["evil"]'),
        ({**CARTPOLE, "options": {"value": {"file": "evil.npy"}}}, 'reset option "file" = "evil.npy"'),
        ({**CARTPOLE, "face": "slot", "options": {"value": [[{"a": "evil"}, False]]}}, 'reset option "a" = "evil"'),
        ({**CARTPOLE, "face": "slot", "options": {"object": "a list"}}, 'reset options "a pickle of a list"'),
        ({**CARTPOLE, "mailed": {"value": {"0": {"0": "evil"}}}}, "mailed"),
        ({**CARTPOLE, "wrappers": 10**9}, "wrappers 1000000000"),
        ({"env": {"value": {"id": "Evil-v0", "entry_point": "evil:make"}}}, "evil:make"),
        ({"env": RUNS, "make": {"value": None}}, "runstring"),
        ({"env": {"name": "Evil-v0"}}, "environment 'Evil-v0' is unknown"),
        ({"env": {"name": "evil.py"}}, "environment 'evil.py' is unknown"),
        ({"env": {"name": "\x1b]0;evil\x07-v0"}}, "names code"),
        ({"env": {"name": ""}}, "names code"),
        ({**CARTPOLE, "wrappers": 0, "wrapper 0": {"name": ""}}, 'wrapper 0 ""'),
        ({**CARTPOLE, "reset_options": {"name": ""}}, 'reset_options ""'),
        ({"env": {"name": "CartPole-v1", "value": "evil:make"}}, "names code"),
        ({}, "env null"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_what_is_not_known_to_be_harmless_is_refused(about: dict[str, Any], word: str) -> None:
    said = refused(hostile({"autoreset": "Disabled", **about}, ACTIONS), word)
    assert said.isprintable()


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("name", ["env", "kwargs", "policy", "options", "make", "reset_options"])
@pytest.mark.parametrize("said", ["evil:make", ["evil:make", "value"], 3])
def test_what_is_no_entry_is_refused(name: str, said: Any) -> None:
    refused(hostile({**CARTPOLE, "policy": {"value": None}, name: said}), f"{name} is not as it should be")


@pytest.mark.usefixtures("folder")
def test_all_that_is_refused_is_named_at_once() -> None:
    about = {"env": RUNS, "kwargs": {"value": {**ASTR, "size": 3}}, "wrappers": 1}
    about |= {"wrapper 0": {"name": "evil:make"}, "reset_options": {"name": "evil:options"}}
    words = ["runstring", '"astr"', '"dict"', "wrapper 0", "evil:options", '"evil:Policy"']
    said = refused(hostile({**about, "policy": {"name": "evil:Policy"}}), *words)
    assert '"size"' not in said
    text = np.array(["evil"] * 3)
    refused(hostile({**about, "policy": {"name": "evil:Policy"}}, {"action.0": text}), 'action.0 of "<U4"', *words[:-1])


@pytest.mark.usefixtures("folder")
def test_what_is_harmless_is_replayed_from_any_file() -> None:
    plain = {"value": {"render_mode": "rgb_array", "sutton_barto_reward": True}}
    path = hostile({**CARTPOLE, "kwargs": plain, "policy": {"name": "evil:Policy"}}, ACTIONS)
    seen: list[str] = []
    result = treadle.replay(path, tick=lambda *_: seen.extend(sys.path))
    assert (result.steps, result.error, result.total_reward) == (3, None, 0.0)
    assert seen
    assert not {os.getcwd(), "", "."} & set(seen), "while it is played nothing comes from here"
    assert os.getcwd() in sys.path
    refused(path, 'policy "evil:Policy"', policy=True)
    assert treadle.replay(hostile({**CARTPOLE, "policy": {"value": None}})).steps == 3
    assert treadle.replay(
        hostile({**EPISODE, **CARTPOLE, "kwargs": {"value": {}}, "options": {"value": {"low": -0.01}}})
    )
    assert treadle.replay(hostile({"env": RUNS, "kwargs": {"value": None}}, ACTIONS), env="CartPole-v1").steps == 3
    assert treadle.replay(path, env=lambda **_: gym.make("CartPole-v1")).steps == 3
    assert not Path(TRAP).exists()
    assert treadle.replay(path, env="evil.py:make").steps == 3, "what is named by hand is run"
    assert Path(TRAP).exists()


def test_an_id_is_of_an_installed_package_by_its_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cart = "gymnasium.envs.classic_control:CartPoleEnv"
    wrapped = (WrapperSpec("Evil", "evil:make", None),)
    for name, about in {
        "Here-v0": {"entry_point": "evil:make"},
        "Mine-v0": {"entry_point": Corridor},
        "Lambda-v0": {"entry_point": lambda: Corridor()},
        "Wrapped-v0": {"entry_point": cart, "additional_wrappers": wrapped},
        "Missing-v0": {"entry_point": "nowhere.to.be.found:make"},
        "Builtin-v0": {"entry_point": "os:system"},
        "Cart-v0": {"entry_point": cart},
    }.items():
        monkeypatch.setitem(gym.registry, name, gym.envs.registration.EnvSpec(name, **about))
        if name != "Cart-v0":
            refused(hostile({"env": {"name": name}}, ACTIONS), "is in no installed package", f'env "{name}"')
    assert treadle.replay(hostile({"env": {"name": "Cart-v0"}}, ACTIONS)).steps == 3
    # one that is called like an installed package, but lies here
    (folder / "gymnasium_like").mkdir()
    (folder / "gymnasium_like" / "__init__.py").write_text(EVIL)
    spec = gym.envs.registration.EnvSpec("Like-v0", entry_point="gymnasium_like:make")
    monkeypatch.setitem(gym.registry, "Like-v0", spec)
    monkeypatch.syspath_prepend(str(folder.parent))
    refused(hostile({"env": {"name": "Like-v0"}}, ACTIONS), "is in no installed package")


def test_a_child_process_takes_nothing_from_the_folder(folder: Path) -> None:
    for name in ("tempfile", "subprocess", "signal", "struct", "pdb", "treadle", "numpy"):
        (folder / f"{name}.py").write_text(EVIL)
    died = {"kind": "died", "phase": "step", "step": 3, "reason": "it died", "signal": "SIGSEGV"}
    result = treadle.replay(hostile({**CARTPOLE, "failed": died}, ACTIONS))
    assert (result.steps, result.failed) == (3, "")
    assert not Path(TRAP).exists()


@pytest.mark.parametrize("trusted", [False, True])
def test_a_debugger_reads_its_commands_of_no_folder_of_somebody_elses(
    trusted: bool, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / ".pdbrc").write_text(f"open({TRAP!r}, 'w')\n")
    repro = Repro({**EPISODE, **CARTPOLE}, {"action.0": np.full(3, 7)})  # which is no action
    path = repro.save("own.repro") if trusted else hostile({**CARTPOLE}, {"action.0": np.full(3, 7)})
    monkeypatch.setattr("sys.stdin", io.StringIO("q\n"))
    assert "AssertionError" in treadle.replay(path, pdb=True).failed
    assert "(Pdb)" in capsys.readouterr().out
    assert Path(TRAP).exists() == trusted


def test_a_title_does_not_speak_to_the_terminal(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = hostile({**CARTPOLE, "title": "\x1b]52;c;ZXZpbA==\x07"}, ACTIONS)
    with pytest.raises(SystemExit, match="0"):
        main(["replay", str(path)])
    shown = capsys.readouterr().out
    assert "3 steps to its end" in shown
    assert shown.strip().isprintable()


ESCAPES = "\x1b[2J\x1b]0;evil\x07\u202e\udc80"


@pytest.mark.parametrize(
    "about",
    [
        {"unkept": ESCAPES},
        {"policy": {"object": ESCAPES}},
        {"title": ESCAPES, "failed": {"kind": "raised", "step": 9, "reason": ESCAPES, "phase": "step"}},
        {"face": ESCAPES},
    ],
)
def test_no_text_of_a_file_speaks_to_the_terminal(
    about: dict[str, Any], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = hostile({**CARTPOLE, **about}, {} if "policy" in about else ACTIONS)
    for more in ([], ["--trust"], ["--debug"]):
        with pytest.raises(SystemExit):
            main(["replay", str(path), *more])
        shown = "".join(capsys.readouterr())
        assert shown
        assert shown.replace("\n", "").isprintable(), shown


def test_nor_does_a_text_of_a_directory(
    of_somebody_else: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    out = of_somebody_else(env=ESCAPES, policy=ESCAPES)
    for command in (["dataset", "info"], ["dataset", "verify"], ["replay"], ["dataset", "merge", "--out", "merged"]):
        with pytest.raises(SystemExit):
            main([*command, str(out)])
        shown = "".join(capsys.readouterr())
        assert shown
        assert shown.replace("\n", "").isprintable(), shown


# --- own files --------------------------------------------------------------------------------------------------------


def test_what_this_user_has_written_is_followed_and_its_pickles_are_not_opened(folder: Path) -> None:
    about = {**EPISODE, "env": {"name": "evil.py:make"}}
    path = Repro(about, ACTIONS).save("own.repro")
    assert treadle.replay(path).steps == 3
    assert Path(TRAP).exists()
    assert treadle.replay(Repro.load(path).save("again.repro")).steps == 3, "of one of this user's own: another"
    with somebody_else():
        assert "may be another user's" in refused_with_the_trap(path)
    repro = Repro({**about, "env": {"object": "a function"}}, ACTIONS)
    repro.objects["env"] = Pickled()
    with pytest.raises(UsageError, match="--trust"):
        treadle.replay(repro.save("pickled.repro"))
    assert not Path(TRAP).exists()


def refused_with_the_trap(path: Path) -> str:
    Path(TRAP).unlink(missing_ok=True)
    forget()
    with pytest.raises(UsageError) as told:
        treadle.replay(path)
    assert not Path(TRAP).exists()
    return str(told.value)


def test_no_part_of_an_own_file_can_be_changed(folder: Path) -> None:
    whole = Repro({**EPISODE, "env": {"name": "evil.py:make"}}, ACTIONS).save("own.repro")
    other = Repro({**EPISODE, **CARTPOLE}, ACTIONS).save("other.repro")
    members = {name: zipfile.ZipFile(whole).read(name) for name in zipfile.ZipFile(whole).namelist()}
    theirs = {name: zipfile.ZipFile(other).read(name) for name in zipfile.ZipFile(other).namelist()}
    assert sorted(members) == ["action.0.npy", "repro.json", "signature"]
    rewards = io.BytesIO()
    np.save(rewards, np.zeros(3))

    def written(changed: dict[str, bytes]) -> str:
        with zipfile.ZipFile("changed.repro", "w") as archive:
            for name, data in changed.items():
                archive.writestr(name, data)
        return refused_with_the_trap(Path("changed.repro"))

    unlike = "its signature is not this user's"
    assert unlike in written({**members, "action.0.npy": rewards.getvalue()})
    assert unlike in written({**members, "rewards.npy": rewards.getvalue()})
    assert unlike in written({**members, "env.pickle": pickle.dumps(Pickled())})
    assert unlike in written({name: data for name, data in members.items() if name != "action.0.npy"})
    assert unlike in written({**members, "repro.json": members["repro.json"].replace(b'"seed": 1', b'"seed": 2')})
    assert unlike in written({**members, "signature": theirs["signature"]})
    assert unlike in written({**theirs, "repro.json": members["repro.json"]})
    assert "carries no signature" in written({name: members[name] for name in ("repro.json", "action.0.npy")})
    assert "carries no signature" in written({**members, "signature": b""})
    shutil.copy(whole, "copied.repro")
    assert treadle.replay("copied.repro").steps == 3, "its own signature goes with it"


def test_one_of_this_users_own_files_leads_to_nobody_elses_code(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "evil.py").write_text(EVIL.replace(f'open({TRAP!r}, "w").close()', ""))
    monkeypatch.chdir(mine)
    collected("evil.py:make", out="run", episodes=1, workers=1, max_episode_steps=3)
    path = Repro({**EPISODE, "env": {"name": "evil:make"}}, ACTIONS).save("own.repro")
    assert treadle.replay("run", 0).as_recorded
    shutil.copytree(mine / "run", folder / "run")
    shutil.copy(path, folder)
    monkeypatch.chdir(folder)
    refused(Path("run"), 'env "', "evil.py:make", "in this folder", episode=0)
    refused(Path("own.repro"), 'env "evil:make"', "in this folder")


# --- directories of runs ----------------------------------------------------------------------------------------------


def run_in(out: Path, **options: Any) -> Path:
    given = {"episodes": 2, "workers": 1, "max_episode_steps": 5, **options}
    collected(given.pop("env", "CartPole-v1"), out=out, **given)
    return out


@pytest.fixture
def of_somebody_else(folder: Path) -> Callable[..., Path]:
    """A function that makes a run of somebody else's, some arguments of which were changed."""

    def made(**changes: Any) -> Path:
        with somebody_else():
            out = run_in(folder / "run")
            path = out / "run.json"
            content = json.loads(path.read_text())
            content["arguments"] |= changes
            content.pop("digest")
            path.write_text(json.dumps(content))
        return Path("run")

    return made


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"env": RUNS["name"], "env_kwargs": ASTR}, ['env "numpy.testing:runstring"', '"astr"']),
        ({"env": "numpy:load", "env_kwargs": {"file": "pickled.npy", "allow_pickle": True}}, ['env "numpy:load"']),
        ({"env": "evil.py:make"}, ["evil.py:make"]),
        ({"env": "evil:Evil-v0"}, ["evil:Evil-v0"]),
        ({"wrappers": ["evil:make"]}, ['wrapper 0 "evil:make"']),
        ({"reset_options": "evil:options"}, ['reset_options "evil:options"']),
        ({"policy": "evil:Policy"}, ['policy "evil:Policy"']),
        ({"policy": "model.zip"}, ["model.zip"]),
    ],
)
def test_a_directory_of_somebody_elses_runs_nothing(
    changes: dict[str, Any], words: list[str], of_somebody_else: Callable[..., Path]
) -> None:
    out = of_somebody_else(**changes)
    if "policy" in changes:
        assert treadle.replay(out, 1).as_recorded, "its actions are there"
        (out / "summary.json").unlink()
    said = refused(out, *words, episode=1)
    assert "treadle replay run 1 --trust (trust=True)" in said
    if changes.get("policy") != "model.zip":
        with contextlib.suppress(Exception):
            treadle.replay(out, 1, trust=True)
        assert Path(TRAP).exists(), "or the trap is none"


def test_the_signature_of_another_run_does_not_help(folder: Path) -> None:
    own = json.loads((run_in(folder / "own") / "run.json").read_text())
    out = run_in(folder / "run")
    assert treadle.replay(out, 1).as_recorded
    content = json.loads((out / "run.json").read_text())
    assert content["signature"] == own["signature"], "the same arguments: those of every machine differ in that line"
    content["arguments"]["env"] = "evil.py:make"
    content.pop("digest")
    for signature in (own["signature"], None, "", 7, [own["signature"]]):
        (out / "run.json").write_text(json.dumps({**content, "signature": signature}))
        refused(out, "evil.py:make", episode=1)


def test_a_file_in_a_trusted_directory_is_trusted_by_its_own_signature(folder: Path) -> None:
    out = run_in(folder / "run")
    (out / "failures").mkdir()
    hostile({"env": {"name": "evil.py:make"}}).rename(out / "failures" / "episode-1.repro")
    refused(Path("run"), "evil.py:make", "run/failures/episode-1.repro")
    refused(Path("run"), "evil.py:make", episode=1)
    assert treadle.replay(out, 0).as_recorded


def test_links_and_pipes_are_no_way_in(folder: Path, tmp_path: Path) -> None:
    out = run_in(folder / "run")
    (out / "run.json").rename(tmp_path / "run.json")
    (out / "run.json").symlink_to(tmp_path / "run.json")
    assert treadle.replay(out, 1).as_recorded, "it is this user's content"
    (folder / "link").symlink_to(folder)
    hostile({"env": {"name": "evil:make"}})
    refused(Path("link/trap.repro"), "evil:make")
    for name in ("run.json", "failures/episode-0.repro"):
        (out / name).parent.mkdir(exist_ok=True)
        (out / name).unlink(missing_ok=True)
        os.mkfifo(out / name)
    with pytest.raises(UsageError, match=r"not a run's directory \(.*run.json is not a regular file"):
        treadle.replay(out, 1)
    with pytest.raises(UsageError, match=r"is not a \.repro file .*is not a regular file"):
        treadle.replay(out, 0)


ILL = {
    "no JSON": "{",
    "no text": b"\xff\xfe\x00",
    "a list": "[]",
    "a number": "3",
    "nothing": "",
    "deep": "[" * 100_000,
    "deep and whole": "[" * 50_000 + "]" * 50_000,
    "deep within": '{"arguments": {"env": ' + '{"a":' * 600 + "1" + "}" * 600 + "}}",
    "a number of many digits": '{"arguments": ' + "9" * 10_000 + "}",
    "no arguments": '{"arguments": {}}',
    "arguments of another kind": '{"arguments": {"env": [], "wrappers": 5, "episodes": null}}',
}


@pytest.mark.parametrize("case", ILL)
def test_what_is_ill_formed_is_said_to_be(case: str, folder: Path) -> None:
    content = ILL[case] if isinstance(ILL[case], bytes) else ILL[case].encode()  # type: ignore[union-attr]
    out = run_in(folder / "run")
    (out / "run.json").write_bytes(content)
    with pytest.raises(UsageError, match="not a run's directory"):
        treadle.replay(out, 1)
    with zipfile.ZipFile("ill.repro", "w") as archive:
        archive.writestr("repro.json", content)
    with pytest.raises(UsageError, match=r"is not a \.repro file"):
        treadle.replay("ill.repro")


@pytest.mark.parametrize(
    "about",
    [
        {"title": 3},
        {"failed": "text"},
        {"face": "slot", **CARTPOLE},
        {"face": "nothing", **CARTPOLE},
        {"seed": "evil", **CARTPOLE},
        {"max_steps": "evil", **CARTPOLE},
        {"plays": 5, **CARTPOLE},
        {"generator": {"evil": 1}, **CARTPOLE},
        {"env": "CartPole-v1"},
        {"failed": {"kind": "died", "limit": "evil"}, **CARTPOLE},
    ],
)
@pytest.mark.usefixtures("folder")
def test_a_file_that_says_what_none_says_is_refused_in_a_sentence(about: dict[str, Any]) -> None:
    with zipfile.ZipFile("ill.repro", "w") as archive:
        archive.writestr("repro.json", json.dumps({"treadle_repro": 1, **EPISODE, **about}))
    with contextlib.suppress(UsageError):  # and no other error; or the environment raises, which is shown
        treadle.replay("ill.repro")
    assert not Path(TRAP).exists()


def test_json_that_would_fill_the_memory_is_not_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = run_in(folder / "run")
    with open(out / "run.json", "r+b") as file:
        file.truncate(1 << 40)  # of which nothing is on the disk
    with pytest.raises(UsageError, match=r"not a run's directory \(.*run.json is not a regular file, or is too large"):
        treadle.replay(out, 1)
    with zipfile.ZipFile("bomb.repro", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("repro.json", b" " * ((64 << 20) + 1))
    with pytest.raises(UsageError, match=r"its repro\.json is too large"):
        treadle.replay("bomb.repro")


def test_where_no_key_can_be_had_a_run_is_made_and_its_replay_wants_trust(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "file" / "state"))
    out = run_in(folder / "run", env=f"{Path(__file__).parent / 'drills.py'}:Corridor", env_kwargs={"fault": "none"})
    assert "signature" not in json.loads((out / "run.json").read_text())
    refused(out, "files cannot be recognised without a key", "Not a directory", "drills.py:Corridor", episode=1)
    assert treadle.replay(out, 1, trust=True).as_recorded
    assert treadle.replay(run_in(folder / "plain"), 1).as_recorded
    with pytest.raises(treadle.CollectionFailed) as failed:
        run_in(folder / "fails", env="drills:Corridor", episodes=4, max_episode_steps=None)
    assert treadle.replay(failed.value).as_recorded, "what is in memory needs no key"
    refused(folder / "fails", "cannot be recognised without a key")


def test_a_run_that_goes_on_is_signed_again_and_one_of_somebody_elses_is_not(folder: Path) -> None:
    name = f"{Path(__file__).parent / 'drills.py'}:Corridor"
    options = {"env": name, "env_kwargs": {"fault": "none"}}
    out = run_in(folder / "own", **options)
    first = json.loads((out / "run.json").read_text())
    run_in(out, **options, episodes=3, resume=True)
    assert json.loads((out / "run.json").read_text())["signature"] != first["signature"]
    assert treadle.replay(out, 2).as_recorded
    with somebody_else():
        theirs = run_in(folder / "theirs", **options)
    before = (theirs / "run.json").read_text()
    run_in(theirs, **options, resume=True)
    assert (theirs / "run.json").read_text() == before
    refused(theirs, "drills.py:Corridor", episode=1)
    run_in(theirs, **options, episodes=3, resume=True)
    assert treadle.replay(theirs, 2).as_recorded, "its arguments were this user's command"


@pytest.mark.parametrize("strange", [[], [0], [0, 1]])
def test_shards_of_somebody_elses_are_merged_and_not_signed(strange: list[int], folder: Path) -> None:
    name = f"{Path(__file__).parent / 'drills.py'}:Corridor"
    for i in range(2):
        with somebody_else() if i in strange else contextlib.nullcontext():
            run_in(folder / str(i), env=name, env_kwargs={"fault": "none"}, shard=f"{i}/2")
    merge_shards([folder / "0", folder / "1"], folder / "whole")
    if strange:
        refused(folder / "whole", "drills.py:Corridor", "carries no signature", episode=1)
    assert treadle.replay(folder / "whole", 1, trust=bool(strange)).as_recorded
