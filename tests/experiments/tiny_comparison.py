"""A comparison of two schemes, small enough to be run by tests."""

from experiments.running.configs.compare import CompareConfig
from pe_jax.training.config import EvalConfig
from tests import tiny
from tests.trainers import OPTIMIZER

NAMES, SEEDS, STEPS, RATES = ("nope", "learned"), (5, 6), 3, (0.02, 0.1)


def settings(folder) -> CompareConfig:
    return CompareConfig(
        workdir=str(folder),
        data="synthetic:copy",
        encodings=("nope", "learned(length={length})"),
        reference="learned",
        seeds=2,
        seed=5,
        workers=1,
        length=tiny.L,
        batch=tiny.R,
        steps=STEPS,
        log_every=1,
        model=tiny.config(vocab=0),
        optimizer=OPTIMIZER,
        eval=EvalConfig(lengths=(tiny.L, 2 * tiny.L), windows=6, stride=tiny.L, every=2),
        timing_repeats=5,
    )
