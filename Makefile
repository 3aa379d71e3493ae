# Every target is a command, never a file: several of them share their name with a folder.
.DEFAULT_GOAL := help
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory

# `.python-version` names the version; a pyenv shim called `python` honours it, a plain machine has the versioned name.
WANTED := $(shell cat .python-version)
BASE_PYTHON := $(shell for p in python$(WANTED) python python3; do \
  if command -v $$p >/dev/null && $$p -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null; then echo $$p; break; fi; done)
BIN := .venv/bin
INSTALLED := .venv/.installed
PYTEST := $(BIN)/python -m pytest -q
# What takes longest is told at the end, so that it is known what to make quicker.
SLOWEST := --durations=8 --durations-min=5
WORKERS := -n auto --maxprocesses=8 --dist worksteal
FAST := -m 'not cluster and not slow' $(WORKERS)
# Which branches a property test reaches is chance: each must have an example, and the properties go faster unwatched.
EXAMPLES := -m 'not cluster and not slow and not hypothesis' $(WORKERS)
PROPERTIES := -m 'not cluster and not slow and hypothesis' $(WORKERS)
SLOW := -m slow -n auto --maxprocesses=2 --dist worksteal $(SLOWEST)
# The pure rooms' own tests reach their every branch; to watch the others too would take a minute more.
PURE := tests/api tests/core tests/corpus
# By itself: JAX's threads and the command line's child processes do not go together.
TRAINER := tests/trainer
LOCK := $(BIN)/uv pip compile -q pyproject.toml --generate-hashes --universal --python-version 3.12 \
  --no-emit-index-url --no-header --no-annotate
# A lock is whole, so pip resolves nothing: a release of today that a lock does not name would only mislead it.
LOCKED := --no-deps --require-hashes -r
export E2E_CLUSTER ?= local
# Tests that pytest has rewritten once are kept so, and each of many child processes starts sooner.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help
help: ## Show this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-18s %s\n", $$1, $$2}'

$(INSTALLED): requirements.lock pyproject.toml .python-version
	@test -n "$(BASE_PYTHON)" || { echo "Python $(WANTED) or newer is needed; none was found on PATH." >&2; exit 1; }
	@echo "making .venv with $$($(BASE_PYTHON) --version)"
	@test -x $(BIN)/python || $(BASE_PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet $(LOCKED) requirements.lock
	@$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@$(BIN)/python -m pip check
	@touch $@

.PHONY: install
install: $(INSTALLED) ## Make .venv with everything pinned, the project itself editable

.PHONY: format
format: install ## Format the code and apply safe lint fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.PHONY: lint
lint: install ## Check format, lint, strict types and the import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

.PHONY: generate
generate: install ## Rewrite every generated file: the CRD, the chart's copy of it, docs/fields.md, the list of JAX's options
	$(BIN)/python crds/generate.py
	$(BIN)/python operator/jax_options.py

.PHONY: golden
golden: install ## Rewrite the golden files; read the diff before you commit it
	GOLDEN=write $(PYTEST) $(FAST) tests --ignore=$(TRAINER)
	GOLDEN=write $(PYTEST) $(FAST) $(TRAINER)

.PHONY: check
check: lint ## The fast part: lint, types, contracts, generated files, every test that needs no cluster
	$(BIN)/python crds/generate.py --check
	$(PYTEST) $(EXAMPLES) $(PURE) --cov --cov-report=term:skip-covered --cov-fail-under=100
	$(PYTEST) $(PROPERTIES) $(PURE)
	$(PYTEST) $(FAST) tests $(PURE:%=--ignore=%) --ignore=$(TRAINER)
	$(PYTEST) $(FAST) $(TRAINER)

.PHONY: mutations
mutations: install ## Put faults into copies of the code, one by one; fast tests must notice each (ONLY=name)
	$(BIN)/python -m tests.mutations $(if $(ONLY),"$(ONLY)")

.PHONY: slow
slow: install ## Whole runs of the real trainer on this machine, without a cluster
	$(PYTEST) $(SLOW) tests --ignore=$(TRAINER)
	$(PYTEST) $(SLOW) $(TRAINER)

.PHONY: journeys
journeys: install ## The journeys on a real cluster (E2E_CLUSTER=local|kind|existing)
	$(PYTEST) -v -m cluster $(SLOWEST) e2e/journeys tests
	$(PYTEST) tests/render/chart # left out of the first `make check` of a machine without helm; now it has one

.PHONY: soak
soak: install ## A thousand random faults on jobs of this machine, at most 40 minutes (FAULTS=1000, SEED=1)
	$(BIN)/python -m e2e.soak --faults $(or $(FAULTS),1000) --seed $(or $(SEED),1)

.PHONY: soak-cut
soak-cut: install ## A soak of three minutes
	$(BIN)/python -m e2e.soak --seconds 110

.PHONY: soak-cluster
soak-cluster: install ## Long faults on the real cluster: the operator killed, doubled, cut off
	$(PYTEST) -m soak e2e/journeys

.PHONY: test
test: check slow soak-cut journeys ## Everything: the fast tests, the slow ones, faults, then the journeys on the real cluster

.PHONY: test-one-core
test-one-core: ## Everything with the CPU time of one core: no test may depend on the machine's speed
	e2e/one_core.sh $(MAKE) test

.PHONY: cluster-up
cluster-up: install ## Bring up the local four-node cluster and build its images
	$(BIN)/python -m e2e.cluster up

.PHONY: cluster-down
cluster-down: install ## Stop the local cluster and leave nothing behind
	$(BIN)/python -m e2e.cluster down

.PHONY: demo
demo: install ## Watch a job train on a real cluster, lose a node, shrink, grow back and finish
	$(BIN)/python -m e2e.demo

.PHONY: demo-down
demo-down: cluster-down ## Remove all that the demo started

.PHONY: bench-demo
bench-demo: install ## Measure the demo: first step, shrink, grow, and the same without a cluster
	$(BIN)/python -m e2e.benchmarks.demo

.PHONY: bench-restart
bench-restart: install ## Measure how long training stands still for each kind of loss, without a cluster (RUNS=20, ONLY=hang,planned)
	$(BIN)/python -m e2e.benchmarks.restart

.PHONY: bench-restart-pods
bench-restart-pods: install ## The same on pods of the real cluster, by drills and power cuts (RUNS=20, ONLY=hang)
	$(BIN)/python -m e2e.benchmarks.restart_pods

.PHONY: bench-verdicts
bench-verdicts: install ## Hold verdicts against real hosts: healthy in noise, then hanging, slow, with flipped bits (HEALTHY=600, RUNS=20, ONLY=healthy)
	$(BIN)/python -m e2e.benchmarks.verdicts

.PHONY: bench-saves
bench-saves: install ## Measure how long snapshots and saves keep training waiting, first saves apart (RUNS=20)
	$(BIN)/python -m e2e.benchmarks.saves

.PHONY: bench-goodput
bench-goodput: install ## Hold the simulator against a job of this machine whose slices lose their power (LENGTH=300, MTBF=60)
	$(BIN)/python -m e2e.benchmarks.goodput

.PHONY: bench-simulate
bench-simulate: install ## Measure the simulator: a year of 1,024 slices under faults (DAYS=365, MTBF=365)
	$(BIN)/python -m e2e.benchmarks.simulate

.PHONY: bench-webhook
bench-webhook: install ## Measure the webhook: twenty creates at once of the largest example, and the costliest refusal
	$(BIN)/python -m e2e.benchmarks.webhook

.PHONY: bench-attacks
bench-attacks: install ## Attack the operator on loopback for a minute: its event loop, its Lease, its memory
	$(BIN)/python -m e2e.benchmarks.attacks

.PHONY: bench-plan
bench-plan: install ## Measure the planner: verdicts on 10,000 random jobs, and on jobs of 16,384 chips
	$(BIN)/python -m e2e.benchmarks.plan

.PHONY: bench-gradients
bench-gradients: install ## Measure the gradients of bfloat16 against those of float32: each tensor, microsteps and layouts
	$(BIN)/python -m e2e.benchmarks.gradients

.PHONY: bench-compiler
bench-compiler: install ## Hold the estimates against real compilers, TPUs too, without a device (RECORD=1, MESHES=1)
	$(BIN)/python -m pip install --quiet $(LOCKED) trainer/tpu-compile.lock
	$(BIN)/python -m e2e.benchmarks.compiler $(if $(RECORD),--record) $(if $(MESHES),--meshes)

.PHONY: lock
lock: ## Resolve the pins anew: requirements.lock and the images' own
	@test -x $(BIN)/python || $(BASE_PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet "$$(grep -oE 'uv==[0-9.]+' pyproject.toml)"
	$(LOCK) --extra operator --extra trainer --extra cli --extra e2e --group dev -o requirements.lock
	for image in operator trainer; do $(LOCK) --extra $$image -c requirements.lock -o $$image/requirements.lock; done
	$(LOCK) --extra tpu-compile -c requirements.lock -o trainer/tpu-compile.lock

.PHONY: clean
clean: ## Remove what builds and tests write; the cluster must be down
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage
