# Both targets set up what they need in .venv; PYTHON chooses the interpreter.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test fast micro clean

demo: .venv/bayesloop
	$(BIN)/bayesloop demo data/paper_grid.csv --out out/demo

test: .venv/all
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -m "not slow"
	$(BIN)/python -m pytest -m slow
	bash tests/newer_python.sh

fast: .venv/all
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -m "not slow"

.venv/bayesloop: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt -e .
	touch $@

.venv/all: .venv/bayesloop
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[train,dev]"
	touch $@

clean:
	rm -rf .venv out
