# Images of the platform: --target operator, dashboard or trainer (--build-arg ACCELERATOR=gpu or cpu).
# `make images` builds them; docs/install.md says how to build them elsewhere.
#
# /opt/dapo holds the locked packages, /opt/code this project: a change of code ships the last layer alone. Packages are
# installed where they stay: copied from another stage, gigabytes would be written and hashed once more.
# Secrets, both optional: `indexes`, a shell file with pip's, uv's and npm's variables, and `authorities`, certificates.
# BASE has no default: scripts/images/bases.txt says which image it is.

ARG BASE

# Scripts name the interpreter that installed them: it stands where the images have theirs.
FROM ${BASE} AS code
ARG VERSION
COPY scripts/images/with-indexes requirements/build.txt requirements/npm.txt /tmp/
RUN --mount=type=secret,id=indexes --mount=type=secret,id=authorities \
    python3 -m venv /opt/dapo && /tmp/with-indexes /opt/dapo/bin/pip install --quiet --no-cache-dir --no-deps \
    --only-binary :all: --require-hashes --requirement /tmp/build.txt
COPY pyproject.toml setup.py README.md /src/
COPY core /src/core
COPY operator /src/operator
COPY trainer /src/trainer
COPY dashboard /src/dashboard
# Sources out of `make setup` have the charts' package; others fetch it, with an npm that stays in this stage.
RUN --mount=type=secret,id=indexes --mount=type=secret,id=authorities \
    [ -f /src/dashboard/dapo_dashboard/browser/uplot/VERSION ] || { \
        python3 -m venv /opt/npm && /tmp/with-indexes /opt/npm/bin/pip install --quiet --no-cache-dir --no-deps \
        --only-binary :all: --require-hashes --requirement /tmp/npm.txt \
        && PATH=/opt/npm/bin:$PATH /tmp/with-indexes python3 -P /src/dashboard/dapo_dashboard/uplot.py; }
RUN --mount=type=secret,id=indexes --mount=type=secret,id=authorities \
    /tmp/with-indexes /opt/dapo/bin/pip install --quiet --no-cache-dir --no-index --no-deps --no-build-isolation \
    --target /opt/code /src

FROM ${BASE} AS runtime
ARG VERSION
LABEL org.opencontainers.image.title="DAPO platform" org.opencontainers.image.version="${VERSION}"
ENV PATH=/opt/code/bin:/opt/dapo/bin:/usr/local/bin:/usr/sbin:/usr/bin:/bin PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
RUN useradd --uid 1000 --user-group --no-create-home --home-dir /var/lib/dapo dapo && mkdir -p /var/lib/dapo \
    && chown dapo:dapo /var/lib/dapo
WORKDIR /var/lib/dapo
ENTRYPOINT ["dapo"]
CMD ["version"]

FROM runtime AS operator
COPY requirements/operator.txt requirements/build.txt scripts/images/packages.sh scripts/images/with-indexes /tmp/build/
RUN --mount=type=secret,id=indexes --mount=type=secret,id=authorities --mount=type=cache,target=/var/cache/uv \
    sh /tmp/build/packages.sh /tmp/build/operator.txt && rm -rf /tmp/build
COPY --from=code /opt/code /opt/code
USER 1000:1000

FROM runtime AS dashboard
COPY requirements/dashboard.txt requirements/build.txt scripts/images/packages.sh scripts/images/with-indexes /tmp/build/
RUN --mount=type=secret,id=indexes --mount=type=secret,id=authorities --mount=type=cache,target=/var/cache/uv \
    sh /tmp/build/packages.sh /tmp/build/dashboard.txt && rm -rf /tmp/build
COPY --from=code /opt/code /opt/code
USER 1000:1000

FROM runtime AS trainer
ARG ACCELERATOR=gpu
COPY requirements/${ACCELERATOR}.txt /tmp/build/requirements.txt
COPY requirements/build.txt scripts/images/packages.sh scripts/images/with-indexes scripts/images/trainer.sh scripts/images/*.py /tmp/build/
RUN --mount=type=secret,id=indexes --mount=type=secret,id=authorities --mount=type=cache,target=/var/cache/uv \
    sh /tmp/build/trainer.sh ${ACCELERATOR} && rm -rf /tmp/build
COPY --from=code /opt/code /opt/code
USER 1000:1000
