"""An outsider's command lines: what is wrong is one line with the field and the fix."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import pytest

from tests.command_lines import start, status

ROOT = Path(__file__).parents[2]
C = "--config."


def unreached(config=None):
    raise AssertionError("the program began")


LINES = (
    # files
    ("train --config=configs/trian.py", "did you mean configs/train.py?"),
    ("train --config=nowhere.py", "no such Python file; configs has compare, extend,"),
    ("train --config=README.md", "--config=README.md: no such Python file"),
    ("train --config=a.py --config=b.py", "--config is given 2 times, a.py, b.py: pass one"),
    ("train --config=configs/train.py:small", "--config=configs/train.py:small: get_config too"),
    ("compare --config=configs/extrapolation_field.py:7B", "there is no part '7B'"),
    ("compare --config=configs/train.py", "is a Config, this program takes a CompareConfig"),
    ("train --config=configs/extend.py:trian", "is a ExtendConfig, this program takes a Config"),
    ("train --config", "--config"),
    # names
    (f"train {C}learning_rate=1e-3", "did you mean --config.optimizer.learning_rate?"),
    (f"train {C}optimizer.learning_rat=1", "did you mean --config.optimizer.learning_rate?"),
    (f"train {C}model=rope", "--config.model has fields; pass one of them, such as"),
    (f"train {C}steps.every=3", "did you mean --config.steps?"),
    ("train --model.width=64", "--model.width is not a flag; did you mean --config.model.width?"),
    ("train --steps=10", "--steps is not a flag; did you mean --config.steps?"),
    ("train --config.model.nocausal", "--config.model.nocausal is unknown; did you mean"),
    ("train steps=10", "'steps=10' is not a flag; write --config.FIELD=VALUE; --list=fields"),
    ("train --encodings=rope", "--encodings is not a flag; did you mean --encoding?"),
    ("compare --encoding=rope", "--encoding is not a flag; did you mean --encodings?"),
    ("compare --list=encoding", "--list='encoding': pass one of encodings, fields"),
    # values
    (f"train {C}model.causal=no", "--config.model.causal=no: pass true or false"),
    (f"train {C}model.causal=None", "--config.model.causal=None: pass true or false"),
    (f"train {C}steps=1e4", "--config.steps=1e4: pass an integer of at least 1"),
    (f"train {C}steps=", "--config.steps=: pass an integer of at least 1"),
    (f"train {C}optimizer.learning_rate=3e-3x", "learning_rate=3e-3x: pass a number in (0, 10]"),
    (f"train {C}eval.lengths=256;512", "eval.lengths=('256;512',): pass ascending"),
    (f"train {C}eval.lengths=256,500", "eval.lengths=(256, 500): pass ascending"),
    (f"train {C}eval.lengths=256,,512", "--config.eval.lengths=256,,512: pass ascending"),
    (f"train {C}model.dtype=float16", "model.dtype='float16': pass float32 or bfloat16; did you"),
    (f"train {C}workdir=README.md/run", "is not writable; choose another --config.workdir"),
    (f"train {C}workdir=s3://bucket/run", "must be a path of this machine; mount the bucket"),
    (f"train {C}workdir=file:///run", "must be a path of this machine; leave out file://"),
    (f"train {C}workdir=~nobody_here/run", "workdir='~nobody_here/run': Could not determine home"),
    (f"compare {C}workdir=gs://bucket/run", "workdir='gs://bucket/run': must be a path of this"),
    (f"tasks {C}workdir=gs:/bucket/run", "workdir='gs:/bucket/run': must be a path of this"),
    (f"images {C}workdir=S3://bucket/run", "workdir='S3://bucket/run': must be a path of this"),
    (f"extend {C}workdir=az://bucket/run", "workdir='az://bucket/run': must be a path of this"),
    ("benchmark --out=gs://bucket/run", "out='gs://bucket/run': must be a path of this"),
    ("train --process=first", "--process=first: pass an integer"),
    ("compare --config.seeds=two", "--config.seeds=two: pass an integer of at least 1"),
    ("compare --config.devices=two", "devices='two': pass one or all"),
    ("images --config.sides=32,50", "sides=(32, 50): must be multiples of patch=4"),
    ("extend --config.factor=0.5", "factor=0.5: pass a number in [1, 1024]"),
    ("benchmark --heads=0", "heads=0: pass an integer of at least 1"),
    ("benchmark --repeats=many", "--repeats=many: pass an integer"),
    # encodings
    ("train --encoding=roep", "encoding 'roep' is unknown; did you mean 'rope'?"),
    ("train --encoding=", "model.encoding='': pass an encoding"),
    ("train --encoding=rope(bse=5e5)", "has no field 'bse'; did you mean 'base'?"),
    ("train --encoding=yarn", "is a scaling: rope(scaling=yarn(…))"),
    ("train --encoding=rope(", "not a valid expression, such as 'rope(base=5e5)'"),
    (f"compare {C}encodings=rope,kerple", "for 2, pass --encodings=rope --encodings=kerple"),
    (f"extend {C}encodings=", "--config.encodings=: pass --config.encodings='()' for none, or"),
    (f"compare {C}encodings=t5+rope", "--config.encodings=t5+rope: pass --encodings=t5+rope"),
    ("compare --encodings=rope --encodings=rope", "name each once"),
    (f"compare --encodings=t5 {C}reference=alibi", "reference='alibi': pass one of the encodings"),
    (f"compare {C}baseline=sinusiodal", "did you mean 'sinusoidal'?"),
    ("tasks --tasks=recal", "tasks: 'recal' is unknown; did you mean 'recall'?"),
    ("tasks --positions=randomised(maximum=64)", "'randomised' is unknown; did you mean"),
    ("images --encodings=rope_2d@resize", "rope_2d@resize: choose one of"),
    (f"extend {C}runs=runs/a", "--config.runs=runs/a: pass --runs=runs/a"),
    # programs without a config
    ("generate --top_k=-1", "--top_k=-1: pass a non-negative integer"),
    ("generate --seed=2147483648", "=2147483648: pass an integer in the range [0, 2147483647]"),
    ("generate --workdir=nowhere", "nowhere' holds no config.json"),
    ("report --workdir=nowhere", "workdir='nowhere' holds no manifest.json"),
    ("explore --out=s3://bucket/run", "out='s3://bucket/run': must be a path of this machine"),
)


@pytest.mark.parametrize("line, words", LINES, ids=[line for line, _ in LINES])
def test_a_wrong_command_line_is_one_line_with_the_fix(capfd, monkeypatch, line, words):
    monkeypatch.chdir(ROOT)
    program, *argv = line.split()
    ended = status(lambda: start(program, unreached), *argv)
    error = capfd.readouterr().err
    assert ended == 2, error
    assert error.startswith("error: ") and error.count("\n") == 1 and len(error) < 500, error
    assert words in error, error


REAL = {
    "train --config.model.casual=True": "did you mean --config.model.causal?",
    "explore --out=/proc/nowhere": "/proc/nowhere",
}


def process(line: str, **variables: str) -> subprocess.Popen:
    """A process with this command line, started."""
    command = [sys.executable, "-m", *f"experiments.{line}".split()]
    env = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=ROOT, env=env, text=True, **pipes)


def test_a_real_process_says_so_too():
    running = {line: process(line) for line in REAL}
    for line, started in running.items():
        _, error = started.communicate(timeout=120)
        assert started.returncode == 2 and error.count("\n") == 1, (line, error)
        assert error.startswith("error: ") and REAL[line] in error, (line, error)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="the device that is not there is a GPU")
def test_a_device_that_is_not_there_is_named(tmp_path):
    line = f"train --config.workdir={tmp_path}"
    _, error = (running := process(line, JAX_PLATFORMS="cuda")).communicate(timeout=120)
    assert running.returncode == 2 and error.count("\n") == 1, error
    assert error.startswith("error: JAX_PLATFORMS='cuda': no such device works here")


def test_there_are_enough_of_them():
    assert len({line for line, _ in LINES} | {*REAL}) >= 40
