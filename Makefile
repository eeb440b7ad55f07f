# Sets itself up on any machine with Python >= 3.11 and make.
PYTHON ?= python3
BIN := .venv/bin

PIP = $(BIN)/pip --quiet --disable-pip-version-check
LOCK = --quiet --universal --python-version 3.11 --no-annotate --custom-compile-command 'make lock' $(UPGRADE)

.PHONY: venv lock compare smoke images tasks extend speedrun soak check quick test test-newest docs browser oracles gpu gpu-124M gpu-32k gpu-compile tpu clean

# The exact versions of requirements.txt, so that published numbers can be made again. uv installs
# them in seconds; pip, which knows a site's mirrors and proxies, takes over where uv cannot.
.venv/ready: requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python >= 3.11 is needed; set PYTHON=")'
	@echo 'Setting up .venv, about 1 GB: a minute or less'
	$(PYTHON) -m venv .venv
	-$(PIP) install uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python --requirement requirements.txt \
	  || $(PIP) install --requirement requirements.txt
	$(PIP) install --no-deps --editable .
	touch $@

# An extra of pyproject.toml on top of it: test, docs, browser, oracles, tpu, cuda, gcs, gpu-compile.
.venv/ready-%: .venv/ready constraints.txt
	$(PIP) install $(PINS) --editable '.[$*]'
	touch $@

PINS = --constraint constraints.txt
.venv/ready-gpu-compile: PINS =  # its Triton is newer than PyTorch's, which the lock has

venv: .venv/ready

lock:  # pins what pyproject.toml has added; UPGRADE=--upgrade takes the newest versions. Needs uv
	uv pip compile $(LOCK) --extra experiments --output-file requirements.txt pyproject.toml
	uv pip compile $(LOCK) --extra docs --extra browser --extra oracles --extra tpu --extra cuda --extra gcs \
	  --constraint requirements.txt --output-file constraints.txt pyproject.toml

# XLA allocates the temporaries of each call anew; in pages of 2 MiB Linux clears them in a quarter of
# the time (docs/performance.md). glibc asks for such pages if this is set before Python starts.
compare smoke images tasks extend speedrun: export GLIBC_TUNABLES ?= glibc.malloc.hugetlb=1

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

speedrun: .venv/ready  # twelve encodings under the rules of docs/speedrun.md
	$(BIN)/python -m experiments.compare --config=configs/speedrun.py
	$(BIN)/python -m tools.speedrun add

soak: .venv/ready  # ten minutes of kills; MINUTES=1 for fewer
	$(BIN)/python -m tools.soak --minutes=$(or $(MINUTES),10)

check: .venv/ready-test  # lint, format, types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright --pythonpath $(BIN)/python

quick: check  # under a minute on two cores: that, and every law for three schemes
	$(BIN)/pytest -n 3 -q -m quick tests/contract

test: check
	$(BIN)/pytest -n auto

test-newest: BIN := .venv-newest/bin
test-newest:  # with the newest versions of the package index, not the lock's
	$(PYTHON) -m venv .venv-newest
	$(PIP) install --upgrade --upgrade-strategy eager --editable '.[test]'
	$(BIN)/pytest -n auto

docs: .venv/ready-docs  # the site: runs/site/index.html
	$(BIN)/python -m sphinx -W --keep-going -q -c docs . runs/site
	@echo runs/site/index.html

browser: .venv/ready-browser  # needs Chromium or Chrome of the system: apt-get install chromium
	$(BIN)/pytest -m browser tests/reporting

oracles: .venv/ready-oracles
	$(PIP) install --no-deps --requirement tests/oracles/no_deps.txt
	$(BIN)/pytest -n auto -m oracles tests/oracles tests/released tests/test_examples.py

# On a machine with an NVIDIA GPU, in nine minutes: are the kernels right there, and how fast? With
# PYTHON= that Python, which has JAX for CUDA, as it is: nothing is installed. Else one of its own.
ifeq ($(origin PYTHON),file)
ON_GPU := $(BIN)/python
gpu gpu-124M gpu-32k: .venv/ready-cuda
else
ON_GPU := $(PYTHON)
endif
gpu:
	$(ON_GPU) -m tools.gpu_session --out=$(or $(OUT),runs/gpu_session)

# Twelve minutes each, of text in DATA=text:DIR; the same command continues.
gpu-124M:  # six encodings at 124M parameters; SEEDS=2 adds a seed
	$(ON_GPU) -m tools.gpu_session --only=larger --seeds=$(or $(SEEDS),1) --budget=690 --data=$(or $(DATA),text:novels) --out=$(or $(OUT),runs/gpu_124M)

gpu-32k:  # SmolLM2-135M for 32,768 tokens by three methods
	$(ON_GPU) -m tools.gpu_session --only=longer --budget=690 --data=$(or $(DATA),text:novels) --out=$(or $(OUT),runs/gpu_32k)

gpu-compile: .venv/ready-gpu-compile  # every scheme of one axis, to machine code; no GPU is used
	$(BIN)/python -m tools.compile_gpu --out=runs/gpu

tpu: .venv/ready-tpu  # every scheme of one axis, compiled for a slice that need not be there; no TPU is used
	$(BIN)/python -m tools.compile_tpu --config=configs/smoke.py --topology=v5e:2x2 \
	  --encodings=all --config.length=1024 --config.eval.lengths=1024 --config.batch=4 --config.model.dtype=bfloat16 --out=runs/tpu

clean:
	rm -rf .venv .venv-newest runs .jax_cache .pytest_cache .ruff_cache .hypothesis
