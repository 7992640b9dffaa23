# Sourced by images.sh: the base image of the others.
# shellcheck shell=bash disable=SC2034,SC2154

readonly BASES=scripts/images/bases.txt
PUBLIC_BASE=$(grep -v '^#' "$BASES")
readonly OWN_BASE=localhost/dapo-base:bookworm-1

# A base by digest is the same for everybody who builds; images of this machine have none.
check_pinned() { # IMAGE
    case ${1#"$TRANSPORT"} in
        *@sha256:*) return ;;
        localhost/*) [ -n "${DAPO_PINNED:-}" ] || return 0 ;;
    esac
    [ -z "${DAPO_PINNED:-}" ] || fail "$1 is no image by digest, which DAPO_PINNED requires: scripts/images.sh --pin"
    say "$1 is a tag, which may be another image tomorrow: scripts/images.sh --pin writes its digest to $BASES"
}

# name:tag@digest as name@digest: buildah takes no reference with both, and the digest decides.
by_digest() { sed -E 's|:[^:/@]+@|@|' <<<"$1"; }

# Replaces the base's tag, in its file, by what the registry has under it now: name:tag@sha256:...
pin_base() {
    local tag=${PUBLIC_BASE%@*} digest
    "${BUILDER[@]}" pull -q "$TRANSPORT$tag" >/dev/null || fail "cannot pull $tag: no digest was written"
    if [ "$KIND_OF_BUILDER" = docker ]; then
        digest=$(docker image inspect --format '{{range .RepoDigests}}{{println .}}{{end}}' "$tag" | sed -n 's/.*@//p' | head -1)
    else
        digest=$("${BUILDER[@]}" inspect --type image --format '{{.FromImageDigest}}' "$tag")
    fi
    [[ $digest =~ ^sha256:[0-9a-f]{64}$ ]] || fail "the registry names no digest of $tag: '$digest'"
    sed -i "s|^$tag.*|$tag@$digest|" "$BASES"
    say "$BASES: $tag@$digest"
}

find_base() {
    BASE=$(by_digest "${DAPO_BASE:-}")
    [ -z "$BASE" ] || { check_pinned "$BASE" && return; }
    if have_image $OWN_BASE; then BASE=$OWN_BASE && check_pinned "$BASE" && return; fi
    local public
    public=$TRANSPORT$(by_digest "$PUBLIC_BASE")
    if timeout 60 "${BUILDER[@]}" pull -q "$public" >/dev/null 2>&1; then
        BASE=$public && check_pinned "$BASE" && return
    fi
    [ "$KIND_OF_BUILDER" = buildah ] || fail "no registry can be reached: set DAPO_BASE to a base image"
    [ -z "${DAPO_PINNED:-}" ] || fail "no registry can be reached, and DAPO_PINNED requires a base by digest"
    say "no registry can be reached: building a base image with debootstrap"
    make_base
    BASE=$OWN_BASE
}

# Debian with its Python, without what only interactive users need.
make_base() {
    debian debootstrap=debootstrap
    local folder=$HOME_FOLDER/base
    rm -rf "$folder"
    debootstrap --variant=minbase --include=ca-certificates,python3,python3-venv bookworm "$folder" \
        ${DAPO_DEBIAN_MIRROR:+"$DAPO_DEBIAN_MIRROR"} >"$HOME_FOLDER/base.log" 2>&1 ||
        fail "debootstrap failed: $(tail -1 "$HOME_FOLDER/base.log")"
    rm -rf "$folder"/var/{cache/apt,log}/* "$folder"/var/lib/apt/lists/* "$folder"/usr/share/{doc,man,info,locale}/*
    mkdir -p "$folder/var/cache/apt/archives/partial" "$folder/var/lib/apt/lists/partial"
    # Later installs omit the same files.
    printf 'path-exclude=/usr/share/%s/*\n' doc man info locale >"$folder/etc/dpkg/dpkg.cfg.d/slim"
    local container
    container=$("${BUILDER[@]}" from scratch)
    "${BUILDER[@]}" add -q "$container" "$folder" / >/dev/null
    "${BUILDER[@]}" config --cmd bash "$container"
    "${BUILDER[@]}" commit -q --rm "$container" $OWN_BASE >/dev/null
    rm -rf "$folder"
}
