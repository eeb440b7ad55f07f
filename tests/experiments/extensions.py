"""Settings of a tiny run and of what is extended from it."""

import numpy as np

from experiments.running.configs.extend import ExtendConfig
from pe_jax.models.config import ModelConfig
from pe_jax.training.config import Config, EvalConfig, OptimizerConfig
from tests.test_corpus import write

L, TARGET = 104, 208  # a passkey takes 103 bytes

EVAL = EvalConfig(lengths=(L, TARGET), windows=2, stride=L, batch_tokens=4 * L)


def data(folder) -> str:
    """Random letters below a folder, with passkeys."""
    letters = np.random.default_rng(0).integers(97, 123, 3000, dtype=np.uint8).tobytes()
    files = {
        f"{split}/{n}": letters[n:][:900] for split in ("train", "validation") for n in (0, 99)
    }
    return f"passkeys:{write(folder / 'text', files | {'test/0': b'test'})}"


def base_config(folder, **fields) -> Config:
    given = {
        "workdir": str(folder / "base"),
        "length": L,
        "batch": 2,
        "steps": 2,
        "log_every": 1,
        "model": ModelConfig(width=16, layers=1, heads=2),
        "optimizer": OptimizerConfig(warmup=1, learning_rate=0.02),
        "eval": EVAL,
    }
    return Config(**{**given, **fields})


def settings(base: Config, folder, **fields) -> ExtendConfig:
    given = {
        "workdir": str(folder),
        "runs": (base.workdir,),
        "factor": 2.0,
        "steps": 0,
        "batch": 2,
        "log_every": 1,
        "depths": 2,
        "trials": 2,
        "search": 9,
        "workers": 1,
        "optimizer": OptimizerConfig(warmup=1, learning_rate=0.01),
        "eval": EVAL,
    }
    config = ExtendConfig(**{**given, **fields})
    config.check()
    return config
