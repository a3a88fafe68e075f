# Everything happens in .venv, which the first target makes.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test lint bench soak clean

demo: $(READY)
	$(BIN)/penstock demo

test: $(READY)
	$(BIN)/python -m pytest -m "not soak"

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

bench: $(READY)
	$(BIN)/python -m benchmarks.share

soak: $(READY)
	$(BIN)/python -m pytest -m soak --timeout 1800

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $(READY)

clean:
	rm -rf $(VENV)
