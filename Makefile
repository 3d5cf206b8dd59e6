# What a newcomer and CI type. Set-up is .ci/setup's matter: it says what it changes.
.DEFAULT_GOAL := help
.PHONY: help demo test lint bench fuzz clean

python := .venv/bin/python
setup := .ci/setup

help: ## Show this
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-6s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: ## Set up what is missing, then watch an agent's tool calls run in a locked container
	@$(setup) python docker images
	@$(setup) run $(python) examples/demo.py

test: lint ## Set up what is missing, then check style and types, and run all tests
	@$(setup) inspector docker cli runsc images
	$(setup) run $(python) -m pytest --cov --numprocesses auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

lint: ## Check style and types
	@$(setup) dev
	$(python) -m ruff check
	$(python) -m ruff format --check
	$(python) -m mypy

bench: ## Measure, and write docs/benchmarks.md
	@$(setup) dev docker cli images
	@$(setup) run $(python) benchmarks/run.py --write docs/benchmarks.md

fuzz: ## Make 50,000 scripts, run what policies allow under real shells, and look for what got past
	@$(setup) dev docker images
	@$(setup) run $(python) -m tests.policy.fuzz --scripts 50000

clean: ## Remove what these targets made in this directory; images stay in Docker
	rm -rf .venv build dist .coverage* .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find runner tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
