#!/usr/bin/env bash
# cluster.sh up | down | load IMAGE ID | has IMAGE ID | kubeconfig: a Kubernetes cluster to try the platform on; `make cluster`.
#
# Three kinds, told by DAPO_CLUSTER or found out:
#   existing   the cluster of $KUBECONFIG; only when asked, since the tests install and remove things in it
#   kind       where Docker answers and kind is installed
#   process    one node from plain processes on this machine, as root: kubelet, containerd and the rest (process.sh)
# Everything lies under .dapo/cluster; afterwards `export KUBECONFIG=.dapo/cluster/kubeconfig` is all that is needed.
set -euo pipefail
cd "$(dirname "$0")/.."
readonly ROOT=$PWD STATE=$PWD/.dapo/cluster
source scripts/cluster/common.sh
source scripts/cluster/kinds.sh
source scripts/cluster/process.sh

choose_kind() {
    if [ -n "${DAPO_CLUSTER:-}" ]; then echo "$DAPO_CLUSTER"; return; fi
    if [ -s "$STATE/kind" ]; then cat "$STATE/kind"; return; fi
    if command -v kind >/dev/null && docker info >/dev/null 2>&1; then echo kind; return; fi
    echo process
}

KIND=$(choose_kind)
case $KIND in
    existing | kind | process) ;;
    *) fail "DAPO_CLUSTER is '$KIND': say existing, kind or process" ;;
esac

mkdir -p "$STATE"
exec 9>"$STATE.lock"
flock 9

case ${1:-} in
    up)
        echo "$KIND" >"$STATE/kind"
        "${KIND}_up"
        say "ready: export KUBECONFIG=.dapo/cluster/kubeconfig"
        ;;
    down)
        "${KIND}_down"
        rm -rf "$STATE" "$STATE.lock"
        ;;
    load)
        say "loading ${2:?name the image whose archive standard input is}"
        "${KIND}_load" "$2"
        echo "$2 ${3:-}" >>"$STATE/loaded"
        ;;
    has) [ -s "$STATE/loaded" ] && [ "$(grep "^$2 " "$STATE/loaded" | tail -1)" = "$2 $3" ] ;;
    kubeconfig) echo "$STATE/kubeconfig" ;;
    *) fail "say: cluster.sh up | down | load IMAGE ID <ARCHIVE | has IMAGE ID | kubeconfig" ;;
esac
