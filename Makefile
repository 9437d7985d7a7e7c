# Two commands do everything on a fresh machine: `make repro` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# DVC starts `python`, which must be the environment's.
export PATH := $(CURDIR)/$(BIN):$(PATH)
READY := $(VENV)/.ready
# Nothing phones home: ONNX Runtime reads the first, DVC the second.
export ORT_DISABLE_TELEMETRY := 1
export DVC_NO_ANALYTICS := 1
# Two processes, half of the files each, so that what a file's tests share is made once; who is done helps the other.
PYTEST := $(BIN)/pytest -n 2 --dist worksteal

.PHONY: repro test test-all servers lint docs runtime clean

repro: $(READY) .forge/password  ## build the bundled model for every target of the matrix
	$(BIN)/forge-pipeline stage resolve  # DVC reads file names from resolved/ before it runs the first stage
	$(BIN)/forge-pipeline stage ahead  # all targets at once; what dvc repro runs one by one it then finds in the store
	$(BIN)/dvc repro

test: $(READY)  ## lint, types and the default test suite
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy
	$(PYTEST) -m "not long"

test-all: $(READY)  ## the long tests too
	$(PYTEST)

servers: $(READY)  ## what the tests of remote stores talk to; rclone, sshd and azurite-blob are other installers' (docs/store.md)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[servers]"

lint: $(READY)
	$(BIN)/ruff check --fix . && $(BIN)/ruff format . && $(BIN)/mypy

docs: $(READY)  ## the public API's reference, from its docstrings, in site/
	$(BIN)/python docs/reference.py site

runtime: $(READY)  ## forge-run and libforge for each CPU, in runtime/out/
	$(BIN)/python runtime/build.py

clean:  ## remove what builds made; keep the environment
	rm -rf out runs site .forge/store .forge/hydra

$(READY): pyproject.toml runtime/pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ./runtime -e ".[dev]"
	touch $@

.forge/password: | $(READY)
	$(BIN)/forge-pipeline password $@
