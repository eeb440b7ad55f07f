"""The whole comparison on tiny sizes, to see that everything works: `make smoke`."""

from experiments.running.configs.compare import CompareConfig
from pe_jax.models.config import ModelConfig
from pe_jax.training.config import EvalConfig, OptimizerConfig


def get_config() -> CompareConfig:
    return CompareConfig(
        workdir="runs/smoke",
        baseline="nope",
        reference="rope",
        length=16,
        batch=8,
        steps=30,
        log_every=15,
        seeds=2,
        model=ModelConfig(width=32, layers=1, heads=2),
        optimizer=OptimizerConfig(warmup=5),
        eval=EvalConfig(lengths=(16, 128), windows=4, stride=4),
        timing_repeats=5,
    )
