# Two commands do everything on a machine with Python 3.11 and make: `make demo` and `make test`.
# Each makes .venv and installs what it needs the first time; the second time it starts at once.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test test-slow lint wheel bench clean

demo: $(VENV)/.base  ## train a small net on real digits and look at its local elasticity
	$(BIN)/local-elasticity demo --out demo

# One thread: small torch work is many times slower with two threads that wait for each other.
test: $(VENV)/.dev  ## the test suite
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest

test-slow: $(VENV)/.dev  ## the tests that take minutes
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "slow or paper"

lint: $(VENV)/.dev  ## style, types, and which room may import which
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

wheel: $(VENV)/.dev  ## build the wheel into dist/
	$(BIN)/python -m build --wheel

bench: $(VENV)/.dev  ## measure the engines; figures go to benchmarks/results/
	$(BIN)/python benchmarks/engines.py

clean:
	rm -rf $(VENV) dist build .pytest_cache .hypothesis .mypy_cache .ruff_cache .import_linter_cache demo

$(VENV)/.python:
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or later is needed; say which with make PYTHON=...") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	touch $@

$(VENV)/.base: pyproject.toml constraints.txt | $(VENV)/.python
	@echo "installing (about two minutes the first time)"
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/.python
	@echo "installing (about two minutes the first time)"
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@ $(VENV)/.base
