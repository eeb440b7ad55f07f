"""The main job: ten encodings, three seeds, a 2-layer byte model trained at 64 and tested to 512.

    make compare
    python -m experiments.compare --config=configs/compare.py --config.data=text:DIR \
      --config.workdir=runs/mine

Minutes on 2 cores. One learning rate for all, which is near the best of a grid for each
(docs/results/compare.md); for encodings with parameters, six multiples of it are tried for these,
and the best on validation text is kept.

Questions: the two of every comparison (docs/results.md), none of its own. Written after the
results: ALiBi, NoPE and positions added to the input are behind RoPE at the training length; beyond
it RoPE fails, and a learned table is not defined.
"""

from experiments.running.configs.compare import CompareConfig
from pe_jax.training.config import EvalConfig, OptimizerConfig


def get_config() -> CompareConfig:
    return CompareConfig(
        baseline="nope",
        reference="rope",
        batch=16,
        steps=500,
        optimizer=OptimizerConfig(learning_rate=0.01),
        encoding_rates=(0.3, 1.0, 3.0, 10.0, 30.0, 100.0),
        rate_steps=500,
        eval=EvalConfig(windows=12, split="test", every=50),
    )
