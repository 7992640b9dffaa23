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
    [kueue]=0.19.2 [vc-controller-manager]=1.14.1 [vc-scheduler]=1.14.1
    [versitygw]=1.8.0   # another S3 server, for `make s3-servers` (docs/stores.md)
    [azurite]=3.37.0    # a model of Azure's Blob Storage, by Microsoft, behind that server; from npm
    [ceph]=16.2.15      # another, as Debian 12 has it: `ceph PROGRAM ARGUMENTS`
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
# What is unpacked from Debian's packages, which apt verifies, without installing them.
declare -rA PACKAGES=(
    [ceph]="ceph-base ceph-common ceph-mon ceph-osd librados2 librgw2 radosgw"
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
    [kueue]=h1:mPNzr37u0nwI7ikST5QQl5gg6EgtYOAvC9ZbTgywdN8=
    [vc-controller-manager]=h1:9eLs47iZeLgey6EcA1rHwVkU7HoBNm3UVpJZ4uhFJ7c=
    [vc-scheduler]=h1:9eLs47iZeLgey6EcA1rHwVkU7HoBNm3UVpJZ4uhFJ7c=
)
# What is built inside its own module, whose go.mod replaces modules: the module, and the package of the program. The
# module's CustomResourceDefinitions, which the tests install, are copied to `crds` beside the program.
declare -rA MODULE=(
    [kueue]=sigs.k8s.io/kueue@v0.19.2
    [vc-controller-manager]=volcano.sh/volcano@v1.14.1
    [vc-scheduler]=volcano.sh/volcano@v1.14.1
)
declare -rA PROGRAM=(
    [kueue]=./cmd/kueue [vc-controller-manager]=./cmd/controller-manager [vc-scheduler]=./cmd/scheduler
)
declare -rA CRDS=(
    [kueue]=config/components/crd/bases
    [vc-controller-manager]=config/crd/volcano/bases
    [vc-scheduler]=config/crd/volcano/bases
)
# The integrity of npm packages, which the registry has to agree with; what they need is taken as npm resolves it.
declare -rA INTEGRITY=(
    [azurite]=sha512-dl2AXMkXtVlX9s3U3ttIQFFlKwe64k/ugSIVNT4V3qX488Ncw988rIHAs6apgUtfEzyqwtFN9MZp0Foq60Htag==
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

install_from_npm() { # PROGRAM FILE
    command -v npm >/dev/null || fail "$1 is a package of npm, which was not found: install Node.js 20"
    local package=$1@${VERSION[$1]} folder=${2%/*} found
    found=$(npm view --silent "$package" dist.integrity)
    [ "$found" = "${INTEGRITY[$1]}" ] || fail "$package has the integrity '$found': it is not what was reviewed"
    say "installing $package with npm, 370 MB"
    npm install --silent --no-audit --no-fund --ignore-scripts --prefix "$folder" "$package" >&2 ||
        fail "could not install $package: see the output of npm above"
    printf '#!/bin/sh\nexec node "${0%%/*}/node_modules/azurite/dist/src/blob/main.js" "$@"\n' >"$2"
    chmod +x "$2"
}

# The packages of the program, and those that they need and this system does not have.
unpack_debian() { # PROGRAM FILE
    command -v apt-get >/dev/null || fail "$1 is taken from Debian's packages, and there is no apt-get here"
    local names folder=${2%/*} found package
    read -ra names <<<"${PACKAGES[$1]}"
    found=$(apt-cache policy "${names[0]}" | sed -n 's/^  Candidate: //p')
    case $found in
    "${VERSION[$1]}"*) ;;
    *) fail "this system's packages have $1 ${found:-not at all}, not ${VERSION[$1]}: use Debian 12 (apt-get update)" ;;
    esac
    say "unpacking ${names[0]} $found and what it needs, 350 MB"
    rm -rf "$folder/packages" "$folder/root"
    mkdir -p "$folder/packages" "$folder/root"
    mapfile -t -O ${#names[@]} names < <(
        apt-get install -s --no-install-recommends "${names[@]}" | sed -n 's/^Inst \([^ ]*\).*/\1/p'
    )
    (cd "$folder/packages" && printf '%s\n' "${names[@]}" | sort -u | xargs apt-get download -qq) >&2 ||
        fail "could not download the packages of $1: ${names[*]}"
    for package in "$folder"/packages/*.deb; do dpkg-deb -x "$package" "$folder/root"; done
    rm -r "$folder/packages"
    cat >"$2" <<'END'
#!/bin/sh
# PROGRAM ARGUMENTS: a program of the folder root, with the libraries of that folder.
root=$(dirname "$(realpath "$0")")/root
for folder in "$root"/usr/lib/*/ceph "$root"/usr/lib/*-linux-gnu "$root"/lib/*-linux-gnu; do
    LD_LIBRARY_PATH=$folder:${LD_LIBRARY_PATH:-}
done
export LD_LIBRARY_PATH
program=$root/usr/bin/$1
shift
exec "$program" "$@"
END
    chmod +x "$2"
}

build() { # PROGRAM FILE
    if [ -n "${PACKAGES[$1]:-}" ]; then unpack_debian "$@" && return; fi
    if [ -n "${INTEGRITY[$1]:-}" ]; then install_from_npm "$@" && return; fi
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
    elif [ -n "${MODULE[$1]:-}" ]; then
        build_module "$1" "$ROOT/$2" "$flags"
    else
        verify "$1"
        CGO_ENABLED=0 GOBIN="$ROOT/$2.bin" go install -trimpath -ldflags "$flags" "${PACKAGE[$1]}"
        mv "$2.bin"/* "$2" && rmdir "$2.bin"
    fi || fail "could not build $1: see the output of Go above"
    say "$1 built in $((SECONDS - begun)) s"
}

module_of() { # PROGRAM: the folder of its module's source
    command -v go >/dev/null || fail "Go was not found: the source of $1 (its CRDs) comes from the module ${MODULE[$1]}"
    local found
    found=$(cd / && go mod download -json "${MODULE[$1]}")
    grep -qF "\"Sum\": \"${SUM[$1]}\"" <<<"$found" || fail "the module ${MODULE[$1]} does not have the checksum ${SUM[$1]}"
    sed -n 's/^\t"Dir": "\(.*\)",$/\1/p' <<<"$found"
}

build_module() { # PROGRAM FILE FLAGS
    local source=$TOOLS/$1-source
    rm -rf "$source"
    cp -r "$(module_of "$1")" "$source" && chmod -R u+w "$source" || return
    (
        cd "$source"
        # Its go.mod replaces this one with a folder that is not part of the module.
        if [ "$1" != kueue ]; then go mod edit -replace volcano.sh/apis=volcano.sh/apis@v1.14.0; fi
        CGO_ENABLED=0 GOFLAGS=-mod=mod go build -trimpath -ldflags "$3" -o "$2" "${PROGRAM[$1]}"
    ) && rm -rf "$source"
}

# A program appears under its name only when it is whole.
make_program() {
    local folder part name
    folder=$(folder_of "$1")
    part=$folder/.$1.part
    mkdir -p "$folder"
    if in_cache "$1"; then unpack "$1" "$part"; else build "$1" "$part"; fi
    if [ "$1" = kube ]; then for name in $KUBE_NAMES; do ln -sf kube "$folder/$name"; done; fi
    if [ -n "${CRDS[$1]:-}" ]; then rm -rf "$folder/crds" && cp -r "$(module_of "$1")/${CRDS[$1]}" "$folder/crds"; fi
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
