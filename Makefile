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
.PHONY: help setup demo model world linearizable attack disk-battery power-cuts lake-faults auto-cdc readers mutants spark-faults interop console-test first-day bad-typing test again test-on coverage check lint format types imports warm bench bench-lake bench-scale docs docs-site docs-serve lock clean
.PHONY: linearizable man dist dist-test deploy-test weights faults guides

help: ## list the recipes
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(READY): pyproject.toml constraints.txt tools/setup.sh
	@sh tools/setup.sh
	@touch $(READY)

setup: $(READY) ## make .venv, install headwater and what it needs, look for Java

demo: $(READY) ## a year of flights through node, crash and mirror; ends with: the table equals the node
	@$(RUN) $(BIN)/headwater demo $(DEMO)

test: $(READY) warm ## every test
	@$(RUN) $(PYTEST) $(TESTS)

again: $(READY) ## the tests that failed in the run whose output is LOG=..., once more, alone; those that pass then are named as flaky
	@$(RUN) $(BIN)/python tools/again.py $(LOG)

PYTHON ?= python3.13
WHERE  := .venv-$(notdir $(PYTHON))

test-on: ## the tests that need no Spark, under another PYTHON=python3.13, in an environment of its own
	@$(PYTHON) -m venv $(WHERE) && $(WHERE)/bin/pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@$(WHERE)/bin/python -m pytest -n 3 -q -m "not spark and not interop" $(or $(TESTS),tests/wire tests/protocol tests/node tests/client)

coverage: $(READY) warm ## what the tests of this process reach, without kernels, which are compiled: COVERED="tests/wire ..."
	@$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt coverage
	@$(RUN) $(BIN)/python -m coverage run --source=headwater --omit='*/kernels/*,*/testing/*' -m pytest -q \
		$(or $(COVERED),tests/wire tests/protocol tests/node tests/client tests/transport)
	@$(BIN)/python -m coverage report --skip-covered --sort=cover

MINUTES ?= 10
SEED    ?= 1

model: $(READY) warm ## three simulated nodes against a model, for MINUTES=10 from SEED=1 on
	@$(RUN) $(BIN)/python -m harness.simulation --minutes $(MINUTES) --seed $(SEED)

linearizable: $(READY) warm ## three real nodes under faults, rounds of 10 to 20 s for MINUTES=10 from SEED=1 on; two judges of what clients saw
	@$(RUN) $(BIN)/python -m harness.linearizability run --minutes $(MINUTES) --seed $(SEED)

world: $(READY) warm ## a whole cluster in simulated time, with operators, clients and faults, for MINUTES=10 from SEED=1 on
	@$(RUN) $(BIN)/python -m harness.world --minutes $(MINUTES) --seed $(SEED)

SEEDS ?= 0-199
ENGINE ?= local

FORMAT ?= delta

lake-faults: $(READY) warm ## scenarios of faults against the mirror, SEEDS=0-199 ENGINE=local or spark FORMAT=delta, iceberg or delta,iceberg; those in artifacts/ are not run again
	@$(RUN) $(BIN)/python -m harness.lake_faults --seeds $(SEEDS) --engine $(ENGINE) --format $(FORMAT)

CDC_SEEDS ?= 0-99

auto-cdc: $(READY) warm ## tables of type 1 and 2 through failovers that took changes back, against a ledger: CDC_SEEDS=0-99 SPARK=sc://127.0.0.1:15002 for Spark's own Auto CDC
	@$(RUN) $(BIN)/python -m harness.auto_cdc --seeds $(CDC_SEEDS) $(if $(SPARK),--spark $(SPARK))

readers: $(READY) warm ## tables of every kind, read by every reader that can be had: environments of their own in artifacts/readers (1.5 GB), then the page of the docs
	@$(BIN)/python -m harness.readers setup && $(RUN) $(BIN)/python -m harness.readers run && $(BIN)/python tools/write_readers.py

mutants: $(READY) warm ## bugs planted into copies of the product, which the judges of the harness must find: MUTANTS=5 (the quickest) ONLY=fsync-left-out SEEDS=200 (those of power cuts as root)
	@$(RUN) $(BIN)/python -m harness.mutants --seeds $(if $(findstring command,$(origin SEEDS)),$(SEEDS),200) \
		$(if $(MUTANTS),--quickest $(MUTANTS)) $(if $(ONLY),--only $(ONLY))

spark-faults: $(READY) warm ## tests of jobs on Spark that take minutes: a mirror under faults, and what starts a Spark, a YARN or a Spark Connect of its own
	@$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt 'pyspark[connect]' grpcio==1.85.1 grpcio-status==1.85.1 zstandard==0.25.0 nbclient==0.11.0 ipykernel==7.4.0
	@$(RUN) $(BIN)/python -m pytest -q -m battery tests/pipelines tests/spark tests/harness/lake_faults tests/harness/readers tests/guides tests/cli tests/examples tests/test_readme.py

faults: $(READY) warm ## kills, cut links, full disks, backups: every step, of which `make test` has a few
	@$(RUN) $(PYTEST) -m battery tests/backup tests/client tests/cluster tests/faults tests/harness/attack tests/harness/power_cuts tests/harness/linearizability tests/harness/simulation tests/harness/world tests/lake tests/native tests/node

interop: $(READY) warm ## programs of others against a node, as a table: INTEROP="-k gocb"; where a toolchain is missing, its rows say how to get it
	@$(RUN) $(BIN)/python -m pytest -q --tb=short -m interop --table tests/interop $(INTEROP)

guides: $(READY) warm ## the guides of the command line, typed as printed in an empty folder; the short ones are in `make test` as well
	@$(RUN) $(BIN)/python -m pytest -q -m "battery or not battery" tests/guides

AXE := axe-core@4.11.0

console-test: $(READY) ## the console and the search of the site in a real Chromium (Debian: chromium, chromium-driver), with axe-core by npm; makes the guide's pictures
	@$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt selenium==4.51.0
	@if [ ! -d .venv/axe ] && command -v npm >/dev/null; then mkdir .venv/axe && \
		{ (cd .venv/axe && npm pack --silent $(AXE) >/dev/null && tar xzf axe-core-*.tgz) || { rm -r .venv/axe; echo "no axe-core: npm could not fetch it"; }; }; fi
	@$(RUN) HEADWATER_AXE=$$(ls $(CURDIR)/.venv/axe/package/axe.min.js 2>/dev/null) HEADWATER_PICTURES=docs/howto/pictures \
		$(BIN)/python -m pytest -q -rs tests/console/test_browser.py tests/test_site_search.py

deploy-test: $(READY) ## the files of deploy/, with the schemas of two Kubernetes, which are 108 MB
	@$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt kubernetes-validate==1.37.0
	@$(RUN) $(BIN)/python -m pytest -q tests/test_deploy.py

first-day: dist ## the wheel in an empty environment: unit, three nodes, console (Debian: chromium), a real Prometheus, backup, wipe, restore, compare
	@$(RUN) $(BIN)/python -m harness.first_day dist/headwater-*.whl

bad-typing: $(READY) warm ## every command with every mistake: logins, addresses, vbuckets, folders, disks, terminals, signals (as root); TYPING="--only load"
	@$(RUN) $(BIN)/python -m harness.bad_typing $(TYPING)

SECONDS ?= 600

disk-battery: $(READY) warm ## a node on a small disk, filled, held and killed for SECONDS=600 from SEED=1 (as root)
	@$(RUN) $(BIN)/python -m harness.disk_battery --seconds $(SECONDS) --seed $(SEED)

CUTS ?= 1000

power-cuts: $(READY) warm ## the disk of a node, and of a mirror's table, loses what was not synced: CUTS=1000 SEED=1 (as root; Debian: fuse3)
	@$(RUN) $(BIN)/python -m harness.power_cuts --cuts $(CUTS) --seed $(SEED) $(POWER_CUTS)

ATTACK_SECONDS ?= 600

attack: $(READY) warm ## bad guests against two real nodes, for ATTACK_SECONDS=600 at most: turns of the loop, memory, who is served
	@$(RUN) $(BIN)/python -m harness.attack --seconds $(ATTACK_SECONDS)

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

bench-lake: $(READY) warm ## the mirror beside its yardsticks: BENCH_LAKE="--rows 100000 --rounds 1 --only large,small"
	@$(RUN) $(BIN)/python -m benchmarks.bench_lake $(BENCH_LAKE)

bench-scale: $(READY) warm ## CPU seconds at sizes x1, x4 and x16, and how they grow: BENCH_SCALE="set-collections decode-manifest"
	@$(RUN) $(BIN)/python -m benchmarks.scale $(BENCH_SCALE)

weights: dist ## weigh the extras in an empty environment and write the table of docs/howto/install.md
	@$(BIN)/python tools/weigh_extras.py

HATCHLING := hatchling==1.33.0
ZIGLANG := ziglang==0.17.1

dist: $(READY) man ## wheels and sdist of what is committed into dist/, the same bytes each time; DIST="--target aarch64-linux-gnu.2.17": one for another system, too
	@$(BIN)/pip install -q --disable-pip-version-check $(HATCHLING) $(ZIGLANG)
	@$(BIN)/python tools/dist.py $(DIST)

dist-test: dist ## the wheel in empty environments without a compiler: a node, a document, the fixtures; PYTHONS="python3.11 ..."
	@$(BIN)/python tools/install_test.py $(PYTHONS)

man: $(READY) ## write the list of commands and the man pages anew
	@$(BIN)/python tools/list_commands.py
	@$(BIN)/python tools/man_pages.py

docs: $(READY) man ## write the generated pages of docs/ anew
	@for tool in tools/write_*.py; do $(BIN)/python $$tool; done
	@$(BIN)/python tools/protocol_pages.py docs/protocol
	@$(BIN)/python -m headwater.spark.options > docs/reference/spark-options.md

docs-site: $(READY) ## docs/ as a site in artifacts/site, strictly: every link and anchor leads somewhere, nothing is fetched from elsewhere
	@$(BIN)/python tools/docs_site.py build && echo "artifacts/site/index.html"

docs-serve: $(READY) ## the site at http://127.0.0.1:8000, built anew when a page is saved
	@$(BIN)/python tools/docs_site.py serve

lock: $(READY) ## write constraints.txt from what is installed now: after a dependency was added, or all were upgraded
	@{ head -n 1 constraints.txt; $(BIN)/pip freeze --exclude-editable | sort -f; } >constraints.new
	@mv constraints.new constraints.txt

clean: ## drop the environment, caches and artifacts
	rm -rf .venv .venv-* .coverage artifacts .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
