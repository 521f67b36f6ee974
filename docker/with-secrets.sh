#!/bin/sh
# Run a command that asks the package index, with what the build was given as secrets:
#
#   --secret id=ca,src=FILE       the certificates to trust, where a proxy has its own
#   --secret id=index,src=FILE    the index's address, where it is another one
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
