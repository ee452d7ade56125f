"""`treadle tune`: what may be typed, and what it does."""

from __future__ import annotations

from dataclasses import dataclass
from json import dumps
from typing import Any

from treadle.cli import failures
from treadle.cli.options import POLICY, EnvCommand, typed
from treadle.cli.process import load_files, own_stdout


@dataclass(frozen=True, kw_only=True)
class Tune(EnvCommand):
    """Try arrangements of a vector in turns, and name the fastest as code.

      treadle tune CartPole-v1 --num-envs 64

      treadle tune my_env.py:make_env --policy my_policy.py:act

    It takes about 20 seconds and the time of the starts. At most six arrangements of workers, the caller's own slots
    and partial batches are stepped in turns. Each line has the median, the lowest and the highest number of steps a
    second, and what limits that vector. The last line is code: the simplest of the arrangements that are level. Nothing
    is stored.

    Attributes:
        env: An id that Gymnasium knows, "module:make_env" or "file.py:make_env".
        seed: Seed of the environments and the policy.
        policy: The policy of the loop; random actions are drawn beforehand.
        num_envs: Environments of the vector.
    """

    policy: str = typed("random", POLICY)
    num_envs: int = typed(8, "N", least=1)

    def arguments(self) -> dict[str, Any]:
        """Without a policy that is none."""
        found = super().arguments()
        return {**found, "policy": None if found["policy"] == "random" else found["policy"]}


def run(options: Tune) -> int:
    """Try arrangements, print what they reached and the best as code, and return the exit code."""
    from treadle.cli.check import tell
    from treadle.testing.tuning import tune

    with own_stdout(options.json) as out:
        load_files(options.words)
        found = tune(**options.arguments(), progress=tell)
        tell("")
        print(dumps(found.as_dict(), indent=2) if options.json else found, file=out)
    return failures.OK
