#!/bin/sh
# Runs own-script in one container on this machine with 2 ranks.
# Your own TRAINER_OUT and TRAINER_DATA, folders of this machine, win over the job file's.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
if [ ! -e "$here"/launch.pyz ]; then
    echo "$0: launch.pyz is not next to it; write both with render.py -o DIR" >&2
    exit 64
fi
if [ ! -e "$here"/code.tar.gz ]; then
    echo "$0: code.tar.gz is not next to it; write both with render.py -o DIR" >&2
    exit 64
fi
out=${TRAINER_OUT:-}
[ -n "$out" ] || out=build/own-script/docker
mkdir -p "$out"
out=$(cd "$out" && pwd)
terminal=
if [ -t 0 ] && [ -t 1 ]; then terminal='--interactive --tty'; fi
# The caller's user, not the image's, so that the run folder is the caller's too.
# shellcheck disable=SC2086  # two words are wanted
exec docker run --rm $terminal \
    --name own-script \
    --user "$(id -u):$(id -g)" \
    --read-only \
    --tmpfs /tmp:rw,exec,mode=1777 \
    --tmpfs /code:rw,exec,mode=1777 \
    --mount type=bind,source="$here"/launch.pyz,target=/muster/launch.pyz,readonly \
    --mount type=bind,source="$here"/code.tar.gz,target=/muster-code/code.tar.gz,readonly \
    --shm-size 536870912 \
    --ulimit stack=67108864 \
    --cap-drop ALL \
    --security-opt no-new-privileges \
    --stop-timeout 120 \
    --mount type=bind,source="$out",target=/out/own-script \
    --env PET_NNODES=1 \
    --env PET_NPROC_PER_NODE=2 \
    --env PET_MAX_RESTARTS=3 \
    --env PET_SHUTDOWN_TIMEOUT=110 \
    --env TRAINER_OUT=/out/own-script \
    --env MUSTER_PYTHONPATH=/code/.packages:/code \
    --env HOME=/tmp \
    --env MUSTER_EXIT_CODES=3=72 \
    --env 'MUSTER_PATTERNS={"step": "\\bstep=([0-9]+)", "loss": "\\bloss=([-+]?(?:[0-9]+\\.?[0-9]*|\\.[0-9]+)(?:[eE][-+]?[0-9]+)?|nan|inf)", "samples_per_second": "\\bsamples_per_second=([-+]?(?:[0-9]+\\.?[0-9]*|\\.[0-9]+)(?:[eE][-+]?[0-9]+)?|nan|inf)", "checkpoint": "\\bcheckpoint=(\\S+)"}' \
    --env MUSTER_CODE=/muster-code/code.tar.gz \
    --env MUSTER_CODE_SHA256=5bda46f7766a1ce5cc7b01d8b257bcc21f6683f119f157e1af08f54e34f727c8 \
    --env MUSTER_CODE_FOLDER=/code \
    --env MUSTER_CODE_COMMIT=c0ffeec0ffeec0ffeec0ffeec0ffeec0ffee-dirty \
    --entrypoint python3 \
    docker.io/pytorch/pytorch:2.9.0-cuda12.8-cudnn9-runtime /muster/launch.pyz train.py --steps 200
