#!/usr/bin/env bash
# What is only true once it ran on a GPU, in one command and about five minutes. Needs nvcc, or cubins built already.
#
#   bash tools/gpu_check.sh [OUT] [HOST_VECTORS]
#
# OUT gets logs and results; HOST_VECTORS is a file that `FOXHUNT_DRIVER=hostsim python tools/golden_vectors.py record FILE` made.
# Runs: the device tests, compute-sanitizer (memcheck, racecheck, initcheck) over three steps ungraphed and three replays,
# verification, agreement with hostsim, the step benchmark. Exit code 1 when any of them fails.
set -u
cd "$(dirname "$0")/.." || exit 1
OUT=${1:-build/gpu-check}
VECTORS=${2:-}
PY=${PYTHON:-python3}
STEPS=${STEPS:-build tests memcheck racecheck initcheck agree bench}
mkdir -p "$OUT"
export FOXHUNT_DRIVER=cuda PYTHONUNBUFFERED=1
failed=""

step() { # step NAME SECONDS COMMAND...
  local name=$1 limit=$2 start=$SECONDS
  shift 2
  case " $STEPS " in *" $name "*) ;; *) return ;; esac
  timeout -k 5 "$limit" "$@" >"$OUT/$name.log" 2>&1
  local rc=$?
  [ $rc = 0 ] || failed="$failed $name"
  echo "== $name: exit $rc, $((SECONDS - start)) s: $(grep -v '^$' "$OUT/$name.log" | tail -n 1 | cut -c1-220)"
}

step build 240 "$PY" tools/build.py
step tests 400 "$PY" -m pytest -q -m gpu --foxhunt-driver=cuda -p no:cacheprovider tests
for tool in memcheck racecheck initcheck; do
  step $tool 150 compute-sanitizer --tool $tool --error-exitcode 9 "$PY" tools/sanitize_steps.py
done
[ -n "$VECTORS" ] && step agree 100 "$PY" tools/golden_vectors.py compare "$VECTORS"
step bench 200 "$PY" tools/bench/core_step.py --configurations A,B,C --out "$OUT"
[ -z "$failed" ] && echo "all passed" || { echo "failed:$failed"; exit 1; }
