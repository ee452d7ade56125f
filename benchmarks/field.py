"""Everyone who is measured, in the order of the table."""

from collections.abc import Sequence

from benchmarks import contestants, ours, peers
from benchmarks.contestants import Contestant
from benchmarks.limit import Limit, LimitOfGroups

LOOPS = ("Gymnasium Sync", "SB3 Dummy", "PufferLib Serial", "Tianshou Dummy")  # one process, one loop


def everyone() -> list[Contestant]:
    """The limit, then other libraries, installed or not, then Treadle."""
    gymnasium = [contestants.GymnasiumSync(), contestants.GymnasiumAsync()]
    stable = [contestants.StableBaselinesDummy(), contestants.StableBaselinesSubproc()]
    others = [peers.PufferSerial(), peers.TianshouDummy(), peers.TianshouShmem(), peers.AllenAct()]
    return [Limit(), LimitOfGroups(), *gymnasium, *stable, *others, *ours.contestants()]


def chosen(contestants: Sequence[Contestant], wanted: str) -> list[Contestant]:
    """Those whose name contains one of the comma-separated parts, in any case; all for none. ValueError: a part fits
    nobody."""
    parts = [part.strip().lower() for part in wanted.split(",") if part.strip()]
    for part in parts:
        if not any(part in contestant.name.lower() for contestant in contestants):
            raise ValueError(f"no contestant {part!r} among {', '.join(contestant.name for contestant in contestants)}")
    return [one for one in contestants if not parts or any(part in one.name.lower() for part in parts)]
