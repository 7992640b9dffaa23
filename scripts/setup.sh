#!/usr/bin/env bash
# Creates .dapo/venv: Python, the locked packages of requirements/dev.txt and this project, editable. `make` runs it
# before every other target; once the environment is complete it only compares a checksum. It installs what is missing.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly HOME_FOLDER=.dapo VENV=.dapo/venv LOCK=requirements/dev.txt STAMP=.dapo/venv/dapo-stamp
readonly BUILD_LOCK=requirements/build.txt # has uv
readonly RANGE='(3, 11) <= sys.version_info < (3, 13)'

say() { printf 'set-up: %s\n' "$*" >&2; }
fail() { say "$@"; exit 1; }

checksum() { cat "$LOCK" pyproject.toml setup.py scripts/setup.sh dashboard/dapo_dashboard/uplot.py | sha256sum | cut -d' ' -f1; }

works() { "$VENV/bin/python" -c "import sys; sys.exit(not ($RANGE))" 2>/dev/null; }

# The machine's uv, or one installed under .dapo/uv: nothing outside this folder is changed.
find_uv() {
    UV=$(command -v uv || true)
    if [ -n "$UV" ] && "$UV" --version >/dev/null 2>&1; then return; fi
    UV=$HOME_FOLDER/uv/bin/uv
    if [ -x "$UV" ]; then return; fi
    command -v python3 >/dev/null || scripts/debian.sh python3
    python3 -m pip --version >/dev/null 2>&1 || scripts/debian.sh python3-pip
    say "uv not found: installing the one of $BUILD_LOCK with pip into $HOME_FOLDER/uv"
    python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps --only-binary :all: \
        --target "$HOME_FOLDER/uv" --require-hashes --requirement "$BUILD_LOCK"
}

# `python3` if its version fits, otherwise any that fits and that the machine or uv has.
find_python() {
    local candidate
    for candidate in python3 python3.12 python3.11; do
        "$candidate" -c "import sys; $RANGE or sys.exit(1); print(sys.executable)" 2>/dev/null && return
    done
    "$UV" python find --system --no-python-downloads '>=3.11,<3.13' 2>/dev/null
}

make_venv() {
    works && return
    local python
    python=$(find_python) || fail "Python 3.11 or 3.12 is required and was not found:" \
        "\`apt-get install python3.11\` (Debian 12), \`apt-get install python3.12\` (Ubuntu 24.04) or" \
        "\`uv python install 3.12\`, then again"
    say "creating $VENV with $python"
    "$UV" venv --quiet --clear --python "$python" "$VENV"
}

libraries() {
    "$VENV/bin/python" -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2>/dev/null ||
        scripts/debian.sh libnuma1 # vLLM loads it
}

install() {
    say "installing $(grep -c '^[A-Za-z].*==' "$LOCK") packages of $LOCK; the first time downloads about 3 GB"
    local quiet=--quiet
    [ ! -t 2 ] || quiet= # a terminal shows the downloads
    # Compile bytecode now: otherwise the first run of Ray, vLLM and verl waits minutes for it.
    UV_COMPILE_BYTECODE=1 "$UV" pip sync $quiet --python "$VENV/bin/python" --require-hashes "$LOCK"
    # With the setuptools of the lock file: nothing else is downloaded.
    "$UV" pip install --quiet --python "$VENV/bin/python" --no-deps --no-build-isolation --offline --editable .
}

# What draws the dashboard's charts. Whoever works on something else needs no registry of npm.
charts() {
    local npm
    npm=$(scripts/npm.sh) && PATH="$PATH:$(dirname "$npm")" "$VENV/bin/python" -m dapo_dashboard.uplot ||
        say "the dashboard does not start until that is done; everything else works"
}

if [ "${1:-}" = uv ]; then # for `make lock`, which needs no environment
    mkdir -p $HOME_FOLDER && find_uv && echo "$UV"
    exit
fi
if [ "$(cat $STAMP 2>/dev/null)" = "$(checksum)" ] && works; then exit; fi
mkdir -p $HOME_FOLDER
exec 9>$HOME_FOLDER/setup.lock
flock 9
begun=$SECONDS
find_uv
make_venv
libraries
rm -f $STAMP
install
charts
checksum >$STAMP
say "done in $((SECONDS - begun)) s"
