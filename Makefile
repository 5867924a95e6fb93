# `make demo` and `make test` set everything up by themselves on a machine with Python 3.11 or newer.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
READY := .venv/.installed

.PHONY: demo pictures test test-slow test-wheel mutate lint docs wheel bench clean
.DEFAULT_GOAL := test

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "mixview needs Python 3.11 or newer, $(PYTHON) is older: make PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --progress-bar off --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(READY)
	$(BIN)/python examples/demo.py --out demo

pictures: demo
	$(BIN)/python benchmarks/pictures.py --demo demo

# Files of tests in a few processes: each is one, so that its fixtures are made once.
test: $(READY)
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

test-slow: $(READY)
	$(BIN)/python -m pytest -m slow

mutate: $(READY)
	$(BIN)/python -m tests.mutate

test-wheel: $(READY)
	$(BIN)/python -m pytest -m slow tests/test_wheel.py

wheel: $(READY)
	$(BIN)/python -m build --outdir dist .

docs: $(READY)
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --nitpicky --quiet -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/mixing.py
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/step.py
	$(BIN)/python benchmarks/loop.py
	$(BIN)/python benchmarks/sources.py
	$(BIN)/python benchmarks/scenes.py
	$(BIN)/python benchmarks/data.py
	$(BIN)/python benchmarks/photographs.py
	$(BIN)/python benchmarks/decoding.py
	$(BIN)/python benchmarks/embedding.py
	$(BIN)/python benchmarks/embedding.py --phone --images 64
	$(BIN)/python benchmarks/cached_pretraining.py
	$(BIN)/python benchmarks/pretraining.py
	$(BIN)/python benchmarks/end_to_end.py
	$(BIN)/python benchmarks/learning.py
	$(BIN)/python benchmarks/learning.py --data cifar10 --size 16 --epochs 60
	$(BIN)/python benchmarks/distillation.py
	$(BIN)/python benchmarks/continuing.py
	$(BIN)/python benchmarks/bit_depth.py
	$(BIN)/python benchmarks/evaluation.py
	$(BIN)/python benchmarks/svm.py
	$(BIN)/python benchmarks/detection.py
	$(BIN)/python benchmarks/detection_photographs.py
	$(BIN)/python benchmarks/detection_overfit.py

clean:
	rm -rf .venv demo build dist docs/_build docs/generated *.egg-info
