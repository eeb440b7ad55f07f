"""A tiny run of the training program, and what tests ask of one."""

import json
import os
import pathlib
import signal

import numpy as np
import pytest

from experiments.running.training import training_loop as program
from pe_jax.training.config import Config, EvalConfig
from pe_jax.training.step import State
from tests import tiny
from tests.test_corpus import write
from tests.tiny import L, R
from tests.trainers import OPTIMIZER, at_step


def settings(folder) -> Config:
    """A tiny run on a tiny text, both in the folder."""
    letters = np.random.default_rng(0).integers(97, 103, 900, dtype=np.uint8).tobytes()
    names = ("train/a", "train/b", "train/c", "validation/a", "test/a")
    data = write(folder / "text", {n: letters[99 * k :][:150] for k, n in enumerate(names)})
    return Config(
        workdir=str(folder / "run"),
        data=data,
        length=L,
        batch=R,
        steps=6,
        log_every=1,
        model=tiny.config(vocab=0, dropout=0.1),
        optimizer=OPTIMIZER,
        eval=EvalConfig(lengths=(4, L), windows=2, stride=4),
    )


@pytest.fixture(name="config")
def tiny_config(tmp_path) -> Config:
    return settings(tmp_path)


def main(config: Config, monkeypatch) -> State | None:
    """Runs the program; returns the state that training ended with."""
    states, train = [None], program.train
    with monkeypatch.context() as patch:
        patch.setattr(program, "train", lambda *a, **k: states.append(train(*a, **k)) or states[-1])
        program.run(config)
    return states[-1]


def stopped(config: Config, monkeypatch, step: int, number: int = signal.SIGTERM) -> int:
    """Runs the program until a signal comes at this step; returns its exit status."""
    with monkeypatch.context() as patch, pytest.raises(SystemExit) as end:
        at_step(patch, step, lambda: os.kill(os.getpid(), number))
        main(config, monkeypatch)
    return end.value.code


def rows_of(config: Config) -> list[dict]:
    lines = pathlib.Path(config.workdir, "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def losses(config: Config) -> list[tuple[int, float]]:
    return [(row["step"], row["loss"]) for row in rows_of(config)]


def refused(config, monkeypatch, capsys, *words: str, status: int = 2) -> None:
    """The program ends with one line that holds the words, and changes no file."""

    def files():
        found = [p for p in pathlib.Path(config.workdir).rglob("*") if p.is_file()]
        return {str(p): p.read_bytes() for p in found if "events" not in str(p)}

    before = files()
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        main(config, monkeypatch)
    error = capsys.readouterr().err
    assert end.value.code == status and error.startswith("error: ") and error.count("\n") == 1
    assert all(word in error for word in words), error
    assert files() == before
