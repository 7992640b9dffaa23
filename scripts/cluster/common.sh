# Sourced by cluster.sh and images.sh: words to the user, Debian packages, waiting.
# shellcheck shell=bash disable=SC2034,SC2154

say() { printf '%s: %s\n' "$(basename "$0" .sh)" "$*" >&2; }
fail() { say "$@"; exit 1; }

# debian COMMAND=PACKAGE...: install the packages whose command is missing, as root, else say which they are.
debian() {
    local pair missing=()
    for pair in "$@"; do
        command -v "${pair%%=*}" >/dev/null || missing+=("${pair#*=}")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        fail "missing here: ${missing[*]}; ask the machine's administrator for \`apt-get install ${missing[*]}\`"
    fi
    say "installing the Debian packages ${missing[*]}"
    # Packaged daemons must not start by themselves: what runs here is started by these scripts.
    export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
    local install=(apt-get install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=300 "${missing[@]}")
    "${install[@]}" >/dev/null 2>&1 || { apt-get update -qq && "${install[@]}" >/dev/null; }
}

# wait_for SECONDS WHAT COMMAND...: poll the command until it succeeds, else end with a sentence.
wait_for() {
    local end=$((SECONDS + $1)) what=$2
    shift 2
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $end ] || fail "waited in vain for $what; logs are in $STATE/logs"
        sleep 0.3
    done
}
