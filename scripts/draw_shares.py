"""Draw docs/shares.svg, the chart of README and docs/speed.md, from the recorded table of docs/performance.md.

usage: python scripts/draw_shares.py
"""

import re
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"
ROWS = {  # of the table -> what the chart calls it
    "cartpole-8+mlp": "8 CartPole, MLP",
    "cartpole-64+mlp": "64 CartPole, MLP",
    "minigrid-8+mlp": "8 MiniGrid, MLP",
    "halfcheetah-8+mlp": "8 HalfCheetah, MLP",
    "humanoid-8+mlp": "8 Humanoid, MLP",
    "atari-8+cnn": "8 Atari, CNN",
    "python1ms-8+mlp": "8 x 1 ms of Python, MLP",
}
BARS = {  # column of the table -> what the legend calls it, and its colour
    "best loop, of the limit": ("best loop of others", "#9aa5b1"),
    "best parallel peer, of the limit": ("best parallel vector of others", "#e0a458"),
    "auto, of the limit": ("Treadle, as it comes", "#2f6f9f"),
}
LEFT, WIDE, BAR, GAP, TOP = 190, 470, 11, 14, 58


def shares(page: str) -> dict[str, list[float]]:
    """Row of the table -> its shares of the limit, in the order of BARS. Raises KeyError for a row that is gone."""
    lines = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    header = next(cells for cells in lines if set(BARS) <= set(cells))
    table = {cells[0]: cells for cells in lines if len(cells) == len(header)}
    return {row: [float(table[row][header.index(bar)].split()[0]) for bar in BARS] for row in ROWS}


def drawn(page: str) -> str:
    """The chart as SVG, of the text of docs/performance.md."""
    found = shares(page)
    tall = TOP + len(ROWS) * (len(BARS) * BAR + GAP) + 24
    cores = re.search(r"(\d+) cores", page)
    title = f"Share of the machine's limit, {cores[1] if cores else '?'} cores, a policy between the steps"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 {tall}" font-family="sans-serif" font-size="12">',
        f'<rect width="720" height="{tall}" fill="#ffffff"/>',
        f'<text x="10" y="18" font-size="14" fill="#1f2933">{title}</text>',
    ]
    for number, (label, colour) in enumerate(BARS.values()):
        at = 10 + number * 220
        parts.append(f'<rect x="{at}" y="30" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{at + 18}" y="41" fill="#1f2933">{label}</text>')
    for tick in range(0, 11, 2):
        at = LEFT + WIDE * tick / 10
        parts.append(f'<line x1="{at:g}" y1="{TOP - 6}" x2="{at:g}" y2="{tall - 20}" stroke="#e4e7eb"/>')
        parts.append(f'<text x="{at:g}" y="{tall - 6}" fill="#52606d" text-anchor="middle">{tick / 10:g}</text>')
    for number, (row, values) in enumerate(found.items()):
        top = TOP + number * (len(BARS) * BAR + GAP)
        parts.append(
            f'<text x="{LEFT - 8}" y="{top + len(BARS) * BAR / 2 + 4:g}" fill="#1f2933" text-anchor="end">'
            f"{ROWS[row]}</text>"
        )
        for place, (value, (_, colour)) in enumerate(zip(values, BARS.values())):
            y = top + place * BAR
            parts.append(f'<rect x="{LEFT}" y="{y}" width="{WIDE * value:g}" height="{BAR - 1}" fill="{colour}"/>')
            parts.append(
                f'<text x="{LEFT + WIDE * value + 4:g}" y="{y + 9}" font-size="9" fill="#52606d">{value:.2f}</text>'
            )
    return "\n".join([*parts, "</svg>\n"])


if __name__ == "__main__":
    (DOCS / "shares.svg").write_text(drawn((DOCS / "performance.md").read_text(encoding="utf-8")), encoding="utf-8")
