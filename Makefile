# Everything happens in .venv, which the first target makes.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Most tests wait more than they compute. A process that hangs is killed and replaced, which ends well with worksteal
# only: of xdist 3.8's other ways, those that keep a file's tests together run the test that hung again, or hang too.
PYTEST := $(BIN)/python -m pytest --dist worksteal -n $(shell expr $$(nproc) + 2)

.PHONY: demo test lint bench soak clean

demo: $(READY)
	$(BIN)/penstock demo

test: $(READY)
	$(PYTEST) -m "not soak"

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

bench: $(READY)
	$(BIN)/penstock bench share

soak: $(READY)
	$(PYTEST) -m "soak or hypothesis" --hypothesis-profile soak --timeout 1800 --override-ini faulthandler_timeout=0

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $(READY)

clean:
	rm -rf $(VENV)
