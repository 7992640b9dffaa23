# Sourced by cluster.sh: the two kinds of cluster that somebody else runs.
# shellcheck shell=bash disable=SC2034,SC2154

command -v kubectl >/dev/null || kubectl() { "$(tests/kit/tools.sh kubectl)" "$@"; }

existing_up() {
    [ -n "${KUBECONFIG:-}" ] || fail "DAPO_CLUSTER=existing needs KUBECONFIG"
    kubectl get --raw /readyz >/dev/null || fail "the cluster of KUBECONFIG=$KUBECONFIG does not answer"
    kubectl config view --raw --flatten >"$STATE/kubeconfig.part"
    chmod 600 "$STATE/kubeconfig.part"
    mv "$STATE/kubeconfig.part" "$STATE/kubeconfig"
}

existing_down() { say "the cluster is yours: nothing is removed from it"; }

existing_load() {
    fail "this cluster pulls its images: push $1 to a registry it reaches, and name that registry in the chart's values"
}

readonly KIND_NAME=dapo

kind_up() {
    docker info >/dev/null 2>&1 || fail "kind needs a Docker that answers: \`docker info\` does not"
    kind get clusters 2>/dev/null | grep -qx $KIND_NAME || {
        rm -f "$STATE/loaded"
        kind create cluster --name $KIND_NAME --wait 300s
    }
    kind get kubeconfig --name $KIND_NAME >"$STATE/kubeconfig"
    chmod 600 "$STATE/kubeconfig"
}

kind_down() { kind delete cluster --name $KIND_NAME; }

kind_load() { # it reads the archive once for each node
    cat >"$STATE/image.tar"
    kind load image-archive --name $KIND_NAME "$STATE/image.tar"
    rm -f "$STATE/image.tar"
}
