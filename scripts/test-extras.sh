#!/usr/bin/env bash
# usage: scripts/test-extras.sh [EXTRA ...]
#
# Install the wheel in dist/ with each extra alone (all of them, or those named) into an empty environment, and let the
# extra do its job there (scripts/extras.py), on each of Python 3.11 to 3.13 that is here. `make release` builds the wheel.
# Exit 1 if one fails.
set -euo pipefail
cd "$(dirname "$0")/.."

wheel=$(echo "$PWD"/dist/*.whl)
jobs=$PWD/scripts/extras.py
empty=$(mktemp -d)
trap 'rm -rf "$empty"' EXIT
failed=()

for version in 3.11 3.12 3.13; do
  if ! base=$(scripts/find-python.sh "$version"); then
    echo "test-extras: no Python $version here that starts: not run"
    continue
  fi
  python=$empty/venv/bin/python
  "$base" -m venv --clear "$empty/venv"
  "$python" -m pip --disable-pip-version-check install -q "$wheel"
  for extras in $(cd "$empty" && "$python" "$jobs"); do
    extra=${extras%%,*}
    if [ $# -gt 0 ] && [[ " $* " != *" $extra "* ]]; then continue; fi
    "$base" -m venv --clear "$empty/venv"
    "$python" -m pip --disable-pip-version-check install -q "$wheel[$extras]"
    (cd "$empty" && "$python" "$jobs" "$extra" 2>"$empty/said" | sed "s/^/test-extras: Python $version: /") ||
      { cat "$empty/said"; failed+=("$version:$extra"); }
  done
done

echo "test-extras: failed: ${failed[*]:-none}"
[ ${#failed[@]} -eq 0 ]
