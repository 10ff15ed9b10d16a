# Two commands do everything on a fresh machine: `make demo` and `make test`. Each makes .venv by itself.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: setup demo test check bench figures

setup: $(STAMP)

# pip, and always with the constraints: another tool, or a free hand, would pull gigabytes of CUDA packages.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(STAMP)

demo: setup
	$(BIN)/rhobust demo

# One thread a worker: two workers that share two cores between threads of their own wait for each other.
test: check
	OMP_NUM_THREADS=1 $(BIN)/pytest tests --quiet --numprocesses 2 --dist loadfile

check: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	OMP_NUM_THREADS=1 $(BIN)/pytest src --quiet  # the doctests

bench: setup
	$(BIN)/python -m benchmarks.overhead
	$(BIN)/python -m benchmarks.digits
	$(BIN)/python -m benchmarks.radius
	$(BIN)/python -m benchmarks.schedules
	$(BIN)/python -m benchmarks.tables
	$(BIN)/python -m benchmarks.mnist
	$(BIN)/python -m benchmarks.federated

# From the committed numbers; no GPU, no data, nothing is trained.
figures: setup
	$(BIN)/rhobust reproduce draw --out results/paper --page docs/reproduction.md
