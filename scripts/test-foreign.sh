#!/usr/bin/env bash
# usage: scripts/test-foreign.sh [SUITE ...]
#
# Run what needs packages that cannot live beside the others: each suite in an environment of its own below .venvs/,
# which is made once and kept while its requirements and pyproject.toml stay the same. Without arguments all suites run;
# `scripts/test-foreign.sh --list` names them. Exit 1 if one failed.
#
# A suite is a function `suite_NAME` below. It begins with `environment NAME REQUIREMENT ...` (or, for those whose own
# pins are wrong, a second call `alone NAME REQUIREMENT ...`, which installs without what they ask for) and goes on with
# `$python ...`, the interpreter of that environment. Treadle is installed there in place.
#
#   PYTHON   the interpreter for new environments
set -euo pipefail
cd "$(dirname "$0")/.."

. scripts/environment.sh

suites() { declare -F | sed -n "s/^declare -f suite_//p"; }

# --- the suites -------------------------------------------------------------------------------------------------------

# dm_control's own requirements take a MuJoCo that it does not work with
suite_dm_control() {
  environment dm_control dm-env dm_control==1.0.50 'mujoco<4'
  $python -m pytest -q --noconftest -p no:cacheprovider tests/foreign/dm_control_suite.py
}

# its own pins want an older PettingZoo, an arena in the cloud and more; its vectors need less
suite_agilerl() {
  environment agilerl torch==2.13.0 'pettingzoo<1.27' mpe2 tensordict lazy_loader packaging dill flatten_dict SuperSuit \
    omegaconf hydra-core pydantic termcolor fastrand accelerate
  alone agilerl agilerl==2.58.0 agilerl-arena==1.29.0
  $python -m pytest -q --noconftest -p no:cacheprovider tests/foreign/agilerl_suite.py
  [ -z "${AGILERL:-}" ] || its_own_of_agilerl
}

# of a checkout, AGILERL=FOLDER: its tests of its vector, in the place of which is ours: those of what is public
its_own_of_agilerl() {
  local copy public
  copy=$(mktemp -d)
  trap "rm -r $copy" EXIT
  public='render_async or get_attr_async or step_async_pz or reset_async_pz or subenv_error or call_async_pz'
  public+=' or call_exception_worker or make_values_list or val_error or space_env or replay_buffer_with_various_spaces'
  mkdir "$copy/tests"
  cp -r "$AGILERL"/tests/{test_vector,pz_vector_test_utils.py} "$copy/tests"
  touch "$copy"/tests/{,test_vector/}__init__.py
  (cd "$copy" && PYTHONPATH=$OLDPWD/tests/foreign $python -m pytest -q --noconftest -p no:cacheprovider -o addopts= \
    -o filterwarnings= --timeout 120 -p agilerl_in_place tests/test_vector/test_vector.py -k "$public")
}

# with torch and its CUDA packages: five gigabytes. LeRobot leaves threads and processes behind, so `no_residue` is off
with_lerobot() { # NAME REQUIREMENT
  environment "$@" gym-pusht==0.1.8 imageio-ffmpeg 'minari[hdf5]>=0.5.3' 'h5py>=3.10' 'isal>=1.7' 'xxhash>=3.4'
  HF_HUB_OFFLINE=1 $python -m pytest -q --noconftest -p no:cacheprovider tests/foreign/lerobot_suite.py
}

suite_lerobot() { with_lerobot lerobot lerobot==0.4.4; }

# wants Python 3.12
suite_lerobot_0_6() {
  PYTHON=$(scripts/find-python.sh 3.12) || { echo "test-foreign: no Python 3.12 here that starts" >&2; exit 1; }
  export PYTHON
  with_lerobot lerobot_0_6 'lerobot[dataset]==0.6.1'
}

# RLlib wants another Gymnasium than everybody else, so Treadle's core is tested on that one, too. Ray leaves descriptors
# and a signal handler behind, so `no_residue` is off for what trains
suite_rllib() {
  environment rllib 'ray[rllib]==2.60.0' torch==2.13.0 'pytest-xdist>=3.6'
  $python -m pytest -q --noconftest -p no:cacheprovider tests/foreign/rllib_suite.py
  # two tests are about what Gymnasium has mended since
  $python -m pytest -q -p no:cacheprovider -k 'not spaces_and_metadata and not calls_and_attributes' \
    tests/vector/test_equal_to_sync.py tests/vector/test_vector_env.py tests/vector/test_make_vec.py \
    tests/vector/test_entry_points.py tests/sample/test_schedule.py tests/sample/test_evaluate.py
  $python -m benchmarks.env_runners
}

# ----------------------------------------------------------------------------------------------------------------------

case ${1:-} in
  --list) suites; exit ;;
  --one) "suite_$2"; exit ;; # in a process of its own, in which any command that fails ends the suite
esac
read -ra names <<<"${*:-$(suites | xargs)}"
for name in "${names[@]}"; do
  if ! declare -F "suite_$name" >/dev/null; then
    echo "test-foreign: there is no suite $name; there are: $(suites | xargs)" >&2
    exit 2
  fi
done
failed=()
for name in "${names[@]}"; do
  echo "test-foreign: $name"
  scripts/test-foreign.sh --one "$name" || failed+=("$name")
done
echo "test-foreign: ran: ${names[*]:-none}; failed: ${failed[*]:-none}"
[ ${#failed[@]} -eq 0 ]
