"""The main job: ten encodings, three seeds, a 2-layer byte model trained at 64 and tested to 512.

    make compare
    python -m experiments.compare --config=configs/compare.py --config.data=text:DIR

Minutes on 2 cores. One learning rate for all and three times that for the parameters of encodings,
which a grid of both on validation text chose (docs/results.md). Expect relative positions of every
kind ahead at the training length, NoPE and positions added to the input behind; beyond it RoPE
fails, a learned table is not defined, and ALiBi, T5, Shaw and the others stay flat.
"""

from pe_jax.training.config import EvalConfig, OptimizerConfig
from pe_jax.training.sweeps import CompareConfig


def get_config() -> CompareConfig:
    return CompareConfig(
        batch=16,
        steps=500,
        optimizer=OptimizerConfig(learning_rate=0.01, encoding_rate=3.0),
        eval=EvalConfig(windows=12, every=50),
    )
