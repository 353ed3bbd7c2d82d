# Every target sets up what it needs: Python 3.11+, make and a package index are enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# The demo needs little of it, and is there much sooner.
DEMO := $(VENV)/.demo
SITE := $(VENV)/.site

.PHONY: help demo test test-versions check docs dist bench simulate torture clean

help:
	@echo "make demo    chat with a bot that survives kill -9, in your browser and in this terminal"
	@echo "make test    the whole test suite"
	@echo "make test-versions  the storage contract on Redis 6.2 and 7.0, Valkey 9, PostgreSQL 14 to 18"
	@echo "make check   ruff, mypy --strict, complete types, the layers, the exported names"
	@echo "make docs    the site, in build/docs"
	@echo "make dist    sdist and wheel in dist, tried in empty environments"
	@echo "make bench   benchmarks of Stepwell and its peers, side by side"
	@echo "make simulate  thousands of simulated worlds with faults; SEED=17 repeats one and shows its trace"
	@echo "make torture all randomised and fault tests with many repetitions (hours)"
	@echo "make clean   remove the environment and all caches"

$(READY) $(DEMO): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "stepwell needs Python 3.11 or newer; say which one with: make PYTHON=python3.12 ..." >&2; exit 1; }
	@echo "Setting up $(VENV) (once) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt "pip>=25.1"
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt $(if $(filter $(DEMO),$@),--editable ".[playground]",--editable . --group dev)
	@touch $@

demo: $(if $(wildcard $(READY)),$(READY),$(DEMO))
	@$(BIN)/python -m stepwell demo

# Tests wait for servers and leases more than they compute, so two cores run six processes well.
WORKERS ?= 6

# Bytecode is written, because many tests start processes that would compile all modules again.
test: $(READY)
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -p tests.forks --forks=$(WORKERS) $(ARGS)

# ARGS="--only postgres-14" runs one of them.
test-versions: $(READY)
	@$(BIN)/python scripts/versions.py $(ARGS)

check: $(READY)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@# It verifies the package of the first python in the PATH, and fails below 100 %.
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/basedpyright --verifytypes stepwell --ignoreexternal >$(VENV)/types.txt || \
		{ grep -A 1 error: $(VENV)/types.txt || cat $(VENV)/types.txt; exit 1; }
	@grep score $(VENV)/types.txt
	@$(BIN)/lint-imports
	@$(BIN)/python -m pytest tests/test_public_names.py

$(SITE): $(READY)
	@echo "Installing Sphinx into $(VENV) (once) ..."
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --group docs
	@touch $@

# Everything is read again, because a new page can belong to a toctree of an old one.
docs: $(SITE)
	@$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going --nitpicky --fresh-env --jobs auto docs build/docs
	@echo "Open build/docs/index.html"

DIST_READY := $(VENV)/.dist

$(DIST_READY): $(READY)
	@echo "Setting up the packages for distribution (once) ..."
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --group dist
	@touch $@

# ARGS="--python python3.13" tries the wheel on further versions, ARGS="--extra redis" with this extra only.
dist: $(DIST_READY)
	@$(BIN)/python scripts/dist.py $(ARGS)

# SEEDS=100000 JOBS=2 FIRST=0: how many, in how many processes, from which one on.
simulate: $(READY)
	@SEED="$(SEED)" SEEDS="$(SEEDS)" FIRST="$(FIRST)" JOBS="$(JOBS)" $(BIN)/python -m tests.simulation

# It writes docs/reliability.md. ARGS="tests/reliability/test_kills.py" runs a part; the rows of the others stay.
torture: $(READY)
	@STEPWELL_DOSE=large $(BIN)/python -m pytest -p tests.torture --capture=tee-sys --stepwell-real-time 70 \
		$(or $(ARGS),tests/reliability tests/storage tests/codec tests/adapters)

BENCH := $(VENV)-bench

$(BENCH)/.ready: pyproject.toml constraints.txt
	@echo "Setting up $(BENCH) with the peers (once) ..."
	@$(PYTHON) -m venv $(BENCH)
	@$(BENCH)/bin/python -m pip install --quiet --constraint constraints.txt "pip>=25.1"
	@$(BENCH)/bin/python -m pip install --quiet --constraint constraints.txt --editable . --group bench
	@touch $@

# ARGS=comparison writes benchmarks/RESULTS.md and the plot only.
bench: $(BENCH)/.ready
	@$(BENCH)/bin/python -m benchmarks $(ARGS)

clean:
	rm -rf $(VENV) $(VENV)-bench .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
