# Sourced by images.sh: builders, secrets, and the build of each image.
# shellcheck shell=bash disable=SC2034,SC2154

PREFIX=${DAPO_PREFIX:-localhost/dapo-}
VERSION=$(sed -n '/^version = /{s/^version = "\(.*\)"/\1/p;q}' pyproject.toml)
TAG=${DAPO_TAG:-$VERSION}

find_builder() {
    if docker info >/dev/null 2>&1; then
        KIND_OF_BUILDER=docker TRANSPORT='' BUILDER=(docker) ID='{{.Id}}'
        return
    fi
    [ "$(id -u)" = 0 ] || fail "Docker is not running, and buildah needs root: start Docker, or use sudo"
    debian buildah=buildah
    # crun and user namespaces are for rootless builds; as root a chroot is enough for RUN.
    export BUILDAH_ISOLATION=chroot
    # Its caches as well: removing .dapo removes everything.
    export TMPDIR=$HOME_FOLDER/tmp
    mkdir -p "$TMPDIR"
    KIND_OF_BUILDER=buildah TRANSPORT=docker:// ID='{{.FromImageID}}'
    BUILDER=(buildah --root "$HOME_FOLDER/storage" --runroot "/run/dapo-images" --storage-driver overlay)
}

# buildah keeps the container of a stage that another one copies from, and its mount with it.
remove_stages() { [ "$KIND_OF_BUILDER" = docker ] || "${BUILDER[@]}" rm --all >/dev/null; }

have_image() { "${BUILDER[@]}" inspect --type image "$1" >/dev/null 2>&1; }

write_secrets() {
    mkdir -p "$HOME_FOLDER/secrets"
    chmod 700 "$HOME_FOLDER/secrets"
    export -p | grep -E -e '^declare -x (PIP|UV)_[A-Z_]*(INDEX|INDEXES|TRUSTED_HOST|TIMEOUT|LINKS|INSECURE)[A-Z_]*=' \
        -e '^declare -x (npm_config_registry|NPM_CONFIG_REGISTRY)=' \
        >"$HOME_FOLDER/secrets/indexes" || true
    local authorities=${SSL_CERT_FILE:-${PIP_CERT:-/etc/ssl/certs/ca-certificates.crt}}
    cp "$authorities" "$HOME_FOLDER/secrets/authorities" 2>/dev/null || : >"$HOME_FOLDER/secrets/authorities"
}

build() { # NAME
    local name=$1 begun=$SECONDS arguments=(--target "$1") context=$ROOT file=$ROOT/Dockerfile
    case $name in
        operator | dashboard) ;;
        trainer) arguments=(--target trainer --build-arg ACCELERATOR=cpu) ;;
        trainer-gpu) arguments=(--target trainer --build-arg ACCELERATOR=gpu) ;;
        postgres | minio)
            context=$HOME_FOLDER/stores file=$ROOT/scripts/images/Dockerfile.stores
            mkdir -p "$context"
            [ "$name" != minio ] || cp "$(tests/kit/tools.sh minio)" "$context/minio"
            ;;
        *) fail "'$name' is not one of operator, dashboard, trainer, trainer-gpu, postgres, minio" ;;
    esac
    arguments+=(--build-arg "BASE=$BASE" --build-arg "VERSION=$VERSION" --file "$file" --tag "$PREFIX$name:$TAG"
        --secret "id=indexes,src=$HOME_FOLDER/secrets/indexes"
        --secret "id=authorities,src=$HOME_FOLDER/secrets/authorities")
    [ "$KIND_OF_BUILDER" = docker ] || arguments+=(--layers --format docker)
    "${BUILDER[@]}" build "${arguments[@]}" "$context" >"$HOME_FOLDER/$name.log" 2>&1 ||
        fail "could not build $name: $(tail -5 "$HOME_FOLDER/$name.log")"
    say "$PREFIX$name:$TAG in $((SECONDS - begun)) s, $(size_of "$PREFIX$name:$TAG") MB"
}

size_of() {
    if [ "$KIND_OF_BUILDER" = docker ]; then
        echo $(($(docker image inspect --format '{{.Size}}' "$1") / 1000000))
    else
        "${BUILDER[@]}" images --json "$1" | sed -n 's/.*"size": "\([0-9.]*\) \([KMG]B\)".*/\1 \2/p' |
            awk '{print int($2 == "GB" ? $1 * 1000 : $2 == "KB" ? $1 / 1000 : $1)}'
    fi
}

load() { # NAME: as a stream instead of an intermediate file of gigabytes; skipped if it is already loaded
    local reference=$PREFIX$1:$TAG id
    id=$("${BUILDER[@]}" inspect --type image --format "$ID" "$reference")
    ! tests/kit/cluster.sh has "$reference" "$id" || return 0
    if [ "$KIND_OF_BUILDER" = docker ]; then
        docker save "$reference"
    else
        "${BUILDER[@]}" push -q "$reference" "docker-archive:/dev/stdout:$reference"
    fi | tests/kit/cluster.sh load "$reference" "$id"
}
