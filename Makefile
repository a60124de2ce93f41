# Two targets matter: `make demo` and `make test`. Both make .venv and use it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# The CUDA compiler comes from the package registry where the machine has none.
comma := ,
EXTRAS := dev,rl$(if $(shell command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null),,$(comma)nvcc)$(if $(wildcard /dev/nvidiactl),$(comma)gpu)

.PHONY: demo test lint types fast clean
demo: $(STAMP)
	$(BIN)/kb doctor
	$(BIN)/kb run $(or $(TASK),transpose) --policy hillclimb --steps $(or $(STEPS),16) --out runs/demo

test: lint types $(STAMP)
	$(BIN)/python -m pytest

fast: $(STAMP)
	$(BIN)/python -m pytest -m "not slow"

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

# hnswlib is built from source: without HNSWLIB_NO_NATIVE it would carry this machine's instruction set.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	HNSWLIB_NO_NATIVE=1 $(BIN)/pip install --quiet --constraint constraints.txt --editable ".[$(EXTRAS)]"
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
