"""Write tests/slow.txt: the tests that take long, which `make test` leaves to `make test-all`.

The tests that guard the bytes and the losses stay in `make test` however long they take: chaos, kills, golden files,
the same dataset from any number of workers, descriptors that are carried along. Tests of files that compute something
once for all of theirs stay, too.

Rows of the present file that LOG has not, as `make test` leaves them out, stay as they are.

usage: make test ARGS='--durations=0 --durations-min=0.05' >LOG; python scripts/slow_tests.py LOG [SECONDS]
"""

import re
import sys
from pathlib import Path

SLOW = Path(__file__).parent.parent / "tests" / "slow.txt"
STAYS = re.compile(r"chaos|kill|carried|golden|same_bytes|same_dataset|test_house|test_budget|test_words|README")
LEAST = 0.5  # seconds of a call, from which on it is slow
ROW = re.compile(r"\s*([\d.]+)s call\s+(tests/\S.*)")


def main(log: str, seconds: float = LEAST) -> None:
    """Keep the rows of `log` with a call of at least `seconds`, the longest first."""
    before = [line.split(" ", 1) for line in SLOW.read_text(encoding="utf-8").splitlines()[1:]]
    found = [ROW.fullmatch(line.rstrip("\n")) for line in Path(log).read_text(encoding="utf-8").splitlines()]
    taken = {test: float(row) for row, test in before} | {row[2]: float(row[1]) for row in found if row}
    rows = [(took, test) for test, took in taken.items() if took >= seconds and not STAYS.search(test)]
    rows.sort(key=lambda row: (-row[0], row[1]))
    head = f"# Calls of at least {seconds} s; scripts/slow_tests.py writes this file from the durations of one run.\n"
    SLOW.write_text(head + "".join(f"{took:.1f} {test}\n" for took, test in rows), encoding="utf-8")
    print(f"{len(rows)} tests of {sum(took for took, _ in rows):.0f} s")


if __name__ == "__main__":
    main(sys.argv[1], *map(float, sys.argv[2:]))
