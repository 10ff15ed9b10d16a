# Two commands do everything on a fresh machine: `make demo` and `make test`. Each makes .venv by itself.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: setup demo test check bench

setup: $(STAMP)

# pip, and always with the constraints: another tool, or a free hand, would pull gigabytes of CUDA packages.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(STAMP)

demo: setup
	$(BIN)/rhobust demo

test: setup check
	OMP_NUM_THREADS=1 $(BIN)/pytest --quiet --numprocesses 2

check: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

bench: setup
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/digits.py
