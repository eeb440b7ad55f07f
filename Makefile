# Sets itself up on any machine with Python >= 3.11 and make.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: venv compare smoke images tasks extend soak test browser oracles tpu clean

.venv/ready: requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python >= 3.11 is needed; set PYTHON=")'
	@echo 'Setting up .venv, about 1 GB: a minute or two'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --editable .
	touch $@

.venv/ready-test: .venv/ready
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[test]'
	touch $@

.venv/ready-browser: .venv/ready-test
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[test,browser]'
	touch $@

.venv/ready-oracles: .venv/ready-test
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[test,oracles]'
	touch $@

.venv/ready-tpu: .venv/ready
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[tpu]'
	touch $@

venv: .venv/ready

compare: .venv/ready
	$(BIN)/python -m experiments.compare --config=configs/compare.py

smoke: .venv/ready  # compiling is most of it: without the optimiser it takes half as long
	XLA_FLAGS=--xla_backend_optimization_level=0 $(BIN)/python -m experiments.compare --config=configs/smoke.py

images: .venv/ready
	$(BIN)/python -m experiments.images --config=configs/images.py

tasks: .venv/ready
	$(BIN)/python -m experiments.tasks --config=configs/tasks.py

extend: .venv/ready  # trains a model, then extends it
	$(BIN)/python -m experiments.train --config=configs/extend.py:train
	$(BIN)/python -m experiments.extend --config=configs/extend.py

soak: .venv/ready  # ten minutes of kills; MINUTES=1 for fewer
	$(BIN)/python -m tools.soak --minutes=$(or $(MINUTES),10)

test: .venv/ready-test
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/pytest -n 2

browser: .venv/ready-browser  # needs Chromium or Chrome of the system: apt-get install chromium
	$(BIN)/pytest -m browser tests/test_browser.py

oracles: .venv/ready-oracles
	$(BIN)/pytest -n 2 -m oracles tests/oracles tests/test_examples.py

tpu: .venv/ready-tpu  # every scheme of one axis, compiled for a slice that need not be there; no TPU is used
	$(BIN)/python -m tools.compile_tpu --config=configs/smoke.py --topology=v5e:2x2 \
	  --encodings=all --config.length=1024 --config.batch=4 --config.model.dtype=bfloat16 --out=runs/tpu

clean:
	rm -rf .venv runs .jax_cache .pytest_cache .ruff_cache .hypothesis
