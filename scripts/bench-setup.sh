#!/usr/bin/env bash
# Makes .dapo/bench-venv, with what the benchmarks compare with (requirements/bench.txt: boto3, MLflow, TensorBoard, TRL),
# apart from .dapo/venv so that neither changes the other. Prints its Python.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly VENV=.dapo/bench-venv LOCK=requirements/bench.txt STAMP=.dapo/bench-venv/dapo-stamp

checksum() { cat "$LOCK" scripts/bench-setup.sh | sha256sum | cut -d' ' -f1; }

mkdir -p .dapo
exec 9>.dapo/bench-setup.lock
flock 9
if [ "$(cat $STAMP 2>/dev/null)" != "$(checksum)" ]; then
    if [ ! -x .dapo/venv/bin/python ]; then scripts/setup.sh >&2; fi
    uv=$(scripts/setup.sh uv)
    printf 'set-up: installing %s into %s\n' "$LOCK" "$VENV" >&2
    "$uv" venv --quiet --clear --python .dapo/venv/bin/python "$VENV"
    "$uv" pip sync --quiet --python "$VENV/bin/python" --require-hashes "$LOCK"
    checksum >$STAMP
fi
echo "$PWD/$VENV/bin/python"
