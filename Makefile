# `make` alone explains the targets. Everything runs in .venv, made from requirements.lock on first use.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
STAMP := $(VENV)/.from-lock
SOURCES := connector deploy examples tests $(wildcard benchmarks)
# Two at a time, each with a broker and a JVM of its own: one waits for Kafka while the other computes.
DIVIDED := --numprocesses 2 --dist loadfile --no-loadscope-reorder
QUICK := tests/unit tests/property tests/golden tests/architecture
PURE := connector/errors/*,connector/text.py,connector/warehouse.py,connector/validation.py,connector/records/*,connector/tables/*,connector/watermarks/*,connector/dead_letters/*,connector/write_streams/*,connector/sources/*,connector/state/*,connector/reports/*,connector/config/*

.DEFAULT_GOAL := help
.PHONY: help setup get-started demo demo-postgres test test-core test-systems test-long test-unit test-of coverage test-faults test-seeds mutants lint types contracts format docs bench lock clean

help: ## Show this
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## Install everything into .venv, exactly as locked; nothing to do when it is up to date

# The build tools first, so that the one source package (pyspark) is built with tools that are locked, too.
$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$(PYTHON) is too old or missing: Python 3.11 or newer is needed. Name another with: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing what requirements.lock names into $(VENV) (about a minute, 1.2 GB)" >&2
	@awk '/^(packaging|pip|setuptools|wheel)==/, !/\\$$/' requirements.lock > $(VENV)/build-tools.lock
	$(PIP) --require-hashes -r $(VENV)/build-tools.lock
	$(PIP) --require-hashes --no-build-isolation -r requirements.lock
	$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

demo: $(STAMP) ## A git history through Kafka and Spark into a table, killed half way, compared with git; ARGS="--repository PATH"
	$(BIN)/python -m examples.demo $(ARGS)

demo-postgres: $(STAMP) ## A shop in PostgreSQL through Debezium into tables, each part killed once, compared row by row
	$(BIN)/python -m examples.demo_postgres $(ARGS)

# Style, types and contracts are checked beside the tests.
test: $(STAMP) ## Style, types, contracts, the quick suites, and the core with Spark and a broker. SEED (1)
	@$(BIN)/python -m tests.machine
	@$(MAKE) --no-print-directory --jobs 4 lint types contracts test-core

# The same random choices each time, so that a red run tells something about the commit and not about its luck.
test-core: $(STAMP)
	$(BIN)/python -m pytest $(DIVIDED) --seed $(or $(SEED),1) -m "not systems"

test-systems: $(STAMP) ## Several brokers, clusters, stores, TLS, rights, commands as processes, faults, the pages and the demo. SEED (1)
	$(BIN)/python -m pytest $(DIVIDED) --seed $(or $(SEED),1) -m systems

test-long: $(STAMP) ## Both, with the tests that take long and new random choices each time, or those of SEED
	$(BIN)/python -m pytest $(DIVIDED) --long $(if $(SEED),--seed $(SEED))

test-unit: $(STAMP) ## The suites that need neither Java nor a network
	$(BIN)/python -m pytest $(DIVIDED) $(QUICK) -m "not systems"

test-of: $(STAMP) ## The tests of one source file: F=connector/tables/merge.py
	@files=$$($(BIN)/python -m tests.covering $(F)) && $(BIN)/python -m pytest -q $$files

get-started: ## The commands of a contributor's first hour
	@echo 'make test-unit                              the suites without Java'
	@echo 'make test-of F=connector/tables/merge.py    the tests of one file'
	@echo 'make test                                   before you send a change'

coverage: $(STAMP) ## Which lines the quick suites run, and whether that is enough; takes twice as long as they
	@mkdir -p build
	$(BIN)/python -m pytest $(DIVIDED) --cov --cov-report= $(QUICK)
	$(BIN)/coverage report
	$(BIN)/coverage report --include='$(PURE)' --fail-under=99

test-faults: $(STAMP) ## Everything breaks: KILLS (20), CRASHES (20); a load of ROWS (200000) with EVENTS (12), from SEED (a new one)
	KILLS=$(or $(KILLS),20) CRASHES=$(or $(CRASHES),20) ROWS=$(or $(ROWS),200000) EVENTS=$(or $(EVENTS),12) \
	  $(BIN)/python -m pytest tests/faults --long $(if $(SEED),--seed $(SEED))

# A build that is red by luck blocks what is sound, so this is not in .ci/run. The first red seed ends it.
test-seeds: $(STAMP) ## The laws with new random choices for MINUTES (10): each seed is printed. SEED repeats one
	@end=$$(($$(date +%s) + 60 * $(or $(MINUTES),10))); \
	for seed in $(or $(SEED),$$(od -An -tu4 -w4 -N4000 /dev/urandom)); do \
	  [ $$(date +%s) -lt $$end ] || break; \
	  echo "seed $$seed"; \
	  $(BIN)/python -m pytest $(DIVIDED) --quiet --showlocals --drawn --seed $$seed $(QUICK) -m "not systems" || \
	    { echo "red with this seed: make test-seeds SEED=$$seed" >&2; exit 1; }; \
	done

mutants: $(STAMP) ## Do quick tests notice small faults of the core? SAMPLE (300) of all or of MODULES (tables/merge, state), from SEED (a new one)
	$(BIN)/python -m tests.mutants --sample $(or $(SAMPLE),300) $(if $(SEED),--seed $(SEED)) $(MODULES)

lint: $(STAMP) ## Style, what a linter can find, and words that pages and docstrings may not have
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check --quiet $(SOURCES) || { echo "not formatted: run make format" >&2; exit 1; }
	$(BIN)/python -m pytest --quiet tests/unit/test_words.py

types: $(STAMP) ## Types of the package, strictly
	$(BIN)/mypy

contracts: $(STAMP) ## Who may import whom
	$(BIN)/lint-imports --no-cache

format: $(STAMP) ## Format the code and sort the imports
	$(BIN)/ruff check --fix-only --quiet $(SOURCES)
	$(BIN)/ruff format --quiet $(SOURCES)

# Not quiet: mkdocs counts no warning that it does not show.
docs: $(STAMP) ## The pages as a site, in build/site; a broken link or a page without a place is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

bench: $(STAMP) ## Measure, beside what others reach on the same work, and keep the figures (about two hours)
	$(BIN)/python -m benchmarks --write docs/reference/performance.md

lock: $(STAMP) ## Resolve the newest allowed versions into requirements.lock
	env -u PIP_FIND_LINKS $(BIN)/pip-compile --quiet --upgrade --extra console --extra dev --extra lake --extra load --extra metrics --extra registry --extra spark --generate-hashes --allow-unsafe \
	  --strip-extras --no-header --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --no-emit-options --output-file requirements.lock pyproject.toml

clean: ## Remove what was built; .venv too
	rm -rf $(VENV) build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find connector examples tests -name __pycache__ -type d -prune -exec rm -rf {} +
