"""Everyone who is measured, in the order of the table."""

from benchmarks import contestants, ours
from benchmarks.contestants import Contestant
from benchmarks.limit import Limit, LimitOfGroups

LOOPS = ("Gymnasium Sync", "SB3 Dummy", "PufferLib Serial")  # one process, one loop


def everyone() -> list[Contestant]:
    """The limit, then other libraries, installed or not, then Treadle."""
    gymnasium = [contestants.GymnasiumSync(), contestants.GymnasiumAsync()]
    stable = [contestants.StableBaselinesDummy(), contestants.StableBaselinesSubproc()]
    return [Limit(), LimitOfGroups(), *gymnasium, *stable, *ours.contestants()]
