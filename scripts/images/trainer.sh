#!/bin/sh
# trainer.sh gpu|cpu: inside the trainer's image, installs system libraries and packages.
#
# libnuma is vLLM's. While a job runs, Triton compiles its kernels' launchers and torch's compiler those for processors, so the
# GPU image keeps compilers for C and C++.
# The package index has no torch without CUDA. For CPUs 3.4 GB of libraries that torch only loads are omitted and
# replaced by empty ones with the names that torch is linked with.
set -eu
here=$(dirname "$0")
debian() { apt-get install -y -qq --no-install-recommends "$@" >/dev/null; }

apt-get update -qq
case $1 in
    gpu)
        debian libnuma1 gcc g++ libc6-dev python3-dev
        sh "$here/packages.sh" "$here/requirements.txt"
        ;;
    cpu)
        debian libnuma1 gcc libc6-dev binutils
        python3 "$here/without-cuda.py" <"$here/requirements.txt" >"$here/without-cuda.txt"
        sh "$here/packages.sh" "$here/without-cuda.txt"
        python3 "$here/cuda-stand-ins.py" /opt/dapo
        /opt/dapo/bin/python -c 'import torch; torch.ones(2).sum()'
        apt-mark auto gcc libc6-dev binutils >/dev/null
        apt-get autoremove -y -qq --purge >/dev/null
        ;;
    *) echo "ACCELERATOR is '$1'; it must be one of gpu, cpu" >&2 && exit 1 ;;
esac
rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/log/*
