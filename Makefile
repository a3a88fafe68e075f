# Everything happens in .venv, which the first target makes.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DOCS := $(VENV)/.docs

.PHONY: demo test lint docs test-docs bench soak clean

demo: $(READY)
	$(BIN)/penstock demo

test: $(READY)
	$(BIN)/python -m pytest -m "not soak"

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

docs: $(DOCS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

test-docs: $(DOCS)
	$(BIN)/python -m pytest tests/docs/test_site.py

bench: $(READY)
	$(BIN)/python -m benchmarks.share

soak: $(READY)
	$(BIN)/python -m pytest -m soak --timeout 1800

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $(READY)

$(DOCS): $(READY)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[docs]"
	touch $(DOCS)

clean:
	rm -rf $(VENV)
