#!/usr/bin/env bash
# usage: scripts/find-python.sh [VERSION]
#
# Print the absolute path of the interpreter to build the virtual environment with: $PYTHON if it is set, otherwise
# the first of python3.11, python3.12, python3.13, python3 that starts and is at least 3.11. Exit 1 if there is none.
# With VERSION (such as 3.12) the first of just that version, and without a word where there is none.
#
# Each candidate is run, not only looked up: version managers leave shims on PATH for versions that do not start.
set -euo pipefail

if [ -n "${1:-}" ]; then
  root=$(pyenv root 2>/dev/null || echo "$HOME/.pyenv")
  # A version that pyenv has installed but not activated has a shim on PATH that only prints an error.
  for candidate in "python$1" "$root/versions/$1"*/bin/"python$1"; do
    "$candidate" -c 'import sys; print(sys.executable)' 2>/dev/null && exit
  done
  exit 1
fi

new_enough() { "$1" -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

for candidate in ${PYTHON:-python3.11 python3.12 python3.13 python3}; do
  if new_enough "$candidate"; then
    # The interpreter's own idea of its path, so that a shim is not what the environment depends on.
    exec "$candidate" -c 'import sys; print(sys.executable)'
  fi
done

if [ -n "${PYTHON:-}" ]; then
  echo "setup: PYTHON=$PYTHON does not start, lacks the venv module, or is older than Python 3.11." >&2
else
  echo "setup: no Python >= 3.11 found (tried python3.11, python3.12, python3.13, python3)." >&2
  echo "setup: install one, or name it: make setup PYTHON=/path/to/python3.11" >&2
fi
exit 1
