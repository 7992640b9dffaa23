#!/usr/bin/env bash
# gpu-image-check.sh JOB.YAML...: `dapo check` in the image of the trainer for GPUs, which images.sh has built; no GPU is
# needed. In place of the driver's library, which a container gets from its host, it loads one that computes nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
readonly ROOT=$PWD HOME_FOLDER=$PWD/.dapo/images
source scripts/common.sh
source scripts/images/build.sh
find_builder
readonly IMAGE=${PREFIX}trainer-gpu:$TAG
have_image "$IMAGE" || fail "$IMAGE has not been built: scripts/images.sh trainer-gpu"

# shellcheck disable=SC2016 # the container's shell expands it
command='python3 /project/scripts/driver-stand-in.py /opt/dapo /tmp/stand-ins
cd /project && LD_LIBRARY_PATH=/tmp/stand-ins COLUMNS=160 exec dapo check "$@"'
mounts=()
for folder in scripts examples; do mounts+=(--volume "$ROOT/$folder:/project/$folder:ro"); done
if [ "$KIND_OF_BUILDER" = docker ]; then
    exec docker run --rm "${mounts[@]}" --entrypoint sh "$IMAGE" -euc "$command" check "$@"
fi
container=$("${BUILDER[@]}" from "$IMAGE")
trap '"${BUILDER[@]}" rm "$container" >/dev/null' EXIT
"${BUILDER[@]}" run "${mounts[@]}" "$container" -- sh -euc "$command" check "$@"
