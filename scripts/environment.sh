# Sourced by scripts that run what cannot live beside the other packages: environments of their own below .venvs/, which
# are made once and kept while their requirements and pyproject.toml stay the same.
#
#   PYTHON   the interpreter for new environments

python=
made=

pip() { "$python" -m pip --no-input --disable-pip-version-check install -qq "$@"; }

# environment NAME REQUIREMENT ...: bring .venvs/NAME up to date and put its interpreter into $python
environment() {
  local venv=.venvs/$1 wanted
  wanted=$(pwd; cat pyproject.toml; printf '%s\n' "${@:2}")
  python=$PWD/$venv/bin/python
  made=no
  if "$python" -c pass >/dev/null 2>&1 && [ "$(cat "$venv/.treadle-stamp" 2>/dev/null)" = "$wanted" ]; then
    return
  fi
  echo "${0##*/}: making $venv (minutes the first time)"
  made=yes
  "$(scripts/find-python.sh)" -m venv --clear "$venv"
  pip --editable . 'pytest>=8' 'pytest-timeout>=2.3' 'hypothesis>=6.100' "${@:2}"
  printf '%s\n' "$wanted" >"$venv/.treadle-stamp"
}

# alone NAME REQUIREMENT ...: more packages for a fresh environment, without what they ask for
alone() { [ "$made" = no ] || pip --no-deps "${@:2}"; }

# besides REQUIREMENT ...: more packages for a fresh environment, where pip cannot choose for all of them at once
besides() { [ "$made" = no ] || pip "$@"; }
