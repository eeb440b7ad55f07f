"""The settings of a run by several processes, and the rows of the data that each of them reads."""

import json
import os

from pe_jax.training.config import Config, EvalConfig, OptimizerConfig
from pe_jax.training.step import Trainer
from tests import tiny
from tests.faults import children


def get_config() -> Config:
    return Config(
        data="synthetic:copy",
        length=tiny.L,
        batch=tiny.R,
        steps=2,
        log_every=1,
        model=tiny.config(vocab=0, kv_heads=4),
        optimizer=OptimizerConfig(warmup=0, final=1.0),  # the same whatever `steps` is
        eval=EvalConfig(lengths=(tiny.L,), windows=2, stride=tiny.L),
    )


def noted(note):
    """`Trainer.put` that also calls `note` with the rows of tokens that this process reads."""
    put = Trainer.put

    def noting(self, batch):
        note(batch["tokens"].tolist())
        return put(self, batch)

    return noting


def noting() -> None:
    """Called first in a process: a line of the file ROWS for each step, the rows it reads."""
    children.devices()

    def write(rows):
        with open(os.environ["ROWS"], "a") as file:
            file.write(json.dumps(rows) + "\n")

    Trainer.put = noted(write)
