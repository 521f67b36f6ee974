# muster: one job file, every launcher, one trainer. `make` without a target lists the targets.

JOB ?= k8s/jobs/02-digits-ddp.yaml
LAUNCHERS ?= job jobset pytorchjob trainjob
SET ?=
FRESH ?=
SECONDS ?= 600
SEED ?=
IMAGE ?= muster:latest
# Empty: torch from the lock file (on Linux CUDA builds, which also run on a CPU). cpu: PyTorch's CPU index.
TORCH_BACKEND ?=
PYTHON ?= python3

VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.stamp
FRAMEWORKS := build/frameworks
TRACKERS := build/trackers
PEERS := build/bench-peers
UV := $(PY) -m uv
# The job's name, as render.py finds it: from --set, or from the last job file. The name may be quoted there.
NAME = $(or $(patsubst name=%,%,$(lastword $(filter name=%,$(SET)))),$(NAME_IN_JOB),\
	$(error JOB=$(JOB): no line starts with `name:`))
NAME_IN_JOB = $(shell sed -nE "s/^name: *[\"']?([a-z0-9-]+).*/\1/p" $(JOB) | tail -n 1)
FOLDER = build/$(NAME)
BACKEND = $(or $(TORCH_BACKEND),$(shell cat $(STAMP) 2>/dev/null),locked)
RENDER = $(PY) render.py $(JOB) $(foreach pair,$(SET),--set $(pair))

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup run render lint format test test-fast test-parity test-why test-cluster test-standin coverage axe kind-up kind-e2e kind-down torchx frameworks test-frameworks trackers bench bench-gpu bench-growth bench-peers fuzz soak gpu-check docs lock image publish docker-run compose-run sbom audit clean

help: ## list the targets
	@sed -nE 's/^([a-z0-9-]+):.*## (.*)/\1\t\2/p' Makefile | awk -F '\t' '{ printf "  make %-15s %s\n", $$1, $$2 }'
	@printf '\nVariables: JOB=%s LAUNCHERS="%s" SET="key=value ..." FRESH=1 SECONDS=600 SEED=7 IMAGE=%s TORCH_BACKEND=cpu PYTHON=%s\n' \
		'$(JOB)' '$(LAUNCHERS)' '$(IMAGE)' '$(PYTHON)'

setup: $(STAMP) ## make .venv and install the hash-locked packages into it

# Bytecode is compiled once, because users may forbid Python to write it (PYTHONDONTWRITEBYTECODE).
# A .venv without pip is what Debian leaves if python3-venv was missing.
# The stamp holds the backend. So a later `make run` keeps it, and another TORCH_BACKEND installs again.
ifneq ($(TORCH_BACKEND),)
ifneq ($(TORCH_BACKEND),$(shell cat $(STAMP) 2>/dev/null))
.PHONY: $(STAMP)
endif
endif
$(STAMP): docker/requirements-dev.txt docker/requirements-uv.txt docker/install.sh
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'make: $(PYTHON) is older than Python 3.11; try make PYTHON=python3.12' >&2; exit 64; }
	@$(PY) -c 'import pip' 2>/dev/null || $(PYTHON) -m venv $(VENV)
	@$(PY) -m pip install --quiet --disable-pip-version-check --require-hashes -r docker/requirements-uv.txt
	@UV_COMPILE_BYTECODE=1 docker/install.sh $(PY) docker/requirements-dev.txt $(BACKEND)
	@echo '$(BACKEND)' > $@

run: $(STAMP) ## train JOB here, with the ranks it asks for, and render it for clusters; a matrix: each job in turn
	@$(RENDER) $(foreach launcher,local $(LAUNCHERS),--launcher $(launcher)) -o $(FOLDER)
	$(if $(FRESH),@rm -rf $(FOLDER)/runs $(FOLDER)/run)
	@export PYTHON=$(PY); set --; $(call each,local) $(REPORT) exit $$code

# Runs script $(1) of JOB, or of each job of its matrix until one is stopped. `code` is the exit code of the
# first job that failed. The shell's arguments are the run folders.
define each
code=0; for job in $$($(RENDER) --launcher $(1) --check 2>/dev/null | cut -d : -f 1); do \
	if [ "$$job" = '$(NAME)' ]; then \
		set -- "$${TRAINER_OUT:-$(FOLDER)/run}"; $(FOLDER)/$(1).sh; code=$$?; break; \
	fi; \
	echo "make: $$job" >&2; set -- "$$@" "$${TRAINER_OUT:-$(FOLDER)/runs}/$$job"; \
	TRAINER_OUT="$${TRAINER_OUT:+$$TRAINER_OUT/$$job}" $(FOLDER)/$$job/$(1).sh; ended=$$?; \
	[ $$code -ne 0 ] || code=$$ended; case $$ended in 130|143) break ;; esac; \
done;
endef

# A failed run gets a report too. TRAINER_REPORT=false writes none.
unexport TRAINER_REPORT
ifneq ($(TRAINER_REPORT),false)
REPORT = for out in "$$@"; do shift; [ ! -s "$$out/metrics.jsonl" ] || set -- "$$@" "$$out"; done; \
	[ $$\# -eq 0 ] || $(PY) -m trainer.report "$$@" -o $(FOLDER)/report.html;
endif

render: $(STAMP) ## write the manifests of JOB to build/NAME/, ready for kubectl apply -f
	@$(RENDER) $(foreach launcher,$(LAUNCHERS),--launcher $(launcher)) -o $(FOLDER)

lint: $(STAMP) ## ruff, mypy --strict, import contracts, hadolint
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy
	@$(VENV)/bin/lint-imports --no-logo --no-cache
	@$(VENV)/bin/hadolint docker/Dockerfile

format: $(STAMP) ## let ruff rewrite the code
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .

test: $(STAMP) ## every test
	@$(PY) -m pytest $(PARALLEL)

test-fast: $(STAMP) ## the quick tests, in about a minute
	@$(PY) -m pytest $(PARALLEL) -m 'not slow'

test-parity: $(STAMP) ## every mode in every task with every optimiser, accumulation and precision (make test: some of them)
	@MUSTER_TEST_PARITY=whole $(PY) -m pytest $(PARALLEL) tests/parity/test_table.py tests/parity/test_options.py tests/parity/test_fuzzed.py tests/unit/trainer/tasks/test_torchvision_models.py

test-why: $(STAMP) ## every script that fails, to see whether its cause is named (make test: one for each cause)
	@MUSTER_TEST_WHY=whole $(PY) -m pytest $(PARALLEL) tests/why

coverage: $(STAMP) ## run TESTS, and write which lines and branches of k8s and trainer they run to build/coverage/index.html
	@rm -rf build/coverage && mkdir -p build/coverage
	@-$(PY) -m coverage run -m pytest $(TESTS)
	@$(PY) -m coverage combine --quiet
	@$(PY) -m coverage html --quiet --directory build/coverage
	@$(PY) -m coverage report
TESTS ?= tests

torchx: $(STAMP) ## install TorchX 0.7 into build/torchx; make test then compares the rendering with it
	@$(UV) venv --quiet --allow-existing build/torchx
	@$(UV) pip install --quiet --python build/torchx/bin/python 'torchx==0.7.0' kubernetes

axe: ## install axe-core into build/axe with npm; make test then checks the report's accessibility
	@mkdir -p build/axe && npm install --silent --no-audit --no-fund --prefix build/axe axe-core@4

frameworks: $(FRAMEWORKS)/.stamp ## install the frameworks of tests/frameworks into build/frameworks; make test then tests them

$(FRAMEWORKS)/.stamp: tests/frameworks/requirements.txt $(STAMP)
	@$(PYTHON) -m venv $(FRAMEWORKS)
	@UV_COMPILE_BYTECODE=1 $(UV) pip install --quiet --python $(FRAMEWORKS)/bin/python -r $<
	@echo 'make: DeepSpeed compiles its communication library for CPU ranks; this takes a minute'
	@PATH="$(abspath $(FRAMEWORKS))/bin:$$PATH" TORCH_EXTENSIONS_DIR=$(abspath $(FRAMEWORKS))/extensions \
		python -c 'from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder as B; B().load(verbose=False)' >/dev/null 2>&1
	@touch $@

test-frameworks: $(FRAMEWORKS)/.stamp ## scripts of five frameworks under the launcher and under torchrun; shows the times
	@$(PY) -m pytest -rP tests/frameworks

trackers: $(TRACKERS)/.stamp ## install MLflow, Weights & Biases and Trackio into build/trackers; make test then tests them

# All other packages, such as torch, are those of .venv.
$(TRACKERS)/.stamp: tests/trackers/requirements.txt $(STAMP)
	@$(PY) -m venv --without-pip $(TRACKERS)
	@UV_COMPILE_BYTECODE=1 $(UV) pip install --quiet --python $(TRACKERS)/bin/python -r $<
	@$(PY) -c $(SITE) > "$$($(TRACKERS)/bin/python -c $(SITE))/muster.pth"
	@touch $@
SITE = 'import sysconfig; print(sysconfig.get_path("purelib"))'

bench: $(STAMP) ## measure muster and its alternatives, into build/bench (PICK=step: one row)
	@$(PY) -m tests.bench $(PICK)

bench-gpu: $(STAMP) ## measure ResNet-50 and a GPT of 124 M on one GPU, in muster and in plain PyTorch (PICK='resnet50 bf16': one row)
	@$(PY) -m tests.bench.gpu $(if $(PICK),'$(PICK)')

gpu-check: $(STAMP) ## the tests and speed that need a GPU; writes one file to send in
	@$(PY) -m tests.bench.gpu --check

bench-growth: $(STAMP) ## measure how a command's cost grows with jobs, ranks, steps, files, checkpoints, parameters (PICK=files: one)
	@$(PY) -m tests.bench.growth $(PICK)

# torch is not installed twice: torch.pth points to the one in .venv.
bench-peers: $(STAMP) ## install what `make bench` compares muster with, into build/bench-peers
	@$(PYTHON) -m venv $(PEERS)
	@echo torch | UV_COMPILE_BYTECODE=1 $(UV) pip install --quiet --python $(PEERS)/bin/python \
		--excludes /dev/stdin -r tests/bench/requirements.txt
	@$(PY) -c $(SITE) > "$$($(PEERS)/bin/python -c $(SITE))/torch.pth"

test-cluster: $(STAMP) ## run jobs of IMAGE on the cluster of KUBECONFIG, in their own namespace (PICK=jobset: one launcher)
	@MUSTER_TEST_CLUSTER=1 IMAGE=$(CPU_IMAGE) PULL_POLICY=$(PULL_POLICY) \
		$(PY) -m pytest -rs tests/cluster $(if $(PICK),-k '[$(PICK)]')
PULL_POLICY ?= IfNotPresent
CPU_IMAGE = $(if $(filter command environment,$(firstword $(origin IMAGE))),$(IMAGE),muster:cpu)

test-standin: $(STAMP) ## test-cluster without a cluster: a stand-in runs the pods as local processes (Linux, root)
	@$(PY) -m tests.standin $(MAKE) --no-print-directory test-cluster IMAGE=muster:standin PICK='$(PICK)'

kind-up: ## make a kind cluster with JobSet, Kubeflow Trainer, the training operator and Kueue, at pinned versions
	@tests/cluster/kind/up.sh $(KIND)
KIND ?= muster

kind-e2e: $(STAMP) ## build the CPU image, load it into the kind cluster, and run test-cluster there
	@$(MAKE) image TORCH_BACKEND=cpu IMAGE=$(CPU_IMAGE)
	@kind load docker-image --name $(KIND) $(CPU_IMAGE)
	@mkdir -p build && kind get kubeconfig --name $(KIND) > build/kubeconfig
	@KUBECONFIG=build/kubeconfig $(MAKE) test-cluster IMAGE=$(CPU_IMAGE)

kind-down: ## remove the kind cluster
	@kind delete cluster --name $(KIND)

fuzz: $(STAMP) ## feed mutated inputs to all code that reads untrusted bytes, for SECONDS (600); SEED repeats a run
	@SECONDS=$(SECONDS) SEED=$(SEED) OMP_NUM_THREADS=1 TMPDIR=$(or $(wildcard /dev/shm),$(TMPDIR)) $(PY) -m tests.fuzz

soak: $(STAMP) ## train for SECONDS while a seeded adversary kills and stops processes, cuts links and resizes the job
	@$(PY) -m tests.faults.soak --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

docs: $(STAMP) ## generate the pages' tables and the job file's schema from the code (PICTURES=1: also the pictures, with Chromium)
	@mkdir -p build
	@$(PY) render.py --schema > build/job.schema.json
	@mv build/job.schema.json k8s/job.schema.json
	@$(PY) -m trainer.tools.reference
	@$(if $(PICTURES),$(PY) -m tests.report.pictures)

# tests/conftest.py sets how many tests run at a time.
PARALLEL = -n auto --dist worksteal
# Keep bytecode. Without it pytest rewrites all assertions in each run, and each process compiles all modules.
test test-fast test-parity test-why: export PYTHONDONTWRITEBYTECODE =

lock: $(STAMP) ## compile the requirements files again with the newest versions, and renew the images' digests if the registries answer
	@printf 'uv\n' | $(UV) pip compile $(LOCK) -o docker/requirements-uv.txt -
	@$(UV) pip compile $(LOCK) --override docker/override.txt --all-extras -o docker/requirements-dev.txt pyproject.toml
	@$(UV) pip compile $(LOCK) -c docker/requirements-dev.txt --excludes docker/not-in-image.txt -o docker/requirements.txt pyproject.toml
	@printf 'torch\ntorchvision\n' | \
		$(UV) pip compile $(LOCK) -c docker/requirements.txt -o docker/requirements-torch.txt -
	@printf 'huggingface_hub\n' | $(UV) pip compile $(LOCK) -o k8s/jobfile/hub.txt -
	-@$(PY) docker/digests.py docker/Dockerfile k8s/jobfile/code.py
LOCK = --quiet --upgrade --universal --generate-hashes --python-version 3.11 --no-emit-index-url \
	--no-annotate --custom-compile-command 'make lock'

image: ## build the trainer's image IMAGE (TORCH_BACKEND=cpu: without CUDA; TORCH_BACKEND=wheels WHEELS=FOLDER)
	docker build $(OF_IMAGE) .
OF_IMAGE = --file docker/Dockerfile --tag $(IMAGE) \
	--build-arg TORCH_BACKEND=$(or $(TORCH_BACKEND),locked) $(if $(WHEELS),--build-context wheels=$(WHEELS)) \
	--build-arg VERSION=$$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml) \
	--build-arg LOCK=$$(sha256sum docker/requirements.txt | cut -d ' ' -f 1) \
	--build-arg REVISION=$$(git rev-parse HEAD)

publish: ## build IMAGE with provenance and bill of materials, push it, and write its digest to build/published.json
	@mkdir -p build
	docker buildx build $(OF_IMAGE) --push --provenance=mode=max --sbom=true --metadata-file build/published.json .

docker-run: $(STAMP) ## train JOB in the image IMAGE on this machine, on GPUs if JOB asks for them
	@$(RENDER) --set image=$(IMAGE) --launcher docker -o $(FOLDER)
	@$(call each,docker) exit $$code

compose-run: $(STAMP) ## train JOB in the image IMAGE on this machine, one container per node
	@docker compose up --help 2>&1 | grep -q -e $(COMPOSE_OPTION) || \
		{ echo 'make: `docker compose up` has no option $(COMPOSE_OPTION) here; Docker Compose 2.40 has it' >&2; exit 64; }
	@test -z "$$($(RENDER) --set image=$(IMAGE) --launcher compose --check 2>/dev/null | sed '/^$(NAME):/d')" || \
		{ echo 'make: JOB=$(JOB): has a matrix, and compose-run takes one job; try docker-run' >&2; exit 64; }
	@$(RENDER) --set image=$(IMAGE) --launcher compose -o $(FOLDER)
	@mkdir -p $(FOLDER)/$(NAME)-run
	@MUSTER_USER=$$(id -u):$$(id -g) docker compose -f $(FOLDER)/compose.yaml up $(COMPOSE_OPTION)
COMPOSE_OPTION = --abort-on-container-failure

sbom: $(STAMP) ## write the image's bill of materials to build/sbom.json (CycloneDX)
	@$(PY) docker/sbom.py docker/requirements.txt build/sbom.json

audit: $(STAMP) ## look up known vulnerabilities of all pinned packages
	@set -e; for lock in $(wildcard docker/requirements*.txt) k8s/jobfile/hub.txt; do \
		$(AUDIT) --require-hashes --requirement $$lock; done
	@$(AUDIT) --no-deps $(addprefix --requirement ,$(wildcard tests/*/requirements.txt))
AUDIT = $(VENV)/bin/pip-audit --disable-pip --strict --progress-spinner off

clean: ## remove what make and the tests wrote, except .venv
	rm -rf build runs .mypy_cache .ruff_cache .pytest_cache .hypothesis
