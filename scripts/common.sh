# Sourced by cluster.sh and images.sh: messages, Debian packages, waiting.
# shellcheck shell=bash disable=SC2034,SC2154

say() { printf '%s: %s\n' "$(basename "$0" .sh)" "$*" >&2; }
fail() { say "$@"; exit 1; }

# debian COMMAND=PACKAGE...: install the packages whose command is missing.
debian() {
    local pair missing=()
    for pair in "$@"; do
        command -v "${pair%%=*}" >/dev/null || missing+=("${pair#*=}")
    done
    [ ${#missing[@]} = 0 ] || "$ROOT/scripts/debian.sh" "${missing[@]}"
}

# wait_for SECONDS WHAT COMMAND...: poll the command until it succeeds; fail after that many seconds.
wait_for() {
    local end=$((SECONDS + $1)) what=$2
    shift 2
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $end ] || fail "timed out waiting for $what; logs are in $STATE/logs"
        sleep 0.3
    done
}
