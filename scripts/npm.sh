#!/usr/bin/env bash
# Prints the path of npm: the machine's, or one installed from requirements/npm.txt under .dapo/npm.
set -euo pipefail
cd "$(dirname "$0")/.."

if npm=$(command -v npm) && "$npm" --version >/dev/null 2>&1; then echo "$npm"; exit; fi
venv=$PWD/.dapo/npm
if [ ! -x "$venv/bin/npm" ]; then
    echo "npm not found: installing the one of requirements/npm.txt into .dapo/npm" >&2
    uv=$(scripts/setup.sh uv)
    "$uv" venv --quiet --clear --python .dapo/venv/bin/python "$venv" # the set-up has made that one
    "$uv" pip sync --quiet --python "$venv/bin/python" --require-hashes requirements/npm.txt
fi
echo "$venv/bin/npm"
