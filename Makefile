# Every target is phony: several targets share their name with a folder.
.DEFAULT_GOAL := help
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory

# `.python-version` names the Python version. A pyenv shim called `python` honours it; other machines have a versioned name.
WANTED := $(shell cat .python-version)
BASE_PYTHON := $(shell for p in python$(WANTED) python python3; do \
  if command -v $$p >/dev/null && $$p -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null; then echo $$p; break; fi; done)
BIN := .venv/bin
INSTALLED := .venv/.installed
PYTEST := $(BIN)/python -m pytest -q
# Print the slowest tests at the end, as candidates for optimization.
SLOWEST := --durations=8 --durations-min=5
WORKERS := -n auto --maxprocesses=8 --dist worksteal
FAST := -m 'not cluster and not slow and not thorough' $(WORKERS)
THOROUGH := -m 'not cluster and not slow' $(WORKERS)
# Property tests reach branches by chance, so example tests alone must reach full coverage. Properties run faster without it.
EXAMPLES := -m 'not cluster and not slow and not hypothesis' $(WORKERS)
PROPERTIES := -m 'not cluster and not slow and hypothesis' $(WORKERS)
SLOW := -m slow -n auto --maxprocesses=2 --dist worksteal $(SLOWEST)
# Tests of the pure packages, which have full branch coverage. Coverage of the other tests would take a minute more.
PURE := tests/api tests/core tests/corpus
# Separate run: JAX's threads conflict with the child processes of the command line's tests.
TRAINER := tests/trainer
# Tests that only compute: no other load can make them fail.
NUMERICS := $(addprefix $(TRAINER)/,compile_report hlo_analysis kernels models objectives optim parallel sampling)
NUMERICS_LOG := build/numerics.log
# Linux weighs sessions first, then the processes in each: `nice` alone would change nothing for other sessions.
AT_LOW_PRIORITY := setsid nice -n 10 bash -c 'echo 10 >/proc/self/autogroup || true; exec "$$@"' bash
# Tests of the agent. The last three cover how it reads and writes files that others can change.
AGENT := $(TRAINER)/agent $(TRAINER)/checkpoint/test_foreign.py $(TRAINER)/store/test_agent_requests.py \
  $(TRAINER)/trackers/test_metrics_file.py
COMPILE := $(BIN)/uv pip compile -q --generate-hashes --universal --python-version 3.12 \
  --no-emit-index-url --no-header --no-annotate
LOCK := $(COMPILE) pyproject.toml
# The object stores of the tests are built during the first tests. The trainer's tests wait for them.
BUILD_OBJECT_STORES := $(BIN)/python -m e2e.object_stores.servers & built=$$!; trap "kill $$built 2>/dev/null || true" EXIT
AWAIT_OBJECT_STORES := wait $$built || echo "the tests of object stores are skipped" >&2
# Locks are complete; --no-deps stops pip from resolving anything else.
LOCKED := --no-deps --require-hashes -r
# A separate environment: the project does not depend on MaxText.
MAXTEXT := build/maxtext
INSTALL_MAXTEXT = { test -x $(MAXTEXT)/bin/python || $(BASE_PYTHON) -m venv $(MAXTEXT); } && \
  $(MAXTEXT)/bin/python -m pip install --quiet $(LOCKED) e2e/maxtext.lock
export E2E_CLUSTER ?= local
# Keep the bytecode of tests that pytest rewrote, so that child processes start faster.
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
install: $(INSTALLED) ## Create .venv with pinned dependencies and the project in editable mode

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
generate: install ## Rewrite all generated files: the CRD, the chart's copy and its required values, docs/fields.md, docs/metrics.md, the list of JAX options
	$(BIN)/python tools/generate.py

.PHONY: golden
golden: install ## Rewrite the golden files; read the diff before you commit it
	GOLDEN=write $(PYTEST) $(THOROUGH) tests --ignore=$(TRAINER)
	GOLDEN=write $(PYTEST) $(THOROUGH) $(TRAINER)

.PHONY: check
check: lint ## Run the checks for each change: lint, types, contracts, generated files, and all quick tests
	$(BUILD_OBJECT_STORES); $(PYTEST) $(FAST) tests --ignore=$(TRAINER); $(AWAIT_OBJECT_STORES)
	$(PYTEST) $(FAST) $(TRAINER)

.PHONY: coverage
coverage: install ## Test the pure packages and require their full branch coverage, then test their properties
	$(BUILD_OBJECT_STORES); \
	  $(PYTEST) $(EXAMPLES) $(PURE) --cov --cov-report=term:skip-covered --cov-fail-under=100; \
	  $(AWAIT_OBJECT_STORES)
	$(PYTEST) $(PROPERTIES) $(PURE)

.PHONY: coverage-shell
coverage-shell: install ## Require 95 % branch coverage of the operator's shell and of the agent by their own tests
	$(PYTEST) $(THOROUGH) tests/shell --cov=trainingjob_operator.shell --cov-report=
	$(BIN)/coverage report --include='operator/trainingjob_operator/shell/*' --skip-covered --show-missing --fail-under=95
	$(PYTEST) $(THOROUGH) $(AGENT) --cov=trainingjob_agent --cov-report=
	$(BIN)/coverage report --include='trainer/trainingjob_agent/*' --skip-covered --show-missing --fail-under=95

.PHONY: thorough
thorough: install ## Run all other tests that need no cluster and take less than ten seconds, without those of `make numerics`
	$(PYTEST) $(THOROUGH) tests $(PURE:%=--ignore=%) --ignore=$(TRAINER)
	$(PYTEST) $(THOROUGH) $(TRAINER) $(NUMERICS:%=--ignore=%)

.PHONY: object-stores
object-stores: install ## Build the object stores of the tests, once per machine: `make check` does it during the first tests
	$(BIN)/python -m e2e.object_stores.servers

.PHONY: mutations
mutations: install ## Mutate copies of the code one by one; fast tests must fail for each mutation (ONLY=name)
	$(BIN)/python -m tests.mutations $(if $(ONLY),"$(ONLY)")

.PHONY: slow
slow: install ## Run the slow tests: whole runs of the trainer on this machine, without those of `make numerics`
	$(PYTEST) $(SLOW) tests $(PURE:%=--ignore=%) --ignore=$(TRAINER)
	$(PYTEST) $(SLOW) $(TRAINER) $(NUMERICS:%=--ignore=%)

.PHONY: numerics
numerics: install ## Run the tests that only compute: slow ones of the planner, all of models and optimizers (ALL_CASES=1: each table whole)
	$(PYTEST) $(SLOW) $(PURE)
	$(PYTEST) -m 'not cluster' $(WORKERS) $(SLOWEST) $(NUMERICS)

.PHONY: meshes
meshes: install ## Train small models on every mesh axis, pair and triple; the slow tests take a fourth of them
	ALL_CASES=1 $(PYTEST) $(SLOW) tests/trainer/models/test_mesh_matrix.py

.PHONY: journeys
journeys: install ## Run the journeys on a real cluster (E2E_CLUSTER=local|kind|existing)
	$(PYTEST) -v -m 'cluster and not soak' $(SLOWEST) e2e/journeys tests
	$(PYTEST) tests/render/chart # skipped by `make check` on a machine without helm, which the cluster has installed by now

.PHONY: soak
soak: install ## Inject 1,000 random faults into jobs of this machine, at most 40 minutes (FAULTS=1000, SEED=1)
	$(BIN)/python -m e2e.soak --faults $(or $(FAULTS),1000) --seed $(or $(SEED),1)

.PHONY: soak-short
soak-short: install ## Run a soak of three minutes
	$(BIN)/python -m e2e.soak --seconds 110

.PHONY: soak-cluster
soak-cluster: install ## Run the journeys that take more than a minute: faults of the operator, upgrades, own programs
	$(PYTEST) -m soak e2e/journeys --ignore-glob='*/test_kueue*' --ignore=e2e/journeys/test_cert_manager.py \
	  --ignore=e2e/journeys/test_maxtext.py \
	  --ignore=e2e/journeys/test_release_upgrade.py

.PHONY: journeys-kueue
journeys-kueue: install ## Run elastic jobs under the real Kueue, which is built once per machine
	$(PYTEST) -v -m soak e2e/journeys/test_kueue.py e2e/journeys/test_kueue_faults.py e2e/journeys/test_kueue_flavors.py

.PHONY: journeys-cert-manager
journeys-cert-manager: install ## Run the operator with certificates of a real cert-manager, which is built once per machine
	$(PYTEST) -v -m soak e2e/journeys/test_cert_manager.py

.PHONY: journeys-gangs
journeys-gangs: install ## Run two jobs that compete for nodes under the gang scheduling of Kubernetes, which is alpha
	trap "$(BIN)/python -m e2e.cluster down" EXIT; $(BIN)/python -m e2e.cluster up --gang-scheduling; \
	  $(PYTEST) -v -m soak e2e/journeys/test_gangs.py

.PHONY: journeys-maxtext
journeys-maxtext: install ## Run MaxText as a program: it loses a slice and regains it; builds an image of 2 GB at the first run
	$(PYTEST) -v -m soak e2e/journeys/test_maxtext.py

.PHONY: test
test: lint coverage thorough slow ## Run everything: the checks, all tests, slow tests, random faults, then the journeys on a real cluster
	@# The soak and the journeys wait for half of their time. The numerics compute meanwhile, at a low priority.
	mkdir -p build; $(AT_LOW_PRIORITY) $(MAKE) numerics >$(NUMERICS_LOG) 2>&1 & numerics=$$!; \
	  trap "kill $$numerics 2>/dev/null || true" EXIT; \
	  $(MAKE) soak-short journeys; wait $$numerics || { cat $(NUMERICS_LOG); exit 1; }; cat $(NUMERICS_LOG)

.PHONY: test-one-core
test-one-core: ## Run everything with the CPU time of one core: no test may depend on the machine's speed
	e2e/one_core.sh $(MAKE) test

.PHONY: soak-kueue
soak-kueue: install ## Preempt the elastic slices of one job under the real Kueue, and print what each preemption costs (PREEMPTIONS=50)
	PREEMPTIONS=$(or $(PREEMPTIONS),50) $(PYTEST) -v -s -m soak e2e/journeys/test_kueue.py -k repeated_preemptions

.PHONY: soak-upgrade
soak-upgrade: install ## Upgrade from the previous release, roll back and drain, with 200 applies (PREVIOUS_RELEASE=cb3df6dc, APPLIES=200)
	$(PYTEST) -v -s -m soak e2e/journeys/test_release_upgrade.py

.PHONY: cluster-up
cluster-up: install ## Start the local four-node cluster and build its images
	$(BIN)/python -m e2e.cluster up

.PHONY: cluster-down
cluster-down: install ## Stop the local cluster and leave nothing behind
	$(BIN)/python -m e2e.cluster down

.PHONY: demo
demo: install ## Show a job on a real cluster: it trains, loses a node, shrinks, grows back and finishes
	$(BIN)/python -m e2e.demo

.PHONY: demo-down
demo-down: cluster-down ## Remove everything that the demo started

.PHONY: recipe
recipe: install ## Pretrain and tune a small model on a real cluster that loses slices, and draw the curves (40 minutes; RESUME=1 keeps jobs that have succeeded)
	$(BIN)/python -m pip install --quiet $(LOCKED) e2e/plots.lock
	$(BIN)/python -m e2e.recipe $(if $(RESUME),--resume)

.PHONY: bench-demo
bench-demo: install ## Measure the demo: first step, shrink and grow, on the cluster and without one
	$(BIN)/python -m e2e.benchmarks.demo

.PHONY: bench-restart
bench-restart: install ## Measure the downtime for each kind of loss, without a cluster, MaxText's too (RUNS=20, ONLY=hang,planned)
	$(INSTALL_MAXTEXT)
	$(BIN)/python -m e2e.benchmarks.restart_pauses

.PHONY: bench-restart-pods
bench-restart-pods: install ## Measure the downtime on pods of the real cluster, by drills and power cuts (RUNS=20, ONLY=hang)
	$(BIN)/python -m e2e.benchmarks.restart_pods

.PHONY: bench-diagnosis
bench-diagnosis: install ## Measure the diagnosis of real hosts: healthy under noise, hanging, slow, flipped bits (HEALTHY=600, RUNS=20, ONLY=healthy)
	$(BIN)/python -m e2e.benchmarks.diagnosis

.PHONY: bench-saves
bench-saves: install ## Measure how long snapshots and saves block training, first saves listed separately (RUNS=20)
	$(BIN)/python -m e2e.benchmarks.saves

.PHONY: bench-goodput
bench-goodput: install ## Compare the simulator with a job of this machine whose slices lose power (LENGTH=300, MTBF=60)
	$(BIN)/python -m e2e.benchmarks.goodput

.PHONY: bench-simulate
bench-simulate: install ## Measure the simulator: a year of 1,024 slices under faults (DAYS=365, MTBF=365)
	$(BIN)/python -m e2e.benchmarks.simulate

.PHONY: bench-webhook
bench-webhook: install ## Measure the webhook: twenty concurrent creates of the largest example, and the costliest rejection
	$(BIN)/python -m e2e.benchmarks.webhook

.PHONY: bench-operator
bench-operator: install ## Measure the operator with 5,000 jobs and 4,096 hosts, next to Kubeflow Trainer's controller (ARGS="--jobs=100")
	$(BIN)/python -m e2e.operator_scale $(ARGS)

.PHONY: check-alerts
check-alerts: install ## Check the dashboard and the alert rules on a real Prometheus, which is built once per machine
	$(BIN)/python -m e2e.monitoring

.PHONY: bench-attacks
bench-attacks: install ## Attack the operator on loopback for a minute: event loop, Lease and memory
	$(BIN)/python -m e2e.benchmarks.attacks

.PHONY: bench-plan
bench-plan: install ## Measure the planner: 10,000 random jobs, and jobs of 16,384 chips
	$(BIN)/python -m e2e.benchmarks.plan

.PHONY: bench-data
bench-data: install ## Measure the data path: tokenizing, readers, batches, and the wait of a step for its batch
	$(BIN)/python -m e2e.benchmarks.data

.PHONY: bench-stores
bench-stores: install ## Measure object stores on loopback: rates against the raw rate, and how long a save blocks training
	$(BIN)/python -m e2e.benchmarks.stores

.PHONY: bench-trainer
bench-trainer: install ## Compare the trainer's step and loop with a hand-written donated jit loop of the same model, and with MaxText
	$(BIN)/python -m e2e.benchmarks.trainer
	$(INSTALL_MAXTEXT)
	PYTHONPATH=.:crds:operator:trainer $(MAXTEXT)/bin/python -m e2e.benchmarks.maxtext

.PHONY: bench-gradients
bench-gradients: install ## Compare bfloat16 gradients with float32, per tensor, microbatch count and layout
	$(BIN)/python -m e2e.benchmarks.gradients

.PHONY: bench-compiler
bench-compiler: install ## Compare the planner's estimates with real compilers, TPU included, without a device (RECORD=1, MESHES=1)
	$(BIN)/python -m pip install --quiet $(LOCKED) trainer/tpu-compile.lock
	$(BIN)/python -m e2e.benchmarks.compiler $(if $(RECORD),--record) $(if $(MESHES),--meshes)

.PHONY: lock
lock: ## Resolve the pins again: requirements.lock, the locks of the images, and the build backend's
	@test -x $(BIN)/python || $(BASE_PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet "$$(grep -oE 'uv==[0-9.]+' pyproject.toml)"
	$(LOCK) --extra operator --extra trainer --extra cli --extra e2e --group dev -o requirements.lock
	$(COMPILE) --group build -c requirements.lock -o build.lock # without the project's dependencies
	for image in operator trainer; do $(LOCK) --extra $$image -c requirements.lock -o $$image/requirements.lock; done
	for platform in tpu cuda13; do $(LOCK) --extra trainer --extra $$platform -c trainer/requirements.lock \
	  -o trainer/requirements-$$platform.lock; done
	$(LOCK) --extra tpu-compile -c requirements.lock -o trainer/tpu-compile.lock
	for group in plots maxtext; do $(LOCK) --group $$group -c requirements.lock -o e2e/$$group.lock; done

.PHONY: images
images: install ## Build the operator's and the trainer's image (PLATFORM=cpu|tpu|cuda13, BUILDER=, REGISTRY=, TAG=, BASE=, PUSH=1, DRY_RUN=1)
	@$(BIN)/python -m tools.images "$(PLATFORM)" $(if $(BUILDER),--builder=$(BUILDER)) $(if $(REGISTRY),--registry=$(REGISTRY)) \
	  $(if $(TAG),--tag=$(TAG)) $(if $(BASE),--base=$(BASE)) $(if $(PUSH),--push) $(if $(DRY_RUN),--dry-run)

.PHONY: pin-base
pin-base: install ## Pin the base image of the Containerfiles by the digest that its registry has now
	$(BIN)/python -m tools.pin_base

.PHONY: check-images
check-images: install ## Install the locks of the trainer images into throwaway environments, and compile with them (PLATFORM=tpu)
	$(BIN)/python -m tools.check_images $(PLATFORM)

.PHONY: sbom
sbom: install ## Write a software bill of materials for each image into build/sbom
	$(BIN)/python -m tools.sbom build/sbom

.PHONY: clean
clean: ## Remove the output of builds and tests; the cluster must be down
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage
