# The packages' tests run apart: training forks processes, which JAX does not bear in its own.
# Both targets set up what they need in .venv; PYTHON chooses the interpreter.
PYTHON ?= python3
BIN := .venv/bin
MICRO_BUDGET ?= 8.5e11

.PHONY: demo test fast docs run micro clean

demo: .venv/bayesloop
	$(BIN)/bayesloop demo data/paper_grid.csv --out out/demo

test: .venv/all
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests --ignore tests/training -m "not slow" -n 2 --dist loadfile
	$(BIN)/python -m pytest tests/training -m "not slow"
	$(BIN)/python -m pytest tests --ignore tests/training -m slow
	$(BIN)/python -m pytest tests/training -m slow
	bash tests/newer_python.sh
	$(MAKE) docs

fast: .venv/all
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests --ignore tests/training -m "not slow" -n 2 --dist loadfile
	$(BIN)/python -m pytest tests/training -m "not slow"

# The API reference, from the docstrings; what pdoc warns about is an error.
docs: .venv/all
	rm -rf out/docs
	$(BIN)/python -W error .ci/docs.py out/docs

# A looped model (r = 4, width 24) on real text: fetches Debian's documentation, then trains for about two minutes.
run: .venv/all
	test -f corpus/debian/manifest.json || $(BIN)/python -m training.tokens debian --out corpus/debian
	OMP_NUM_THREADS=1 $(BIN)/python -m training.train --data corpus/debian --out runs/one --width 24 --r 4 --budget 6e11

# hours on two cores; the same command goes on after an interruption
micro: .venv/all
	test -f corpus/debian/manifest.json || $(BIN)/python -m training.tokens debian --out corpus/debian
	$(BIN)/python -m training.sweep --grid micro micro-truncated micro-hyperconnections --max-budget $(MICRO_BUDGET) \
		--order ascending --compile block --device cpu --data corpus/debian --out runs/micro
	mkdir -p out
	$(BIN)/python -m training.sweep --out runs/micro --collect out/micro_grid.h5
	$(BIN)/python -m benchmarks.micro_analysis out/micro_grid.h5 --out out/micro

.venv/bayesloop: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt -e .
	touch $@

.venv/all: .venv/bayesloop
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[train,dev,docs]"
	touch $@

clean:
	rm -rf .venv .venv-newer out
