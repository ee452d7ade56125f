#!/usr/bin/env bash
# usage: SUITE=FOLDER ... scripts/conformance.sh [PYTEST ARGUMENTS]
#
# Run other packages' own tests with our vectors in the place of theirs. Those tests are not in their wheels: give the
# folder of a checkout, or of an unpacked source distribution, of the installed version for each suite that is to run:
#
#   GYMNASIUM=...   tests/vector, tests/wrappers/vector, test_make_vec.py, with treadle.AsyncVectorEnv in the place of its own
#   SB3=...         its tests of vectors and of wrappers of vectors, with treadle.sb3.VecEnv in the place of SubprocVecEnv
#                   and DummyVecEnv (its source distribution has them)
#   TIANSHOU=...    its tests of vectors and of collectors, with treadle.tianshou.VectorEnv in the place of its three; and
#                   again with their environments made to keep to their spaces (tianshou-tidied)
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

# suite NAME FOLDER TESTS ...: run TESTS of a copy of FOLDER with the conftest.py of standard input. Where `package` names
# the folder of its sources, the copy goes without it: the installed one is meant
suite() {
  local name=$1 folder=$2 copy=$scratch/$1
  shift 2
  mkdir "$copy"
  cp -r "$folder"/. "$copy"
  [ -z "${package:-}" ] || rm -rf "${copy:?}/$package"
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
  package=stable_baselines3 suite sb3 "$SB3" tests/test_vec_{envs,monitor,normalize,check_nan,extract_dict_obs,stacked_obs}.py \
    tests/test_{dict_env,monitor}.py <<'PY'
from stable_baselines3.common import env_util, vec_env

import treadle.sb3


class InPlaceOfDummy(treadle.sb3.VecEnv):
    """The tests ask which of the two a vector is."""


for module in (vec_env, env_util):
    module.SubprocVecEnv, module.DummyVecEnv = treadle.sb3.VecEnv, InPlaceOfDummy
PY
fi

# tianshou NAME: its suite, with the class `Ours` of standard input
tianshou() {
  local tests=("$TIANSHOU"/test/base/test_{env,env_finite,collector,action_space_sampling}.py)
  package=tianshou suite "$1" "$TIANSHOU" $(for test in "${tests[@]}"; do [ ! -e "$test" ] || echo "test/base/${test##*/}"; done) < <(
    cat - <(cat <<'PY'


for name in ("DummyVectorEnv", "ShmemVectorEnv", "SubprocVectorEnv"):
    setattr(tianshou.env, name, type(name, (Ours,), {}))


def pytest_collection_modifyitems():
    if "test.base.test_env" in sys.modules:
        sys.modules["test.base.test_env"].has_ray = lambda: False  # its RayVectorEnv is nobody's concern here
PY
    )
  )
}

if [ -n "${TIANSHOU:-}" ]; then
  tianshou tianshou <<'PY'
import sys

import tianshou.env

from treadle.tianshou import VectorEnv as Ours
PY
  tianshou tianshou-tidied <<'PY'
import sys
from functools import partial

import gymnasium as gym
import numpy as np
import tianshou.env
from gymnasium import spaces

from treadle.tianshou import VectorEnv

ANYTHING = spaces.Sequence(spaces.Discrete(2))  # of an environment that has no space: such a leaf takes what comes


def fitted(space, value):
    """A value as its space says."""
    if isinstance(space, spaces.Box):
        return np.asarray(value, space.dtype)
    if isinstance(space, spaces.Dict):
        return {key: fitted(each, value[key]) for key, each in space.items()}
    return value


class Tidy(gym.Wrapper):
    """An environment of the tests that has spaces and keeps to them."""

    def __init__(self, env):
        super().__init__(env)
        if getattr(env, "observation_space", None) is None:
            self.observation_space, self.action_space = ANYTHING, spaces.Discrete(2)
        elif "dict" in getattr(self.observation_space, "spaces", ()):  # has int64[1] for a Discrete
            index, nested = self.observation_space["index"], self.observation_space["dict"]
            pair = spaces.Tuple((spaces.MultiDiscrete([2]), nested["tuple"][1]))
            self.observation_space = spaces.Dict(index=index, dict=spaces.Dict({**nested.spaces, "tuple": pair}))

    def reset(self, **kwargs):
        observation, info = self.env.reset(**kwargs)
        return fitted(self.observation_space, observation), info

    def step(self, action):
        observation, *rest = self.env.step(action)
        return fitted(self.observation_space, observation), *rest


def tidy(make):
    return Tidy(make())


class Ours(VectorEnv):
    """The tests' policy gives floats for a Discrete."""

    def __init__(self, env_fns, *args, **kwargs):
        super().__init__([partial(tidy, make) for make in env_fns], *args, **kwargs)

    def step(self, action, id=None):
        if isinstance(self.action_space[0], spaces.Discrete):
            action = action if action is None else np.asarray(action).astype(np.int64)
        return super().step(action, id)
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
