#!/usr/bin/env bash
# usage: scripts/conformance.sh SOURCES [SUITE ...] [-- PYTEST ARGUMENTS]
#
# Run other packages' own tests with our classes in the place of theirs: all seven suites, or those that are named. The
# tests are not in the packages' wheels, so SOURCES has a folder for each suite: a checkout, or an unpacked source
# distribution, of the installed version.
#
#   SOURCES/gymnasium   tests/vector, tests/wrappers/vector, test_make_vec.py, with treadle.AsyncVectorEnv in the place of
#                       its own
#   SOURCES/sb3         Stable-Baselines3's tests of vectors and of wrappers of vectors, with treadle.sb3.VecEnv in the
#                       place of SubprocVecEnv and DummyVecEnv
#   SOURCES/tianshou    its tests of vectors and of collectors, with treadle.tianshou.VectorEnv in the place of its three;
#                       and again with their environments made to keep to their spaces (tianshou-tidied)
#   SOURCES/plangym     tests/vectorization/test_parallel.py, with ParallelEnv, BatchEnv and ExternalProcess of treadle.plan
#   SOURCES/garage      its tests of samplers, workers and data types, with ours in their place, in .venvs/garage, where
#                       TensorFlow, torch and Ray are stand-ins
#   SOURCES/pettingzoo  its test of all parameters, the games of butterfly, with treadle.pettingzoo.ParallelEnv in the
#                       place of `parallel_env`
#   allenact            AllenAct's trainer on our vectors, in .venvs/allenact: `scripts/allenact_trainer.py`. It needs no
#                       folder: the trainer is in the wheel
#
#   PYTHON              the interpreter (.venv/bin/python, by `make setup-heavy`); it has the packages
#
# Nothing is written into those folders. What is expected to fail, and why, is in docs/conformance.md; the last lines are
# a row for each suite: collected, passed, failed, skipped. Exit 1 if anything failed, 2 if a folder is missing.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh
installed=$(realpath -s "${PYTHON:-.venv/bin/python}")
all="gymnasium sb3 tianshou plangym garage pettingzoo allenact"

sources=${1:-}
if [ -z "$sources" ] || [ "${sources#-}" != "$sources" ]; then
  sed -n '2,/^set/p' "$0" | sed '$d; s/^# \{0,1\}//' >&2
  exit 2
fi
shift
wanted=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
  case " $all " in *" $1 "*) wanted+=("$1") ;; *) echo "conformance: no suite $1; there are $all" >&2; exit 2 ;; esac
  shift
done
[ $# -eq 0 ] || shift
arguments=("$@")
[ ${#wanted[@]} -gt 0 ] || read -ra wanted <<<"$all"
missing=0
for name in "${wanted[@]}"; do
  if [ "$name" != allenact ] && [ ! -d "$sources/$name" ]; then
    echo "conformance: $sources/$name is missing: the sources of $name, of the version that is installed" >&2
    missing=2
  fi
done
[ "$missing" = 0 ] || exit "$missing"
sources=$(realpath "$sources")
wants() { case " ${wanted[*]} " in *" $1 "*) true ;; *) false ;; esac; }

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
  (cd "$copy" && PYTHONPATH=$OLDPWD/src${path:+:$path} "${interpreter:-$installed}" -m pytest -q -p no:cacheprovider -o addopts= -o filterwarnings= \
    --timeout 120 "$@" "${arguments[@]}" --junitxml "$scratch/$name.xml") || failed=1
  rows+=("$("$installed" - "$name" "$scratch/$name.xml" <<'PY'
import sys
import xml.etree.ElementTree as tree

name, path = sys.argv[1:]
(found,) = tree.parse(path).getroot().iter("testsuite")
collected, *others = (int(found.get(key, 0)) for key in ("tests", "failures", "errors", "skipped"))
print(f"| {name} | {collected} | {collected - sum(others)} passed | {others[0] + others[1]} failed | {others[2]} skipped |")
PY
)")
}

if wants gymnasium; then
  # test_human_rendering.py opens windows; without a display that ends the process
  suite gymnasium "$sources/gymnasium" tests/vector tests/wrappers/vector tests/envs/registration/test_make_vec.py \
    --ignore tests/wrappers/vector/test_human_rendering.py <<'PY'
import gymnasium.vector
import gymnasium.vector.async_vector_env

import treadle

gymnasium.vector.AsyncVectorEnv = treadle.AsyncVectorEnv
gymnasium.vector.async_vector_env.AsyncVectorEnv = treadle.AsyncVectorEnv
PY
fi

if wants sb3; then
  package=stable_baselines3 suite sb3 "$sources/sb3" tests/test_vec_{envs,monitor,normalize,check_nan,extract_dict_obs,stacked_obs}.py \
    tests/test_{dict_env,monitor}.py <<'PY'
import gc

from stable_baselines3.common import env_util, vec_env

import treadle.sb3


class InPlaceOfDummy(treadle.sb3.VecEnv):
    """The tests ask which of the two a vector is."""


for module in (vec_env, env_util):
    module.SubprocVecEnv, module.DummyVecEnv = treadle.sb3.VecEnv, InPlaceOfDummy


def pytest_runtest_logfinish():
    gc.collect()  # a vector that a failing test has not closed warns here, and not within a test that counts warnings
PY
fi

# tianshou NAME: its suite, with the class `Ours` of standard input
tianshou() {
  local tests=("$sources"/tianshou/test/base/test_{env,env_finite,collector,action_space_sampling}.py)
  package=tianshou suite "$1" "$sources/tianshou" $(for test in "${tests[@]}"; do [ ! -e "$test" ] || echo "test/base/${test##*/}"; done) < <(
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

if wants tianshou; then
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

if wants plangym; then
  SKIP_RENDER=1 suite plangym "$sources/plangym" tests/vectorization/test_parallel.py <<'PY'
import plangym.api_tests as tests
import plangym.vectorization.parallel as module

from treadle.plan import BatchEnv, ExternalProcess, ParallelEnv, PlanEnv, VectorizedEnv

tests.PlanEnv = (tests.PlanEnv, PlanEnv)  # the classes that they ask `isinstance` about
tests.VectorizedEnv = (tests.VectorizedEnv, VectorizedEnv)
module.ParallelEnv, module.BatchEnv, module.ExternalProcess = ParallelEnv, BatchEnv, ExternalProcess
PY
fi

if wants garage; then
  environment garage gym==0.26.2 akro dowel click psutil python-dateutil scikit-image scipy cached_property pyglet
  path=$PWD/tests/foreign/garage:$sources/garage/src interpreter=$python suite garage "$sources/garage" \
    tests/garage/sampler/test_{multiprocessing_sampler,local_sampler,vec_worker,fragment_worker}.py \
    tests/garage/test_dtypes.py <<'PY'
import sys

import garage.envs.grid_world_env
import garage.envs.point_env
import garage.experiment.task_sampler
import garage.np.policies
import garage.sampler

import treadle
import treadle.samplers

NAMES = """
EnvSpec EnvStep EpisodeBatch InOutSpec StepType TimeStep TimeStepBatch DefaultWorker EnvUpdate ExistingEnvUpdate
FragmentWorker InProgressEpisode LocalSampler MultiprocessingSampler NewEnvUpdate Sampler SetTaskUpdate VecWorker Worker
WorkerFactory
""".split()
for name, module in list(sys.modules.items()):
    if name.split(".")[0] == "garage":
        for known in NAMES:
            if known in vars(module):
                setattr(module, known, getattr(treadle.samplers, known, None) or getattr(treadle, known))
PY
fi

if wants pettingzoo; then
  package=pettingzoo SDL_VIDEODRIVER=dummy suite pettingzoo "$sources/pettingzoo" test/all_parameter_combs_test.py \
    -k butterfly <<'PY'
import sys
from functools import partial
from types import ModuleType

from pettingzoo.butterfly import cooperative_pong_v6, knights_archers_zombies_v11, pistonball_v6

from treadle.pettingzoo import ParallelEnv


def ours(plain):
    return lambda **kwargs: ParallelEnv(partial(plain, **kwargs))


class Absent(ModuleType):
    """Environments that want a package of their own; none of them is run."""

    def __getattr__(self, name):
        return name


for name in ("pettingzoo.atari", "pettingzoo.sisl", "pettingzoo.classic"):
    sys.modules[name] = Absent(name)
for module in (cooperative_pong_v6, knights_archers_zombies_v11, pistonball_v6):
    module.parallel_env = ours(module.parallel_env)
PY
fi

if wants allenact; then
  environment allenact
  # its own pins want an older cloudpickle, for a Gym that needs it for nothing that happens here
  besides allenact==0.5.4 torch==2.13.0
  besides 'numpy<2' 'scipy<1.14' 'moviepy<2' 'cloudpickle>=3'
  echo "conformance: allenact"
  if "$python" scripts/allenact_trainer.py "$scratch/allenact"; then
    rows+=("| allenact | 3 runs | 3 of the same weights | 0 failed | 0 skipped |")
  else
    rows+=("| allenact | 3 runs | weights differ, or a run failed | 1 failed | 0 skipped |")
    failed=1
  fi
fi

printf '%s\n' "${rows[@]}"
exit "$failed"
