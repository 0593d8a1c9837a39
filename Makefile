# One virtual environment, made once; everything else runs inside it.
# The newest Python from 3.11 on, whatever its file is called; name another one by `make setup PYTHON=/path/to/python`.
PYTHON ?= $(shell for name in $$(seq -f 'python3.%g' 19 -1 11) python3 python; do \
	$$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$name && break; done)
TORCH  ?= torch==2.13.0
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: setup demo demo-hospitals check test test-fast test-chaos test-papers test-deploy test-redteam test-ui bench bench-peers bench-page pages docs clean

setup: $(READY)

# torch first and pinned, so that nothing pulls in another build of it later.
$(READY): pyproject.toml
	@test -x $(BIN)/python || test -n "$(PYTHON)" || \
		{ echo "Atoll needs Python 3.11 or newer, and none was found. Name one: make setup PYTHON=/path/to/python"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet $(TORCH) numpy
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	touch $(READY)

# Forty owners of a few dozen digits each, with three different models: what does each of them gain by taking part?
# FedDW and SCD are not among the methods, because they need one architecture for all owners.
demo: setup
	$(BIN)/atoll compare local fedproto fedgh dcpfl fedpd pfedes --data digits --clients 40 --partition dirichlet:0.5 \
		--split official --public 100 --models mlp:hidden=32,mlp,mlp:hidden=128 --width 32 --server-model mlp \
		--set fedpd.server.epochs=5 --seeds 0,1,2 --workers 2 --out runs/demo --force

# The same question for four real hospitals with different columns and gaps, over ten splits of their rows.
demo-hospitals: setup
	$(BIN)/atoll compare local fedproto fedgh dcpfl fml --data hospitals --columns own --rounds 20 --splits 10 --workers 2 \
		--out runs/demo-hospitals --force

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

test: check
	$(BIN)/python -m pytest -n 2

# The inner loop while writing code, under a minute: arithmetic, methods by hand, layers; neither style nor types.
FAST := tests/unit/core tests/unit/aggregation/test_fixed_point.py tests/unit/data/partition tests/unit/utils/test_parsing.py \
	tests/unit/test_import_layers.py tests/unit/config/test_config.py tests/unit/clients/test_evaluation.py \
	tests/unit/clients/test_state_store.py tests/unit/simulation/test_clock.py tests/methods

test-fast: setup
	$(BIN)/python -m pytest -n 2 $(FAST)

# What the tests do briefly, at length: hundreds of kills, thousands of flipped bits, a thousand rounds.
test-chaos: setup
	$(BIN)/python -m pytest -n 2 -m chaos

# Every recipe of every paper at its smallest scale, with its figures: minutes.
test-papers: setup
	$(BIN)/python -m pytest -n 2 -m papers

# Real servers and sites on the loopback, with TLS and keys: minutes, and best on a machine with nothing else to do.
test-deploy: setup
	$(BIN)/python -m pip install --quiet --editable ".[dev,ray]"
	$(BIN)/python -m pytest -m deploy

# Attacks on a real federation: strangers, sites, the server, accounts of its machine. Findings go to build/redteam.json, and
# those of a complete run to docs/measured/boundaries.json, from which `pages` makes a table.
test-redteam: setup
	$(BIN)/python -m pytest -m redteam -s tests/redteam

# The dashboard in a real browser: needs chromium on the path. Pictures go to build/ui.
test-ui: setup
	$(BIN)/python -m pip install --quiet --editable ".[dev,browser]"
	$(BIN)/python -m pytest -m browser

# Figures go to build/bench.json; `bench-page` puts them into docs/explanation-performance.md.
bench: setup
	$(BIN)/python -m benchmarks

# FedAvg beside other frameworks on the same tensors; the first time, each gets a virtual environment (minutes).
bench-peers: setup
	$(BIN)/python -m benchmarks.peers $(PEERS)

bench-page: setup
	$(BIN)/python -m benchmarks --page

# The pages that follow from the code (minutes: bytes are counted); a test fails when they are out of date.
pages: setup
	$(BIN)/python docs/build.py

# All pages as a site for the browser, in build/site.
docs: setup
	$(BIN)/python docs/site.py build
	$(BIN)/zensical build --strict --config-file build/zensical.toml
	@echo "Open build/site/index.html"

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
