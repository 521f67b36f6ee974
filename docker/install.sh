#!/bin/sh
# Install a hash-locked requirements file with uv, into the environment of the given Python.
#
#   docker/install.sh PYTHON REQUIREMENTS [BACKEND]
#
# UV is the uv command (default: uv of that environment). BACKEND is the source of torch and torchvision:
#   locked   the lock file (default): on Linux the CUDA builds, which also run on a CPU
#   cpu      PyTorch's CPU index, at the locked versions; uv checks the hashes that this index gives,
#            because the lock file has only those of the package index
#   wheels   every wheel in the folder WHEELS, of any version: no index, so no hashes
# cpu and wheels do not install the lock file's CUDA packages.
set -eu

python=$1
lock=$2
backend=${3:-locked}
uv="${UV:-$python -m uv} pip"

# Install everything except torch and the packages of its CUDA builds.
install_rest() {
    rest=$(mktemp)
    trap 'rm -f "$rest"' EXIT
    # A requirement is a line that starts with a name, and the indented lines after it.
    awk '/^[a-z]/ { keep = $0 !~ /^(torch|torchvision|triton|nvidia-[a-z0-9-]+|cuda-[a-z-]+)[=[]/ }
         keep' "$lock" >"$rest"
    $uv install --python "$python" --require-hashes --no-deps -r "$rest"
}

case $backend in
locked)
    $uv install --python "$python" --require-hashes --no-deps -r "$lock"
    ;;
cpu)
    install_rest
    pins=$(sed -nE 's/^((torch|torchvision)==[^ ;\\]+).*/\1/p' "$lock")
    # shellcheck disable=SC2086  # several words
    $uv install --python "$python" --no-deps --torch-backend cpu $pins
    ;;
wheels)
    set -- "${WHEELS:-wheels}"/*.whl
    if [ ! -e "$1" ]; then
        echo "install.sh: backend wheels: no wheel in ${WHEELS:-wheels}; run docker build with --build-context wheels=FOLDER" >&2
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
