# Sourced by images.sh: the base image of the others.
# shellcheck shell=bash disable=SC2034,SC2154

readonly PUBLIC_BASE=python:3.11-slim-bookworm
readonly OWN_BASE=localhost/dapo-base:bookworm-1

find_base() {
    BASE=${DAPO_BASE:-}
    [ -z "$BASE" ] || return 0
    if have_image $OWN_BASE; then BASE=$OWN_BASE && return; fi
    if timeout 60 "${BUILDER[@]}" pull -q "$TRANSPORT$PUBLIC_BASE" >/dev/null 2>&1; then
        BASE=$TRANSPORT$PUBLIC_BASE && return
    fi
    [ "$KIND_OF_BUILDER" = buildah ] || fail "no registry can be reached: set DAPO_BASE to a base image"
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
