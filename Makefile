# Everything happens in .venv, which the first target makes.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# What needs a GPU: with any Python that has torch, as it is; see docs/hardware.md.
PART ?= all
OUT ?= build/gpu
ON_PATH := PYTHONPATH=$(CURDIR)/src:$(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH))

.PHONY: demo test lint bench soak gpu gpu-report clean

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
	$(BIN)/penstock bench share

soak: $(READY)
	$(BIN)/python -m pytest -m soak --timeout 1800

gpu:
	$(ON_PATH) $(PYTHON) -m benchmarks.gpu.evidence --part $(PART) --out $(OUT) $(if $(WHEELS),--wheels $(WHEELS))

gpu-report:
	$(ON_PATH) $(PYTHON) -m benchmarks.gpu.report --out $(OUT)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $(READY)

clean:
	rm -rf $(VENV)
