# Two commands are all a newcomer needs: `make demo` and `make test`. Each sets itself up.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test check fuzz docs notebooks lint lock sbom release web clean

demo: $(VENV)/.demo
	$(BIN)/quad4fhe demo
	@echo "To have quad4fhe at hand in this terminal, first: . $(BIN)/activate"

# Lint and types, with or without the optional parts (torch, Ray) in the environment.
check: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: check
	# Many small problems: threads of the BLAS and of torch would only wait for each other, and a waiting thread uses a core.
	# Files side by side, one per core up to four.
	OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses auto --maxprocesses 4 --dist loadfile

# As long as you like: make fuzz SECONDS=3600 TARGET=plans. Guided by coverage where atheris has a wheel (Linux).
SECONDS := 20
TARGET := all
fuzz: $(VENV)/.fuzz
	$(BIN)/python tests/fuzz/run.py --seconds $(SECONDS) --target $(TARGET)

# Without the notice that the theme is kept until May 2027 only; its successor, Zensical, reads the same mkdocs.yml.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "Open site/index.html"

notebooks: $(VENV)/.notebooks
	$(BIN)/python docs/notebooks/run.py

# Exact versions and hashes of everything a release runs with.
LOCK := requirements/release.txt
lock: $(VENV)/.release
	$(BIN)/uv pip compile --quiet --no-config --upgrade --universal --python-version 3.11 --generate-hashes --no-header \
	  --no-annotate --no-emit-index-url --no-emit-find-links \
	  --extra fast --extra sklearn --extra onnx --extra parquet --extra report --extra serve pyproject.toml -o $(LOCK)

# What is in a release, as CycloneDX.
sbom: $(VENV)/.release
	mkdir -p dist
	$(BIN)/cyclonedx-py requirements $(LOCK) --pyproject pyproject.toml --mc-type library --output-reproducible \
	  --output-file dist/quad4fhe.cdx.json
	@echo "dist/quad4fhe.cdx.json"

# Wheels and source archives in dist/, built twice, checked, and tried in an empty environment outside the clone.
release: $(VENV)/.release
	$(BIN)/python .ci/release.py
	$(MAKE) sbom

# The web page, from its source in clients/web: only for those who change it, because the result is committed. Needs npm.
web:
	npm --prefix clients/web ci --no-fund --no-audit
	npm --prefix clients/web run check
	npm --prefix clients/web run build

lint: $(VENV)/.test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/mypy

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "quad4fhe needs Python 3.11 or newer, and $(PYTHON) is $$($(PYTHON) -V 2>&1). Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[demo]'
	@touch $@

$(VENV)/.docs: pyproject.toml reproduce/pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[docs]' -e reproduce
	@touch $@

$(VENV)/.notebooks: pyproject.toml reproduce/pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[notebooks]' -e reproduce
	@touch $@

$(VENV)/.fuzz: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[fuzz]'
	@touch $@

$(VENV)/.release: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[release]'
	@touch $@

$(VENV)/.test: pyproject.toml reproduce/pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test]' -e reproduce
	@touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .fuzz demo site
