# Everything is installed into .venv; nothing else on the machine changes.
#
#   make setup      install torch and kernelpro
#   make demo       optimize an example on the CPU, without a model (about four minutes)
#   make test       all tests but the long ones;  make test-long: those
#   make lint       ruff and mypy
#   make gpu-test   tests that need a GPU
#   make bench      measure the noise of the judge
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
TORCH ?= $(shell cat torch-version.txt)
.PHONY: setup dev docs demo test test-long lint gpu-test bench clean

PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check

# `make test` and `make lint` add the development dependencies.
setup: $(VENV)/.ready

# Without numpy, torch prints a warning in every process.
$(VENV)/.torch: torch-version.txt
	@echo "creating $(VENV) ..."
	@$(PYTHON) -m venv $(VENV)
	@echo "installing $(TORCH) and numpy (the largest download) ..."
	@$(PIP) "$(TORCH)" "numpy>=1.26"
	@touch $@

$(VENV)/.ready: $(VENV)/.torch pyproject.toml
	@echo "installing kernelpro ..."
	@$(PIP) -e ".[ui]"
	@touch $@

$(VENV)/.dev: $(VENV)/.torch pyproject.toml
	@echo "installing kernelpro and its development dependencies (pytest, ruff, mypy, ray, triton, pydantic-ai, starlette) ..."
	@$(PIP) -e ".[dev]"
	@touch $(VENV)/.ready $@

# What development needs as well.
dev: $(VENV)/.dev

# The generated pages of the reference.
docs: dev
	$(BIN)/python docs/reference/generate.py
	$(BIN)/kernelpro diagnostics --page > docs/reference/diagnostics.md

demo: setup
	$(BIN)/kernelpro optimize examples/cpu/residual_layernorm/task.py --target cpu --author playbook --budget candidates=10

# Always write bytecode: a test run starts hundreds of processes that import the same modules.
test test-long: export PYTHONDONTWRITEBYTECODE =
# Other work on the machine can disturb tests that measure: failed tests run once more, and must pass then.
# Four processes on two cores: tests often wait for child processes.
TEST_PROCESSES = 4
RETRY = $(BIN)/python -m pytest -q --last-failed --last-failed-no-failures none
test: $(VENV)/.dev
	$(BIN)/python -m pytest -q -m "together and not long" -n $(TEST_PROCESSES) --dist loadscope --no-loadscope-reorder || $(RETRY)
	$(BIN)/python -m pytest -q -m "alone and not long" || $(RETRY)

# More tests of the same kinds, and the slowest ones.
test-long: $(VENV)/.dev
	$(BIN)/python -m pytest -q -m long || $(RETRY)

# Kernels under test keep the formatting of their authors.
FORMATTED = src docs/reference benchmarks/*.py benchmarks/simulation tests/*.py tests/defects/*.py tests/exploits/*.py \
	$(addprefix tests/,authors cli code_search diagnose docs dropin engine lab llm memory pools report search suites ui)
lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check $(FORMATTED)
	$(BIN)/mypy

# On a GPU host that already has torch: PY=python3 make gpu-test
PY ?= $(BIN)/python
gpu-test:
	PYTHONPATH=src $(PY) -m pytest -m gpu

bench: $(VENV)/.dev
	$(BIN)/python benchmarks/judge_noise.py

clean:
	rm -rf $(VENV)
