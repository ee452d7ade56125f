#!/usr/bin/env bash
# usage: scripts/release.sh
#
# Build the sdist and, from it, the wheel into dist/, and check both as somebody does who has nothing but them: metadata,
# contents, size, citation, and an installation into an empty environment, in which `treadle --help` works. The tools are
# the dependency group `release`, in .venvs/release.
#
#   PYTHON   the interpreter of the environments
set -euo pipefail
cd "$(dirname "$0")/.."

LARGEST=1000000 # bytes of a wheel
base=$(scripts/find-python.sh)
tools=.venvs/release
stamp=$tools/.treadle
wanted=$(python3 scripts/group.py release 2>/dev/null || "$base" scripts/group.py release)

if ! [ -x "$tools/bin/python" ] || [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
  echo "release: installing the tools into $tools"
  "$base" -m venv --clear "$tools"
  echo "$wanted" >"$tools/requirements.txt"
  "$tools/bin/python" -m pip --disable-pip-version-check install -q --requirement "$tools/requirements.txt"
  echo "$wanted" >"$stamp"
fi

say() { echo "release: $*"; }
bin=$PWD/$tools/bin

rm -rf dist
say "validate-pyproject"
"$bin/validate-pyproject" pyproject.toml
say "cffconvert --validate"
"$bin/cffconvert" --validate
say "sp-repo-review, less the checks that [tool.repo-review] of pyproject.toml leaves out with a reason"
"$bin/sp-repo-review" . >"$tools/review.txt" || { cat "$tools/review.txt"; exit 1; }
say "build"
"$bin/python" -m build --outdir dist >"$tools/build.txt" 2>&1 || { cat "$tools/build.txt"; exit 1; }
say "twine check --strict"
"$bin/twine" check --strict dist/*
say "check-wheel-contents"
"$bin/check-wheel-contents" dist/*.whl
size=$(stat -c %s dist/*.whl)
say "the wheel has $size bytes"
[ "$size" -le "$LARGEST" ] || { say "that is more than $LARGEST"; exit 1; }

empty=$(mktemp -d)
trap 'rm -rf "$empty"' EXIT
for file in dist/*.whl dist/*.tar.gz; do
  say "$(basename "$file")[cli] in an empty environment"
  "$base" -m venv --clear "$empty/venv"
  "$empty/venv/bin/python" -m pip --disable-pip-version-check install -q "$file[cli]"
  (cd "$empty" && env -u PYTHONPATH venv/bin/treadle --help >/dev/null && venv/bin/treadle --version &&
    venv/bin/treadle eval CartPole-v1 --episodes 2 --seed 0 >/dev/null)
done
say "dist/ is good"
