# Two commands do everything on a fresh machine: `make demo` and `make test`.
# Set-up (about two minutes, about 1.3 GB, most of it PyTorch) happens once, in .venv, and is reused.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: help setup demo test test-slow test-core-newest lint format bench clean

help: ## Show this help
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

setup: $(READY) ## Create .venv with everything for development

$(READY): pyproject.toml constraints.txt scripts/bootstrap.py
	@$(PYTHON) scripts/bootstrap.py

demo: $(READY) ## Calibrate and gate the embedded model; then recorded outputs of large models
	@$(BIN)/python -m examples.demo

test: lint ## Lint, types and tests
	@$(BIN)/python -m pytest -q -m "not slow"

test-slow: $(READY) ## The slow rest of the tests
	@$(BIN)/python -m pytest -q -m slow

test-core-newest: $(READY) ## The LangChain tests against the newest langchain-core (in build/, .venv stays as it is)
	@$(BIN)/python -m pip install -q --no-deps --upgrade --target build/core-newest 'langchain-core<2'
	@PYTHONPATH=build/core-newest $(BIN)/python -m pytest -q -p no:cacheprovider --benchmark-disable \
	  tests/unit_guardrail/test_langchain_standard.py tests/unit_guardrail/test_drop_in.py \
	  tests/unit_guardrail/test_chat_model.py tests/unit_guardrail/test_tools.py

lint: $(READY) ## ruff (lint and format) and mypy --strict
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: $(READY) ## Format the code
	@$(BIN)/ruff check --fix-only .
	@$(BIN)/ruff format .

bench: $(READY) ## Benchmarks: ratios measured in one run
	@$(BIN)/python -m benchmarks.sampling
	@$(BIN)/python -m benchmarks.thresholds

clean: ## Remove the virtual environment and what the demo wrote
	rm -rf $(VENV) demo-output build dist *.egg-info
