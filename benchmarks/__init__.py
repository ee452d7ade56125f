"""How fast Treadle steps envs, as a share of what the machine can do at all: `python -m benchmarks.real --help`."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent / "tests"))  # for the environments of `zoo`
