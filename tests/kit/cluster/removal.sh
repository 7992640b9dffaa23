# Sourced by process.sh: `down` removes everything that the cluster put on the machine, also after an interrupted `up`.
# shellcheck shell=bash disable=SC2034,SC2154

process_down() {
    [ "$(id -u)" = 0 ] || fail "the cluster runs as root: use sudo"
    stop kubelet # first, or it restarts what is stopped below
    end_containers
    local name
    for name in $(tac -s ' ' <<<"$PROCESSES "); do stop "$name"; done
    end_shims
    unmount
    remove_network
    remove_cgroups
    rm -rf $RUN
    find /var/log/containers -maxdepth 1 -lname "$STATE/*" -delete 2>/dev/null || true
    [ ! -f "$STATE/made" ] || xargs -r rm -rf <"$STATE/made"
}

stop() { # NAME: SIGTERM, then SIGKILL
    running "$1" || return 0
    local pid end=$((SECONDS + 10))
    pid=$(cat "$STATE/pids/$1")
    kill "$pid"
    while running "$1"; do
        [ $SECONDS -lt $end ] || kill -KILL "$pid" 2>/dev/null || true
        sleep 0.1
    done
}

end_containers() {
    local task
    command -v ctr >/dev/null && running containerd || return 0
    for task in $(images tasks ls -q); do images tasks kill -s KILL "$task" 2>/dev/null || true; done
    for task in $(images tasks ls -q); do images tasks delete --force "$task" >/dev/null 2>&1 || true; done
}

# A shim outlives containerd by design; each has our socket on its command line.
end_shims() {
    local folder
    for folder in /proc/[0-9]*; do
        { tr '\0' ' ' <"$folder/cmdline"; } 2>/dev/null | grep -q -- "-address $RUN/containerd.sock" || continue
        end_children "${folder#/proc/}"
        kill -KILL "${folder#/proc/}" 2>/dev/null || true
    done
}

end_children() {
    local child
    for child in $(cat "/proc/$1/task/"*/children 2>/dev/null); do
        end_children "$child"
        kill -KILL "$child" 2>/dev/null || true
    done
}

unmount() {
    local point
    awk -v a="$STATE/" -v b="$RUN/" 'index($2, a) == 1 || index($2, b) == 1 {print $2}' /proc/mounts | sort -r |
        while read -r point; do umount -l "$point"; done
}

remove_network() {
    local table
    for table in iptables ip6tables; do
        command -v $table-save >/dev/null || continue
        # Every chain of kube-proxy, kubelet and the CNI plug-ins has one of these prefixes.
        $table-save | grep -vE '(KUBE|CNI)-' | $table-restore 2>/dev/null || true
    done
    nft delete table inet dapo_policies 2>/dev/null || true
    ip link delete $POD_BRIDGE 2>/dev/null || true
    ip link delete $NODE_BRIDGE 2>/dev/null || true
    rm -rf /var/lib/cni/results/"$NETWORK"-*
    [ ! -f "$STATE/ip_forward" ] || cat "$STATE/ip_forward" >/proc/sys/net/ipv4/ip_forward
    [ ! -f "$STATE/bridged" ] || cat "$STATE/bridged" >$BRIDGED
}

remove_cgroups() {
    local root
    for root in /sys/fs/cgroup/*/kubepods /sys/fs/cgroup/kubepods; do
        [ ! -d "$root" ] || find "$root" -depth -type d -exec rmdir {} + 2>/dev/null || true
    done
}
