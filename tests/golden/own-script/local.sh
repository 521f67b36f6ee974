#!/bin/sh
# Runs own-script on this machine with 2 ranks. launch.pyz must be next to this file.
# What the job file leaves open comes from your environment: PYTHON, TRAINER_*. Your own TRAINER_OUT
# and TRAINER_DATA, which are paths of a machine, win.
set -eu
if [ ! -d k8s/jobs/own_script ]; then
    echo "$0: no code folder" k8s/jobs/own_script "here; run this in the folder in which render.py ran" >&2
    exit 64
fi
[ -n "${TRAINER_OUT:-}" ] || TRAINER_OUT=build/own-script/run
mkdir -p "$TRAINER_OUT"
TRAINER_OUT=$(cd "$TRAINER_OUT" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
if [ ! -e "$here"/launch.pyz ]; then
    echo "$0: launch.pyz is not next to it; write both with render.py -o DIR" >&2
    exit 64
fi
export TRAINER_OUT
# One launcher for all nodes: it finds a free port itself.
unset PET_NODE_RANK PET_MASTER_ADDR PET_MASTER_PORT PET_RDZV_BACKEND PET_LOCAL_ADDR
export PET_NNODES=1
export PET_NPROC_PER_NODE=2
export PET_SHUTDOWN_TIMEOUT=110
export MUSTER_EXIT_CODES=3=72
export MUSTER_PATTERNS='{"step": "\\bstep=([0-9]+)", "loss": "\\bloss=([-+]?(?:[0-9]+\\.?[0-9]*|\\.[0-9]+)(?:[eE][-+]?[0-9]+)?|nan|inf)", "samples_per_second": "\\bsamples_per_second=([-+]?(?:[0-9]+\\.?[0-9]*|\\.[0-9]+)(?:[eE][-+]?[0-9]+)?|nan|inf)", "checkpoint": "\\bcheckpoint=(\\S+)"}'
folder=$(cd k8s/jobs/own_script && pwd)
export PYTHONPATH="$folder${PYTHONPATH:+:$PYTHONPATH}"
export PET_MAX_RESTARTS=3
python=${PYTHON:-python3}
# A path from here leads elsewhere from the folder.
case $python in */*) python=$(cd "$(dirname "$python")" && pwd)/$(basename "$python") ;; esac
cd "$folder"
exec "$python" "$here/launch.pyz" train.py --steps 200
