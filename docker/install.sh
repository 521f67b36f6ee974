#!/bin/sh
# Install a hash-locked requirements file with uv, into the environment of the given Python.
#
#   docker/install.sh PYTHON REQUIREMENTS [BACKEND]
#
# uv is taken from that environment, or from the command UV. BACKEND is where torch and torchvision come from:
#   locked   the lock (the default): on Linux the CUDA builds, which also run on a CPU
#   cpu      PyTorch's own CPU index, at the locked versions; their hashes are that index's business,
#            since the lock knows only the builds of the package index
#   wheels   the folder WHEELS: every wheel in it, whatever its version
# cpu and wheels leave the lock's CUDA packages out.
set -eu

python=$1
lock=$2
backend=${3:-locked}
uv="${UV:-$python -m uv} pip"

# Everything but torch and what only its CUDA builds need.
install_rest() {
    rest=$(mktemp)
    trap 'rm -f "$rest"' EXIT
    # A requirement is a line that starts with a name, and the lines below it that are indented.
    awk '/^[a-z]/ { keep = $0 !~ /^(torch|torchvision|triton|nvidia-[a-z0-9-]+|cuda-[a-z-]+)[=[]/ }
         keep' "$lock" >"$rest"
    $uv install --python "$python" --require-hashes --no-deps -r "$rest"
}

case $backend in
locked)
    $uv install --python "$python" --require-hashes -r "$lock"
    ;;
cpu)
    install_rest
    pins=$(sed -nE 's/^((torch|torchvision)==[^ ;\\]+).*/\1/p' "$lock")
    # shellcheck disable=SC2086  # two words are wanted
    $uv install --python "$python" --no-deps --torch-backend cpu $pins
    ;;
wheels)
    set -- "${WHEELS:-wheels}"/*.whl
    if [ ! -e "$1" ]; then
        echo "install.sh: backend wheels: no wheel in ${WHEELS:-wheels}; docker build wants --build-context wheels=FOLDER" >&2
        exit 64
    fi
    install_rest
    $uv install --python "$python" --no-deps "$@"
    ;;
*)
    echo "install.sh: backend '$backend': choose locked, cpu or wheels" >&2
    exit 64
    ;;
esac
