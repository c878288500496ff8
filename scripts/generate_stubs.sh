#!/bin/sh
# Generates the Python stubs of proto/ into python/ (or into the folder given as the first argument).
#
# The old compiler is on purpose: code from grpcio-tools 1.76.0 runs on protobuf 6 and 7, newer code on 7 alone.
# It lives in an environment of its own (.tools/stubs), so that its protobuf does not meet the project's.
set -eu
cd "$(dirname "$0")/.."
out=${1:-python}
tools=.tools/stubs
if ! [ -x "$tools/bin/python" ] || ! "$tools/bin/python" -c 'import grpc_tools' 2>/dev/null; then
    "${PYTHON:-python3}" -m venv "$tools"
    "$tools/bin/python" -m pip install -q 'grpcio-tools==1.76.0' 'setuptools<81'
fi
mkdir -p "$out"
"$tools/bin/python" -W ignore -m grpc_tools.protoc -Iproto \
    --python_out="$out" --pyi_out="$out" --grpc_python_out="$out" \
    proto/chairlift/v1/*.proto
