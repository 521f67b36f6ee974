#!/bin/sh
# Install a hash-locked requirements file with uv, into the environment of the given Python.
#
#   docker/install.sh PYTHON REQUIREMENTS [BACKEND]
#
# uv is taken from that environment, or from the command UV. BACKEND `locked` (the default) installs what the lock names: on Linux the CUDA builds, which also
# run on a CPU. `cpu` takes torch and torchvision, at the locked versions, from PyTorch's own CPU
# index instead and leaves the CUDA packages out; their hashes are that index's business, since the
# lock knows only the builds of the package index.
set -eu

python=$1
lock=$2
backend=${3:-locked}
uv="${UV:-$python -m uv} pip"

case $backend in
locked)
    $uv install --python "$python" --require-hashes -r "$lock"
    ;;
cpu)
    rest=$(mktemp)
    trap 'rm -f "$rest"' EXIT
    # A requirement is a line that starts with a name, and the lines below it that are indented.
    awk '/^[a-z]/ { keep = $0 !~ /^(torch|torchvision|triton|nvidia-[a-z0-9-]+|cuda-[a-z-]+)[=[]/ }
         keep' "$lock" >"$rest"
    pins=$(sed -nE 's/^((torch|torchvision)==[^ ;\\]+).*/\1/p' "$lock")
    $uv install --python "$python" --require-hashes --no-deps -r "$rest"
    # shellcheck disable=SC2086  # two words are wanted
    $uv install --python "$python" --no-deps --torch-backend cpu $pins
    ;;
*)
    echo "install.sh: backend '$backend': choose locked or cpu" >&2
    exit 64
    ;;
esac
