#!/bin/sh
# Trains everything on this machine with 32 ranks. Run it where `import trainer` works.
# What the job file leaves open comes from your environment: PYTHON, TRAINER_*. Your own TRAINER_OUT
# and TRAINER_DATA, which are paths of a machine, win.
set -eu
if [ -z "${TRAINER_DATA:-}" ]; then
    echo "$0: set TRAINER_DATA to the folder that holds the data; the job file has it on a cluster" >&2
    exit 64
fi
if ! printenv HF_TOKEN >/dev/null; then
    echo "$0: set and export HF_TOKEN; on a cluster its value is looked up" >&2
    exit 64
fi
if ! printenv MACHINE >/dev/null; then
    echo "$0: set and export MACHINE; on a cluster its value is looked up" >&2
    exit 64
fi
[ -n "${TRAINER_OUT:-}" ] || TRAINER_OUT=build/everything/run
export TRAINER_OUT
# One launcher for all nodes: it finds a free port itself.
unset PET_NODE_RANK PET_MASTER_ADDR PET_MASTER_PORT PET_RDZV_BACKEND PET_LOCAL_ADDR
export PET_NNODES=1
export PET_NPROC_PER_NODE=32
export PET_SHUTDOWN_TIMEOUT=290
export TRAINER_TASK=my_package.tasks:Language
export TRAINER_MODE=ddp
export TRAINER_MESH=dp_replicate=32
export TRAINER_STEPS=10000
export TRAINER_GLOBAL_BATCH=2048
export TRAINER_MICRO_BATCH=16
export TRAINER_OPTIMIZER=adamw
export TRAINER_LR=0.0001
export TRAINER_PRECISION=bf16
export TRAINER_LOG=json
export GREETING='two lines: "quoted",
it'"'"'s $(PET_NNODES) and $HOME # kept as they are
'
export SWITCH=yes
exec "${PYTHON:-python3}" -m trainer.launch
