# Everything runs in .venv, which the first target that needs it makes. Nothing else has to be installed by hand.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
VERSIONS ?= /tmp/eigengrad-versions
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test test-plain test-slow test-gpu test-versions test-core test-browser fuzz fuzz-files lint bench docs docs-serve dist clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'

$(READY): pyproject.toml constraints.txt
	@echo "==> making the environment in $(VENV) (once; torch comes first and is large)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) torch==2.13.0
	@echo "==> installing eigengrad and its tools"
	@$(PIP) --editable '.[dev]'
	@$(PIP) --no-deps triton
	@touch $@

demo: $(READY)  ## the NaN, the remedy, and every method trained on digits: out/demo/
	@$(BIN)/python examples/demo.py
	@echo "==> training every method on handwritten digits (a minute or two)"
	@$(BIN)/eigengrad compare --results out/demo

test: $(READY)  ## the test suite, with doctests (minutes)
	@echo "==> compiling the CPU kernels, one type of number a process: else both of the tests' would compile all"
	@for type in float32 float64; do $(BIN)/python -c "import torch, eigengrad; eigengrad.kernels.warmup(torch.$$type)" & done; wait
	@echo "==> running the tests"
	@$(BIN)/python -m pytest -q -m "not slow" -n 2 $(PYTEST)

# What the library gives when it computes in torch operations, because kernels are switched off or numba is broken.
PLAIN := tests/test_eigh.py tests/test_power_iteration.py tests/test_diagnostics.py tests/solvers \
         tests/matrix_functions/test_hermitian.py tests/nn/test_iterative_norm.py tests/nn/test_layers_as_modules.py
test-plain: $(READY)  ## the core without kernels: switched off, and with a numba that does not import
	@echo "==> running core tests with EIGENGRAD_KERNELS=0"
	@EIGENGRAD_KERNELS=0 $(BIN)/python -m pytest -q -m "not slow" -n 2 $(PLAIN) $(PYTEST)
	@echo "==> running core tests without numba"
	@PYTHONPATH=tests/without_numba $(BIN)/python -m pytest -q -m "not slow" -n 2 $(PLAIN) $(PYTEST)

test-slow: $(READY)  ## the slow tests
	@$(BIN)/python -m pytest -q -m slow -n 2 $(PYTEST)

# make test-core PYTHON=python3.12 TORCH='torch==2.13.0' NUMBA=    the core on versions of your choice; an empty NUMBA is none
TORCH ?= torch
NUMBA ?= numba
test-core:  ## the core tests in an environment with PYTHON, TORCH and NUMBA of your choice (CI's matrix)
	@rm -rf build/core && $(PYTHON) -m venv build/core
	@build/core/bin/python -m pip install --quiet --disable-pip-version-check $(TORCH) $(NUMBA) \
	    numpy scipy scikit-learn hypothesis mpmath onnx onnxscript setuptools pytest pytest-xdist
	@PYTHONPATH=src build/core/bin/python -m pytest -q -m "not slow" -n 2 \
	    $(if $(NUMBA),tests --ignore=tests/lab --ignore=tests/fuzzing,$(PLAIN)) $(PYTEST)

test-browser: $(READY)  ## the studio and the documentation in a real browser (needs Chromium)
	@$(PIP) 'playwright>=1.45'
	@$(BIN)/python -m pytest -q -m slow tests/lab/studio tests/docs/test_site.py $(PYTEST)

test-versions:  ## the core tests on the oldest and the newest torch, counted in benchmarks/results/versions.md
	@$(PYTHON) benchmarks/versions.py $(VERSIONS)

# With GPU_PYTHON=python an environment of your own is used, whose torch is built for the GPU.
GPU_PYTHON ?= $(BIN)/python
test-gpu: $(if $(filter $(BIN)/python,$(GPU_PYTHON)),$(READY))  ## kernels, functions and layers on a CUDA or ROCm GPU, which torch must be built for
	@$(GPU_PYTHON) -c "import torch; assert torch.cuda.is_available(), 'torch sees no GPU'"
	@echo "==> running the Triton kernels on the GPU"
	@TRITON_INTERPRET=0 $(GPU_PYTHON) -m pytest -q -m "slow or not slow" tests/kernels/gpu $(PYTEST)
	@echo "==> running every function and layer on the GPU"
	@TRITON_INTERPRET=0 EIGENGRAD_TEST_DEVICE=cuda $(GPU_PYTHON) -m pytest -q tests/test_devices.py $(PYTEST)
	@echo "==> capturing a training step in a CUDA graph"
	@TRITON_INTERPRET=0 $(GPU_PYTHON) -m pytest -q tests/test_cuda_graphs.py $(PYTEST)

fuzz: $(READY)  ## ten million adversarial matrices through rules and functions
	@$(BIN)/python tests/fuzzing/fuzz.py $(FUZZ)

fuzz-files: $(READY)  ## a hundred thousand mutated files through the readers of the lab
	@$(BIN)/python tests/fuzzing/fuzz_files.py $(FUZZ)

lint: $(READY)  ## ruff and mypy --strict
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

bench: $(READY)  ## benchmarks against torch.linalg, of a GPU where there is one, written to benchmarks/results/
	@$(BIN)/python benchmarks/run.py $(BENCH)

docs: $(READY)  ## the documentation with its tutorials run, built into site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "==> site/index.html"

docs-serve: $(READY)  ## the documentation at http://127.0.0.1:8000, built again when a page changes
	@echo "==> http://127.0.0.1:8000 (Ctrl-C ends it)"
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve --quiet

dist: $(READY)  ## wheel and source distribution in dist/, checked and installed in clean environments
	@$(PIP) build check-wheel-contents twine
	@rm -rf dist
	@echo "==> building"
	@$(BIN)/python -m build --outdir dist . > /dev/null
	@$(BIN)/python -m twine check --strict dist/*
	@$(BIN)/check-wheel-contents dist/*.whl
	@$(BIN)/python .ci/check_dist.py dist/*.whl dist/*.tar.gz

clean:  ## remove the environment and everything generated
	rm -rf $(VENV) site out build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
