#!/usr/bin/env bash
# usage: scripts/test-pythons.sh [PYTEST ARGUMENTS]
#
# Run the tests that are neither heavy nor slow on each of Python 3.12 and 3.13 that is installed and starts, each in
# its own environment below .venvs/. Versions that are not here are named and left out. Exit 1 if a run failed.
set -euo pipefail
cd "$(dirname "$0")/.."

failed=()
tested=()
for version in 3.12 3.13; do
  if ! python=$(scripts/find-python.sh "$version"); then
    echo "test-pythons: no Python $version here that starts, left out"
    continue
  fi
  venv=.venvs/$version
  PYTHON=$python scripts/setup.sh "$venv" dev
  echo "test-pythons: Python $version"
  tested+=("$version")
  "$venv/bin/python" -m pytest -m 'not heavy and not slow' -p no:cacheprovider -n 2 --dist worksteal "$@" || failed+=("$version")
done

echo "test-pythons: tested: ${tested[*]:-none}; failed: ${failed[*]:-none}"
[ ${#failed[@]} -eq 0 ]
