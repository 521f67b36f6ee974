#!/bin/sh
# Trains plain in one container on this machine with 2 ranks.
# Your own TRAINER_OUT and TRAINER_DATA, folders of this machine, win over the job file's.
set -eu
out=${TRAINER_OUT:-}
[ -n "$out" ] || out=build/plain/docker
mkdir -p "$out"
out=$(cd "$out" && pwd)
terminal=
if [ -t 0 ] && [ -t 1 ]; then terminal='--interactive --tty'; fi
# The caller's user, not the image's, so that the run folder is the caller's too.
# shellcheck disable=SC2086  # two words are wanted
exec docker run --rm $terminal \
    --name plain \
    --user "$(id -u):$(id -g)" \
    --read-only \
    --tmpfs /tmp:rw,exec,mode=1777 \
    --shm-size 8589934592 \
    --ulimit stack=67108864 \
    --cap-drop ALL \
    --security-opt no-new-privileges \
    --stop-timeout 120 \
    --mount type=bind,source="$out",target=/out/plain \
    --env PET_NNODES=1 \
    --env PET_NPROC_PER_NODE=2 \
    --env PET_SHUTDOWN_TIMEOUT=110 \
    --env TRAINER_OUT=/out/plain \
    --env TRAINER_TASK=digits \
    --env TRAINER_GLOBAL_BATCH=64 \
    --env HOME=/tmp \
    ghcr.io/example/trainer:1.0
