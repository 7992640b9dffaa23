# Everything sets itself up first, into .dapo (ignored by git); the second time that takes no time.

SHELL := /bin/bash
BIN := .dapo/venv/bin
SEED ?= 0
# Each seed has a model and data of its own; examples/arithmetic.yaml names those of seed 0.
DEMO := .dapo/demo$(if $(filter-out 0,$(SEED)),-$(SEED))
ifneq ($(SEED),0)
SEEDED := --set data.seed=$(SEED) --set model.source=../$(DEMO)/model \
	--set 'data.train=[{source: ../$(DEMO)/train.parquet}]' \
	--set 'data.validation=[{name: arithmetic, source: ../$(DEMO)/validation.parquet, samplesPerPrompt: 8, topP: 1.0}]'
endif
UPGRADE ?=
COMPILE = $(LOCK) pyproject.toml
LOCK = "$$(scripts/setup.sh uv)" pip compile --quiet --universal --python-version 3.11 \
	--generate-hashes --no-emit-index-url --custom-compile-command 'make lock' $(if $(UPGRADE),--upgrade)
CPU := --override requirements/cpu-overrides.txt

# tests/support/side_by_side.py says which tests share a worker, and in which order they go.
# Folders that need an engine or a cluster are not even collected: importing torch takes longer than most tests.
FAST := -m "not engine and not server and not browser" --ignore=tests/engine --ignore=tests/real --ignore=tests/cluster
SIDE_BY_SIDE := -n logical --maxprocesses 4 --dist loadscope --no-loadscope-reorder

GPU_JOBS := $(wildcard examples/qwen*.yaml examples/gpu/*.yaml examples/ablation/*.yaml)

export RUFF_CACHE_DIR := $(CURDIR)/.dapo/ruff
export HYPOTHESIS_STORAGE_DIRECTORY := $(CURDIR)/.dapo/hypothesis

.PHONY: all help setup demo test check simulate postgres-versions s3-servers gpu-check gpu-image-check coverage lint format verify generate lock sbom audit fuzz clean cluster cluster-down images images-loaded pictures e2e chaos queues
.DEFAULT_GOAL := all

all: lint test ## lint and test; what bare `make` does

help: ## what can be made
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## (.*)/  make \1	\2/' | expand -t 24

setup: ## the environment .dapo/venv; every other target does this by itself
	@scripts/setup.sh

demo: setup ## train a small model on arithmetic with DAPO and watch it learn; SEED=1 for another seed
	$(BIN)/python -m dapo_trainer.demo.prepare $(DEMO) --seed $(SEED)
	$(BIN)/dapo run examples/arithmetic.yaml $(SEEDED)

test: setup ## all tests but those of e2e and queues, two at a time; ARGS="-k spec -n0" passes arguments to pytest
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) $(ARGS)

check: lint verify ## lint, generated files, and every test that needs no engine, server or browser
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) -q $(FAST) $(ARGS)

simulate: setup ## the operator against 30 simulated days of faults with 200 jobs, half an hour; DAPO_SEED=7 for other faults
	DAPO_SIMULATED_DAYS=30 DAPO_SIMULATED_JOBS=200 DAPO_TEST_PATIENCE=60 \
		$(BIN)/python -m pytest -n0 -q tests/operator/test_simulation.py -k thirty_minutes $(ARGS)

fuzz: setup ## the fuzzers of tests/attacks for longer than in the tests; DAPO_FUZZ_EXAMPLES=2000 each, unless it says more
	DAPO_FUZZ_EXAMPLES=$${DAPO_FUZZ_EXAMPLES:-2000} $(BIN)/python -m pytest -q $(SIDE_BY_SIDE) -k "any or anything" \
		tests/attacks tests/cluster/test_operator_hostile.py $(ARGS)

postgres-versions: setup ## the metadata store's tests on Postgres 15 to 18, from npm; 15 minutes; ARGS=18.4.0-beta.17 for one
	tests/kit/postgres-versions.sh $(ARGS)

s3-servers: setup ## the tests of object stores on MinIO, Ceph, and Versity's gateway to a folder and to Azure's storage; 15 minutes
	$(BIN)/python tests/kit/s3_servers.py $(ARGS)
	$(BIN)/python scripts/generate --write

coverage: setup ## branch coverage of the packages that compute without talking to the outside
	$(BIN)/python -m pytest -q $(FAST) --cov --cov-report=term $(ARGS)

lint: setup ## ruff, oxlint, mypy --strict and the import rules
	$(BIN)/ruff check
	$(BIN)/oxlint --deny-warnings dashboard tests/dashboard/browser
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --cache-dir .dapo/import-linter --no-logo

format: setup ## write the sources the way lint wants them
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

verify: setup ## check that the generated files (CRD, reference, runbooks, chart README) are up to date
	$(BIN)/python scripts/generate --check

generate: setup ## write the generated files
	$(BIN)/python scripts/generate --write

pictures: setup ## the pictures of docs/dashboard.md, in Chromium; ARGS="--only dashboard-live" for one
	$(BIN)/python benchmarks/dashboard_pictures.py $(ARGS)

lock: ## the locked requirement files; UPGRADE=1 moves to the newest versions
	$(COMPILE) $(CPU) --extra cpu --extra dev --extra operator --extra dashboard -o requirements/dev.txt
	$(COMPILE) $(CPU) --extra cpu --constraint requirements/dev.txt -o requirements/cpu.txt
	$(COMPILE) --extra operator --constraint requirements/dev.txt -o requirements/operator.txt
	$(COMPILE) --extra dashboard --constraint requirements/dev.txt -o requirements/dashboard.txt
	$(COMPILE) --extra gpu -o requirements/gpu.txt
	$(COMPILE) $(CPU) --extra bench -o requirements/bench.txt
	$(LOCK) requirements/build.in -o requirements/build.txt
	$(LOCK) requirements/audit.in -o requirements/audit.txt
	$(LOCK) requirements/npm.in -o requirements/npm.txt

sbom: ## CycloneDX lists of the locked packages in .dapo/sbom, one for each image
	@scripts/supply/tools.sh sbom

audit: ## known vulnerabilities of the locked packages; DAPO_OSV_EXPORT=all.zip of OSV's PyPI export works offline
	@scripts/supply/tools.sh audit

gpu-check: ## the examples for GPUs against the packages of the GPU image; needs no GPU, but 3 GB of disk
	@venv=$$(scripts/gpu-setup.sh) && LD_LIBRARY_PATH="$$LD_LIBRARY_PATH:$$venv/stand-ins" COLUMNS=160 \
		"$$venv/bin/dapo" check $(GPU_JOBS)

gpu-image-check: ## the same in the image of the trainer for GPUs, which it builds; 30 GB of disk meanwhile
	@scripts/images.sh trainer-gpu
	@scripts/gpu-image-check.sh $(GPU_JOBS)

cluster: ## a Kubernetes to try things on: kind where Docker is, else processes; DAPO_CLUSTER=existing for the one of KUBECONFIG
	@tests/kit/cluster.sh up

images: ## the platform's images, by docker or buildah
	@scripts/images.sh

cluster-down: ## end that cluster and remove all of it
	@tests/kit/cluster.sh down

images-loaded: ## the images, handed to that cluster
	@scripts/images.sh --load

e2e: setup cluster images-loaded ## the whole story on that cluster: install, train, break, upgrade; ARGS="-m main_story" for CI's part
	$(BIN)/python -m pytest tests/e2e --durations=0 -x $(ARGS)

queues: setup ## jobs in the queues of a real Kueue and a real Volcano, which Go builds once, in 20 minutes; ARGS="-k away"
	$(BIN)/python -m pytest tests/queues -q -n0 --durations=10 $(ARGS)

chaos: setup cluster images-loaded ## the platform on that cluster, and faults for a job that trains; ARGS are dapo chaos's
	PYTHONPATH=tests/support $(BIN)/python benchmarks/chaos.py \
		$(or $(ARGS),--rate 36 --minutes 10 --seed 1 --kind kill --kind drain --kind scale)

clean: ## remove what was installed and made; runs/ stays
	@[ ! -d .dapo/cluster ] || tests/kit/cluster.sh down
	rm -rf .dapo build *.egg-info .hypothesis .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
