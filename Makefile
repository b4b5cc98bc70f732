# The front door. `make` tells what there is; every target sets up what it needs.
PYTHON ?= python3
PYTEST_WORKERS ?= auto
PYTEST_ARGS ?=
IMAGE ?= turnstore-service:dev
BASE_IMAGE ?= python:3.11-slim-bookworm

BIN := .venv/bin
STAMP := .venv/setup.stamp
# The modules of a file share what they started (a service, a database), so one worker runs them all.
PYTEST := $(BIN)/python -m pytest
PARALLEL := -n $(PYTEST_WORKERS) --dist loadscope
QUICK := -m "not deep and not bench and not container"

.DEFAULT_GOAL := help
.PHONY: help setup demo run test test-unit test-deep lint fmt generate verify lock bench bench-long \
	image deploy-check clean

help: ## Tell what there is
	@echo "turnstore keeps agents' turns and decides which items the next turn is given."
	@echo
	@echo "New here? Two commands, each works from nothing:"
	@echo "  make demo          see how a failed turn no longer poisons a conversation"
	@echo "  make test          run the tests"
	@echo
	@echo "All targets:"
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/\1|\2/' \
		| while IFS='|' read -r name text; do printf '  make %-13s %s\n' "$$name" "$$text"; done
	@echo
	@echo "Variables:"
	@echo "  PYTHON=python3.12            the Python that .venv is made with (3.11 or newer)"
	@echo "  PYTEST_ARGS='-k fork -x'     passed to pytest"
	@echo "  PYTEST_WORKERS=0             no parallel test processes (for a debugger)"
	@echo "  TURNSTORE_MONGODB_URI=...    'make run' uses this MongoDB instead of starting one"
	@echo "  TURNSTORE_TEST_MONGODB_URI=... so do the tests"
	@echo "  TURNSTORE_TEST_BASE_IMAGE=..., TURNSTORE_TEST_MONGODB_IMAGE=..."
	@echo "                               the images that 'make deploy-check' uses; they have to be there"

setup: $(STAMP) ## Make .venv from requirements.lock (only when it or a pyproject.toml changed)

$(STAMP): requirements.lock pyproject.toml clients/python/pyproject.toml .ci/setup
	@.ci/setup $(PYTHON)

demo: $(STAMP) ## Play the story of the bug against a service of its own, with a check of every answer
	@$(BIN)/python -m turnstore_service.demo

run: $(STAMP) ## Start the service, with a MongoDB of its own unless TURNSTORE_MONGODB_URI is set
	@$(BIN)/turnstore-service serve

test: $(STAMP) ## Run all tests but the long ones and those that need a container engine
	$(PYTEST) $(PARALLEL) $(QUICK) $(PYTEST_ARGS)

test-unit: $(STAMP) ## Run the tests that need no database
	$(PYTEST) $(QUICK) tests/unit $(PYTEST_ARGS)

test-deep: $(STAMP) ## Run the long tests: random sequences of calls against a model of the rules
	$(PYTEST) -m deep $(PYTEST_ARGS)

lint: $(STAMP) ## Check style, types and protos
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/buf lint protos
	$(BIN)/buf format --diff --exit-code protos
	$(BIN)/mypy

fmt: $(STAMP) ## Format Python and protos, mending what can be mended
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .
	$(BIN)/buf format --write protos

generate: $(STAMP) ## Make the generated code: stubs from the protos, the plain client from the async one
	.ci/generate .
	$(BIN)/python clients/python/derive_sync.py

verify: $(STAMP) ## Check that generated code and lock files are what their sources make
	@.ci/verify

lock: $(STAMP) ## Pin what the pyproject.toml files ask for (UPGRADE=1: at the newest versions)
	UPGRADE=$(UPGRADE) .ci/lock .

bench: $(STAMP) ## Measure the service beside a bare floor (some minutes)
	$(BIN)/python -m tests.bench

bench-long: $(STAMP) ## Measure what needs long runs: contention, growth of memory
	$(BIN)/python -m tests.bench --long

image: ## Build the container image, as IMAGE from BASE_IMAGE
	docker build -f deploy/Dockerfile --build-arg BASE_IMAGE=$(BASE_IMAGE) -t $(IMAGE) .

deploy-check: $(STAMP) ## Run what needs a container engine: tests of the image, and of the store on MongoDB in one
	TURNSTORE_TEST_CONTAINERS=required $(PYTEST) -m container $(PYTEST_ARGS)
	TURNSTORE_TEST_MONGODB=container $(PYTEST) $(PARALLEL) $(QUICK) tests/storage tests/rpc $(PYTEST_ARGS)

clean: ## Remove .venv and caches; data under .turnstore stays
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
