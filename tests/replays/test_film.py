"""Films of episodes, made afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import struct
import sys
import zlib
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import treadle
from conftest import require
from treadle.cli.main import main
from treadle.errors import UsageError
from treadle.program import offscreen
from treadle.replays import film as film_module
from typed_run import collected

sys.path.insert(0, str(Path(__file__).parent))

from drills import BAD_EPISODE, BAD_STEP, LENGTH

DRILLS = Path(__file__).parent / "drills.py"
ENV = f"{DRILLS}:Corridor"
RED = [185, 28, 28]


@pytest.fixture(autouse=True)
def without_ffmpeg(monkeypatch: pytest.MonkeyPatch) -> None:
    """Animated PNGs, whose pictures are exact; and MuJoCo is not asked, as these environments do not draw by it."""
    monkeypatch.setattr(film_module, "find_spec", lambda name: None)
    monkeypatch.setattr(offscreen, "find_spec", lambda name: None)


def run_of(out: Path, fault: str = "none", **options: Any) -> Path:
    given = {"env": ENV, "episodes": 4, "workers": 1, "env_kwargs": {"fault": fault}, **options}
    with contextlib.suppress(treadle.CollectionFailed):
        collected(given.pop("env"), out=out, worker_options=treadle.WorkerOptions(worker_output="keep"), **given)
    return out


def pictures(path: Path) -> list[np.ndarray]:
    data, found, at = path.read_bytes(), [], 8
    width, height = struct.unpack_from(">II", data, 16)
    while at < len(data):
        size, kind = struct.unpack_from(">I4s", data, at)
        body = data[at + 8 : at + 8 + size]
        if kind in (b"IDAT", b"fdAT"):
            rows = np.frombuffer(zlib.decompress(body[4 * (kind == b"fdAT") :]), np.uint8).reshape(height, -1)
            found.append(rows[:, 1:].reshape(height, width, 3))
        if kind == b"fcTL":
            delay = struct.unpack_from(">HH", body, 20)
        at += 12 + size
    assert delay == (100, 1000), "as render_fps=10 says"
    return found


def red(picture: np.ndarray) -> bool:
    return picture[0, 0].tolist() == RED


def test_a_film_has_a_picture_of_the_reset_and_of_each_step(tmp_path: Path) -> None:
    require("PIL")
    out = run_of(tmp_path / "o")
    (film,) = treadle.film(out, episodes=[1], out=tmp_path / "f")
    total = film.replay.total_reward
    assert film.path == tmp_path / "f" / f"episode-0001_return-{total:.1f}_terminated.png"
    assert film.replay.as_recorded
    assert film.replay.compared == ["rewards", "ends", "observations"]
    seen = pictures(film.path)
    assert len(seen) == LENGTH + 1
    assert seen[0].shape == (16 * 20 + 28, 16 * 20, 3), "enlarged, with a line under it"
    columns = [int(np.flatnonzero(picture[0, ::20, 0])[0]) for picture in seen]
    assert columns == [t % 16 for t in range(LENGTH + 1)], "what is rendered, in its order; no title, none is held"
    assert (seen[5][-28:] != seen[6][-28:]).any(), "step, reward and return are in the line"
    assert not any(map(red, seen))
    (plain,) = treadle.film(out, episodes=[1], out=tmp_path / "p", plain=True)
    assert [picture.tobytes() for picture in pictures(plain.path)] == [each[:-28].tobytes() for each in seen]
    assert [path.name for path in (tmp_path / "p").iterdir()] == [film.path.name], "nothing else is left"


def test_the_best_the_worst_and_those_that_failed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    require("PIL")
    out = run_of(tmp_path / "o", "divide", on_error="skip")
    with pytest.raises(SystemExit) as ended:
        main(["replay", str(out), "--best", "1", "--worst", "1", "--failed", "3", "--json"])
    told = json.loads(capfd.readouterr().out)
    assert ended.value.code == 0
    names = [Path(each["film"]).name for each in told]
    assert [path.name for path in sorted((out / "films").iterdir())] == sorted(names)
    failed = next(each for each in told if each["failed"])
    assert "division by zero" in failed["failed"]
    assert Path(failed["film"]).name.startswith(f"episode-{BAD_EPISODE:04}_return-")
    assert failed["film"].endswith("_error.png")
    assert len(pictures(Path(failed["film"]))) == BAD_STEP, "the reset, and all steps before the one that raised"
    returns = {row.index: row.total_reward for row in film_module.by_index(out).values() if row.end != "error"}
    ends = {f"episode-{pick(returns, key=returns.get):04}_return-" for pick in (min, max)}
    assert {name[:20] for name in names if "error" not in name} == ends
    (again,) = treadle.film(out / "failures" / f"episode-{BAD_EPISODE}.repro", out=tmp_path / "f")
    assert again.path.name == Path(failed["film"]).name
    assert again.path.read_bytes() == Path(failed["film"]).read_bytes()


def test_a_film_of_what_differs_is_marked_from_there_on(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    require("PIL")
    out = run_of(tmp_path / "o", "drift")
    with pytest.raises(SystemExit) as ended:
        main(["replay", str(out), "--episodes", f"1,{BAD_EPISODE}", "--render", str(tmp_path / "f"), "--plain"])
    assert ended.value.code == 1
    said = capfd.readouterr().out.splitlines()
    assert said[0].endswith("as recorded")
    assert f"it first differs from what was recorded in step {BAD_STEP}, reward" in said[2]
    kept, differs = (pictures(path) for path in sorted((tmp_path / "f").iterdir()))
    assert not any(map(red, kept))
    assert [red(picture) for picture in differs] == [False] * BAD_STEP + [True] * (LENGTH + 1 - BAD_STEP)


def test_what_ends_its_process_is_filmed_up_to_there(tmp_path: Path) -> None:
    require("PIL")
    out = run_of(tmp_path / "o", "segfault")
    (film,) = treadle.film(out, failed=1)
    assert film.path.name.endswith("_error.png")
    assert len(pictures(film.path)) == BAD_STEP
    assert film.replay.stopped


@pytest.mark.slow
def test_episodes_that_a_limit_has_cut_are_as_recorded(tmp_path: Path) -> None:
    require("PIL")
    out = run_of(tmp_path / "o", env="CartPole-v1", episodes=20, max_episode_steps=14, env_kwargs=None)
    films = treadle.film(out, episodes=range(20))
    assert all(film.replay.as_recorded and film.replay.compared for film in films)
    assert sum(film.path.name.endswith("_truncated.png") for film in films) > 5
    for number, film in enumerate(films):
        assert not treadle.replay(out, number).difference
        assert film.replay.steps <= 14


def test_what_cannot_be_filmed_is_told_in_a_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    require("PIL")
    out = run_of(tmp_path / "o")
    with pytest.raises(UsageError, match="nothing to film: 4 episodes, of which 0 are known to have failed"):
        treadle.film(out, failed=2)
    with pytest.raises(UsageError, match="has the episodes 0 to 3, not 4"):
        treadle.film(out, episodes=[4])
    with pytest.raises(UsageError, match="name the environment"):
        treadle.film(out, best=1, env=lambda: None)
    with pytest.raises(UsageError, match="nothing to film: 0 episodes"):
        treadle.film(DRILLS, best=1)
    assert not (out / "films").exists()
    for words, told in (
        (["--best", "1", "--pdb"], "--pdb is of one replay in this process"),
        (["--best", "1", "--render", "a.mp4"], "--render is a folder where episodes are chosen, got a.mp4"),
        (["--episodes", "1,x"], "--episodes takes numbers of episodes such as 4,17, got '1,x'"),
    ):
        with pytest.raises(SystemExit, match="2"):
            main(["replay", str(out), *words])
        assert told in capfd.readouterr().err


def test_of_a_strangers_directory_nothing_is_imported_without_trust(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    require("PIL")
    out = run_of(tmp_path / "o")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "of-somebody-else"))
    monkeypatch.setattr(film_module, "in_child", lambda *given, **options: pytest.fail("it is played"))
    with pytest.raises(UsageError, match=r"may be another user's .* names code to be imported"):
        treadle.film(out, best=1)
    with pytest.raises(SystemExit, match="2"):
        main(["replay", str(out), "--best", "1"])
    assert "--trust" in capfd.readouterr().err
    monkeypatch.undo()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "of-somebody-else"))
    (film,) = treadle.film(out, best=1, trust=True)
    assert film.replay.as_recorded


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("Ansi", "Ansi has the modes 'ansi', 'human'"),
        ("Blind", "takes render_mode='rgb_array'; Blind has no render modes"),
        ("Bare", r"takes render_mode='rgb_array'; Bare has no render modes \(Bare\(\) takes no arguments\)"),
        ("Torn", r"render\(\) raised OSError: no lamp; Torn has the modes 'rgb_array'"),
    ],
)
def test_an_environment_without_pictures_is_told_with_its_modes(name: str, told: str, tmp_path: Path) -> None:
    out = run_of(
        tmp_path / "o", env=f"{__file__}:{name}", episodes=1, env_kwargs=None if name == "Bare" else {"fault": "none"}
    )
    for act in (lambda: treadle.film(out, best=1), lambda: treadle.replay(out, 0, render=tmp_path / "a.png")):
        with pytest.raises(UsageError, match=told) as refused:
            act()
        assert "\n" not in str(refused.value)
    assert not (tmp_path / "a.png").exists()
    assert [*(out / "films").iterdir()] == []


from drills import Corridor  # noqa: E402


class Ansi(Corridor):
    metadata = {"render_modes": ["ansi", "human"]}  # noqa: RUF012

    def render(self) -> Any:
        return "a corridor"


class Blind(Corridor):
    metadata = {"render_modes": []}  # noqa: RUF012

    def __init__(self, fault: str) -> None:
        super().__init__(fault)


class Bare(gym.Env[int, int]):
    """Without a constructor of its own, as a first environment often is."""

    observation_space = action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        return 0, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        return 0, 0.0, True, False, {}


class Exits(Corridor):
    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def render(self) -> Any:
        os._exit(3)


def test_an_environment_that_exits_as_it_draws_has_a_verdict(tmp_path: Path) -> None:
    out = run_of(tmp_path / "o", env=f"{__file__}:Exits", episodes=1)
    (film,) = treadle.film(out, best=1)
    assert film.path is None
    assert str(film.replay) == "the reset: the process exited with code 3; no failure was recorded"


class Torn(Corridor):
    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def render(self) -> Any:
        raise OSError("no lamp")


# --- MuJoCo ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "draw", "found"),
    [
        (None, {"egl", "osmesa"}, "egl"),
        ("osmesa", {"egl", "osmesa"}, "osmesa"),
        ("glfw", {"osmesa"}, "osmesa"),
        (None, set(), "off"),
    ],
)
def test_the_first_that_draws_is_taken(
    own: str | None, draw: set[str], found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MUJOCO_GL", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    if own:
        monkeypatch.setenv("MUJOCO_GL", own)
    monkeypatch.setattr(offscreen, "_draws", lambda name: name in draw)
    monkeypatch.setattr(offscreen, "find_spec", lambda name: True)
    assert offscreen.gl() == found


@pytest.mark.heavy
def test_mujoco_draws_without_a_display(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require("mujoco")
    monkeypatch.undo()  # whether there is MuJoCo is asked again
    for name in ("MUJOCO_GL", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    if offscreen.gl() == "off":
        pytest.skip("neither EGL nor OSMesa draws here: libegl1 and libosmesa6 are missing")
    out = run_of(
        tmp_path / "o", env="HalfCheetah-v5", episodes=1, max_episode_steps=5, env_kwargs={"width": 64, "height": 48}
    )
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (film,) = treadle.film(out, best=1)
    assert film.path.name.endswith("_truncated.mp4")
    assert film.replay.as_recorded
    treadle.replay(out, 0, render="here.mp4")
    assert [path.name for path in Path.cwd().iterdir()] == ["here.mp4"], "no log of MuJoCo's"
    assert "MUJOCO_GL" not in os.environ
    monkeypatch.setattr(offscreen, "gl", lambda: offscreen.NONE)
    with pytest.raises(UsageError, match="apt-get install libegl1 libosmesa6"):
        treadle.film(out, best=1)
    with pytest.raises(UsageError, match="apt-get install libegl1 libosmesa6"):
        treadle.replay(out, 0, render="none.mp4")
    assert [path.name for path in Path.cwd().iterdir()] == ["here.mp4"]


def test_a_film_without_pillow_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = run_of(tmp_path / "run", episodes=1)
    missing = tmp_path / "missing" / "PIL"
    missing.mkdir(parents=True)
    (missing / "__init__.py").write_text("raise ModuleNotFoundError('no Pillow', name='PIL')")
    monkeypatch.syspath_prepend(missing.parent)
    with pytest.raises(treadle.MissingExtra, match=r"treadle\[data\]"):
        treadle.film(out, best=1)
