# The workshop. `make` alone lists the recipes; each does its own set-up, which a stamp makes quick the second time.

BIN   := .venv/bin
READY := .venv/ready
# tools/setup.sh writes JAVA_HOME here when the machine's default Java is not the one to use.
RUN   := . ./.venv/env.sh &&
# Tests start hundreds of processes; without byte code each would compile two hundred modules first.
unexport PYTHONDONTWRITEBYTECODE
# Three workers also on two cores, since many tests wait, for other processes and for the disk; a file to a worker; all
# files that need Spark go to the same one (tests/conftest.py).
PYTEST := $(BIN)/python -m pytest -n 3 -q

.DEFAULT_GOAL := help
.PHONY: help setup demo model test check lint format types imports warm bench docs clean

help: ## list the recipes
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(READY): pyproject.toml tools/setup.sh
	@sh tools/setup.sh
	@touch $(READY)

setup: $(READY) ## make .venv, install headwater and what it needs, look for Java

demo: $(READY) ## a year of flights through node, crash and mirror; ends with: the table equals the node
	@$(RUN) $(BIN)/headwater demo $(DEMO)

test: $(READY) warm ## every test
	@$(RUN) $(PYTEST) $(TESTS)

MINUTES ?= 10
SEED    ?= 1

model: $(READY) warm ## three simulated nodes against a model, for MINUTES=10 from SEED=1 on
	@$(RUN) $(BIN)/python -m headwater.testing.simulation --minutes $(MINUTES) --seed $(SEED)

warm: $(READY)
	@$(RUN) $(BIN)/python -c "from headwater import kernels; kernels.warm(print)"

check: lint types imports test ## all that CI runs: ruff, mypy, import contracts, tests

lint: $(READY) ## ruff: rules and format
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

format: $(READY) ## let ruff repair what it can
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

types: $(READY) ## mypy --strict
	@$(BIN)/mypy

imports: $(READY) ## which package may import which
	@$(BIN)/lint-imports

bench: $(READY) warm ## what every claim of speed rests on
	@$(RUN) $(BIN)/python -m benchmarks $(BENCH)

docs: $(READY) ## write the generated pages of docs/ anew
	@for tool in tools/write_*.py; do $(BIN)/python $$tool; done
	@$(BIN)/python -m headwater.wire.reference docs/protocol
	@$(BIN)/python -m headwater.spark.options > docs/reference/spark-options.md

clean: ## drop the environment, caches and artifacts
	rm -rf .venv artifacts .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
