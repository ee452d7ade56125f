"""Treadle steps many environments at once.

Every public name lives in a room of its own and is loaded when it is first used, so that `import treadle` costs
nothing: no NumPy, no Gymnasium, no set-up. `__init__.pyi` is the table of them.
"""

from __future__ import annotations

from treadle.lazy import homes, lazily, of_stub

__version__ = "0.1.0"

# those that `dir(treadle)` shows, and those of the older systems' reference texts
_FRONT, _REFERENCES = of_stub(__file__)

# modules: foreign faces, not in `*`, since each needs the package that it is a face to; and what tests ask for
_FACES = homes({"": "sb3 pettingzoo tianshou dm_env lerobot testing"})

__all__ = ["__version__", *_FRONT, *_REFERENCES]

_, __getattr__, _ = lazily(__name__, _FRONT | _REFERENCES | _FACES)


def __dir__() -> list[str]:
    return sorted(["__version__", *_FRONT])
