#!/usr/bin/env bash
# debian.sh PACKAGE...: installs Debian packages as root; otherwise says which ones are missing. apt locks its lists for
# one caller only and turns the others away, so parallel calls wait for each other here.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "debian: missing here: $*. Ask the machine's administrator for \`apt-get install $*\`, or your system's packages." >&2
    exit 1
fi
mkdir -p .dapo
exec 9>.dapo/debian.lock
flock 9
echo "debian: installing $*" >&2
# Packaged daemons must not start by themselves: what runs here is started by the project's own scripts and tests.
export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
install=(apt-get install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=300 "$@")
"${install[@]}" >/dev/null 2>&1 9>&- || { apt-get update -qq 9>&- && "${install[@]}" >/dev/null 9>&-; }
