"""An environment that counts, for the benchmarks. Imports nothing of Treadle: the limit's processes check that."""

import uuid
from pathlib import Path
from typing import Any

import gymnasium as gym


class Tally(gym.Wrapper[Any, Any, Any, Any]):
    """Counts the steps of its env and writes their number to a file of its own in `directory` when it is closed."""

    def __init__(self, directory: str) -> None:
        super().__init__(gym.make("CartPole-v1"))
        self.path = Path(directory, uuid.uuid4().hex)
        self.steps = 0

    def step(self, action: Any) -> Any:
        self.steps += 1
        return super().step(action)

    def close(self) -> None:
        self.path.write_text(str(self.steps))
        super().close()
