#!/usr/bin/env bash
# Makes .dapo/venv: Python, the locked packages of requirements/dev.txt and this project, editable. `make` calls it
# before everything it does; once all is there it only compares a checksum. What it lacks it installs, and says so.
set -euo pipefail
cd "$(dirname "$0")/.."
export DEBIAN_FRONTEND=noninteractive

readonly HOME_FOLDER=.dapo VENV=.dapo/venv LOCK=requirements/dev.txt STAMP=.dapo/venv/dapo-stamp
readonly UV_VERSION=0.13.8
readonly WANTED='>=3.11,<3.13'

say() { printf 'set-up: %s\n' "$*" >&2; }
fail() { say "$@"; exit 1; }

# debian PACKAGE WHY: install a Debian package as root, else say how.
debian() {
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        say "installing the Debian package $1 ($2)"
        apt-get install -y -qq --no-install-recommends "$1" >/dev/null 2>&1 ||
            { apt-get update -qq && apt-get install -y -qq --no-install-recommends "$1"; } >/dev/null
    else
        fail "$2 is missing: ask the machine's administrator for \`apt-get install $1\`, or your system's package of it"
    fi
}

checksum() { cat "$LOCK" pyproject.toml scripts/setup.sh | sha256sum | cut -d' ' -f1; }

works() { "$VENV/bin/python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' 2>/dev/null; }

# The uv of the machine, else one of our own under .dapo/uv: nothing outside this folder is changed.
find_uv() {
    UV=$(command -v uv || true)
    if [ -n "$UV" ] && "$UV" --version >/dev/null 2>&1; then return; fi
    UV=$HOME_FOLDER/uv/bin/uv
    if [ -x "$UV" ]; then return; fi
    command -v python3 >/dev/null || debian python3 "Python 3"
    python3 -m pip --version >/dev/null 2>&1 || debian python3-pip "pip"
    say "uv is not there: installing uv $UV_VERSION with pip into $HOME_FOLDER/uv"
    python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore \
        --target "$HOME_FOLDER/uv" "uv==$UV_VERSION"
}

libraries() {
    ldconfig -p 2>/dev/null | grep -q 'libnuma\.so\.1' || debian libnuma1 "libnuma, which vLLM loads"
}

make_venv() {
    works && return
    local python
    python=$("$UV" python find --system --no-python-downloads "$WANTED" 2>/dev/null) || fail \
        "Python 3.11 or 3.12 is needed and neither is there: \`apt-get install python3.11\` (Debian 12), \`apt-get" \
        "install python3.12\` (Ubuntu 24.04) or \`uv python install 3.12\`, then again"
    say "making $VENV with $python"
    "$UV" venv --quiet --clear --python "$python" "$VENV"
}

install() {
    say "installing $(grep -c '^[A-Za-z].*==' "$LOCK") packages of $LOCK; the first time downloads about 3 GB"
    local quiet=--quiet
    [ ! -t 2 ] || quiet= # a person sees the downloads
    # Bytecode now, or the first run of Ray, vLLM and verl waits minutes for it.
    UV_COMPILE_BYTECODE=1 "$UV" pip sync $quiet --python "$VENV/bin/python" --require-hashes "$LOCK"
    # With the lock's setuptools: nothing is fetched that the lock does not name.
    "$UV" pip install --quiet --python "$VENV/bin/python" --no-deps --no-build-isolation --offline --editable .
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
libraries
make_venv
rm -f $STAMP
install
checksum >$STAMP
say "done in $((SECONDS - begun)) s"
