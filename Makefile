# `make scan` and `make test` set everything up: the environment is .venv, rebuilt when the pins change.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: scan test hub lint lines docs bench package clean

scan: $(STAMP)
	$(BIN)/biascope scan

# Compiled files are kept: every worker would compile all tests again.
test: export PYTHONDONTWRITEBYTECODE =
test: $(STAMP) lint
	$(BIN)/python -m pytest -m "not slow and not gpu" -n auto --dist worksteal

# Models of timm, torchvision, transformers, peft and open_clip by name, and encoders: their tests, with these libraries.
hub: export PYTHONDONTWRITEBYTECODE =
hub: .venv/.installed-hub
	$(BIN)/python -m pytest -m "not slow and not gpu" -n auto tests/families/libraries tests/training/test_callbacks.py \
		tests/data/test_table.py tests/data/test_token_ids.py tests/editing/test_reference_features.py \
		tests/editing/test_library_encoders.py tests/cli/test_merge_check.py \
		tests/cli/test_merge_check_libraries.py tests/papers/test_task_arithmetic2023_encoders.py

lint: $(STAMP) lines
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Lines of Python and TOML, beside those of the last release. There is no limit. A release puts its own numbers here.
RELEASE := 0.1.0
src_then := 52300
papers_then := 11790
lines_in = $$(find $(1) -name '*.py' -o -name '*.toml' | xargs cat | wc -l)

lines:
	@echo "src: $(call lines_in,src) lines ($(RELEASE): $(src_then)), of them papers: $(call lines_in,src/biascope/papers) ($(papers_then))"

# Warnings are errors: a broken link or a tutorial that fails ends the build. Nothing is fetched from outside.
docs: .venv/.installed-docs
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet -b html docs docs/_build/html
	@echo "Open docs/_build/html/index.html"

# The package as a user gets it: the wheel comes from the sdist, goes into an empty environment and works outside of the checkout.
package: $(STAMP)
	rm -rf dist build/package && mkdir -p build/package/elsewhere
	$(BIN)/python -m hatchling build -t sdist
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation -w dist dist/*.tar.gz
	$(PYTHON) -m venv build/package/venv
	build/package/venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt dist/*.whl
	cd build/package/elsewhere && ../venv/bin/biascope --version && ../venv/bin/biascope scan lenet --draws 8 --quiet --out scan
	cd build/package/elsewhere && ../venv/bin/python -W error -c "import biascope; \
	print(biascope.__file__, biascope.load('scan/mean_gradient'), sep='\n')" && test -s scan/report.html
	rm -rf build/package

bench: $(STAMP)
	for script in benchmarks/*.py; do $(BIN)/python $$script || exit 1; done

# The constraint keeps pip from looking for a newer torch, which would pull gigabytes of GPU libraries.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $(STAMP)

.venv/.installed-hub: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[hub,tables]"
	touch .venv/.installed-hub

.venv/.installed-docs: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[docs]"
	touch .venv/.installed-docs

clean:
	rm -rf docs/_build docs/auto_tutorials docs/generated
	rm -rf .venv build dist biascope-runs .pytest_cache .mypy_cache .ruff_cache
