#!/usr/bin/env bash
# tools.sh NAME...: prints the path of each server or tool that the tests start, after building what is missing.
#
# A tool is taken from .dapo/tools, else unpacked from the cache (a folder with NAME.xz and SHA256SUMS; a file with a
# wrong sum is ignored), else built with Go. Parallel calls wait for each other.
#   DAPO_TOOLS_CACHE   the cache's folder; by default ../shared/bin, beside this repository
set -euo pipefail
readonly CALLED_FROM=$PWD
cd "$(dirname "$0")/../.."
readonly ROOT=$PWD TOOLS=.dapo/tools
CACHE=$(cd "$CALLED_FROM" && realpath -m "${DAPO_TOOLS_CACHE:-$ROOT/../shared/bin}")
readonly CACHE

readonly KUBERNETES=1.34.4
readonly KUBE_NAMES="kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy kubectl"
declare -rA VERSION=(
    [etcd]=3.6.16 [kube]=$KUBERNETES [kwok]=0.8.0 [coredns]=1.15.0 [helm]=3.22.0 [minio]=20260212201848
    [mc]=20250313080218 # a benchmark compares with it
    [helm4]=4.1.0       # the chart is linted with it, too
    [versitygw]=1.8.0   # another S3 server, for the contract of object stores (docs/stores.md)
)
# What `go install` can build by itself; kube and etcd have a go.mod of their own under tests/kit/tools.
declare -rA PACKAGE=(
    [kwok]=sigs.k8s.io/kwok/cmd/kwok@v0.8.0
    [coredns]=github.com/coredns/coredns@v1.15.0
    [helm]=helm.sh/helm/v3/cmd/helm@v3.22.0
    [helm4]=helm.sh/helm/v4/cmd/helm@v4.1.0
    [minio]=github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c
    [versitygw]=github.com/versity/versitygw/cmd/versitygw@v1.8.0
    [mc]=github.com/minio/mc@v0.0.0-20250313080218-cf909e1063a9
)
# The Go checksums of those modules, which the checksum database and the module proxy have to agree with; what they are
# built from is checked by the same database. The go.sum of kube and etcd has all of theirs.
declare -rA SUM=(
    [kwok]=h1:OTIOTwgROqPMovcTwxICx2eYQ4AwLpSx5EpjbDKF4SQ=
    [coredns]=h1:OBT+OEyHVdUiVxPhrNlC5XZVq3RkSxzQXfZQ76gm5ck=
    [helm]=h1:n1if5iQgHYsujPAcO5oonH/KiSNUmqmUF0iGVjSF3AU=
    [helm4]=h1:ytBbmQ7W2h1BLMyvkexnoG52JEDbYj9LTnnNgKRhiCI=
    [minio]=h1:/qdoYujxF5MBLDMVLeiYJ/7fBa1HikX39Dvzb9Ji8pA=
    [versitygw]=h1:au+wI+aybno/STsQiSm35Uu6Q6iK5MWReQxgO6SEMFc=
    [mc]=h1:6RyInOHKL6jz8zxcAar/h6rg/aJCxDP/uFuSNvYSuMI=
)

say() { printf 'tools: %s\n' "$*" >&2; }
fail() { say "$@"; exit 1; }

# The program that contains NAME: six of Kubernetes' are one binary, which acts by the name it is called by.
program_of() { case " $KUBE_NAMES " in *" $1 "*) echo kube ;; *) echo "$1" ;; esac; }

folder_of() { echo "$TOOLS/$1-${VERSION[$1]}"; }

in_cache() {
    [ -f "$CACHE/$1.xz" ] && [ -f "$CACHE/SHA256SUMS" ] || return 1
    (cd "$CACHE" && grep -E "^[0-9a-f]{64}  $1\.xz\$" SHA256SUMS | sha256sum --check --status) && return
    say "$CACHE/$1.xz does not match SHA256SUMS: building $1 instead"
    return 1
}

unpack() { # PROGRAM FILE
    command -v xz >/dev/null || scripts/debian.sh xz-utils
    xz -dc "$CACHE/$1.xz" >"$2"
    chmod +x "$2"
}

# The module that a package is of is its path up to /cmd/, or all of it.
verify() { # PROGRAM
    local package=${PACKAGE[$1]} module found
    module=${package%@*}
    module=${module%%/cmd/*}@${package#*@}
    found=$(go mod download -json "$module" | sed -n 's/^\t"Sum": "\(.*\)",\{0,1\}$/\1/p')
    [ "$found" = "${SUM[$1]}" ] || fail "$module has the checksum '$found', not '${SUM[$1]}': it is not what was reviewed"
}

build() { # PROGRAM FILE
    command -v go >/dev/null ||
        fail "$1 is neither in $TOOLS nor in $CACHE, and Go was not found: install Go 1.26 (https://go.dev/dl)" \
            "or set DAPO_TOOLS_CACHE to a folder that holds $1.xz and SHA256SUMS"
    say "building $1 ${VERSION[$1]} with Go; on two cores that takes one to nine minutes, once"
    local flags="-s -w" begun=$SECONDS at=k8s.io/client-go/pkg/version k8s=k8s.io/component-base/version
    if [ "$1" = kube ]; then
        flags+=" -X $k8s.gitVersion=v$KUBERNETES -X $k8s.gitMajor=1 -X $k8s.gitMinor=34 -X $at.gitVersion=v$KUBERNETES"
    fi
    if [ -d "tests/kit/tools/$1" ]; then
        (cd "tests/kit/tools/$1" && CGO_ENABLED=0 go build -trimpath -ldflags "$flags" -o "$ROOT/$2" .)
    else
        verify "$1"
        CGO_ENABLED=0 GOBIN="$ROOT/$2.bin" go install -trimpath -ldflags "$flags" "${PACKAGE[$1]}"
        mv "$2.bin"/* "$2" && rmdir "$2.bin"
    fi || fail "could not build $1: see the output of Go above"
    say "$1 built in $((SECONDS - begun)) s"
}

# A program appears under its name only when it is whole.
make_program() {
    local folder part name
    folder=$(folder_of "$1")
    part=$folder/.$1.part
    mkdir -p "$folder"
    if in_cache "$1"; then unpack "$1" "$part"; else build "$1" "$part"; fi
    if [ "$1" = kube ]; then for name in $KUBE_NAMES; do ln -sf kube "$folder/$name"; done; fi
    mv "$part" "$folder/$1"
}

[ $# -gt 0 ] || fail "usage: tools.sh NAME..., of ${!VERSION[*]} $KUBE_NAMES"
mkdir -p $TOOLS
for name in "$@"; do
    program=$(program_of "$name")
    [ -n "${VERSION[$program]:-}" ] || fail "'$name' is not one of ${!VERSION[*]} $KUBE_NAMES"
    folder=$(folder_of "$program")
    if [ ! -x "$folder/$program" ]; then
        exec 9>"$folder.lock"
        flock 9
        if [ ! -x "$folder/$program" ]; then make_program "$program"; fi
        exec 9>&-
    fi
    echo "$ROOT/$folder/$name"
done
