# Two commands do everything on a machine with Python 3.11 and make: `make demo` and `make test`.
# Each makes .venv and installs what it needs the first time; the second time it starts at once.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test test-slow test-browser test-newest docs outputs lint wheel bench clean

demo: $(VENV)/.base  ## train a small net on real digits and look at its local elasticity
	$(BIN)/local-elasticity demo --out demo

# A process for each core with one thread each: small torch work is many times slower with threads that wait for each other.
test: $(VENV)/.dev  ## the test suite
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 8 --dist loadfile

test-slow: $(VENV)/.dev  ## the tests that take minutes
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "slow or paper"

test-browser: $(VENV)/.dev  ## the report's page and the site in Chromium (apt-get install chromium)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m browser

test-newest: .venv-newest/.installed  ## the test suite with the newest versions that the bounds allow, of all but torch
	OMP_NUM_THREADS=1 .venv-newest/bin/python -m pytest -n auto --maxprocesses 8 --dist loadfile

RELEASE := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)

docs: $(VENV)/.dev  ## the documentation site, into site/RELEASE/, beside those of other releases
	$(BIN)/python docs/reference.py
	$(BIN)/sphinx-build --fail-on-warning --quiet docs site/$(RELEASE)
	@echo "open site/index.html"

outputs: $(VENV)/.dev  ## run the code of the pages again, and show what it prints
	OMP_NUM_THREADS=1 $(BIN)/python docs/outputs.py

lint: $(VENV)/.dev  ## style, types, and which subpackage may import which
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

wheel: $(VENV)/.dev  ## build the wheel into dist/
	$(BIN)/python -m build --wheel

bench: .venv-bench/.installed .venv-tangents/.installed  ## measure; figures go to benchmarks/results/, docs/performance.md and docs/compared.md
	.venv-bench/bin/python -W ignore benchmarks/engines.py
	.venv-bench/bin/python -W ignore benchmarks/speed.py --tangents .venv-tangents/bin/python
	.venv-bench/bin/python benchmarks/report_page.py
	.venv-bench/bin/python -W ignore benchmarks/tracin.py
	.venv-bench/bin/python benchmarks/page.py

clean:
	rm -rf $(VENV) .venv-bench .venv-tangents .venv-newest dist build .pytest_cache .hypothesis .mypy_cache .ruff_cache .import_linter_cache demo

$(VENV)/.python:
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or later is needed; say which with make PYTHON=...") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	touch $@

$(VENV)/.base: pyproject.toml constraints.txt | $(VENV)/.python
	@echo "installing (about two minutes the first time)"
	$(BIN)/python -m pip install --quiet --editable '.[all]'
	touch $@

# The tools that are compared with bring a torchvision that does not import beside a CPU build of torch.
.venv-bench/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-bench
	.venv-bench/bin/python -m pip install --quiet --editable '.[all,bench]'
	touch $@

.venv-newest/.installed: pyproject.toml
	$(PYTHON) -m venv .venv-newest
	grep '^torch==' constraints.txt > .venv-newest/torch.txt
	PIP_CONSTRAINT=.venv-newest/torch.txt .venv-newest/bin/python -m pip install --quiet --upgrade pip
	PIP_CONSTRAINT=.venv-newest/torch.txt .venv-newest/bin/python -m pip install --quiet --editable '.[dev]'
	touch $@

# neural-tangents wants an old jax and NumPy, so it has an environment of its own.
.venv-tangents/.installed:
	$(PYTHON) -m venv .venv-tangents
	PIP_CONSTRAINT= .venv-tangents/bin/python -m pip install --quiet neural-tangents==0.6.5 jax==0.4.20 jaxlib==0.4.20 'numpy<2' 'scipy<1.13'
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/.python
	@echo "installing (about two minutes the first time)"
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@ $(VENV)/.base
