# ARGS reaches the command behind a target: make up ARGS=--exit, make test ARGS="unit --strict".
ARGS ?=
PY := .venv/bin/python

.DEFAULT_GOAL := help
.PHONY: help up install test faults test-cluster bench bench-gpu fuzz fmt lint types wings proto proto-check chart chart-package images release lock clean

##@ Use
up: ## Install, start Kafka, a model server and an aggregator, and embed 200 questions (ARGS=--help for the options)
	@.ci/install $(if $(filter --generate --mixed,$(ARGS)),--generate)
	@exec $(PY) -m loadtest up $(ARGS)

install: ## Install what `make up` needs, and no more
	@.ci/install

##@ Develop
test: ## Run every suite that this machine can run (ARGS="unit lint" for some, ARGS=--strict to leave none out)
	@.ci/install --dev
	@$(PY) -m tests.run $(ARGS)

faults: ## Inject faults under load, count every record, and update docs/reliability.md (ARGS=--help for the options)
	@.ci/install --dev
	@$(PY) -m tests.faults.run $(ARGS)

test-cluster: ## Build the images, start a real Kubernetes, install the chart and inject faults (ARGS="-m short" for a part)
	@.ci/install --dev
	@$(PY) -m pytest tests/cluster --verbose $(ARGS)

bench: ## Measure the hot paths beside the libraries they use
	@.ci/install
	@$(PY) -m loadtest bench $(ARGS)

bench-gpu: ## Decide on a GPU what was designed without one: engines, graphs, and the stack beside vLLM's server
	@.ci/install
	@$(PY) -m loadtest bench-gpu $(ARGS)

fuzz: ## Fuzz every decoder for a minute each (ARGS="kafka_json --seconds 600" for one and longer)
	@.ci/install --dev
	@$(PY) -m tests.fuzz $(ARGS)

fmt: ## Format the code and apply the safe fixes
	@.ci/install --dev
	@$(PY) -m ruff check --fix-only --quiet .
	@$(PY) -m ruff format .

lint: ## Check style, spelling, the import rules and the generated code
	@.ci/install --dev
	@$(PY) -m tests.run lint imports proto

types: ## Check types with mypy and pyright
	@.ci/install --dev
	@$(PY) -m tests.run types

wings: ## Delete each wing in a copy, run types and unit tests on the rest, and print its price (ARGS="redrive" for one)
	@.ci/install --dev
	@$(PY) -m tests.wings --whole $(ARGS)

##@ Maintain
proto: ## Generate the code of protos/
	@.ci/install --dev
	@.ci/proto

proto-check: ## Fail if the generated code differs from protos/
	@.ci/install --dev
	@.ci/proto --check

chart: ## Generate the files that follow from others: chart schema, docs, dashboard, the page's runbook
	@.ci/install --dev
	@$(PY) -m helm.generate

chart-package: ## Package the chart as dist/tokenbatch-VERSION.tgz, with the helm on PATH or the tests' own
	@.ci/install --dev
	@$(PY) -m tests.chart.package dist

images: ## Build the images (REGISTRY=my-registry, PUSH=1 to push them, TARGETS="aggregator cpu" for some)
	@REGISTRY="$(REGISTRY)" PUSH="$(PUSH)" .ci/images

release: ## Fill in a version and the addresses that are left open (ARGS="0.2.0 REPOSITORY SECURITY")
	@.ci/release $(ARGS)

lock: ## Resolve pyproject.toml into requirements/ (ARGS=--upgrade for newer versions)
	@.ci/install
	@.ci/lock $(ARGS)

clean: ## Remove what git does not track: environment, caches, data of a stopped stack
	@rm -rf .venv .run dist .coverage* .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

help: ## Show this
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
