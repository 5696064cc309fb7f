# Everything installs into .venv; nothing else on the machine is touched.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
TORCH ?= $(shell cat torch-version.txt)
.PHONY: setup demo test test-long lint gpu-test bench clean

PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check

# What running needs; `make test` and `make lint` add what only development needs.
setup: $(VENV)/.ready

# torch complains in every process where there is no numpy.
$(VENV)/.torch: torch-version.txt
	@echo "making $(VENV): nothing else on this machine is touched ..."
	@$(PYTHON) -m venv $(VENV)
	@echo "installing $(TORCH) and numpy (most of the download) ..."
	@$(PIP) "$(TORCH)" "numpy>=1.26"
	@touch $@

$(VENV)/.ready: $(VENV)/.torch pyproject.toml
	@echo "installing kernelpro ..."
	@$(PIP) -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.torch pyproject.toml
	@echo "installing kernelpro, and what tests and lint need (pytest, ruff, mypy, ray, triton, pydantic-ai) ..."
	@$(PIP) -e ".[dev]"
	@touch $(VENV)/.ready $@

demo: setup
	$(BIN)/kernelpro optimize examples/cpu/residual_layernorm/task.py --target cpu --author playbook --budget candidates=10

# Bytecode is kept whatever the environment says: hundreds of processes start in a test run, each with the same modules.
test test-long: export PYTHONDONTWRITEBYTECODE =
# What judges or times can be disturbed by other work on the machine: what failed is run once more, and must pass then.
# Four at a time on two cores: they wait for processes some of the time, and each has its own start to pay for.
AT_ONCE = 4
AGAIN = $(BIN)/python -m pytest -q --last-failed --last-failed-no-failures none
test: $(VENV)/.dev
	$(BIN)/python -m pytest -q -m "together and not long" -n $(AT_ONCE) --dist loadscope --no-loadscope-reorder --durations=15 || $(AGAIN)
	$(BIN)/python -m pytest -q -m "alone and not long" --durations=40 || $(AGAIN)

# More of the kinds that `make test` has one of, and a few that take longest.
test-long: $(VENV)/.dev
	$(BIN)/python -m pytest -q -m long || $(AGAIN)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check src tests/*.py tests/lab tests/suites tests/defects/*.py benchmarks/*.py
	$(BIN)/mypy

# On a GPU host where torch is installed already: PY=python3 make gpu-test
PY ?= $(BIN)/python
gpu-test:
	PYTHONPATH=src $(PY) -m pytest -m gpu

bench: $(VENV)/.dev
	$(BIN)/python benchmarks/judge_noise.py

clean:
	rm -rf $(VENV)
