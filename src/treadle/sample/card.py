"""The card beside a dataset: a README.md with the head that the Hugging Face Hub reads.

It describes the dataset and how to read it. It names no person and no path, since a dataset is handed on with it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from treadle.progress import printable
from treadle.repro import versions
from treadle.sample.scores import success_rate

CARD = "README.md"
OF_MINARI = 'import treadle\n\ndataset = treadle.load(".")  # a minari.MinariDataset'
OF_LEROBOT = 'from lerobot.datasets.lerobot_dataset import LeRobotDataset\n\ndataset = LeRobotDataset("NAME", root=".")'
SIZES = {1_000: "n<1K", 10_000: "1K<n<10K", 100_000: "10K<n<100K", 1_000_000: "100K<n<1M", 10_000_000: "1M<n<10M"}


def card_rows(notes: Sequence[Any], spec: str | None, policy: str) -> list[tuple[str, str]]:
    """The rows of a card on episodes with a length, a total_reward and a success, of the environment with this spec."""
    returns, rate = [each.total_reward for each in notes], success_rate([each.success for each in notes])
    return [
        ("environment", json.loads(spec or "{}").get("id", "")),
        ("policy", policy),
        ("episodes", f"{len(notes):,}"),
        ("steps", f"{sum(each.length for each in notes):,}"),
        ("return", f"mean {sum(returns) / len(notes):,.2f}, min {min(returns):,.2f}, max {max(returns):,.2f}"),
        ("success", f"{rate[0]:.1%}" if rate else ""),
    ]


def card(
    title: str, rows: Sequence[tuple[str, str]], steps: int, reading: str, tags: Sequence[str], data: str = ""
) -> str:
    """Its text.

    Args:
        title: the dataset's name.
        rows: (what, value) of it; values may be texts of the environment's author.
        steps: in all.
        reading: code of Python that reads it.
        tags: further ones.
        data: pattern of its files of rows, for the Hub's viewer; "": it has none that the Hub shows.
    """
    size = next((text for most, text in SIZES.items() if steps < most), "10M<n<100M")
    head: dict[str, Any] = {
        "pretty_name": title,
        "task_categories": ["reinforcement-learning"],
        "size_categories": [size],
        "tags": ["reinforcement-learning", "gymnasium", "treadle", *tags],
    }
    if data:
        head["configs"] = [{"config_name": "default", "data_files": data}]
    yaml = "\n".join(f"{name}: {json.dumps(value)}" for name, value in head.items())  # JSON is YAML
    made = ", ".join(f"{name} {version}" for name, version in versions("treadle", "gymnasium", "numpy").items())
    lines = [f"| {name} | {_code(value)} |" for name, value in (*rows, ("made with", made)) if value]
    table = "\n".join(["| | |", "|---|---|", *lines])
    return f"---\n{yaml}\n---\n\n# {_code(title)}\n\n{table}\n\n```python\n{reading}\n```\n"


def _code(text: str) -> str:
    """A foreign text in one line of Markdown, without live markup."""
    plain = printable(" ".join(text.split())).replace("`", "'").replace("|", "/")
    return f"`{plain or ' '}`"
