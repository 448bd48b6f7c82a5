# `make demo` trains, evaluates and saves an agent; `make test` runs every check. Both install what they need into
# .venv, once: again only when pyproject.toml or constraints.txt change.

PYTHON ?= python3
INSTALLED := .venv/.installed
PIP := .venv/bin/python -m pip --disable-pip-version-check

.PHONY: demo test bench clean

demo: $(INSTALLED)
	rm -rf runs/demo
	.venv/bin/jaxenvs train ppo CartPole-v1 --seed 0 --out runs/demo

test: $(INSTALLED)
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/pytest -n auto

bench: $(INSTALLED)
	$(PIP) install --quiet -c constraints.txt -e ".[bench]"
	.venv/bin/jaxenvs bench

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) install --quiet -c constraints.txt -e ".[dev]"
	touch $@

clean:
	rm -rf .venv .bench .jax_cache .pytest_cache .mypy_cache .ruff_cache runs
