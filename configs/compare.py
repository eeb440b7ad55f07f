"""The main job: ten encodings, three seeds, a 2-layer byte model trained at 64 and tested to 512.

    make compare
    python -m experiments.compare --config=configs/compare.py --config.data=text:DIR

Minutes on 2 cores. Expect the losses of all schemes to lie close together at the training length;
beyond it, sinusoidal positions fail at once, a learned table is not defined, and ALiBi, T5 and the
bucketed biases stay flat.
"""

from pe_jax.training.config import EvalConfig
from pe_jax.training.sweeps import CompareConfig


def get_config() -> CompareConfig:
    return CompareConfig(batch=16, steps=500, eval=EvalConfig(windows=12))
