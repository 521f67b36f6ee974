#!/bin/sh
# Run a command that uses the package index, with the secrets of the build:
#
#   --secret id=ca,src=FILE       certificates to trust, for a proxy that has its own
#   --secret id=index,src=FILE    the address of another package index
set -eu

ca=/run/secrets/ca
index=/run/secrets/index
if [ -s "$ca" ]; then
    export SSL_CERT_FILE="$ca" PIP_CERT="$ca"
fi
if [ -s "$index" ]; then
    PIP_INDEX_URL=$(cat "$index")
    export PIP_INDEX_URL UV_DEFAULT_INDEX="$PIP_INDEX_URL"
fi
exec "$@"
