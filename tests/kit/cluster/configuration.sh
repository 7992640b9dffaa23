# Sourced by process.sh: certificates, kubeconfigs and the configuration file of each process.
# shellcheck shell=bash disable=SC2034,SC2154

write_configuration() {
    [ -f "$STATE/pki/tokens.csv" ] || certificates
    kubeconfig "$STATE/kubeconfig" admin
    kubeconfig "$STATE/node.conf" system:node:node1
    cni_configuration >"$STATE/cni/10-dapo.conflist"
    containerd_configuration >"$STATE/containerd.toml"
    kubelet_configuration >"$STATE/kubelet.yaml"
    proxy_configuration >"$STATE/kube-proxy.yaml"
    dns_configuration >"$STATE/Corefile"
}

signed() { # NAME SUBJECT EXTENSIONS
    openssl req -newkey rsa:2048 -nodes -keyout "$1.key" -subj "$2" 2>/dev/null |
        openssl x509 -req -CA ca.crt -CAkey ca.key -CAcreateserial -days 365 -out "$1.crt" -extfile <(echo "$3") 2>/dev/null
}

certificates() (
    cd "$STATE/pki" || exit
    umask 077
    openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.crt -subj /CN=dapo-cluster -days 365 2>/dev/null
    openssl genrsa -out accounts.key 2048 2>/dev/null
    openssl rsa -in accounts.key -pubout -out accounts.pub 2>/dev/null
    local names=DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:localhost
    signed apiserver /CN=kube-apiserver "subjectAltName=IP:$NODE_ADDRESS,IP:10.96.0.1,IP:127.0.0.1,$names"
    signed kubelet-client /O=system:masters/CN=apiserver extendedKeyUsage=clientAuth
    printf '%s,admin,admin,"system:masters"\n%s,system:node:node1,node1,"system:nodes"\n' \
        "$(openssl rand -hex 16)" "$(openssl rand -hex 16)" >tokens.csv
)

kubeconfig() { # FILE USER
    local token
    token=$(grep ",$2," "$STATE/pki/tokens.csv" | cut -d, -f1)
    (umask 077 && cat >"$1") <<T
apiVersion: v1
kind: Config
clusters:
- name: dapo
  cluster:
    server: https://$NODE_ADDRESS:6443
    certificate-authority-data: $(base64 -w0 "$STATE/pki/ca.crt")
users: [{name: user, user: {token: $token}}]
contexts: [{name: dapo, context: {cluster: dapo, user: user}}]
current-context: dapo
T
}

cni_configuration() {
    cat <<T
{"cniVersion": "0.4.0", "name": "$NETWORK", "plugins": [
  {"type": "bridge", "bridge": "$POD_BRIDGE", "isGateway": true, "ipMasq": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "dataDir": "$STATE/cni/leases",
            "ranges": [[{"subnet": "10.244.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}
]}
T
}

containerd_configuration() {
    cat <<T
version = 2
root = "$STATE/containerd"
state = "$RUN/containerd"
[grpc]
  address = "$RUN/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "$STATE/containerd/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$STATE/cni"
T
}

kubelet_configuration() {
    cat <<T
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupDriver: cgroupfs
failCgroupV1: false
failSwapOn: false
clusterDNS: [$NODE_ADDRESS]
clusterDomain: cluster.local
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $STATE/pki/ca.crt}}
authorization: {mode: Webhook}
containerRuntimeEndpoint: unix://$RUN/containerd.sock
evictionHard: {memory.available: 200Mi, nodefs.available: 1%, imagefs.available: 1%, nodefs.inodesFree: 1%}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
podLogsDir: $STATE/pod-logs
volumePluginDir: $STATE/kubelet/volume-plugins
resolvConf: /etc/resolv.conf
T
}

proxy_configuration() {
    cat <<T
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: iptables
clusterCIDR: $PODS
clientConnection: {kubeconfig: $STATE/kubeconfig}
hostnameOverride: node1
conntrack: {maxPerCore: 0}
healthzBindAddress: 127.0.0.1:10256
T
}

# Bound to the node's address only, so that it does not collide with the machine's own resolver.
dns_configuration() {
    cat <<T
.:53 {
    bind $NODE_ADDRESS
    errors
    kubernetes cluster.local in-addr.arpa {
        kubeconfig $STATE/kubeconfig dapo
        pods insecure
        ttl 2
    }
    forward . /etc/resolv.conf
    cache 2
}
T
}

# Unlike hostPath, local volumes respect a pod's fsGroup: containers can write to them without root.
storage_objects() {
    cat <<T
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: local, annotations: {storageclass.kubernetes.io/is-default-class: "true"}}
provisioner: kubernetes.io/no-provisioner
volumeBindingMode: WaitForFirstConsumer
T
    local number
    for number in $(seq $VOLUMES); do
        cat <<T
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: local-$number}
spec:
  capacity: {storage: 1Ti} # not enforced
  accessModes: [ReadWriteOnce]
  storageClassName: local
  local: {path: $STATE/volumes/$number}
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [node1]}]}]}}
T
    done
}
