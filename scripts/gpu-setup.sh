#!/usr/bin/env bash
# Makes .dapo/gpu-venv, with what the GPU image holds (requirements/gpu.txt) and this project, apart from .dapo/venv:
# vLLM's builds for CUDA and for processors fill the same module. Prints its folder.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly VENV=.dapo/gpu-venv LOCK=requirements/gpu.txt STAMP=.dapo/gpu-venv/dapo-stamp

checksum() { cat "$LOCK" pyproject.toml scripts/gpu-setup.sh scripts/driver-stand-in.py | sha256sum | cut -d' ' -f1; }

missing() { ! "$VENV/bin/python" -c "import ctypes; ctypes.CDLL('$1')" 2>/dev/null; }

mkdir -p .dapo
exec 9>.dapo/gpu-setup.lock
flock 9
if [ "$(cat $STAMP 2>/dev/null)" != "$(checksum)" ]; then
    if [ ! -x .dapo/venv/bin/python ]; then scripts/setup.sh >&2; fi
    uv=$(scripts/setup.sh uv)
    printf 'set-up: installing %s into %s; it shares what .dapo/venv has\n' "$LOCK" "$VENV" >&2
    if [ ! -x $VENV/bin/python ]; then "$uv" venv --quiet --python .dapo/venv/bin/python "$VENV"; fi
    rm -f $STAMP
    "$uv" pip sync --quiet --python "$VENV/bin/python" --require-hashes "$LOCK"
    "$uv" pip install --quiet --python "$VENV/bin/python" --no-deps --no-build-isolation --offline --editable .
    if missing libnuma.so.1; then scripts/debian.sh libnuma1 >&2; fi
    if missing libcuda.so.1; then
        for tool in gcc nm; do command -v $tool >/dev/null || scripts/debian.sh gcc libc6-dev binutils >&2; done
        python3 scripts/driver-stand-in.py "$VENV" "$VENV/stand-ins"
    fi
    checksum >$STAMP
fi
echo "$PWD/$VENV"
