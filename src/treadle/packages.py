"""Packages whose import registers ids with Gymnasium, known by how the ids begin."""

from __future__ import annotations

# how ids begin -> (package, extra that brings it)
PACKAGES = {
    "ALE/": ("ale_py", "atari"),
    "MiniGrid-": ("minigrid", "minigrid"),
    "BabyAI-": ("minigrid", "minigrid"),
    "dm_control/": ("shimmy", ""),
}


def package_of(env_id: str) -> str | None:
    """The package behind an id; None when it is not known to need one."""
    for prefix, (package, _) in PACKAGES.items():
        if env_id.startswith(prefix):
            return package
    return None


__all__ = ["PACKAGES", "package_of"]
