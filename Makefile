# The tasks of a checkout, on a machine with only make and one of Python 3.11 to 3.14.
# The environment is .venv, built from a lock with hashes and rebuilt when the lock changes. On 3.11 it has everything.
# Without 3.11 it has only the base package: TensorFlow 2.15 has no wheels for later versions.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
SHELL := /bin/bash -o pipefail -e

VENV := .venv
PY := $(VENV)/bin/python
BIN := $(VENV)/bin
TESTS ?= tests
# The tests of `make test-quick`.
QUICK ?= $(addprefix tests/,checking connectors datasets encoding episodes images jobs output trajectories \
	project/test_layers.py project/test_public.py project/test_extras.py)
# The tests of `make test-macos`: what may depend on the system.
MACOS ?= $(addprefix tests/,core datasets/test_batches.py output/test_attacks.py output/test_directory.py output/test_files.py \
	output/test_shards.py pipelines/test_convert.py project/test_platforms.py runners/test_local.py runners/test_worker.py \
	runners/test_worker_pool.py terminal)
# Three processes for two cores, because tests also wait; idle processes take over tests.
PYTEST_FLAGS ?= -n 3 --dist worksteal
# Every test has its own deadline (pyproject.toml); this one catches a hang outside of any test.
TEST_SECONDS ?= 3600

# The Python for .venv; by default tools/find_python looks for one. Example: make PYTHON=/path/to/python3.11
PYTHON ?=
export PYTHON

# A stamp's name contains the checksum of its inputs, so a changed file needs a new stamp.
sum = $(firstword $(shell cat $(1) | sha256sum))
LOCKS := requirements.lock $(wildcard requirements/base-py*.lock)
DEPENDENCIES := $(VENV)/.dependencies-$(call sum,$(LOCKS))
PROJECT := $(VENV)/.project-$(call sum,$(LOCKS) pyproject.toml setup.py)

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Physics only: without this, looking for a display prints warnings.
export MUJOCO_GL ?= disable
export TF_CPP_MIN_LOG_LEVEL ?= 3
export GRPC_VERBOSITY ?= NONE
# Nothing here uses an accelerator; TensorFlow would reserve its memory.
export CUDA_VISIBLE_DEVICES ?=
# Real datasets for tests and benchmarks, which are skipped without them.
export RLDS_BEAM_REAL_DATA ?= $(wildcard $(abspath ../shared/data))

.PHONY: help setup full left-out demo test test-quick test-all test-macos print-macos test-faults test-buckets test-pythons test-peers test-flink test-dataflow test-wheel test-readme test-newest test-docs environments docs site docs-serve lint format bench wheel lock clean

PYTEST = timeout --foreground --signal=INT --kill-after=60 $(TEST_SECONDS) $(PY) -m pytest -q
SAY_TIMEOUT = { code=$$?; case $$code in \
	124|137) echo "The tests were stopped after $(TEST_SECONDS) s: one hangs outside of its deadline, or this machine needs" \
		"more time: make $@ TEST_SECONDS=6000" >&2;; esac; exit $$code; }

help:  ## print this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

setup: $(PROJECT)  ## build .venv (the other targets do it if needed)

$(DEPENDENCIES): | $(LOCKS)
	@tools/make_venv $(VENV)
	@rm -f $(VENV)/.dependencies-* && touch $@

$(PROJECT): $(DEPENDENCIES)
	@$(PY) -m pip install --quiet --no-deps --no-build-isolation --editable .
	@$(PY) tools/link_checkout.py
	@rm -f $(VENV)/.project-* && touch $@

has = $(PY) -c 'import sys; from importlib.util import find_spec; sys.exit(not all(map(find_spec, sys.argv[1:])))' $(1)

# For targets that need the full environment.
full: $(PROJECT)
	@$(call has,mypy tensorflow) || { echo "This needs Python 3.11: install it, remove $(VENV)," \
		"and run make again" >&2; exit 2; }

left-out: $(PROJECT)
	@$(call has,tensorflow) || echo "Tests of TensorFlow, TF-Agents, Reverb and EnvLogger are skipped: they" \
		"need Python 3.11. Install it, remove $(VENV), and run make again."

demo: $(PROJECT)  ## record episodes from a simulator, break two, check, convert, push into Reverb, train an agent
	@$(PY) examples/demo.py

test: left-out  ## run the tests (some of them: TESTS=tests/core)
	@$(PYTEST) $(PYTEST_FLAGS) $(foreach folder,faults buckets flink dataflow peers docs site wheel,--ignore=tests/$(folder)) $(TESTS) \
		|| $(SAY_TIMEOUT)

test-quick: left-out  ## run a minute's worth of tests
	@$(PYTEST) $(PYTEST_FLAGS) $(QUICK) || $(SAY_TIMEOUT)

test-all: export RLDS_BEAM_ALL_CASES := 1
test-all: test test-macos test-faults test-buckets test-docs test-pythons test-peers test-dataflow test-flink test-wheel test-readme test-newest  ## run all tests, with all random cases

test-macos: left-out  ## run tests without what macOS lacks: /proc, CPU affinity, fork, TensorFlow (2 minutes; all: MACOS=tests)
	@tools/like_macos $(PYTEST) $(PYTEST_FLAGS) $(MACOS) || $(SAY_TIMEOUT)

print-macos:
	@echo $(MACOS)

test-faults: left-out  ## kill processes and servers, fill disks, cut connections, bound memory; finished work survives
	@$(PYTEST) $(PYTEST_FLAGS) tests/faults || $(SAY_TIMEOUT)

test-buckets: full  ## read and write s3://, gs://, az:// on local servers (a minute)
	@$(PYTEST) $(PYTEST_FLAGS) tests/buckets || $(SAY_TIMEOUT)

# Tests of the base package; those that need TensorFlow or another extra are skipped. Each Python has its own lock.
test-pythons: $(PROJECT) wheel  ## run the base tests on 3.13, and version-dependent ones on 3.11 to 3.14 (one: PYTHONS=3.12)
	@$(PY) tools/pythons.py $(PYTHONS) $(PYTEST_FLAGS) $(filter-out tests,$(TESTS))

# RLlib with PyTorch and the readers of our columns: 4 GB from PyPI, fetched once. The others take 1 to 2 GB each. The loaders
# of benchmarks are tested if they are named (PEERS=loading).
test-peers: $(PROJECT) wheel  ## compare with other programs (in .venv-peers-*, built once)
	@$(PY) tools/peers.py $(PEERS)

environments: $(PROJECT)  ## build the environments of test-pythons, test-peers, and test-flink (they do it if needed)
	@$(PY) tools/prepare.py
	@$(PY) tests/support/flink_artifacts/__init__.py

# Fetched once into .flink: 250 MB from PyPI and Maven Central. In one process: the tests share a cluster and kill parts of it.
test-flink: full  ## run the tests on a real, local Flink cluster (needs Maven and JDK 17)
	@$(PY) tests/support/flink_artifacts/__init__.py
	@$(PYTEST) tests/flink || $(SAY_TIMEOUT)

test-dataflow: full  ## run Dataflow jobs in an environment like their image's (half a minute)
	@$(PYTEST) tests/dataflow || $(SAY_TIMEOUT)

test-wheel: full wheel  ## check what the packages hold, and run a job with the wheel in a fresh environment (a minute)
	@$(PYTEST) tests/wheel || $(SAY_TIMEOUT)
	@tools/check_wheel

test-readme: full  ## run the README and the ten-minute tutorial as printed, in a fresh environment (3 minutes)
	@tools/check_readme

test-newest: full wheel  ## run the README with the newest Python and packages, and open the pages in Chromium (2 minutes)
	@tools/check_readme newest

# mypy gets the package through links (also for editors, see tools/link_checkout.py), and names the files of the checkout.
lint: full  ## run ruff, and mypy in strict mode, for Linux and macOS
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(PY) tools/link_checkout.py
	@MYPYPATH=build/checkout $(BIN)/mypy --package rlds_beam > build/mypy.txt && MYPYPATH=build/checkout $(BIN)/mypy \
		--platform darwin --cache-dir .mypy_cache/darwin --package rlds_beam > build/mypy.txt || code=$$?; sed -E \
		-e 's#build/checkout/rlds_beam/(pipelines|runners|transforms)/#\1/#' -e 's#build/checkout/#src/#' build/mypy.txt; exit $${code:-0}

docs: full  ## write the generated pages, build the site with the API reference in build/docs, and check its links
	@$(PY) docs/diagrams.py
	@$(PY) docs/connector_reference.py
	@$(PY) docs/command_reference.py
	@$(PY) docs/rule_reference.py
	@$(PY) docs/signal_reference.py
	@$(PY) docs/format_table.py
	@$(PY) docs/meaning_table.py
	@$(PY) docs/figure_tables.py
	@$(PY) docs/charts.py
	@$(PY) docs/gallery.py
	@$(MAKE) --no-print-directory site

site: full
	@rm -rf build/docs/*/ build/docs/*.html # a page that was removed
	@PYTHONWARNINGS=ignore $(BIN)/sphinx-build -q -E -W --keep-going docs build/docs
	@$(PY) docs/check_links.py build/docs

docs-serve: docs  ## build the site and show it on this machine (PORT=8000)
	@$(PY) -m http.server --bind 127.0.0.1 --directory build/docs $(or $(PORT),8000)

# In two processes, each with a Chromium. Without one, the tests of tests/site are skipped. `make test` compares the
# generated pages with what their scripts write.
test-docs: site  ## build the site, run the blocks of its pages, and check each page in headless Chromium (5 minutes)
	@$(PYTEST) -n 2 --dist worksteal -rs tests/docs tests/site || $(SAY_TIMEOUT)

format: full  ## format and fix with ruff
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: full  ## measure rlds-beam and its peers in one run
	@$(PY) benchmarks/run.py

PACKAGED := src transforms pipelines runners pyproject.toml setup.py MANIFEST.in README.md LICENSE

# Built once for all targets that need it, and again if a packaged file is newer.
wheel: $(PROJECT)  ## build the sdist, and the wheel from it, in dist
	@changed=$$(find $(PACKAGED) -not -path '*/__pycache__*' -not -path '*.egg-info*' -newer dist/rlds_beam-*.whl -print -quit \
		2>/dev/null || echo all); [ -z "$$changed" ] || { rm -rf dist && $(PY) -m build --no-isolation --outdir dist . \
		>build-wheel.log 2>&1 || { cat build-wheel.log >&2; exit 1; }; rm build-wheel.log; }
	@ls dist/*

COMPILE = UV_PYTHON_DOWNLOADS=never $(BIN)/uv pip compile --quiet --python-platform x86_64-manylinux_2_28 \
	--generate-hashes --no-header --no-annotate --no-emit-index-url --no-emit-find-links
COMPILE_311 = $(COMPILE) --python-version 3.11
COMPILE_BASE = $(COMPILE) --extra test $(UPGRADE) pyproject.toml

# The workers' locks hold the same versions as requirements.lock. For the base package, the 3.11 lock has the lowest versions
# that pyproject.toml allows, the others the newest; IPython and Jupyter run without pandas on 3.12, with pandas 3 later.
lock: full  ## resolve the dependencies and write the lock files (newer versions: UPGRADE=--upgrade)
	@$(COMPILE_311) --extra dev $(UPGRADE) --output-file requirements.lock pyproject.toml
	@sed -i '1i # Python 3.11, Linux x86-64: rlds-beam[dev] and all it needs. Written by `make lock`.' requirements.lock
	@rm -f examples/dataflow/requirements*.lock
	@$(COMPILE_311) --extra gcp --constraint requirements.lock \
		--output-file examples/dataflow/requirements.lock pyproject.toml
	@$(COMPILE_311) --extra gcp --extra agents --constraint requirements.lock \
		--output-file examples/dataflow/requirements-agents.lock pyproject.toml
	@$(COMPILE_BASE) --python-version 3.11 --resolution lowest-direct --output-file requirements/base-py311.lock
	@$(COMPILE_BASE) --python-version 3.12 --extra arrayrecord requirements/notebook.in \
		--output-file requirements/base-py312.lock
	@$(COMPILE_BASE) --python-version 3.13 --extra arrayrecord --extra ros --extra view \
		requirements/browse.in requirements/notebook.in requirements/pandas.in --output-file requirements/base-py313.lock
	@$(COMPILE_BASE) --python-version 3.14 --extra arrayrecord requirements/notebook.in requirements/pandas.in \
		--output-file requirements/base-py314.lock
	@sed -i '1i # Linux x86-64: rlds-beam[test] and all it needs. Written by `make lock`.' requirements/base-*.lock
	@$(COMPILE_BASE) --python-version 3.11 --extra arrayrecord --extra rllib --no-emit-package triton \
		requirements/loaders.in --output-file requirements/peers-rllib.lock
	@sed -i '1i # Python 3.11, Linux x86-64: rlds-beam[arrayrecord,rllib,test], what reads our columns, and all they need, but triton (for GPUs). Written by `make lock`.' \
		requirements/peers-rllib.lock
	@$(COMPILE_BASE) --python-version 3.12 --extra arrayrecord --extra lerobot --no-emit-package triton \
		--no-emit-package torchcodec requirements/lerobot.in --output-file requirements/peers-lerobot.lock
	@sed -i '1i # Python 3.12, Linux x86-64: rlds-beam[arrayrecord,lerobot,test] and LeRobot, but triton (for GPUs) and torchcodec (needs FFmpeg). Written by `make lock`.' \
		requirements/peers-lerobot.lock
	@$(COMPILE_BASE) --python-version 3.12 --extra arrayrecord --extra lerobot --extra loading --no-emit-package triton \
		requirements/loading.in --output-file requirements/peers-loading.lock
	@sed -i '1i # Python 3.12, Linux x86-64: rlds-beam[arrayrecord,lerobot,loading,test], the loaders of `benchmarks/run.py loading` and all they need, but triton (for GPUs). Written by `make lock`.' \
		requirements/peers-loading.lock
	@$(subst manylinux_2_28,manylinux_2_31,$(COMPILE_311)) --extra lerobot $(UPGRADE) --no-emit-package triton \
		--no-emit-package torchcodec --no-emit-package rerun-sdk pyproject.toml requirements/lerobot21.in \
		--output-file requirements/peers-lerobot21.lock
	@sed -i '1i # Python 3.11, Linux x86-64: rlds-beam[lerobot], LeRobot 0.3.3 and all they need, but triton (for GPUs), torchcodec (needs FFmpeg) and rerun. Written by `make lock`.' \
		requirements/peers-lerobot21.lock
	@$(COMPILE_BASE) --python-version 3.11 --no-emit-package triton requirements/scope_rl.in \
		--output-file requirements/peers-scope_rl.lock
	@sed -i '1i # Python 3.11, Linux x86-64: rlds-beam[test] and SCOPE-RL, without triton (for GPUs). Written by `make lock`.' \
		requirements/peers-scope_rl.lock
	@$(COMPILE_BASE) --python-version 3.11 --no-emit-package triton requirements/exchange.in \
		--output-file requirements/peers-exchange.lock
	@sed -i '1i # Python 3.11, Linux x86-64: rlds-beam[test], d3rlpy, Minari and all they need, but triton. Written by `make lock`.' \
		requirements/peers-exchange.lock

clean:  ## remove build results (.venv stays)
	rm -rf build dist demo_data bench_data .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info *.egg-info
	find . -path './.venv*' -prune -o -name __pycache__ -type d -exec rm -rf {} +
