#!/usr/bin/env bash
# usage: SUITE=FOLDER ... scripts/conformance.sh [PYTEST ARGUMENTS]
#
# Run other packages' own tests with our vectors in the place of theirs. Those tests are not in their wheels: give the
# folder of a checkout, or of an unpacked source distribution, of the installed version for each suite that is to run:
#
#   GYMNASIUM=...   tests/vector, tests/wrappers/vector, test_make_vec.py, with treadle.AsyncVectorEnv in the place of its own
#   SB3=...         its tests of vectors and of wrappers of vectors, with treadle.sb3.VecEnv in the place of SubprocVecEnv
#                   and DummyVecEnv (its source distribution has them)
#   TIANSHOU=...    test/base/test_env.py, with treadle.tianshou.VectorEnv in the place of its three
#   PLANGYM=...     tests/vectorization/test_parallel.py, with ParallelEnv, BatchEnv and ExternalProcess of treadle.plan
#
#   PYTHON          the interpreter (.venv/bin/python); it has the packages
#
# Nothing is written into those folders. What is expected to fail, and why, is in docs/conformance.md; the last lines are
# a row for each suite: collected, passed, failed, skipped. Exit 1 if anything failed.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(realpath -s "${PYTHON:-.venv/bin/python}")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
rows=()
failed=0

# suite NAME FOLDER TESTS ...: run TESTS of a copy of FOLDER with the conftest.py of standard input
suite() {
  local name=$1 folder=$2 copy=$scratch/$1
  shift 2
  mkdir "$copy"
  cp -r "$folder"/. "$copy"
  cat >"$copy/conftest.py"
  echo "conformance: $name"
  (cd "$copy" && PYTHONPATH=$OLDPWD/src "$python" -m pytest -q -p no:cacheprovider -o addopts= -o filterwarnings= \
    --timeout 120 "$@" "${arguments[@]}" --junitxml "$scratch/$name.xml") || failed=1
  rows+=("$("$python" - "$name" "$scratch/$name.xml" <<'PY'
import sys
import xml.etree.ElementTree as tree

name, path = sys.argv[1:]
(found,) = tree.parse(path).getroot().iter("testsuite")
collected, *others = (int(found.get(key, 0)) for key in ("tests", "failures", "errors", "skipped"))
print(f"| {name} | {collected} | {collected - sum(others)} passed | {others[0] + others[1]} failed | {others[2]} skipped |")
PY
)")
}

arguments=("$@")

if [ -n "${GYMNASIUM:-}" ]; then
  # test_human_rendering.py opens windows; without a display that ends the process
  suite gymnasium "$GYMNASIUM" tests/vector tests/wrappers/vector tests/envs/registration/test_make_vec.py \
    --ignore tests/wrappers/vector/test_human_rendering.py <<'PY'
import gymnasium.vector
import gymnasium.vector.async_vector_env

import treadle

gymnasium.vector.AsyncVectorEnv = treadle.AsyncVectorEnv
gymnasium.vector.async_vector_env.AsyncVectorEnv = treadle.AsyncVectorEnv
PY
fi

if [ -n "${SB3:-}" ]; then
  suite sb3 "$SB3" tests/test_vec_{envs,monitor,normalize,check_nan,extract_dict_obs,stacked_obs}.py \
    tests/test_{dict_env,monitor}.py <<'PY'
import pathlib
import shutil

shutil.rmtree(pathlib.Path(__file__).parent / "stable_baselines3", ignore_errors=True)  # the installed one is meant

from stable_baselines3.common import env_util, vec_env

import treadle.sb3


class InPlaceOfDummy(treadle.sb3.VecEnv):
    """The tests ask which of the two a vector is."""


for module in (vec_env, env_util):
    module.SubprocVecEnv, module.DummyVecEnv = treadle.sb3.VecEnv, InPlaceOfDummy
PY
fi

if [ -n "${TIANSHOU:-}" ]; then
  suite tianshou "$TIANSHOU" test/base/test_env.py <<'PY'
import tianshou.env

import treadle.tianshou

for name in ("DummyVectorEnv", "ShmemVectorEnv", "SubprocVectorEnv"):
    setattr(tianshou.env, name, type(name, (treadle.tianshou.VectorEnv,), {}))
PY
fi

if [ -n "${PLANGYM:-}" ]; then
  SKIP_RENDER=1 suite plangym "$PLANGYM" tests/vectorization/test_parallel.py <<'PY'
import plangym.vectorization.parallel as module

from treadle.plan import BatchEnv, ExternalProcess, ParallelEnv

module.ParallelEnv, module.BatchEnv, module.ExternalProcess = ParallelEnv, BatchEnv, ExternalProcess
PY
fi

printf '%s\n' "${rows[@]:-no suite was given: see the head of scripts/conformance.sh}"
exit "$failed"
