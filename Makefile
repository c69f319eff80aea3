SHELL := /bin/bash
python := .venv/bin/python
ifndef PYTHON
export PYTHON := $(shell .ci/python)
endif

.DEFAULT_GOAL := help
.PHONY: help build demo test lint format test-engines wheel binary deb test-vm clean

help: ## what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "PYTHON=python3.12 chooses the Python that .venv is made with; ARGS=… is passed on."

build: ## packages, .venv and smg_ext, as far as they are missing
	@.ci/prepare

demo: build ## two simulated engines, the gateway, one chat (ENGINE=mlx: a real small model; ARGS=--once: ends by itself)
	@$(python) -m smg.sim.demo $(if $(ENGINE),--engine $(ENGINE)) $(ARGS)

test: build ## all tests that need no real engine, several files at a time (ARGS=-n0: one by one)
	@$(python) -m pytest -n 3 --dist loadgroup --no-loadscope-reorder -m "not engines" $(ARGS)

.PHONY: test-faults
test-faults: build ## every fault under load, as a table of what became of the requests (5 minutes; ARGS="--help" tells more)
	@$(python) -m tests.e2e.faults $(ARGS)

test-engines: build ## tests against a real engine (MLX on the CPU; about 1 GB is kept in ~/.cache/smg-engines)
	@$(python) tests/engines/mlx_engine.py --setup
	@$(python) -m pytest -m engines tests/engines $(ARGS)

.PHONY: bench bench-stages bench-growth bench-soak bench-peers bench-policies
bench: build ## what the gateway costs, 4 minutes (QUICK=1: one short round; ARGS="--help" tells more); bench/README.md
	@$(python) -m bench.gateway $(if $(QUICK),--quick) $(ARGS)

bench-stages: build ## what each stage of a request costs
	@$(python) -m bench.stages $(ARGS)

bench-growth: build ## cost must grow linearly: prompt, answer, streams, engines
	@$(python) -m bench.growth $(ARGS)

bench-soak: build ## ten minutes of mixed load; memory must stay flat
	@$(python) -m bench.soak $(ARGS)

bench-peers: build ## against the Rust original, where pip can install it
	@PYTHON=$(CURDIR)/$(python) bench/peers.sh $(ARGS)

bench-policies: build ## routing policies before simulated engines: a table and a picture, 3 minutes (ARGS=--real: the Rust original beside)
	@$(python) -m bench.policies $(ARGS)

lint: build ## ruff, mypy, cython-lint, and the rules of the source tree
	@PATH="$(CURDIR)/.venv/bin:$$PATH"; status=0; for check in "-m ruff check ." "-m ruff format --check ." "-m mypy" ".venv/bin/cython-lint smg_ext" "-m pytest -q tests/test_sourcecode.py"; do \
		$(python) $$check || status=1; done; exit $$status

format: build ## ruff's fixes and layout
	@$(python) -m ruff check --fix .
	@$(python) -m ruff format .

wheel: build ## wheel and source archive in dist/
	@$(python) -m pip install --quiet --disable-pip-version-check build
	@$(python) -m build --no-isolation

binary: ## dist/smg: the program in a folder that needs no Python; built in a venv of its own, then checked
	@packaging/make_binary.sh
	@$(PYTHON) tests/packaging/check_binary.py dist/smg

deb: binary ## dist/smg_VERSION_amd64.deb, looked at by lintian
	@packaging/make_deb.sh

test-vm: ## boots Debian in a container, installs the .deb of dist/, tries restarts, upgrades and faults under load (root; ARGS=--must-run)
	@packaging/tools.sh systemd-nspawn=systemd-container debootstrap=debootstrap openssl=openssl || true
	@$(PYTHON) -B tests/packaging/vm $(ARGS)

clean: ## everything that was made, .venv included
	@rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis smg_ext/*.c smg_ext/*.so smg/pb/*_pb2*
	@find smg smg_ext tests -name __pycache__ -type d -prune -exec rm -rf {} +
