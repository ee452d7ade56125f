"""Does `treadle check` blame anybody who is innocent? Every registered environment of Gymnasium (MuJoCo included),
ale-py and MiniGrid that builds within five seconds is checked, and what was found is counted.

    python -m benchmarks.checks                     all, 20 minutes on two cores
    python -m benchmarks.checks --sample 20         some of them
    python -m benchmarks.checks --only ALE/Pong     those whose id begins so

Prints each finding as it is made, and at the end a table; faults are listed by id.
"""

from __future__ import annotations

import argparse
import logging
import random
import re
from collections import Counter, defaultdict

import gymnasium as gym

from treadle.errors import TreadleError
from treadle.program.ids import import_package
from treadle.testing import Report, check_env

BUILT_IN = 5.0  # seconds
PACKAGES = {"ale_py": "ale-py", "minigrid": "MiniGrid", "gymnasium": "Gymnasium"}


def package_of(spec: gym.envs.registration.EnvSpec) -> str | None:
    """Of an environment; None: another one, or one that only says that it is gone."""
    entry = spec.entry_point
    return PACKAGES.get(entry.split(".")[0].split(":")[0]) if isinstance(entry, str) else None


def ids(only: str, sample: int | None, part: str) -> dict[str, list[str]]:
    """Package -> registered ids."""
    for known in ("ALE/Pong-v5", "MiniGrid-Empty-5x5-v0"):
        import_package(known)
    found: dict[str, list[str]] = defaultdict(list)
    for id, spec in gym.registry.items():
        package = package_of(spec)
        if package is not None and id.startswith(only):
            found[package].append(id)
    chosen, (first, step) = random.Random(0), map(int, part.split("/"))
    drawn = {name: chosen.sample(some, min(sample or len(some), len(some))) for name, some in found.items()}
    return {name: some[first::step] for name, some in drawn.items()}


def checked(id: str) -> Report | str:
    """The report, or why there is none."""
    try:
        report = check_env(id, steps=300, seconds=1.0, timeout=60.0)
    except (TreadleError, gym.error.Error) as error:
        return str(error).partition("\n")[0]
    if any(each.about == "build" for each in report.findings):
        return report.findings[0].what
    if float(report.facts.get("built in", "0").split()[0]) > BUILT_IN:
        return f"built in {report.facts['built in']}"
    return report


def main() -> None:
    """Check, and count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, metavar="N", help="so many of each package")
    parser.add_argument("--part", default="0/1", metavar="K/N", help="one of N parts of the ids, K from 0")
    parser.add_argument("--only", default="", metavar="PREFIX", help="ids that begin so")
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    rows, faults = [], []
    for package, some in ids(given.only, given.sample, given.part).items():
        built, clean, warned = 0, 0, Counter[str]()
        for id in some:
            report = checked(id)
            if isinstance(report, str):
                print(f"{id}: not built: {re.sub(r'[(]slot 0.*', '', report)[:100]}", flush=True)
                continue
            built += 1
            clean += not report.findings
            warned.update({each.about for each in report.findings if each.level == "warning"})
            for each in report.findings:
                print(f"{id}: {each.level}: {each.about}: {each.what}", flush=True)
            faults += [f"{id}: {each.about}: {each.what}" for each in report.faults]
        said = ", ".join(f"{about} {count}" for about, count in warned.most_common()) or "none"
        rows.append(f"| {package} | {len(some)} | {built} | {clean} | {said} |")
    print("\n| package | ids | built | nothing found | warnings |\n|---|---|---|---|---|")
    print("\n".join(rows))
    print(f"\n{len(faults)} faults" + "".join(f"\n- {each}" for each in faults))


if __name__ == "__main__":
    main()
