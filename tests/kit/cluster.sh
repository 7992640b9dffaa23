#!/usr/bin/env bash
# cluster.sh up | down | load IMAGE ID | has IMAGE ID | kubeconfig: a Kubernetes cluster for trying the platform; `make cluster`.
#
# Three kinds, set by DAPO_CLUSTER or detected:
#   existing   the cluster of $KUBECONFIG; never detected, since the tests install and remove things in it
#   kind       if Docker is running and kind is installed
#   process    one node from plain processes on this machine, as root: kubelet, containerd and the rest (process.sh)
# Everything is under .dapo/cluster; afterwards `source .dapo/cluster/env` sets KUBECONFIG and puts helm and kubectl on the
# PATH, those of this machine or else the versions that the tests use.
set -euo pipefail
cd "$(dirname "$0")/../.."
readonly ROOT=$PWD STATE=$PWD/.dapo/cluster
source scripts/common.sh
source tests/kit/cluster/kinds.sh
source tests/kit/cluster/process.sh

choose_kind() {
    if [ -n "${DAPO_CLUSTER:-}" ]; then echo "$DAPO_CLUSTER"; return; fi
    if [ -s "$STATE/kind" ]; then cat "$STATE/kind"; return; fi
    if command -v kind >/dev/null && docker info >/dev/null 2>&1; then echo kind; return; fi
    echo process
}

# Links what the machine lacks; nothing outside .dapo changes.
write_environment() {
    local name
    mkdir -p "$STATE/bin"
    for name in helm kubectl; do
        command -v "$name" >/dev/null || ln -sf "$(tests/kit/tools.sh "$name")" "$STATE/bin/$name"
    done
    printf 'export KUBECONFIG=%q PATH=%q:"$PATH"\n' "$STATE/kubeconfig" "$STATE/bin" >"$STATE/env"
}

KIND=$(choose_kind)
case $KIND in
    existing | kind | process) ;;
    *) fail "DAPO_CLUSTER is '$KIND'; it must be one of existing, kind, process" ;;
esac

mkdir -p "$STATE"
exec 9>"$STATE.lock"
flock 9

case ${1:-} in
    up)
        echo "$KIND" >"$STATE/kind"
        "${KIND}_up"
        write_environment
        say "ready. Next: source .dapo/cluster/env"
        ;;
    down)
        "${KIND}_down"
        rm -rf "$STATE" "$STATE.lock"
        ;;
    load)
        say "loading ${2:?expected the name of the image whose archive is on standard input}"
        "${KIND}_load" "$2"
        echo "$2 ${3:-}" >>"$STATE/loaded"
        ;;
    has) [ -s "$STATE/loaded" ] && [ "$(grep "^$2 " "$STATE/loaded" | tail -1)" = "$2 $3" ] ;;
    kubeconfig) echo "$STATE/kubeconfig" ;;
    *) fail "usage: cluster.sh up | down | load IMAGE ID <ARCHIVE | has IMAGE ID | kubeconfig" ;;
esac
