#!/usr/bin/env bash
# usage: scripts/setup.sh VENV GROUP
#
# Bring the virtual environment VENV up to date: make it if it is missing, install Treadle in place with every extra,
# and the dependency group GROUP of pyproject.toml. A stamp in VENV records this place and the pyproject.toml that was
# installed; while both are the same, nothing is done.
#
#   PYTHON   the interpreter for a new VENV; given explicitly, a VENV of another version is built again
set -euo pipefail
cd "$(dirname "$0")/.."

venv=$1
group=$2
stamp=$venv/.treadle-$group
python=$venv/bin/python

state() { # what the stamp holds: an editable install and its scripts break when the clone is moved, so the place counts
  pwd
  cat pyproject.toml
}

version() { "$1" -c 'import sys; print(*sys.version_info[:2], sep=".")'; }

starts() { [ -x "$python" ] && "$python" -c pass >/dev/null 2>&1; }

right_version() {
  [ -z "${PYTHON:-}" ] && return
  local asked
  asked=$(scripts/find-python.sh) || exit 1
  [ "$(version "$asked")" = "$(version "$python")" ]
}

install() { # pip's arguments; uv is quicker, but it does not read pip's configuration, so pip has the last word
  if [ "$group" != heavy ] && command -v uv >/dev/null 2>&1; then
    uv pip install --quiet --python "$python" "$@" </dev/null && return
    echo "setup: uv could not install this, trying pip" >&2
  fi
  "$python" -m pip --no-input --disable-pip-version-check install -qq "$@"
}

if starts && right_version; then
  if state | cmp -s - "$stamp"; then
    exit 0
  fi
else
  base=$(scripts/find-python.sh)
  echo "setup: making $venv with Python $(version "$base") ($base)"
  # Some distributions package Python without ensurepip; a pip outside the environment can install one into it.
  if "$base" -c 'import ensurepip' >/dev/null 2>&1; then
    "$base" -m venv --clear "$venv"
  else
    "$base" -m venv --clear --without-pip "$venv"
    "$base" -m pip --no-input --disable-pip-version-check --python "$python" install -qq pip
  fi
fi

echo "setup: installing Treadle and the '$group' dependencies into $venv (minutes the first time)"
rm -f "$stamp"
requirements=$venv/requirements-$group.txt
"$python" scripts/group.py "$group" >"$requirements"
install --editable '.[all]' --requirement "$requirements"
if [ "$group" = heavy ]; then # the originals that ours are compared with: their own pins clash with everybody else's
  "$python" scripts/group.py heavy-alone >"$requirements"
  install --no-deps --requirement "$requirements"
  drivers="libegl1 libosmesa6" # with which MuJoCo draws without a display; the tests of that are skipped without them
  if command -v apt-get >/dev/null 2>&1 && ! dpkg -s $drivers >/dev/null 2>&1; then
    if [ "$(id -u)" != 0 ] || ! { apt-get update -qq && apt-get install -y -qq --no-install-recommends $drivers; } >/dev/null; then
      echo "setup: MuJoCo cannot draw without a display yet: sudo apt-get install $drivers" >&2
    fi
  fi
  if ! command -v chromium >/dev/null 2>&1; then # in which a test opens a report; never a browser of playwright's own
    browser='apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium'
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
      echo "setup: reports are tested in Chromium; as root: $browser" >&2
      exit 1
    fi
    bash -c "$browser" >/dev/null
  fi
fi
state >"$stamp"
