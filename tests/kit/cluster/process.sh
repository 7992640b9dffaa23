# Sourced by cluster.sh: a single-node Kubernetes from processes, for Linux machines without Docker.
# shellcheck shell=bash disable=SC2034,SC2154
#
# Restrictions of such machines, and how each is handled:
#   no dummy device, and kubelet refuses a loopback address   a bridge without ports carries the node's address
#   cgroup v1                                                kubelet's failCgroupV1 and cgroupDriver
#   a sandbox that may not lower oom_score_adj               containerd's restrict_oom_score_adj
#   conntrack's sysctls are read-only                        kube-proxy's conntrack.maxPerCore 0
#   no registry                                              images are imported; the pause image is built here
#   no storage provisioner                                   local volumes, created in advance
#   a bridge plug-in without NetworkPolicies       network_policies.py enforces them with nftables

readonly RUN=/run/dapo-cluster # sockets: a path under $STATE may be too long for one
readonly NODE_ADDRESS=10.123.0.1 NODE_BRIDGE=dapo-host POD_BRIDGE=dapo-pods NETWORK=dapo-cluster
readonly PODS=10.244.0.0/16 SERVICES=10.96.0.0/16
readonly PROCESSES="etcd kube-apiserver kube-controller-manager kube-scheduler containerd coredns kube-proxy \
network-policies kubelet"
readonly BRIDGED=/proc/sys/net/bridge/bridge-nf-call-iptables
readonly VOLUMES=12

source tests/kit/cluster/configuration.sh
source tests/kit/cluster/removal.sh

kc() { "$KUBE/kubectl" --kubeconfig "$STATE/kubeconfig" "$@"; }
images() { ctr --address $RUN/containerd.sock --namespace k8s.io "$@"; }

process_up() {
    [ "$(uname -s)" = Linux ] || fail "without Docker the cluster needs Linux; install Docker and kind"
    [ "$(id -u)" = 0 ] || fail "without Docker the cluster needs root; install Docker and kind, or use sudo"
    debian ip=iproute2 openssl=openssl containerd=containerd runc=runc iptables=iptables conntrack=conntrack \
        nft=nftables python3=python3 buildah=buildah busybox=busybox-static mount=mount
    [ -x /usr/lib/cni/bridge ] || debian no-such-command=containernetworking-plugins
    tools
    local name
    for name in logs pids pki cni kubelet containerd volumes; do mkdir -p "$STATE/$name"; done
    mkdir -p $RUN
    note_folders
    node_device
    write_configuration
    start_control_plane
    start_node
    cluster_objects
}

# Folders that kubelet and CNI create at fixed paths; those that do not exist yet are removed afterwards.
note_folders() {
    [ ! -f "$STATE/made" ] || return 0
    local folder
    for folder in /var/lib/cni /var/lib/kubelet /var/log/containers; do
        [ -e $folder ] || echo $folder
    done >"$STATE/made"
}

tools() {
    local paths
    mapfile -t paths < <(tests/kit/tools.sh etcd kube coredns)
    [ ${#paths[@]} = 3 ] || fail "a tool is missing: see above"
    ETCD=${paths[0]} KUBE=$(dirname "${paths[1]}") COREDNS=${paths[2]}
}

node_device() {
    ip link show $NODE_BRIDGE >/dev/null 2>&1 || ip link add $NODE_BRIDGE type bridge
    ip addr replace $NODE_ADDRESS/32 dev $NODE_BRIDGE
    ip link set $NODE_BRIDGE up
    [ -f "$STATE/ip_forward" ] || cat /proc/sys/net/ipv4/ip_forward >"$STATE/ip_forward"
    echo 1 >/proc/sys/net/ipv4/ip_forward
    # Otherwise traffic between pods of one bridge bypasses all rules.
    [ -e $BRIDGED ] || modprobe br_netfilter || fail "the kernel module br_netfilter, which NetworkPolicies need, could not be loaded"
    [ -f "$STATE/bridged" ] || cat $BRIDGED >"$STATE/bridged"
    echo 1 >$BRIDGED
}

running() { # NAME: whether its process runs and is the one that was started
    local pid
    pid=$(cat "$STATE/pids/$1" 2>/dev/null) || return 1
    grep -qzxF "DAPO_CLUSTER_PROCESS=$STATE/$1" "/proc/$pid/environ" 2>/dev/null
}

start() { # NAME COMMAND...
    local name=$1
    shift
    ! running "$name" || return 0
    DAPO_CLUSTER_PROCESS=$STATE/$name setsid "$@" >>"$STATE/logs/$name.log" 2>&1 9>&- </dev/null &
    echo $! >"$STATE/pids/$name"
}

start_control_plane() {
    local pki=$STATE/pki etcd=http://127.0.0.1:12379
    start etcd "$ETCD" --data-dir "$STATE/etcd" --listen-client-urls $etcd --advertise-client-urls $etcd \
        --listen-peer-urls http://127.0.0.1:12380 --initial-advertise-peer-urls http://127.0.0.1:12380 \
        --initial-cluster default=http://127.0.0.1:12380 --unsafe-no-fsync --log-level warn
    start kube-apiserver "$KUBE/kube-apiserver" --etcd-servers=$etcd --bind-address=$NODE_ADDRESS \
        --advertise-address=$NODE_ADDRESS --secure-port=6443 --service-cluster-ip-range=$SERVICES \
        --tls-cert-file="$pki/apiserver.crt" --tls-private-key-file="$pki/apiserver.key" \
        --client-ca-file="$pki/ca.crt" --kubelet-client-certificate="$pki/kubelet-client.crt" \
        --kubelet-client-key="$pki/kubelet-client.key" --kubelet-preferred-address-types=InternalIP \
        --service-account-issuer=https://kubernetes.default.svc --service-account-key-file="$pki/accounts.pub" \
        --service-account-signing-key-file="$pki/accounts.key" --token-auth-file="$pki/tokens.csv" \
        --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction --allow-privileged=true
    wait_for 90 "the API server" kc get --raw /readyz
    start kube-controller-manager "$KUBE/kube-controller-manager" --kubeconfig="$STATE/kubeconfig" \
        --use-service-account-credentials --service-account-private-key-file="$pki/accounts.key" \
        --root-ca-file="$pki/ca.crt" --cluster-signing-cert-file="$pki/ca.crt" \
        --cluster-signing-key-file="$pki/ca.key" --cluster-cidr=$PODS --allocate-node-cidrs --leader-elect=false
    start kube-scheduler "$KUBE/kube-scheduler" --kubeconfig="$STATE/kubeconfig" --leader-elect=false
}

start_node() {
    start containerd containerd --config "$STATE/containerd.toml"
    wait_for 30 "containerd" images version
    images images ls -q | grep -qx localhost/pause:1 || make_pause
    start coredns "$COREDNS" -conf "$STATE/Corefile"
    start kube-proxy "$KUBE/kube-proxy" --config="$STATE/kube-proxy.yaml"
    start network-policies python3 tests/kit/cluster/network_policies.py "https://$NODE_ADDRESS:6443" \
        "$STATE/pki/ca.crt" "$STATE/pki/tokens.csv"
    wait_for 30 "the network policies" nft list table inet dapo_policies
    start kubelet "$KUBE/kubelet" --config="$STATE/kubelet.yaml" --kubeconfig="$STATE/node.conf" \
        --hostname-override=node1 --node-ip=$NODE_ADDRESS --root-dir="$STATE/kubelet" --cert-dir="$STATE/kubelet/pki"
    wait_for 120 "the node to be ready" kc wait --for=condition=Ready node/node1 --timeout=1s
}

# The pause container only holds a pod's namespaces.
make_pause() {
    local store=(--root "$STATE/pause/root" --runroot "$STATE/pause/run" --storage-driver vfs) container
    container=$(buildah "${store[@]}" from scratch)
    buildah "${store[@]}" copy -q "$container" "$(command -v busybox)" /busybox >/dev/null
    buildah "${store[@]}" config --entrypoint '["/busybox", "sleep", "infinity"]' --user 65535:65535 "$container"
    buildah "${store[@]}" commit -q "$container" "docker-archive:$STATE/pause.tar:localhost/pause:1" >/dev/null
    images images import "$STATE/pause.tar" >/dev/null
    rm -rf "$STATE/pause" "$STATE/pause.tar"
}

cluster_objects() {
    local name
    for name in $(seq $VOLUMES); do
        mkdir -p "$STATE/volumes/$name"
        chmod 777 "$STATE/volumes/$name"
    done
    storage_objects | kc apply --server-side --force-conflicts -f - >/dev/null
    wait_for 60 "the default service account" kc get serviceaccount default
}

process_load() { images images import --all-platforms - >/dev/null; }
