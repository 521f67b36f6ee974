#!/bin/sh
# Trains digits-ddp on this machine with 2 ranks. Run it where `import trainer` works.
# What the job file leaves open comes from your environment: PYTHON, TRAINER_*. Your own TRAINER_OUT
# and TRAINER_DATA, which are paths of a machine, win.
set -eu
[ -n "${TRAINER_OUT:-}" ] || TRAINER_OUT=build/digits-ddp/run
export TRAINER_OUT
# One launcher for all nodes: it finds a free port itself.
unset PET_NODE_RANK PET_MASTER_ADDR PET_MASTER_PORT PET_RDZV_BACKEND PET_LOCAL_ADDR
export PET_NNODES=1
export PET_NPROC_PER_NODE=2
export PET_SHUTDOWN_TIMEOUT=50
export TRAINER_TASK=digits
export TRAINER_MODE=ddp
export TRAINER_EPOCHS=30
export TRAINER_GLOBAL_BATCH=32
exec "${PYTHON:-python3}" -m trainer.launch
