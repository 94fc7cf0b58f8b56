# `make scan` and `make test` set everything up: the environment is .venv, rebuilt when the pins change.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: scan test lint bench clean

scan: $(STAMP)
	$(BIN)/biascope scan

test: $(STAMP) lint
	$(BIN)/python -m pytest -m "not slow and not gpu" -n auto

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(STAMP)
	for script in benchmarks/*.py; do $(BIN)/python $$script || exit 1; done

# The constraint keeps pip from looking for a newer torch, which would pull gigabytes of GPU libraries.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $(STAMP)

clean:
	rm -rf .venv build dist biascope-runs .pytest_cache .mypy_cache .ruff_cache
