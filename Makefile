# `make demo` and `make test` work on a fresh clone: they make .venv first (a few minutes), later runs start at once.
# Variables: PYTHON (interpreter for .venv), JOBS (parallel tests), ARGS (passed to pytest or to the benchmark),
# CASES (of the benchmark: names or groups; `python -m bench.suite list` has them), KINDS (of GPU tests; default: all),
# KITS (a folder that `make gpu-kits` filled elsewhere: gpu-test then needs no compiler and no .venv, only PYTHON with torch and
# cuda-bindings), SRC (PyTorch's source tree, for torch-tests), RESULTS (folder for the tables of soak and sanitizers).

PYTHON ?= python3
JOBS   ?= 2
ARGS   ?=
CASES  ?= headline
KINDS  ?=
KITS   ?=
RESULTS ?= bench/results
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
GPU_OUT := out/gpu
SHELL  := /bin/bash

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-train test lint docs opinfo gpu-kits gpu-test gpu-bench gpu-breadth gpu-generic gpu-library gpu-training libraries torch-tests host-bench ptx-hashes clean

# An environment knows its folder by its full path: a clone that was moved is installed again.
ifneq ($(shell cat $(STAMP) 2>/dev/null),$(CURDIR))
.PHONY: $(STAMP)
endif

help:
	@echo "make setup      the virtual environment (.venv) with everything in it"
	@echo "make demo       compile and run the NeRF model, compare with torch"
	@echo "make demo-train  train a radiance field on an analytic scene; writes out/train-loss.png and out/train-picture.png"
	@echo "make test       ruff, pyright, pytest and lit"
	@echo "make lint       ruff and pyright only"
	@echo "make docs       write docs/dialect.md and docs/passes.md again"
	@echo "make opinfo     PyTorch's own operator samples; writes docs/coverage.md"
	@echo "make gpu-kits   compile what gpu-test runs, into out/gpu/kits (needs no GPU)"
	@echo "make gpu-test   the tests that need a Hopper GPU; with KITS=FOLDER, of packages that gpu-kits made elsewhere"
	@echo "make gpu-bench  measurements on a Hopper GPU"
	@echo "make gpu-breadth  operators, and models that the compiler was not built around, on a Hopper GPU"
	@echo "make gpu-generic  predicted and measured times of tasks of the generic engine"
	@echo "make gpu-library  models of libraries through torch.compile (needs the extra breadth)"
	@echo "make gpu-training  forward and backward, and whole steps, beside PyTorch's (the extra breadth has some of the models)"
	@echo "make libraries    the same on the host target"
	@echo "make torch-tests SRC=FOLDER   PyTorch's own tests of backends, from its source tree, with this one"
	@echo "make host-bench  the host target beside PyTorch on this processor (wants idle cores); writes bench/README.md again"
	@echo "make ptx-hashes  which kernels' PTX is not that of test/gpu/ptx_hashes.json"
	@echo "make clean      remove what was built, and .venv"

setup: $(STAMP)

$(STAMP): pyproject.toml
	@command -v "$(PYTHON)" >/dev/null || { echo "make setup: '$(PYTHON)' not found. Python 3.11 or later is needed: install one, or name one: make setup PYTHON=/path/to/python3" >&2; exit 1; }
	@"$(PYTHON)" tools/bootstrap.py --venv $(VENV) --stamp $(STAMP)

demo: $(STAMP)
	@$(BIN)/python -m bench.demo $(ARGS)

demo-train: $(STAMP)
	@$(BIN)/python -m bench.demo_train $(ARGS)

lint: $(STAMP)
	@$(BIN)/python -m ruff check .
	@$(BIN)/python -m ruff format --check .
	@$(BIN)/python -m pyright --threads $(JOBS)

# pytest runs the lit tests too (test/test_lit.py); its summary is the last thing printed. Bytecode is kept whatever the machine
# says: a process that has to compile this project's 650 modules begins a second and a half later, and tests start many.
test: lint
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n $(JOBS) -m "not gpu" $(ARGS)

docs: $(STAMP)
	@$(BIN)/python -m kitsune_mlir.tools.make_docs

opinfo: $(STAMP)
	@$(BIN)/python -m test.opinfo --workers $(JOBS) --out docs/coverage.md $(ARGS)

# Packages are built, then run: building needs no GPU and running no compiler, so that the two may happen on different machines.
gpu-kits: $(STAMP)
	@$(BIN)/python -m test.gpu.checks build $(GPU_OUT)/kits $(KINDS) $(ARGS)

ifeq ($(KITS),)
gpu-test: gpu-kits
	@$(BIN)/python -m test.gpu.checks run $(GPU_OUT)/kits $(KINDS) --results $(RESULTS)
else
gpu-test:
	@$(PYTHON) -m test.gpu.checks run $(KITS) $(KINDS) --results $(RESULTS) $(ARGS)
endif

gpu-bench: $(STAMP)
	@$(BIN)/python -m bench.suite build $(GPU_OUT)/bench $(CASES)
	@$(BIN)/python -m bench.suite run $(GPU_OUT)/bench $(CASES) --json $(GPU_OUT)/bench.json $(ARGS)
	@$(BIN)/python -m bench.counters $(GPU_OUT)/bench $(CASES) --json $(GPU_OUT)/bench.json
	@$(BIN)/python -m bench.report $(GPU_OUT)/bench.json

gpu-breadth: $(STAMP)
	@$(BIN)/python -m bench.suite build $(GPU_OUT)/breadth breadth library operators --jobs $(JOBS) --limit 600
	@$(BIN)/python -m bench.suite warm $(GPU_OUT)/breadth breadth library operators --peers graph --jobs $(JOBS)
	@$(BIN)/python -m bench.suite run $(GPU_OUT)/breadth breadth library operators --peers graph --json $(GPU_OUT)/breadth.json --resume $(ARGS)
	@$(BIN)/python -m bench.report $(GPU_OUT)/breadth.json

gpu-generic: $(STAMP)
	@$(BIN)/python -m bench.generic build $(GPU_OUT)/generic
	@$(BIN)/python -m bench.generic run $(GPU_OUT)/generic --json $(GPU_OUT)/generic.json
	@$(BIN)/python -m bench.generic compare $(GPU_OUT)/generic.json

gpu-library: $(STAMP)
	@$(BIN)/python -m bench.library --device cuda --peers graph --jobs $(JOBS) --json $(GPU_OUT)/library.json

gpu-training: $(STAMP)
	@$(BIN)/python -m bench.training --device cuda --peers graph --jobs $(JOBS) --json $(GPU_OUT)/training.json --resume $(ARGS)

libraries: $(STAMP)
	@$(BIN)/pip install --quiet --editable '.[breadth]'
	@$(BIN)/python -m bench.library --device cpu --json bench/results/libraries-host.json --resume $(ARGS)

torch-tests: $(STAMP)
	@test -d "$(SRC)/test" || { echo "make torch-tests SRC=FOLDER: the source tree of PyTorch, of the version that is installed" >&2; exit 1; }
	@$(BIN)/python -W ignore -m bench.torch_tests $(SRC) --json bench/results/torch-tests.json --resume $(ARGS)

host-bench: $(STAMP)
	@$(BIN)/python -m bench.host --json bench/results/host.json --resume $(ARGS)
	@$(BIN)/python -m bench.report

ptx-hashes: $(STAMP)
	@$(BIN)/python -m test.gpu.ptx_hashes check --jobs $(JOBS) $(ARGS)

clean:
	@rm -rf $(VENV) out build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
