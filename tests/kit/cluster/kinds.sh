# Sourced by cluster.sh: the kinds `existing` and `kind`.
# shellcheck shell=bash disable=SC2034,SC2154

command -v kubectl >/dev/null || kubectl() { "$(tests/kit/tools.sh kubectl)" "$@"; }

existing_up() {
    [ -n "${KUBECONFIG:-}" ] || fail "DAPO_CLUSTER=existing needs KUBECONFIG"
    kubectl get --raw /readyz >/dev/null || fail "the cluster of KUBECONFIG=$KUBECONFIG does not respond"
    kubectl config view --raw --flatten >"$STATE/kubeconfig.part"
    chmod 600 "$STATE/kubeconfig.part"
    mv "$STATE/kubeconfig.part" "$STATE/kubeconfig"
}

existing_down() { say "nothing is removed from an existing cluster"; }

existing_load() {
    fail "an existing cluster pulls its images: push $1 to a registry that it can reach, and set image.prefix to it"
}

readonly KIND_NAME=dapo

kind_up() {
    docker info >/dev/null 2>&1 || fail "kind needs a running Docker: \`docker info\` failed"
    kind get clusters 2>/dev/null | grep -qx $KIND_NAME || {
        rm -f "$STATE/loaded"
        kind create cluster --name $KIND_NAME --wait 300s
    }
    kind get kubeconfig --name $KIND_NAME >"$STATE/kubeconfig"
    chmod 600 "$STATE/kubeconfig"
}

kind_down() { kind delete cluster --name $KIND_NAME; }

kind_load() { # kind reads the archive once for each node
    cat >"$STATE/image.tar"
    kind load image-archive --name $KIND_NAME "$STATE/image.tar"
    rm -f "$STATE/image.tar"
}
