"""In a real notebook's kernel: progress is rich's bar, and a result shows its sentence and pictures."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

KERNEL = """
import json, sys
from jupyter_client.manager import start_new_kernel

manager, client = start_new_kernel(kernel_name="python3")
try:
    for cell in json.loads(sys.argv[1]):
        told = {"stderr": "", "stdout": "", "result": {}, "shown": []}

        def hear(message):
            content = message["content"]
            if message["msg_type"] == "stream":
                told[content["name"]] += content["text"]
            elif message["msg_type"] == "display_data":
                told["shown"].append(content["data"])
            elif message["msg_type"] == "execute_result":
                told["result"] = content["data"]
            elif message["msg_type"] == "error":
                told["stderr"] += "".join(content["traceback"])

        client.execute_interactive(cell, output_hook=hear, timeout=60)
        print(json.dumps(told))
finally:
    client.stop_channels()
    manager.shutdown_kernel(now=True)
"""

CELLS = [
    "import treadle, treadle.progress; treadle.progress._REDRAW = 0.0",
    "episodes = list(treadle.collect('CartPole-v1', episodes=300, workers=1, progress=True)); print('after')",
    "episodes[0]",
    "print(episodes[0])",
    "treadle.evaluate('CartPole-v1', None, episodes=5, workers=1, progress=True)",
]


@pytest.mark.heavy
def test_a_notebook(require) -> None:
    require("ipykernel")
    require("ipywidgets")
    done = subprocess.run(
        [sys.executable, "-c", KERNEL, json.dumps(CELLS)], capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert told[1]["stdout"] == "after\n"
    assert told[1]["stderr"] == ""
    widget, *lines = told[1]["shown"]
    assert "application/vnd.jupyter.widget-view+json" in widget
    assert any("300 of 300 episodes, " in each["text/plain"] for each in lines)
    assert told[2]["result"]["text/plain"] == "<Episode 0: 14 steps, return 14.00, terminated>"
    assert told[3]["stdout"] == "<Episode 0: 14 steps, return 14.00, terminated>\n"
    shown = told[4]["result"]["text/html"]
    assert "mean return" in shown.lower()
    assert "<svg" in shown
