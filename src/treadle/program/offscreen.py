"""MuJoCo's drawing without a display, by the library that its environment variable names when it is imported.

Each library is tried in a process of its own: a wrong one may end its process, and leaves a log in its folder.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path

GL = "MUJOCO_GL"
NONE = "off"  # what makes MuJoCo try nothing, and so write no log
LOG = Path("MUJOCO_LOG.TXT")
ADVICE = "MuJoCo can draw nothing here: without a display it wants EGL or OSMesa (apt-get install libegl1 libosmesa6)"
LIMIT = 60.0  # seconds that drawing one picture may take
DRAWS = """
import mujoco
model = mujoco.MjModel.from_xml_string("<mujoco><worldbody><light pos='0 0 3'/><geom size='1'/></worldbody></mujoco>")
data = mujoco.MjData(model)
mujoco.mj_forward(model, data)
with mujoco.Renderer(model, 16, 16) as renderer:
    renderer.update_scene(data)
    raise SystemExit(not renderer.render().any())
"""


def gl() -> str | None:
    """Return the value for `MUJOCO_GL`: the first of the user's own, EGL and OSMesa that draws.

    "off": none of them draws. None: MuJoCo is not installed. With a display, a library that needs it is tried last.
    """
    if find_spec("mujoco") is None:
        return None
    shown = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    tried = [os.environ.get(GL), "egl", "osmesa", "glfw" if shown else None]
    return next((each for each in tried if each and _draws(each)), NONE)


@cache
def _draws(name: str) -> bool:
    with tempfile.TemporaryDirectory(prefix="treadle-gl-") as place:
        command, environ = [sys.executable, "-P", "-c", DRAWS], {**os.environ, GL: name}
        try:
            subprocess.run(command, cwd=place, env=environ, capture_output=True, timeout=LIMIT, check=True)
        except subprocess.SubprocessError:
            return False
    return True


@contextmanager
def off_screen() -> Iterator[None]:
    """Run a block in which this process, and those that it starts, draw by the library that `gl` finds.

    MuJoCo's file of warnings in the current folder is removed afterwards if it was not there before.
    """
    before, found, kept = os.environ.get(GL), gl(), LOG.exists()
    os.environ |= {} if found is None else {GL: found}
    try:
        yield
    finally:
        os.environ.pop(GL, None)
        os.environ |= {} if before is None else {GL: before}
        if not kept:
            LOG.unlink(missing_ok=True)
