#!/usr/bin/env bash
# images.sh [--load] [NAME...]: builds the platform's images; `make images`. images.sh --pin: writes the digest of the base
# image to scripts/images/bases.txt.
#
# NAME is operator, dashboard, trainer (for CPUs), trainer-gpu, postgres or minio. Default: all but trainer-gpu.
# Builds with docker if its daemon is running, otherwise with buildah as root. --load loads them into the cluster of
# cluster.sh.
#   DAPO_BASE    base image. Default: that of scripts/images/bases.txt, or one built with debootstrap if no registry can be
#                reached
#   DAPO_PINNED  1: fail unless the base image is named by digest
#   DAPO_PREFIX  prefix of image names. Default: localhost/dapo-
#   DAPO_TAG     tag. Default: the project's version
# The settings for reaching package indexes (pip's and uv's variables, a private certificate authority) are mounted as
# secrets while packages are installed, and are in no layer and no history.
set -euo pipefail
cd "$(dirname "$0")/.."
readonly ROOT=$PWD HOME_FOLDER=$PWD/.dapo/images
source scripts/common.sh
source scripts/images/base.sh
source scripts/images/build.sh

LOAD=
if [ "${1:-}" = --load ]; then LOAD=1 && shift; fi
[ $# -gt 0 ] || set -- operator dashboard trainer postgres minio
mkdir -p "$HOME_FOLDER"
exec 9>"$HOME_FOLDER/lock"
flock 9

find_builder
if [ "${1:-}" = --pin ]; then pin_base && exit; fi
find_base
write_secrets
trap 'rm -rf "$HOME_FOLDER/secrets"; remove_stages' EXIT
build_and_load() {
    build "$1"
    [ -z "$LOAD" ] || load "$1"
}
build_and_load "$1" # first, since it builds the stages that the others share
shift
builds=() failed=
for image in "$@"; do
    build_and_load "$image" &
    builds+=($!)
done
for pid in ${builds[@]+"${builds[@]}"}; do wait "$pid" || failed=1; done
[ -z "$failed" ] || exit 1
