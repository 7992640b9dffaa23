# Images of the platform: --target operator, trainer (--build-arg ACCELERATOR=gpu or cpu) or dashboard.
# `make images` builds them; docs/install.md says how to build them elsewhere.
#
# /opt/dapo holds the locked packages, /opt/code this project: a change of code ships the last layer alone.
# Secrets, both optional: `indexes`, a shell file with pip's and uv's variables, and `authorities`, certificates.

ARG BASE=python:3.11-slim-bookworm
ARG ACCELERATOR=gpu

FROM ${BASE} AS builder
ENV UV_COMPILE_BYTECODE=1 UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never PYTHONDONTWRITEBYTECODE=1
COPY scripts/images/with-indexes /usr/local/bin/with-indexes
RUN --mount=type=secret,id=indexes --mount=type=secret,id=authorities \
    python3 -m venv /opt/uv && with-indexes /opt/uv/bin/pip install --quiet --no-cache-dir uv==0.13.8 \
    && /opt/uv/bin/uv venv --quiet --python "$(command -v python3)" /opt/dapo \
    && echo /opt/code > "$(/opt/dapo/bin/python -c 'import site; print(site.getsitepackages()[0])')/dapo-code.pth"
ENV PATH=/opt/uv/bin:/usr/local/bin:/usr/sbin:/usr/bin:/bin VIRTUAL_ENV=/opt/dapo

FROM builder AS code
ARG VERSION
RUN --mount=type=secret,id=indexes --mount=type=secret,id=authorities \
    with-indexes uv pip install --quiet --no-cache "setuptools>=77"
COPY pyproject.toml README.md /src/
COPY core /src/core
COPY operator /src/operator
COPY trainer /src/trainer
COPY dashboard /src/dashboard
RUN uv pip install --quiet --no-cache --offline --no-deps --no-build-isolation --target /opt/code /src

FROM builder AS operator-packages
COPY requirements/operator.txt /requirements.txt
RUN --mount=type=secret,id=indexes --mount=type=secret,id=authorities --mount=type=cache,target=/var/cache/uv \
    UV_CACHE_DIR=/var/cache/uv with-indexes uv pip sync --quiet --require-hashes /requirements.txt

FROM builder AS dashboard-packages
COPY requirements/dashboard.txt /requirements.txt
RUN --mount=type=secret,id=indexes --mount=type=secret,id=authorities --mount=type=cache,target=/var/cache/uv \
    UV_CACHE_DIR=/var/cache/uv with-indexes uv pip sync --quiet --require-hashes /requirements.txt

FROM builder AS trainer-packages-gpu
COPY requirements/gpu.txt /requirements.txt
RUN --mount=type=secret,id=indexes --mount=type=secret,id=authorities --mount=type=cache,target=/var/cache/uv \
    UV_CACHE_DIR=/var/cache/uv with-indexes uv pip sync --quiet --require-hashes /requirements.txt

# The package index carries no torch without CUDA: 3.4 GB of libraries that a machine without a GPU only loads. They are left out,
# and in their place stand empty ones that answer to the names torch is linked with.
FROM builder AS trainer-packages-cpu
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends gcc libc6-dev binutils >/dev/null
COPY requirements/cpu.txt /requirements-with-cuda.txt
COPY scripts/images/without-cuda.py scripts/images/cuda-stand-ins.py /opt/
RUN --mount=type=secret,id=indexes --mount=type=secret,id=authorities --mount=type=cache,target=/var/cache/uv \
    python3 /opt/without-cuda.py < /requirements-with-cuda.txt > /requirements.txt \
    && UV_CACHE_DIR=/var/cache/uv with-indexes uv pip sync --quiet --require-hashes /requirements.txt \
    && python3 /opt/cuda-stand-ins.py /opt/dapo && /opt/dapo/bin/python -c "import torch; torch.ones(2).sum()"

FROM ${BASE} AS runtime
ARG VERSION
LABEL org.opencontainers.image.title="DAPO platform" org.opencontainers.image.version="${VERSION}"
ENV PATH=/opt/code/bin:/opt/dapo/bin:/usr/local/bin:/usr/sbin:/usr/bin:/bin PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
RUN useradd --uid 1000 --user-group --no-create-home --home-dir /var/lib/dapo dapo && mkdir -p /var/lib/dapo \
    && chown dapo:dapo /var/lib/dapo
USER 1000:1000
WORKDIR /var/lib/dapo
ENTRYPOINT ["dapo"]
CMD ["version"]

FROM runtime AS operator
COPY --from=operator-packages /opt/dapo /opt/dapo
COPY --from=code /opt/code /opt/code

FROM runtime AS dashboard
COPY --from=dashboard-packages /opt/dapo /opt/dapo
COPY --from=code /opt/code /opt/code

# libnuma is vLLM's. Triton compiles its kernels' launchers while a job runs, so the GPU image keeps a C compiler.
FROM runtime AS trainer-cpu
USER 0
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends libnuma1 >/dev/null \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/log/*
USER 1000:1000

FROM runtime AS trainer-gpu
USER 0
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends libnuma1 gcc libc6-dev python3-dev >/dev/null \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/log/*
USER 1000:1000

FROM trainer-packages-${ACCELERATOR} AS trainer-packages
FROM trainer-${ACCELERATOR} AS trainer
COPY --from=trainer-packages /opt/dapo /opt/dapo
COPY --from=code /opt/code /opt/code
