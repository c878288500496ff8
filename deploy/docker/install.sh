#!/bin/sh
# The steps of the Dockerfile, which also run without Docker:
#   install.sh wheel FOLDER                       build the wheel of the sources in the working folder
#   install.sh environment FOLDER WHEELS EXTRAS   install it; TORCH_INDEX names the index of PyTorch
set -eu

case "$1" in
  wheel)
    python3 -m venv "$2/build"
    "$2/build/bin/pip" install --quiet --disable-pip-version-check 'maturin>=1.13,<2'
    "$2/build/bin/maturin" build --release --locked --quiet --out "$2"
    rm -r "$2/build"
    ;;
  environment)
    python3 -m venv "$2"
    pip="$2/bin/pip install --quiet --disable-pip-version-check --no-cache-dir"
    if [ -n "${TORCH_INDEX:-}" ]; then
      $pip --index-url "$TORCH_INDEX" 'torch>=2.10,<3'
    fi
    for wheel in "$3"/chairlift-*.whl; do
      $pip "$wheel[$4]"
    done
    ;;
  *)
    echo "install.sh: expected wheel or environment, got $1" >&2
    exit 2
    ;;
esac
