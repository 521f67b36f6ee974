#!/bin/sh
# Trains digits-ddp in one container on this machine with 2 ranks.
# Your own TRAINER_OUT and TRAINER_DATA, folders of this machine, win over the job file's.
set -eu
out=${TRAINER_OUT:-}
[ -n "$out" ] || out=build/digits-ddp/docker
mkdir -p "$out"
out=$(cd "$out" && pwd)
terminal=
if [ -t 0 ] && [ -t 1 ]; then terminal='--interactive --tty'; fi
# The caller's user, not the image's, so that the run folder is the caller's too.
# shellcheck disable=SC2086  # two words are wanted
exec docker run --rm $terminal \
    --name digits-ddp \
    --user "$(id -u):$(id -g)" \
    --read-only \
    --tmpfs /tmp:rw,exec,mode=1777 \
    --shm-size 536870912 \
    --ulimit stack=67108864 \
    --cap-drop ALL \
    --security-opt no-new-privileges \
    --stop-timeout 60 \
    --mount type=bind,source="$out",target=/out/digits-ddp \
    --env PET_NNODES=1 \
    --env PET_NPROC_PER_NODE=2 \
    --env PET_SHUTDOWN_TIMEOUT=50 \
    --env TRAINER_OUT=/out/digits-ddp \
    --env TRAINER_TASK=digits \
    --env TRAINER_MODE=ddp \
    --env TRAINER_EPOCHS=30 \
    --env TRAINER_GLOBAL_BATCH=32 \
    --env HOME=/tmp \
    muster:cpu
