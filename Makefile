# make train: from a clean clone to a falling loss. make test: the test suite. make help: the rest.
# Needs Python 3.11, gcc and g++, cmake 3.25, and a network to PyPI the first time. Everything goes into .venv and build.
PYTHON ?= $(shell command -v python3.11 || echo python3)
VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/stamps
OUTPUT ?= outputs/train
# A run of about two minutes on 2 cores; the model is too small to need activation checkpointing.
TRAIN := --module llama3 --config llama3_debugmodel_varlen_attn --debug.seed 42 --training.steps 200 \
	--training.seq_len 256 --training.local_batch_size 2 --lr_scheduler.warmup_steps 20 \
	--optimizer.param-groups.0.optimizer-kwargs.lr 3e-3 --validator.enable --validator.freq 100 --validator.steps 8
TRAIN_ARGS ?=
TEST_ARGS ?=
CONFORMANCE_ARGS ?=
# The suite's processes, one thread each: one more than the two cores it is meant for, since tests wait for time-outs.
WORKERS ?= 3

NATIVE_SOURCES := CMakeLists.txt cann_emulator/signatures/aclnn.json $(shell find cann_emulator/native cann_emulator/ge xla_npu/native -type f -not -name "*.pyc")
PIP := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt
EMULATOR := $(BIN)/cann-emulator run --
say = @printf '\n==> %s\n' $(1)

.PHONY: help train test test-all support-table bench bench-sync results lint format conformance native clean distclean
.DEFAULT_GOAL := help

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 17

$(BIN)/python:
	$(call say,'Making $(VENV)')
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11) and "Python 3.11 is needed: make PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv $(VENV)

# torch first: the native part is compiled against its headers (see pyproject.toml). The last step is apart from the
# one before, since pip shows the compiler's progress only when it shows everything.
$(STAMPS)/installed: pyproject.toml constraints.txt | $(BIN)/python
	$(call say,'Installing torch and the build tools (several gigabytes the first time)')
	$(PIP) torch scikit-build-core ninja
	$(call say,'Installing the other packages')
	$(PIP) --no-build-isolation --config-settings wheel.cmake=false --editable '.[train,jax,sync,dev]'
	$(call say,'Building the native part')
	$(PIP) --no-build-isolation --no-deps --verbose --editable .
	@mkdir -p $(STAMPS) && touch $@

# What the editable install built, built again after a change: seconds, without pip.
$(STAMPS)/native: $(STAMPS)/installed $(NATIVE_SOURCES)
	$(call say,'Building the native part')
	cmake --build build/editable --parallel 2
	@cmake --install build/editable --prefix "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("platlib"))')" >/dev/null
	@touch $@

native: $(STAMPS)/native ## build what changed of the emulator's libraries

train: $(STAMPS)/native ## train llama3_debugmodel on the emulator; summary and loss curve in outputs/train
	$(call say,'Preparing text and tokenizer')
	$(BIN)/torchtitan-npu prepare
	$(call say,'Training')
	$(BIN)/torchtitan-npu train $(TRAIN) --dump_folder $(OUTPUT) $(TRAIN_ARGS) activation-checkpoint:none

test: $(STAMPS)/native ## the test suite (under 15 minutes on 2 cores); TEST_ARGS="-k name"
	$(call say,'Testing')
	OMP_NUM_THREADS=1 $(EMULATOR) $(BIN)/python -m pytest -m 'not slow' -n $(WORKERS) $(TEST_ARGS)

test-all: $(STAMPS)/native ## the test suite with the slow tests
	OMP_NUM_THREADS=1 $(EMULATOR) $(BIN)/python -m pytest -n $(WORKERS) $(TEST_ARGS)

support-table: $(STAMPS)/native ## train every debug model that is served; table in docs/feature_guides/models.md
	SUPPORT_TABLE=docs/feature_guides/models.md OMP_NUM_THREADS=2 $(EMULATOR) $(BIN)/python -m pytest \
		tests/torchtitan_npu/test_models.py -p no:xdist

bench: $(STAMPS)/native ## speed and memory against plain torch; table, and outputs/bench.json
	$(BIN)/python benchmarks/bench.py

bench-sync: $(STAMPS)/installed ## speed of torchtitan-sync check on torchtitan 0.2.2 -> 0.3.0
	$(BIN)/python benchmarks/sync_check.py $(BENCH_ARGS)

results: $(STAMPS)/installed ## write the README's results table from the last make train and make bench
	$(BIN)/python benchmarks/results.py

conformance: $(STAMPS)/native ## PyTorch's operator database on the emulated NPU against the CPU; a report by operator
	OMP_NUM_THREADS=1 $(EMULATOR) $(BIN)/python -m conformance $(CONFORMANCE_ARGS)

jax-conformance: $(STAMPS)/native ## JAX's own tests on the NPU; JAX_TESTS=DIR, a clone of jax at jax-v0.10.2
	@test -n "$(JAX_TESTS)" || { echo 'JAX_TESTS=DIR is needed: git clone --depth 1 --branch jax-v0.10.2 https://github.com/jax-ml/jax DIR' >&2; exit 2; }
	OMP_NUM_THREADS=1 $(EMULATOR) $(BIN)/python -m conformance.jaxtests $(JAX_TESTS) $(CONFORMANCE_ARGS)

lint: $(STAMPS)/installed ## ruff and mypy
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(STAMPS)/installed ## let ruff format and fix what it can
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

clean: ## remove what was built, and caches; .venv and outputs stay
	rm -rf build .mypy_cache .ruff_cache .pytest_cache $(STAMPS)/native $(STAMPS)/installed

distclean: clean ## remove .venv and outputs as well
	rm -rf $(VENV) outputs
