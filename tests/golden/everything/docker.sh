#!/bin/sh
# Trains everything in one container on this machine with 32 ranks.
# Your own TRAINER_OUT and TRAINER_DATA, folders of this machine, win over the job file's.
set -eu
if ! printenv HF_TOKEN >/dev/null; then
    echo "$0: set and export HF_TOKEN; on a cluster its value is looked up" >&2
    exit 64
fi
if ! printenv MACHINE >/dev/null; then
    echo "$0: set and export MACHINE; on a cluster its value is looked up" >&2
    exit 64
fi
out=${TRAINER_OUT:-}
[ -n "$out" ] || out=build/everything/docker
mkdir -p "$out"
out=$(cd "$out" && pwd)
data=${TRAINER_DATA:-}
if [ -z "$data" ]; then
    echo "$0: set TRAINER_DATA to the folder that holds the data; the job file has it on a cluster" >&2
    exit 64
fi
terminal=
if [ -t 0 ] && [ -t 1 ]; then terminal='--interactive --tty'; fi
# The caller's user, not the image's, so that the run folder is the caller's too.
# shellcheck disable=SC2086  # two words are wanted
exec docker run --rm $terminal \
    --pull missing \
    --name everything \
    --gpus all \
    --ulimit memlock=-1 \
    --user "$(id -u):$(id -g)" \
    --read-only \
    --tmpfs /tmp:rw,exec,mode=1777 \
    --shm-size 274877906944 \
    --ulimit stack=67108864 \
    --cap-drop ALL \
    --security-opt no-new-privileges \
    --stop-timeout 300 \
    --mount type=bind,source="$out",target=/out/everything \
    --mount type=bind,source="$data",target=/data/books,readonly \
    --env PET_NNODES=1 \
    --env PET_NPROC_PER_NODE=32 \
    --env PET_SHUTDOWN_TIMEOUT=290 \
    --env TRAINER_DATA=/data/books \
    --env TRAINER_OUT=/out/everything \
    --env TRAINER_TASK=my_package.tasks:Language \
    --env TRAINER_MODE=ddp \
    --env TRAINER_MESH=dp_replicate=32 \
    --env TRAINER_STEPS=10000 \
    --env TRAINER_GLOBAL_BATCH=2048 \
    --env TRAINER_MICRO_BATCH=16 \
    --env TRAINER_OPTIMIZER=adamw \
    --env TRAINER_LR=0.0001 \
    --env TRAINER_PRECISION=bf16 \
    --env TRAINER_LOG=json \
    --env TRAINER_DEVICES=32 \
    --env HOME=/tmp \
    --env 'GREETING=two lines: "quoted",
it'"'"'s $(PET_NNODES) and $HOME # kept as they are
' \
    --env SWITCH=yes \
    --env HF_TOKEN \
    --env WANDB_MODE \
    --env MACHINE \
    registry.example:5000/team/trainer:1.0@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef
