#!/bin/sh
# packages.sh REQUIREMENTS: inside an image, creates the virtual environment /opt/dapo from locked packages, by the uv of
# build.txt beside this file.
#
# uv itself stays in the builder's cache, outside the image; two builds may use it concurrently.
set -eu
here=$(dirname "$0")
tool=/var/cache/uv/tool-$(sha256sum "$here/build.txt" | cut -c1-16)
export UV_COMPILE_BYTECODE=1 UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never UV_CACHE_DIR=/var/cache/uv
(
    flock 9
    [ -x $tool/bin/uv ] || {
        python3 -m venv $tool
        "$here/with-indexes" $tool/bin/pip install --quiet --no-cache-dir --no-deps --only-binary :all: \
            --require-hashes --requirement "$here/build.txt"
    }
) 9>/var/cache/uv/tool.lock
$tool/bin/uv venv --quiet --python "$(command -v python3)" /opt/dapo
"$here/with-indexes" $tool/bin/uv pip sync --quiet --python /opt/dapo/bin/python --require-hashes "$1"
echo /opt/code >"$(/opt/dapo/bin/python -c 'import site; print(site.getsitepackages()[0])')/dapo-code.pth"
