SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help lecture site jupyter test test-slow kernels gpu bench data train tensorboard doctor clean check venv

PYTHON3 ?= python3
NOTEBOOKS ?=
ARGS ?=
CMAKE_ARGS ?=
# Two tests at once, if pytest-xdist is there; $(1): how it distributes them.
PYTEST_ARGS ?= $(shell $(PYTHON) -c 'import xdist' 2>/dev/null && echo '-n 2 --dist $(1)')

# Given on the command line, PYTHON holds the packages already: no .venv is made and nothing is installed.
ifeq ($(origin PYTHON),command line)
MADE_BY := $(PYTHON)
DOCTOR := $(PYTHON) kernels/doctor.py --python $(PYTHON)
override export PYTHONPATH := $(CURDIR):$(CURDIR)/notebooks:$(CURDIR)/kernels/editable$(if $(value PYTHONPATH),:$(value PYTHONPATH))
else
override PYTHON := .venv/bin/python
MADE_BY := $(PYTHON3)
DOCTOR := $(PYTHON3) kernels/doctor.py
# For cmake, ctest and ninja, which requirements.txt installs.
export PATH := $(CURDIR)/.venv/bin:$(PATH)
# It would lead .venv's Python to another one's packages.
unexport PYTHONHOME
endif

SAMPLE := data/sample/metadata.json

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo 'PYTHON3=python3.12  the Python that makes .venv'
	@echo 'PYTHON=python3      use this Python and its packages, make no .venv'
	@echo 'PYTEST_ARGS=        run the tests in one process, not in two'

lecture: $(SAMPLE)  ## execute every notebook; pages in build/lecture/ (NOTEBOOKS="01 02": only these)
	@$(PYTHON) notebooks/lecture.py $(NOTEBOOKS) $(ARGS)

site: venv  ## build/site/: pages of the notebooks as they are stored, the tables and a search; executes nothing
	@$(PYTHON) notebooks/lecture_site.py $(ARGS)

jupyter: $(SAMPLE)  ## JupyterLab on 127.0.0.1
	@$(PYTHON) -m jupyterlab --ip=127.0.0.1 --LabApp.default_url=/lab/tree/notebooks $(ARGS)

# $(1): ON compiles the GPU tests for every architecture that the kernels are written for, OFF for this machine's GPU.
# $(2): the target to build.
cmake_build = cmake -S kernels -B build/cmake -G Ninja -DFUSED_KERNELS_ALL_ARCHITECTURES=$(1) $(CMAKE_ARGS) \
	&& cmake --build build/cmake --target $(2)
# The sanitizers' tests take most of the time: two at once, as many as a small machine has cores.
cmake_tests = $(call cmake_build,OFF,all) \
	&& { code=0; ctest --test-dir build/cmake --parallel 2 --output-on-failure || code=$$?; \
	sed -n 's/^SKIPPED: /tests skipped: /p' build/cmake/Testing/Temporary/LastTest.log | sort | uniq -c; [ $$code = 0 ]; }

# Every step runs whatever the ones before it did; the summary names each, and one failure fails the target.
step = echo; echo '== $(1)'; SECONDS=0; if $(2); then result=ok; else result=FAILED; status=1; fi; \
	summary+=" $(1):$$result ($$SECONDS s)"
pytest = $(PYTHON) -m pytest -q $(PYTEST_ARGS)
test: $(SAMPLE)  ## ruff, pytest, the CMake tests
	@status=0; summary=; \
	$(call step,lint,$(PYTHON) -m ruff check); \
	$(call step,pytest,$(call pytest,loadfile) -m 'not slow'); \
	$(call step,cmake,$(cmake_tests)); \
	echo; echo "make test:$$summary"; exit $$status

test-slow: $(SAMPLE)  ## what takes long and rarely breaks: pytest -m slow (the notebooks too), the kernels for more GPUs
	@status=0; summary=; \
	$(call step,pytest,$(call pytest,worksteal) -m slow); \
	$(call step,cmake,$(call cmake_build,ON,gpu_tests)); \
	echo; echo "make test-slow:$$summary"; exit $$status

kernels: venv  ## the CMake tests: CUDA kernels on the GPU, and on the host under sanitizers (CMAKE_ARGS=-D…)
	@$(cmake_tests)

gpu: venv  ## on a GPU: pytest, ctest, compute-sanitizer, a glance at the benchmarks (ARGS="--only build,ctest")
	@$(PYTHON) -m kernels.gpu_run $(ARGS)

bench: venv  ## on a GPU: every op's benchmark, recorded in traces/results/
	@$(PYTHON) -m kernels.measure bench --save $(ARGS)

data: $(SAMPLE)  ## the synthetic sample in data/sample/ if it is not there

train: $(SAMPLE)  ## train the small model on the sample (ARGS="--epochs 2": further options of model.train)
	@$(PYTHON) -m model.train --preset small --data data/sample $(ARGS)

tensorboard: venv  ## TensorBoard on 127.0.0.1, over traces/
	@$(PYTHON) -m tensorboard.main --logdir traces --host 127.0.0.1 $(ARGS)

doctor:  ## what this machine has, and what it lacks for what
	@$(DOCTOR)

clean:  ## remove build/ (checkpoints too) and caches; leaves .venv, data/sample and traces
	@rm -rf build .pytest_cache .hypothesis .ruff_cache
	@find . -path ./.venv -prune -o \( -name __pycache__ -o -name .ipynb_checkpoints \) -type d -exec rm -rf {} +

# What cannot be done without is missed before anything is downloaded.
check:
	@command -v '$(MADE_BY)' >/dev/null || { echo '$(MADE_BY) is missing: apt install python3 python3-venv python3-dev' >&2; exit 1; }
	@$(DOCTOR) --require || { echo 'make doctor lists everything.' >&2; exit 1; }

$(SAMPLE): | venv
	@echo 'Making data/sample: synthetic rows'
	@$(PYTHON) -c 'from data.synthetic import sample; sample()'

ifeq ($(origin PYTHON),command line)
venv: check
else
venv: check
	@$(PYTHON3) kernels/environment.py
endif
