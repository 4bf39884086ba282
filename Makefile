# Each target makes its own environment and does its job; again and again at no cost.
#   PYTHON  the interpreter the environment is made from (default: the first of python3, python3.14 ... that is >= 3.11)
#   VENV    where the environment lives (default: .venv; .venv-rocm for test-rocm)
#   ARGS    further arguments of the command behind the target: make test ARGS="tests/test_cli -x"

ifneq ($(filter test-rocm,$(MAKECMDGOALS)),)
VENV ?= .venv-rocm
ifneq ($(words $(MAKECMDGOALS)),1)
$(error test-rocm goes alone: CuPy for ROCm does not share an environment with CuPy for CUDA)
endif
endif
VENV ?= .venv
PYTHON ?=
ARGS ?=

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
STAMPS := $(VENV)/.gpuload
TEST_EXTRAS := dask,demo,pandas,xarray

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: $(STAMPS)/demo ## read real climate data through gpuload and check every value
	@$(BIN)/gpuload demo $(ARGS)

.PHONY: test
test: $(STAMPS)/test ## run the tests
	$(BIN)/python -m pytest $(ARGS)

.PHONY: test-deep
test-deep: $(STAMPS)/test ## run the tests with many more examples
	$(BIN)/python -m pytest --hypothesis-profile=deep --timeout=1800 $(ARGS)

.PHONY: test-rocm
test-rocm: $(STAMPS)/rocm ## run the tests of AMD's GPUs on a simulated ROCm; needs gcc and g++
	PYTHONPATH=tests $(BIN)/python -m pytest -p rocm_sim.plugin -m rocm $(ARGS)

.PHONY: test-browser
test-browser: $(STAMPS)/browser ## drive the widgets in JupyterLab in a browser
	GPULOAD_TEST_BROWSER=1 $(BIN)/python -m pytest tests/test_browser $(ARGS)

.PHONY: test-zarr-suite
test-zarr-suite: $(STAMPS)/zarr-suite ## run zarr-python's own tests on gpuload's store and codec pipeline
	$(BIN)/python tests/zarr_suite/run.py $(ARGS)

.PHONY: lab
lab: $(STAMPS)/lab ## open the notebooks in JupyterLab
	$(BIN)/jupyter lab notebooks/01_first_read.ipynb $(ARGS)

.PHONY: lint
lint: $(STAMPS)/lint ## check style, types and the layers of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

.PHONY: format
format: $(STAMPS)/lint ## mend what the style checks can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: wheel
wheel: $(STAMPS)/wheel ## build the wheel and the source distribution into dist/
	$(BIN)/python -m build --outdir dist $(ARGS)

.PHONY: clean
clean: ## remove the environment and what was built
	rm -rf $(VENV) dist build .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis .coverage*

# An environment whose interpreter is gone or too old, or that never got its pip, is made anew. Asked before make looks
# at the stamps, since these must go with it.
SUPPORTED = import sys; sys.exit(sys.version_info < (3, 11))
ifneq ($(filter-out help clean,$(MAKECMDGOALS)),)
ifeq ($(shell $(BIN)/python -c 'import pip; $(SUPPORTED)' 2>/dev/null && echo usable),)
$(shell rm -rf $(STAMPS))
endif
endif

# pip knows dependency groups since 25.1.
$(STAMPS)/pip:
	@if ! $(BIN)/python -c 'import pip; $(SUPPORTED)' 2>/dev/null; then \
	    candidates="$(or $(PYTHON),python3 python3.14 python3.13 python3.12 python3.11)"; \
	    for python in $$candidates; do \
	        if "$$python" -c '$(SUPPORTED)' 2>/dev/null; then found="$$python"; break; fi; \
	    done; \
	    if [[ -z "$${found:-}" ]]; then \
	        echo "gpuload needs Python >= 3.11; tried: $$candidates." >&2; \
	        echo "Name one with: make $(MAKECMDGOALS) PYTHON=/path/to/python3.11" >&2; \
	        exit 1; \
	    fi; \
	    echo "making $(VENV) from $$("$$found" -c 'import sys; print(sys.executable, sys.version.split()[0])')" >&2; \
	    "$$found" -m venv --clear $(VENV) || { \
	        echo "'$$found -m venv' failed; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; \
	    }; \
	fi
	@$(PIP) install -qq --upgrade 'pip>=25.1'
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/demo: pyproject.toml Makefile $(STAMPS)/pip
	@echo "installing gpuload and the demo's data: half a minute or so" >&2
	@$(PIP) install -qq --editable '.[demo]'
	@touch $@

$(STAMPS)/test: pyproject.toml Makefile $(STAMPS)/pip
	@echo "installing what the tests need" >&2
	@$(PIP) install -qq --editable '.[$(TEST_EXTRAS)]' --group test
	@touch $@

$(STAMPS)/rocm: pyproject.toml Makefile $(STAMPS)/pip
	@echo "installing CuPy for ROCm, hip-python and what the tests need" >&2
	@$(PIP) install -qq --editable '.[$(TEST_EXTRAS),rocm]' --group test
	@touch $@

# The browser is the system's: installed where that is allowed.
$(STAMPS)/browser: pyproject.toml Makefile $(STAMPS)/test
	@if ! command -v chromium chromium-browser google-chrome >/dev/null; then \
	    if [[ $$EUID == 0 ]] && command -v apt-get >/dev/null; then \
	        echo "installing Chromium" >&2; \
	        apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium >/dev/null; \
	    else \
	        echo "no Chromium is installed; on Debian: apt-get install chromium" >&2; exit 1; \
	    fi; \
	fi
	@echo "installing JupyterLab and what drives it" >&2
	@$(PIP) install -qq --editable '.[$(TEST_EXTRAS),notebook]' --group browser
	@touch $@

$(STAMPS)/zarr-suite: pyproject.toml Makefile $(STAMPS)/test
	@$(PIP) install -qq --group zarr-suite
	@touch $@

$(STAMPS)/lint: pyproject.toml Makefile $(STAMPS)/test
	@echo "installing the checkers" >&2
	@$(PIP) install -qq --group lint
	@touch $@

$(STAMPS)/lab: pyproject.toml Makefile $(STAMPS)/pip
	@echo "installing JupyterLab and what the notebooks use" >&2
	@$(PIP) install -qq --editable '.[all]'
	@touch $@

$(STAMPS)/wheel: pyproject.toml Makefile $(STAMPS)/pip
	@$(PIP) install -qq build
	@touch $@
