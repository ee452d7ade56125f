# Everything that a contributor or a CI machine runs. `make` alone lists the targets.
#
# A new machine needs Python >= 3.11 with pip, make and git, nothing else; where a package has no wheel, a C compiler.
#   PYTHON   the interpreter to build .venv with     make setup PYTHON=python3.12
#   ARGS     more arguments for the target's command make test ARGS='tests/pool -k arena'

.DEFAULT_GOAL := help
.NOTPARALLEL:

VENV := .venv
BIN := $(VENV)/bin
PYTHON ?=
ARGS ?=
# Half of a test's time is the start of an interpreter, so two at a time take three fifths of the time. Each start reads
# the bytecode that compileall writes, also where PYTHONDONTWRITEBYTECODE is set.
PARALLEL := -n 2 --dist worksteal

.PHONY: help setup setup-heavy demo smoke quick test test-all test-foreign test-pythons bench bench-guard notebook format docs docs-serve release test-extras clean clean-all

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: ## make .venv and install what the demo and the tests need (done once per pyproject.toml)
	@PYTHON='$(PYTHON)' scripts/setup.sh $(VENV) dev

setup-heavy: setup ## add torch and Stable-Baselines3, which only `make test-all` needs
	@PYTHON='$(PYTHON)' scripts/setup.sh $(VENV) heavy

DEMO := treadle collect ALE/Pong-v5 --episodes 8 --seed 0 --workers auto --out demo/pong --force

demo: setup ## collect eight episodes of Pong into a Minari dataset
	@echo '$(DEMO)'
	@$(BIN)/$(DEMO)

# of each part the files that are done soonest
SMOKE := tests/worker/test_life.py tests/lockstep/test_slots.py tests/stream tests/pool/test_backends.py \
	tests/pool/test_adding_a_face.py tests/vector/test_vector_env.py tests/sample/test_schedule.py \
	tests/sample/test_batching.py tests/plan/test_rollouts.py tests/tasks/test_tasks.py tests/test_trees.py \
	tests/sample/test_episode.py

smoke: setup ## a few tests of each part, in less than 30 seconds
	$(BIN)/python -m pytest -q $(SMOKE) $(ARGS)

quick: setup ## pytest alone, without lint and types: make quick ARGS='tests/pool -k arena'
	$(BIN)/python -m pytest $(ARGS)

test: setup ## lint, types and the tests that need nothing heavy; CI runs this first
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/python -m compileall -q src
	TREADLE_TEST_REQUIRE=1 $(BIN)/python -m pytest $(PARALLEL) $(ARGS)

# With `make test` before it, every test has run once. 5: ARGS left none.
test-all: setup-heavy ## the tests that `make test` leaves out: heavy and slow ones
	$(BIN)/python -m compileall -q src
	TREADLE_TEST_ALL=1 $(BIN)/python -m pytest $(PARALLEL) -m '(heavy or slow) and not ray' $(ARGS) || [ $$? = 5 ]
	@# a process that has been on a cluster keeps Ray's threads, and what forks refuses it
	TREADLE_TEST_ALL=1 $(BIN)/python -m pytest $(PARALLEL) -m ray $(ARGS) || [ $$? = 5 ]

test-foreign: ## suites that want an environment of their own (gigabytes, kept in .venvs); ARGS='SUITE ...' for some
	@PYTHON='$(PYTHON)' scripts/test-foreign.sh $(ARGS)

test-pythons: ## the quick tests on Python 3.12 and 3.13, where they are installed
	@scripts/test-pythons.sh $(ARGS)

bench: setup ## measure what people run against what they run it with today (libraries that are installed)
	$(BIN)/python -m benchmarks.real --quick $(ARGS)

notebook: setup-heavy ## make build/imitation.ipynb of examples/imitation.py
	@mkdir -p build
	$(BIN)/jupytext --quiet --to notebook --output build/imitation.ipynb examples/imitation.py

format: setup ## rewrite the sources the way `make test` wants them
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: setup ## build the site into build/site
	@PYTHON='$(PYTHON)' scripts/setup.sh $(VENV) docs
	$(BIN)/python scripts/site.py
	$(BIN)/zensical build --config-file mkdocs.yml --clean --strict $(ARGS)

docs-serve: docs ## build the site and show it on this machine; after a change of a page, run it again
	$(BIN)/zensical serve --config-file mkdocs.yml $(ARGS)

release: ## build the sdist and the wheel into dist/, check them, install them into an empty environment
	@PYTHON='$(PYTHON)' scripts/release.sh

test-extras: ## each extra alone in an empty environment (gigabytes), from the wheel of `make release`; ARGS='EXTRA ...'
	@scripts/test-extras.sh $(ARGS)

clean: ## remove caches and build products
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests benchmarks scripts -name __pycache__ -type d -prune -exec rm -rf {} +

clean-all: clean ## remove the virtual environments and the demo's output too
	rm -rf $(VENV) .venvs demo
