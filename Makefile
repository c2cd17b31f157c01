# Everything a developer or CI runs. `make help` lists the targets; each is incremental and safe to repeat.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules

PYTHON ?= python3
JOBS ?= $(shell nproc)
# Native sanitizer build: empty, address (ASan + UBSan) or thread (TSan).
SANITIZE ?=
# What `make pytest` runs.
TESTS ?= tests
# How many tests `make pytest`, `unit` and `sglang-test` run at the same time.
WORKERS ?= $(JOBS)
# How often each test runs; more than once for what fails rarely.
ROUNDS ?= 1
# What `make simulate` plays: so many seeds, or one with its event log; the name of a scenario of tests/simulation/scenarios.py.
SEEDS ?= 500
SEED ?=
SCENARIO ?= everything
# What `make fuzz` feeds, and how long: a target of native/fuzz/targets, `python`, or all of them.
TARGET ?=
SECONDS ?= 60
# Extra arguments for pytest, `kvstore up` and the benchmark harness.
ARGS ?=

VENV := .venv
SGLANG_VENV := .venv-sglang
BENCH_VENV := .venv-bench
BIN := $(VENV)/bin
RESULTS := build/results
NATIVE_BUILD := build/native$(addprefix -,$(SANITIZE))
PIP := -m pip install --quiet --disable-pip-version-check
# Tests run on a loopback of their own; each worker of pytest-xdist on one again.
OWN_NETWORK := $(PYTHON) tools/own_network.py
# $(call run-pytest,bin directory)
run-pytest = $(OWN_NETWORK) $1/pytest --dist worksteal --tx '$(WORKERS)*popen//python=$(OWN_NETWORK) $1/python' \
  --rounds $(ROUNDS) --quiet
# cmake and ninja come from the system, or else from the venv (see $(VENV)/.deps).
export PATH := $(CURDIR)/$(BIN):$(PATH)

NATIVE_FILES := $(shell find native -name '*.[ch]pp')
# The tests have a build of their own. An editable install knows packages by name: a new one is built in.
BUILD_INPUTS := CMakeLists.txt pyproject.toml $(filter-out native/tests/% native/fuzz/%,$(NATIVE_FILES)) \
                $(shell find proto -name '*.proto') $(shell find kvstore client hicache_adapter -name '__init__.py')
PYTHON_FILES := $(shell find kvstore client hicache_adapter -name '*.py*' -not -path '*/__pycache__/*')
# Changes when a file comes or goes: what has gone is newer than nothing.
FILE_LIST := build/wheel.files
$(shell mkdir -p build; echo $(sort $(BUILD_INPUTS) $(PYTHON_FILES)) | cmp --quiet - $(FILE_LIST) || \
  echo $(sort $(BUILD_INPUTS) $(PYTHON_FILES)) > $(FILE_LIST))

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 16

# ---- running it -------------------------------------------------------------------------------------------------------

.PHONY: up
up: $(VENV)/.built ## build if needed, then run a master and one segment on this machine until Ctrl-C
	$(BIN)/kvstore up $(ARGS)

# ---- virtual environments ---------------------------------------------------------------------------------------------

.PHONY: venv
venv: $(VENV)/.built ## build and install everything into .venv, run nothing

$(VENV)/.deps: pyproject.toml tools/check_host.py tools/requirements.py
	$(PYTHON) tools/check_host.py
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python $(PIP) --upgrade pip
	$(BIN)/python tools/requirements.py build server test lint > $(VENV)/requirements.txt
	$(BIN)/python $(PIP) -r $(VENV)/requirements.txt
	command -v cmake >/dev/null || $(BIN)/python $(PIP) cmake
	command -v ninja >/dev/null || $(BIN)/python $(PIP) ninja
	touch $@

$(VENV)/.built: $(VENV)/.deps $(BUILD_INPUTS)
	$(BIN)/python $(PIP) --no-deps --no-build-isolation --editable .
	touch $@

# The wheel that the other two environments install: they test and measure what a user would get.
build/wheel/.built: $(VENV)/.deps $(FILE_LIST) $(BUILD_INPUTS) $(PYTHON_FILES)
	rm -rf build/wheel
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir build/wheel .
	touch $@

# Every package is pinned in tests/sglang/requirements.txt, so nothing is resolved: SGLang's own metadata asks for CUDA builds.
# What is imported is compiled then, one file in ten.
$(SGLANG_VENV)/.deps: tests/sglang/requirements.txt tools/check_host.py
	$(PYTHON) tools/check_host.py --sglang
	test -x $(SGLANG_VENV)/bin/python || $(PYTHON) -m venv $(SGLANG_VENV)
	$(SGLANG_VENV)/bin/python $(PIP) --no-deps --no-compile -r tests/sglang/requirements.txt
	touch $@

# Older versions of SGLang alone, from their own wheels: the rest is the environment's.
$(SGLANG_VENV)/versions/.installed: tests/sglang/versions.toml tools/sglang_versions.py $(SGLANG_VENV)/.deps
	$(SGLANG_VENV)/bin/python tools/sglang_versions.py install $(SGLANG_VENV)/versions
	touch $@

$(SGLANG_VENV)/.built: $(SGLANG_VENV)/.deps build/wheel/.built
	$(SGLANG_VENV)/bin/python $(PIP) --no-deps --force-reinstall build/wheel/*.whl
	touch $@

$(BENCH_VENV)/.deps: benchmarks/requirements.txt pyproject.toml $(VENV)/.deps
	$(PYTHON) tools/check_host.py --mooncake || echo "Going on: the benchmark leaves that peer out and says so."
	test -x $(BENCH_VENV)/bin/python || $(PYTHON) -m venv $(BENCH_VENV)
	$(BIN)/python tools/requirements.py server > $(BENCH_VENV)/requirements.txt
	$(BENCH_VENV)/bin/python $(PIP) -r $(BENCH_VENV)/requirements.txt
	$(BENCH_VENV)/bin/python $(PIP) --no-deps -r benchmarks/requirements.txt
	touch $@

$(BENCH_VENV)/.built: $(BENCH_VENV)/.deps build/wheel/.built
	$(BENCH_VENV)/bin/python $(PIP) --no-deps --force-reinstall build/wheel/*.whl
	touch $@

# ---- tests ------------------------------------------------------------------------------------------------------------

.PHONY: test
test: ## set up everything and run every check and test; CI runs this
	$(PYTHON) tools/run_tests.py --results $(RESULTS) --beside sglang-packages venv lint native-test \
	  native-test-address native-test-thread pytest packaging-test sglang-packages sglang-venv sglang-test

.PHONY: test-long
test-long: ## the native and the Python tests ROUNDS times over (20), for what fails rarely
	$(PYTHON) tools/run_tests.py --results $(RESULTS) venv native-test native-test-address native-test-thread pytest
test-long: export ROUNDS := $(if $(filter file,$(origin ROUNDS)),20,$(ROUNDS))

.PHONY: lint
lint: $(VENV)/.built ## ruff, mypy --strict, clang-format, and locks where clang++ is there; changes nothing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $(NATIVE_FILES)
	$(PYTHON) tools/check_locks.py

.PHONY: format
format: $(VENV)/.deps ## rewrite the sources as the linters want them
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(NATIVE_FILES)

.PHONY: native-test native-test-address native-test-thread
native-test: $(VENV)/.deps ## C++ tests; SANITIZE=address (ASan + UBSan) or SANITIZE=thread (TSan)
	cmake -S . -B $(NATIVE_BUILD) -G Ninja -DKVSTORE_BUILD_PYTHON=OFF -DKVSTORE_BUILD_TESTS=ON \
	  -DKVSTORE_SANITIZE=$(SANITIZE) > /dev/null
	cmake --build $(NATIVE_BUILD) --parallel $(JOBS)
	mkdir -p $(RESULTS)
	$(OWN_NETWORK) $(if $(filter thread,$(SANITIZE)),setarch --addr-no-randomize) ctest --test-dir $(NATIVE_BUILD) \
	  --output-on-failure --no-tests=error --repeat until-fail:$(ROUNDS) --output-junit $(CURDIR)/$(RESULTS)/native-test$(addprefix -,$(SANITIZE)).xml

# A static pattern: make never applies an implicit one to a phony target, and would do nothing without a word.
native-test-address native-test-thread: native-test-%:
	$(MAKE) --no-print-directory native-test SANITIZE=$*

.PHONY: mutants
mutants: $(VENV)/.built ## small wrong changes, one at a time: which of them no test sees; ARGS="-k TEXT" for a part
	$(BIN)/python tools/mutants.py --jobs $(JOBS) --results $(RESULTS)/mutants.json $(ARGS)

.PHONY: unit pytest packaging-test sglang-packages sglang-venv sglang-test sglang-test-long
unit: $(VENV)/.built ## the fast Python tests (tests/unit, tests/contract); ARGS= goes to pytest
	$(call run-pytest,$(BIN)) tests/unit tests/contract $(ARGS)

pytest: $(VENV)/.built ## Python tests, all but packaging and SGLang, or TESTS=path
	$(call run-pytest,$(BIN)) $(TESTS) --ignore tests/packaging --ignore tests/sglang --durations 10 \
	  --junitxml $(RESULTS)/pytest.xml $(ARGS)

.PHONY: simulate
simulate: $(VENV)/.built ## the whole cluster in virtual time: SEEDS=500, or SEED=n to see one; SCENARIO=name
	PYTHONPATH=tests $(BIN)/python -m simulation $(if $(SEED),--seed $(SEED),--seeds $(SEEDS)) --scenario $(SCENARIO) $(ARGS)

.PHONY: fuzz
fuzz: $(VENV)/.built ## libFuzzer (clang++) and hypothesis on all that takes bytes: TARGET=name, SECONDS=60 of each
	$(OWN_NETWORK) $(BIN)/python tools/fuzz.py --seconds $(SECONDS) --jobs $(JOBS) $(TARGET)

# In the network that all share: it installs what a user would.
packaging-test: $(VENV)/.built ## sdist, wheel and bare-install tests
	$(BIN)/pytest tests/packaging --quiet --junitxml $(RESULTS)/packaging-test.xml $(ARGS)

sglang-packages: $(SGLANG_VENV)/versions/.installed

sglang-venv: $(SGLANG_VENV)/.built $(SGLANG_VENV)/versions/.installed $(VENV)/.built ## set up .venv-sglang (about 3 GB), run nothing

# Handed out one by one, the longest first, as a server test takes minutes and most others a second.
# PYTHONSAFEPATH: the wheel is under test, here and in each process that a test starts, not the sources in this folder.
# PYTHONDONTWRITEBYTECODE: an image that sets it would have every process compile all of SGLang again, for 15 s of CPU.
# `long`: the other corners of a matrix and soaks, for a change to the adapter and before a release.
sglang-test: sglang-venv ## tests against a real SGLang on CPU
	$(call run-sglang-tests,not long,sglang-test)

sglang-test-long: sglang-venv ## the tests against a real SGLang that take too long for `make test`
	$(call run-sglang-tests,long,sglang-test-long)

run-sglang-tests = PYTHONSAFEPATH=1 PYTHONDONTWRITEBYTECODE= $(call run-pytest,$(SGLANG_VENV)/bin) --dist load --maxschedchunk 1 tests/sglang \
  -m "$1" --durations 10 --junitxml $(RESULTS)/$2.xml $(ARGS)

# ---- benchmarks -------------------------------------------------------------------------------------------------------

.PHONY: bench
bench: $(BENCH_VENV)/.built ## compare with memcpy and Mooncake Store; ARGS= goes to the harness (see --help)
	$(BENCH_VENV)/bin/python -m benchmarks $(ARGS)

.PHONY: clean
clean: ## remove every build output and virtual environment
	rm -rf build dist $(VENV) $(SGLANG_VENV) $(BENCH_VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
